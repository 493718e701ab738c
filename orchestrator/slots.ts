/** The queue of turns: a bounded number runs at once, in all and per repo, shared fairly between those who ask. */
import type { RepoSlug } from '../domain/names.ts'

/** What wants to run. */
export interface SlotRequest {
  readonly repo: RepoSlug
  /** Who asked for it; all that nobody asked for by name count as one. */
  readonly requester: string
  /** An aborted wait goes through at once: its turn ends without running. */
  readonly signal: AbortSignal
}

export interface Slots {
  /** Resolves with its release when it may run. */
  take(request: SlotRequest): Promise<() => void>
  load(): { readonly running: number; readonly queued: number }
}

interface Waiting extends SlotRequest {
  readonly grant: () => void
}

/**
 * A free slot goes to the requester who holds the fewest, among equals to who has waited longest; what waits only for its repo keeps nobody
 * else waiting.
 */
export function createSlots({ max, maxPerRepo }: { readonly max: number; readonly maxPerRepo: number }): Slots {
  const held = new Set<SlotRequest>()
  let waiting: Waiting[] = []
  const count = (matches: (request: SlotRequest) => boolean) => [...held].filter(matches).length
  const heldBy = (who: SlotRequest) => count(({ requester }) => requester === who.requester)
  const isRoom = (request: SlotRequest) =>
    held.size < max && count(({ repo }) => repo.toLowerCase() === request.repo.toLowerCase()) < maxPerRepo

  const hold = (request: SlotRequest): (() => void) => {
    held.add(request)
    return () => {
      if (held.delete(request)) next()
    }
  }
  const next = (): void => {
    for (;;) {
      // The sort is stable: among equals the order of asking stays.
      const [first] = waiting.filter(isRoom).sort((a, b) => heldBy(a) - heldBy(b))
      if (first === undefined) return
      waiting = waiting.filter((other) => other !== first)
      first.grant()
    }
  }

  return {
    load: () => ({ running: held.size, queued: waiting.length }),
    take: async (request) => {
      if (request.signal.aborted) return () => {}
      return new Promise((resolve) => {
        const abandoned = () => {
          waiting = waiting.filter((other) => other !== entry)
          resolve(() => {})
        }
        const entry: Waiting = {
          ...request,
          grant: () => {
            request.signal.removeEventListener('abort', abandoned)
            resolve(hold(request))
          },
        }
        request.signal.addEventListener('abort', abandoned, { once: true })
        waiting.push(entry)
        next()
      })
    },
  }
}
