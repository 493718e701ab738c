/** A job's work is delivered: its branch, and where the repo follows an upstream, pushed there and shown to its people. Safe to repeat at any point. */
import { setTimeout as sleep } from 'node:timers/promises'
import { HangarError, messageOf } from '../domain/errors.ts'
import type { JobDelivery, JobRecord } from '../domain/job.ts'
import { jobSession, type Oid, type RefName, workBranch, ZERO_OID } from '../domain/names.ts'
import type { SessionRecord } from '../domain/session.ts'
import type { Repository } from '../gateway/git/repository.ts'
import { seenMove } from '../gateway/state/event-log.ts'
import type { Index } from '../gateway/state/index.ts'
import { isTransient } from '../gateway/upstream/failure.ts'
import type { Upstreams } from '../gateway/upstream/upstreams.ts'
import type { SessionRecords } from './session-records.ts'

export interface DeliveredJob {
  /** null where nothing was changed, or it failed. */
  readonly delivery: JobDelivery | null
  /** Why it failed; null when it did not. */
  readonly failure: string | null
  /** A sentence for the timeline. */
  readonly text: string
  readonly warnings: readonly string[]
}

export interface JobDeliverer {
  /** Delivers the session's branch as the job's. What may pass by itself is tried again for some minutes. */
  deliver(job: JobRecord, session: SessionRecord | null, signal: AbortSignal): Promise<DeliveredJob>
}

/** Shows a pushed branch to the people of its upstream. */
export interface Publisher {
  /** Opens or updates what there is for the job; gives its URL, null where the upstream has no such thing. May throw what passes by itself. */
  publish(
    job: JobRecord,
    session: SessionRecord,
    commit: Oid,
  ): Promise<{ readonly url: string | null; readonly warnings: readonly string[] }>
}

export interface JobDelivererDeps {
  readonly records: SessionRecords
  readonly index: Pick<Index, 'batch'>
  readonly upstreams: Pick<Upstreams, 'deliver' | 'of'>
  /** null: nothing but the branch is shown. */
  readonly publisher: Publisher | null
  /** Milliseconds before the first retry; each further one waits twice as long. */
  readonly retryMs?: number
}

const RETRY_MS = 1_000
const ATTEMPTS = 9

export function createJobDeliverer(deps: JobDelivererDeps): JobDeliverer {
  const attempt = async (job: JobRecord, session: SessionRecord, signal: AbortSignal): Promise<DeliveredJob> => {
    const repo = await deps.records.repository(session.name)
    // What was verified: the branch may have been moved since.
    const commit =
      (await deps.records.turns(session.name)).findLast(({ state }) => state === 'ended')?.headCommit ?? null
    if (commit === null || commit === session.baseCommit)
      return {
        delivery: null,
        failure: null,
        text: 'nothing was changed, so there is nothing to deliver',
        warnings: [],
      }
    const branch = workBranch(jobSession(job.id, null))
    if (session.name !== job.attempts[0]?.session || job.attempts.length > 1) await putBranch(repo, job, branch, commit)
    const name = branch.replace('refs/heads/', '')
    if (deps.upstreams.of(job.repo) === null)
      return {
        delivery: { branch, commit, pushed: false, pullRequestUrl: null },
        failure: null,
        text: `the work is on ${name}`,
        warnings: [],
      }
    signal.throwIfAborted()
    const expected = job.replaces == null ? {} : { expected: job.replaces }
    await deps.upstreams.deliver(job.repo, { branch, commit, ...expected })
    signal.throwIfAborted()
    const { url, warnings } = (await deps.publisher?.publish(job, session, commit)) ?? { url: null, warnings: [] }
    return {
      delivery: { branch, commit, pushed: true, pullRequestUrl: url },
      failure: null,
      text: `${name} is upstream${url === null ? '' : `, and shown at ${url}`}`,
      warnings,
    }
  }

  /** Of several attempts the best one's commits become the job's branch; of one they are there. */
  const putBranch = async (repo: Repository, job: JobRecord, branch: RefName, commit: Oid): Promise<void> => {
    const old = (await repo.refs.read(branch)) ?? ZERO_OID
    if (old === commit) return
    const update = { ref: branch, old, new: commit }
    const moved = await repo.refs.transact([update])
    if (!moved.ok) throw new Error(`${branch} could not be moved: ${moved.reason}`)
    await deps.index.batch([seenMove(job.repo, update)])
  }

  return {
    deliver: async (job, session, signal) => {
      const failed = (failure: string): DeliveredJob => ({ delivery: null, failure, text: failure, warnings: [] })
      if (session === null) return failed('its session is gone')
      for (let count = 1; ; count++) {
        try {
          return await attempt(job, session, signal)
        } catch (error) {
          if (signal.aborted) return failed('it was given up')
          if (!isTransient(error) || count === ATTEMPTS)
            return failed(error instanceof HangarError ? `${error.code}: ${error.message}` : messageOf(error))
          const pauseMs = (deps.retryMs ?? RETRY_MS) * 2 ** (count - 1)
          await sleep(pauseMs, undefined, { signal }).catch(() => {})
          if (signal.aborted) return failed('it was given up')
        }
      }
    },
  }
}
