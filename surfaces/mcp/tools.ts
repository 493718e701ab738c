/** The operations as MCP tools: listed by scope, their arguments checked, their answers as text, structure and links. */
import type { CallToolResult, Tool } from '@modelcontextprotocol/sdk/types.js'
import { errors, HangarError, messageOf } from '../../domain/errors.ts'
import { hasScope, type TokenCaller } from '../../domain/grant.ts'
import { isJobId, parseSessionName, type SessionName } from '../../domain/names.ts'
import type { Log } from '../../domain/ports.ts'
import { parseShape } from '../../domain/schema.ts'
import type { IdempotencyMark } from '../../domain/session.ts'
import { artifactUri, sessionUri } from '../../exchange/artifact-uri.ts'
import { chosenSession } from '../../orchestrator/job-attempts.ts'
import { checkScope } from '../auth.ts'
import {
  type ArtifactLink,
  type Call,
  type Operation,
  type Reply,
  type Services,
  sessionFor,
  type ToolTraits,
} from '../operations/operation.ts'
import { jobFor, sessionMeant } from '../operations/refs.ts'
import { contentBlock, mimeOf } from './content.ts'
import type { McpCall } from './features.ts'
import { createSharing, sameRequestMark } from './same-request.ts'
import { createToolWords, refusal, reworded } from './tool-words.ts'
import { type ProgressOptions, tellingProgress } from './wait.ts'

export interface ToolsDeps {
  readonly operations: readonly Operation[]
  readonly services: Services
  readonly log: Log
  readonly progress: ProgressOptions
}

export interface Tools {
  list(caller: TokenCaller): readonly Tool[]
  /** null: there is no such tool. A refusal is an answer with `isError`. */
  call(name: string, args: Readonly<Record<string, unknown>>, call: McpCall): Promise<CallToolResult> | null
}

const MAX_LINKS = 50

type Tooled = Operation & { readonly tool: ToolTraits }

export function createTools(deps: ToolsDeps): Tools {
  const { services, log } = deps
  const tooled = deps.operations.filter(isTooled)
  const byName = new Map(tooled.map((operation) => [operation.name, operation]))
  const definitions = new Map(tooled.map((operation) => [operation.name, definitionOf(operation)]))
  const words = createToolWords(deps.operations)
  const share = createSharing()

  const answer = async (operation: Tooled, args: Readonly<Record<string, unknown>>, call: McpCall) => {
    checkScope(call.caller, operation.scope)
    const idempotency = sameRequestMark(operation, args, call.caller)
    const input = parseShape(operation.input, { ...args }, `the arguments of ${operation.name}`) as Input
    const reply = await perform(operation, input, call, idempotency).catch((error: unknown) => {
      throw reworded(error, words)
    })
    // It may have taken minutes; nothing is shown to a token that was revoked meanwhile.
    if (!services.tokens.isLive(call.caller))
      throw errors.unauthenticated(`token ${call.caller.name} was revoked or has expired`)
    return resultOf(operation, input, reply, services)
  }

  const perform = async (operation: Tooled, input: Input, call: McpCall, idempotency: IdempotencyMark | null) => {
    const operationCall: Call = { caller: call.caller, surface: 'mcp', services, signal: call.signal, idempotency }
    const handle = (given: Input) => operation.handle(operationCall, given)
    if (operation.tool.waits === true) return wait(operationCall, call, input, handle)
    return idempotency === null ? handle(input) : share(idempotency.key, () => handle(input))
  }

  const wait = async (operationCall: Call, call: McpCall, input: Input, handle: (input: Input) => Promise<Reply>) => {
    const { name, turn, given } = await waitedFor(operationCall, input)
    const asked = Number(input['timeout_seconds'])
    if (call.progressToken === null)
      return handle({ ...given, timeout_seconds: Math.min(asked, deps.progress.silentMs / 1000) })
    return tellingProgress(services, call, { name, turn }, deps.progress, () => handle(given))
  }

  return {
    list: (caller) =>
      tooled.filter(({ scope }) => hasScope(caller, scope)).map(({ name }) => definitions.get(name) as Tool),
    call: (name, args, call) => {
      const operation = byName.get(name)
      if (operation === undefined) return null
      return answer(operation, args, call).catch((error: unknown) => {
        if (!(error instanceof HangarError) || error.status >= 500)
          log.error(
            { tool: name, error: messageOf(error), stack: error instanceof Error ? error.stack : undefined },
            'a tool failed',
          )
        return refusal(error)
      })
    },
  }
}

type Input = Readonly<Record<string, unknown>>

/** The turn whose progress is told, and the call with it named; a job is waited for as a whole, and tells of its first or chosen attempt. */
async function waitedFor(call: Call, input: Input): Promise<{ name: SessionName; turn: number; given: Input }> {
  const ref = String(input['ref'])
  if (isJobId(ref) && input['turn'] === undefined) {
    const job = await jobFor(call, ref)
    const name = chosenSession(job) ?? job.attempts[0]?.session ?? parseSessionName(ref)
    return { name, turn: (await sessionFor(call, name)).session.turns, given: input }
  }
  const name = await sessionMeant(call, ref)
  const { session } = await sessionFor(call, name)
  const turn = typeof input['turn'] === 'number' ? input['turn'] : session.turns
  return { name, turn, given: { ...input, turn } }
}

/** The tools that a caller with every scope sees. */
export function toolDefinitions(operations: readonly Operation[]): Tool[] {
  return operations.filter(isTooled).map(definitionOf)
}

function isTooled(operation: Operation): operation is Tooled {
  return operation.tool !== undefined
}

/** What tools/list says of an operation. Its schemas go out as they are. */
export function definitionOf({ name, summary, input, output, tool }: Tooled): Tool {
  return {
    name,
    title: tool.title,
    description: `${summary} ${tool.advice}\nExample: ${name}(${JSON.stringify(tool.example)})`,
    inputSchema: plain(input) as Tool['inputSchema'],
    ...(output === null ? {} : { outputSchema: plain(output) as NonNullable<Tool['outputSchema']> }),
    annotations: {
      title: tool.title,
      readOnlyHint: tool.effect === 'reads',
      ...(tool.effect === 'reads' ? {} : { destructiveHint: tool.effect === 'takes away' }),
      ...(tool.effect === 'reads'
        ? {}
        : { idempotentHint: tool.effect === 'takes away' || tool.idempotentBy !== undefined }),
      openWorldHint: false,
    },
  }
}

/** Without TypeBox's own symbols. */
function plain(schema: unknown): unknown {
  return JSON.parse(JSON.stringify(schema))
}

function resultOf(operation: Tooled, input: Input, reply: Reply, services: Services): CallToolResult {
  switch (reply.kind) {
    case 'json': {
      const links = operation.tool.artifacts?.(reply.body) ?? []
      return {
        content: [{ type: 'text', text: JSON.stringify(reply.body) }, ...links.slice(-MAX_LINKS).map(linkOf)],
        structuredContent: reply.body as Record<string, unknown>,
      }
    }
    case 'bytes': {
      const { bytes } = operation.tool
      const { limits } = services.config
      const limit = bytes?.limit(limits) ?? limits.inlineArtifactBytes
      if (reply.content.length > limit) {
        const place = bytes?.elsewhere(input as never)
        const where =
          place === undefined
            ? ''
            : `; get it with: ${place.command}, or from ${services.publicUrl()}${place.path} with the token as bearer`
        throw errors.tooLarge(`it has ${reply.content.length} bytes, and an answer holds at most ${limit}${where}`)
      }
      return { content: [contentBlock(reply.content, reply.contentType, uriOf(input))] }
    }
    case 'stream':
      throw errors.internal(`${operation.name} streams, which a tool cannot`)
    case 'empty':
      return { content: [{ type: 'text', text: 'nothing' }] }
    default:
      return reply satisfies never
  }
}

function linkOf(artifact: ArtifactLink): CallToolResult['content'][number] {
  const { uri, path, size, content_type: contentType } = artifact
  return { type: 'resource_link', uri, name: path, mimeType: mimeOf(contentType), size }
}

function uriOf(input: Input): string {
  const name = parseSessionName(String(input['ref']))
  const { turn, path } = input
  return typeof turn === 'number' && typeof path === 'string' ? artifactUri(name, turn, path) : sessionUri(name)
}
