/** The CLI's side of REST: where the server is, the token, JSON and streams, and refusals as failures with an exit status. */
import { readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { EXIT, Failure, Unreachable, usage } from './failure.ts'

export interface Server {
  readonly url: string
  readonly token: string
}

export interface Request {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  readonly path: string
  readonly query?: Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal
  /** After so long without the whole answer the server counts as away. */
  readonly timeoutMs?: number
}

interface Problem {
  readonly title?: string
  readonly detail?: string
  readonly code?: string
  readonly reason?: string
  readonly missing?: readonly string[]
}

/** `HANGAR_URL` and `HANGAR_TOKEN`, else what the server's first start wrote for this user. */
export function findServer(env: NodeJS.ProcessEnv): Server {
  const file = join(env['XDG_CONFIG_HOME'] ?? join(env['HOME'] ?? homedir(), '.config'), 'hangar', 'cli.json')
  const saved = readSaved(file)
  const url = env['HANGAR_URL'] ?? saved?.url ?? 'http://127.0.0.1:4264'
  const token = env['HANGAR_TOKEN'] ?? saved?.token
  if (token === undefined)
    throw new Failure(
      EXIT.unavailable,
      `no token: start a server on this machine (hangar serve), or set HANGAR_URL and HANGAR_TOKEN; ${file} ${saved === null ? 'is not there' : 'holds none'}`,
    )
  if (!URL.canParse(url) || !/^https?:/i.test(url))
    throw usage(`HANGAR_URL=${url} is no address of a server; give one such as http://127.0.0.1:4264`)
  return { url: url.replace(/\/+$/, ''), token }
}

/** What the server's first start wrote; null where there was none by this user here, since the environment may still say all. */
function readSaved(file: string): Partial<Server> | null {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Partial<Server>
  } catch {
    return null
  }
}

/** Sends a request; a refusal becomes a Failure that holds the server's sentence. */
export async function call(server: Server, request: Request): Promise<Response> {
  const url = new URL(server.url + request.path)
  for (const [key, value] of Object.entries(request.query ?? {})) {
    if (value === undefined) continue
    for (const one of Array.isArray(value) ? (value as readonly string[]) : [String(value)])
      url.searchParams.append(key, one)
  }
  const signals = [
    ...(request.signal === undefined ? [] : [request.signal]),
    ...(request.timeoutMs === undefined ? [] : [AbortSignal.timeout(request.timeoutMs)]),
  ]
  let response: Response
  try {
    response = await fetch(url, {
      method: request.method ?? 'GET',
      headers: {
        Authorization: `Bearer ${server.token}`,
        ...(request.body === undefined ? {} : { 'Content-Type': 'application/json' }),
        ...request.headers,
      },
      redirect: 'error',
      ...(request.body === undefined ? {} : { body: JSON.stringify(request.body) }),
      ...(signals.length === 0 ? {} : { signal: AbortSignal.any(signals) }),
    })
  } catch (cause) {
    if (request.signal?.aborted === true) throw cause
    throw away(server, cause)
  }
  if (response.ok) return response
  throw await refusal(response, server)
}

export async function callJson<T>(server: Server, request: Request): Promise<T> {
  const text = await (await call(server, request)).text().catch((cause: unknown) => {
    if (request.signal?.aborted === true) throw cause
    throw away(server, cause)
  })
  try {
    return JSON.parse(text) as T
  } catch {
    throw new Failure(
      EXIT.unavailable,
      `${server.url} answered, but not as hangar does; is HANGAR_URL the address of a hangar server?`,
    )
  }
}

/** The server, or the way to it, broke off. */
export function away(server: Server, cause: unknown): Unreachable {
  return new Unreachable(
    `no answer from ${server.url}: ${reasonOf(cause)}`,
    'is it running? Start it with: hangar serve',
    cause,
  )
}

async function refusal(response: Response, server: Server): Promise<Failure> {
  const text = await response.text().catch(() => '')
  let problem: Problem = {}
  try {
    problem = JSON.parse(text) as Problem
  } catch {
    // Something between us and the server answered.
  }
  if (problem.detail === undefined && [502, 503, 504].includes(response.status))
    return new Unreachable(
      `something before ${server.url} answered ${response.status} ${response.statusText}`,
      'see whether the server behind it runs',
    )
  if (response.status === 401)
    return new Failure(
      EXIT.unavailable,
      `${server.url} does not take this token: it is unknown, expired or revoked; somebody with an admin token makes one with: hangar token create NAME --scope sessions, and HANGAR_TOKEN gives it to this command`,
    )
  const said = `${problem.detail ?? `${server.url} answered ${response.status} ${response.statusText}`}${nextTry(response.status, problem)}`
  const missing = problem.missing === undefined ? '' : `\nmissing: ${problem.missing.slice(0, 20).join(' ')}`
  const status =
    response.status === 401 || response.status === 403 || response.status >= 500 ? EXIT.unavailable : EXIT.usage
  return new Failure(status, `${said}${missing}`)
}

/** The next thing to try, where the server cannot know that there is this command line. */
function nextTry(status: number, { code, detail = '' }: Problem): string {
  if (status === 403) return '; somebody with an admin token makes one with: hangar token create NAME --scope SCOPE'
  if (/--from-local|hangar [a-z]/.test(detail)) return ''
  if (status === 413) return '\ncommit what is big, and hand it over with: --from-local'
  if ((code === 'invalid_context' || code === 'missing_commits') && /^context\[\d+\] \((?:patch|bundle)/.test(detail))
    return '\nor hand over a checkout as it is, wherever it stands, with: --from-local'
  return ''
}

function reasonOf(cause: unknown): string {
  const inner = cause instanceof Error && cause.cause instanceof Error ? cause.cause : cause
  return inner instanceof Error ? ((inner as NodeJS.ErrnoException).code ?? inner.message) : String(inner)
}

/** One server-sent event. */
export interface ServerEvent {
  readonly id: string
  readonly data: string
}

/** Reads a stream of server-sent events until it ends; tells of all that comes, comments too. */
export async function* serverEvents(response: Response, came: () => void): AsyncIterable<ServerEvent> {
  const decoder = new TextDecoder()
  let buffer = ''
  for await (const chunk of response.body ?? []) {
    came()
    buffer += decoder.decode(chunk as Uint8Array, { stream: true })
    for (let end = buffer.indexOf('\n\n'); end !== -1; end = buffer.indexOf('\n\n')) {
      const fields = buffer.slice(0, end).split('\n')
      buffer = buffer.slice(end + 2)
      const field = (name: string) =>
        fields
          .filter((line) => line.startsWith(`${name}:`))
          .map((line) => line.slice(name.length + 1).trimStart())
          .join('\n')
      const data = field('data')
      if (data !== '') yield { id: field('id'), data }
    }
  }
}
