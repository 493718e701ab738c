/** How a job's attempts stand, read from their sessions: who is at work, what they used, what has ended. */
import type { DiffSize, JobAttempt, JobRecord } from '../domain/job.ts'
import { EMPTY_TREE, jobOf, judgedJob, judgeSession, type SessionName } from '../domain/names.ts'
import type { Budget, Usage } from '../domain/run-event.ts'
import { sumUsage } from '../domain/run-event.ts'
import type { SessionRecord, TurnRecord } from '../domain/session.ts'
import { changedFiles } from '../gateway/git/diff.ts'
import { countedTokens, overlay, type PassedLimit, passedLimit, passedSentence } from './budget.ts'
import type { JobRecords } from './job-records.ts'
import type { SessionEvents } from './session-events.ts'
import type { SessionRecords } from './session-records.ts'

/** An attempt with its session as it is now; both null when that is gone. */
export interface Standing {
  readonly attempt: JobAttempt
  readonly session: SessionRecord | null
  /** Its newest turn. */
  readonly turn: TurnRecord | null
  /** The oldest that has not ended: the one that runs, or waits to. */
  readonly current: TurnRecord | null
}

export interface AttemptServices {
  readonly records: SessionRecords
  readonly events: SessionEvents
  readonly clock: { now(): number }
}

/** The attempts whose work counts from now on: all while none is chosen. */
export function countingAttempts(job: JobRecord): readonly JobAttempt[] {
  return job.chosen === null ? job.attempts : job.attempts.filter(({ attempt }) => attempt === job.chosen)
}

/** The session whose conversation a follow-up goes on with; null while several attempts are at work. */
export function chosenSession(job: JobRecord): SessionName | null {
  const counting = countingAttempts(job)
  return counting.length === 1 ? (counting[0]?.session ?? null) : null
}

export async function standingOf(attempt: JobAttempt, { records }: AttemptServices): Promise<Standing> {
  const entry = await records.find(attempt.session)
  if (entry === null) return { attempt, session: null, turn: null, current: null }
  const turns = await records.turns(attempt.session)
  return {
    attempt,
    session: entry.session,
    turn: turns.at(-1) ?? null,
    current: turns.find(({ state }) => state !== 'ended') ?? null,
  }
}

/** Whether nothing of the attempt is at work or waits. */
export function isEnded({ current }: Standing): boolean {
  return current === null
}

/** Whether the agent of its turn has ended and a command verifies the work. */
export function isVerifying({ current }: Standing): boolean {
  return (current?.verification ?? null) !== null
}

/** What all turns of a job used so far, and how long they ran, in minutes. */
export interface Spent {
  readonly usage: Usage
  readonly minutes: number
}

export async function spentBy(job: JobRecord, services: AttemptServices): Promise<Spent> {
  const names = [...job.attempts.map(({ session }) => session), judgeSession(job.id)]
  const turns = await Promise.all(
    names.map(async (name) => (await services.records.turns(name)).map((turn) => ({ name, turn }))),
  )
  const usages: Usage[] = []
  let minutes = 0
  for (const { name, turn } of turns.flat()) {
    if (turn.startedAt !== null) minutes += ((turn.endedAt ?? services.clock.now()) - turn.startedAt) / 60_000
    if (turn.state === 'ended') usages.push(...[turn.usage, turn.repairUsage].filter((usage) => usage !== null))
    else if (turn.state !== 'queued') {
      const live = await services.events.usageOf(name, turn.turn)
      if (live !== null) usages.push(live)
    }
  }
  return { usage: sumUsage(usages), minutes }
}

/** The whole job's budget: what it was submitted with, and over that what each of its further messages brought, up to this turn. */
export async function jobBudget(
  job: JobRecord,
  { records }: Pick<AttemptServices, 'records'>,
  upTo = Number.POSITIVE_INFINITY,
): Promise<Budget> {
  const session = chosenSession(job)
  const turns = session === null ? [] : (await records.turns(session)).filter(({ turn }) => turn <= upTo)
  return turns.reduce((budget, { ownBudget }) => overlay(budget, ownBudget ?? {}), job.budget)
}

/** The limit of the job's budget that was passed; null when none was. */
export function passedBudget(budget: Budget, { usage, minutes }: Spent): PassedLimit | null {
  const passed = passedLimit(budget, usage)
  if (passed !== null || budget.maxMinutes === null || minutes <= budget.maxMinutes) return passed
  return { limit: 'max_minutes', allowed: budget.maxMinutes, reached: minutes }
}

/** What is left of the job's budget for one more turn; null when nothing is. */
export function remainingBudget(budget: Budget, { usage, minutes }: Spent): Budget | null {
  const counted = countedTokens(usage)
  const left = {
    maxMinutes: budget.maxMinutes === null ? null : budget.maxMinutes - minutes,
    maxTokens: budget.maxTokens === null ? null : budget.maxTokens - counted,
    maxCostUsd: budget.maxCostUsd === null ? null : budget.maxCostUsd - (usage.costUsd ?? 0),
  }
  return Object.values(left).some((value) => value !== null && value <= 0) ? null : left
}

/**
 * What a turn that is about to be worked on may use: its own budget, or of a job's turn what the turns before it, and other attempts, have left
 * of the job's. A sentence when that is nothing.
 */
export async function turnBudget(
  name: SessionName,
  turn: TurnRecord,
  services: AttemptServices & { readonly jobs: Pick<JobRecords, 'find'> },
): Promise<Budget | string> {
  const id = jobOf(name)?.id ?? judgedJob(name)
  const job = id === null ? null : await services.jobs.find(id)
  if (job === null) return turn.budget
  const budget = await jobBudget(job, services, turn.turn)
  const spent = await spentBy(job, services)
  const passed = passedBudget(budget, spent)
  return (
    remainingBudget(budget, spent) ?? `of the whole job: ${passed === null ? NOTHING_LEFT : passedSentence(passed)}`
  )
}

const NOTHING_LEFT = 'the turns before have used its budget; go on with a larger one in the next message'

/** How much an attempt changes, by its branch; null while it has none. */
export async function diffOf({ session, turn }: Standing, { records }: AttemptServices): Promise<DiffSize | null> {
  if (session === null || turn?.headCommit == null) return null
  const repo = await records.repository(session.name)
  const files = await changedFiles(repo, session.baseCommit ?? EMPTY_TREE, turn.headCommit)
  return {
    files: files.length,
    insertions: files.reduce((sum, { additions }) => sum + (additions ?? 0), 0),
    deletions: files.reduce((sum, { deletions }) => sum + (deletions ?? 0), 0),
  }
}
