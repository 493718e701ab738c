/** What the server clears away by itself: sandboxes that no session has, pushed checkpoints that no session took within a day, long closed sessions, packs and objects. */
import { messageOf } from '../domain/errors.ts'
import { type RepoSlug, type SessionName, ZERO_OID } from '../domain/names.ts'
import type { Clock, Log } from '../domain/ports.ts'
import type { Provider } from '../domain/sandbox.ts'
import { pruneOld, repackWhenMany } from '../gateway/git/maintenance.ts'
import type { Repositories } from '../gateway/git/repositories.ts'
import type { RefUpdate, Repository } from '../gateway/git/repository.ts'
import { seenMove } from '../gateway/state/event-log.ts'
import type { Index, IndexChange } from '../gateway/state/index.ts'
import { destroyOrphans } from './orphans.ts'

export interface Housekeeping {
  /** One round over all repos. */
  sweep(): Promise<void>
  close(): Promise<void>
}

export interface HousekeepingDeps {
  readonly repositories: Repositories
  readonly index: Index
  /** Those whose sandboxes are looked through; none where a record could not be read, which may name any. */
  readonly providers: readonly Provider[]
  /** Removes a session with its refs. */
  remove(name: SessionName): Promise<void>
  /** Removes jobs that ended long ago, with their sessions. */
  sweepJobs(): Promise<void>
  /** How long a closed session is kept; null: for ever. */
  readonly closedSessionsMs: number | null
  readonly clock: Clock
  readonly log: Log
}

/** How long a pushed checkpoint waits to be taken. */
const INCOMING_LIFE_MS = 24 * 3_600_000
const ROUND_MS = 3_600_000
const ORPHANS_EVERY_MS = 5 * 60_000
/** Longer than the record of a sandbox takes that is just being made. */
const ORPHAN_AGE_MS = 10 * 60_000
/** Looking for objects that nothing needs reads the whole history: once a week is often enough. */
const PRUNE_EVERY_MS = 7 * 24 * 3_600_000
const INCOMING = 'refs/hangar/incoming/'

/** Sweeps once an hour until it is closed, sandboxes every five minutes. */
export function createHousekeeping(deps: HousekeepingDeps): Housekeeping {
  let running = Promise.resolve()
  const queued = (round: () => Promise<void>) => {
    running = running
      .then(round)
      .catch((error: unknown) =>
        deps.log.warn({ error: messageOf(error) }, 'housekeeping failed; the next round tries again'),
      )
    return running
  }
  const sweep = () => queued(() => sweepAll(deps))
  const timers = [
    setInterval(() => void sweep(), ROUND_MS),
    setInterval(() => void queued(() => destroyOrphans(deps, ORPHAN_AGE_MS)), ORPHANS_EVERY_MS),
  ]
  for (const timer of timers) timer.unref()
  return {
    sweep,
    close: async () => {
      for (const timer of timers) clearInterval(timer)
      await running
    },
  }
}

async function sweepAll(deps: HousekeepingDeps): Promise<void> {
  await sweepSessions(deps)
  await deps.sweepJobs()
  await destroyOrphans(deps, ORPHAN_AGE_MS)
  for (const slug of await deps.repositories.list()) {
    try {
      const repo = await deps.repositories.open(slug)
      if (repo === null) continue
      await sweepIncoming(repo, slug, deps)
      await keepUp(repo, `pruned/${slug}`, deps)
    } catch (error) {
      deps.log.warn({ repo: slug, error: messageOf(error) }, 'this repo could not be swept; the next round tries again')
    }
  }
  await keepUp(deps.repositories.server, 'pruned-server', deps)
}

async function sweepSessions({ index, remove, closedSessionsMs, clock, log }: HousekeepingDeps): Promise<void> {
  if (closedSessionsMs === null) return
  for (const [, { session }] of await index.sessions.range()) {
    if (session.state !== 'closed' || session.updatedAt > clock.now() - closedSessionsMs) continue
    await remove(session.name).catch((error: unknown) =>
      log.warn({ session: session.name, error: messageOf(error) }, 'a long closed session could not be removed'),
    )
  }
}

async function keepUp(repo: Repository, key: string, { index, clock }: HousekeepingDeps): Promise<void> {
  await repackWhenMany(repo)
  const last = await index.meta.get(key)
  if (typeof last === 'number' && last > clock.now() - PRUNE_EVERY_MS) return
  // With a new index the week begins again.
  if (typeof last === 'number') await pruneOld(repo)
  await index.batch([{ section: 'meta', key, value: clock.now() }])
}

/**
 * A ref has no age of its own, and its commit's date is the client's word: the first round that sees it notes the time, a later one
 * deletes it. With a new index the day begins again.
 */
async function sweepIncoming(repo: Repository, slug: RepoSlug, { index, clock }: HousekeepingDeps): Promise<void> {
  const { refs } = await repo.refs.snapshot()
  const incoming = refs.filter((ref) => ref.name.startsWith(INCOMING))
  const key = `incoming/${slug}`
  const noted = ((await index.meta.get(key)) ?? {}) as Readonly<Record<string, number>>
  const times = Object.fromEntries(
    incoming.map(({ name, oid }) => [`${name} ${oid}`, noted[`${name} ${oid}`] ?? clock.now()]),
  )
  const old: RefUpdate[] = incoming
    .filter(({ name, oid }) => (times[`${name} ${oid}`] ?? 0) <= clock.now() - INCOMING_LIFE_MS)
    .map(({ name, oid }) => ({ ref: name, old: oid, new: ZERO_OID }))
  const gone = old.length > 0 && (await repo.refs.transact(old)).ok ? old : []
  for (const { ref, old: oid } of gone) delete times[`${ref} ${oid}`]
  const changes: IndexChange[] = gone.map((update) => seenMove(slug, update))
  if (incoming.length > 0 || Object.keys(noted).length > 0) changes.push({ section: 'meta', key, value: times })
  if (changes.length > 0) await index.batch(changes)
}
