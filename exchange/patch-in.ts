/** A patch handed in: applied by git to a working tree that exists only as trees, and checked before anything is kept. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { HangarError } from '../domain/errors.ts'
import { DEFAULT_LIMITS, MB } from '../domain/limits.ts'
import type { Oid } from '../domain/names.ts'
import { STRICT } from '../gateway/git/ingest.ts'
import { git, runGit } from '../gateway/git/process.ts'
import { openQuarantine } from '../gateway/git/quarantine.ts'
import type { Repository } from '../gateway/git/repository.ts'
import { type Checkpoint, workingTree, writeCheckpoint } from './checkpoint.ts'
import { type GitEnv, type HandedChange, rawDiff, refuseChange } from './tree-check.ts'

export type PatchOutcome =
  | { readonly ok: true; readonly checkpoint: Oid }
  /** `at` is the place in the list of patches; `reason` is git's own, or the rule that refused. */
  | { readonly ok: false; readonly at: number; readonly reason: string }

/** Objects that the base is made of and that are not in the store yet: a bundle's. */
export interface Pending {
  readonly env: GitEnv
  keep(): Promise<void>
}

/**
 * Applies the patches in order on a checkpoint's working tree and writes the checkpoint that results: tracked files stay tracked, new
 * files are untracked, the index stays as it was. When one does not apply, nothing is kept, nor what is pending.
 */
export async function applyPatches(
  repo: Repository,
  base: Checkpoint,
  patches: readonly Uint8Array[],
  at: number,
  pending: Pending | null = null,
): Promise<PatchOutcome> {
  const quarantine = await openQuarantine(repo, pending?.env)
  const scratch = await mkdtemp(join(tmpdir(), 'hangar-patch-'))
  try {
    const env = { ...quarantine.env, GIT_INDEX_FILE: join(scratch, 'index') }
    let tree = await workingTree(repo, base)
    await git({ gitDir: repo.dir, env, args: ['read-tree', tree] })
    for (const [place, patch] of patches.entries()) {
      const applied = await applyOne(repo, tree, patch, env)
      if (!applied.ok) return { ok: false, at: place, reason: applied.reason }
      tree = applied.tree
    }
    await pending?.keep()
    await quarantine.migrate()
    return { ok: true, checkpoint: await splitTree(repo, base, tree, at) }
  } finally {
    await quarantine.drop()
    await rm(scratch, { recursive: true, force: true })
  }
}

type Applied = { readonly ok: true; readonly tree: Oid } | { readonly ok: false; readonly reason: string }

/** Applies a patch to the index that the environment names; the tree that results is judged by what the patch changed. */
async function applyOne(repo: Repository, before: Oid, patch: Uint8Array, env: GitEnv): Promise<Applied> {
  const refused = refuseText(patch)
  if (refused !== null) return { ok: false, reason: refused }
  try {
    const run = await runGit({
      gitDir: repo.dir,
      env,
      args: ['apply', '--cached', '--binary', '--whitespace=nowarn', '-'],
      config: APPLY,
      input: withLastNewline(patch),
      timeoutMs: DEFAULT_LIMITS.handedTimeoutMs,
      maxMemoryBytes: DEFAULT_LIMITS.handedMemoryBytes,
    })
    if (run.exitCode !== 0) return { ok: false, reason: reasonOf(run.stderr) }
    const tree = (await git({ gitDir: repo.dir, env, args: ['write-tree'] })).toString('latin1').trim() as Oid
    const hostile = await refuseChange(repo, { from: before, to: tree, env }, 'patch')
    const reason = hostile ?? (await refusedByFsck(repo, { from: before, to: tree, env }))
    return reason === null ? { ok: true, tree } : { ok: false, reason }
  } catch (error) {
    if (error instanceof HangarError && ['limit_passed', 'invalid_context'].includes(error.code))
      return { ok: false, reason: error.message }
    throw error
  }
}

/** What git's own check says of the trees that the patch has changed, and of files such as `.gitmodules` in them; null when all is well. */
async function refusedByFsck(repo: Repository, { from, to, env }: HandedChange): Promise<string | null> {
  const at = { gitDir: repo.dir, env }
  const list = ['rev-list', '--objects', '--no-object-names', '--filter=blob:none', to, `^${from}`]
  const trees = await git({ ...at, args: list })
  if (trees.length === 0) return null
  const pack = await git({ ...at, args: ['pack-objects', '-q', '--stdout'], input: trees })
  // No push would be taken with them either, so that the work could not come back.
  const run = await runGit({ ...at, args: ['index-pack', '--stdin', STRICT], input: pack })
  if (run.exitCode === 0) return null
  const line = run.stderr.split('\n').find((text) => /^(?:fatal|error): /.test(text)) ?? 'its trees are not taken'
  return `git refuses what it makes: ${line.replace(/^(?:fatal|error): /, '').slice(0, 500)}`
}

const APPLY = {
  'apply.whitespace': 'nowarn',
  'apply.ignoreWhitespace': 'no',
  'core.protectHFS': 'true',
  'core.protectNTFS': 'true',
  'core.packedGitWindowSize': '32m',
  'core.packedGitLimit': '256m',
}

function reasonOf(stderr: string): string {
  const said = stderr.trim().slice(0, 2_000)
  if (/out of memory|over limit|cannot allocate/i.test(said) || said === '')
    return `it needs more than ${DEFAULT_LIMITS.handedMemoryBytes / MB} MB of memory to be applied; push the work instead (--from-local)`
  return said
}

/** Clients often trim what they send; a patch consists of whole lines, so that the last newline can be only this. */
function withLastNewline(patch: Uint8Array): Uint8Array {
  return patch.at(-1) === 10 ? patch : Buffer.concat([patch, Buffer.from('\n')])
}

/** A move to a submodule's commit with changes of its own: git would apply it as the commit alone, and the changes be lost. */
const DIRTY_SUBMODULE =
  /^index [0-9a-f]+\.\.[0-9a-f]+ 160000\n--- .*\n\+\+\+ (.*)\n@@ -1 \+1 @@\n-.*\n\+Subproject commit [0-9a-f]+-dirty$/m

/** What is wrong with a patch before git reads it, or null. */
function refuseText(patch: Uint8Array): string | null {
  const text = Buffer.from(patch.buffer, patch.byteOffset, patch.byteLength).toString('latin1')
  if (text.trim() === '') return 'the patch is empty; leave the item out when there is nothing to apply'
  const submodule = DIRTY_SUBMODULE.exec(text)
  if (submodule !== null)
    return `${JSON.stringify(submodule[1]?.replace(/^b\//, ''))} is a submodule with changes that are not committed, and a patch does not carry them; commit and push the submodule first`
  for (const [, header = ''] of text.matchAll(/^diff --git (.+)$/gm))
    if (isSameTwice(header))
      return 'the patch was made without prefixes (diff.noprefix), so that git would take its paths for others; make it with: git diff --binary --src-prefix=a/ --dst-prefix=b/'
  let inflated = 0
  for (const [, bytes] of text.matchAll(/^(?:literal|delta) (\d+)$/gm)) inflated += Number(bytes)
  if (inflated > DEFAULT_LIMITS.maxHandedBytes)
    return `its binary files have ${Math.round(inflated / MB)} MB when unpacked, more than the ${DEFAULT_LIMITS.maxHandedBytes / MB} MB that a patch may bring; push it instead (--from-local)`
  return null
}

/** With prefixes the two names of a header always differ. */
function isSameTwice(header: string): boolean {
  const half = (header.length - 1) / 2
  return header[half] === ' ' && header.slice(0, half) === header.slice(half + 1)
}

/** The new working tree as a checkpoint: what the index does not know is untracked. */
async function splitTree(repo: Repository, base: Checkpoint, after: Oid, at: number): Promise<Oid> {
  const added = (await rawDiff(repo, { from: base.index, to: after, env: {} })) ?? []
  const untracked = added.filter((entry) => entry.status === 'A')
  const trees = {
    tracked: await repo.objects.editTree(after, new Map(untracked.map((entry) => [entry.path, null]))),
    untracked: await repo.objects.editTree(
      null,
      new Map(untracked.map((entry) => [entry.path, { oid: entry.oid, mode: entry.mode }])),
    ),
  }
  return writeCheckpoint(repo, { head: base.head, index: base.index, ...trees }, at)
}
