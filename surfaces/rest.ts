/** The operations mounted on REST: authenticated, checked against their schemas, answered. */
import { createHash } from 'node:crypto'
import { pipeline } from 'node:stream/promises'
import { Type } from '@sinclair/typebox'
import express, { type Request, type Response, type Router } from 'express'
import { errors, HangarError, messageOf } from '../domain/errors.ts'
import type { TokenCaller } from '../domain/grant.ts'
import type { Limits } from '../domain/limits.ts'
import type { Log } from '../domain/ports.ts'
import { parseQuery, parseShape } from '../domain/schema.ts'
import type { IdempotencyMark } from '../domain/session.ts'
import { callerOf, checkScope } from './auth.ts'
import { createBodyRoom } from './body-room.ts'
import { createAnswers } from './idempotency.ts'
import { announcedBytes, readJsonBody } from './json-body.ts'
import { type Call, type Operation, type Reply, type Services, sessionFor } from './operations/operation.ts'
import { sessionMeant } from './operations/refs.ts'
import { sendProblem } from './problem.ts'
import { streamEvents } from './sse.ts'

export interface RestDeps {
  readonly operations: readonly Operation[]
  readonly services: Services
  authenticate(secret: string): TokenCaller | null
  readonly limits: Limits
  readonly log: Log
  /** Aborts when the server closes: waiting and streaming requests end. */
  readonly closing: AbortSignal
}

/** A body that arrives more slowly is given up: others wait for its room. */
const BODY_MS = 10 * 60_000

/** A router for `/api`. */
export function createRest(deps: RestDeps): Router {
  const router = express.Router()
  const answers = createAnswers({ clock: deps.services.clock })
  // A body takes some six times its bytes while it is worked on.
  const room = createBodyRoom(2 * deps.limits.maxJsonBytes)
  for (const operation of deps.operations) {
    const path = operation.path.replace(/\{path\}$/, '*path').replace(/\{(\w+)\}/g, ':$1')
    const handler = async (req: Request, res: Response) => {
      const caller = callerOf(req, deps.authenticate)
      checkScope(caller, operation.scope)
      const signal = goneSignal(res, deps.closing)
      const bytes = operation.method === 'post' ? announcedBytes(req, deps.limits.maxJsonBytes) : 0
      const leave = await room.take(bytes, signal).catch(() => {
        throw errors.busy('the request was given up before there was room for its body; send it again')
      })
      try {
        await answer(req, res, { caller, signal })
      } finally {
        leave()
      }
    }
    const answer = async (req: Request, res: Response, { caller, signal }: Pick<Call, 'caller' | 'signal'>) => {
      const key = idempotencyKey(req, operation)
      const body =
        operation.method === 'post'
          ? await readJsonBody(req, { maxBytes: deps.limits.maxJsonBytes, digest: key !== null, timeoutMs: BODY_MS })
          : null
      const call: Call = {
        caller,
        surface: 'rest',
        services: deps.services,
        signal,
        idempotency: markOf(req, { caller, operation, key, digest: body?.digest ?? null }),
      }
      if (operation.path.endsWith('/events') && (req.headers.accept ?? '').includes('text/event-stream'))
        return events(req, res, call)
      const input = inputOf(operation, req, body?.value ?? {})
      const { idempotency } = call
      const reply =
        idempotency === null
          ? await operation.handle(call, input)
          : await answers.once(idempotency, () => operation.handle(call, input))
      await send(res, reply)
    }
    router[operation.method](path, (req, res) => {
      handler(req, res).catch((error: unknown) => fail(req, res, error, deps.log))
    })
  }
  router.use((req: Request, res: Response) => {
    try {
      callerOf(req, deps.authenticate)
      throw errors.notFound(
        `there is no ${req.method} ${req.originalUrl.split('?')[0]}; /openapi.json lists what there is`,
      )
    } catch (error) {
      sendProblem(res, error)
    }
  })
  return router
}

/** Path parameters and the query (or the body) as the operation's one input. */
function inputOf(operation: Operation, req: Request, body: unknown): Record<string, unknown> {
  const params: Record<string, unknown> = {}
  for (const [key, value] of Object.entries(req.params)) params[key] = Array.isArray(value) ? value.join('/') : value
  if (operation.method === 'post') {
    if (typeof body !== 'object' || body === null || Array.isArray(body))
      throw errors.invalidRequest('the body must be a JSON object')
    return parseShape(operation.input, { ...body, ...params }, 'the request') as Record<string, unknown>
  }
  return parseQuery(operation.input, { ...req.query, ...params }, 'the request') as Record<string, unknown>
}

function idempotencyKey(req: Request, operation: Operation): string | null {
  const key = req.headers['idempotency-key']
  if (operation.method !== 'post' || typeof key !== 'string' || key === '') return null
  if (key.length > 255) throw errors.invalidRequest('Idempotency-Key: at most 255 characters')
  return key
}

function markOf(
  req: Request,
  {
    caller,
    operation,
    key,
    digest,
  }: { caller: TokenCaller; operation: Operation; key: string | null; digest: string | null },
): IdempotencyMark | null {
  if (key === null) return null
  const place = createHash('sha256').update(`${caller.id}\0${operation.name}\0${req.path}\0${key}`)
  return { key: place.digest('hex'), body: digest ?? '' }
}

function goneSignal(res: Response, closing: AbortSignal): AbortSignal {
  const gone = new AbortController()
  const abort = () => gone.abort()
  // Not AbortSignal.any: that would leave an entry with the long-lived signal for each request.
  closing.addEventListener('abort', abort)
  res.once('close', () => {
    closing.removeEventListener('abort', abort)
    abort()
  })
  if (closing.aborted) abort()
  return gone.signal
}

const SinceShape = Type.Object({ since: Type.Optional(Type.Integer({ minimum: 0 })) })

async function events(req: Request, res: Response, call: Call): Promise<void> {
  const name = await sessionMeant(call, String(req.params['ref']))
  const { session } = await sessionFor(call, name)
  const { tokens, records } = call.services
  // A revoked token sees no more, and a name that another session took since is not followed.
  const allowed = async () =>
    tokens.isLive(call.caller) && (await records.find(name))?.session.createdAt === session.createdAt
  const { since } = parseQuery(SinceShape, { since: req.headers['last-event-id'] ?? req.query['since'] }, 'the request')
  await streamEvents(res, call.services.events.follow(name, since ?? 0, call.signal), { allowed, signal: call.signal })
}

async function send(res: Response, reply: Reply): Promise<void> {
  res.setHeader('Cache-Control', 'no-store')
  res.setHeader('X-Content-Type-Options', 'nosniff')
  switch (reply.kind) {
    case 'json':
      if (reply.location !== undefined) res.setHeader('Location', reply.location)
      res.status(reply.status).json(reply.body)
      return
    case 'bytes':
      res.setHeader('Content-Type', reply.contentType)
      res.setHeader('Content-Length', reply.content.length)
      if (reply.download !== null) {
        res.setHeader('Content-Disposition', attachment(reply.download))
        res.setHeader('Content-Security-Policy', "default-src 'none'; sandbox")
      }
      res.status(200).end(reply.content)
      return
    case 'stream':
      res.setHeader('Content-Type', reply.contentType)
      res.status(200)
      await pipeline(reply.content, res)
      return
    case 'empty':
      res.status(204).end()
      return
    default:
      reply satisfies never
  }
}

/** RFC 6266: an ASCII name for old clients, the real one in UTF-8. */
function attachment(name: string): string {
  const ascii = name.replace(/[^A-Za-z0-9._-]/g, '_')
  const encoded = encodeURIComponent(name).replace(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `attachment; filename="${ascii}"; filename*=UTF-8''${encoded}`
}

function fail(req: Request, res: Response, error: unknown, log: Log): void {
  if (!(error instanceof HangarError) || error.status >= 500)
    log.error(
      {
        method: req.method,
        path: req.path,
        error: messageOf(error),
        stack: error instanceof Error ? error.stack : undefined,
      },
      'a request failed',
    )
  sendProblem(res, error)
}
