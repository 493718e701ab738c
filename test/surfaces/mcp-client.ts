/** A client of MCP that sends what it is told to, byte for byte: for what the SDK's own client never does. */
import { join } from 'node:path'
import type { Hangar } from '../stories/support.ts'
import { shell } from '../stories/support.ts'

export const PROTOCOL = '2025-11-25'

// biome-ignore lint/suspicious/noExplicitAny: answers are looked into by tests only
export type Message = any

export interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  /** Of an event stream, each event's data; of JSON, the one. */
  readonly messages: Message[]
}

export interface Stream {
  readonly status: number
  /** All that has come so far. */
  text(): string
  messages(): Message[]
  readonly ended: Promise<void>
  /** Drops the connection. */
  drop(): void
}

export interface RawClient {
  readonly session: string
  post(message: unknown, headers?: Readonly<Record<string, string>>): Promise<Answer>
  /** A POST whose answer is read as it comes. */
  open(message: unknown): Promise<Stream>
  /** The stream of notifications. */
  listen(): Promise<Stream>
  request(method: string, params?: unknown, id?: string | number): Promise<Answer>
  /** The result of a tool's call. */
  tool(name: string, args: unknown, meta?: unknown): Promise<Message>
}

type Headers0 = Readonly<Record<string, string>>

export const HEADERS = { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' }

export function initialize(id: string | number = 0, name = 'raw'): Message {
  return {
    jsonrpc: '2.0',
    id,
    method: 'initialize',
    params: { protocolVersion: PROTOCOL, capabilities: {}, clientInfo: { name, version: '1' } },
  }
}

export async function send(
  url: string,
  options: { method?: string; body?: unknown; headers?: Headers0 },
): Promise<Answer> {
  const response = await fetch(url, {
    method: options.method ?? 'POST',
    headers: { ...HEADERS, ...options.headers },
    ...(options.body === undefined
      ? {}
      : { body: typeof options.body === 'string' ? options.body : JSON.stringify(options.body) }),
  })
  const text = await response.text()
  return { status: response.status, headers: response.headers, text, messages: messagesOf(text) }
}

/** Introduces itself and gives the session's client. */
export async function connect(hangar: Pick<Hangar, 'url'>, token: string, known?: string): Promise<RawClient> {
  const url = `${hangar.url}/mcp`
  const bearer = { Authorization: `Bearer ${token}` }
  let session = known
  if (session === undefined) {
    const begun = await send(url, { body: initialize(), headers: bearer })
    session = begun.headers.get('mcp-session-id') ?? ''
    if (begun.status !== 200 || session === '') throw new Error(`initialize: ${begun.status} ${begun.text}`)
    await send(url, {
      body: { jsonrpc: '2.0', method: 'notifications/initialized' },
      headers: { ...bearer, 'Mcp-Session-Id': session },
    })
  }
  const headers = { ...bearer, 'Mcp-Session-Id': session, 'Mcp-Protocol-Version': PROTOCOL }
  let next = 100
  const client: RawClient = {
    session,
    post: (body, more = {}) => send(url, { body, headers: { ...headers, ...more } }),
    open: (message) =>
      stream(url, { method: 'POST', body: JSON.stringify(message), headers: { ...HEADERS, ...headers } }),
    listen: () => stream(url, { method: 'GET', headers: { ...headers, Accept: 'text/event-stream' } }),
    request: (method, params, id = next++) => client.post({ jsonrpc: '2.0', id, method, params }),
    tool: async (name, args, meta) => {
      const { messages, status, text } = await client.request('tools/call', {
        name,
        arguments: args,
        ...(meta === undefined ? {} : { _meta: meta }),
      })
      const last = messages.at(-1)
      if (last?.result === undefined) throw new Error(`${name}: ${status} ${text}`)
      return last.result
    },
  }
  return client
}

async function stream(url: string, init: RequestInit): Promise<Stream> {
  const abort = new AbortController()
  const response = await fetch(url, { ...init, signal: abort.signal })
  let text = ''
  const ended = (async () => {
    const decoder = new TextDecoder()
    for await (const chunk of response.body ?? []) text += decoder.decode(chunk as Uint8Array, { stream: true })
  })().catch(() => {})
  return {
    status: response.status,
    text: () => text,
    messages: () => messagesOf(text),
    ended,
    drop: () => abort.abort(),
  }
}

function messagesOf(text: string): Message[] {
  if (text.startsWith('{')) return [JSON.parse(text)]
  return [...text.matchAll(/^data: (.+)$/gm)].map((match) => JSON.parse(match[1] ?? ''))
}

/** An agent that does what its prompt's first line says, as a shell command. */
export const OBEDIENT = 'read -r line; eval "$line"'

/** The repo acme/app with one commit; its checkout is `seed`. */
export async function withRepo(hangar: Hangar, slug = 'acme/app'): Promise<string> {
  await hangar.api('POST', '/api/repos', { slug })
  const seed = join(hangar.dir, slug.replace('/', '-'))
  await shell(
    hangar.dir,
    `git init -q -b main ${seed} && cd ${seed} && echo one >a.txt && git add . && git commit -q -m base`,
  )
  const pushed = await hangar.git(seed, ['push', '-q', `${hangar.url}/git/${slug}.git`, 'main'])
  if (pushed.status !== 0) throw new Error(pushed.err)
  return seed
}

/** A token's secret. */
export async function tokenFor(
  hangar: Hangar,
  scopes: readonly string[],
  repos?: readonly string[],
): Promise<{ id: string; secret: string }> {
  const { body } = await hangar.api('POST', '/api/tokens', {
    name: scopes.join('+'),
    scopes,
    ...(repos === undefined ? {} : { repos }),
  })
  return { id: body.id, secret: body.token }
}
