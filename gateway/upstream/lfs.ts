/** Git LFS is not carried: the files of a commit that are kept in it, so that they can be named and refused at once. */
import { errors } from '../../domain/errors.ts'
import type { Oid } from '../../domain/names.ts'
import { git } from '../git/process.ts'
import type { Repository } from '../git/repository.ts'

const MAX_SHOWN = 20
/** Source: git-lfs's spec.md: a pointer is under 1024 bytes, and its first line is the version. */
const MAX_POINTER_BYTES = 1024
const POINTER = /^version https:\/\/(?:git-lfs\.github\.com|hawser\.github\.com)\/spec\/v1\n/
const TIME_MS = 5 * 60_000

/** Throws `lfs_unsupported` with the paths of LFS pointers in the commit's tree. */
export async function refuseLfs(repo: Repository, commit: Oid): Promise<void> {
  const files = await lfsFiles(repo, commit)
  if (files.length === 0) return
  const shown = files.slice(0, MAX_SHOWN).join(', ')
  const more = files.length > MAX_SHOWN ? `, and ${files.length - MAX_SHOWN} more` : ''
  throw errors.lfsUnsupported(
    `${files.length} file(s) of ${commit.slice(0, 12)} are kept in Git LFS, which the gateway does not carry: ${shown}${more}; ` +
      'take them out of LFS (git lfs migrate export), or work on a branch without them',
  )
}

/** Looks into blobs only where a `.gitattributes` of the tree says that there is LFS at all. */
async function lfsFiles(repo: Repository, commit: Oid): Promise<string[]> {
  const listed = await git({
    gitDir: repo.dir,
    args: ['ls-tree', '-r', '-z', '--full-tree', commit],
    timeoutMs: TIME_MS,
  })
  const blobs = listed
    .toString('latin1')
    .split('\0')
    .flatMap((entry) => {
      const [, type = '', oid = '', path = ''] = /^\d+ (\w+) ([0-9a-f]{40})\t(.*)$/s.exec(entry) ?? []
      return type === 'blob' ? [{ oid: oid as Oid, path }] : []
    })
  const attributes = blobs.filter(({ path }) => /(?:^|\/)\.gitattributes$/.test(path))
  if (!(await anyMatches(repo, attributes, /\bfilter=lfs\b/))) return []
  const sizes = await git({
    gitDir: repo.dir,
    args: ['cat-file', '--batch-check=%(objectsize)', '--buffer'],
    input: Buffer.from(blobs.map(({ oid }) => `${oid}\n`).join('')),
    timeoutMs: TIME_MS,
  })
  const bytes = sizes.toString('latin1').split('\n').map(Number)
  const files: string[] = []
  for (const [at, { oid, path }] of blobs.entries())
    if ((bytes[at] ?? 0) > 0 && (bytes[at] ?? 0) < MAX_POINTER_BYTES && (await anyMatches(repo, [{ oid }], POINTER)))
      files.push(Buffer.from(path, 'latin1').toString('utf8'))
  return files
}

async function anyMatches(repo: Repository, blobs: readonly { readonly oid: Oid }[], words: RegExp): Promise<boolean> {
  for (const { oid } of blobs) {
    const object = await repo.objects.read(oid)
    if (object !== null && words.test(object.body.toString('latin1'))) return true
  }
  return false
}
