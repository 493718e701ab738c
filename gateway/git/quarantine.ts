/** Objects that were received but not yet accepted: a directory of their own that the store's objects stand behind. */
import { mkdir, mkdtemp, open, readdir, rename, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Repository } from './repository.ts'

export interface Quarantine {
  readonly dir: string
  /** For every git that writes into or reads out of it. */
  readonly env: Readonly<Record<string, string>>
  /** Moves all objects into the store, to be followed by the refs that need them. May be repeated. */
  migrate(): Promise<void>
  /** Forgets them. May be repeated, also after `migrate`. */
  drop(): Promise<void>
}

/**
 * Opens a quarantine (in front of another, whose environment is `behind`, when one builds on the other) in the repository's object directory (same file system, so that migrating is renaming).
 * What a crash leaves behind is swept when the repository is next opened: `objects/incoming-*` goes, `objects/accepted-*` is moved to its end.
 * Source: git's tmp-objdir.c, which receive-pack uses.
 */
export async function openQuarantine(
  repo: Pick<Repository, 'dir'>,
  behind: Readonly<Record<string, string>> = {},
): Promise<Quarantine> {
  const objects = join(repo.dir, 'objects')
  const dir = await mkdtemp(join(objects, 'incoming-'))
  await mkdir(join(dir, 'pack'))
  const other = behind['GIT_OBJECT_DIRECTORY']
  const alternates = [objects, ...(other === undefined ? [] : [other])].map(quoted).join(':')
  return {
    dir,
    env: { GIT_OBJECT_DIRECTORY: dir, GIT_ALTERNATE_OBJECT_DIRECTORIES: alternates, GIT_QUARANTINE_PATH: dir },
    migrate: () => migrate(dir, objects),
    drop: () => rm(dir, { recursive: true, force: true }),
  }
}

/**
 * Ends with nothing of the quarantine left. Objects that need one another are moved one by one, so the directory is first given the name of what
 * is accepted: a crash in between leaves no commit in the store whose parent was not moved any more.
 */
async function migrate(from: string, to: string): Promise<void> {
  const accepted = from.replace(/incoming-(?=[^/]*$)/, ACCEPTED)
  // Not there: it was given that name before.
  await rename(from, accepted).catch(ifThere)
  await moveIn(accepted, to)
}

/** Sweeps what a crash left of quarantines in an object directory. */
export async function sweepQuarantines(objects: string): Promise<void> {
  for (const name of await readdir(objects).catch(() => [])) {
    if (name.startsWith(ACCEPTED)) await moveIn(join(objects, name), objects)
    if (name.startsWith('incoming-')) await rm(join(objects, name), { recursive: true, force: true })
  }
}

const ACCEPTED = 'accepted-'

function ifThere(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error
}

/** A pack counts for git once its .idx is there, so that goes last. */
async function moveIn(from: string, to: string): Promise<void> {
  const names = await readdir(from).catch(() => [])
  const folders = [...names.filter((name) => /^[0-9a-f]{2}$/.test(name)), 'pack']
  await Promise.all(folders.map((name) => moveAll(join(from, name), join(to, name))))
  await rm(from, { recursive: true, force: true })
}

async function moveAll(from: string, to: string): Promise<void> {
  const names = await readdir(from).catch(() => [])
  if (names.length === 0) return
  await mkdir(to, { recursive: true })
  const last = (name: string) => (name.endsWith('.idx') ? 2 : name.endsWith('.pack') ? 0 : 1)
  for (const name of names.sort((a, b) => last(a) - last(b))) {
    if (name.startsWith('tmp_')) continue
    if (await stat(join(to, name)).catch(() => null)) continue
    await rename(join(from, name), join(to, name))
  }
  await syncDirectory(to)
}

async function syncDirectory(dir: string): Promise<void> {
  const handle = await open(dir, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/** A path in a list that git splits at colons. */
function quoted(path: string): string {
  return `"${path.replace(/(["\\])/g, '\\$1')}"`
}
