/** Answers of the git gateway: exact headers, refusals as git shows them, and what is left of a body drained within bounds. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { HangarError } from '../../domain/errors.ts'
import type { GitService } from './git-request.ts'

/** What is read of a body that nobody needs; past it the connection is cut. An answer to a client that still sends would be lost by a cut. */
const MOST_DRAINED_MS = 10 * 60_000

/** Sets status and headers of a git answer. Set one by one: helpers of frameworks add a charset, which JGit refuses. */
export function startGitAnswer(res: ServerResponse, service: GitService, kind: 'advertisement' | 'result'): void {
  res.statusCode = 200
  res.setHeader('Content-Type', `application/x-git-${service}-${kind}`)
  res.setHeader('Expires', 'Fri, 01 Jan 1980 00:00:00 GMT')
  res.setHeader('Pragma', 'no-cache')
  res.setHeader('Cache-Control', 'no-cache, max-age=0, must-revalidate')
}

/** A whole git answer. */
export function sendGit(
  res: ServerResponse,
  service: GitService,
  kind: 'advertisement' | 'result',
  body: Buffer,
): void {
  startGitAnswer(res, service, kind)
  res.setHeader('Content-Length', body.length)
  res.end(body)
}

/**
 * A refusal: its sentence as plain text, which git prints after `remote:`. The 401 has an empty body, since libgit2 1.5 cannot read another.
 * Cuts the connection when the answer has begun already.
 */
export function sendError(res: ServerResponse, error: HangarError): void {
  if (res.headersSent) {
    res.destroy()
    return
  }
  res.statusCode = error.status
  if (error.status === 401) res.setHeader('WWW-Authenticate', 'Basic realm="hangar"')
  if (error.status === 503) res.setHeader('Retry-After', '5')
  const body = error.status === 401 ? '' : `${error.message}\n`
  if (body !== '') res.setHeader('Content-Type', 'text/plain; charset=utf-8')
  res.setHeader('Content-Length', Buffer.byteLength(body))
  res.end(body)
}

/** Reads and forgets what is left of the body: at most so many bytes, else the connection is cut. */
export function drain(req: IncomingMessage, maxBytes: number): void {
  if (req.complete || req.destroyed) return
  let left = maxBytes
  const timer = setTimeout(() => req.destroy(), MOST_DRAINED_MS)
  timer.unref()
  req.on('data', (chunk: Buffer) => {
    left -= chunk.length
    if (left < 0) req.destroy()
  })
  req.on('error', () => {})
  req.once('close', () => clearTimeout(timer))
  req.resume()
}
