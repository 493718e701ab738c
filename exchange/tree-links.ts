/** The symbolic links of a tree that exists only as objects, and where each leads when a checkout follows it. */
import { errors } from '../domain/errors.ts'
import { DEFAULT_LIMITS } from '../domain/limits.ts'
import { isDotGit, type Oid } from '../domain/names.ts'
import { gitLines } from '../gateway/git/lines.ts'
import { git } from '../gateway/git/process.ts'
import type { Repository } from '../gateway/git/repository.ts'

/** Linux follows so many links in one path. */
const MAX_FOLLOWED = 40
/** Linux's PATH_MAX: a longer target cannot be made. */
const MAX_TARGET_BYTES = 4_095

/** Each link's path and target, as latin1; `env` may point git at a quarantine. Throws `invalid_context` for a target that no system takes. */
export async function readLinks(
  repo: Repository,
  tree: Oid,
  env: Readonly<Record<string, string>>,
): Promise<ReadonlyMap<string, string>> {
  const places: { readonly path: string; readonly oid: string }[] = []
  const run = { gitDir: repo.dir, env, timeoutMs: DEFAULT_LIMITS.handedTimeoutMs }
  const listing = { ...run, args: ['ls-tree', '-r', '-z', '--full-tree', tree], input: '', separator: '\0' }
  const { exitCode, stderr } = await gitLines(listing, (line) => {
    const [, oid = '', path = ''] = /^120000 blob ([0-9a-f]{40})\t(.*)$/s.exec(line) ?? []
    if (oid !== '') places.push({ path, oid })
    return true
  })
  if (exitCode !== 0) throw errors.gitFailed(`git ls-tree failed: ${stderr}`)
  const targets = await readTargets(run, new Set(places.map(({ oid }) => oid)))
  return new Map(places.map(({ path, oid }) => [path, targets.get(oid) ?? '']))
}

async function readTargets(
  run: { readonly gitDir: string; readonly env: Readonly<Record<string, string>>; readonly timeoutMs: number },
  oids: ReadonlySet<string>,
): Promise<Map<string, string>> {
  if (oids.size === 0) return new Map()
  const input = Buffer.from([...oids, ''].join('\n'))
  const sizes = await git({ ...run, args: ['cat-file', '--buffer', '--batch-check=%(objectsize)'], input })
  const long = sizes
    .toString('latin1')
    .split('\n')
    .find((size) => Number(size) > MAX_TARGET_BYTES)
  if (long !== undefined)
    throw errors.invalidContext(`a symbolic link has a target of ${long} bytes; no checkout can hold such a link`)
  const out = await git({ ...run, args: ['cat-file', '--buffer', '--batch'], input, maxOutputBytes: 512 * 1_048_576 })
  const targets = new Map<string, string>()
  for (let at = 0; at < out.length; ) {
    const end = out.indexOf(10, at)
    const [oid = '', , size = '0'] = out.toString('latin1', at, end).split(' ')
    targets.set(oid, out.toString('latin1', end + 1, end + 1 + Number(size)))
    at = end + Number(size) + 2
  }
  return targets
}

/**
 * What is wrong with where a link leads, as the end of a sentence; null when it stays in the tree. Other links on its way are followed, so that
 * `a/b/../..` is judged by where `a/b` really is. What is not there is read as a directory to be.
 */
export function whereItLeads(links: ReadonlyMap<string, string>, path: string): string | null {
  const at = path.split('/').slice(0, -1)
  const first = links.get(path) ?? ''
  if (first.startsWith('/')) return OUTSIDE
  const ahead = first.split('/').reverse()
  let followed = 0
  for (let part = ahead.pop(); part !== undefined; part = ahead.pop()) {
    if (part === '' || part === '.') continue
    if (part === '..') {
      if (at.pop() === undefined) return OUTSIDE
      continue
    }
    if (isDotGit(Buffer.from(part, 'latin1').toString('utf8'))) return 'inside of .git'
    at.push(part)
    const next = links.get(at.join('/'))
    if (next === undefined) continue
    if (next.startsWith('/')) return OUTSIDE
    // A loop leads nowhere.
    if (++followed > MAX_FOLLOWED) return null
    at.pop()
    ahead.push(...next.split('/').reverse())
  }
  return null
}

const OUTSIDE = 'outside the repository'
