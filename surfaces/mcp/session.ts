/** One MCP session: an SDK server with its transport, the requests that run in it, and what it watches. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js'
import type { RequestHandlerExtra } from '@modelcontextprotocol/sdk/shared/protocol.js'
import {
  CallToolRequestSchema,
  CompleteRequestSchema,
  GetPromptRequestSchema,
  ListPromptsRequestSchema,
  ListResourcesRequestSchema,
  ListResourceTemplatesRequestSchema,
  ListToolsRequestSchema,
  ReadResourceRequestSchema,
  type RequestId,
  ResultSchema,
  type ServerNotification,
  type ServerRequest,
  SubscribeRequestSchema,
  UnsubscribeRequestSchema,
} from '@modelcontextprotocol/sdk/types.js'
import type { jsonSchemaValidator } from '@modelcontextprotocol/sdk/validation/types.js'
import type { TokenCaller } from '../../domain/grant.ts'
import type { McpCall, McpFeatures } from './features.ts'
import { RPC, RpcError, readMessage, rpcErrorOf, withSentence } from './rpc.ts'
import { drained, sendResponse, webRequest } from './web-response.ts'

export interface McpSessionDeps {
  readonly id: string
  readonly features: McpFeatures
  readonly keepAliveMs: number
  /** Shared by all sessions: each of the SDK's own costs some hundred kilobytes. */
  readonly validator: jsonSchemaValidator
  /** Called when what the session watches has changed, with all of it; the client hears yes once it is kept. */
  watching(uris: readonly string[]): Promise<void>
  /** Told of what the SDK could not send or understand. */
  trouble(error: Error): void
}

const MOST_RUNNING = 64
const MOST_WATCHED = 100

interface Running {
  readonly caller: TokenCaller
  readonly res: ServerResponse
  readonly gone: AbortController
  /** False while a handler of ours is at work: its late answer must not reach another request with the same id. */
  settled: boolean
  closed: boolean
}

type Extra = RequestHandlerExtra<ServerRequest, ServerNotification>

export class McpSession {
  readonly #deps: McpSessionDeps
  readonly #server: Server
  readonly #transport: WebStandardStreamableHTTPServerTransport
  readonly #running = new Map<RequestId, Running>()
  readonly #watched = new Map<string, () => void>()
  #streams = 0

  /** Connects a new server; `initialize` must be the first message. */
  static async begin(deps: McpSessionDeps): Promise<McpSession> {
    const session = new McpSession(deps)
    await session.#server.connect(session.#transport)
    return session
  }

  private constructor(deps: McpSessionDeps) {
    this.#deps = deps
    const { info, instructions, capabilities } = deps.features
    this.#server = new Server(info, { capabilities, instructions, jsonSchemaValidator: deps.validator })
    this.#server.onerror = deps.trouble
    this.#transport = new WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: () => deps.id,
      keepAliveMs: deps.keepAliveMs,
    })
    const send = this.#transport.send.bind(this.#transport)
    this.#transport.send = (message, options) => send(withSentence(message), options)
    this.#install()
  }

  /** Requests at work, and open streams for notifications. */
  get activity(): { readonly requests: number; readonly streams: number; readonly watched: number } {
    return { requests: this.#running.size, streams: this.#streams, watched: this.#watched.size }
  }

  get busy(): boolean {
    return this.#running.size > 0 || this.#streams > 0
  }

  /** Handles a POST whose body was read, to the end of its answer; gives the status. Throws `RpcError` on what is refused before. */
  async post(req: IncomingMessage, res: ServerResponse, body: unknown, caller: TokenCaller): Promise<number> {
    const message = readMessage(body)
    if (message.kind === 'request') return this.#request(req, res, body, { id: message.id, caller })
    const response = await this.#transport.handleRequest(webRequest(req), { parsedBody: body })
    if (message.kind === 'cancel' && response.status === 202) await this.#cancel(message.id)
    await sendResponse(res, response)
    return response.status
  }

  /** Handles a GET: the stream of notifications, open until the client goes. */
  async stream(req: IncomingMessage, res: ServerResponse): Promise<void> {
    this.#streams += 1
    try {
      await sendResponse(res, await this.#transport.handleRequest(webRequest(req)))
    } finally {
      this.#streams -= 1
    }
  }

  /** Handles a DELETE; gives whether the session has ended. */
  async end(req: IncomingMessage, res: ServerResponse): Promise<boolean> {
    const response = await this.#transport.handleRequest(webRequest(req))
    await sendResponse(res, response)
    return response.status === 200
  }

  /** Takes up a session of an earlier process: the client's `initialize` is answered again, to nobody. */
  async resume(initialize: unknown, caller: TokenCaller, watched: readonly string[]): Promise<void> {
    const headers = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' }
    const feed = async (parsedBody: unknown, more: Readonly<Record<string, string>>) => {
      const request = new Request('http://hangar/mcp', { method: 'POST', headers: { ...headers, ...more } })
      const response = await this.#transport.handleRequest(request, { parsedBody })
      await response.text()
    }
    await feed(initialize, {})
    await feed({ jsonrpc: '2.0', method: 'notifications/initialized' }, { 'mcp-session-id': this.#deps.id })
    for (const uri of watched) await this.#watch(uri, caller).catch(this.#deps.trouble)
  }

  /** Ends waits early, so that they answer `done: false`; resolves when nothing runs, or after `ms`. */
  async settle(ms: number): Promise<void> {
    for (const { gone } of this.#running.values()) gone.abort()
    const until = performance.now() + ms
    while (this.#running.size > 0 && performance.now() < until) await new Promise((resolve) => setTimeout(resolve, 10))
  }

  async close(): Promise<void> {
    for (const { gone } of this.#running.values()) gone.abort()
    for (const stop of this.#watched.values()) stop()
    this.#watched.clear()
    await this.#server.close()
  }

  async #request(
    req: IncomingMessage,
    res: ServerResponse,
    body: unknown,
    { id, caller }: { readonly id: RequestId; readonly caller: TokenCaller },
  ): Promise<number> {
    if (this.#running.has(id))
      throw new RpcError(
        RPC.invalidRequest,
        `a request with the id ${JSON.stringify(id)} is still running in this session`,
      )
    if (this.#running.size >= MOST_RUNNING)
      throw new RpcError(RPC.transport, `${MOST_RUNNING} requests run in this session; wait for one to end`)
    const running: Running = { caller, res, gone: new AbortController(), settled: true, closed: false }
    this.#running.set(id, running)
    res.once('close', () => {
      running.closed = true
      running.gone.abort()
      this.#forget(id, running)
    })
    const response = await this.#transport.handleRequest(webRequest(req), { parsedBody: body })
    await sendResponse(res, response)
    return response.status
  }

  /** The transport would keep the request's stream open, and its id, for an answer that never comes. */
  async #cancel(id: RequestId): Promise<void> {
    const running = this.#running.get(id)
    if (running === undefined || running.gone.signal.aborted) return
    running.gone.abort()
    await this.#transport
      .send({ jsonrpc: '2.0', id, error: { code: RPC.cancelled, message: 'the request was cancelled' } })
      .catch(this.#deps.trouble)
  }

  #forget(id: RequestId, running: Running): void {
    if (running.settled && running.closed && this.#running.get(id) === running) this.#running.delete(id)
  }

  async #watch(uri: string, caller: TokenCaller): Promise<void> {
    if (this.#watched.size >= MOST_WATCHED)
      throw new RpcError(
        RPC.transport,
        `a session may be subscribed to ${MOST_WATCHED} resources; unsubscribe from one`,
      )
    const stop = await this.#deps.features.watchResource(caller, uri, () => {
      this.#server.sendResourceUpdated({ uri }).catch(this.#deps.trouble)
    })
    this.#watched.get(uri)?.()
    this.#watched.set(uri, stop)
  }

  #install(): void {
    const server = this.#server
    const { features } = this.#deps
    const { capabilities } = features
    if (capabilities.tools !== undefined) {
      server.setRequestHandler(ListToolsRequestSchema, (_request, extra) =>
        this.#handle(extra, async ({ caller }) => ({ tools: [...features.tools(caller)] })),
      )
      server.setRequestHandler(CallToolRequestSchema, ({ params }, extra) =>
        this.#handle(extra, (call) => {
          const result = features.callTool(params.name, params.arguments ?? {}, call)
          if (result !== null) return result
          const name = JSON.stringify(params.name.slice(0, 128))
          throw new RpcError(RPC.invalidParams, `there is no tool ${name}; tools/list gives those there are`)
        }),
      )
    }
    if (capabilities.resources !== undefined) {
      server.setRequestHandler(ListResourcesRequestSchema, ({ params }, extra) =>
        this.#handle(extra, (call) => features.listResources(call, params?.cursor ?? null)),
      )
      server.setRequestHandler(ListResourceTemplatesRequestSchema, (_request, extra) =>
        this.#handle(extra, async () => ({ resourceTemplates: [...features.resourceTemplates] })),
      )
      server.setRequestHandler(ReadResourceRequestSchema, ({ params }, extra) =>
        this.#handle(extra, (call) => features.readResource(call, params.uri)),
      )
      server.setRequestHandler(SubscribeRequestSchema, ({ params }, extra) =>
        this.#handle(extra, async ({ caller }) => {
          await this.#watch(params.uri, caller)
          await this.#deps.watching([...this.#watched.keys()])
          return {}
        }),
      )
      server.setRequestHandler(UnsubscribeRequestSchema, ({ params }, extra) =>
        this.#handle(extra, async () => {
          this.#watched.get(params.uri)?.()
          this.#watched.delete(params.uri)
          await this.#deps.watching([...this.#watched.keys()])
          return {}
        }),
      )
    }
    if (capabilities.completions !== undefined)
      server.setRequestHandler(CompleteRequestSchema, ({ params }, extra) =>
        this.#handle(extra, async (call) => ({ completion: await features.complete(call, params) })),
      )
    const { prompts } = features
    if (prompts !== undefined) {
      server.setRequestHandler(ListPromptsRequestSchema, () => ({ prompts: [...prompts.list()] }))
      server.setRequestHandler(GetPromptRequestSchema, ({ params }) => prompts.get(params.name, params.arguments ?? {}))
    }
  }

  /** Runs a handler with what is known of its request, and knows when it has settled. */
  async #handle<T>(extra: Extra, work: (call: McpCall) => Promise<T>): Promise<T> {
    const id = extra.requestId
    const running = this.#running.get(id)
    if (running === undefined) throw new RpcError(RPC.internal, 'the request is not known to its session')
    const { signal } = running.gone
    running.settled = false
    try {
      return await work({
        caller: running.caller,
        signal,
        progressToken: extra._meta?.progressToken ?? null,
        notify: async (notification) => {
          if (!signal.aborted) await extra.sendNotification(notification)
        },
        ask: (request) => extra.sendRequest(request, ResultSchema, { signal }),
        flowing: () => drained(running.res),
      })
    } catch (error) {
      throw rpcErrorOf(error)
    } finally {
      running.settled = true
      this.#forget(id, running)
    }
  }
}
