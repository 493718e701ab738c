/** The records of jobs: each move is a commit on `refs/hangar/jobs/<id>`, put there by compare-and-swap, and an entry of the index. */
import { EventEmitter } from 'node:events'
import { errors } from '../domain/errors.ts'
import { type JobEvent, type JobRecord, jobMove, moveJob } from '../domain/job.ts'
import type { JobId, Oid, RepoSlug } from '../domain/names.ts'
import { jobSession, workBranch, ZERO_OID } from '../domain/names.ts'
import type { Clock } from '../domain/ports.ts'
import type { Repositories } from '../gateway/git/repositories.ts'
import type { RefUpdate, Repository } from '../gateway/git/repository.ts'
import type { Ledger } from '../gateway/ledger.ts'
import { seenMove } from '../gateway/state/event-log.ts'
import { type Index, orderKey } from '../gateway/state/index.ts'
import { jobChanges } from '../gateway/state/reindex-jobs.ts'
import { deliveringRef, jobRef, upstreamRef } from '../refs-policy/ref-names.ts'

/** What happens to a job, why, and what its record says besides. */
export interface JobMove {
  readonly event: JobEvent
  /** For the timeline; also the reason of its new state where `isReason`. */
  readonly text: string
  readonly isReason?: boolean
  readonly fields?: Partial<JobRecord>
  /** Refs of its repository that move in the same transaction. */
  readonly alsoMove?: readonly RefUpdate[]
  /** Commits that its history keeps. */
  readonly parents?: readonly Oid[]
}

export interface JobRecords {
  /** Writes the first record. Throws `name_taken` when there is one. */
  create(job: JobRecord): Promise<void>
  /**
   * Works out what happens from the newest record and writes it; again when another writer won. `null` leaves all as it is. Throws `conflict`
   * where the job's state refuses the event.
   */
  move(id: JobId, change: (job: JobRecord, repo: Repository) => Promise<JobMove | null>): Promise<JobRecord>
  /** The same for what may have been overtaken: a refused event leaves all as it is and gives null. */
  tryMove(id: JobId, change: (job: JobRecord, repo: Repository) => Promise<JobMove | null>): Promise<JobRecord | null>
  /** Writes fields that are no move: what was done while somebody else moved the job. */
  annotate(id: JobId, fields: Partial<JobRecord>): Promise<void>
  find(id: JobId): Promise<JobRecord | null>
  /** Throws `not_found`. */
  get(id: JobId): Promise<JobRecord>
  repository(slug: RepoSlug): Promise<Repository>
  /** All of them, in no order. */
  all(): Promise<JobRecord[]>
  /** Deletes the record. */
  remove(id: JobId): Promise<void>
  /** Calls back after each move of the job; returns its removal. */
  onMove(id: JobId, listener: () => void): () => void
  /** Calls back after each move of any job. */
  onAnyMove(listener: (job: JobRecord) => void): () => void
  /** Calls back after a job was removed. */
  onRemove(listener: (id: JobId) => void): () => void
}

export interface JobRecordsDeps {
  readonly repositories: Repositories
  readonly ledger: Ledger
  readonly index: Index
  readonly clock: Clock
}

/** Far more than anybody's job has. */
const MAX_TIMELINE = 10_000

export function createJobRecords({ repositories, ledger, index, clock }: JobRecordsDeps): JobRecords {
  const moves = new EventEmitter().setMaxListeners(0)

  const repository = async (slug: RepoSlug): Promise<Repository> => {
    const repo = await repositories.open(slug)
    if (repo === null) throw errors.notFound(`there is no repo ${slug} on this server`)
    return repo
  }
  const find = async (id: JobId) => (await index.jobs.get(id))?.job ?? null
  const get = async (id: JobId) => {
    const job = await find(id)
    if (job === null) throw errors.notFound(`there is no job ${id}; hangar job list shows those there are`)
    return job
  }
  const publish = async (oid: Oid, job: JobRecord, alsoMove: readonly RefUpdate[]) => {
    await index.batch([...jobChanges({ oid, job }), ...alsoMove.map((update) => seenMove(job.repo, update))])
    moves.emit(job.id)
    moves.emit('any', job)
  }

  const write = async (
    id: JobId,
    change: (job: JobRecord, repo: Repository) => Promise<JobMove | null>,
    refuse: (job: JobRecord, event: JobEvent) => boolean,
  ): Promise<{ readonly job: JobRecord; readonly refused: boolean }> => {
    const repo = await repository((await get(id)).repo)
    let current: JobRecord | null = null
    let made: { readonly job: JobRecord; readonly move: JobMove } | null = null
    let refused = false
    const { changed, oid } = await ledger.append(repo, jobRef(id), async (tip) => {
      made = null
      refused = false
      if (tip === null) throw errors.notFound(`there is no job ${id}`)
      const text = await ledger.readFile(repo, tip, 'job.json')
      if (text === null) throw errors.internal(`the record ${tip} has no job.json`)
      const job = JSON.parse(text.toString('utf8')) as JobRecord
      current = job
      const move = await change(job, repo)
      if (move === null) return null
      if (jobMove(job.state, move.event) === null && refuse(job, move.event)) {
        refused = true
        return null
      }
      const next = moved(job, move, clock.now())
      made = { job: next, move }
      const { parents = [], alsoMove = [] } = move
      return { files: fileOf(next), message: `${next.state}: ${move.text}`, parents, alsoMove }
    })
    if (changed && oid !== null && made !== null) {
      const { job, move } = made as { job: JobRecord; move: JobMove }
      await publish(oid, job, move.alsoMove ?? [])
      return { job, refused }
    }
    if (current === null) throw errors.internal(`the record of ${id} was not read`)
    return { job: current, refused }
  }

  return {
    create: async (job) => {
      const repo = await repository(job.repo)
      const { changed, oid } = await ledger.append(repo, jobRef(job.id), async (tip) =>
        tip === null ? { files: fileOf(job), message: `${job.state}: the job is submitted` } : null,
      )
      if (!changed || oid === null) throw errors.nameTaken(`job ${job.id} exists already`)
      await publish(oid, job, [])
    },
    move: async (id, change) => (await write(id, change, () => false)).job,
    tryMove: async (id, change) => {
      const { job, refused } = await write(id, change, () => true)
      return refused ? null : job
    },
    annotate: async (id, fields) => {
      const repo = await repository((await get(id)).repo)
      let next: JobRecord | null = null
      const { oid } = await ledger.append(repo, jobRef(id), async (tip) => {
        const text = tip === null ? null : await ledger.readFile(repo, tip, 'job.json')
        if (text === null) return null
        next = { ...(JSON.parse(text.toString('utf8')) as JobRecord), ...fields, updatedAt: clock.now() }
        return { files: fileOf(next), message: 'what was done meanwhile' }
      })
      if (next !== null && oid !== null) await publish(oid, next, [])
    },
    find,
    get,
    repository,
    all: async () => (await index.jobs.range()).map(([, { job }]) => job),
    remove: async (id) => {
      const job = await get(id)
      const repo = await repository(job.repo)
      // Of several attempts the delivered branch is the job's own.
      const branch = workBranch(jobSession(id, null))
      const gone: RefUpdate[] = []
      for (const ref of [jobRef(id), branch, upstreamRef(branch), deliveringRef(branch)]) {
        const old = await repo.refs.read(ref)
        if (old !== null) gone.push({ ref, old, new: ZERO_OID })
      }
      const done = gone.length === 0 ? null : await repo.refs.transact(gone)
      if (done?.ok === false) throw errors.conflict(`job ${id} could not be removed: ${done.reason}; try again`)
      await index.batch([
        { section: 'jobs', key: id, value: null },
        { section: 'jobOrder', key: orderKey(job.createdAt, id), value: null },
        ...gone.map((update) => seenMove(job.repo, update)),
      ])
      moves.emit('removed', id)
    },
    onMove: (id, listener) => {
      moves.on(id, listener)
      return () => moves.off(id, listener)
    },
    onRemove: (listener) => {
      moves.on('removed', listener)
      return () => moves.off('removed', listener)
    },
    onAnyMove: (listener) => {
      moves.on('any', listener)
      return () => moves.off('any', listener)
    },
  }
}

function moved(job: JobRecord, { event, text, isReason = false, fields = {} }: JobMove, now: number): JobRecord {
  const state = moveJob(job.id, job.state, event)
  const entry = { at: now, state, text }
  return {
    ...job,
    replaces: null,
    ...fields,
    state,
    stateReason: isReason ? text : null,
    timeline: [...job.timeline, entry].slice(-MAX_TIMELINE),
    updatedAt: now,
  }
}

function fileOf(job: JobRecord): Map<string, Uint8Array> {
  return new Map([['job.json', Buffer.from(`${JSON.stringify(job, null, 2)}\n`)]])
}
