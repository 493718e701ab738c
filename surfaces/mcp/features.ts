/** What an MCP server offers, apart from how it is reached: the endpoint is given one of these. */
import type {
  CallToolResult,
  CompleteRequestParams,
  CompleteResult,
  GetPromptResult,
  Implementation,
  ListResourcesResult,
  ProgressToken,
  Prompt,
  ReadResourceResult,
  ResourceTemplate,
  ServerCapabilities,
  ServerNotification,
  ServerRequest,
  Tool,
} from '@modelcontextprotocol/sdk/types.js'
import type { TokenCaller } from '../../domain/grant.ts'

/** One request of a client. */
export interface McpCall {
  readonly caller: TokenCaller
  /** Aborts when the request is cancelled, its client is gone, or the server closes. */
  readonly signal: AbortSignal
  /** Given by a client that wants to be told of progress; it may be 0 or an empty string. */
  readonly progressToken: ProgressToken | null
  /** Sends on this request's own stream; nothing is sent once the signal has aborted. */
  notify(notification: ServerNotification): Promise<void>
  /** Asks the client for something (sampling, elicitation); gives its result as it came. */
  ask(request: ServerRequest): Promise<Record<string, unknown>>
  /** Resolves when the client has read what was sent so far, or is gone. */
  flowing(): Promise<void>
}

export interface McpFeatures {
  readonly info: Implementation
  readonly instructions: string
  readonly capabilities: ServerCapabilities
  /** Those that the caller may use. */
  tools(caller: TokenCaller): readonly Tool[]
  /** null: there is no such tool. */
  callTool(name: string, args: Readonly<Record<string, unknown>>, call: McpCall): Promise<CallToolResult> | null
  listResources(call: McpCall, cursor: string | null): Promise<ListResourcesResult>
  readonly resourceTemplates: readonly ResourceTemplate[]
  readResource(call: McpCall, uri: string): Promise<ReadResourceResult>
  /**
   * Checks that the URI can be watched by the caller, and calls back each time that what it names has changed. Gives how to stop.
   */
  watchResource(caller: TokenCaller, uri: string, changed: () => void): Promise<() => void>
  complete(call: McpCall, params: CompleteRequestParams): Promise<CompleteResult['completion']>
  readonly prompts?: {
    list(): readonly Prompt[]
    get(name: string, args: Readonly<Record<string, string>>): GetPromptResult
  }
}
