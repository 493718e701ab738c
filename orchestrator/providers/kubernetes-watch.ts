/** All pods of an install as one watch tells them: began again after every break, listed anew when it must be, silent or not. */
import { setTimeout as sleep } from 'node:timers/promises'
import { messageOf } from '../../domain/errors.ts'
import type { Log } from '../../domain/ports.ts'
import { backOffMs, type Cluster, ClusterError, isStatus, type WatchEvent } from './kubernetes-cluster.ts'
import { type Pod, type PodState, podState } from './kubernetes-pod-state.ts'

export interface PodWatch {
  /** What was last heard of a pod; null: nothing, or it is gone. */
  get(name: string): Pod | null
  /** Why a pod that is gone ended, as long as it is remembered. */
  endOf(name: string): string | null
  /** Takes in what a call told, which may be newer. */
  note(pod: Pod): void
  noteGone(name: string, reason: string): void
  /** Resolves at the next news of any pod, and after `ms` at the latest. */
  next(ms: number): Promise<void>
  close(): Promise<void>
}

export interface PodWatchDeps {
  readonly cluster: Cluster
  readonly selector: string
  readonly log: Log
  /** After this the server ends each watch, and all pods are listed anew. */
  readonly watchSeconds: number
}

const MAX_REMEMBERED = 1_000

/** Begins at once; nothing has been heard yet when this returns. */
export function createPodWatch(deps: PodWatchDeps): PodWatch {
  const pods = new Map<string, Pod>()
  const ends = new Map<string, string>()
  /** Uids that are known to be gone: a watch that lags behind may still tell of them, when a new pod bears their name. */
  const gone = new Set<string>()
  const waiting = new Set<() => void>()
  const stop = new AbortController()
  const news = () => {
    for (const wake of waiting) wake()
    waiting.clear()
  }
  const remember = (name: string, reason: string) => {
    ends.delete(name)
    ends.set(name, reason)
    keepNewest(ends)
  }
  const bury = (uid: string | undefined) => {
    if (uid !== undefined) gone.add(uid)
    keepNewest(gone)
  }
  const note = (pod: Pod) => {
    const { name, uid } = pod.metadata
    const before = pods.get(name)?.metadata.uid
    if (before !== uid) bury(before)
    gone.delete(uid ?? '')
    pods.set(name, pod)
    const state = podState(pod)
    if (state.kind === 'ended') remember(name, reasonOver(ends.get(name), state))
    else ends.delete(name)
    news()
  }
  const noteGone = (name: string, reason: string) => {
    bury(pods.get(name)?.metadata.uid)
    pods.delete(name)
    if (!ends.has(name)) remember(name, reason)
    news()
  }
  const onEvent = ({ type, object }: WatchEvent) => {
    if (type === 'ERROR') throw new ClusterError(object.code ?? 500, 'Watch', object.message ?? 'the watch failed')
    if (type === 'BOOKMARK') return
    const { name, uid } = object.metadata
    if (uid !== undefined && gone.has(uid)) {
      // Only how it ended is still of use, while nothing new bears its name.
      const state = podState(object)
      if (!pods.has(name) && state.kind === 'ended') remember(name, reasonOver(ends.get(name), state))
      return
    }
    note(object)
    if (type === 'DELETED') noteGone(name, 'its pod was deleted')
  }
  const round = async () => {
    const before = new Map([...pods].map(([name, { metadata }]) => [name, metadata.uid]))
    const list = await deps.cluster.listPods(deps.selector)
    for (const pod of list.items) if (!gone.has(pod.metadata.uid ?? '')) note(pod)
    const there = new Set(list.items.map(({ metadata }) => metadata.name))
    // What was made while the list was on its way is not in it.
    for (const [name, uid] of before)
      if (!there.has(name) && pods.get(name)?.metadata.uid === uid) noteGone(name, 'its pod was deleted')
    await deps.cluster.watchPods(deps.selector, {
      resourceVersion: list.resourceVersion,
      seconds: deps.watchSeconds,
      signal: stop.signal,
      onEvent,
    })
  }
  const running = (async () => {
    let failures = 0
    while (!stop.signal.aborted) {
      try {
        await round()
        failures = 0
      } catch (error) {
        if (stop.signal.aborted) return
        // 410 says only that the list is too old to go on from.
        failures = isStatus(error, 410) ? Math.max(failures, 1) : failures + 1
        if (failures === 4)
          deps.log.warn({ error: messageOf(error) }, 'the watch of the pods keeps breaking; it goes on trying')
        await sleep(backOffMs(failures, error), undefined, { signal: stop.signal }).catch(() => {})
      }
    }
  })()
  return {
    get: (name) => pods.get(name) ?? null,
    endOf: (name) => ends.get(name) ?? null,
    note,
    noteGone,
    next: (ms) =>
      new Promise((resolve) => {
        const done = () => {
          clearTimeout(timer)
          waiting.delete(done)
          resolve()
        }
        const timer = setTimeout(done, ms)
        waiting.add(done)
      }),
    close: async () => {
      stop.abort()
      news()
      await running
    },
  }
}

function keepNewest(kept: Map<string, unknown> | Set<string>): void {
  for (const oldest of kept.keys()) {
    if (kept.size <= MAX_REMEMBERED) break
    kept.delete(oldest)
  }
}

/** The first reason is the cause; that the pod was deleted, or ended by a signal, comes of it. */
function reasonOver(known: string | undefined, state: Extract<PodState, { kind: 'ended' }>): string {
  const weak = known === undefined || /^its pod (was deleted|ended)/.test(known)
  return weak ? state.reason : known
}
