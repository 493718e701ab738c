/** Waiting until a job is at rest: at an end, or with a person. */
import { isAtRest, type JobRecord } from '../domain/job.ts'
import type { JobId } from '../domain/names.ts'
import type { TurnRecord } from '../domain/session.ts'
import { chosenSession } from './job-attempts.ts'
import type { JobRecords } from './job-records.ts'
import type { SessionEvents } from './session-events.ts'
import type { SessionRecords } from './session-records.ts'
import { progressOf, type Waited } from './waiting.ts'

export interface WaitedJob extends Pick<Waited, 'done' | 'progress' | 'cursor'> {
  readonly job: JobRecord
  /** The newest turn of its chosen session, or of its first attempt while none is; null when that is gone. */
  readonly turn: TurnRecord | null
}

/** Resolves when the job is at rest, or the time is over (`done` false), or the signal aborts. Throws `not_found`. */
export async function waitForJob(
  services: { readonly jobs: JobRecords; readonly records: SessionRecords; readonly events: SessionEvents },
  id: JobId,
  { timeoutMs, signal }: { readonly timeoutMs: number; readonly signal: AbortSignal },
): Promise<WaitedJob> {
  let over = signal.aborted || timeoutMs <= 0
  let wake = () => {}
  const end = () => {
    over = true
    wake()
  }
  const timer = setTimeout(end, timeoutMs)
  const removeListener = services.jobs.onMove(id, () => wake())
  signal.addEventListener('abort', end)
  try {
    for (;;) {
      const moved = new Promise<void>((resolve) => {
        wake = resolve
      })
      const job = await services.jobs.get(id)
      if (isAtRest(job.state) || over) return await lookAt(services, job)
      await moved
    }
  } finally {
    clearTimeout(timer)
    removeListener()
    signal.removeEventListener('abort', end)
  }
}

async function lookAt(
  { records, events }: { readonly records: SessionRecords; readonly events: SessionEvents },
  job: JobRecord,
): Promise<WaitedJob> {
  const name = chosenSession(job) ?? job.attempts[0]?.session
  const turn = name === undefined ? null : ((await records.turns(name)).at(-1) ?? null)
  const newest = name === undefined || turn === null ? [] : await events.ofTurn(name, turn.turn)
  return { done: isAtRest(job.state), job, turn, progress: progressOf(newest), cursor: newest.at(-1)?.seq ?? 0 }
}
