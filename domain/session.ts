/** A session and its turns, as their record in git holds them, and the moves that are allowed. */
import type { AskedQuestion, HarnessKind } from './harness.ts'
import type { Oid, RepoSlug, SessionName } from './names.ts'
import type { Budget, Usage } from './run-event.ts'

export type SessionState = 'creating' | 'idle' | 'running' | 'suspended' | 'closed' | 'failed'
export type TurnState = 'queued' | 'preparing' | 'running' | 'collecting' | 'repairing' | 'ended'
export type TurnOutcome = 'exited' | 'failed' | 'needs_input' | 'over_budget' | 'timed_out' | 'cancelled'

/** The session's sandbox and its grant: the grant ends when this field goes. Of the grant only a SHA-256 is kept. */
export interface SessionSandbox {
  readonly id: string
  readonly provider: string
  readonly grantHash: string
  readonly grantExpiresAt: number
  /** Whether its checkout was made. */
  readonly ready: boolean
}

/** The agent's conversation that a session's next turn goes on with. */
export interface SessionConversation {
  readonly harness: HarnessKind
  /** The program's own id of it. */
  readonly id: string
  /** What it has used in all by the program's own counters. */
  readonly cumulative: Usage
  /** Whether it is the parent session's, to be forked by the first turn. */
  readonly isParents: boolean
}

export interface SessionRecord {
  readonly name: SessionName
  readonly repo: RepoSlug
  readonly state: SessionState
  /** The commit that patches start from; null is the empty tree (a session that began unborn). */
  readonly baseCommit: Oid | null
  readonly harness: string
  readonly environment: string
  readonly parent: SessionName | null
  /** The parent's newest turn that it was forked after; absent or null without a parent. */
  readonly parentTurn?: number | null
  /** When that session was created: another one may have its name by now. */
  readonly parentCreatedAt?: number | null
  /** The Idempotency-Key of the request that forked it, and its siblings. */
  readonly idempotency?: IdempotencyMark | null
  /** Of a job's session: the command that verifies each turn, where the job was submitted with one; absent or null: its environment's. */
  readonly verify?: string | null
  readonly conversation: SessionConversation | null
  readonly budget: Budget
  readonly sandbox: SessionSandbox | null
  readonly needsInput: string | null
  readonly questionOptions: readonly string[]
  /** The newest turn's number; turns count from 1. */
  readonly turns: number
  readonly createdAt: number
  readonly updatedAt: number
}

export interface ArtifactEntry {
  readonly path: string
  readonly turn: number
  /** Bytes. */
  readonly size: number
  readonly contentType: string
  readonly sha256: string
}

/** SHA-256 (hex) of a caller's Idempotency-Key and of the body it came with. */
export interface IdempotencyMark {
  readonly key: string
  readonly body: string
}

export interface TurnRepair {
  /** What was wrong with the result. */
  readonly reason: string
  readonly startedAt: number
  /** Why the repair run itself came to nothing. */
  readonly failure: string | null
}

/** A verification of a turn's work: a command in its sandbox, after the agent. */
export interface Verification {
  /** As it may be shown. */
  readonly command: string
  /** The branch's commit that is verified. */
  readonly commit?: Oid | null
  readonly startedAt: number
  /** null while it runs. */
  readonly passed: boolean | null
  /** null while it runs, and where it was stopped. */
  readonly exitCode: number | null
  readonly seconds: number | null
  /** The end of what it printed, redacted. */
  readonly logTail: string
}

export interface TurnRecord {
  readonly turn: number
  readonly message: string
  /** The name of the token that sent the message; absent from records made before it was kept. */
  readonly requester?: string | null
  readonly state: TurnState
  readonly outcome: TurnOutcome | null
  readonly error: { readonly code: string; readonly message: string } | null
  readonly summary: string | null
  readonly result: unknown
  readonly resultError: string | null
  readonly artifacts: readonly ArtifactEntry[]
  readonly warnings: readonly string[]
  readonly question: string | null
  readonly questionOptions: readonly string[]
  readonly usage: Usage | null
  readonly repairUsage: Usage | null
  /** The one repair of a missing or invalid result. */
  readonly repair: TurnRepair | null
  /** Of a job's turn, when its agent ended well; absent from records made before there were jobs. */
  readonly verification?: Verification | null
  /** Of a job's turn: why its branch does not hold the agent's work, so that it cannot be delivered; absent or null: it does. */
  readonly notOnBranch?: string | null
  /** The commit that the hand-over asked for; null when nothing was handed over. */
  readonly requestedCommit: Oid | null
  /** The commit that the turn really started on. */
  readonly actualCommit: Oid | null
  /** The work branch after the turn. */
  readonly headCommit: Oid | null
  readonly checkpoint: Oid | null
  /** The agent's conversation as the turn left it, and the sealed ref's commit with it: what a fork from this turn begins with. */
  readonly conversation?: SessionConversation | null
  readonly sealed?: Oid | null
  /** What was handed in, as a checkpoint. */
  readonly contextCommit: Oid | null
  /** Attachments by name: in the record's tree under `turns/<n>/in/`. */
  readonly attachments: readonly string[]
  readonly urls: readonly string[]
  /** Patches by place: `turns/<n>/patches/<place>.patch`. */
  readonly patches: number
  readonly outputSchema: unknown
  readonly timeoutMs: number
  /** What the message itself asked for; absent from records made before it was kept. */
  readonly ownBudget?: Partial<Budget>
  /** What the turn may use; of a job's turn that is worked on, what was left of the job's budget when that began. */
  readonly budget: Budget
  /** Set before the stop signal is sent, so that a restart knows why the turn died. */
  readonly stopReason: 'cancelled' | 'timed_out' | 'over_budget' | null
  /** Which limit was passed, and by how much. */
  readonly stopDetail: string | null
  /** Whether its conversation is a new one that was handed a summary of the turns before. */
  readonly handedOff: boolean
  /** A question that the agent put by a tool of its program's own. */
  readonly asked: AskedQuestion | null
  readonly exitCode: number | null
  /** The Idempotency-Key of the request that sent the message. */
  readonly idempotency: IdempotencyMark | null
  readonly createdAt: number
  readonly startedAt: number | null
  readonly endedAt: number | null
}
