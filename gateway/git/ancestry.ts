/** Questions about a repository's history that git answers. */
import type { Oid } from '../../domain/names.ts'
import { isOid } from '../../domain/names.ts'
import { git, runGit } from './process.ts'
import type { Repository } from './repository.ts'

/** At most this many tips are looked at for a merge base: more would not fit on a command line. */
const MAX_TIPS = 1_000

type GitEnv = Readonly<Record<string, string>>

/** Whether `ancestor` is `descendant` or one of its ancestors. Both must be commits of the repository, or of the quarantine that `env` names. */
export async function isAncestor(repo: Repository, ancestor: Oid, descendant: Oid, env: GitEnv = {}): Promise<boolean> {
  if (ancestor === descendant) return true
  const run = await runGit({ gitDir: repo.dir, env, args: ['merge-base', '--is-ancestor', ancestor, descendant] })
  return run.exitCode === 0
}

/** The best common ancestor of a commit with any of the tips (the first thousand); null when they share no history. */
export async function mergeBase(repo: Repository, commit: Oid, tips: readonly Oid[]): Promise<Oid | null> {
  if (tips.length === 0) return null
  if (tips.includes(commit)) return commit
  const run = await runGit({ gitDir: repo.dir, args: ['merge-base', commit, ...new Set(tips.slice(0, MAX_TIPS))] })
  const base = run.stdout.toString('latin1').trim().split('\n')[0] ?? ''
  return run.exitCode === 0 && isOid(base) ? base : null
}

/** All best common ancestors of a commit with the tips (the first thousand). */
export async function mergeBases(repo: Repository, commit: Oid, tips: readonly Oid[], env: GitEnv): Promise<Oid[]> {
  if (tips.length === 0) return []
  const args = ['merge-base', '--all', commit, ...new Set(tips.slice(0, MAX_TIPS))]
  const run = await runGit({ gitDir: repo.dir, env, args })
  return run.stdout.toString('latin1').split('\n').filter(isOid)
}

/** Whether the commit is reachable from at least one of the tips. */
export async function isReachable(repo: Repository, commit: Oid, tips: readonly Oid[]): Promise<boolean> {
  if (tips.includes(commit)) return true
  if (tips.length === 0) return false
  const not = tips.map((tip) => `^${tip}\n`).join('')
  const out = await git({
    gitDir: repo.dir,
    args: ['rev-list', '--max-count=1', '--stdin'],
    input: Buffer.from(`${commit}\n${not}`),
  })
  return out.length === 0
}
