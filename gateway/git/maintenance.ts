/** Upkeep of a repository's objects, off every request's path: few packs, and nothing kept that no ref has needed for two weeks. */
import { readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { errors } from '../../domain/errors.ts'
import { runGit } from './process.ts'
import type { Repository } from './repository.ts'

/** Repacking costs; so few packs or loose objects are not worth it. */
const MANY_PACKS = 30
const MANY_LOOSE = 2_000
/** Longer than any hand-over or push takes: what it has brought, and no ref names yet, is younger. */
const PRUNE_EXPIRY = '2.weeks.ago'
const TIMEOUT_MS = 60 * 60_000
/** Below a repository: answers of upload-pack, which any moment may go (`pack-cache.ts`). */
export const PACK_CACHE_DIR = 'pack-cache'

/** Repacks when there is much to gain. Objects are never removed here, only moved into larger packs. */
export async function repackWhenMany(repo: Repository): Promise<boolean> {
  const { packs, loose } = await countObjects(repo.dir)
  if (packs <= MANY_PACKS && loose <= MANY_LOOSE) return false
  await maintain(repo, ['repack', '--geometric=2', '-d', '-q', '--write-midx'])
  return true
}

/** Removes what no ref has reached for two weeks: that of deleted sessions, of refused hand-overs. */
export async function pruneOld(repo: Repository): Promise<void> {
  // Unreachable objects leave their packs as loose ones of the packs' age, and go when that is old enough.
  await maintain(repo, ['repack', '-A', '-d', '-q', `--unpack-unreachable=${PRUNE_EXPIRY}`])
  await maintain(repo, ['prune', `--expire=${PRUNE_EXPIRY}`])
  // Kept answers may hold what has just gone.
  await rm(join(repo.dir, PACK_CACHE_DIR), { recursive: true, force: true })
}

async function maintain({ dir }: Repository, args: readonly string[]): Promise<void> {
  const { exitCode, stderr } = await runGit({ gitDir: dir, args, timeoutMs: TIMEOUT_MS })
  if (exitCode !== 0) throw errors.gitFailed(`git ${args[0]} failed`, { reason: stderr.slice(0, 2_000) })
}

async function countObjects(dir: string): Promise<{ packs: number; loose: number }> {
  const objects = join(dir, 'objects')
  const packs = (await readdir(join(objects, 'pack')).catch(() => [])).filter((name) => name.endsWith('.pack')).length
  // Object names are evenly spread: one of the 256 directories tells of all.
  const loose = (await readdir(join(objects, '17')).catch(() => [])).length * 256
  return { packs, loose }
}
