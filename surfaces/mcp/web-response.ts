/** Between Node's HTTP and the web-standard transport of the SDK: few headers in, a streamed answer out. */
import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'

/** The headers that the transport reads; no other reaches it, the credential least of all. */
const READ = ['accept', 'content-type', 'mcp-session-id', 'mcp-protocol-version', 'last-event-id'] as const

/** The request without its body, which was read before. */
export function webRequest(req: Pick<IncomingMessage, 'method' | 'headers'>): Request {
  const headers = new Headers()
  for (const name of READ) {
    const value = req.headers[name]
    if (typeof value === 'string') headers.set(name, value)
  }
  return new Request('http://hangar/mcp', { method: req.method ?? 'POST', headers })
}

/**
 * Sends the answer and resolves when it is out or the client is gone; then the answer's stream is cancelled, so that the transport
 * forgets it. A stream begins with a comment: some clients and proxies wait for a first byte of the body.
 */
export async function sendResponse(res: ServerResponse, response: Response): Promise<void> {
  const streams = response.headers.get('content-type') === 'text/event-stream'
  if (res.destroyed) {
    await response.body?.cancel()
    return
  }
  res.writeHead(response.status, Object.fromEntries(response.headers))
  if (response.body === null) {
    res.end()
    return
  }
  if (streams) res.write(': hangar\n\n')
  const reader = response.body.getReader()
  const gone = () => void reader.cancel().catch(() => {})
  res.once('close', gone)
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done || res.destroyed) break
      if (!res.write(value)) await drained(res)
    }
  } finally {
    res.off('close', gone)
    res.end()
  }
}

/** Resolves when the client has taken what is waiting for it, or is gone. */
export async function drained(res: ServerResponse): Promise<void> {
  if (res.destroyed || !res.writableNeedDrain) return
  const stop = new AbortController()
  await Promise.race([once(res, 'drain', { signal: stop.signal }), once(res, 'close', { signal: stop.signal })])
    .catch(() => {})
    .finally(() => stop.abort())
}
