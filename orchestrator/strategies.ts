/** Which of a job's attempts is the best: those that pass come first, then what a judge says, else the smallest difference. Pure. */
import type { DiffSize } from '../domain/job.ts'
import { parseShape } from '../domain/schema.ts'
import type { TurnRecord } from '../domain/session.ts'
import { type Verdict, VerdictShape } from '../domain/verdict.ts'

/** An attempt that has ended. */
export interface EndedAttempt {
  readonly attempt: number
  /** Its newest turn; null when its session is gone. */
  readonly turn: TurnRecord | null
  readonly diff: DiffSize | null
}

export interface RankedAttempt {
  readonly attempt: number
  /** From 1. */
  readonly rank: number
  readonly reason: string
}

/** Whether an attempt's work may be delivered: its agent ended well, and nothing that verified it failed. */
export function passes({ turn }: Pick<EndedAttempt, 'turn'>): boolean {
  if (turn?.outcome !== 'exited' || (turn.notOnBranch ?? null) !== null) return false
  return (turn.verification ?? null) === null || turn.verification?.passed === true
}

/** All attempts in order, each with its reason; a verdict on attempts that did not pass, or that there are not, is left out. */
export function rankAttempts(attempts: readonly EndedAttempt[], verdict: Verdict | null): RankedAttempt[] {
  const judged = new Map(verdict?.ranking.map(({ attempt, reason }, place) => [attempt, { reason, place }]))
  const placeOf = ({ attempt }: EndedAttempt) => judged.get(attempt)?.place ?? Number.MAX_SAFE_INTEGER
  const sizeOf = ({ diff }: EndedAttempt) =>
    diff === null ? Number.MAX_SAFE_INTEGER : diff.insertions + diff.deletions
  const ordered = [...attempts].sort(
    (a, b) =>
      Number(passes(b)) - Number(passes(a)) ||
      placeOf(a) - placeOf(b) ||
      sizeOf(a) - sizeOf(b) ||
      a.attempt - b.attempt,
  )
  return ordered.map((entry, at) => ({
    attempt: entry.attempt,
    rank: at + 1,
    reason: reasonOf(entry, judged.get(entry.attempt)?.reason ?? null),
  }))
}

function reasonOf(entry: EndedAttempt, judged: string | null): string {
  const { turn, diff } = entry
  if (turn === null) return 'its session is gone'
  if (turn.outcome !== 'exited')
    return `it ended ${turn.outcome ?? turn.state}${turn.error === null ? '' : `: ${turn.error.message}`}`
  if (turn.notOnBranch != null) return `its work is not on its branch: ${turn.notOnBranch}`
  const verification = turn.verification ?? null
  if (verification !== null && verification.passed !== true)
    return verification.exitCode === null
      ? 'its verification did not end'
      : `its verification failed with exit status ${verification.exitCode}`
  const passed = verification === null ? 'nothing verified it' : 'its verification passed'
  if (judged !== null) return `${passed}; the judge: ${judged}`
  return diff === null
    ? passed
    : `${passed}; ${diff.insertions + diff.deletions} changed line(s) in ${diff.files} file(s)`
}

/** A judge's result as a verdict; null when it is none. */
export function verdictOf(result: unknown): Verdict | null {
  try {
    return parseShape(VerdictShape, result, 'the verdict')
  } catch {
    return null
  }
}

/** What a judge is asked; the attempts' changes lie beside it as files. */
export function judgePrompt(input: {
  readonly instructions: string
  readonly judge: string
  readonly attempts: readonly { readonly attempt: number; readonly file: string; readonly summary: string | null }[]
}): string {
  const list = input.attempts.map(
    ({ attempt, file, summary }) =>
      `- attempt ${attempt}, its change in ${file}${summary === null ? '' : `. It says of itself: ${summary.slice(0, 2_000)}`}`,
  )
  return `Several attempts were made at one piece of work; all of them pass its verification. Rank them, the best first, with a reason of one or two
sentences each. Change nothing in the repository.

## The work

${input.instructions.trim()}

## What to look at

${input.judge.trim()}

## The attempts

${list.join('\n')}
`
}

/** What an agent is told whose work failed its verification. */
export function repairMessage(turn: TurnRecord): string {
  if (turn.notOnBranch != null)
    return `Your work could not be put on its branch, and is not delivered so: ${turn.notOnBranch}

Mend that, commit, and end.
`
  const { command = '', exitCode = null, logTail = '' } = turn.verification ?? {}
  const how = exitCode === null ? 'did not end in time' : `failed with exit status ${exitCode}`
  return `Your work was verified, and the verification ${how}. Mend what it shows, and end; it is verified once more.

The command:

\`\`\`sh
${command}
\`\`\`

The end of its output:

\`\`\`
${logTail}
\`\`\`
`
}
