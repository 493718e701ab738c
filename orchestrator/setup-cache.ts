/** What environments' set-ups have made, as files on the server's disk, by a key of all that they depend on; the oldest go first. */
import { randomBytes } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, readdir, rename, rm, stat, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

export interface SetupCache {
  /** The tar that was kept under the key; null when there is none. */
  find(key: string): Promise<Readable | null>
  /** Keeps a tar under a key, whole or not at all. */
  keep(key: string, tar: Readable): Promise<void>
}

/** A cache in a directory of at most `maxBytes`; it may be deleted at any time. */
export function createSetupCache({ dir, maxBytes }: { dir: string; maxBytes: number }): SetupCache {
  const fileOf = (key: string) => join(dir, `${key}.tar`)
  return {
    find: async (key) => {
      const file = fileOf(key)
      if ((await stat(file).catch(() => null)) === null) return null
      // Its last use, by which the oldest are told.
      await utimes(file, new Date(), new Date()).catch(() => {})
      return createReadStream(file)
    },
    keep: async (key, tar) => {
      await mkdir(dir, { recursive: true, mode: 0o700 })
      const temporary = join(dir, `.${randomBytes(8).toString('hex')}`)
      try {
        await pipeline(tar, createWriteStream(temporary, { mode: 0o600 }))
        await rename(temporary, fileOf(key))
      } finally {
        await rm(temporary, { force: true })
      }
      await dropOldest(dir, maxBytes)
    },
  }
}

async function dropOldest(dir: string, maxBytes: number): Promise<void> {
  const files = await Promise.all(
    (await readdir(dir))
      .filter((name) => name.endsWith('.tar'))
      .map(async (name) => ({ file: join(dir, name), found: await stat(join(dir, name)).catch(() => null) })),
  )
  const newest = files
    .flatMap(({ file, found }) => (found === null ? [] : [{ file, size: found.size, usedAt: found.mtimeMs }]))
    .sort((a, b) => b.usedAt - a.usedAt)
  let kept = 0
  for (const { file, size } of newest) {
    kept += size
    if (kept > maxBytes) await rm(file, { force: true })
  }
}
