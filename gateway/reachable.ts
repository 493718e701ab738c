/** Whether objects may be shown to a caller: they are reachable from the tips that it sees. Answers come from git; long ones are remembered. */
import { createHash } from 'node:crypto'
import { isOid, type Oid } from '../domain/names.ts'
import { gitLines, revisions } from './git/lines.ts'
import { OidSet } from './git/oid-set.ts'
import type { Repository } from './git/repository.ts'

export interface Reachable {
  /** Those of the objects that the tips do not reach, the ones that do not exist among them. */
  unreachable(repo: Repository, oids: Iterable<Oid>, tips: ReadonlySet<Oid>, signal: AbortSignal): Promise<Set<Oid>>
}

/** A walk over all objects is remembered up to this many of them (40 bytes each), for this many sets of tips. */
const MOST_OBJECTS = 2_000_000
const MOST_WALKS = 4

export function createReachable(): Reachable {
  const walks = new Map<string, OidSet>()
  return {
    async unreachable(repo, oids, tips, signal) {
      const asked = [...new Set(oids)].filter((oid) => !tips.has(oid))
      const missing = new Set<Oid>()
      const commits: Oid[] = []
      const others: Oid[] = []
      for (const oid of asked) {
        const info = await repo.objects.info(oid)
        if (info === null) missing.add(oid)
        else if (info.type === 'commit') commits.push(oid)
        else others.push(oid)
      }
      for (const oid of await unreachableCommits(repo, commits, tips, signal)) missing.add(oid)
      for (const oid of await unreachableObjects(repo, others, tips, walks, signal)) missing.add(oid)
      return missing
    },
  }
}

async function unreachableCommits(
  repo: Repository,
  commits: readonly Oid[],
  tips: ReadonlySet<Oid>,
  signal: AbortSignal,
): Promise<Oid[]> {
  if (commits.length === 0) return []
  const reached = new Set<string>(commits)
  const hidden: Oid[] = []
  const input = revisions(commits, tips)
  const { exitCode } = await gitLines({ gitDir: repo.dir, args: ['rev-list', '--stdin'], input, signal }, (line) => {
    if (reached.delete(line)) hidden.push(line as Oid)
    return reached.size > 0
  })
  return exitCode === 0 || exitCode === null ? hidden : [...commits]
}

/** Trees, blobs and tags: lazy fetches of partial clones ask for them. First the trees of the tips themselves, which a checkout needs; then all history. */
async function unreachableObjects(
  repo: Repository,
  oids: readonly Oid[],
  tips: ReadonlySet<Oid>,
  walks: Map<string, OidSet>,
  signal: AbortSignal,
): Promise<Set<Oid>> {
  const left = new Set<Oid>(oids)
  if (left.size === 0) return left
  const key = createHash('sha1')
    .update(repo.dir)
    .update([...tips].sort().join(''))
    .digest('hex')
  const walk = walks.get(key)
  if (walk !== undefined) {
    for (const oid of oids) if (walk.has(oid)) left.delete(oid)
    return left
  }
  await listObjects(repo, ['--no-walk=unsorted'], tips, signal, (oid) => {
    left.delete(oid)
    return left.size > 0
  })
  if (left.size === 0) return left
  const seen = new OidSet()
  const whole = await listObjects(repo, [], tips, signal, (oid) => {
    left.delete(oid)
    if (seen.size <= MOST_OBJECTS) seen.add(oid)
    return left.size > 0 || seen.size <= MOST_OBJECTS
  })
  if (whole && seen.size <= MOST_OBJECTS) {
    const oldest = walks.keys().next().value
    if (walks.size >= MOST_WALKS && oldest !== undefined) walks.delete(oldest)
    walks.set(key, seen)
  }
  return left
}

async function listObjects(
  repo: Repository,
  args: readonly string[],
  tips: ReadonlySet<Oid>,
  signal: AbortSignal,
  take: (oid: Oid) => boolean,
): Promise<boolean> {
  const { exitCode } = await gitLines(
    {
      gitDir: repo.dir,
      args: ['rev-list', '--objects', '--no-object-names', ...args, '--stdin'],
      input: revisions(tips, []),
      signal,
    },
    (line) => !isOid(line) || take(line),
  )
  return exitCode === 0
}
