/** Serves fetches: an answer that is kept from its file, any other by git's own upload-pack. */
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { messageOf } from '../../domain/errors.ts'
import type { Limits } from '../../domain/limits.ts'
import type { Metrics } from '../../domain/metrics.ts'
import type { Log } from '../../domain/ports.ts'
import { checkAtOnce, checkFetch, packKey, startUploadPack } from '../fetch.ts'
import { killGit } from '../git/process.ts'
import { createPackCache, type KeptAnswer } from '../pack-cache.ts'
import type { Reachable } from '../reachable.ts'
import type { View, Views } from '../view.ts'
import { errorLine, type FetchRequest } from '../wire/upload-pack.ts'
import { sendGit, startGitAnswer } from './answer.ts'
import type { Exchange, Exchanges } from './exchange.ts'

export interface Fetches {
  serve(exchange: Exchange, wanted: FetchRequest): Promise<void>
  /** Ends what still runs for answers that are kept. */
  close(): Promise<void>
}

/** A reader that takes nothing for so long is given up. */
const ANSWER_IDLE_MS = 5 * 60_000

export function createFetches(deps: {
  readonly views: Views
  readonly reachable: Reachable
  readonly exchanges: Exchanges
  readonly limits: Pick<Limits, 'maxPackCacheBytes' | 'maxTransferMs'>
  readonly log: Log
  readonly metrics: Metrics
}): Fetches {
  const { views, reachable, exchanges, limits, log, metrics } = deps
  const packs = createPackCache({
    maxBytes: limits.maxPackCacheBytes,
    maxMs: limits.maxTransferMs,
    log,
    onLookup: (result) => metrics.count('hangar_cache_requests_total', { cache: 'packs', result }),
  })
  metrics.gauge('hangar_pack_cache_bytes', () => [{ labels: {}, value: packs.load().bytes }])
  /** An answer that is kept takes neither git nor a slot. */
  async function serve(exchange: Exchange, wanted: FetchRequest): Promise<void> {
    const { request, repo, caller } = exchange
    const view = await views.of(repo, caller)
    const seen = checkAtOnce(view, wanted)
    const key = seen?.ok ? packKey(view, wanted, request.protocol, seen.input) : null
    await exchanges.inTime(exchange, async (signal) => {
      const kept = key === null ? null : await packs.find(repo, key)
      if (kept !== null) await sendKept(exchange.res, kept, signal)
      else await askGit(exchange, view, wanted, signal)
    })
  }

  async function askGit(exchange: Exchange, view: View, wanted: FetchRequest, signal: AbortSignal): Promise<void> {
    const { res, repo, request } = exchange
    const release = await exchanges.takeSlot(exchange)
    let handedOn = false
    try {
      const checked = await checkFetch(reachable, repo, view, wanted, signal)
      if (!checked.ok) return sendGit(res, 'upload-pack', 'result', errorLine(checked.sentence))
      if (signal.aborted) return void res.destroy()
      const start = (output?: string) => startUploadPack(repo, request.protocol, checked.input, output)
      const key = packKey(view, wanted, request.protocol, checked.input)
      const kept = key === null ? null : await packs.keep(repo, key, start, release)
      // The slot goes with git, which may have others to write for when this client is gone or slow.
      handedOn = kept !== null
      if (kept !== null) return await sendKept(res, kept, signal)
      startGitAnswer(res, 'upload-pack', 'result')
      await pour(start(), res, signal)
    } finally {
      if (!handedOn) release()
    }
  }

  async function sendKept(res: ServerResponse, kept: KeptAnswer, signal: AbortSignal): Promise<void> {
    const cut = () => res.destroy()
    const idle = setTimeout(cut, ANSWER_IDLE_MS)
    signal.addEventListener('abort', cut)
    const gone = once(res, 'close').then(
      () => false,
      () => false,
    )
    try {
      if (signal.aborted) cut()
      startGitAnswer(res, 'upload-pack', 'result')
      if (kept.size !== null) res.setHeader('Content-Length', kept.size)
      for await (const chunk of kept.chunks()) {
        const written = new Promise<boolean>((resolve) => res.write(chunk, (error) => resolve(!error)))
        if (!(await Promise.race([written, gone]))) return
        idle.refresh()
      }
      res.end()
    } catch {
      // Whatever goes wrong cuts the answer; what that is concerns the client alone, or is logged by the cache.
      cut()
    } finally {
      clearTimeout(idle)
      signal.removeEventListener('abort', cut)
      await kept.leave()
    }
  }

  /** Sends git's output on as the client takes it; whatever way it ends, no process is left. */
  async function pour(child: ChildProcess, res: ServerResponse, signal: AbortSignal): Promise<void> {
    let stderr = ''
    const end = () => {
      // Whatever git still says is not the answer: the client must see that it was cut.
      res.destroy()
      killGit(child)
    }
    const idle = setTimeout(end, ANSWER_IDLE_MS)
    signal.addEventListener('abort', end)
    child.stdout?.on('data', () => idle.refresh())
    child.stderr?.on('data', (chunk: Buffer) => {
      if (stderr.length < 2_000) stderr += chunk.toString('latin1')
    })
    child.stdout?.pipe(res)
    const status = await new Promise<number | null>((resolve) => {
      child.once('error', (error) => {
        log.error({ error: messageOf(error) }, 'git could not be started')
        res.destroy()
        resolve(null)
      })
      child.once('close', resolve)
      if (signal.aborted) end()
    })
    clearTimeout(idle)
    signal.removeEventListener('abort', end)
    if (status !== 0 && !signal.aborted) log.warn({ status, stderr: stderr.slice(0, 2_000) }, 'upload-pack failed')
  }

  return { serve, close: packs.close }
}
