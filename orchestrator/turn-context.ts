/** What the steps of a turn share: the services they work with, and small questions about the turn they work on. */
import type { Harness } from '../domain/harness.ts'
import type { Limits } from '../domain/limits.ts'
import type { Metrics } from '../domain/metrics.ts'
import type { RepoSlug, SessionName } from '../domain/names.ts'
import type { Clock, Log } from '../domain/ports.ts'
import type { Redactor } from '../domain/redact.ts'
import type { PriceTable, RunEventBody } from '../domain/run-event.ts'
import type { Provider, SandboxRef, SandboxSpec } from '../domain/sandbox.ts'
import type { SessionRecord, TurnRecord } from '../domain/session.ts'
import type { ArtifactStore } from '../exchange/artifacts.ts'
import type { ConversationStore } from '../exchange/conversation-state.ts'
import type { ResultChecker } from '../exchange/result-schema.ts'
import type { Repository } from '../gateway/git/repository.ts'
import type { Grants } from '../gateway/grants.ts'
import type { Index } from '../gateway/state/index.ts'
import type { Upstreams } from '../gateway/upstream/upstreams.ts'
import { passedSentence } from './budget.ts'
import type { JobRecords } from './job-records.ts'
import type { SessionEvents } from './session-events.ts'
import type { SessionRecords } from './session-records.ts'
import type { SetupCache } from './setup-cache.ts'

/** Settings of the environment that a session was made with, as far as turns need them. */
export interface TurnEnvironment extends Pick<SandboxSpec, 'gatewayUrl' | 'image' | 'limits' | 'egress'> {
  readonly env: Readonly<Record<string, string>>
  /** A script for fresh sandboxes, with variables of its own; null: none. */
  readonly setup: string | null
  readonly setupSecrets: Readonly<Record<string, string>>
  /** Variables of the agent's own runs alone. */
  readonly secrets: Readonly<Record<string, string>>
  /** Of untracked files in a checkpoint. */
  readonly maxUntrackedBytes: number
  readonly path: readonly string[]
  readonly mounts: readonly string[]
  readonly provider: Provider
  readonly harness: Harness
  /** What could not be taken of it, for the turn's warnings. */
  readonly warnings: readonly string[]
  /** The command that verifies the turns of jobs, where the job has none of its own; null: none. */
  readonly verify: string | null
  /** How long an idle session keeps its sandbox; null: for ever. */
  readonly idleSuspendMs: number | null
  /** The model that the agent is told to use; null: its program's own choice. */
  readonly model: string | null
}

export interface TurnServices {
  readonly records: SessionRecords
  readonly events: SessionEvents
  readonly jobs: Pick<JobRecords, 'find'>
  readonly index: Index
  readonly grants: Grants
  readonly upstreams: Pick<Upstreams, 'of'>
  /** Further repos that sandboxes of the repo's sessions may read. */
  mayRead(repo: RepoSlug): readonly RepoSlug[]
  readonly artifacts: ArtifactStore
  readonly conversations: ConversationStore
  readonly setups: SetupCache
  readonly prices: PriceTable
  readonly results: ResultChecker
  /** Throws `harness_unusable` when the environment is not configured any more. */
  environment(name: string): TurnEnvironment
  /** Takes known secrets out of all that leaves a sandbox. */
  readonly redactor: Redactor
  /** An event as it may be shown: redacted and clipped. */
  redactEvent(body: RunEventBody): RunEventBody
  readonly limits: Limits
  readonly metrics: Metrics
  readonly clock: Clock
  /** Milliseconds from some moment on, by a clock that nobody sets. */
  elapsed(): number
  readonly log: Log
  readonly exclusive: Exclusive
  newSandboxId(session: SessionName): string
}

/** Work on a session's sandbox that must not overlap: one at a time per session, in order. */
export type Exclusive = <T>(name: SessionName, work: () => Promise<T>) => Promise<T>

export function createExclusive(): Exclusive {
  const last = new Map<SessionName, Promise<unknown>>()
  return async (name, work) => {
    const mine = (last.get(name) ?? Promise.resolve()).catch(() => {}).then(work)
    last.set(name, mine)
    try {
      return await mine
    } finally {
      if (last.get(name) === mine) last.delete(name)
    }
  }
}

/** Which turn: all that is needed to write its record. */
export interface TurnPlace {
  readonly name: SessionName
  readonly number: number
  readonly repo: Repository
  readonly slug: RepoSlug
}

/** One turn being worked on. */
export interface TurnAt extends TurnPlace {
  readonly environment: TurnEnvironment
  /** Aborts when the turn is to be stopped, or the server closes. */
  readonly signal: AbortSignal
}

/**
 * The runs of one turn: the agent's own, that of a new conversation when the program refused to go on with the old one, and the one repair
 * of its result, and of a job's turn the verification. Each key is the run's idempotency key at every layer.
 */
export function runKeys(turn: number): {
  readonly main: string
  readonly handedOff: string
  readonly repair: string
  readonly verify: string
} {
  return { main: `${turn}-1`, handedOff: `${turn}-2`, repair: `${turn}-3`, verify: `${turn}-4` }
}

export function sandboxRef(session: SessionRecord): SandboxRef | null {
  return session.sandbox === null ? null : { provider: session.sandbox.provider, id: session.sandbox.id }
}

/** Milliseconds that the turn may run, and which limit says so, in a sentence too. */
export interface Deadline {
  readonly ms: number
  readonly reason: 'timed_out' | 'over_budget'
  /** By the milliseconds that it ran. */
  readonly detail: (ranMs: number) => string
}

export function deadlineOf(turn: TurnRecord): Deadline {
  const { maxMinutes } = turn.budget
  const minutes = (ms: number) => Math.round((ms / 60_000) * 100) / 100
  if (maxMinutes !== null && maxMinutes * 60_000 <= turn.timeoutMs)
    return {
      ms: maxMinutes * 60_000,
      reason: 'over_budget',
      detail: (ranMs) => {
        const reached = Math.max(maxMinutes, ranMs / 60_000)
        return passedSentence({ limit: 'max_minutes', allowed: maxMinutes, reached })
      },
    }
  return {
    ms: turn.timeoutMs,
    reason: 'timed_out',
    detail: () =>
      `the turn had not ended after ${minutes(turn.timeoutMs)} minute(s); go on with a longer timeout_minutes in the next message`,
  }
}
