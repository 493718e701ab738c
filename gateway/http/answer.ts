/** Answers of the git gateway: exact headers, refusals as git shows them, and what is left of a body drained within bounds. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { HangarError } from '../../domain/errors.ts'
import type { GitService } from './git-request.ts'

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

/** Reads and forgets what is left of the body, within bounds; past them the connection is cut. */
export function drain(req: IncomingMessage, bounds: { readonly maxBytes: number; readonly maxMs: number }): void {
  if (req.complete || req.destroyed) return
  let left = bounds.maxBytes
  const timer = setTimeout(() => req.destroy(), bounds.maxMs)
  timer.unref()
  req.on('data', (chunk: Buffer) => {
    left -= chunk.length
    if (left < 0) req.destroy()
  })
  req.on('error', () => {})
  const done = () => clearTimeout(timer)
  req.once('end', done)
  req.once('close', done)
  req.resume()
}
