/** How many requests may run git at once: a small number runs, a short queue waits, the rest is told to come back. No caller can have them all. */
import { errors } from '../domain/errors.ts'

export interface GitSlots {
  /** Waits for a slot and gives its release, which may be called more than once. Throws `busy` when too many wait, or it took too long. */
  take(caller: string, signal: AbortSignal): Promise<() => void>
  load(): { readonly running: number; readonly waiting: number }
}

interface Waiting {
  readonly caller: string
  readonly give: () => void
}

/**
 * A caller that holds a slot gets another only while some stay free for those that hold none (a quarter of all), and of the queue no caller may fill
 * more than a quarter. Of those that wait, who holds least is next, and of these who came first.
 */
export function createGitSlots(limits: { most: number; mostWaiting: number; waitMs: number }): GitSlots {
  const kept = Math.min(limits.most - 1, Math.max(1, Math.floor(limits.most / 4)))
  const waitingOfOne = Math.max(1, Math.floor(limits.mostWaiting / 4))
  const waiting: Waiting[] = []
  const held = new Map<string, number>()
  let running = 0
  const holds = (caller: string) => held.get(caller) ?? 0
  const mayRun = (caller: string) => limits.most - running > (holds(caller) === 0 ? 0 : kept)

  const start = (caller: string): (() => void) => {
    running++
    held.set(caller, holds(caller) + 1)
    let ended = false
    return () => {
      if (ended) return
      ended = true
      running--
      if (holds(caller) === 1) held.delete(caller)
      else held.set(caller, holds(caller) - 1)
      giveOn()
    }
  }

  const giveOn = () => {
    for (;;) {
      let next: Waiting | undefined
      for (const one of waiting)
        if (mayRun(one.caller) && (next === undefined || holds(one.caller) < holds(next.caller))) next = one
      if (next === undefined) return
      waiting.splice(waiting.indexOf(next), 1)
      next.give()
    }
  }

  return {
    load: () => ({ running, waiting: waiting.length }),
    async take(caller, signal) {
      if (mayRun(caller)) return start(caller)
      const busy = () => errors.busy('as many git requests run as the server takes; try again in a few seconds')
      const own = waiting.filter((one) => one.caller === caller).length
      if (waiting.length >= limits.mostWaiting || own >= waitingOfOne) throw busy()
      return new Promise<() => void>((resolve, reject) => {
        const done = () => {
          clearTimeout(timer)
          signal.removeEventListener('abort', leave)
        }
        const one: Waiting = {
          caller,
          give: () => {
            done()
            resolve(start(caller))
          },
        }
        const leave = () => {
          done()
          waiting.splice(waiting.indexOf(one), 1)
          reject(busy())
        }
        const timer = setTimeout(leave, limits.waitMs)
        signal.addEventListener('abort', leave)
        waiting.push(one)
      })
    },
  }
}
