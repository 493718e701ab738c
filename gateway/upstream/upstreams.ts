/** All repos that follow an upstream: refreshed when asked for, one refresh a repo at a time, and delivered to one branch at a time. */
import { setMaxListeners } from 'node:events'
import { errors, HangarError, messageOf } from '../../domain/errors.ts'
import type { Oid, RefName, RepoSlug } from '../../domain/names.ts'
import type { Clock, Log } from '../../domain/ports.ts'
import type { Upstream, UpstreamConfig } from '../../domain/upstream.ts'
import { placeOf } from '../../refs-policy/ref-names.ts'
import type { Repositories, Repository } from '../git/repositories.ts'
import type { RefUpdate } from '../git/repository.ts'
import { createGitSlots } from '../git-slots.ts'
import type { EventLog } from '../state/event-log.ts'
import type { Index } from '../state/index.ts'
import type { Credentials } from './credentials.ts'
import { type DeliverAsk, type Delivered, deliverBranch } from './deliver.ts'
import { refuseLfs } from './lfs.ts'
import { refreshMirror } from './mirror.ts'
import type { Remote } from './remote.ts'

/** How a mirror stands. */
export interface MirrorState {
  readonly upstream: Upstream
  /** When it was last like its upstream; null: never, or not known any more. */
  readonly refreshedAt: number | null
  /** Why it could not be refreshed last; null: it could. */
  readonly failure: HangarError | null
  /** What the last refresh that moved anything found out of the ordinary. */
  readonly notices: readonly string[]
}

export interface Upstreams {
  /** What the repo follows; null: it is hosted here. */
  of(slug: RepoSlug): Upstream | null
  state(slug: RepoSlug): Promise<MirrorState | null>
  /** Takes on a repo's upstream, which must be in its record already; null ends it. */
  set(slug: RepoSlug, upstream: Upstream | null): Promise<void>
  /** Throws when the upstream cannot be listed, or its credential not be used. */
  probe(upstream: Upstream): Promise<void>
  /**
   * Refreshes the mirror; of hosted repos nothing happens. What was fetched before is served when upstream fails: the warnings then say so, with
   * its age. Throws `upstream_*` only when nothing was ever fetched.
   */
  refresh(slug: RepoSlug): Promise<readonly string[]>
  /** For a fetch: refreshes unless that was done a moment ago, waits a bounded time, and never fails. */
  freshen(slug: RepoSlug): Promise<void>
  /** Throws `lfs_unsupported` when files of the commit of a mirrored repo are kept in Git LFS. */
  refuseLfs(repo: Repository, commit: Oid | null): Promise<void>
  /** Pushes a session's branch upstream. Throws `conflict` of a hosted repo, and what `deliverBranch` throws. */
  deliver(slug: RepoSlug, ask: Omit<DeliverAsk, 'signal'>): Promise<Delivered>
  /** Lets go of what runs, and waits for it. */
  close(): Promise<void>
}

export interface UpstreamsDeps {
  readonly repositories: Repositories
  readonly remote: Remote
  readonly credentials: Credentials
  readonly index: Pick<Index, 'meta'>
  readonly events: Pick<EventLog, 'append'>
  readonly config: UpstreamConfig
  readonly clock: Clock
  readonly log: Log
  /** Mirrors that are refreshed at once. */
  readonly mostRefreshes?: number
}

/** A fetch waits so long for its upstream; then it gets what is there. */
const FETCH_WAIT_MS = 20_000
/** Mirrors that are refreshed at once; the others wait so long, and are served as they are. */
const MOST_REFRESHES = 8
const REFRESH_WAIT_MS = 2 * 60_000

/** Takes on what records and config file say; repos of the config file are made. */
export async function createUpstreams(deps: UpstreamsDeps): Promise<Upstreams> {
  const { repositories, remote, config, clock, log } = deps
  for (const [slug, upstream] of config.repos) {
    if (upstream !== null) configured(slug, () => deps.credentials.check(upstream))
    await repositories.create(slug, upstream)
    if (upstream !== null) await repositories.follow(slug, upstream)
  }
  const followed = new Map<RepoSlug, Upstream>()
  for (const slug of await repositories.list()) {
    const upstream = await repositories.upstream(slug)
    if (upstream !== null) followed.set(slug, upstream)
  }
  const closing = new AbortController()
  // Each refresh that runs or waits listens to it.
  setMaxListeners(0, closing.signal)
  const failures = new Map<RepoSlug, HangarError>()
  const notices = new Map<RepoSlug, readonly string[]>()
  /** When upstream was last asked, whatever came of it. */
  const askedAt = new Map<RepoSlug, number>()
  const refreshes = new Flights()
  const most = deps.mostRefreshes ?? MOST_REFRESHES
  const slots = createGitSlots({ most, mostWaiting: Number.POSITIVE_INFINITY, waitMs: REFRESH_WAIT_MS })
  const deliveries = new Map<string, Promise<unknown>>()

  const opened = async (slug: RepoSlug): Promise<Repository> => {
    const repo = await repositories.open(slug)
    if (repo === null) throw errors.notFound(`there is no repo ${slug} on this server`)
    return repo
  }

  const refreshNow = async (slug: RepoSlug, upstream: Upstream): Promise<void> => {
    const repo = await opened(slug)
    let release = () => {}
    try {
      release = await slots.take(slug, closing.signal)
      const { updates, rewritten } = await refreshMirror(remote, repo, upstream, closing.signal)
      if (updates.length > 0) {
        notices.set(slug, rewritten.map(rewrittenNotice))
        for (const notice of rewritten.map(rewrittenNotice)) log.warn({ repo: slug }, notice)
        const forced = rewritten.map(({ ref }) => ref)
        await deps.events.append({ type: 'push', repo: slug, by: 'upstream', updates: [...updates], forced })
      }
      failures.delete(slug)
      await deps.index.meta.put(refreshedKey(slug), clock.now())
    } catch (error) {
      const failure = named(error)
      failures.set(slug, failure)
      log.warn({ repo: slug, code: failure.code, error: failure.message }, 'a mirror could not be refreshed')
      throw failure
    } finally {
      release()
      askedAt.set(slug, clock.now())
    }
  }

  const refreshedAt = async (slug: RepoSlug): Promise<number | null> => {
    const at = await deps.index.meta.get(refreshedKey(slug))
    return typeof at === 'number' ? at : null
  }

  return {
    of: (slug) => followed.get(slug) ?? null,
    state: async (slug) => {
      const upstream = followed.get(slug)
      if (upstream === undefined) return null
      const failure = failures.get(slug) ?? null
      return { upstream, refreshedAt: await refreshedAt(slug), failure, notices: notices.get(slug) ?? [] }
    },
    set: async (slug, upstream) => {
      if (upstream === null) followed.delete(slug)
      else followed.set(slug, upstream)
      for (const map of [failures, notices, askedAt]) map.delete(slug)
      await deps.index.meta.del(refreshedKey(slug))
    },
    probe: async (upstream) => {
      deps.credentials.check(upstream)
      await remote.list(upstream, 'read', closing.signal)
    },
    refresh: async (slug) => {
      const upstream = followed.get(slug)
      if (upstream === undefined) return []
      try {
        await refreshes.fly(slug, () => refreshNow(slug, upstream))
        return notices.get(slug) ?? []
      } catch (error) {
        if (!(await hasBranches(await opened(slug)))) throw error
        return [staleWarning(upstream, named(error), await refreshedAt(slug), clock.now())]
      }
    },
    freshen: async (slug) => {
      const upstream = followed.get(slug)
      if (upstream === undefined || (askedAt.get(slug) ?? -Infinity) > clock.now() - config.freshMs) return
      // Its failure is logged and kept where it happens.
      const flight = refreshes.join(slug, () => refreshNow(slug, upstream)).catch(() => {})
      await within(flight, FETCH_WAIT_MS)
    },
    refuseLfs: async (repo, commit) => {
      if (commit !== null && repo.slug !== null && followed.has(repo.slug)) await refuseLfs(repo, commit)
    },
    deliver: async (slug, ask) => {
      const upstream = followed.get(slug)
      if (upstream === undefined)
        throw errors.conflict(
          `${slug} is hosted here and has no upstream to deliver to; fetch ${short(ask.branch)} from it`,
        )
      if (placeOf(ask.branch) !== 'session_branch')
        throw errors.conflict(`${ask.branch} is no session's branch; only those are delivered`)
      const repo = await opened(slug)
      return inTurn(deliveries, `${slug} ${ask.branch}`, () =>
        deliverBranch(remote, repo, upstream, { ...ask, signal: closing.signal }),
      )
    },
    close: async () => {
      closing.abort()
      await Promise.allSettled([...deliveries.values(), refreshes.settled()])
    },
  }
}

function configured(slug: RepoSlug, check: () => void): void {
  try {
    check()
  } catch (cause) {
    throw errors.configInvalid(`repos.${slug}: ${messageOf(cause)}`, {}, cause)
  }
}

function named(error: unknown): HangarError {
  return error instanceof HangarError ? error : errors.internal(messageOf(error), {}, error)
}

function refreshedKey(slug: RepoSlug): string {
  return `mirrored/${slug}`
}

async function hasBranches(repo: Repository): Promise<boolean> {
  return (await repo.refs.snapshot()).refs.some(({ name }) => placeOf(name) === 'branch')
}

function staleWarning(upstream: Upstream, failure: HangarError, refreshedAt: number | null, now: number): string {
  const age = refreshedAt === null ? 'at an unknown time' : `${Math.round((now - refreshedAt) / 1000)} s ago`
  return `${failure.code}: ${failure.message}. What was fetched from ${upstream.url} ${age} is served`
}

function rewrittenNotice({ ref, old, new: oid }: RefUpdate): string {
  return `upstream_rewritten: ${short(ref)} was forced from ${old} to ${oid} upstream; sessions keep the commits that they began on`
}

function short(ref: RefName): string {
  return Buffer.from(ref, 'latin1')
    .toString('utf8')
    .replace(/^refs\/heads\//, '')
}

async function within(work: Promise<void>, ms: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const enough = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms)
  })
  await Promise.race([work, enough])
  clearTimeout(timer)
}

/** One flight a key, and at most one that waits for it: who asks while one is under way may want what came after it began. */
class Flights {
  readonly #flying = new Map<string, Promise<void>>()
  readonly #waiting = new Map<string, Promise<void>>()

  /** One that begins from now on. */
  fly(key: string, work: () => Promise<void>): Promise<void> {
    const current = this.#flying.get(key)
    if (current === undefined) return this.join(key, work)
    const waiting = this.#waiting.get(key)
    if (waiting !== undefined) return waiting
    const next = current
      .catch(() => {})
      .then(() => {
        this.#waiting.delete(key)
        return this.join(key, work)
      })
    this.#waiting.set(key, next)
    return next
  }

  /** The one under way, or a new one. */
  join(key: string, work: () => Promise<void>): Promise<void> {
    const current = this.#flying.get(key)
    if (current !== undefined) return current
    const flight = work().finally(() => this.#flying.delete(key))
    this.#flying.set(key, flight)
    return flight
  }

  async settled(): Promise<void> {
    await Promise.allSettled([...this.#flying.values(), ...this.#waiting.values()])
  }
}

async function inTurn<T>(turns: Map<string, Promise<unknown>>, key: string, work: () => Promise<T>): Promise<T> {
  const done = (turns.get(key) ?? Promise.resolve()).catch(() => {}).then(work)
  turns.set(key, done)
  try {
    return await done
  } finally {
    if (turns.get(key) === done) turns.delete(key)
  }
}
