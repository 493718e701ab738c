/** What changed between two trees, and whether a handed-in change plants something that may not enter. */
import type { Oid } from '../domain/names.ts'
import { git } from '../gateway/git/process.ts'
import type { Repository, TreeEntry } from '../gateway/git/repository.ts'

export interface DiffEntry {
  readonly status: 'A' | 'D' | 'M' | 'T'
  /** The new mode and blob; for a deletion zeros. */
  readonly mode: TreeEntry['mode']
  readonly oid: Oid
  /** Bytes as latin1. */
  readonly path: string
}

/** The files that differ between two trees; `env` may point git at a quarantine. */
export async function rawDiff(
  repo: Repository,
  from: Oid,
  to: Oid,
  env: Readonly<Record<string, string>>,
): Promise<DiffEntry[]> {
  const out = await git({
    gitDir: repo.dir,
    env,
    args: ['diff-tree', '-r', '-z', '--raw', '--no-renames', '--no-abbrev', '--end-of-options', from, to],
  })
  const fields = out.toString('latin1').split('\0')
  const entries: DiffEntry[] = []
  for (let at = 0; at + 1 < fields.length; at += 2) {
    const [, mode, , oid, status] = (fields[at] ?? '').split(' ') as [
      string,
      TreeEntry['mode'],
      string,
      Oid,
      DiffEntry['status'],
    ]
    entries.push({ status, mode, oid, path: fields[at + 1] ?? '' })
  }
  return entries
}

/** The sentence about the first entry that a patch may not bring: a gitlink, or a symbolic link out of the tree. Null when there is none. */
export async function firstHostileEntry(
  repo: Repository,
  entries: readonly DiffEntry[],
  env: Readonly<Record<string, string>>,
): Promise<string | null> {
  for (const entry of entries) {
    if (entry.status === 'D') continue
    const name = JSON.stringify(Buffer.from(entry.path, 'latin1').toString('utf8'))
    if (entry.mode === '160000')
      return `${name} is a submodule link: its commits cannot be handed in by a patch; commit and push the submodule`
    if (entry.mode !== '120000') continue
    const target = (
      await git({ gitDir: repo.dir, env, args: ['cat-file', 'blob', entry.oid], maxOutputBytes: 8_192 })
    ).toString('latin1')
    if (leavesTree(entry.path, target))
      return `${name} is a symbolic link to ${JSON.stringify(target)}, outside the repository`
  }
  return null
}

/** Whether a link at the path points outside of the tree that holds it. */
function leavesTree(path: string, target: string): boolean {
  if (target.startsWith('/')) return true
  const at = path.split('/').slice(0, -1)
  for (const part of target.split('/')) {
    if (part === '' || part === '.') continue
    if (part !== '..') at.push(part)
    else if (at.pop() === undefined) return true
  }
  return false
}
