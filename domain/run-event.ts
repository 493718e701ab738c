/** One normalised line of an agent's activity, and what it used. */

export interface Usage {
  readonly inputTokens: number
  readonly outputTokens: number
  readonly cacheReadTokens: number
  readonly cacheWriteTokens: number
  readonly costUsd: number | null
  readonly costSource: 'reported' | 'priced' | null
}

export interface Budget {
  readonly maxMinutes: number | null
  readonly maxTokens: number | null
  readonly maxCostUsd: number | null
}

/** US dollars for a million tokens. */
export interface Price {
  readonly input: number
  readonly output: number
  readonly cacheRead: number
  readonly cacheWrite: number
}

export interface PriceTable {
  /** When the prices were looked up, as a date. */
  readonly date: string
  /** By the beginning of a model's name; the longest one that fits counts. */
  readonly models: Readonly<Record<string, Price>>
}

export const NO_USAGE: Usage = {
  inputTokens: 0,
  outputTokens: 0,
  cacheReadTokens: 0,
  cacheWriteTokens: 0,
  costUsd: null,
  costSource: null,
}

/** Usages added up; a cost that is unknown in one of them leaves the known ones' sum. */
export function sumUsage(usages: readonly Usage[]): Usage {
  return usages.reduce(
    (sum, usage) => ({
      inputTokens: sum.inputTokens + usage.inputTokens,
      outputTokens: sum.outputTokens + usage.outputTokens,
      cacheReadTokens: sum.cacheReadTokens + usage.cacheReadTokens,
      cacheWriteTokens: sum.cacheWriteTokens + usage.cacheWriteTokens,
      costUsd: usage.costUsd === null ? sum.costUsd : (sum.costUsd ?? 0) + usage.costUsd,
      costSource: usage.costSource ?? sum.costSource,
    }),
    NO_USAGE,
  )
}

/** What one run used: its billing figure (the last `turn` usage), else its requests added up; null when it told neither. */
export function totalUsage(events: readonly RunEventBody[]): Usage | null {
  return usageOf(addTold(NOTHING_TOLD, events))
}

/** What a run told of its usage so far, to which later events are added. */
export interface ToldUsage {
  /** The last `turn` usage. */
  readonly billed: Usage | null
  readonly requests: Usage | null
}

export const NOTHING_TOLD: ToldUsage = { billed: null, requests: null }

export function addTold(told: ToldUsage, events: readonly RunEventBody[]): ToldUsage {
  const more = events.filter((event) => event.kind === 'usage')
  const requests = more.filter(({ scope }) => scope === 'request').map(({ usage }) => usage)
  return {
    billed: more.findLast(({ scope }) => scope === 'turn')?.usage ?? told.billed,
    requests:
      requests.length === 0 ? told.requests : sumUsage([...(told.requests ? [told.requests] : []), ...requests]),
  }
}

/** The billing figure, else the requests added up. */
export function usageOf({ billed, requests }: ToldUsage): Usage | null {
  return billed ?? requests
}

/** Tokens and cost of `usage` less those of `before`, never below zero: what cumulative counters have counted since. */
export function usageSince(usage: Usage, before: Usage): Usage {
  const less = (now: number, then: number) => Math.max(0, now - then)
  return {
    inputTokens: less(usage.inputTokens, before.inputTokens),
    outputTokens: less(usage.outputTokens, before.outputTokens),
    cacheReadTokens: less(usage.cacheReadTokens, before.cacheReadTokens),
    cacheWriteTokens: less(usage.cacheWriteTokens, before.cacheWriteTokens),
    costUsd: usage.costUsd === null ? null : less(usage.costUsd, before.costUsd ?? 0),
    costSource: usage.costSource,
  }
}

/** What happened, without its place in the session; texts are redacted and clipped (`truncated` is the longest one's length before). */
export type RunEventBody = RunEventKind & {
  readonly truncated?: number
  /** The tool call of the sub-agent that it belongs to. */
  readonly parent?: string
}

type RunEventKind =
  | { readonly kind: 'message'; readonly role: 'assistant' | 'reasoning' | 'user' | 'stderr'; readonly text: string }
  | { readonly kind: 'tool_call'; readonly id: string; readonly name: string; readonly input: string }
  | {
      readonly kind: 'tool_result'
      readonly id: string
      readonly name?: string
      readonly ok: boolean
      readonly text: string
    }
  | {
      readonly kind: 'command'
      readonly id: string
      readonly phase: 'start' | 'end'
      readonly command?: string
      readonly exitCode?: number | null
    }
  | {
      readonly kind: 'file_change'
      readonly id: string
      readonly ok: boolean
      readonly changes: readonly FileChange[]
    }
  | {
      readonly kind: 'error'
      readonly scope: 'api' | 'turn' | 'tool' | 'harness' | 'stream'
      readonly fatal: boolean
      readonly retrying?: boolean
      readonly status?: number
      readonly message: string
    }
  | {
      readonly kind: 'usage'
      /** Of one request to the model, or of the whole run: its billing figure, told once. */
      readonly scope: 'request' | 'turn'
      /** A lower bound, which a later figure corrects. */
      readonly provisional?: true
      readonly usage: Usage
      readonly model?: string
    }
  | { readonly kind: 'progress'; readonly message: string; readonly pct?: number; readonly source: 'agent' | 'harness' }
  | { readonly kind: 'state'; readonly state: string; readonly text: string }

export interface FileChange {
  readonly path: string
  readonly change: 'add' | 'update' | 'delete' | 'write'
}

/** An event in its place: `seq` rises by one within its session, across turns. */
export type RunEvent = RunEventBody & { readonly seq: number; readonly at: number; readonly turn: number }
