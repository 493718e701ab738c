/** Run events as server-sent events: ids are the cursor, a comment keeps the connection alive. */
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import type { RunEvent } from '../domain/run-event.ts'
import { eventView } from './views.ts'

const KEEP_ALIVE_MS = 15_000

export interface StreamOptions {
  /** Asked before each event; the stream ends at the first no. */
  allowed(): Promise<boolean>
  readonly signal: AbortSignal
}

/** Streams until the signal aborts; waits for a slow reader. */
export async function streamEvents(
  res: ServerResponse,
  events: AsyncIterable<RunEvent>,
  { allowed, signal }: StreamOptions,
): Promise<void> {
  res.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store', 'X-Accel-Buffering': 'no' })
  res.flushHeaders()
  const timer = setInterval(() => res.write(': keep-alive\n\n'), KEEP_ALIVE_MS)
  try {
    for await (const event of events) {
      if (!(await allowed())) return
      const flowing = res.write(`id: ${event.seq}\nevent: ${event.kind}\ndata: ${JSON.stringify(eventView(event))}\n\n`)
      if (!flowing && !signal.aborted) await once(res, 'drain', { signal }).catch(() => {})
    }
  } finally {
    clearInterval(timer)
    res.end()
  }
}
