/** A session's run events as a timeline: tool calls collapsed, commands with their exit status, changed files, what it costs so far. */
import { type Output, printable } from './output.ts'
import type { WireEvent, WireUsage } from './wire.ts'

/** Gives the lines to print for an event; calls that are collapsed into one line wait for what comes after them. */
export interface Timeline {
  event(event: WireEvent): readonly string[]
  /** What still waits. */
  end(): readonly string[]
}

const LINE = 200
const DEFAULT_NAMES = 6

export function createTimeline(output: Output): Timeline {
  /** Calls of tools without a line of their own, in order. */
  let calls: { readonly name: string; readonly subject: string }[] = []
  let lastCommand = ''
  const started = new Map<string, number>()
  let cost: Cost = NOTHING
  let shownCost = ''
  let at = ''

  const flush = (): string[] => {
    if (calls.length === 0) return []
    const names = new Map<string, string[]>()
    for (const { name, subject } of calls) names.set(name, [...(names.get(name) ?? []), subject])
    const text = [...names]
      .map(([name, subjects]) => `${name}${subjects.length > 1 ? ` ×${subjects.length}` : ''}${listed(subjects)}`)
      .join(', ')
    calls = []
    return [output.dim(`${at} ⋯ ${text.slice(0, LINE)}`)]
  }
  const runningCost = (): string => {
    const text = costText(cost)
    if (text === shownCost) return ''
    shownCost = text
    return output.dim(`  ${text}`)
  }
  const lines = (event: WireEvent): string[] => {
    const time = output.dim(at)
    const text = (value: unknown) => line(value)
    switch (event.kind) {
      case 'message': {
        if (event['role'] === 'stderr') return [`${time} ${output.dim(`! ${text(event['text'])}`)}`]
        if (event['role'] === 'reasoning') return [`${time} ${output.dim(`~ ${text(event['text'])}`)}`]
        return [`${time} ${text(event['text'])}${runningCost()}`]
      }
      case 'progress':
        return [
          `${time} ${output.colour('▸', 'cyan')} ${text(event['message'])}${typeof event['pct'] === 'number' ? output.dim(` ${event['pct']}%`) : ''}`,
        ]
      case 'state':
        return [`${time} ${output.dim(`· ${text(event['text'])}`)}${event['state'] === 'ended' ? runningCost() : ''}`]
      case 'command': {
        const id = String(event['id'])
        if (event['phase'] === 'start') {
          lastCommand = id
          started.set(id, Date.parse(event.ts))
          return [`${time} ${output.bold('$')} ${text(event['command'])}`]
        }
        const ended = commandEnd(event, started.get(id))
        started.delete(id)
        const which = id === lastCommand ? '' : ' (an earlier command)'
        return [
          `${' '.repeat(at.length)}   ${event['exit_code'] === 0 ? output.dim(ended + which) : output.colour(ended + which, 'red')}`,
        ]
      }
      case 'file_change':
        return (event['changes'] as { path: string; change: string }[]).map(
          ({ path, change }) =>
            `${time} ${output.colour(SIGNS[change] ?? '±', 'yellow')} ${text(path)}${event['ok'] === false ? output.colour(' (failed)', 'red') : ''}`,
        )
      case 'error':
        return [
          `${time} ${event['fatal'] === true ? output.colour(`error: ${text(event['message'])}`, 'red') : output.colour(text(event['message']), 'yellow')}`,
        ]
      default:
        return []
    }
  }

  return {
    event: (event) => {
      if (event.kind === 'usage') {
        cost = added(cost, event)
        return []
      }
      if (event.kind === 'tool_call') {
        at = event.ts.slice(11, 19)
        calls.push({ name: line(event['name']), subject: subjectOf(event['input']) })
        return []
      }
      if (event.kind === 'tool_result') return failedCall(event, output)
      // A command or a changed file is told by itself: its call need not be.
      if (event.kind === 'command' || event.kind === 'file_change') calls.pop()
      const before = flush()
      at = event.ts.slice(11, 19)
      return [...before, ...lines(event)]
    },
    end: flush,
  }
}

const SIGNS: Readonly<Record<string, string>> = { add: '+', delete: '-', update: '±', write: '±' }

/** Agents' words in one line, without control characters. */
function line(value: unknown): string {
  return printable(typeof value === 'string' ? value : '')
    .replace(/\s*\n\s*/g, ' ')
    .slice(0, LINE)
}

function listed(subjects: readonly string[]): string {
  const known = subjects.filter((subject) => subject !== '')
  if (known.length === 0) return ''
  const more = known.length > DEFAULT_NAMES ? `, and ${known.length - DEFAULT_NAMES} more` : ''
  return ` ${known.slice(0, DEFAULT_NAMES).join(', ')}${more}`
}

/** What a call is about, where its input names it: a file, a pattern, a query. */
function subjectOf(input: unknown): string {
  try {
    const fields = JSON.parse(String(input)) as Record<string, unknown>
    const found = ['file_path', 'path', 'AbsolutePath', 'TargetFile', 'pattern', 'query', 'url', 'description']
      .map((name) => fields[name])
      .find((value) => typeof value === 'string')
    return line(found).split('/').slice(-2).join('/').slice(0, 60)
  } catch {
    return ''
  }
}

function failedCall(event: WireEvent, output: Output): string[] {
  if (event['ok'] !== false || event['name'] === 'Bash' || event['name'] === 'bash' || event['name'] === 'shell')
    return []
  return [
    `${' '.repeat(8)}   ${output.colour(`${line(event['name'])} failed: ${line(event['text'])}`.slice(0, LINE), 'red')}`,
  ]
}

function commandEnd(event: WireEvent, startedAt: number | undefined): string {
  const code = event['exit_code']
  const seconds = startedAt === undefined ? 0 : (Date.parse(event.ts) - startedAt) / 1000
  const took =
    seconds >= 1
      ? `, ${seconds < 60 ? `${Math.round(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`}`
      : ''
  return `exit ${typeof code === 'number' ? code : 'unknown'}${took}`
}

interface Cost {
  /** Of the runs that have ended, as billed. */
  readonly billed: Figures
  /** Of the requests of the run under way. */
  readonly open: Figures
}

interface Figures {
  readonly tokens: number
  readonly usd: number | null
}

const NONE: Figures = { tokens: 0, usd: null }
const NOTHING: Cost = { billed: NONE, open: NONE }

/** A figure of a whole run stands for those of its requests. */
function added({ billed, open }: Cost, event: WireEvent): Cost {
  const number = (name: string) => (typeof event[name] === 'number' ? (event[name] as number) : 0)
  const usd = typeof event['cost_usd'] === 'number' ? (event['cost_usd'] as number) : null
  const figures = { tokens: number('input') + number('output') + number('cache_write'), usd }
  if (event['scope'] === 'turn') return { billed: sum(billed, figures), open: NONE }
  // A lower bound is told once more, when it is known.
  return event['provisional'] === true ? { billed, open } : { billed, open: sum(open, figures) }
}

function sum(a: Figures, b: Figures): Figures {
  return { tokens: a.tokens + b.tokens, usd: a.usd === null && b.usd === null ? null : (a.usd ?? 0) + (b.usd ?? 0) }
}

function costText({ billed, open }: Cost): string {
  const { tokens, usd } = sum(billed, open)
  if (tokens === 0 && usd === null) return ''
  return `${compact(tokens)} tokens${usd === null ? '' : `, $${usd.toFixed(usd < 1 ? 4 : 2)}`}`
}

/** What was used, for a person: `12.3k tokens (400k from cache), $0.12 by the price table`. */
export function usageText(usage: WireUsage): string {
  const tokens = usage.input_tokens + usage.output_tokens + usage.cache_write_tokens
  const cached = usage.cache_read_tokens === 0 ? '' : ` (and ${compact(usage.cache_read_tokens)} from a cache)`
  const cost = usage.cost_usd === null ? '' : `, $${usage.cost_usd.toFixed(usage.cost_usd < 1 ? 4 : 2)}`
  const source = usage.cost_source === 'priced' ? ' by the price table' : ''
  return `${compact(tokens)} tokens${cached}${cost}${source}`
}

function compact(count: number): string {
  if (count < 10_000) return String(count)
  return count < 10_000_000
    ? `${(count / 1_000).toFixed(count < 100_000 ? 1 : 0)}k`
    : `${(count / 1_000_000).toFixed(1)}M`
}
