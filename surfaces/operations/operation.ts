/** What one operation is: name, summary, input, scope and handler, defined once and mounted on every surface. */
import type { Readable } from 'node:stream'
import type { Static, TObject, TSchema } from '@sinclair/typebox'
import type { Config } from '../../domain/config.ts'
import { errors } from '../../domain/errors.ts'
import { coversRepo, type Scope, type TokenCaller } from '../../domain/grant.ts'
import type { Limits } from '../../domain/limits.ts'
import type { SessionName } from '../../domain/names.ts'
import type { Clock } from '../../domain/ports.ts'
import type { IdempotencyMark } from '../../domain/session.ts'
import type { Audit } from '../../gateway/audit.ts'
import type { Repositories } from '../../gateway/git/repositories.ts'
import type { Index, SessionEntry } from '../../gateway/state/index.ts'
import type { Tokens } from '../../gateway/tokens.ts'
import type { Credentials } from '../../gateway/upstream/credentials.ts'
import type { Upstreams } from '../../gateway/upstream/upstreams.ts'
import type { EnvironmentCheck } from '../../orchestrator/environment-check.ts'
import type { JobRecords } from '../../orchestrator/job-records.ts'
import type { Jobs } from '../../orchestrator/jobs.ts'
import type { SessionControl } from '../../orchestrator/session-control.ts'
import type { SessionDelivery } from '../../orchestrator/session-delivery.ts'
import type { SessionEvents } from '../../orchestrator/session-events.ts'
import type { SessionOut } from '../../orchestrator/session-out.ts'
import type { SessionRecords } from '../../orchestrator/session-records.ts'
import type { SessionSuspend } from '../../orchestrator/session-suspend.ts'
import type { Sessions } from '../../orchestrator/sessions.ts'
import type { Surface } from '../next-steps.ts'

/** The services that handlers work with. */
export interface Services {
  readonly config: Config
  readonly repositories: Repositories
  readonly upstreams: Upstreams
  readonly credentials: Credentials
  readonly index: Index
  readonly tokens: Tokens
  readonly audit: Audit
  readonly records: SessionRecords
  readonly sessions: Sessions
  readonly control: SessionControl
  readonly suspension: SessionSuspend
  readonly delivery: SessionDelivery
  readonly out: SessionOut
  readonly jobs: Jobs
  readonly jobRecords: JobRecords
  readonly events: SessionEvents
  /** Of an environment that there is. Throws what making a sandbox throws. */
  checkEnvironment(name: string): Promise<EnvironmentCheck>
  readonly clock: Clock
  /** The URL that people reach the server at, without a trailing slash. */
  publicUrl(): string
}

/** One call of an operation. */
export interface Call {
  readonly caller: TokenCaller
  /** Hints are in its words, and pages fit it. */
  readonly surface: Surface
  readonly services: Services
  /** Aborts when the caller goes away. */
  readonly signal: AbortSignal
  /** The caller's Idempotency-Key, when there is one. */
  readonly idempotency: IdempotencyMark | null
}

export type Reply =
  | { readonly kind: 'json'; readonly status: number; readonly body: unknown; readonly location?: string }
  | {
      readonly kind: 'bytes'
      readonly contentType: string
      readonly content: Uint8Array
      readonly download: string | null
    }
  | { readonly kind: 'stream'; readonly contentType: string; readonly content: Readable }
  | { readonly kind: 'empty' }

/** One artifact as `artifactView` shows it. */
export interface ArtifactLink {
  readonly path: string
  readonly turn: number
  readonly uri: string
  readonly size: number
  readonly content_type: string
}

/** What makes an operation an MCP tool: what a model must know beyond the summary, and how an answer that is no JSON is given. */
export interface ToolTraits<I extends TObject = TObject> {
  readonly title: string
  /** Follows the summary: when to use it, what comes next. */
  readonly advice: string
  /** The arguments of one call, shown in the description. */
  readonly example: Readonly<Record<string, unknown>>
  /** MCP's hints: it changes nothing; it may take something away; it may be repeated. */
  readonly effect: 'reads' | 'adds' | 'takes away'
  /** Every call with the same arguments is the same request, told apart by this field: a call that was cut off may be made again. */
  readonly idempotentBy?: string
  /** It waits for a turn of the session in `ref`; progress is told meanwhile. */
  readonly waits?: true
  /** The artifacts that a JSON answer tells of; they are linked as resources. */
  artifacts?(body: unknown): readonly ArtifactLink[]
  /** An answer of bytes is given as text when it is text; too large for that, it is refused with where else it is to be had. */
  readonly bytes?: {
    /** How many an answer holds at most. */
    limit(limits: Limits): number
    elsewhere(input: Static<I>): { readonly path: string; readonly command: string }
  }
}

export interface Operation<I extends TObject = TObject> {
  readonly name: string
  readonly summary: string
  /** What holds over REST only. */
  readonly restNote?: string
  readonly scope: Scope
  /** `{name}` parts are taken from the path; of a GET or DELETE the rest is the query, of others the body. */
  readonly method: 'get' | 'post' | 'delete'
  readonly path: string
  readonly input: I
  /** The shape of a JSON answer, with its status; null where the answer is no JSON. */
  readonly output: TSchema | null
  readonly status: number
  /** The content type where the answer is no JSON. */
  readonly contentType?: string
  /** The CLI command that does the same, after `hangar`; where a sentence names it, MCP names the tool. */
  readonly cli?: string
  /** Absent: it is no MCP tool. */
  readonly tool?: ToolTraits<I>
  handle(call: Call, input: Static<I>): Promise<Reply>
}

/** Infers the input's type for the handler. */
export function operation<I extends TObject>(definition: Operation<I>): Operation {
  return definition as unknown as Operation
}

/** The items that fit a model's context: over MCP a page is cut short, never below one item. */
export function fitPage<T>(surface: Surface, items: readonly T[]): readonly T[] {
  if (surface === 'rest') return items
  let bytes = 0
  const last = items.findIndex((item) => {
    bytes += JSON.stringify(item).length
    return bytes > MCP_PAGE_BYTES
  })
  return last === -1 ? items : items.slice(0, Math.max(1, last))
}

const MCP_PAGE_BYTES = 48 * 1024

export function json(status: number, body: unknown, location?: string): Reply {
  return location === undefined ? { kind: 'json', status, body } : { kind: 'json', status, body, location }
}

/** The session, if the caller's token covers its repo; else `not_found`, as if there were none. */
export async function sessionFor(call: Call, name: SessionName): Promise<SessionEntry> {
  const entry = await call.services.records.get(name)
  if (!coversRepo(call.caller, entry.repo))
    throw errors.notFound(`there is no session ${name}; hangar session list shows those there are`)
  return entry
}
