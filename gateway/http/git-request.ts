/** One request of git's smart HTTP, parsed once from the raw URL and headers, and its body as a bounded stream of bytes. */
import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'
import { errors, HangarError } from '../../domain/errors.ts'
import { isRepoSlug, type RepoSlug } from '../../domain/names.ts'

export type GitService = 'upload-pack' | 'receive-pack'

export interface GitRequest {
  readonly slug: RepoSlug
  readonly kind: 'advertisement' | 'rpc'
  readonly service: GitService
  /** receive-pack has no v2, and is always answered as v0. */
  readonly protocol: 0 | 1 | 2
  readonly gzip: boolean
}

const PATH = /^\/git\/([^/]+\/[^/]+)\.git\/(info\/refs|git-upload-pack|git-receive-pack)$/

/** A body's encodings; a Map, since the header is a caller's text. */
const ENCODINGS: ReadonlyMap<string, { readonly gzip: boolean }> = new Map([
  ['identity', { gzip: false }],
  ['gzip', { gzip: true }],
  ['x-gzip', { gzip: true }],
])

/**
 * Parses a request from its raw URL: no percent-decoding, so that a path means one thing only.
 * Throws `not_found` for every other path, `forbidden` for the dumb protocol, `unsupported_media` and `invalid_request`.
 */
export function parseGitRequest(req: IncomingMessage): GitRequest {
  const [path = '', query = ''] = splitQuery(rawUrl(req))
  const found = PATH.exec(path)
  const [slug = '', endpoint = ''] = found?.slice(1) ?? []
  if (!isRepoSlug(slug)) throw errors.notFound('no such repository or path')
  if (endpoint === 'info/refs') return parseAdvertisement(req, slug, query)
  if (req.method !== 'POST' || query !== '') throw errors.notFound('this path takes a POST of git')
  const service = endpoint === 'git-upload-pack' ? 'upload-pack' : 'receive-pack'
  if (req.headers['content-type'] !== `application/x-git-${service}-request`)
    throw errors.unsupportedMedia(`the content type here is application/x-git-${service}-request`)
  const encoding = ENCODINGS.get(req.headers['content-encoding'] ?? 'identity')
  if (encoding === undefined) throw errors.unsupportedMedia('bodies are taken as they are, or with gzip')
  return { slug, kind: 'rpc', service, protocol: protocolOf(req, service), gzip: encoding.gzip }
}

function parseAdvertisement(req: IncomingMessage, slug: RepoSlug, query: string): GitRequest {
  if (req.method !== 'GET') throw errors.notFound('this path takes a GET of git')
  const service = /^service=git-(upload-pack|receive-pack)$/.exec(query)?.[1] as GitService | undefined
  if (service === undefined)
    throw errors.forbidden('only smart HTTP is served here: ask with ?service=git-upload-pack or git-receive-pack')
  return { slug, kind: 'advertisement', service, protocol: protocolOf(req, service), gzip: false }
}

/** The highest version among the colon-separated keys of Git-Protocol; nothing else of it is kept. */
function protocolOf(req: IncomingMessage, service: GitService): 0 | 1 | 2 {
  if (service === 'receive-pack') return 0
  const keys = String(req.headers['git-protocol'] ?? '').split(':')
  return keys.includes('version=2') ? 2 : keys.includes('version=1') ? 1 : 0
}

/** The URL as it was sent, also when a router that mounts this has cut it. */
function rawUrl(req: IncomingMessage & { originalUrl?: string }): string {
  return req.originalUrl ?? req.url ?? ''
}

function splitQuery(url: string): [string, string] {
  const mark = url.indexOf('?')
  return mark === -1 ? [url, ''] : [url.slice(0, mark), url.slice(mark + 1)]
}

/**
 * The body's bytes after inflation. Throws `limit_passed` over `maxBytes`, or when it took longer than `wholeMs` in all, `invalid_request` when no byte came for `idleMs` while one was waited for,
 * and `protocol_malformed` when the body is cut or no gzip. The request itself is never destroyed: its answer is still to go out on it.
 */
export async function* readBody(
  req: IncomingMessage,
  options: { readonly gzip: boolean; readonly maxBytes: number; readonly idleMs: number; readonly wholeMs: number },
): AsyncGenerator<Buffer> {
  const body = options.gzip ? inflate(req) : { stream: req, stop: () => {} }
  const chunks: AsyncIterator<Buffer> = body.stream.iterator({ destroyOnReturn: false })
  let size = 0
  const until = performance.now() + options.wholeMs
  try {
    for (;;) {
      const next = await orIdle(chunks.next(), options.idleMs)
      if (performance.now() > until) throw errors.limitPassed(`the body took longer than ${options.wholeMs} ms`)
      if (next.done) return
      size += next.value.length
      if (size > options.maxBytes) throw errors.limitPassed(`the body has more than ${options.maxBytes} bytes`)
      yield next.value
    }
  } catch (cause) {
    if (cause instanceof HangarError) throw cause
    throw errors.protocolMalformed(`the body is not whole${options.gzip ? ', or no gzip' : ''}`, {}, cause)
  } finally {
    // Frees the request for whoever drains it; not awaited, since it waits for a chunk that is still to come.
    chunks.return?.(undefined).catch(() => {})
    body.stop()
  }
}

/** Inflates by hand rather than with `pipeline`, which would destroy the request, and with it the connection, on bad gzip. */
function inflate(req: IncomingMessage): { stream: Readable; stop: () => void } {
  const gunzip = createGunzip()
  const onClose = () => {
    if (!req.complete) gunzip.destroy(new Error('aborted'))
  }
  req.pipe(gunzip)
  req.once('close', onClose)
  req.once('error', onClose)
  const stop = () => {
    req.unpipe(gunzip)
    req.off('close', onClose)
    gunzip.on('error', () => {})
    gunzip.destroy()
  }
  return { stream: gunzip, stop }
}

async function orIdle<T>(next: Promise<T>, idleMs: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const idle = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(errors.invalidRequest(`no byte of the body came for ${idleMs} ms`)), idleMs)
  })
  try {
    return await Promise.race([next, idle])
  } finally {
    clearTimeout(timer)
  }
}
