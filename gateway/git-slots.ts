/** How many requests may run git at once: a small number runs, a short queue waits, the rest is told to come back. */
import { errors } from '../domain/errors.ts'

export interface GitSlots {
  /** Waits for a slot and gives its release, which may be called more than once. Throws `busy` when too many wait, or it took too long. */
  take(signal: AbortSignal): Promise<() => void>
}

export function createGitSlots(limits: { most: number; mostWaiting: number; waitMs: number }): GitSlots {
  const waiting: (() => void)[] = []
  let running = 0
  const release = () => {
    const next = waiting.shift()
    if (next === undefined) running--
    else next()
  }
  const once = () => {
    let held = true
    return () => {
      if (held) release()
      held = false
    }
  }
  return {
    async take(signal) {
      if (running < limits.most) {
        running++
        return once()
      }
      const busy = () => errors.busy('as many git requests run as the server takes; try again in a few seconds')
      if (waiting.length >= limits.mostWaiting) throw busy()
      await new Promise<void>((resolve, reject) => {
        const give = () => {
          clearTimeout(timer)
          signal.removeEventListener('abort', leave)
          resolve()
        }
        const leave = () => {
          clearTimeout(timer)
          signal.removeEventListener('abort', leave)
          waiting.splice(waiting.indexOf(give), 1)
          reject(busy())
        }
        const timer = setTimeout(leave, limits.waitMs)
        signal.addEventListener('abort', leave)
        waiting.push(give)
      })
      return once()
    },
  }
}
