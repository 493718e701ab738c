/**
 * Callbacks of jobs: what is to be told follows from a job's timeline, what was told is kept in git (`refs/hangar/outbox/<job>`), so that a
 * crash at any point loses nothing, and repeats at most the attempt that it cut off, under the same id.
 */
import { setMaxListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { messageOf } from '../../domain/errors.ts'
import type { JobRecord, JobState } from '../../domain/job.ts'
import type { JobId, RefName } from '../../domain/names.ts'
import { ZERO_OID } from '../../domain/names.ts'
import type { Clock, Log } from '../../domain/ports.ts'
import type { Repository } from '../../gateway/git/repository.ts'
import type { Ledger } from '../../gateway/ledger.ts'
import type { JobRecords } from '../../orchestrator/job-records.ts'
import type { SafeFetch } from '../safe-fetch.ts'
import { afterAttempt, callbackHeaders } from '../signed-callback.ts'

export interface Callbacks {
  /** Begins to follow jobs; what is still to be told of earlier ones is taken up again. */
  start(): Promise<void>
  close(): Promise<void>
}

export interface CallbacksDeps {
  readonly jobs: Pick<JobRecords, 'all' | 'annotate' | 'find' | 'onAnyMove' | 'onRemove'>
  /** The server's own repository. */
  readonly server: Repository
  readonly ledger: Ledger
  readonly fetch: SafeFetch
  /** Opens what is sealed in a job's record. */
  open(sealed: Uint8Array): Promise<Uint8Array>
  /** null: none is configured, and no job has a callback. */
  readonly secret: Uint8Array | null
  /** Whether every job could be read: else an outbox may be that of one which could not. */
  readonly complete: boolean
  /** What a callback says of a job, as the wire shows it. */
  view(job: JobRecord): Promise<object>
  readonly clock: Clock
  readonly log: Log
}

interface Told {
  readonly id: string
  readonly body: string
  readonly attempts: number
  /** Epoch milliseconds before which it is not tried again. */
  readonly notBefore: number
  readonly state: 'pending' | 'sent' | 'parked'
}

/** Longer waits than a timer takes are made of several. */
const MAX_PAUSE_MS = 3_600_000
const RETRY_MS = 5_000

const FINISHED = 'job.finished'
const TYPES: Readonly<Partial<Record<JobState, string>>> = {
  awaiting_approval: 'job.awaiting_approval',
  running: 'job.started',
  needs_input: 'job.needs_input',
  succeeded: FINISHED,
  failed: FINISHED,
  cancelled: FINISHED,
  over_budget: FINISHED,
  timed_out: FINISHED,
  rejected: FINISHED,
}

export function createCallbacks(deps: CallbacksDeps): Callbacks {
  const { jobs, ledger, server, clock, log } = deps
  const working = new Map<JobId, Promise<void>>()
  const again = new Set<JobId>()
  const closing = new AbortController()
  setMaxListeners(0, closing.signal)
  let off = () => {}

  const kick = (id: JobId): void => {
    if (closing.signal.aborted) return
    if (working.has(id)) {
      again.add(id)
      return
    }
    const done = work(id)
      .catch((error: unknown) =>
        log.error({ job: id, error: messageOf(error) }, 'callbacks of a job are not sent any more'),
      )
      .finally(() => {
        working.delete(id)
        if (again.delete(id)) kick(id)
      })
    working.set(id, done)
  }

  /** In order: a later event is told when the earlier ones were, or were given up. */
  const work = async (id: JobId): Promise<void> => {
    while (!closing.signal.aborted) {
      const job = await jobs.find(id)
      // Removed while it was worked on.
      if (job === null) return drop(id)
      if (deps.secret === null) return
      const url = await urlOf(job)
      if (url === null) return
      const outbox = await noted(job).catch(async (error: unknown) => {
        log.warn({ job: id, error: messageOf(error) }, 'callbacks of a job cannot be noted; trying again')
        await sleep(RETRY_MS, undefined, { signal: closing.signal }).catch(() => {})
        return null
      })
      if (outbox === null) continue
      const next = outbox.find(({ state }) => state === 'pending')
      if (next === undefined) return TYPES[job.state] === FINISHED ? forget(job) : undefined
      const pauseMs = Math.min(MAX_PAUSE_MS, next.notBefore - clock.now())
      if (pauseMs > 0) await sleep(pauseMs, undefined, { signal: closing.signal }).catch(() => {})
      if (closing.signal.aborted) return
      if (next.notBefore > clock.now()) continue
      await attempt(id, url, next, deps.secret)
    }
  }

  /** The outbox with every event of the timeline in it; what was not in it yet is written down before it is sent. */
  const noted = async (job: JobRecord): Promise<readonly Told[]> => {
    const outbox = await read(job.id)
    const due = leftOf(job).filter(({ id }) => !outbox.some((told) => told.id === id))
    if (due.length === 0) return outbox
    const data = await deps.view(job)
    const added = due.map(({ id, type, at }): Told => {
      const body = JSON.stringify({ type, timestamp: new Date(at).toISOString(), data })
      return { id, body, attempts: 0, notBefore: 0, state: 'pending' }
    })
    return write(job.id, async (known) => {
      // What was done with meanwhile is told no second time, and of a job that was removed nothing is.
      const current = await jobs.find(job.id)
      const left = current === null ? [] : leftOf(current)
      const isNew = ({ id }: Told) => left.some((one) => one.id === id) && !known.some((told) => told.id === id)
      return [...known, ...added.filter(isNew)]
    })
  }

  const attempt = async (job: JobId, url: string, told: Told, secret: Uint8Array): Promise<void> => {
    const headers = callbackHeaders(told, { secret, timestamp: Math.floor(clock.now() / 1_000) })
    let status: number | null = null
    let retryAfter: string | undefined
    let why = ''
    try {
      const answer = await deps.fetch.post(url, { headers, body: told.body })
      status = answer.status
      retryAfter = String(answer.headers['retry-after'] ?? '')
      why = `it answered ${status}`
    } catch (error) {
      why = messageOf(error)
    }
    const verdict = afterAttempt(told.attempts + 1, status, retryAfter)
    if (verdict.kind !== 'sent') log.warn({ job, callback: told.id, why, next: verdict }, 'a callback was not taken')
    await write(job, async (known) =>
      known.map((entry): Told => {
        if (verdict.kind === 'gone' && entry.state === 'pending') return { ...entry, state: 'parked' }
        if (entry.id !== told.id) return entry
        const attempts = told.attempts + 1
        if (verdict.kind === 'again') return { ...entry, attempts, notBefore: clock.now() + verdict.afterMs }
        // What was told need not be kept.
        return { ...entry, attempts, body: '', state: verdict.kind === 'sent' ? 'sent' : 'parked' }
      }),
    )
  }

  const urlOf = async ({ callbackUrl, callbackSealed }: JobRecord): Promise<string | null> =>
    callbackSealed == null
      ? callbackUrl
      : Buffer.from(await deps.open(Buffer.from(callbackSealed, 'base64'))).toString('utf8')

  /** All was told, and nothing more comes unless somebody acts: how much that was is noted first, so that none is told again. */
  const forget = async (job: JobRecord): Promise<void> => {
    const tip = await server.refs.read(outboxRef(job.id))
    if (tip === null) return
    const callbacksTold = dueOf(job).length
    if ((job.callbacksTold ?? 0) < callbacksTold) await jobs.annotate(job.id, { callbacksTold })
    // An event that was noted meanwhile is noted anew: its job was moved, and is looked at again.
    await server.refs.transact([{ ref: outboxRef(job.id), old: tip, new: ZERO_OID }])
  }

  const drop = async (job: JobId): Promise<void> => {
    const tip = await server.refs.read(outboxRef(job))
    if (tip !== null) await server.refs.transact([{ ref: outboxRef(job), old: tip, new: ZERO_OID }])
  }

  const read = async (job: JobId): Promise<readonly Told[]> => {
    const bytes = await ledger.readFile(server, outboxRef(job), 'outbox.json')
    return bytes === null ? [] : (JSON.parse(bytes.toString('utf8')) as Told[])
  }

  const write = async (
    job: JobId,
    change: (known: readonly Told[]) => Promise<readonly Told[]>,
  ): Promise<readonly Told[]> => {
    let next: readonly Told[] = []
    await ledger.append(server, outboxRef(job), async (tip) => {
      const bytes = tip === null ? null : await ledger.readFile(server, tip, 'outbox.json')
      next = await change(bytes === null ? [] : (JSON.parse(bytes.toString('utf8')) as Told[]))
      // Of a job that was removed meanwhile.
      if (next.length === 0) return null
      const files = new Map([['outbox.json', Buffer.from(`${JSON.stringify(next, null, 2)}\n`)]])
      return { files, message: `callbacks of ${job}` }
    })
    return next
  }

  return {
    start: async () => {
      const offMove = jobs.onAnyMove((job) => {
        if (job.callbackUrl === null) return
        // Noted at once, also while an earlier one waits: what is told is how it was then.
        if (working.has(job.id))
          noted(job).catch((error: unknown) =>
            log.warn({ job: job.id, error: messageOf(error) }, 'a callback was not noted; it is when it is its turn'),
          )
        kick(job.id)
      })
      const offRemove = jobs.onRemove((id) => {
        drop(id).catch((error: unknown) =>
          log.warn({ job: id, error: messageOf(error) }, 'the callbacks of a removed job go at the next start'),
        )
      })
      off = () => {
        offMove()
        offRemove()
      }
      const all = await jobs.all()
      const present = new Set<string>(all.map(({ id }) => outboxRef(id)))
      const { refs } = await server.refs.snapshot()
      const old = refs.filter(({ name }) => name.startsWith(FOLDER) && !present.has(name))
      if (deps.complete && old.length > 0)
        await server.refs.transact(old.map(({ name, oid }) => ({ ref: name, old: oid, new: ZERO_OID })))
      for (const job of all) if (job.callbackUrl !== null) kick(job.id)
    },
    close: async () => {
      off()
      closing.abort()
      await Promise.allSettled([...working.values()])
    },
  }
}

const FOLDER = 'refs/hangar/outbox/'

function outboxRef(job: JobId): RefName {
  return `${FOLDER}${job}` as RefName
}

/** Those that are not done with. */
function leftOf(job: JobRecord): ReturnType<typeof dueOf> {
  return dueOf(job).slice(job.callbacksTold ?? 0)
}

/** The events that a job's timeline holds, each with an id of its own; that an agent goes on with a job is no new start. */
function dueOf(job: JobRecord): { readonly id: string; readonly type: string; readonly at: number }[] {
  const counts = new Map<string, number>()
  const due: { id: string; type: string; at: number }[] = []
  let isStarted = false
  for (const { state, at } of job.timeline) {
    const type = TYPES[state]
    if (type === undefined || (type === 'job.started' && isStarted)) continue
    isStarted = type === 'job.started' || (isStarted && type !== FINISHED)
    const count = (counts.get(type) ?? 0) + 1
    counts.set(type, count)
    due.push({ id: `evt_${job.id}_${type}_${count}`, type, at })
  }
  return due
}
