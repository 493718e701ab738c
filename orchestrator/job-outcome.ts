/** What a job does about how its attempts ended: its move, which attempt is chosen, and which turns were repairs. Pure. */
import type { JobEvent } from '../domain/job.ts'
import type { TurnRecord } from '../domain/session.ts'
import { isEnded, type Standing } from './job-attempts.ts'
import type { JobMove } from './job-records.ts'
import { passes, type RankedAttempt } from './strategies.ts'

const REPAIR_KEY = 'verify-'

/** The idempotency key of the message that gives the turn's failing verification back: known again after a crash. */
export function repairKey({ turn }: Pick<TurnRecord, 'turn'>): string {
  return `${REPAIR_KEY}${turn}`
}

/** How many of the newest turns were to mend a failing verification. */
export function repairsOf(turns: readonly TurnRecord[]): number {
  return [...turns].reverse().findIndex((turn) => !isRepair(turn))
}

/** Whether the turn was to mend a failing verification. */
export function isRepair({ idempotency }: TurnRecord): boolean {
  return idempotency?.key.startsWith(REPAIR_KEY) === true
}

/** What becomes of a job whose one attempt ended so. */
export function outcomeMove(turn: TurnRecord | null): Pick<JobMove, 'event' | 'text' | 'isReason'> {
  if (turn === null) return { event: 'fail', text: 'its session is gone', isReason: true }
  const said = turn.error?.message ?? null
  const because = (event: JobEvent, text: string) => ({ event, text, isReason: true })
  switch (turn.outcome) {
    case 'exited': {
      if (passes({ turn })) return { event: 'deliver', text: 'the work is being delivered' }
      if (turn.notOnBranch != null) return because('fail', `its work is not on its branch: ${turn.notOnBranch}`)
      const verification = turn.verification ?? null
      return because(
        'fail',
        verification?.exitCode == null
          ? 'the verification did not end'
          : `the verification failed with exit status ${verification.exitCode}`,
      )
    }
    case 'needs_input':
      return because('ask', turn.question ?? 'the agent asks')
    case 'over_budget':
      return because('exceed_budget', said ?? 'the budget was passed')
    case 'timed_out':
      return because('time_out', said ?? 'the turn took too long')
    case 'cancelled':
      return because('cancel', 'its turn was cancelled')
    default:
      return because('fail', said ?? 'the agent failed')
  }
}

/** The best that passes; where none does, one that asks, which a person can answer, else the first in rank. */
export function chosenOf(
  ranking: readonly RankedAttempt[],
  ended: readonly { readonly attempt: number; readonly turn: TurnRecord | null }[],
): number {
  const turnOf = (attempt: number) => ended.find((entry) => entry.attempt === attempt)?.turn ?? null
  const first = ranking[0]?.attempt ?? 1
  if (passes({ turn: turnOf(first) })) return first
  return ranking.find(({ attempt }) => turnOf(attempt)?.outcome === 'needs_input')?.attempt ?? first
}

/** What becomes of a job of several attempts of which none passed. */
export function nonePassed(
  turns: readonly (TurnRecord | null)[],
  chosen: TurnRecord | null,
  ranking: readonly RankedAttempt[],
): Pick<JobMove, 'event' | 'text' | 'isReason'> {
  const each = [...ranking]
    .sort((a, b) => a.attempt - b.attempt)
    .map(({ attempt, reason }) => `attempt ${attempt}: ${reason}`)
    .join('; ')
  if (chosen?.outcome === 'needs_input') return outcomeMove(chosen)
  const all = (outcome: TurnRecord['outcome']) => turns.every((turn) => turn?.outcome === outcome)
  const event: JobEvent = turns.some((turn) => turn?.outcome === 'over_budget')
    ? 'exceed_budget'
    : all('timed_out')
      ? 'time_out'
      : all('cancelled')
        ? 'cancel'
        : 'fail'
  return { event, text: `no attempt passed: ${each}`, isReason: true }
}

/** An attempt that was still at work when the answer was certain. */
export function stoppedReason(ranked: RankedAttempt, standings: readonly Standing[]): RankedAttempt {
  const standing = standings.find(({ attempt }) => attempt.attempt === ranked.attempt)
  if (standing === undefined || standing.session === null || isEnded(standing)) return ranked
  return { ...ranked, reason: 'it was still at work when another attempt had passed, and was stopped' }
}
