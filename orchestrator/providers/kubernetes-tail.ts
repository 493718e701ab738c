/** A run's output as it comes, kept ready for readers that ask often: one connection follows it, however short they wait. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { TurnCursor, TurnOutput, TurnProcess } from '../../domain/sandbox.ts'
import { followRun, type PodLink } from './kubernetes-exec.ts'

export interface RunTail {
  /** Whether a reader may go on here. */
  isAt(cursor: TurnCursor): boolean
  /** What has come since the last call, waiting up to `waitMs` for it. Throws what the following of the run threw. */
  take(options: {
    readonly waitMs: number
    readonly maxBytes: number
    readonly signal?: AbortSignal
  }): Promise<TurnOutput>
  /** Milliseconds since a reader asked. */
  idleMs(): number
  /** Milliseconds since anything was heard of the run; a frame comes every five seconds. */
  silentMs(): number
  close(): void
}

/** How long the first reader waits for the first word of a run at least: before it, nothing is known. */
const FIRST_MS = 5_000
const RETRY_MS = 1_000
const MAX_HELD_BYTES = 4 * 1_048_576

/** Follows the run in this directory of a pod from a cursor on; a pod that cannot be opened now is tried again for as long as it is said to be there. */
export function followTail(
  open: () => Promise<PodLink>,
  run: { readonly dir: string; readonly from: TurnCursor },
): RunTail {
  const stop = new AbortController()
  let start = run.from
  let out: Buffer = Buffer.alloc(0)
  let err: Buffer = Buffer.alloc(0)
  let process: TurnProcess = { state: 'running' }
  let failure: unknown = null
  let heard = false
  let heardAt = performance.now()
  let asked = performance.now()
  let wakeReader = () => {}
  let wakePump = () => {}
  const opened = async (): Promise<PodLink | null> => {
    while (!stop.signal.aborted)
      try {
        return await open()
      } catch (error) {
        if ((error as { readonly code?: string }).code !== 'sandbox_failed') throw error
        await sleep(RETRY_MS, null, { signal: stop.signal }).catch(() => {})
      }
    return null
  }
  const pump = async () => {
    const pod = await opened()
    if (pod === null) return
    for await (const frame of followRun(pod, { ...run, signal: stop.signal })) {
      out = frame.out.length === 0 ? out : Buffer.concat([out, frame.out])
      err = frame.err.length === 0 ? err : Buffer.concat([err, frame.err])
      process = frame.process
      heard = true
      heardAt = performance.now()
      wakeReader()
      while (out.length + err.length > MAX_HELD_BYTES && !stop.signal.aborted) {
        await new Promise<void>((resolve) => {
          wakePump = resolve
        })
        heardAt = performance.now()
      }
    }
  }
  pump().catch((error: unknown) => {
    failure = error
    wakeReader()
  })
  const news = (waitMs: number, signal: AbortSignal | undefined) =>
    new Promise<void>((resolve) => {
      const done = () => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, waitMs)
      signal?.addEventListener('abort', done)
      wakeReader = done
      if (signal?.aborted) done()
    })
  return {
    isAt: (cursor) => cursor.out === start.out && cursor.err === start.err && failure === null,
    take: async ({ waitMs, maxBytes, signal }) => {
      asked = performance.now()
      const began = asked
      while (out.length === 0 && err.length === 0 && process.state === 'running' && failure === null) {
        const left = began + (heard ? waitMs : Math.max(waitMs, FIRST_MS)) - performance.now()
        if (left <= 0 || signal?.aborted) break
        await news(left, signal)
      }
      asked = performance.now()
      if (failure !== null && out.length === 0 && err.length === 0) throw failure
      const given = { out: out.subarray(0, maxBytes), err: err.subarray(0, maxBytes) }
      out = out.subarray(given.out.length)
      err = err.subarray(given.err.length)
      start = { out: start.out + given.out.length, err: start.err + given.err.length }
      wakePump()
      const drained = out.length === 0 && err.length === 0
      return { ...given, next: start, process: drained ? process : { state: 'running' } }
    },
    idleMs: () => performance.now() - asked,
    silentMs: () => (process.state === 'running' ? performance.now() - heardAt : 0),
    close: () => {
      stop.abort()
      wakePump()
    },
  }
}
