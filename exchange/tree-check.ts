/** What changed between two trees, and whether a handed-in change plants something that may not enter. */
import { errors } from '../domain/errors.ts'
import { DEFAULT_LIMITS, MB } from '../domain/limits.ts'
import { isDotGit, type Oid } from '../domain/names.ts'
import { gitLines } from '../gateway/git/lines.ts'
import { git, runGit } from '../gateway/git/process.ts'
import type { Repository, TreeEntry } from '../gateway/git/repository.ts'
import { readLinks, whereItLeads } from './tree-links.ts'

export interface DiffEntry {
  readonly status: 'A' | 'D' | 'M' | 'T'
  /** The new mode and blob; for a deletion zeros. */
  readonly mode: TreeEntry['mode']
  readonly oid: Oid
  /** Bytes as latin1. */
  readonly path: string
}

/** Where git reads objects that may be in quarantine. */
export type GitEnv = Readonly<Record<string, string>>

/** A change that came with an item. */
export interface HandedChange {
  readonly from: Oid
  readonly to: Oid
  readonly env: GitEnv
  /** Trees that the project has and the change was built on too (it merged them): what they hold is not the item's. Asked for when needed. */
  readonly others?: () => Promise<readonly Oid[]>
}

/** The files that differ between two trees; null when they are more than `max`. `keep` picks those that are wanted (all are counted). */
export async function rawDiff(
  repo: Repository,
  { from, to, env }: Pick<HandedChange, 'from' | 'to' | 'env'>,
  max: number = Number.POSITIVE_INFINITY,
  keep: (entry: DiffEntry) => boolean = () => true,
): Promise<DiffEntry[] | null> {
  const entries: DiffEntry[] = []
  let count = 0
  let head: string | null = null
  const { exitCode, stderr } = await gitLines(
    {
      gitDir: repo.dir,
      env,
      args: ['diff-tree', '-r', '-z', '--raw', '--no-renames', '--no-abbrev', '--end-of-options', from, to],
      input: '',
      separator: '\0',
      timeoutMs: DEFAULT_LIMITS.handedTimeoutMs,
    },
    (field) => {
      if (head === null) {
        head = field
        return true
      }
      const [, mode, , oid, status] = head.split(' ') as [string, TreeEntry['mode'], string, Oid, DiffEntry['status']]
      const entry: DiffEntry = { status, mode, oid, path: field }
      head = null
      if (keep(entry)) entries.push(entry)
      return ++count <= max
    },
  )
  if (exitCode === null) return null
  if (exitCode !== 0) throw errors.gitFailed(`git diff-tree ended with ${exitCode}`, { reason: stderr.trim() })
  return entries
}

/**
 * The sentence about the first thing that a patch or bundle may not bring, or null: too much, a name that no checkout can hold, a `.git`,
 * a submodule that cannot be had, a symbolic link out of the tree. Only what the change brings is judged.
 */
export async function refuseChange(
  repo: Repository,
  change: HandedChange,
  item: 'patch' | 'bundle',
): Promise<string | null> {
  const brought = await rawDiff(repo, change, DEFAULT_LIMITS.maxHandedFiles)
  if (brought === null)
    return `it changes more than ${DEFAULT_LIMITS.maxHandedFiles} files, the most that a ${item} may; push it instead (--from-local)`
  const entries = brought.filter((entry) => entry.status !== 'D')
  const reason = await firstReason(repo, change, entries, item)
  if (reason === null || change.others === undefined) return reason
  const own = await withoutOthers(repo, change, entries, await change.others())
  return own.length === entries.length ? reason : firstReason(repo, change, own, item)
}

/** The sentence about what no other checkout can hold of a person's own work tree, or null: impossible names, submodule links that lead nowhere. */
export async function refuseOwn(repo: Repository, change: HandedChange): Promise<string | null> {
  let named: string | null = null
  const links = await rawDiff(repo, change, DEFAULT_LIMITS.maxCheckpointFiles, (entry) => {
    if (entry.status !== 'D') named ??= refuseName(entry.path)
    return entry.mode === '160000'
  })
  if (links === null) return `it changes more than ${DEFAULT_LIMITS.maxCheckpointFiles} files, the most that are taken`
  return named ?? strayGitlink(repo, change, links)
}

/** The sentence about untracked files of more than `maxBytes`, or null: an environment takes no more, and would leave the rest out of its checkpoints. */
export async function refuseUntracked(repo: Repository, tree: Oid, maxBytes: number): Promise<string | null> {
  let bytes = 0
  let biggest = { path: '', size: 0 }
  const { exitCode, stderr } = await gitLines(
    {
      gitDir: repo.dir,
      args: ['ls-tree', '-r', '-l', '-z', '--end-of-options', tree],
      input: '',
      separator: '\0',
      timeoutMs: DEFAULT_LIMITS.handedTimeoutMs,
    },
    (entry) => {
      const [, size = '', path = ''] = /^\d+ \w+ \w+ +(\d+|-)\t(.*)$/s.exec(entry) ?? []
      const count = size === '-' ? 0 : Number(size)
      bytes += count
      if (count > biggest.size) biggest = { path, size: count }
      return true
    },
  )
  if (exitCode !== 0) throw errors.gitFailed(`git ls-tree ended with ${exitCode}`, { reason: stderr.trim() })
  if (bytes <= maxBytes) return null
  return `its untracked files have ${inMb(bytes)} MB, and the environment takes ${inMb(maxBytes)} (limits.untracked_mb); the biggest is ${shown(biggest.path)} with ${inMb(biggest.size)} MB: commit, ignore or remove what need not travel`
}

const inMb = (bytes: number) => (bytes / MB).toFixed(1).replace(/\.0$/, '')

async function firstReason(
  repo: Repository,
  change: HandedChange,
  entries: readonly DiffEntry[],
  item: 'patch' | 'bundle',
): Promise<string | null> {
  for (const entry of entries) {
    const reason = refuseName(entry.path)
    if (reason !== null) return reason
  }
  const gitlinks = entries.filter((entry) => entry.mode === '160000')
  const [gitlink] = gitlinks
  if (gitlink !== undefined && item === 'patch')
    return `${shown(gitlink.path)} is a submodule link: its commits cannot be handed in by a patch; commit and push the submodule, commit its move here, and hand that over as a bundle or with --from-local`
  return (
    (await strayGitlink(repo, change, gitlinks)) ??
    (await refuseLinks(repo, change, entries)) ??
    (await refuseBytes(repo, change, entries, item))
  )
}

/** Those entries that no other tree holds as they are. */
async function withoutOthers(
  repo: Repository,
  { to, env }: HandedChange,
  entries: readonly DiffEntry[],
  others: readonly Oid[],
): Promise<readonly DiffEntry[]> {
  let left = entries
  for (const from of others) {
    const differing = await rawDiff(repo, { from, to, env }, DEFAULT_LIMITS.maxHandedFiles)
    if (differing === null) continue
    const paths = new Set(differing.map((entry) => entry.path))
    left = left.filter((entry) => paths.has(entry.path))
  }
  return left
}

/**
 * What git itself would refuse wherever the tree is checked out, and names longer than a file system's. Names that only Windows cannot hold
 * (`aux.c`, `a:b`) are honest names here, and git takes them on Linux too.
 */
function refuseName(path: string): string | null {
  const parts = Buffer.from(path, 'latin1').toString('utf8').split('/')
  if (parts.some(isDotGit)) return `${shown(path)} has a part that file systems read as .git; rename it`
  if (path.length > 4_000) return `${shown(path)} has more than 4,000 bytes; no checkout can hold such a path`
  if (path.split('/').some((part) => part.length > 255))
    return `${shown(path)} has a part of more than 255 bytes; no checkout can hold such a name`
  return null
}

/** A gitlink must be told of by `.gitmodules`: else it is a repository inside of the tree, whose content nobody else has. */
async function strayGitlink(
  repo: Repository,
  { to, env }: HandedChange,
  gitlinks: readonly DiffEntry[],
): Promise<string | null> {
  if (gitlinks.length === 0) return null
  const known = await submodulePaths(repo, to, env)
  const stray = gitlinks.find((entry) => !known.has(entry.path))
  if (stray === undefined) return null
  return `${shown(stray.path)} is a submodule link that .gitmodules does not tell of, so its commit cannot be had by anybody else; add it with git submodule add, or take the repository out of the tree`
}

/** Paths (latin1) of the submodules that have a URL. */
async function submodulePaths(repo: Repository, tree: Oid, env: GitEnv): Promise<Set<string>> {
  const listed = await runGit({
    gitDir: repo.dir,
    env,
    args: ['config', '-z', '--blob', `${tree}:.gitmodules`, '--get-regexp', '^submodule\\..*\\.(path|url)$'],
    timeoutMs: 30_000,
  })
  const paths = new Map<string, string>()
  const urls = new Set<string>()
  for (const entry of listed.stdout.toString('latin1').split('\0')) {
    const [, name = '', key, value = ''] = /^submodule\.(.*)\.(path|url)\n(.*)$/s.exec(entry) ?? []
    if (key === 'path') paths.set(name, value)
    else if (key === 'url' && value !== '') urls.add(name)
  }
  return new Set([...paths].filter(([name]) => urls.has(name)).map(([, path]) => path))
}

/** A symbolic link that leaves the tree, by itself or through others; also an old one that a new one leads out. */
async function refuseLinks(
  repo: Repository,
  { from, to, env }: HandedChange,
  entries: readonly DiffEntry[],
): Promise<string | null> {
  const brought = new Set(entries.filter((entry) => entry.mode === '120000').map((entry) => entry.path))
  if (brought.size === 0) return null
  const after = await readLinks(repo, to, env)
  let before: ReadonlyMap<string, string> | null = null
  for (const [path, target] of after) {
    const where = whereItLeads(after, path)
    if (where === null) continue
    if (!brought.has(path)) {
      before ??= await readLinks(repo, from, env)
      if (whereItLeads(before, path) !== null) continue
    }
    return `${shown(path)} is a symbolic link to ${shown(target)}, ${where}; such a link may not be handed in`
  }
  return null
}

async function refuseBytes(
  repo: Repository,
  { env }: HandedChange,
  entries: readonly DiffEntry[],
  item: 'patch' | 'bundle',
): Promise<string | null> {
  const blobs = entries.filter((entry) => entry.mode !== '160000')
  if (blobs.length === 0) return null
  const sizes = await git({
    gitDir: repo.dir,
    env,
    args: ['cat-file', '--buffer', '--batch-check=%(objectsize)'],
    input: Buffer.from(blobs.map((entry) => `${entry.oid}\n`).join('')),
    timeoutMs: DEFAULT_LIMITS.handedTimeoutMs,
  })
  const bytes = sizes
    .toString('latin1')
    .split('\n')
    .reduce((sum, line) => sum + Number(line), 0)
  if (bytes <= DEFAULT_LIMITS.maxHandedBytes) return null
  return `its files have ${Math.round(bytes / MB)} MB when unpacked, more than the ${DEFAULT_LIMITS.maxHandedBytes / MB} MB that a ${item} may bring; push it instead (--from-local)`
}

function shown(path: string): string {
  const text = Buffer.from(path, 'latin1').toString('utf8')
  return JSON.stringify(text.length > 200 ? `${text.slice(0, 200)}…` : text)
}
