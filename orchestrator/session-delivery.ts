/** Session branches on their way upstream: when asked for, and after each push of the sandbox where the environment says so. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Environment } from '../domain/environment.ts'
import { type ErrorCode, errors, HangarError, messageOf } from '../domain/errors.ts'
import { type Oid, type RefName, type SessionName, workBranch, ZERO_OID } from '../domain/names.ts'
import type { Log } from '../domain/ports.ts'
import type { EventLog, StoreEvent } from '../gateway/state/event-log.ts'
import type { Index, SessionEntry } from '../gateway/state/index.ts'
import { isTransient } from '../gateway/upstream/failure.ts'
import type { Upstreams } from '../gateway/upstream/upstreams.ts'
import { upstreamRef } from '../refs-policy/ref-names.ts'
import type { SessionEvents } from './session-events.ts'
import type { SessionRecords } from './session-records.ts'

/** What became of a delivery; a failed one has a code of docs/errors.md and a sentence. */
export interface Delivery {
  /** `unchanged`: upstream had it already, and that was known. */
  readonly status: 'delivered' | 'unchanged' | 'failed'
  /** The branch's commit; null when nothing was pushed. */
  readonly oid: Oid | null
  /** The branch, here and upstream. */
  readonly ref: RefName
  readonly code: ErrorCode | null
  readonly reason: string | null
  /** Whether trying again later may help by itself. */
  readonly retry: boolean
}

export interface SessionDelivery {
  /** Pushes the session's branch upstream, and tells of it in the session's events. May be called again after a crash at any point. */
  deliver(name: SessionName, options?: { readonly expected?: Oid }): Promise<Delivery>
  /** Begins to follow pushes; what was pushed while no server ran is forwarded first. */
  start(): Promise<void>
  /** Lets go of what waits; the next start finds it again. */
  close(): Promise<void>
}

export interface SessionDeliveryDeps {
  readonly records: SessionRecords
  readonly events: SessionEvents
  readonly storeEvents: Pick<EventLog, 'follow'>
  readonly index: Pick<Index, 'sessions' | 'storeEvents'>
  readonly upstreams: Pick<Upstreams, 'deliver' | 'of'>
  readonly environments: ReadonlyMap<string, Environment>
  readonly log: Log
  /** Milliseconds before the first retry; each further one waits twice as long, at most five minutes. */
  readonly retryMs?: number
}

const RETRY_MS = 1_000
const MAX_RETRY_MS = 5 * 60_000
const BRANCH = /^refs\/heads\/hangar\/([a-z0-9][a-z0-9-]{0,62})$/

export function createSessionDelivery(deps: SessionDeliveryDeps): SessionDelivery {
  const { records, upstreams, log } = deps
  const closing = new AbortController()
  const forwarding = new Map<SessionName, Promise<void>>()
  /** Pushed to again while it was being forwarded. */
  const again = new Set<SessionName>()
  let following: Promise<void> = Promise.resolve()

  const attempt = async (name: SessionName, expected: Oid | undefined): Promise<Delivery> => {
    const { session, repo } = await records.get(name)
    const ref = workBranch(session.name)
    try {
      const { status, oid } = await upstreams.deliver(repo, {
        branch: ref,
        ...(expected === undefined ? {} : { expected }),
      })
      return { status, oid, ref, code: null, reason: null, retry: false }
    } catch (error) {
      const { code, message } = error instanceof HangarError ? error : errors.internal(messageOf(error))
      return { status: 'failed', oid: null, ref, code, reason: message, retry: isTransient(error) }
    }
  }

  const tell = async (name: SessionName, delivery: Delivery): Promise<void> => {
    if (delivery.status === 'unchanged') return
    const { session } = await records.get(name)
    const branch = delivery.ref.replace('refs/heads/', '')
    const text =
      delivery.status === 'delivered'
        ? `${branch} is upstream at ${delivery.oid ?? ''}`
        : `${branch} did not go upstream: ${delivery.code ?? ''}: ${delivery.reason ?? ''}${delivery.retry ? ' (it is tried again)' : ''}`
    const state = delivery.status === 'delivered' ? 'delivered' : 'delivery_failed'
    await deps.events.append(name, session.turns, [{ kind: 'state', state, text }])
    if (delivery.status === 'failed') log.warn({ session: name, code: delivery.code }, text)
  }

  const isForwarded = ({ session, repo }: SessionEntry): boolean =>
    deps.environments.get(session.environment)?.forward === 'on_push' && upstreams.of(repo) !== null

  /** Whether the branch holds work that upstream has not got. */
  const isAhead = async (name: SessionName): Promise<boolean> => {
    const entry = await records.find(name)
    if (entry === null || !isForwarded(entry)) return false
    const repo = await records.repository(name)
    const tip = await repo.refs.read(workBranch(name))
    return (
      tip !== null && tip !== entry.session.baseCommit && tip !== (await repo.refs.read(upstreamRef(workBranch(name))))
    )
  }

  const forward = async (name: SessionName): Promise<void> => {
    let told: string | null = null
    for (let failures = 0; !closing.signal.aborted && (await isAhead(name)); ) {
      const delivery = await attempt(name, undefined)
      if (closing.signal.aborted) return
      if (delivery.reason !== told || delivery.status === 'delivered') await tell(name, delivery)
      told = delivery.reason
      if (delivery.status !== 'failed') {
        failures = 0
        continue
      }
      if (!delivery.retry) return
      const pauseMs = Math.min(MAX_RETRY_MS, (deps.retryMs ?? RETRY_MS) * 2 ** failures++)
      await sleep(pauseMs, undefined, { signal: closing.signal }).catch(() => {})
    }
  }

  const kick = (name: SessionName): void => {
    if (closing.signal.aborted) return
    if (forwarding.has(name)) {
      again.add(name)
      return
    }
    const work = forward(name)
      .catch((error: unknown) => log.error({ session: name, error: messageOf(error) }, 'a push could not be forwarded'))
      .finally(() => {
        forwarding.delete(name)
        if (again.delete(name)) kick(name)
      })
    forwarding.set(name, work)
  }

  const follow = async (since: number): Promise<void> => {
    for await (const event of deps.storeEvents.follow(since, closing.signal))
      for (const name of pushed(event)) kick(name)
  }

  return {
    deliver: async (name, options = {}) => {
      const delivery = await attempt(name, options.expected)
      await tell(name, delivery)
      return delivery
    },
    start: async () => {
      if (![...deps.environments.values()].some(({ forward }) => forward === 'on_push')) return
      const [newest] = await deps.index.storeEvents.range({ reverse: true, limit: 1 })
      for (const [, entry] of await deps.index.sessions.range()) if (isForwarded(entry)) kick(entry.session.name)
      following = follow(newest?.[1].seq ?? 0).catch((error: unknown) =>
        log.error({ error: messageOf(error) }, 'pushes are not forwarded any more; start the server again'),
      )
    },
    close: async () => {
      closing.abort()
      await Promise.allSettled([following, ...forwarding.values()])
    },
  }
}

/** The sessions whose branch an event tells of. */
function pushed(event: StoreEvent): SessionName[] {
  if (event.type !== 'push') return []
  return event.updates.flatMap(({ ref, new: oid }) => {
    const name = oid === ZERO_OID ? undefined : BRANCH.exec(ref)?.[1]
    return name === undefined ? [] : [name as SessionName]
  })
}
