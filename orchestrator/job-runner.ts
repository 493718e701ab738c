/** Moves jobs on: a worker for each that is not at rest looks at its attempts' sessions and takes the next step, again after any crash. */
import { setMaxListeners } from 'node:events'
import type { JobSettings } from '../domain/environment.ts'
import { HangarError, messageOf } from '../domain/errors.ts'
import { isAtRest, type JobAttempt, type JobRecord, jobMove } from '../domain/job.ts'
import { type JobId, judgeSession } from '../domain/names.ts'
import type { Clock, Log } from '../domain/ports.ts'
import { passedSentence } from './budget.ts'
import {
  countingAttempts,
  diffOf,
  isEnded,
  isVerifying,
  jobBudget,
  passedBudget,
  remainingBudget,
  type Standing,
  spentBy,
  standingOf,
} from './job-attempts.ts'
import type { JobDeliverer } from './job-delivery.ts'
import type { JobJudge } from './job-judge.ts'
import { chosenOf, isRepair, nonePassed, outcomeMove, repairKey, repairsOf, stoppedReason } from './job-outcome.ts'
import type { JobMove, JobRecords } from './job-records.ts'
import type { SessionControl } from './session-control.ts'
import type { SessionEvents } from './session-events.ts'
import type { SessionRecords } from './session-records.ts'
import type { SessionSuspend } from './session-suspend.ts'
import type { Sessions } from './sessions.ts'
import { passes, rankAttempts, repairMessage } from './strategies.ts'

export interface JobRunner {
  /** Works on the job until it is at rest; once more where that is done already. */
  kick(id: JobId): void
  /** Lets go of all jobs; the next start takes them up again. */
  close(): Promise<void>
}

export interface JobRunnerDeps {
  readonly jobs: JobRecords
  readonly records: SessionRecords
  readonly events: SessionEvents
  readonly sessions: Pick<Sessions, 'release' | 'send'>
  readonly control: Pick<SessionControl, 'stop' | 'stopAll' | 'close'>
  readonly suspension: Pick<SessionSuspend, 'suspend'>
  readonly deliverer: JobDeliverer
  readonly judge: JobJudge
  /** How jobs of the environment are verified and ranked. */
  settings(environment: string): JobSettings
  readonly clock: Clock
  readonly log: Log
}

const RETRY_MS = 2_000
const LOOK_MS = 250
/** How often several attempts are held against the budget that they share. */
const BUDGET_MS = 1_000

/** What the worker does after a step; `look`: what it knew was old, or it has to look again soon. */
type Next = 'again' | 'wait' | 'look' | 'rest'

export function createJobRunner(deps: JobRunnerDeps): JobRunner {
  const { jobs, records, log } = deps
  const working = new Map<JobId, Promise<void>>()
  const again = new Set<JobId>()
  const closing = new AbortController()
  // Each job that is worked on listens to it.
  setMaxListeners(0, closing.signal)

  const kick = (id: JobId): void => {
    if (closing.signal.aborted) return
    if (working.has(id)) {
      again.add(id)
      return
    }
    const done = work(id)
      .catch((error: unknown) => log.error({ job: id, error: messageOf(error) }, 'a job could not be worked on'))
      .finally(() => {
        working.delete(id)
        if (again.delete(id)) kick(id)
      })
    working.set(id, done)
  }

  const work = async (id: JobId): Promise<void> => {
    while (!closing.signal.aborted) {
      const known = await jobs.find(id)
      if (known === null) return
      // Listened to before the look: what moves meanwhile is not missed.
      const watch = watchJob(known)
      try {
        const job = await jobs.find(id)
        if (job === null) return
        const next = await step(job)
        if (next === 'rest') return
        if (next === 'wait') await watch.moved(isShared(job) ? BUDGET_MS : null)
        if (next === 'look') await watch.pause(LOOK_MS)
      } catch (error) {
        if (closing.signal.aborted) return
        log.error({ job: id, error: messageOf(error) }, 'a step of a job failed; it is tried again')
        await watch.pause(RETRY_MS)
      } finally {
        watch.end()
      }
    }
  }

  const step = async (job: JobRecord): Promise<Next> => {
    const standings = await Promise.all(job.attempts.map((attempt) => standingOf(attempt, deps)))
    await tidy(job, standings)
    if (isAtRest(job.state)) return atRest(job, standings)
    if (job.state === 'delivering') return deliver(job, standings)
    return advance(job, standings)
  }

  /** A further message, sent while it rested or right before a crash, begins it again; what was stopped with it ends. */
  const atRest = async (job: JobRecord, standings: readonly Standing[]): Promise<Next> => {
    const counting = standings.filter(({ attempt }) => countingAttempts(job).includes(attempt))
    const further = counting.find(
      ({ attempt, turn }) => turn !== null && turn.turn > attempt.handled && !isRepair(turn),
    )
    if (further !== undefined && jobMove(job.state, 'follow_up') !== null) {
      const { turn } = further
      return move(job, { event: 'follow_up', text: `turn ${turn?.turn} is queued` })
    }
    // Of one that waits for approval the first turn waits as well.
    if (job.state === 'awaiting_approval') return 'rest'
    // A repair that was sent while the job was stopped is its own as well, and a judge has nothing more to say.
    for (const { session, turn, current } of standings)
      if (session !== null && turn !== null && current !== null) await deps.control.stopAll(session.name, turn.turn)
    const judge = await records.find(judgeSession(job.id))
    if (judge !== null && judge.session.state !== 'closed') await deps.control.close(judge.session.name)
    return standings.every(isEnded) ? 'rest' : 'wait'
  }

  /** What is not chosen is done with: its agents stop, and its sandboxes go. */
  const tidy = async (job: JobRecord, standings: readonly Standing[]): Promise<void> => {
    if (job.chosen === null || job.attempts.length === 1) return
    for (const { attempt, session, current } of standings) {
      if (attempt.attempt === job.chosen || session === null) continue
      if (current !== null) await deps.control.stopAll(session.name, session.turns)
      else if (session.state === 'idle' && session.sandbox !== null)
        await deps.suspension
          .suspend(session.name)
          .catch((error: unknown) =>
            log.warn({ session: session.name, error: messageOf(error) }, 'an attempt was not suspended'),
          )
    }
  }

  const advance = async (job: JobRecord, all: readonly Standing[]): Promise<Next> => {
    const counting = countingAttempts(job)
    const standings = all.filter(({ attempt }) => counting.includes(attempt))
    for (const { session } of standings) if (session?.state === 'creating') await deps.sessions.release(session.name)
    if (job.state === 'queued' && standings.some((standing) => !isWaiting(standing))) {
      return move(job, { event: 'start', text: 'an agent is at work' })
    }
    for (const standing of standings) if (await giveBack(job, standing)) return 'again'
    const { stopAtFirstPass } = deps.settings(job.environment)
    const isCertain = stopAtFirstPass && standings.some((standing) => isEnded(standing) && passes(standing))
    if (isCertain || standings.every(isEnded)) return settle(job, standings)
    if (isShared(job) && (await stopOverBudget(job, standings))) return 'wait'
    return follow(job, standings)
  }

  /** The job's state is that of its attempts: verifying once no agent is at work any more. */
  const follow = async (job: JobRecord, standings: readonly Standing[]): Promise<Next> => {
    const busy = standings.filter((standing) => !isEnded(standing))
    const verifying = busy.every(isVerifying)
    if (job.state === 'running' && verifying) return move(job, { event: 'verify', text: 'the work is being verified' })
    if (job.state === 'verifying' && !verifying) return move(job, { event: 'work', text: 'an agent is at work' })
    return 'wait'
  }

  /** An agent whose work failed its verification is told so, as often as the environment says. */
  const giveBack = async (job: JobRecord, standing: Standing): Promise<boolean> => {
    const { session, turn, attempt } = standing
    if (session === null || turn === null || !isEnded(standing) || turn.turn <= attempt.handled) return false
    if (turn.outcome !== 'exited' || passes(standing)) return false
    const turns = await records.turns(session.name)
    if (repairsOf(turns) >= deps.settings(job.environment).verifyRetries) return false
    if (remainingBudget(await jobBudget(job, deps), await spentBy(job, deps)) === null) return false
    try {
      await deps.sessions.send(session.name, {
        message: repairMessage(turn),
        requester: job.requester,
        context: [],
        outputSchema: job.outputSchema,
        budget: {},
        timeoutMs: job.timeoutMs,
        // Known again after a crash.
        idempotency: { key: repairKey(turn), body: '' },
        option: null,
      })
      return true
    } catch (error) {
      if (!(error instanceof HangarError) || error.status >= 500) throw error
      log.warn({ job: job.id, error: error.message }, 'a failing verification could not be given back to its agent')
      return false
    }
  }

  const stopOverBudget = async (job: JobRecord, standings: readonly Standing[]): Promise<boolean> => {
    const passed = passedBudget(job.budget, await spentBy(job, deps))
    if (passed === null) return false
    const why = { reason: 'over_budget', detail: `of the whole job: ${passedSentence(passed)}` } as const
    for (const { session, current } of standings)
      if (session !== null && current !== null && current.stopReason === null)
        await deps.control.stop(session.name, why).catch(ignoreConflict)
    return true
  }

  const settle = async (job: JobRecord, standings: readonly Standing[]): Promise<Next> => {
    if (job.attempts.length > 1 && job.chosen === null) return choose(job, standings)
    const [only] = standings
    if (only === undefined) throw new Error(`job ${job.id} has no attempt`)
    return move(job, { ...outcomeMove(only.turn), fields: { attempts: handledNow(job, standings) } }, standings)
  }

  /** Ranks the attempts; the best that passes is delivered. */
  const choose = async (job: JobRecord, standings: readonly Standing[]): Promise<Next> => {
    const turns = standings.map((standing) => ({
      attempt: standing.attempt.attempt,
      turn: isEnded(standing) ? standing.turn : null,
      diff: null,
    }))
    const judged = await deps.judge.verdict(job, turns.filter(passes))
    if (judged === 'waiting') return job.state === 'running' ? follow(job, standings) : 'wait'
    const ended = await Promise.all(
      standings.map(async (standing, at) => ({
        attempt: standing.attempt.attempt,
        turn: turns[at]?.turn ?? null,
        diff: isEnded(standing) ? await diffOf(standing, deps) : null,
      })),
    )
    const ranking = rankAttempts(ended, judged.verdict).map((ranked) => stoppedReason(ranked, standings))
    const attempts = handledNow(job, standings).map((attempt) => {
      const place = ranking.find((ranked) => ranked.attempt === attempt.attempt)
      const diff = ended.find((entry) => entry.attempt === attempt.attempt)?.diff ?? null
      return { ...attempt, rank: place?.rank ?? null, reason: place?.reason ?? null, diff }
    })
    const warnings = judged.warning === null ? job.warnings : [...job.warnings, judged.warning]
    const best = chosenOf(ranking, ended)
    const turn = ended.find((entry) => entry.attempt === best)?.turn ?? null
    const passed = passes({ turn })
    const result = passed
      ? ({ event: 'deliver', text: `attempt ${best} is the best: ${ranking[0]?.reason ?? ''}` } as const)
      : nonePassed(
          ended.map((entry) => entry.turn),
          turn,
          ranking,
        )
    return move(job, { ...result, fields: { attempts, chosen: best, warnings } }, standings)
  }

  const deliver = async (job: JobRecord, standings: readonly Standing[]): Promise<Next> => {
    const standing = standings.find(({ attempt }) => countingAttempts(job).includes(attempt))
    // Somebody's cancel, or further message, ends it at its next step.
    const over = new AbortController()
    const end = () => over.abort()
    const off = jobs.onMove(job.id, end)
    closing.signal.addEventListener('abort', end)
    const done = await deps.deliverer.deliver(job, standing?.session ?? null, over.signal).finally(() => {
      off()
      closing.signal.removeEventListener('abort', end)
    })
    if (closing.signal.aborted) return 'rest'
    const warnings = [...new Set([...job.warnings, ...done.warnings])]
    const next = await move(
      job,
      done.failure === null
        ? { event: 'succeed', text: done.text, fields: { delivery: done.delivery, warnings } }
        : { event: 'fail', text: `the delivery failed: ${done.failure}`, isReason: true, fields: { warnings } },
    )
    if (next === 'look' && done.delivery !== null) await jobs.annotate(job.id, { delivery: done.delivery, warnings })
    return next
  }

  /** A job that was moved by somebody else meanwhile, or one of whose sessions has a further message, is looked at again. */
  const move = async (job: JobRecord, wanted: JobMove, standings: readonly Standing[] = []): Promise<Next> => {
    let made = false
    const moved = await jobs.tryMove(job.id, async (current) => {
      made = isSame(current, job) && (await areNewest(standings))
      return made ? wanted : null
    })
    return made && moved !== null ? 'again' : 'look'
  }

  const areNewest = async (standings: readonly Standing[]): Promise<boolean> => {
    const entries = await Promise.all(standings.map(({ attempt }) => records.find(attempt.session)))
    return entries.every((entry, at) => (entry?.session.turns ?? 0) === (standings[at]?.session?.turns ?? 0))
  }

  const watchJob = (job: JobRecord) => {
    let wake = () => {}
    let woken = false
    const listener = () => {
      woken = true
      wake()
    }
    const names = [...job.attempts.map(({ session }) => session), judgeSession(job.id)]
    const offs = [jobs.onMove(job.id, listener), ...names.map((name) => records.onMove(name, listener))]
    closing.signal.addEventListener('abort', listener)
    const moved = async (timeoutMs: number | null): Promise<void> => {
      if (woken) return
      const timer = timeoutMs === null ? null : setTimeout(listener, timeoutMs)
      await new Promise<void>((resolve) => {
        wake = resolve
      })
      if (timer !== null) clearTimeout(timer)
    }
    return {
      moved,
      pause: async (ms: number) => {
        woken = closing.signal.aborted
        await moved(ms)
      },
      end: () => {
        for (const off of offs) off()
        closing.signal.removeEventListener('abort', listener)
      },
    }
  }

  return {
    kick,
    close: async () => {
      closing.abort()
      await Promise.allSettled([...working.values()])
    },
  }
}

/** Whether several agents at once use one budget, which none of their turns can keep alone. */
function isShared({ attempts, chosen, budget }: JobRecord): boolean {
  return attempts.length > 1 && chosen === null && Object.values(budget).some((limit) => limit !== null)
}

function isWaiting({ turn, current, session }: Standing): boolean {
  return session !== null && turn !== null && current?.state === 'queued' && current.turn === turn.turn
}

function handledNow(job: JobRecord, standings: readonly Standing[]): JobAttempt[] {
  return job.attempts.map((attempt) => {
    const turn = standings.find((standing) => standing.attempt === attempt)?.turn ?? null
    return turn === null ? attempt : { ...attempt, handled: Math.max(attempt.handled, turn.turn) }
  })
}

function ignoreConflict(error: unknown): void {
  if (!(error instanceof HangarError) || error.code !== 'conflict') throw error
}

/** Whether nothing has happened to the job since it was read. */
function isSame(a: JobRecord, b: JobRecord): boolean {
  return a.state === b.state && a.updatedAt === b.updatedAt && a.timeline.length === b.timeline.length
}
