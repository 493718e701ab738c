/** A session's run events as they come, over connections that may break. */
import { away, call, type Server, serverEvents } from './client.ts'
import type { Patience } from './patience.ts'
import type { WireEvent } from './wire.ts'

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
