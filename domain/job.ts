/** A job as its record in git holds it, and the one table of its moves. */
import { errors } from './errors.ts'
import type { JobId, Oid, RefName, RepoSlug, SessionName } from './names.ts'
import type { Budget } from './run-event.ts'
import type { IdempotencyMark } from './session.ts'

export const JOB_STATES = [
  'awaiting_approval',
  'queued',
  'running',
  'verifying',
  'delivering',
  'needs_input',
  'succeeded',
  'failed',
  'cancelled',
  'over_budget',
  'timed_out',
  'rejected',
] as const
export type JobState = (typeof JOB_STATES)[number]

/** What happens to a job. */
export const JOB_EVENTS = [
  'approve',
  'reject',
  /** The first of its turns is being prepared. */
  'start',
  /** The agent has ended, its verification runs. */
  'verify',
  /** An agent is at work again: it was given its failing verification, or asked once more. */
  'work',
  /** The agent waits for an answer. */
  'ask',
  'deliver',
  /** A delivery that failed is asked for once more. */
  'redeliver',
  'succeed',
  'fail',
  'exceed_budget',
  'time_out',
  'cancel',
  /** A further message came. */
  'follow_up',
] as const
export type JobEvent = (typeof JOB_EVENTS)[number]

/** Where each event takes a job from each state; what is not here is refused. */
const MOVES: Readonly<Record<JobState, Partial<Record<JobEvent, JobState>>>> = {
  awaiting_approval: { approve: 'queued', reject: 'rejected', cancel: 'cancelled' },
  queued: {
    start: 'running',
    fail: 'failed',
    exceed_budget: 'over_budget',
    time_out: 'timed_out',
    cancel: 'cancelled',
    ask: 'needs_input',
    follow_up: 'queued',
  },
  running: {
    verify: 'verifying',
    deliver: 'delivering',
    ask: 'needs_input',
    fail: 'failed',
    exceed_budget: 'over_budget',
    time_out: 'timed_out',
    cancel: 'cancelled',
    follow_up: 'running',
  },
  verifying: {
    work: 'running',
    deliver: 'delivering',
    ask: 'needs_input',
    fail: 'failed',
    exceed_budget: 'over_budget',
    time_out: 'timed_out',
    cancel: 'cancelled',
    follow_up: 'running',
  },
  delivering: { succeed: 'succeeded', fail: 'failed', cancel: 'cancelled', follow_up: 'queued' },
  needs_input: { follow_up: 'queued', cancel: 'cancelled', exceed_budget: 'over_budget' },
  succeeded: { follow_up: 'queued' },
  failed: { follow_up: 'queued', redeliver: 'delivering' },
  cancelled: { follow_up: 'queued' },
  over_budget: { follow_up: 'queued' },
  timed_out: { follow_up: 'queued' },
  rejected: {},
}

/** The state that the event takes a job to; null when a job in that state refuses it. */
export function jobMove(from: JobState, event: JobEvent): JobState | null {
  return MOVES[from][event] ?? null
}

/** Throws `conflict` with what can be done instead. */
export function moveJob(id: JobId, from: JobState, event: JobEvent): JobState {
  const to = jobMove(from, event)
  if (to === null) throw errors.conflict(refusal(id, from, event))
  return to
}

const PHRASES: Readonly<Partial<Record<JobEvent, string>>> = {
  approve: 'approved',
  reject: 'rejected',
  cancel: 'cancelled',
  follow_up: 'sent a message',
  redeliver: 'delivered again',
}

function refusal(id: JobId, from: JobState, event: JobEvent): string {
  const what = PHRASES[event] ?? `moved by ${event}`
  if (from === 'rejected') return `job ${id} was rejected and cannot be ${what}; submit another job`
  if (event === 'approve' || event === 'reject')
    return `job ${id} is ${from} and waits for no approval, so it cannot be ${what}; see: hangar job show ${id}`
  if (from === 'awaiting_approval')
    return `job ${id} waits for approval and cannot be ${what}; approve it first: hangar job approve ${id}`
  if (event === 'redeliver')
    return `job ${id} is ${from}, and no delivery of it has failed, so it cannot be ${what}; see: hangar job show ${id}`
  if (event === 'cancel')
    return `job ${id} is ${from} already, so there is nothing to cancel; go on with: hangar job follow-up ${id} "…"`
  return `job ${id} is ${from} and cannot be ${what}; see: hangar job show ${id}`
}

/** Whether it failed at nothing but its delivery, which can be tried again as it is. */
export function failedToDeliver({ state, timeline }: JobRecord): boolean {
  return state === 'failed' && timeline.at(-2)?.state === 'delivering'
}

/** Whether nothing happens to the job until somebody acts. `needs_input` waits as well, and is not an end. */
export function isAtRest(state: JobState): boolean {
  return jobMove(state, 'start') === null && jobMove(state, 'fail') === null
}

export type JobStrategy = 'single' | 'best_of_n'

/** One attempt: a session. What became of it is in the session's own record. */
export interface JobAttempt {
  /** From 1. */
  readonly attempt: number
  readonly session: SessionName
  /** 1 is the best; null while it is not decided, and of a single attempt. */
  readonly rank: number | null
  /** Why it has that rank. */
  readonly reason: string | null
  /** The newest turn that the job's state takes into account. */
  readonly handled: number
  /** The difference to the base when it was ranked; null before. */
  readonly diff: DiffSize | null
}

export interface DiffSize {
  readonly files: number
  readonly insertions: number
  readonly deletions: number
}

export interface JobDelivery {
  readonly branch: RefName
  readonly commit: Oid
  /** Whether it went to an upstream; a hosted repo's branch is the delivery itself. */
  readonly pushed: boolean
  readonly pullRequestUrl: string | null
}

export interface TimelineEntry {
  readonly at: number
  readonly state: JobState
  readonly text: string
}

export interface JobRecord {
  readonly id: JobId
  readonly repo: RepoSlug
  readonly state: JobState
  /** Why it is in that state, in a sentence; null where the state says it all. */
  readonly stateReason: string | null
  readonly instructions: string
  /** Who asked: the name of a token, or of a person as a trigger knows it. */
  readonly requester: string | null
  /** Where it came from: `rest`, `mcp`, `cli`, or the kind of a trigger. */
  readonly source: string
  readonly environment: string
  /** The branch, tag or commit that it began on; null: the default branch. */
  readonly ref: string | null
  readonly strategy: JobStrategy
  readonly n: number
  /** The command that was asked for with the job; null: its environment's. */
  readonly verify: string | null
  readonly outputSchema: unknown
  /** Of all its turns together. */
  readonly budget: Budget
  /** Of each turn; null: the environment's. */
  readonly timeoutMs: number | null
  /** Where callbacks go: the origin alone, since path and query of such URLs are often secrets; null: nowhere. */
  readonly callbackUrl: string | null
  /** The whole URL, sealed, in base64. Jobs of earlier servers lack it, and have the URL itself above. */
  readonly callbackSealed?: string | null
  /** So many of its callbacks are done with, from the first on, and not in its outbox any more. */
  readonly callbacksTold?: number
  readonly attempts: readonly JobAttempt[]
  /** The attempt whose work counts: of a single one itself, else the best one, once that is decided. */
  readonly chosen: number | null
  readonly delivery: JobDelivery | null
  /** What a person saw upstream and wants replaced by the delivery that is under way; any move ends it. */
  readonly replaces?: Oid | null
  /** Things that went wrong and did not end the job. */
  readonly warnings: readonly string[]
  readonly timeline: readonly TimelineEntry[]
  readonly idempotency: IdempotencyMark | null
  readonly createdAt: number
  readonly updatedAt: number
}
