/** A session's run events as lines that a person likes to read, live or as they were. */
import { away, call, type Server, serverEvents } from './client.ts'
import { type Output, printable } from './output.ts'
import type { Patience } from './patience.ts'
import type { WireEvent } from './wire.ts'

const FIRST_LINE = 200

/** One event as one line; null for what says nothing to a person. */
export function eventLine(event: WireEvent, output: Output): string | null {
  const at = output.dim(event.ts.slice(11, 19))
  const text = (value: unknown) =>
    printable(typeof value === 'string' ? value : '')
      .replace(/\s*\n\s*/g, ' ')
      .slice(0, FIRST_LINE)
  switch (event.kind) {
    case 'message':
      return `${at} ${event['role'] === 'stderr' ? output.dim(`! ${text(event['text'])}`) : text(event['text'])}`
    case 'progress':
      return `${at} ${output.colour('▸', 'cyan')} ${text(event['message'])}${typeof event['pct'] === 'number' ? output.dim(` ${event['pct']}%`) : ''}`
    case 'state':
      return `${at} ${output.dim(`· ${text(event['text'])}`)}`
    case 'tool_call':
      return `${at} ${output.dim(`⋯ ${text(event['name'])} ${text(event['input']).slice(0, 100)}`)}`
    case 'command':
      if (event['phase'] === 'start') return `${at} ${output.bold('$')} ${text(event['command'])}`
      return event['exit_code'] === 0 ? null : `${at} ${output.colour(`exit ${String(event['exit_code'])}`, 'red')}`
    case 'file_change':
      return `${at} ${output.colour('±', 'yellow')} ${(event['changes'] as { path: string }[]).map((change) => text(change.path)).join(', ')}`
    case 'error':
      return `${at} ${output.colour(`error: ${text(event['message'])}`, 'red')}`
    default:
      return null
  }
}

/** The server sends a comment every 15 seconds; a stream without any is one whose other end is gone. */
const SILENT_MS = 60_000

export interface FollowOptions {
  readonly name: string
  readonly since: number
  readonly signal: AbortSignal
  readonly patience: Patience
  /** Stops when it says so. */
  until(event: WireEvent): boolean
}

/** Calls back with each event as it comes; connects again where it stopped when the connection breaks. */
export async function followEvents(
  server: Server,
  options: FollowOptions,
  each: (event: WireEvent) => void,
): Promise<void> {
  let cursor = options.since
  while (!options.signal.aborted) {
    const connection = new AbortController()
    const cut = () => connection.abort()
    options.signal.addEventListener('abort', cut)
    const silence = setTimeout(cut, SILENT_MS)
    try {
      const response = await call(server, {
        path: `/api/sessions/${encodeURIComponent(options.name)}/events`,
        headers: { Accept: 'text/event-stream', 'Last-Event-ID': String(cursor) },
        signal: connection.signal,
      })
      options.patience.answered()
      for await (const { data } of serverEvents(response, () => silence.refresh())) {
        const event = JSON.parse(data) as WireEvent
        cursor = event.seq
        each(event)
        if (options.until(event)) return
      }
      // A server that stops ends its streams; the next connection says whether it is gone.
      await new Promise((resolve) => setTimeout(resolve, 500))
    } catch (error) {
      if (options.signal.aborted) return
      // A stream that broke off is resumed; a refusal is the caller's to see.
      const broken = error instanceof TypeError || connection.signal.aborted
      await options.patience.failed(broken ? away(server, error) : error)
    } finally {
      clearTimeout(silence)
      options.signal.removeEventListener('abort', cut)
      cut()
    }
  }
}
