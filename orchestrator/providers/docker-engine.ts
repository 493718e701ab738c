/** A small client of the Docker Engine API over its unix socket: requests, uploads, and the raw connection of an exec. */
import { type IncomingMessage, type RequestOptions, request } from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { errors, HangarError } from '../../domain/errors.ts'

/** The version whose words are spoken where the engine knows it; an engine that has left it behind is met at its oldest. */
const SPOKEN = '1.41'
const REQUEST_MS = 60_000
const MAX_ANSWER_BYTES = 16 * 1_048_576

/** An engine that restarts is waited for: it was not asked yet, so asking again does nothing twice. */
const PATIENCE_MS = 10_000

/** The engine gave no answer: it is down, or may not be asked. Nothing is known of its containers then. */
export class EngineUnreachable extends HangarError {
  /** Whether nothing listened, so that nothing can have been done. */
  readonly unasked: boolean

  constructor(message: string, cause: unknown) {
    super('sandbox_failed', message, {}, cause)
    this.unasked = ['ECONNREFUSED', 'ENOENT'].includes((cause as NodeJS.ErrnoException).code ?? '')
  }
}

export interface EngineAnswer {
  readonly status: number
  // biome-ignore lint/suspicious/noExplicitAny: each caller names the few fields that it reads
  readonly body: any
  /** Of an archive: what the engine says of the file. */
  readonly stat: string | null
}

export interface EngineRequest {
  readonly query?: Readonly<Record<string, string>>
  readonly json?: unknown
  /** A tar, sent as it is. */
  readonly tar?: Uint8Array
  readonly timeoutMs?: number
  /** Ask once, where an engine that is down is an answer too. */
  readonly once?: boolean
}

export interface Engine {
  /** An answer of the engine, whatever its status. Throws `EngineUnreachable` without one. */
  ask(method: string, path: string, options?: EngineRequest): Promise<EngineAnswer>
  /** The raw connection of a started exec; an answer in its place is a refusal. */
  attach(path: string, json: unknown): Promise<Socket | EngineAnswer>
  /** The size of a regular file in a container by its own path, no link followed at its end; null when there is none. */
  fileSize(container: string, path: string): Promise<number | null>
  /** Where it listens, for sentences. */
  readonly socketPath: string
}

export function createEngine({ socketPath }: { readonly socketPath: string }): Engine {
  let version: Promise<string> | null = null
  const negotiated = (): Promise<string> => {
    version ??= negotiate(socketPath).catch((error: unknown) => {
      version = null
      throw error
    })
    return version
  }
  const send = async (method: string, path: string, options: EngineRequest = {}) => {
    const query = new URLSearchParams(options.query).toString()
    const work = async () => {
      const at = `/v${await negotiated()}${path}${query === '' ? '' : `?${query}`}`
      return ask(socketPath, method, at, options)
    }
    return options.once === true ? work() : patiently(work)
  }
  return {
    socketPath,
    ask: send,
    fileSize: async (container, path) => {
      const { status, stat } = await send('HEAD', `/containers/${container}/archive`, { query: { path } })
      return status === 200 ? regularSize(stat) : null
    },
    attach: (path, json) => patiently(async () => attach(socketPath, `/v${await negotiated()}${path}`, json)),
  }
}

async function patiently<T>(work: () => Promise<T>): Promise<T> {
  const until = performance.now() + PATIENCE_MS
  for (;;) {
    try {
      return await work()
    } catch (error) {
      if (!(error instanceof EngineUnreachable) || !error.unasked || performance.now() > until) throw error
      await sleep(200)
    }
  }
}

/** The sentence of a refusal: the engine's own words. */
export function refusal({ status, body }: EngineAnswer): string {
  const said = typeof body?.message === 'string' ? body.message : typeof body?.cause === 'string' ? body.cause : ''
  return said === '' ? `the engine answered ${status}` : said.slice(0, 2_000)
}

async function negotiate(socketPath: string): Promise<string> {
  const { status, body } = await ask(socketPath, 'GET', '/version', { timeoutMs: 10_000 })
  const newest = body?.ApiVersion
  if (status !== 200 || typeof newest !== 'string')
    throw errors.sandboxFailed(
      `what listens at ${socketPath} is no Docker engine; set DOCKER_HOST=unix:///path/to/its.sock`,
    )
  const oldest = typeof body.MinAPIVersion === 'string' ? body.MinAPIVersion : SPOKEN
  if (isOlder(newest, '1.40'))
    throw errors.sandboxFailed(
      `the Docker engine at ${socketPath} speaks API ${newest}; hangar needs 1.40 (Docker 19.03) or newer`,
    )
  if (isOlder(newest, SPOKEN)) return newest
  return isOlder(SPOKEN, oldest) ? oldest : SPOKEN
}

function isOlder(one: string, other: string): boolean {
  const [major = 0, minor = 0] = one.split('.').map(Number)
  const [otherMajor = 0, otherMinor = 0] = other.split('.').map(Number)
  return major < otherMajor || (major === otherMajor && minor < otherMinor)
}

function unreachable(socketPath: string, cause: NodeJS.ErrnoException): EngineUnreachable {
  const why =
    cause.code === 'EACCES'
      ? "the server's user may not use it (the group docker may)"
      : cause.code === 'ENOENT' || cause.code === 'ECONNREFUSED'
        ? 'nothing listens there: start the engine, or set DOCKER_HOST=unix:///path/to/its.sock'
        : cause.message
  return new EngineUnreachable(`the Docker engine at ${socketPath} cannot be reached: ${why}`, cause)
}

function ask(socketPath: string, method: string, path: string, options: EngineRequest): Promise<EngineAnswer> {
  const body = options.tar ?? (options.json === undefined ? undefined : Buffer.from(JSON.stringify(options.json)))
  const type = options.tar === undefined ? 'application/json' : 'application/x-tar'
  // Without its own length an empty body would be sent in chunks, which the engine's archive API does not take everywhere.
  const headers = body === undefined ? {} : { 'Content-Type': type, 'Content-Length': body.length }
  return new Promise((resolve, reject) => {
    const timeout = AbortSignal.timeout(options.timeoutMs ?? REQUEST_MS)
    const asked = request(ofSocket(socketPath, { method, path, headers, signal: timeout }), (response) => {
      readAnswer(response).then(resolve, reject)
    })
    asked.on('error', (cause: NodeJS.ErrnoException) => reject(unreachable(socketPath, cause)))
    asked.end(body)
  })
}

function attach(socketPath: string, path: string, json: unknown): Promise<Socket | EngineAnswer> {
  const body = Buffer.from(JSON.stringify(json))
  const headers = {
    'Content-Type': 'application/json',
    'Content-Length': body.length,
    Connection: 'Upgrade',
    Upgrade: 'tcp',
  }
  return new Promise((resolve, reject) => {
    const asked = request(ofSocket(socketPath, { method: 'POST', path, headers }), (response) => {
      readAnswer(response).then(resolve, reject)
    })
    const timer = setTimeout(() => asked.destroy(new Error('it did not answer in time')), REQUEST_MS)
    asked.on('close', () => clearTimeout(timer))
    asked.on('upgrade', (_response, socket: Socket, head: Buffer) => {
      clearTimeout(timer)
      if (head.length > 0) socket.unshift(head)
      resolve(socket)
    })
    asked.on('error', (cause: NodeJS.ErrnoException) => reject(unreachable(socketPath, cause)))
    asked.end(body)
  })
}

function ofSocket(socketPath: string, options: RequestOptions): RequestOptions {
  // A connection of its own for each: one that is kept may have died with a restarted engine.
  return {
    ...options,
    socketPath,
    agent: false,
    headers: { Host: 'docker', ...options.headers } as Record<string, string>,
  }
}

async function readAnswer(response: IncomingMessage): Promise<EngineAnswer> {
  const chunks: Buffer[] = []
  let size = 0
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      size += chunk.length
      if (size > MAX_ANSWER_BYTES) throw errors.limitPassed(`the engine's answer is over ${MAX_ANSWER_BYTES} bytes`)
      chunks.push(chunk)
    }
  } catch (cause) {
    throw new EngineUnreachable('the Docker engine broke off its answer', cause)
  }
  const text = Buffer.concat(chunks).toString('utf8')
  const stat = response.headers['x-docker-container-path-stat']
  return { status: response.statusCode ?? 0, body: parsed(text), stat: typeof stat === 'string' ? stat : null }
}

/** Go's file modes: the kinds that are no regular file have their bits above the permissions. */
const NOT_REGULAR = 0x8f280000

function regularSize(stat: string | null): number | null {
  try {
    const { mode, size } = JSON.parse(Buffer.from(stat ?? '', 'base64').toString('utf8')) as {
      mode: number
      size: number
    }
    return (mode & NOT_REGULAR) === 0 && Number.isInteger(size) ? size : null
  } catch {
    return null
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return { message: text.trim().slice(0, 2_000) }
  }
}
