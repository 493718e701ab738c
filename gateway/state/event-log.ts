/** What happened in the store, in one rising sequence, kept in the index: upper floors follow it by a cursor of their own. */
import { errors, messageOf } from '../../domain/errors.ts'
import { type Oid, type RefName, type RepoSlug, ZERO_OID } from '../../domain/names.ts'
import type { Clock } from '../../domain/ports.ts'
import { isPushable } from '../../refs-policy/ref-names.ts'
import type { Repositories } from '../git/repositories.ts'
import type { RefUpdate } from '../git/repository.ts'
import { type Index, type IndexChange, refSeenKey, type StoreEvent, type StoreEventBody, seqKey } from './index.ts'

export type { StoreEvent, StoreEventBody } from './index.ts'

export interface EventLog {
  /** Durable when it resolves; gives the event's seq. The refs that it tells of count as seen from then on. */
  append(event: StoreEventBody): Promise<number>
  /** Events after `since`, oldest first. */
  read(since: number, limit: number): Promise<StoreEvent[]>
  /** Events after `since`, without end; ends when the signal aborts or the log closes. */
  follow(since: number, signal: AbortSignal): AsyncIterable<StoreEvent>
  close(): Promise<void>
}

interface Waiting {
  readonly body: StoreEventBody
  readonly resolve: (seq: number) => void
  readonly reject: (error: unknown) => void
}

const PAGE = 256

/**
 * The event log over an index. The first seq of a new index is the clock's milliseconds: a cursor kept elsewhere stays behind what comes
 * next also when the index was lost, as long as no server makes a thousand events a second all its life.
 */
export async function createEventLog(deps: { readonly index: Index; readonly clock: Clock }): Promise<EventLog> {
  const { index, clock } = deps
  const newest = await index.storeEvents.range({ reverse: true, limit: 1 })
  let last = newest[0]?.[1].seq ?? clock.now()
  const waiting: Waiting[] = []
  let writing: Promise<void> | null = null
  let closed = false
  const wakers = new Set<() => void>()
  const wakeAll = () => {
    for (const wake of [...wakers]) wake()
  }

  /** Those that came while one batch was on its way to the disk share the next one. */
  async function writeAll(): Promise<void> {
    while (waiting.length > 0) {
      const batch = waiting.splice(0)
      let seq = last
      const events = batch.map(({ body }): StoreEvent => ({ seq: ++seq, at: clock.now(), ...body }))
      try {
        await index.batch(events.flatMap(changesOf), { durable: true })
        last = seq
        for (const [at, { resolve }] of batch.entries()) resolve(events[at]?.seq ?? seq)
        wakeAll()
      } catch (error) {
        for (const { reject } of batch) reject(error)
      }
    }
    writing = null
  }

  async function read(since: number, limit: number): Promise<StoreEvent[]> {
    const found = await index.storeEvents.range({ from: seqKey(since + 1), limit })
    return found.map(([, event]) => event)
  }

  function nextEvent(since: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        wakers.delete(done)
        signal.removeEventListener('abort', done)
        resolve()
      }
      wakers.add(done)
      signal.addEventListener('abort', done)
      if (last > since || closed || signal.aborted) done()
    })
  }

  return {
    append(body) {
      if (closed) return Promise.reject(errors.busy('the event log is closed: the server is stopping'))
      return new Promise((resolve, reject) => {
        waiting.push({ body, resolve, reject })
        writing ??= Promise.resolve().then(writeAll)
      })
    },
    read,
    async *follow(since, signal) {
      for (let cursor = since; !closed && !signal.aborted; ) {
        // Taken before the read: an event that comes during it must not be slept through.
        const known = last
        const events = await read(cursor, PAGE)
        for (const event of events) {
          if (signal.aborted) return
          yield event
          cursor = event.seq
        }
        if (events.length === 0) await nextEvent(Math.max(cursor, known), signal)
      }
    },
    async close() {
      closed = true
      await writing
      wakeAll()
    },
  }
}

function changesOf(event: StoreEvent): IndexChange[] {
  const stored: IndexChange = { section: 'storeEvents', key: seqKey(event.seq), value: event }
  if (event.type === 'record') return [stored, seen(event.repo, event.ref, event.oid)]
  return [stored, ...event.updates.map((update) => seen(event.repo, update.ref, update.new))]
}

/** The index change for a ref that the orchestrator moved itself: no push is to be told of it. */
export function seenMove(repo: RepoSlug, { ref, new: oid }: RefUpdate): IndexChange {
  return seen(repo, ref, oid)
}

function seen(repo: RepoSlug | null, ref: RefName, oid: Oid): IndexChange {
  return { section: 'refsSeen', key: refSeenKey(repo, ref), value: oid === ZERO_OID ? null : oid }
}

/**
 * At start: compares every repository's refs with those that events have told of, and appends one push event a repository (by
 * `unknown`) for what moved without one, as a crash between the move and the event leaves it. The first time, with a fresh
 * index, all is taken as seen: nothing is known to have moved. A repository that cannot be opened is named, not stopped at.
 */
export async function reconcilePushes(deps: {
  readonly repositories: Repositories
  readonly index: Index
  readonly events: EventLog
}): Promise<{ events: number; unreadable: { readonly repo: RepoSlug; readonly reason: string }[] }> {
  const { repositories, index, events } = deps
  const first = (await index.meta.get('reconciled')) === null
  const unreadable: { repo: RepoSlug; reason: string }[] = []
  let count = 0
  for (const slug of await repositories.list()) {
    const repo = await repositories.open(slug).catch((error: unknown) => {
      unreadable.push({ repo: slug, reason: messageOf(error) })
      return null
    })
    if (repo === null) continue
    const updates = await unseenUpdates(index, slug, (await repo.refs.snapshot()).refs)
    if (updates.length === 0) continue
    if (first) await index.batch(updates.map(({ ref, new: oid }) => seen(slug, ref, oid)))
    else {
      await events.append({ type: 'push', repo: slug, by: 'unknown', updates, forced: [] })
      count += 1
    }
  }
  await index.batch([{ section: 'meta', key: 'reconciled', value: true }], { durable: true })
  return { events: count, unreadable }
}

async function unseenUpdates(
  index: Index,
  slug: RepoSlug,
  refs: readonly { readonly name: RefName; readonly oid: Oid }[],
): Promise<RefUpdate[]> {
  const prefix = refSeenKey(slug, '' as RefName)
  const known = new Map((await index.refsSeen.range({ prefix })).map(([key, oid]) => [key.slice(prefix.length), oid]))
  const updates: RefUpdate[] = []
  for (const { name, oid } of refs) {
    const old = known.get(name) ?? ZERO_OID
    known.delete(name)
    if (isPushable(name) && old !== oid) updates.push({ ref: name, old, new: oid })
  }
  for (const [name, old] of known) if (isPushable(name)) updates.push({ ref: name as RefName, old, new: ZERO_OID })
  return updates
}
