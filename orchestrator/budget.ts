/** What a run may use, and what tokens cost: limits are compared with what was told, prices come from a table with a date. */
import type { Budget, PriceTable, Usage } from '../domain/run-event.ts'

/** The usage with its price, where its program did not tell one and the model is in the table. */
export function priceOf(usage: Usage, model: string | null, { models }: PriceTable): Usage {
  if (usage.costUsd !== null || model === null) return usage
  const [name] = Object.keys(models)
    .filter((start) => model.startsWith(start))
    .sort((a, b) => b.length - a.length)
  const price = name === undefined ? undefined : models[name]
  if (price === undefined) return usage
  const costUsd =
    (usage.inputTokens * price.input +
      usage.outputTokens * price.output +
      usage.cacheReadTokens * price.cacheRead +
      usage.cacheWriteTokens * price.cacheWrite) /
    1_000_000
  return { ...usage, costUsd, costSource: 'priced' }
}

/** The limits of `over`, and where it has none those of `under`. */
export function overlay(under: Budget, over: Partial<Budget>): Budget {
  return {
    maxMinutes: over.maxMinutes ?? under.maxMinutes,
    maxTokens: over.maxTokens ?? under.maxTokens,
    maxCostUsd: over.maxCostUsd ?? under.maxCostUsd,
  }
}

/** A limit that was passed, with the figure reached. */
export interface PassedLimit {
  readonly limit: 'max_tokens' | 'max_cost_usd' | 'max_minutes'
  readonly allowed: number
  readonly reached: number
}

/** Tokens that count against `max_tokens`: all but those read from a cache, which are told apart. */
export function countedTokens(usage: Usage): number {
  return usage.inputTokens + usage.outputTokens + usage.cacheWriteTokens
}

/** The first limit of tokens or cost that the usage has passed; null when there is none. */
export function passedLimit(budget: Budget, usage: Usage): PassedLimit | null {
  const tokens = countedTokens(usage)
  if (budget.maxTokens !== null && tokens > budget.maxTokens)
    return { limit: 'max_tokens', allowed: budget.maxTokens, reached: tokens }
  if (budget.maxCostUsd !== null && usage.costUsd !== null && usage.costUsd > budget.maxCostUsd)
    return { limit: 'max_cost_usd', allowed: budget.maxCostUsd, reached: usage.costUsd }
  return null
}

/** Which limit, the figure reached and the overshoot, in a sentence. */
export function passedSentence({ limit, allowed, reached }: PassedLimit): string {
  const show = (figure: number) => {
    if (limit === 'max_tokens') return `${Math.round(figure)} tokens`
    if (limit === 'max_minutes')
      return `${figure < 1 ? Number(figure.toPrecision(2)) : Math.round(figure * 100) / 100} minutes`
    return figure > 0 && figure < 0.0001 ? `$${figure.toPrecision(2)}` : `$${figure.toFixed(4)}`
  }
  return `the budget's ${limit} of ${show(allowed)} was passed: ${show(reached)} were used, ${show(reached - allowed)} over it; go on with a larger budget in the next message`
}
