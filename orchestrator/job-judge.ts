/** A judge ranks the attempts of a job that pass: one turn of the same agent program, in a session of its own. */
import type { JobSettings } from '../domain/environment.ts'
import { HangarError } from '../domain/errors.ts'
import type { JobRecord } from '../domain/job.ts'
import { EMPTY_TREE, judgeSession } from '../domain/names.ts'
import { type Verdict, VerdictShape } from '../domain/verdict.ts'
import { diffTrees } from '../gateway/git/diff.ts'
import { type AttemptServices, remainingBudget, spentBy } from './job-attempts.ts'
import type { SessionControl } from './session-control.ts'
import type { Sessions } from './sessions.ts'
import { type EndedAttempt, judgePrompt, verdictOf } from './strategies.ts'

export interface Judgement {
  /** null: the attempts are ranked without one. */
  readonly verdict: Verdict | null
  /** Why there is none, where there should be. */
  readonly warning: string | null
}

export interface JobJudge {
  /** What the judge says of the attempts that pass; begins the judge's turn where there is none yet. Safe to repeat. */
  verdict(job: JobRecord, passing: readonly EndedAttempt[]): Promise<Judgement | 'waiting'>
}

export interface JobJudgeDeps extends AttemptServices {
  readonly sessions: Pick<Sessions, 'createHeld' | 'release'>
  readonly control: Pick<SessionControl, 'close'>
  settings(environment: string): JobSettings
}

/** Of all attempts' changes together, as they are handed to a judge. */
const MAX_DIFFS_BYTES = 1_500_000
/** A change larger than this is not read at all. */
const MAX_DIFF_BYTES = 64 * 1_048_576

export function createJobJudge(deps: JobJudgeDeps): JobJudge {
  const { records, sessions } = deps
  return {
    verdict: async (job, passing) => {
      const { judge } = deps.settings(job.environment)
      if (judge === null || passing.length < 2) return { verdict: null, warning: null }
      const name = judgeSession(job.id)
      const entry = await records.find(name)
      if (entry === null) {
        if (remainingBudget(job.budget, await spentBy(job, deps)) === null)
          return { verdict: null, warning: 'the budget left nothing for the judge; the smallest difference won' }
        try {
          await sessions.createHeld({ ...(await judgesWork(job, passing, judge)), budget: {} }, [name])
        } catch (error) {
          if (!(error instanceof HangarError) || error.status >= 500) throw error
          return { verdict: null, warning: `there was no judge: ${error.message}` }
        }
      }
      await sessions.release(name)
      const turn = (await records.turns(name)).at(-1)
      if (turn?.state !== 'ended') return 'waiting'
      await deps.control.close(name)
      const verdict = turn.outcome === 'exited' ? verdictOf(turn.result) : null
      if (verdict !== null) return { verdict, warning: null }
      const why = turn.error?.message ?? turn.resultError ?? `its turn ended ${turn.outcome ?? ''}`
      return { verdict: null, warning: `the judge gave no verdict (${why}); the smallest difference won` }
    },
  }

  async function judgesWork(job: JobRecord, passing: readonly EndedAttempt[], judge: string) {
    const share = Math.floor(MAX_DIFFS_BYTES / passing.length)
    const files = await Promise.all(
      passing.map(async (attempt) => ({ attempt, content: await changeOf(job, attempt, share) })),
    )
    const nameOf = ({ attempt }: EndedAttempt) => `attempt-${attempt}.patch`
    return {
      repo: job.repo,
      ref: null,
      environment: job.environment,
      message: judgePrompt({
        instructions: job.instructions,
        judge,
        attempts: passing.map((attempt) => ({
          attempt: attempt.attempt,
          file: `$HANGAR_IO/in/1/${nameOf(attempt)}`,
          summary: attempt.turn?.summary ?? null,
        })),
      }),
      requester: job.requester,
      context: files.map(({ attempt, content }) => ({ kind: 'diff', name: nameOf(attempt), content }) as const),
      outputSchema: VerdictShape,
      timeoutMs: job.timeoutMs,
      idempotency: null,
      verify: null,
    }
  }

  async function changeOf(job: JobRecord, { attempt, turn }: EndedAttempt, maxBytes: number): Promise<Uint8Array> {
    const session = job.attempts.find((entry) => entry.attempt === attempt)?.session
    if (session === undefined || turn?.headCommit == null) return new Uint8Array()
    const { session: record } = await records.get(session)
    const repo = await records.repository(session)
    const range = { from: record.baseCommit ?? EMPTY_TREE, to: turn.headCommit, maxBytes: MAX_DIFF_BYTES }
    const patch = await diffTrees(repo, range).catch(() => Buffer.from('(the change is too large to be shown)\n'))
    if (patch.length <= maxBytes) return patch
    return Buffer.concat([patch.subarray(0, maxBytes), Buffer.from('\n(cut here: the change is longer)\n')])
  }
}
