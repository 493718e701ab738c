/** `hangar mcp`: an MCP server on stdio that passes everything to the server's `/mcp`, and adds what only the user's machine can do. */
import type { Readable } from 'node:stream'
import { BridgeLink, type LinkDeps, NoAnswer, NoStream, Refused, SessionLost } from './bridge-link.ts'
import { addLocalTools, type LocalWork, localCall, refusal, type Tool } from './bridge-tools.ts'
import { type JsonRpcId, type JsonRpcMessage, readLines } from './json-lines.ts'

export interface BridgeDeps extends Pick<LinkDeps, 'target' | 'events'> {
  readonly input: Readable
  /** Writes one line of output. */
  write(line: string): void
  log(text: string): void
  readonly local: LocalWork
  /** The directory whose checkout is handed over when a call names none. */
  readonly directory: string
  readonly version: string
}

/** Two bundles at their cap, in base64. */
const MAX_MESSAGE_BYTES = 160 * 1_048_576
/** What is only told must not hold up what comes after it. */
const TELL_MS = 10_000
const FIRST_PAUSE_MS = 500
const LONGEST_PAUSE_MS = 15_000
const RPC = { invalidRequest: -32600, internal: -32603, away: -32000 } as const

/** Serves until the input ends, and what was begun in checkouts is done. */
export async function runBridge(deps: BridgeDeps): Promise<void> {
  const bridge = new Bridge(deps)
  try {
    for await (const line of readLines(deps.input, MAX_MESSAGE_BYTES)) {
      if (line.kind === 'message') bridge.receive(line.message)
      else bridge.refuse(line.code, line.reason)
    }
  } catch (error) {
    deps.log(`input broke off: ${sentence(error)}`)
  } finally {
    await bridge.close()
  }
}

interface Running {
  readonly abort: AbortController
  /** A cancelled request gets no answer. */
  cancelled: boolean
}

class Bridge {
  readonly #deps: BridgeDeps
  readonly #link: BridgeLink
  readonly #closing = new AbortController()
  readonly #running = new Map<string, Running>()
  /** Work in checkouts, which is not cut off. */
  readonly #atWork = new Set<Promise<unknown>>()
  readonly #subscribed = new Set<string>()
  #logLevel: unknown = null
  /** The client's own `initialize`: what every session with the server begins with. */
  #initialize: JsonRpcMessage | null = null
  #connecting: Promise<void> | null = null
  #listening = false
  /** Cuts the pause before the next try to listen. */
  #resume = (): void => {}
  /** The client was shown what this program knows, since the server was away. */
  #shownOffline = false
  #lastTrouble = ''
  #ids = 0

  constructor(deps: BridgeDeps) {
    this.#deps = deps
    this.#link = new BridgeLink({
      target: deps.target,
      events: deps.events,
      deliver: (message) => this.#write(message),
    })
  }

  receive(message: JsonRpcMessage): void {
    const { id, method } = message
    if (method === undefined) void this.#tell(message)
    else if (id === undefined || id === null) this.#notified(message)
    else void this.#requested(message, id)
  }

  refuse(code: number, reason: string): void {
    this.#deps.log(`a line of input was refused: ${reason}`)
    this.#write({ jsonrpc: '2.0', id: null, error: { code, message: reason } })
  }

  async close(): Promise<void> {
    this.#closing.abort()
    this.#resume()
    await Promise.allSettled([...this.#atWork])
    await this.#link.end()
  }

  #write(message: JsonRpcMessage): void {
    this.#deps.write(JSON.stringify(message))
  }

  #notified(message: JsonRpcMessage): void {
    if (message.method === 'notifications/initialized') {
      void this.#tell(message)
      if (!this.#listening) void this.#listen()
    } else if (message.method === 'notifications/cancelled') {
      const running = this.#running.get(keyOf(message.params?.['requestId'] as JsonRpcId))
      if (running === undefined) return
      running.cancelled = true
      void this.#tell(message).finally(() => running.abort.abort())
    } else void this.#tell(message)
  }

  /** Sends what needs no answer; while the server is away there is nobody to tell. */
  async #tell(message: JsonRpcMessage): Promise<void> {
    if (!this.#link.open) return
    const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(TELL_MS)])
    await this.#link.tell(message, signal).catch((error: unknown) => this.#trouble(error))
  }

  async #requested(message: JsonRpcMessage, id: JsonRpcId): Promise<void> {
    const key = keyOf(id)
    if (this.#running.has(key)) {
      const text = `a request with the id ${JSON.stringify(id)} is still running`
      this.#write({ jsonrpc: '2.0', id, error: { code: RPC.invalidRequest, message: text } })
      return
    }
    const running: Running = { abort: new AbortController(), cancelled: false }
    this.#running.set(key, running)
    const signal = AbortSignal.any([running.abort.signal, this.#closing.signal])
    const answer = await this.#answer(message, signal).catch((error: unknown) =>
      signal.aborted ? null : this.#failed(message, error),
    )
    this.#running.delete(key)
    if (answer !== null && !signal.aborted && !running.cancelled) this.#write({ ...answer, id })
  }

  #answer(message: JsonRpcMessage, signal: AbortSignal): Promise<JsonRpcMessage> {
    switch (message.method) {
      case 'initialize':
        return this.#initialized(message)
      case 'ping':
        return Promise.resolve({ jsonrpc: '2.0', result: {} })
      case 'tools/list':
        return this.#tools(message, signal)
      case 'tools/call':
        return this.#called(message, signal)
      default:
        return this.#asked(message, signal)
    }
  }

  /** Answered by the server; while it is away by the bridge, so that the client keeps it. */
  async #initialized(message: JsonRpcMessage): Promise<JsonRpcMessage> {
    this.#initialize = message
    try {
      const answer = await this.#link.begin(message, this.#closing.signal)
      return answer.result === undefined ? answer : { ...answer, result: withOwnParts(answer.result) }
    } catch (error) {
      this.#trouble(error)
      const { offlineInitialize } = await import('./bridge-offline.ts')
      this.#shownOffline = true
      return { jsonrpc: '2.0', result: withOwnParts(offlineInitialize(message.params ?? {}, this.#deps.version)) }
    }
  }

  async #tools(message: JsonRpcMessage, signal: AbortSignal): Promise<JsonRpcMessage> {
    const { directory } = this.#deps
    let answer: JsonRpcMessage
    try {
      answer = await this.#forward(message, signal)
    } catch (error) {
      if (!(error instanceof NoAnswer)) throw error
      this.#trouble(error)
      const { offlineTools } = await import('./bridge-offline.ts')
      this.#shownOffline = true
      return { jsonrpc: '2.0', result: { tools: addLocalTools(offlineTools(), directory, { whole: true }) } }
    }
    const tools = answer.result?.['tools']
    if (!Array.isArray(tools)) return answer
    const whole = answer.result?.['nextCursor'] === undefined
    return { ...answer, result: { ...answer.result, tools: addLocalTools(tools as Tool[], directory, { whole }) } }
  }

  #called(message: JsonRpcMessage, signal: AbortSignal): Promise<JsonRpcMessage> {
    const call = localCall(message, { ...this.#deps, signal })
    if (call === null) return this.#forward(message, signal)
    const work = call(async (own) => {
      signal.throwIfAborted()
      return this.#forward(own, signal)
    })
    this.#atWork.add(work)
    return work.finally(() => this.#atWork.delete(work))
  }

  /** What a session with the server holds is kept for the next one. */
  async #asked(message: JsonRpcMessage, signal: AbortSignal): Promise<JsonRpcMessage> {
    const answer = await this.#forward(message, signal)
    const uri = message.params?.['uri']
    if (answer.error !== undefined) return answer
    if (message.method === 'resources/subscribe' && typeof uri === 'string') this.#subscribed.add(uri)
    if (message.method === 'resources/unsubscribe' && typeof uri === 'string') this.#subscribed.delete(uri)
    if (message.method === 'logging/setLevel') this.#logLevel = message.params?.['level']
    return answer
  }

  async #forward(message: JsonRpcMessage, signal: AbortSignal): Promise<JsonRpcMessage> {
    await this.#connected()
    try {
      const answer = await this.#link.request(message, signal)
      this.#resume()
      return answer
    } catch (error) {
      if (!(error instanceof SessionLost)) throw error
      // It was not worked on, so it may be sent again.
      this.#link.forget(error)
      await this.#connected()
      return this.#link.request(message, signal)
    }
  }

  #connected(): Promise<void> {
    if (this.#link.open) return Promise.resolve()
    this.#connecting ??= this.#connect().finally(() => {
      this.#connecting = null
    })
    return this.#connecting
  }

  /** A new session with the server, with all that the client had in the one before. */
  async #connect(): Promise<void> {
    if (this.#initialize === null) throw new NoAnswer('begin with initialize')
    const { signal } = this.#closing
    const answer = await this.#link.begin(this.#initialize, signal)
    if (answer.error !== undefined) throw new NoAnswer(`the hangar server refuses to begin: ${answer.error.message}`)
    await this.#link.tell({ jsonrpc: '2.0', method: 'notifications/initialized' }, signal)
    const restore: [string, Record<string, unknown>][] = [...this.#subscribed].map((uri) => [
      'resources/subscribe',
      { uri },
    ])
    if (this.#logLevel !== null) restore.push(['logging/setLevel', { level: this.#logLevel }])
    for (const [method, params] of restore) {
      this.#ids += 1
      const request: JsonRpcMessage = { jsonrpc: '2.0', id: `hangar-bridge-${this.#ids}`, method, params }
      await this.#link.request(request, signal).catch((error: unknown) => this.#trouble(error))
    }
    this.#deps.log('connected to the server')
    this.#lastTrouble = ''
    this.#resume()
    if (!this.#shownOffline) return
    this.#shownOffline = false
    for (const kind of ['tools', 'resources'])
      this.#write({ jsonrpc: '2.0', method: `notifications/${kind}/list_changed` })
  }

  /** Hears what the server sends of itself, and connects again by itself after the server was away. */
  async #listen(): Promise<void> {
    this.#listening = true
    const { signal } = this.#closing
    let pauseMs = FIRST_PAUSE_MS
    let deaf = false
    while (!signal.aborted) {
      try {
        await this.#connected()
        await this.#link.listen(signal, () => {
          pauseMs = FIRST_PAUSE_MS
          // What has changed while nobody listened is not known.
          if (deaf)
            for (const uri of this.#subscribed)
              this.#write({ jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri } })
          deaf = true
        })
      } catch (error) {
        if (signal.aborted || error instanceof NoStream) return
        if (error instanceof SessionLost) this.#link.forget(error)
        this.#trouble(error)
      }
      if (signal.aborted) return
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, pauseMs)
        this.#resume = () => {
          clearTimeout(timer)
          resolve()
        }
      })
      pauseMs = Math.min(LONGEST_PAUSE_MS, pauseMs * 2)
    }
  }

  /** A tool's caller reads a sentence; other requests fail as JSON-RPC has it. */
  #failed(message: JsonRpcMessage, error: unknown): JsonRpcMessage {
    this.#trouble(error)
    if (error instanceof Refused) return { jsonrpc: '2.0', error: { code: error.code, message: error.message } }
    if (message.method === 'tools/call') return refusal(message.id, sentence(error))
    const code = error instanceof NoAnswer ? RPC.away : RPC.internal
    return { jsonrpc: '2.0', error: { code, message: sentence(error) } }
  }

  /** Told once while it stays the same. */
  #trouble(error: unknown): void {
    const text = sentence(error)
    if (this.#closing.signal.aborted || text === this.#lastTrouble) return
    this.#lastTrouble = text
    this.#deps.log(text)
  }
}

const OWN_INSTRUCTIONS = `
This server runs on the user's machine. new_session and send_to_session with from_local: true hand over the checkout there as it is, uncommitted changes included; pull_session takes a session's work into it.`

function withOwnParts(result: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const capabilities = result['capabilities'] as Readonly<Record<string, object>> | undefined
  return {
    ...result,
    capabilities: {
      ...capabilities,
      tools: { ...capabilities?.['tools'], listChanged: true },
      resources: { ...capabilities?.['resources'], listChanged: true },
    },
    instructions: `${String(result['instructions'] ?? '')}${OWN_INSTRUCTIONS}`,
  }
}

/** The ids 1 and "1" are two. */
function keyOf(id: JsonRpcId): string {
  return JSON.stringify(id)
}

function sentence(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
