/** Opens a file of a local sandbox from outside, so that no link, pipe or race of the agent's can lead anywhere else. */
import { constants } from 'node:fs'
import { type FileHandle, open, readlink, realpath } from 'node:fs/promises'
import { sep } from 'node:path'

/** Linux's O_PATH, which Node does not name: a handle on a place, without opening what is there. */
const O_PATH = 0o10000000

/**
 * Opens a regular file for reading when it really lies under `root`; null when it is absent, anything else than a regular file, a
 * link, or elsewhere. The place is held first and looked at, then that very place is opened: nothing can be put in between.
 */
export async function openUnder(root: string, path: string): Promise<FileHandle | null> {
  const place = await open(path, O_PATH | constants.O_NOFOLLOW).catch(() => null)
  if (place === null) return null
  try {
    if (!(await place.stat()).isFile()) return null
    const held = `/proc/self/fd/${place.fd}`
    const [real, realRoot] = await Promise.all([readlink(held), realpath(root)])
    if (!real.startsWith(realRoot + sep)) return null
    return await open(held, constants.O_RDONLY | constants.O_NONBLOCK)
  } catch {
    return null
  } finally {
    await place.close()
  }
}

/** At most `maxBytes` of a file under `root` from an offset; null as `openUnder` says. */
export async function readUnder(
  root: string,
  path: string,
  options: { readonly offset: number; readonly maxBytes: number },
): Promise<Buffer | null> {
  const file = await openUnder(root, path)
  if (file === null) return null
  try {
    const { size } = await file.stat()
    const length = Math.max(0, Math.min(options.maxBytes, size - options.offset))
    const buffer = Buffer.alloc(length)
    let filled = 0
    while (filled < length) {
      const { bytesRead } = await file.read(buffer, filled, length - filled, options.offset + filled)
      if (bytesRead === 0) break
      filled += bytesRead
    }
    return buffer.subarray(0, filled)
  } finally {
    await file.close()
  }
}
