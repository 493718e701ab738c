/** JSON-RPC messages as lines, the way MCP's stdio transport has them. */
import type { Readable } from 'node:stream'

export type JsonRpcId = string | number

/** A JSON-RPC message, looked into only as far as passing it on takes. */
export interface JsonRpcMessage {
  readonly jsonrpc: '2.0'
  readonly id?: JsonRpcId | null
  readonly method?: string
  readonly params?: Readonly<Record<string, unknown>>
  readonly result?: Readonly<Record<string, unknown>>
  readonly error?: { readonly code: number; readonly message: string; readonly data?: unknown }
}

export type Line =
  | { readonly kind: 'message'; readonly message: JsonRpcMessage }
  | { readonly kind: 'refused'; readonly code: number; readonly reason: string }

const NEWLINE = 0x0a
const PARSE_ERROR = -32700
const INVALID_REQUEST = -32600

/** Reads lines to the end of the stream; one that is longer than `maxBytes` or no message is refused, and those after it are read. */
export async function* readLines(stream: Readable, maxBytes: number): AsyncIterable<Line> {
  let parts: Buffer[] = []
  let bytes = 0
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    let rest = chunk
    for (let end = rest.indexOf(NEWLINE); end !== -1; end = rest.indexOf(NEWLINE)) {
      const line = bytes + end > maxBytes ? null : Buffer.concat([...parts, rest.subarray(0, end)])
      const size = bytes + end
      parts = []
      bytes = 0
      rest = rest.subarray(end + 1)
      if (line === null)
        yield {
          kind: 'refused',
          code: INVALID_REQUEST,
          reason: `a message may have ${maxBytes} bytes, this has ${size}`,
        }
      else if (line.toString('latin1').trim() !== '') yield parseLine(line.toString('utf8'))
    }
    bytes += rest.length
    if (bytes > maxBytes) parts = []
    else if (rest.length > 0) parts.push(rest)
  }
}

function parseLine(text: string): Line {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return { kind: 'refused', code: PARSE_ERROR, reason: 'the line is not JSON' }
  }
  const message = parseMessage(value)
  return message === null
    ? { kind: 'refused', code: INVALID_REQUEST, reason: 'the line is no JSON-RPC 2.0 message' }
    : { kind: 'message', message }
}

/** null where it is no JSON-RPC 2.0 message; a batch is none, since MCP has none any more. */
export function parseMessage(value: unknown): JsonRpcMessage | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return null
  const { jsonrpc, id, method, params, result, error } = value as Record<string, unknown>
  if (jsonrpc !== '2.0') return null
  if (id !== undefined && id !== null && typeof id !== 'string' && typeof id !== 'number') return null
  if (typeof method === 'string')
    return params === undefined || isObject(params) ? (value as unknown as JsonRpcMessage) : null
  return isObject(result) || isObject(error) ? (value as unknown as JsonRpcMessage) : null
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
