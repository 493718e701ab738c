import type { Clock } from '../../domain/ports.ts'
import type { Repositories } from '../git/repositories.ts'
import type { Index, StoreEvent, StoreEventBody } from './index.ts'

export type { StoreEvent, StoreEventBody } from './index.ts'

export interface EventLog {
  /** Durable when it resolves; gives the event's seq. */
  append(event: StoreEventBody): Promise<number>
  /** Events after `since`. */
  read(since: number, limit: number): Promise<StoreEvent[]>
  /** Events after `since`, without end; ends when the signal aborts or the log closes. */
  follow(since: number, signal: AbortSignal): AsyncIterable<StoreEvent>
  close(): Promise<void>
}

export function createEventLog(_deps: { index: Index; clock: Clock }): Promise<EventLog> {
  throw new Error('not built')
}
export function reconcilePushes(_deps: {
  repositories: Repositories
  index: Index
  events: EventLog
}): Promise<{ events: number }> {
  throw new Error('not built')
}
