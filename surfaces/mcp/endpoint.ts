/** `/mcp`, Streamable HTTP: origin, token, body and session are settled here, then the session answers. */
import type { Request, RequestHandler, Response } from 'express'
import { HangarError, messageOf } from '../../domain/errors.ts'
import type { TokenCaller } from '../../domain/grant.ts'
import type { Clock, Log, Random } from '../../domain/ports.ts'
import type { Index } from '../../gateway/state/index.ts'
import { callerOf } from '../auth.ts'
import { createBodyReader, HttpRefusal } from './body.ts'
import type { McpFeatures } from './features.ts'
import { type OwnPlaces, refuseOrigin } from './origin.ts'
import { RPC, RpcError, readMessage, sendRpcError } from './rpc.ts'
import { createMcpSessions, type McpLimits, type McpSessions, type McpStats } from './sessions.ts'

export interface McpEndpointDeps {
  readonly features: McpFeatures
  readonly index: Index
  authenticate(secret: string): TokenCaller | null
  isLive(tokenId: string): boolean
  readonly own: OwnPlaces
  readonly maxBodyBytes: number
  readonly limits: McpLimits
  readonly clock: Clock
  readonly random: Random
  readonly log: Log
}

export interface McpEndpoint {
  readonly handle: RequestHandler
  /** Lets idle sessions go, and those of dead tokens; called once a minute by itself. */
  sweep(): Promise<void>
  stats(): McpStats
  /** Answers what waits, ends all streams. */
  close(): Promise<void>
}

const SWEEP_MS = 60_000
const ALLOWED = 'GET, POST, DELETE'
/** What goes with a refusal: of a body that is still coming, no more is read. */
const HEADERS: Readonly<Record<number, Readonly<Record<string, string>>>> = {
  408: { Connection: 'close' },
  413: { Connection: 'close' },
  503: { 'Retry-After': '2' },
}

export async function createMcpEndpoint(deps: McpEndpointDeps): Promise<McpEndpoint> {
  const sessions = await createMcpSessions(deps)
  const bodies = createBodyReader({ maxBytes: deps.maxBodyBytes })
  const sweep = () => sessions.sweep(deps.isLive)
  const timer = setInterval(() => {
    sweep().catch((error: unknown) => deps.log.error({ error: messageOf(error) }, 'MCP sessions could not be swept'))
  }, SWEEP_MS)
  timer.unref()

  let closed = false
  const serve = async (req: Request, res: Response): Promise<void> => {
    if (closed) throw new HttpRefusal(503, RPC.transport, 'the server is stopping')
    const refused = refuseOrigin(req, deps.own)
    if (refused !== null) throw new HttpRefusal(403, RPC.transport, refused)
    const caller = callerOf(req, deps.authenticate)
    switch (req.method) {
      case 'POST':
        return post(req, res, await bodies.read(req, res, caller.id), caller, sessions)
      case 'GET':
        return (await sessionOf(req, caller, sessions)).session.stream(req, res)
      case 'DELETE': {
        const { id, session } = await sessionOf(req, caller, sessions)
        if (await session.end(req, res)) await sessions.drop(id)
        return
      }
      default:
        res.setHeader('Allow', ALLOWED)
        throw new HttpRefusal(405, RPC.transport, `${req.method} is not taken here; use ${ALLOWED}`)
    }
  }

  return {
    handle: (req, res) => {
      serve(req, res).catch((error: unknown) => refuse(req, res, error, deps.log))
    },
    sweep,
    stats: sessions.stats,
    close: async () => {
      closed = true
      clearInterval(timer)
      await sessions.close()
    },
  }
}

async function post(
  req: Request,
  res: Response,
  body: unknown,
  caller: TokenCaller,
  sessions: McpSessions,
): Promise<void> {
  if (req.is('json') === false) throw new HttpRefusal(415, RPC.transport, 'send the body as application/json')
  if (body === undefined) throw new HttpRefusal(400, RPC.parse, 'the body is empty; send one JSON-RPC message')
  const message = readMessage(body)
  const known = await findSession(req, caller, sessions)
  if (known === null && message.kind === 'request' && message.method === 'initialize') {
    const { session, opened } = await sessions.open(caller, body)
    await opened((await session.post(req, res, body, caller).catch(() => 500)) === 200)
    return
  }
  await (known ?? (await sessionOf(req, caller, sessions))).session.post(req, res, body, caller)
}

async function findSession(req: Request, caller: TokenCaller, sessions: McpSessions) {
  const id = req.headers['mcp-session-id']
  if (typeof id !== 'string') return null
  const session = await sessions.find(caller, id)
  return session === null ? null : { id, session }
}

async function sessionOf(req: Request, caller: TokenCaller, sessions: McpSessions) {
  if (req.headers['mcp-session-id'] === undefined)
    throw new HttpRefusal(400, RPC.transport, 'Mcp-Session-Id is missing; begin with initialize')
  const found = await findSession(req, caller, sessions)
  if (found === null) throw new HttpRefusal(404, RPC.sessionNotFound, 'Session not found')
  return found
}

/** What is refused before a session answers, as a JSON-RPC error without an id. */
function refuse(req: Request, res: Response, error: unknown, log: Log): void {
  if (error instanceof HttpRefusal) {
    sendRpcError(res, error.status, error, HEADERS[error.status] ?? {})
  } else if (error instanceof RpcError) {
    sendRpcError(res, statusOf(error), error)
  } else if (error instanceof HangarError && error.status < 500) {
    // No resource_metadata: there is no authorization server to be found by it, and clients would look there before they use their token.
    const challenge = req.headers.authorization === undefined ? '' : ', error="invalid_token"'
    const headers = { 'WWW-Authenticate': `Bearer realm="hangar"${challenge}` }
    sendRpcError(res, error.status, { code: RPC.transport, message: error.message }, headers)
  } else {
    log.error(
      { error: messageOf(error), stack: error instanceof Error ? error.stack : undefined },
      'an MCP request failed',
    )
    sendRpcError(res, 500, { code: RPC.internal, message: 'the server failed on this request; see its log' })
  }
}

function statusOf(error: RpcError): number {
  if (error.code === RPC.transport) return 503
  return error.code === RPC.sessionNotFound ? 404 : 400
}
