/** What one operation is: name, summary, input, scope and handler, defined once and mounted on every surface. */
import type { Readable } from 'node:stream'
import type { Static, TObject, TSchema } from '@sinclair/typebox'
import type { Config } from '../../domain/config.ts'
import { errors } from '../../domain/errors.ts'
import { coversRepo, type Scope, type TokenCaller } from '../../domain/grant.ts'
import type { SessionName } from '../../domain/names.ts'
import type { Clock } from '../../domain/ports.ts'
import type { IdempotencyMark } from '../../domain/session.ts'
import type { Repositories } from '../../gateway/git/repositories.ts'
import type { Index, SessionEntry } from '../../gateway/state/index.ts'
import type { Tokens } from '../../gateway/tokens.ts'
import type { SessionControl } from '../../orchestrator/session-control.ts'
import type { SessionEvents } from '../../orchestrator/session-events.ts'
import type { SessionOut } from '../../orchestrator/session-out.ts'
import type { SessionRecords } from '../../orchestrator/session-records.ts'
import type { Sessions } from '../../orchestrator/sessions.ts'

/** The services that handlers work with. */
export interface Services {
  readonly config: Config
  readonly repositories: Repositories
  readonly index: Index
  readonly tokens: Tokens
  readonly records: SessionRecords
  readonly sessions: Sessions
  readonly control: SessionControl
  readonly out: SessionOut
  readonly events: SessionEvents
  readonly clock: Clock
  /** The URL that people reach the server at, without a trailing slash. */
  publicUrl(): string
}

/** One call of an operation. */
export interface Call {
  readonly caller: TokenCaller
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

export interface Operation<I extends TObject = TObject> {
  readonly name: string
  readonly summary: string
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
  handle(call: Call, input: Static<I>): Promise<Reply>
}

/** Infers the input's type for the handler. */
export function operation<I extends TObject>(definition: Operation<I>): Operation {
  return definition as unknown as Operation
}

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
