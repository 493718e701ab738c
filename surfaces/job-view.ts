/** A job as the wire shows it: its record, with what its sessions' records say of its attempts. */
import { isAtRest, type JobAttempt, type JobRecord } from '../domain/job.ts'
import type { SessionRecord, TurnRecord, Verification } from '../domain/session.ts'
import { type AttemptServices, chosenSession, jobBudget, spentBy } from '../orchestrator/job-attempts.ts'
import type { WaitedJob } from '../orchestrator/job-waiting.ts'
import { jobStep, type Surface } from './next-steps.ts'
import { artifactView, budgetView, time, usageView } from './views.ts'

export async function jobView(job: JobRecord, services: AttemptServices) {
  const chosen = chosenSession(job)
  const sessions = new Map(
    await Promise.all(job.attempts.map(async ({ session }) => [session, await lookAt(session, services)] as const)),
  )
  const counting = chosen === null ? null : (sessions.get(chosen) ?? null)
  // A repair or a follow-up that runs does not take away what there is.
  const ended = counting?.turns.findLast(({ state }) => state === 'ended') ?? null
  const asks = job.state === 'needs_input' ? (counting?.session ?? null) : null
  return {
    id: job.id,
    repo: job.repo,
    state: job.state,
    state_reason: job.stateReason,
    instructions: job.instructions,
    requester: job.requester,
    source: job.source,
    session: chosen,
    environment: job.environment,
    strategy: job.strategy,
    n: job.n,
    attempts: job.attempts.map((attempt) => attemptView(attempt, sessions.get(attempt.session) ?? null)),
    verification: verificationView(counting?.turns.findLast(({ verification }) => verification != null)?.verification),
    delivery:
      job.delivery === null
        ? null
        : {
            branch: job.delivery.branch.replace('refs/heads/', ''),
            commit: job.delivery.commit,
            pushed: job.delivery.pushed,
            pull_request_url: job.delivery.pullRequestUrl,
          },
    result:
      ended === null || chosen === null
        ? null
        : {
            summary: ended.summary,
            data: ended.result ?? null,
            error: ended.resultError,
            artifacts: (counting?.turns ?? []).flatMap((turn) =>
              turn.artifacts.map((artifact) => artifactView(chosen, artifact)),
            ),
          },
    needs_input: asks?.needsInput ?? null,
    question_options: asks?.questionOptions ?? [],
    warnings: [...new Set([...(ended?.warnings ?? []), ...job.warnings])],
    usage: usageView((await spentBy(job, services)).usage),
    budget: budgetView(await jobBudget(job, services)),
    timeline: job.timeline.map(({ at, state, text }) => ({ at: time(at), state, text })),
    created_at: time(job.createdAt),
    updated_at: time(job.updatedAt),
  }
}

interface Looked {
  readonly session: SessionRecord
  readonly turns: readonly TurnRecord[]
}

async function lookAt(name: JobAttempt['session'], { records }: AttemptServices): Promise<Looked | null> {
  const entry = await records.find(name)
  return entry === null ? null : { session: entry.session, turns: await records.turns(name) }
}

function attemptView(attempt: JobAttempt, looked: Looked | null) {
  const turn = looked?.turns.at(-1) ?? null
  return {
    attempt: attempt.attempt,
    session: attempt.session,
    state: turn === null ? 'gone' : turn.state !== 'ended' && turn.verification != null ? 'verifying' : turn.state,
    outcome: turn?.outcome ?? null,
    verification: verificationView(turn?.verification),
    diff: attempt.diff,
    rank: attempt.rank,
    reason: attempt.reason,
    branch: `hangar/${attempt.session}`,
  }
}

function verificationView(verification: Verification | null | undefined) {
  if (verification == null) return null
  const { command, passed, exitCode, seconds, logTail } = verification
  return { command, passed, exit_code: exitCode, seconds, log_tail: logTail }
}

/** `surface` says in whose words the hint is. */
export function waitedJobView({ done, job, turn, progress, cursor }: WaitedJob, surface: Surface) {
  const session = chosenSession(job)
  return {
    done,
    state: job.state,
    turn: turn?.turn ?? 0,
    outcome: turn?.outcome ?? null,
    summary: turn?.summary ?? null,
    result: turn?.result ?? null,
    result_error: turn?.resultError ?? null,
    artifacts: session === null ? [] : (turn?.artifacts ?? []).map((artifact) => artifactView(session, artifact)),
    needs_input: job.state === 'needs_input' ? (turn?.question ?? null) : null,
    question_options: job.state === 'needs_input' ? (turn?.questionOptions ?? []) : [],
    warnings: [...new Set([...(turn?.warnings ?? []), ...job.warnings])],
    progress,
    cursor,
    hint: jobStep(surface, job),
  }
}

/** What a callback says of a job. */
export async function callbackView(
  job: JobRecord,
  view: Awaited<ReturnType<typeof jobView>>,
  { records }: AttemptServices,
) {
  const turn = view.session === null ? null : ((await records.turns(view.session)).at(-1) ?? null)
  const url = view.delivery?.pull_request_url ?? null
  return {
    job: {
      id: job.id,
      state: job.state,
      state_reason: job.stateReason,
      name: view.session,
      repo: job.repo,
      branch: view.delivery?.branch ?? null,
      requester: job.requester,
      created_at: view.created_at,
      finished_at: isAtRest(job.state) && job.state !== 'needs_input' ? view.updated_at : null,
    },
    turn: turn?.turn ?? null,
    outcome: turn?.outcome ?? null,
    summary: view.result?.summary ?? null,
    result: view.result === null ? null : { data: view.result.data, error: view.result.error },
    needs_input: view.needs_input,
    question_options: view.question_options,
    verification:
      view.verification === null ? null : { passed: view.verification.passed, exit_code: view.verification.exit_code },
    pr: url === null ? null : { url, number: Number(/\/(\d+)$/.exec(url)?.[1] ?? 0) },
    usage: view.usage,
    artifacts: (view.result?.artifacts ?? []).map(({ path, turn, uri, size }) => ({ path, turn, uri, bytes: size })),
  }
}
