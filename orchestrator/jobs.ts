/** Jobs are submitted, followed up, approved, rejected and cancelled here: everything is checked and recorded before the caller hears yes. */
import { createHash } from 'node:crypto'
import { errors, messageOf } from '../domain/errors.ts'
import { failedToDeliver, isAtRest, type JobAttempt, type JobRecord, type JobStrategy, moveJob } from '../domain/job.ts'
import { type JobId, jobIdOf, jobOf, jobSession, judgeSession, type Oid, type RepoSlug } from '../domain/names.ts'
import type { Clock, Log, Random } from '../domain/ports.ts'
import type { IdempotencyMark, TurnRecord } from '../domain/session.ts'
import type { Index } from '../gateway/state/index.ts'
import { overlay } from './budget.ts'
import { chosenSession, jobBudget, remainingBudget, spentBy } from './job-attempts.ts'
import type { JobRecords } from './job-records.ts'
import type { JobRunner } from './job-runner.ts'
import type { Message } from './message.ts'
import type { SessionControl } from './session-control.ts'
import type { SessionEvents } from './session-events.ts'
import type { SessionRecords } from './session-records.ts'
import type { EnvironmentDefaults, Sessions } from './sessions.ts'
import { passes } from './strategies.ts'

/** A piece of work as it is asked for; `message` is its instructions. */
export interface NewJob extends Message {
  readonly repo: RepoSlug
  readonly ref: string | null
  readonly environment: string
  readonly strategy: JobStrategy
  /** Attempts of best_of_n, 2 to 16; 1 of a single one. */
  readonly n: number
  /** Instead of the environment's command. */
  readonly verify: string | null
  readonly callbackUrl: string | null
  readonly source: string
  /** Whether somebody has to approve it first. */
  readonly needsApproval: boolean
}

export interface Jobs {
  /** Throws what is wrong with any part of it; then nothing of it is left. The same idempotency key gives the same job, also at once from two clients. */
  submit(input: NewJob): Promise<JobRecord>
  /** Sends a further message to the job's conversation, with its schema and what is left of its budget. A budget in the message is the whole job's new one. */
  followUp(id: JobId, input: Message & { readonly option: number | null }): Promise<TurnRecord>
  approve(id: JobId, by: string | null): Promise<JobRecord>
  reject(id: JobId, by: string | null, reason: string | null): Promise<JobRecord>
  cancel(id: JobId, by: string | null): Promise<JobRecord>
  /** Begins a delivery that failed once more; `expected` is what of others' it replaces upstream. Throws `conflict` where none failed. */
  deliver(id: JobId, by: string | null, expected: Oid | null): Promise<JobRecord>
  /**
   * To be called once at the start, after sessions are taken up again: what a crash left of a submission goes (unless a record could not be
   * read, `complete` false, which may be its job's), jobs go on.
   */
  recover(options: { readonly complete: boolean }): Promise<void>
  /** Removes jobs that have been at an end for as long as closed sessions are kept, with their sessions. */
  sweep(): Promise<void>
}

export interface JobsDeps {
  readonly jobs: JobRecords
  readonly runner: JobRunner
  readonly records: SessionRecords
  readonly events: SessionEvents
  readonly sessions: Sessions
  readonly control: Pick<SessionControl, 'remove'>
  readonly index: Pick<Index, 'sessions'>
  environmentDefaults(name: string): EnvironmentDefaults
  /** Gives what the record keeps of a callback's URL. Throws `invalid_request` for one that no callback is sent to. */
  keepCallback(url: string): Promise<Pick<JobRecord, 'callbackUrl' | 'callbackSealed'>>
  /** How long jobs are kept after their end; null: for ever. */
  readonly keptMs: number | null
  readonly clock: Clock
  readonly random: Random
  readonly log: Log
}

const MAX_ATTEMPTS = 16

export function createJobs(deps: JobsDeps): Jobs {
  const { jobs, runner, records, sessions, clock, log } = deps
  const submitting = new Map<JobId, Promise<JobRecord>>()

  const submit = async (id: JobId, input: NewJob): Promise<JobRecord> => {
    const known = await jobs.find(id)
    if (known !== null) return sameJob(known, input.idempotency)
    checkStrategy(input)
    const callback = input.callbackUrl === null ? { callbackUrl: null } : await deps.keepCallback(input.callbackUrl)
    const defaults = deps.environmentDefaults(input.environment)
    const budget = overlay(defaults.budget, input.budget)
    const names = input.n === 1 ? [jobSession(id, null)] : range(input.n).map((attempt) => jobSession(id, attempt))
    await sessions.createHeld({ ...input, budget, idempotency: null }, names)
    const now = clock.now()
    const state = input.needsApproval ? 'awaiting_approval' : 'queued'
    const text = input.needsApproval ? 'submitted; somebody has to approve it' : 'submitted'
    const job: JobRecord = {
      id,
      repo: (await records.get(names[0] ?? jobSession(id, null))).repo,
      state,
      stateReason: null,
      instructions: input.message,
      requester: input.requester,
      source: input.source,
      environment: input.environment,
      ref: input.ref,
      strategy: input.strategy,
      n: input.n,
      verify: input.verify,
      outputSchema: input.outputSchema,
      budget,
      timeoutMs: input.timeoutMs,
      ...callback,
      attempts: names.map(
        (session, at): JobAttempt => ({ attempt: at + 1, session, rank: null, reason: null, handled: 0, diff: null }),
      ),
      chosen: null,
      delivery: null,
      warnings: [],
      timeline: [{ at: now, state, text }],
      idempotency: input.idempotency,
      createdAt: now,
      updatedAt: now,
    }
    try {
      await jobs.create(job)
    } catch (error) {
      for (const name of names) await deps.control.remove(name)
      throw error
    }
    runner.kick(id)
    return job
  }

  const decide = async (id: JobId, event: 'approve' | 'reject' | 'cancel', text: string): Promise<JobRecord> => {
    const job = await jobs.move(id, async (job) => ({
      event,
      text,
      isReason: event !== 'approve',
      fields:
        event === 'approve' ? {} : { attempts: await allHandled(job), chosen: job.chosen ?? (await likeliest(job)) },
    }))
    runner.kick(id)
    return job
  }

  /** What its agents were at belongs to what has just ended. */
  const allHandled = (job: JobRecord): Promise<JobAttempt[]> =>
    Promise.all(
      job.attempts.map(async (attempt) => {
        const turns = (await records.find(attempt.session))?.session.turns ?? 0
        return { ...attempt, handled: Math.max(attempt.handled, turns) }
      }),
    )

  /** The attempt that a follow-up of a job that never chose goes on with: the first that passes, else the first. */
  const likeliest = async (job: JobRecord): Promise<number | null> => {
    if (job.attempts.length === 1) return null
    for (const { attempt, session } of job.attempts) {
      const turn = (await records.turns(session)).at(-1) ?? null
      if (turn?.state === 'ended' && passes({ turn })) return attempt
    }
    return 1
  }

  const removeAll = async (job: JobRecord): Promise<void> => {
    for (const name of [...job.attempts.map(({ session }) => session), judgeSession(job.id)])
      if ((await records.find(name)) !== null) await deps.control.remove(name)
    await jobs.remove(job.id)
  }

  return {
    submit: async (input) => {
      const { idempotency } = input
      // The key makes the id, so that two submissions meet at one name.
      const id = jobIdOf(
        idempotency === null ? deps.random.bytes(8) : createHash('sha256').update(idempotency.key).digest(),
      )
      const other = submitting.get(id)
      if (other !== undefined) return sameJob(await other, idempotency)
      const work = submit(id, input).finally(() => submitting.delete(id))
      submitting.set(id, work)
      return work
    },

    followUp: async (id, input) => {
      const job = await jobs.get(id)
      moveJob(id, job.state, 'follow_up')
      const session = chosenSession(job)
      if (session === null)
        throw errors.conflict(
          `job ${id} has ${job.n} attempts at work and none is chosen yet; wait for it: hangar job wait ${id}`,
        )
      const budget = overlay(await jobBudget(job, deps), input.budget)
      if (remainingBudget(budget, await spentBy(job, deps)) === null)
        throw errors.conflict(
          `job ${id} has used its whole budget; give it a larger one (of the whole job) with the message: hangar job follow-up ${id} --max-…`,
        )
      const turn = await sessions.send(session, {
        ...input,
        outputSchema: input.outputSchema ?? job.outputSchema,
        timeoutMs: input.timeoutMs ?? job.timeoutMs,
      })
      // A request that was made before changes nothing; what the server's end cuts off here the job's worker finds by itself.
      const attempt = job.attempts.find((entry) => entry.session === session)
      if (turn.state !== 'ended' && turn.turn > (attempt?.handled ?? 0))
        await jobs.tryMove(id, async () => ({
          event: 'follow_up',
          text: `turn ${turn.turn} is queued`,
        }))
      runner.kick(id)
      return turn
    },

    approve: (id, by) => decide(id, 'approve', `approved${byWhom(by)}`),
    reject: (id, by, reason) => decide(id, 'reject', `rejected${byWhom(by)}${reason === null ? '' : `: ${reason}`}`),
    cancel: (id, by) => decide(id, 'cancel', `cancelled${byWhom(by)}`),

    deliver: async (id, by, expected) => {
      const job = await jobs.move(id, async (job) => {
        if (job.state === 'failed' && !failedToDeliver(job))
          throw errors.conflict(
            `job ${id} failed before it was to be delivered (${job.stateReason ?? 'no reason is known'}); go on with: hangar job follow-up ${id} "…"`,
          )
        const onto = expected === null ? '' : `, onto ${expected}`
        return { event: 'redeliver', text: `delivered again${byWhom(by)}${onto}`, fields: { replaces: expected } }
      })
      runner.kick(id)
      return job
    },

    recover: async ({ complete }) => {
      for (const [, { session }] of complete ? await deps.index.sessions.range() : []) {
        const owner = jobOf(session.name)
        if (owner === null || session.state !== 'creating' || (await jobs.find(owner.id)) !== null) continue
        log.warn(
          { session: session.name },
          'a job was being submitted when the server ended; what there was of it goes',
        )
        await deps.control.remove(session.name)
      }
      for (const job of await jobs.all()) {
        // One that cannot be understood must not keep the server from its start.
        const goesOn = await isToGoOn(job).catch((error: unknown) => {
          log.warn({ job: job.id, error: messageOf(error) }, 'a job could not be looked at; it is left as it is')
          return false
        })
        if (goesOn) runner.kick(job.id)
      }
    },

    sweep: async () => {
      if (deps.keptMs === null) return
      for (const job of await jobs.all()) {
        const waits = job.state === 'needs_input' || job.state === 'awaiting_approval'
        if (!isAtRest(job.state) || waits || job.updatedAt > clock.now() - deps.keptMs) continue
        await removeAll(job).catch((error: unknown) =>
          log.warn({ job: job.id, error: messageOf(error) }, 'a job that ended long ago could not be removed'),
        )
      }
    },
  }

  /** Whether it is not at rest, or an agent of it is still at work. */
  async function isToGoOn(job: JobRecord): Promise<boolean> {
    if (!isAtRest(job.state)) return true
    const entries = await Promise.all(job.attempts.map(({ session }) => records.find(session)))
    return entries.some((entry) => entry?.session.state === 'running')
  }
}

/** The job that an earlier submission with the key made. Throws `idempotency_mismatch` where that asked for something else. */
function sameJob(job: JobRecord, mark: IdempotencyMark | null): JobRecord {
  if (mark !== null && job.idempotency?.key === mark.key && job.idempotency.body === mark.body) return job
  throw errors.idempotencyMismatch(
    `the idempotency key was used for job ${job.id} with another body; use a new key for a new job`,
  )
}

function checkStrategy({ strategy, n, verify }: NewJob): void {
  if (strategy === 'single' && n !== 1)
    throw errors.invalidRequest(`n: a single attempt is one; for ${n} give "strategy": "best_of_n"`)
  if (strategy === 'best_of_n' && (n < 2 || n > MAX_ATTEMPTS))
    throw errors.invalidRequest(`n: best_of_n makes 2 to ${MAX_ATTEMPTS} attempts, not ${n}`)
  if (verify?.trim() === '') throw errors.invalidRequest('verify: give a shell command, or leave it out')
}

function range(n: number): number[] {
  return Array.from({ length: n }, (_, at) => at + 1)
}

function byWhom(by: string | null): string {
  return by === null ? '' : ` by ${by}`
}
