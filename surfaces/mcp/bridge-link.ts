/** The bridge's side of the server's `/mcp`: one MCP session over HTTP, and plain sentences for all that can go wrong on the way. */
import { type JsonRpcMessage, parseMessage } from './json-lines.ts'

/** The server is away, or does not take the token: to be said to who asked; trying later may do. */
export class NoAnswer extends Error {}

/** The server does not know the MCP session any more. */
export class SessionLost extends Error {
  readonly sessionId: string

  constructor(sessionId: string) {
    super('the server does not know this MCP session any more')
    this.sessionId = sessionId
  }
}

/** The server offers no stream of its own messages. */
export class NoStream extends Error {}

export interface LinkDeps {
  /** Where the server is now, and the token; throws an error whose message says what to do. */
  target(): { readonly url: string; readonly token: string }
  /** Reads a stream of server-sent events. */
  events(response: Response): AsyncIterable<{ readonly data: string }>
  /** What the server sends beside answers. */
  deliver(message: JsonRpcMessage): void
}

const CONNECT_MS = 10_000
const GOODBYE_MS = 1_000
const AWAY = new Set([502, 503, 504])

interface Session {
  readonly id: string | null
  readonly protocolVersion: string
}

export class BridgeLink {
  readonly #deps: LinkDeps
  #session: Session | null = null

  constructor(deps: LinkDeps) {
    this.#deps = deps
  }

  get open(): boolean {
    return this.#session !== null
  }

  /** Begins a session with the client's own `initialize`; gives the server's answer. */
  async begin(initialize: JsonRpcMessage, signal: AbortSignal): Promise<JsonRpcMessage> {
    this.#session = null
    const limited = AbortSignal.any([signal, AbortSignal.timeout(CONNECT_MS)])
    const { response, url } = await this.#send({ method: 'POST', body: initialize, signal: limited, session: null })
    const answer = await this.#answerOf(response, initialize, url)
    const version = answer.result?.['protocolVersion']
    if (typeof version === 'string')
      this.#session = { id: response.headers.get('mcp-session-id'), protocolVersion: version }
    return answer
  }

  /** Sends a request and gives its answer; what comes before it on the same stream is delivered. */
  async request(message: JsonRpcMessage, signal: AbortSignal): Promise<JsonRpcMessage> {
    const { response, url } = await this.#send({ method: 'POST', body: message, signal, session: this.#session })
    return this.#answerOf(response, message, url)
  }

  /** Sends a notification, or the client's answer to a request of the server. */
  async tell(message: JsonRpcMessage, signal: AbortSignal): Promise<void> {
    const { response } = await this.#send({ method: 'POST', body: message, signal, session: this.#session })
    await response.body?.cancel()
  }

  /** Delivers what the server sends of itself until the stream ends; calls `opened` when it begins. */
  async listen(signal: AbortSignal, opened: () => void): Promise<void> {
    const { response, url } = await this.#send({ method: 'GET', signal, session: this.#session })
    opened()
    try {
      for await (const { data } of this.#deps.events(response)) this.#deliver(data)
    } catch (cause) {
      if (!signal.aborted) throw away(url, cause)
    }
  }

  /** Forgets the session if it is still the one that was lost. */
  forget(lost: SessionLost): void {
    if (this.#session?.id === lost.sessionId) this.#session = null
  }

  /** Tells the server that the session is over, if it is quick about it. */
  async end(): Promise<void> {
    const session = this.#session
    this.#session = null
    if (session?.id == null) return
    const signal = AbortSignal.timeout(GOODBYE_MS)
    await this.#send({ method: 'DELETE', signal, session }).catch(() => {})
  }

  async #answerOf(response: Response, request: JsonRpcMessage, url: string): Promise<JsonRpcMessage> {
    try {
      if (!(response.headers.get('content-type') ?? '').includes('text/event-stream')) {
        const answer = parseMessage(JSON.parse(await response.text()))
        if (answer !== null) return { ...answer, id: request.id ?? null }
      } else
        for await (const { data } of this.#deps.events(response)) {
          const answer = this.#deliver(data, request)
          if (answer !== null) return answer
        }
    } catch (cause) {
      if (cause instanceof SyntaxError) throw new NoAnswer(`${url} does not answer as an MCP server does`)
      throw away(url, cause)
    }
    throw away(url, new Error('the connection broke off'))
  }

  /** Gives the message where it is the answer to the request, else passes it on. */
  #deliver(data: string, request?: JsonRpcMessage): JsonRpcMessage | null {
    const message = parseMessage(JSON.parse(data))
    if (message === null) return null
    if (message.method === undefined && request !== undefined && message.id === request.id) return message
    this.#deps.deliver(message)
    return null
  }

  async #send(what: {
    readonly method: 'GET' | 'POST' | 'DELETE'
    readonly body?: JsonRpcMessage
    readonly signal: AbortSignal
    readonly session: Session | null
  }): Promise<{ response: Response; url: string }> {
    const { url, token } = this.#target()
    let response: Response
    try {
      response = await fetch(`${url}/mcp`, {
        method: what.method,
        redirect: 'error',
        signal: what.signal,
        headers: {
          Authorization: `Bearer ${token}`,
          Accept: what.method === 'GET' ? 'text/event-stream' : 'application/json, text/event-stream',
          ...(what.body === undefined ? {} : { 'Content-Type': 'application/json' }),
          ...(what.session === null ? {} : { 'MCP-Protocol-Version': what.session.protocolVersion }),
          ...(what.session?.id == null ? {} : { 'Mcp-Session-Id': what.session.id }),
        },
        ...(what.body === undefined ? {} : { body: JSON.stringify(what.body) }),
      })
    } catch (cause) {
      throw away(url, cause)
    }
    if (response.ok) return { response, url }
    throw await refusalOf(response, url, what)
  }

  #target(): { readonly url: string; readonly token: string } {
    try {
      return this.#deps.target()
    } catch (error) {
      throw new NoAnswer(error instanceof Error ? error.message : String(error))
    }
  }
}

/** An answer of the server that the request was wrong: to be passed on as it is. */
export class Refused extends Error {
  readonly code: number

  constructor(code: number, message: string) {
    super(message)
    this.code = code
  }
}

async function refusalOf(
  response: Response,
  url: string,
  what: { readonly method: string; readonly session: Session | null },
): Promise<Error> {
  const text = await response.text().catch(() => '')
  let error: JsonRpcMessage['error']
  try {
    error = parseMessage(JSON.parse(text))?.error
  } catch {
    // Something between here and the server answered.
  }
  const { status } = response
  if (status === 404 && what.session?.id != null) return new SessionLost(what.session.id)
  if (status === 405 && what.method === 'GET') return new NoStream('the server offers no stream')
  if (status === 401)
    return new NoAnswer(
      `the hangar server at ${url} does not take the token: it is unknown, expired or revoked; set another as HANGAR_TOKEN for hangar mcp (hangar token create makes one)`,
    )
  if (error !== undefined && !AWAY.has(status)) return new Refused(error.code, error.message)
  if (status === 404) return new NoAnswer(`the server at ${url} has no /mcp; is it a hangar server, and new enough?`)
  return away(url, new Error(`it answered ${status} ${error?.message ?? response.statusText}`))
}

function away(url: string, cause: unknown): NoAnswer {
  const inner = cause instanceof Error && cause.cause instanceof Error ? cause.cause : cause
  const reason =
    inner instanceof Error ? ((inner as NodeJS.ErrnoException).code ?? inner.message).toString() : String(inner)
  return new NoAnswer(
    `the hangar server at ${url} does not answer (${reason}); start it with: hangar serve, then call again. Turns go on without it, and a session that was begun is there: see list_sessions`,
  )
}
