/** Sessions and artifacts as MCP resources: listed, read, completed and watched within what the token covers. */
import type {
  CompleteRequestParams,
  CompleteResult,
  ListResourcesResult,
  ReadResourceResult,
  Resource,
  ResourceTemplate,
} from '@modelcontextprotocol/sdk/types.js'
import { errors, HangarError } from '../../domain/errors.ts'
import { coversRepo, type TokenCaller } from '../../domain/grant.ts'
import type { SessionName } from '../../domain/names.ts'
import type { SessionRecord, TurnRecord } from '../../domain/session.ts'
import {
  artifactRestPath,
  artifactUri,
  type HangarUri,
  parseHangarUri,
  sessionUri,
  uriOf,
} from '../../exchange/artifact-uri.ts'
import type { Call, Operation, Reply, Services } from '../operations/operation.ts'
import { mimeOf, resourceContents } from './content.ts'
import type { McpCall, McpFeatures } from './features.ts'
import { RPC, RpcError, rpcErrorOf } from './rpc.ts'

export type Resources = Pick<
  McpFeatures,
  'listResources' | 'resourceTemplates' | 'readResource' | 'watchResource' | 'complete'
>

const SESSION_TEMPLATE = 'hangar://sessions/{name}'
const ARTIFACT_TEMPLATE = 'hangar://sessions/{name}/artifacts/{turn}/{+path}'
const PAGE = 100
const MOST_VALUES = 100

/** `get_session` and `get_artifact` do the reading, and with it the check of the token's repo patterns. */
export function createResources(deps: {
  readonly services: Services
  readonly operations: readonly Operation[]
}): Resources {
  const { services } = deps
  const { records, index, tokens } = services

  const run = (name: string, call: McpCall, input: Record<string, unknown>): Promise<Reply> => {
    const operation = deps.operations.find((one) => one.name === name)
    if (operation === undefined) throw errors.internal(`there is no operation ${name}`)
    const made: Call = { caller: call.caller, surface: 'mcp', services, signal: call.signal, idempotency: null }
    return operation.handle(made, input)
  }

  /** The sessions that the caller may see, the newest first. */
  const sessions = async function* (caller: TokenCaller, from?: string) {
    for (let at = from; ; ) {
      const page = await index.order.range({ reverse: true, limit: PAGE, ...(at === undefined ? {} : { from: at }) })
      const fresh = page.filter(([key]) => key !== at || at === from)
      for (const [key, name] of fresh) {
        const entry = await records.find(name as SessionName)
        if (entry !== null && coversRepo(caller, entry.repo)) yield { key, session: entry.session }
      }
      if (page.length < PAGE) return
      at = page.at(-1)?.[0]
    }
  }

  return {
    resourceTemplates: TEMPLATES,

    listResources: async ({ caller }, cursor): Promise<ListResourcesResult> => {
      const start = cursor === null ? null : readCursor(cursor)
      const found: Resource[] = []
      for await (const { key, session } of sessions(caller, start?.key)) {
        const own = resourcesOf(session, await records.turns(session.name))
        const skip = start?.key === key ? start.skip : 0
        for (const [place, resource] of own.entries()) {
          if (place < skip) continue
          if (found.length === PAGE) return { resources: found, nextCursor: writeCursor({ key, skip: place }) }
          found.push(resource)
        }
      }
      return { resources: found }
    },

    readResource: async (call, text): Promise<ReadResourceResult> => {
      const uri = parsed(text)
      const canonical = uriOf(uri)
      try {
        if (uri.kind === 'session') {
          const reply = await run('get_session', call, { ref: uri.name })
          const body = JSON.stringify(reply.kind === 'json' ? reply.body : null)
          return { contents: [{ uri: canonical, mimeType: 'application/json', text: body }] }
        }
        const reply = await run('get_artifact', call, { ref: uri.name, turn: uri.turn, path: uri.path })
        if (reply.kind !== 'bytes') throw errors.internal('an artifact came without bytes')
        checkSize(reply.content.length, uri, services)
        return resourceContents(reply.content, reply.contentType, canonical)
      } catch (error) {
        throw notFound(error, canonical)
      }
    },

    watchResource: async (caller, text, changed) => {
      const uri = parsed(text)
      if (uri.kind !== 'session')
        throw new RpcError(
          RPC.invalidParams,
          `an artifact never changes; subscribe to ${sessionUri(uri.name)}, which tells of new ones`,
        )
      const visible = async () => {
        const entry = await records.find(uri.name)
        return entry === null ? null : coversRepo(caller, entry.repo)
      }
      if ((await visible()) !== true) throw notFound(errors.notFound('no'), uriOf(uri))
      // One that was deleted is told of once more; whoever takes the name next may be in a repo that the token does not cover.
      return records.onMove(uri.name, () => {
        void visible().then(
          (seen) => {
            if (seen !== false && tokens.isLive(caller)) changed()
          },
          () => {},
        )
      })
    },

    complete: async (
      { caller },
      { ref, argument, context }: CompleteRequestParams,
    ): Promise<CompleteResult['completion']> => {
      if (ref.type !== 'ref/resource' || ![SESSION_TEMPLATE, ARTIFACT_TEMPLATE].includes(ref.uri))
        throw new RpcError(
          RPC.invalidParams,
          `completion is for the resource templates ${SESSION_TEMPLATE} and ${ARTIFACT_TEMPLATE}`,
        )
      const given = context?.arguments ?? {}
      switch (argument.name) {
        case 'name': {
          const names: string[] = []
          for await (const { session } of sessions(caller)) names.push(session.name)
          return matching(names, argument.value)
        }
        case 'turn': {
          const artifacts = await artifactsOf(caller, given['name'])
          return matching([...new Set(artifacts.map(({ turn }) => String(turn)))], argument.value)
        }
        case 'path': {
          const artifacts = await artifactsOf(caller, given['name'])
          const paths = artifacts.filter(({ turn }) => given['turn'] === undefined || String(turn) === given['turn'])
          return matching([...new Set(paths.map(({ path }) => path))], argument.value)
        }
        default:
          throw new RpcError(RPC.invalidParams, `the templates have no variable ${JSON.stringify(argument.name)}`)
      }
    },
  }

  async function artifactsOf(caller: TokenCaller, name: string | undefined) {
    const entry = name === undefined ? null : await records.find(name as SessionName)
    if (entry === null || !coversRepo(caller, entry.repo)) return []
    return (await records.turns(entry.session.name)).flatMap((turn) => turn.artifacts).reverse()
  }
}

const TEMPLATES: readonly ResourceTemplate[] = [
  {
    uriTemplate: SESSION_TEMPLATE,
    name: 'session',
    title: 'A session',
    description:
      'State, question and turns of a session, as get_session gives them. Subscribe to it to be told of each move.',
    mimeType: 'application/json',
  },
  {
    uriTemplate: ARTIFACT_TEMPLATE,
    name: 'artifact',
    title: 'An artifact',
    description: 'A file that the agent handed back at the end of a turn.',
  },
]

/** The session itself, then its artifacts, those of the newest turn first. */
function resourcesOf(session: SessionRecord, turns: readonly TurnRecord[]): Resource[] {
  const artifacts = turns
    .flatMap((turn) => turn.artifacts.map((artifact) => ({ artifact, endedAt: turn.endedAt ?? turn.createdAt })))
    .sort((a, b) => b.artifact.turn - a.artifact.turn || (a.artifact.path < b.artifact.path ? -1 : 1))
  return [
    {
      uri: sessionUri(session.name),
      name: session.name,
      description: `Session ${session.name} of ${session.repo}: ${session.state}`,
      mimeType: 'application/json',
      annotations: { lastModified: new Date(session.updatedAt).toISOString() },
    },
    ...artifacts.map(({ artifact, endedAt }) => ({
      uri: artifactUri(session.name, artifact.turn, artifact.path),
      name: artifact.path,
      description: `From turn ${artifact.turn} of ${session.name}`,
      mimeType: mimeOf(artifact.contentType),
      size: artifact.size,
      annotations: { lastModified: new Date(endedAt).toISOString() },
    })),
  ]
}

function parsed(text: string): HangarUri {
  try {
    return parseHangarUri(text)
  } catch (error) {
    throw rpcErrorOf(error)
  }
}

function checkSize(size: number, uri: Extract<HangarUri, { kind: 'artifact' }>, services: Services): void {
  const limit = services.config.limits.inlineArtifactBytes
  if (size > limit)
    throw errors.tooLarge(
      `it has ${size} bytes, and an answer holds at most ${limit}; get it with: hangar session artifacts ${uri.name} --get ${uri.path}, ` +
        `or from ${services.publicUrl()}${artifactRestPath(uri.name, uri.turn, uri.path)} with the token as bearer`,
    )
}

function notFound(error: unknown, uri: string): unknown {
  if (error instanceof HangarError && error.code === 'not_found')
    return new RpcError(RPC.resourceNotFound, `there is no resource ${uri}`, { uri })
  return error
}

function matching(values: readonly string[], prefix: string): CompleteResult['completion'] {
  const all = values.filter((value) => value.startsWith(prefix))
  return { values: all.slice(0, MOST_VALUES), total: all.length, hasMore: all.length > MOST_VALUES }
}

interface Cursor {
  /** Of the session in the listing, and how many of its resources were given. */
  readonly key: string
  readonly skip: number
}

function writeCursor({ key, skip }: Cursor): string {
  return Buffer.from(`${key} ${skip}`).toString('base64url')
}

function readCursor(text: string): Cursor {
  const [, key = '', skip = ''] =
    /^(\d{15}\/[a-z0-9-]{1,63}) (\d{1,6})$/.exec(Buffer.from(text.slice(0, 200), 'base64url').toString()) ?? []
  if (key === '') throw new RpcError(RPC.invalidParams, 'the cursor is none that resources/list gave')
  return { key, skip: Number(skip) }
}
