/** What differs between two trees: as a patch that `git apply` takes whole, as a list of files, and one tree laid over another. */
import { errors } from '../../domain/errors.ts'
import { EMPTY_TREE, type Oid, ZERO_OID } from '../../domain/names.ts'
import { git, killGit, spawnGit } from './process.ts'
import type { Repository, TreeEdit, TreeEntry } from './repository.ts'

export interface ChangedFile {
  /** Bytes as latin1. */
  readonly path: string
  readonly change: 'added' | 'modified' | 'deleted' | 'type_changed'
  /** `000000` where there is no file. */
  readonly oldMode: string
  readonly newMode: string
  readonly oldOid: Oid
  readonly newOid: Oid
  /** Lines; null for a binary file. */
  readonly additions: number | null
  readonly deletions: number | null
}

/** Nothing that a project brings may change the output or run a program: no attributes, external diffs, text conversion or renames. */
const NEUTRAL = {
  'core.attributesFile': '/dev/null',
  'core.bare': 'true',
  'diff.noprefix': 'false',
  'diff.mnemonicPrefix': 'false',
  'diff.renames': 'false',
  'diff.algorithm': 'myers',
  'diff.indentHeuristic': 'true',
  'diff.suppressBlankEmpty': 'false',
  'diff.interHunkContext': '0',
  'diff.context': '3',
  'diff.submodule': 'short',
  'diff.ignoreSubmodules': 'none',
  'diff.orderFile': '/dev/null',
}
const FLAGS = ['-r', '--no-ext-diff', '--no-textconv', '--no-color', '--no-renames', '--no-relative', '-O/dev/null']
const TIME_MS = 120_000

/**
 * The diff of two commits or trees (`EMPTY_TREE` for nothing) as bytes for `git apply`: binary files whole, full ids, modes.
 * Throws `too_large` past `maxBytes`, naming the way that has no such cap.
 */
export async function diffTrees(
  repo: Pick<Repository, 'dir'>,
  range: { from: Oid; to: Oid; maxBytes: number },
): Promise<Buffer> {
  const patch = ['-p', '--binary', '--full-index', '--src-prefix=a/', '--dst-prefix=b/', '--unified=3']
  const child = spawnGit(diffCommand(repo, patch, range.from, range.to))
  const chunks: Buffer[] = []
  let size = 0
  let stderr = ''
  const timer = setTimeout(() => killGit(child), TIME_MS)
  child.stdin.end()
  child.stderr.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString('utf8')).slice(0, 2_000)
  })
  child.stdout.on('data', (chunk: Buffer) => {
    size += chunk.length
    if (size > range.maxBytes) killGit(child)
    else chunks.push(chunk)
  })
  try {
    const exitCode = await new Promise<number | null>((resolve, reject) => {
      child.once('error', reject)
      child.once('close', resolve)
    })
    if (size > range.maxBytes) throw errors.tooLarge(`the patch has more than ${range.maxBytes} bytes`)
    if (exitCode !== 0) throw errors.gitFailed('git diff-tree failed', { reason: stderr.trim() })
    return Buffer.concat(chunks)
  } finally {
    clearTimeout(timer)
  }
}

/** The files that differ, by path, with their counts of lines. */
export async function changedFiles(repo: Pick<Repository, 'dir'>, from: Oid, to: Oid): Promise<ChangedFile[]> {
  const out = await git({
    ...diffCommand(repo, ['-z', '--raw', '--numstat', '--no-abbrev'], from, to),
    timeoutMs: TIME_MS,
  })
  const fields = out.toString('latin1').split('\0')
  const files = new Map<string, Omit<ChangedFile, 'additions' | 'deletions'>>()
  const counted: ChangedFile[] = []
  for (let at = 0; at < fields.length; at += 1) {
    const field = fields[at] ?? ''
    const raw = /^:(\d{6}) (\d{6}) ([0-9a-f]{40}) ([0-9a-f]{40}) ([AMDT])/.exec(field)
    if (raw !== null) {
      const path = fields[++at] ?? ''
      const [, oldMode = '', newMode = '', oldOid = ZERO_OID, newOid = ZERO_OID, letter = 'M'] = raw
      files.set(path, {
        path,
        change: CHANGES[letter] ?? 'modified',
        oldMode,
        newMode,
        oldOid: oldOid as Oid,
        newOid: newOid as Oid,
      })
      continue
    }
    const [additions, deletions, ...rest] = field.split('\t')
    const file = files.get(rest.join('\t'))
    if (file !== undefined) counted.push({ ...file, additions: countOf(additions), deletions: countOf(deletions) })
  }
  return counted
}

/**
 * The tree `base` with every file of the tree `over` put on top; where one has a file and the other a directory, `over` wins.
 * Reads only directories that both have and that differ.
 */
export async function overlayTrees(repo: Pick<Repository, 'objects'>, base: Oid, over: Oid): Promise<Oid> {
  if (base === over || over === EMPTY_TREE) return base
  const edits = new Map<string, TreeEdit>()
  await collectOverlay(repo, { base, over, prefix: '' }, edits)
  return edits.size === 0 ? base : repo.objects.editTree(base, edits)
}

async function collectOverlay(
  repo: Pick<Repository, 'objects'>,
  at: { base: Oid; over: Oid; prefix: string },
  edits: Map<string, TreeEdit>,
): Promise<void> {
  const base = new Map((await repo.objects.readTree(at.base)).map((entry): [string, TreeEntry] => [entry.name, entry]))
  for (const { name, oid, mode } of await repo.objects.readTree(at.over)) {
    const below = base.get(name)
    if (below?.oid === oid && below.mode === mode) continue
    if (below?.mode === '40000' && mode === '40000')
      await collectOverlay(repo, { base: below.oid, over: oid, prefix: `${at.prefix}${name}/` }, edits)
    else edits.set(at.prefix + name, { oid, mode })
  }
}

function diffCommand(repo: Pick<Repository, 'dir'>, args: readonly string[], from: Oid, to: Oid) {
  return {
    gitDir: repo.dir,
    args: ['diff-tree', ...FLAGS, ...args, '--end-of-options', from, to],
    config: NEUTRAL,
    // A bare repository has no .gitattributes in 2.39; newer versions of git would read HEAD's unless told of another tree.
    env: { GIT_ATTR_SOURCE: EMPTY_TREE },
  }
}

const CHANGES: Readonly<Record<string, ChangedFile['change']>> = {
  A: 'added',
  M: 'modified',
  D: 'deleted',
  T: 'type_changed',
}

function countOf(text: string | undefined): number | null {
  return text === undefined || text === '-' ? null : Number(text)
}
