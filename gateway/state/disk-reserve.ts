/** Room that is kept on the store's disk, so that what happened can still be recorded when an agent, or anyone else, has filled the disk. */
import { randomBytes } from 'node:crypto'
import { statfsSync } from 'node:fs'
import { mkdir, open, rm, stat, truncate } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { errors } from '../../domain/errors.ts'
import { MB } from '../../domain/limits.ts'
import type { Log } from '../../domain/ports.ts'

export interface DiskReserve {
  /**
   * Does a write that may fail, and changes nothing then. On a full disk it is tried again: after moments in which others may have ended,
   * then with a quarter of the reserve given up each time. Throws `disk_full` when nothing is left to give.
   */
  write<T>(work: () => Promise<T>): Promise<T>
  /** Throws `disk_full` while the disk has no room for new work. */
  check(): void
  /** Makes the reserve again where there is room. */
  restore(): Promise<void>
  close(): Promise<void>
}

const RESERVE_BYTES = 64 * MB
/** Below this a write may fail at any moment. */
const FULL_BYTES = MB
const RESTORE_MS = 15_000
/** Most programs end at the first write that finds no room; what is given up before that is gone. */
const WAITS = 4
const WAIT_MS = 500

/** Opens the reserve of a data directory; it is made again when there is room for two. Throws `disk_full` where there is neither room nor a reserve. */
export async function openDiskReserve(deps: { readonly dataDir: string; readonly log: Log }): Promise<DiskReserve> {
  const { dataDir, log } = deps
  const file = join(dataDir, 'reserve')
  await mkdir(dataDir, { recursive: true })
  const free = () => {
    const { bavail, bsize, blocks } = statfsSync(dataDir)
    return { bytes: bavail * bsize, reserve: Math.min(RESERVE_BYTES, Math.floor((blocks * bsize) / 10)) }
  }
  const isFull = () => free().bytes < FULL_BYTES
  const diskFull = (cause?: unknown) =>
    errors.diskFull(
      `the disk of ${dataDir} is full (${Math.floor(free().bytes / MB)} MB free): close sessions with "hangar session close NAME --delete", or free room on it, and try again`,
      {},
      cause,
    )
  const giveUp = async () => {
    const size = (await stat(file).catch(() => null))?.size ?? 0
    if (size === 0) return false
    const left = Math.max(0, size - Math.ceil(free().reserve / 4))
    await truncate(file, left)
    log.error(
      { dir: dataDir, left },
      'the disk is full; a part of the reserve is given up, so that records can still be written',
    )
    return true
  }
  const restore = async () => {
    const { bytes, reserve } = free()
    const has = (await stat(file).catch(() => null))?.size ?? 0
    if (has >= reserve || bytes < 2 * reserve) return
    const handle = await open(file, 'w', 0o600)
    try {
      // Noise: a file of zeros takes no room on some file systems.
      const block = randomBytes(MB)
      for (let written = 0; written < reserve; written += block.length) await handle.write(block)
    } finally {
      await handle.close()
    }
  }
  const restoring = () => restore().catch(() => rm(file, { force: true }))
  if (!isFull()) await restoring()
  else if (!(await giveUp())) throw diskFull()
  const timer = setInterval(() => void restoring(), RESTORE_MS)
  timer.unref()
  return {
    async write(work) {
      for (let tries = 1; ; tries++)
        try {
          return await work()
        } catch (error) {
          if (!isFull()) throw error
          if (tries <= WAITS) await sleep(WAIT_MS)
          else if (!(await giveUp())) throw diskFull(error)
        }
    },
    check() {
      const { bytes, reserve } = free()
      if (bytes < reserve / 4) throw diskFull()
    },
    restore,
    close: async () => clearInterval(timer),
  }
}
