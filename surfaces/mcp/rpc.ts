/** JSON-RPC as far as the HTTP layer looks into it: which kind of message it is, and errors that come before any session. */
import type { ServerResponse } from 'node:http'
import type { JSONRPCMessage, RequestId } from '@modelcontextprotocol/sdk/types.js'
import { HangarError } from '../../domain/errors.ts'

export const RPC = {
  parse: -32700,
  invalidRequest: -32600,
  invalidParams: -32602,
  internal: -32603,
  /** Of the transport: not allowed, not acceptable, busy. */
  transport: -32000,
  sessionNotFound: -32001,
  resourceNotFound: -32002,
  cancelled: -32800,
} as const

/** An error of the protocol; the SDK sends its code, message and data as they are. */
export class RpcError extends Error {
  readonly code: number
  readonly data: Readonly<Record<string, unknown>> | undefined

  constructor(code: number, message: string, data?: Readonly<Record<string, unknown>>) {
    super(message)
    this.name = 'RpcError'
    this.code = code
    this.data = data
  }
}

export type Incoming =
  | { readonly kind: 'request'; readonly id: RequestId; readonly method: string }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  | { readonly kind: 'other' }

/** Looks at a message; whether it is whole is the SDK's to check. Throws on a batch: hangar takes none. */
export function readMessage(body: unknown): Incoming {
  if (Array.isArray(body))
    throw new RpcError(RPC.invalidRequest, 'batches are not taken: send each message in a POST of its own')
  if (typeof body !== 'object' || body === null) throw new RpcError(RPC.parse, 'the body is no JSON-RPC message')
  const { id, method, params } = body as { id?: unknown; method?: unknown; params?: { requestId?: unknown } }
  if (typeof method !== 'string') return { kind: 'other' }
  if (isId(id)) return { kind: 'request', id, method }
  // The SDK's own handling takes request id 0 for none.
  if (method === 'notifications/cancelled' && isId(params?.requestId)) return { kind: 'cancel', id: params.requestId }
  return { kind: 'other' }
}

function isId(value: unknown): value is RequestId {
  return typeof value === 'string' || typeof value === 'number'
}

/** Answers a request that reached no session. */
export function sendRpcError(
  res: ServerResponse,
  status: number,
  error: { readonly code: number; readonly message: string },
  headers: Readonly<Record<string, string>> = {},
): void {
  if (res.headersSent) {
    res.destroy()
    return
  }
  const body = JSON.stringify({ jsonrpc: '2.0', error: { code: error.code, message: error.message }, id: null })
  res.writeHead(status, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store', ...headers }).end(body)
}

/** The SDK tells a request that its method does not take as an internal error, with a list of issues as JSON: that is invalid params, in a sentence. */
export function withSentence(message: JSONRPCMessage): JSONRPCMessage {
  if (!('error' in message) || message.error.code !== RPC.internal) return message
  const issue = firstIssue(message.error.message)
  return issue === null ? message : { ...message, error: { code: RPC.invalidParams, message: issue } }
}

function firstIssue(text: string): string | null {
  if (!text.startsWith('[')) return null
  try {
    const [issue] = JSON.parse(text) as { path?: unknown; message?: unknown }[]
    if (!Array.isArray(issue?.path) || typeof issue.message !== 'string') return null
    return `the request at ${issue.path.join('.')}: ${issue.message}`.slice(0, 1_000)
  } catch {
    return null
  }
}

/** A refusal of hangar's as an error of the protocol: what is written wrong is invalid params. */
export function rpcErrorOf(error: unknown): unknown {
  if (!(error instanceof HangarError)) return error
  const code = error.status === 400 ? RPC.invalidParams : error.status >= 500 ? RPC.internal : RPC.transport
  return new RpcError(code, error.message, { code: error.code })
}
