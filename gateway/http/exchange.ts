/** One good request on its way, with what it may take: a slot for its git, and so much time. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Caller } from '../../domain/grant.ts'
import type { Metrics } from '../../domain/metrics.ts'
import type { Log } from '../../domain/ports.ts'
import type { Repository } from '../git/repositories.ts'
import type { GitSlots } from '../git-slots.ts'
import type { GitRequest } from './git-request.ts'

/** A request that was found good, with all that serving it needs. */
export interface Exchange {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly request: GitRequest
  readonly caller: Caller
  readonly repo: Repository
  /** Aborted when the client goes, or the server closes. */
  readonly signal: AbortSignal
}

export interface Exchanges {
  /** Waits for a slot of the caller's and gives its release, which may be called more than once. Throws `busy`. */
  takeSlot(exchange: Exchange): Promise<() => void>
  /** Does the work with a signal that aborts with the exchange's, and when it has had its time. */
  inTime(exchange: Exchange, work: (signal: AbortSignal) => Promise<void>): Promise<void>
}

export function createExchanges(deps: {
  readonly slots: GitSlots
  readonly maxMs: number
  readonly metrics: Metrics
  readonly log: Log
}): Exchanges {
  return {
    async takeSlot({ caller, signal }) {
      return deps.slots.take(`${caller.kind}:${caller.id}`, signal).catch((error: unknown) => {
        if (!signal.aborted) deps.metrics.count('hangar_git_busy_total', {})
        throw error
      })
    },
    async inTime({ caller, signal, repo }, work) {
      const late = new AbortController()
      const abort = () => late.abort()
      const timer = setTimeout(() => {
        deps.log.warn({ repo: repo.slug, by: `${caller.kind}:${caller.id}` }, 'a fetch or push took longer than it may')
        abort()
      }, deps.maxMs)
      signal.addEventListener('abort', abort)
      if (signal.aborted) abort()
      try {
        await work(late.signal)
      } finally {
        clearTimeout(timer)
        signal.removeEventListener('abort', abort)
      }
    },
  }
}
