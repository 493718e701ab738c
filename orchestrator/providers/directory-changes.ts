/** Waiting for changes in a directory of this host, told by the kernel where it can tell. */
import { type FSWatcher, watch } from 'node:fs'

export interface DirectoryChanges {
  /** Resolves at the first change since the last call, or since the watch began, and after `ms` at the latest. */
  next(ms: number): Promise<void>
  close(): void
}

/** Where nothing can be watched (no more inotify watches, no such directory), `next` comes back this soon. */
const UNWATCHED_MS = 20

/** Watches a directory's entries, not what is below them. Look at the directory after the watch began, so that no change is missed. */
export function watchDirectory(dir: string): DirectoryChanges {
  let changed = false
  let wake = () => {}
  const watcher = startWatch(dir, () => {
    changed = true
    wake()
  })
  return {
    async next(ms) {
      if (!changed)
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, watcher === null ? Math.min(ms, UNWATCHED_MS) : ms)
          wake = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      changed = false
    },
    close: () => watcher?.close(),
  }
}

function startWatch(dir: string, onChange: () => void): FSWatcher | null {
  try {
    return watch(dir, { persistent: false }, onChange).on('error', () => {})
  } catch {
    return null
  }
}
