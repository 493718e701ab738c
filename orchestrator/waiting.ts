/** Waiting for a turn to end, woken by its record and never by polling. */
import { errors } from '../domain/errors.ts'
import type { SessionName } from '../domain/names.ts'
import type { RunEvent } from '../domain/run-event.ts'
import type { SessionRecord, TurnRecord } from '../domain/session.ts'
import type { SessionEvents } from './session-events.ts'
import type { SessionRecords } from './session-records.ts'

export interface Waited {
  readonly done: boolean
  readonly session: SessionRecord
  readonly turn: TurnRecord
  /** The newest progress of the turn; while there is none, its newest line. */
  readonly progress: { readonly message: string; readonly pct: number | null } | null
  /** The newest event's seq. */
  readonly cursor: number
}

export interface WaitOptions {
  /** null is the newest turn at the time of asking. */
  readonly turn: number | null
  readonly timeoutMs: number
  readonly signal: AbortSignal
}

/** Resolves when the turn has ended, or the time is over (`done` false), or the signal aborts. Throws `not_found`. */
export async function waitForTurn(
  services: { readonly records: SessionRecords; readonly events: SessionEvents },
  name: SessionName,
  { turn, timeoutMs, signal }: WaitOptions,
): Promise<Waited> {
  const { records, events } = services
  const number = turn ?? (await records.get(name)).session.turns
  if (number === 0)
    throw errors.conflict(`session ${name} has no turn yet; send it a message: hangar session send ${name} "…"`)
  let over = signal.aborted || timeoutMs <= 0
  let wake = () => {}
  const end = () => {
    over = true
    wake()
  }
  const timer = setTimeout(end, timeoutMs)
  const removeListener = records.onMove(name, () => wake())
  signal.addEventListener('abort', end)
  try {
    for (;;) {
      const moved = new Promise<void>((resolve) => {
        wake = resolve
      })
      const record = await records.turn(name, number)
      if (record.state === 'ended' || over) {
        const { session } = await records.get(name)
        const newest = await events.ofTurn(name, number)
        return {
          done: record.state === 'ended',
          session,
          turn: record,
          progress: progressOf(newest),
          cursor: newest.at(-1)?.seq ?? 0,
        }
      }
      await moved
    }
  } finally {
    clearTimeout(timer)
    removeListener()
    signal.removeEventListener('abort', end)
  }
}

/** The newest progress that was told; while there is none, the newest line. */
export function progressOf(events: readonly RunEvent[]): Waited['progress'] {
  const progress = events.filter((event) => event.kind === 'progress').at(-1)
  if (progress?.kind === 'progress') return { message: progress.message, pct: progress.pct ?? null }
  const line = events.filter((event) => event.kind === 'message').at(-1)
  return line?.kind === 'message' ? { message: line.text, pct: null } : null
}
