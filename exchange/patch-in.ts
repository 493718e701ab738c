/** A patch handed in: applied by git to a working tree that exists only as trees, and checked before anything is kept. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Oid } from '../domain/names.ts'
import { git, runGit } from '../gateway/git/process.ts'
import { openQuarantine } from '../gateway/git/quarantine.ts'
import type { Repository } from '../gateway/git/repository.ts'
import { type Checkpoint, workingTree, writeCheckpoint } from './checkpoint.ts'
import { firstHostileEntry, rawDiff } from './tree-check.ts'

export type PatchOutcome =
  | { readonly ok: true; readonly checkpoint: Oid }
  /** `at` is the place in the list of patches; `reason` is git's own, or the rule that refused. */
  | { readonly ok: false; readonly at: number; readonly reason: string }

/**
 * Applies the patches in order on a checkpoint's working tree and writes the checkpoint that results: tracked files stay tracked, new
 * files are untracked, the index stays as it was. When one does not apply, nothing is kept.
 */
export async function applyPatches(
  repo: Repository,
  base: Checkpoint,
  patches: readonly Uint8Array[],
  at: number,
): Promise<PatchOutcome> {
  const quarantine = await openQuarantine(repo)
  const scratch = await mkdtemp(join(tmpdir(), 'hangar-patch-'))
  try {
    const run = { gitDir: repo.dir, env: { ...quarantine.env, GIT_INDEX_FILE: join(scratch, 'index') } }
    const before = await workingTree(repo, base)
    await git({ ...run, args: ['read-tree', before] })
    let after = before
    for (const [place, patch] of patches.entries()) {
      const applied = await runGit({
        ...run,
        args: ['apply', '--cached', '--binary', '--whitespace=nowarn', '-'],
        config: { 'apply.whitespace': 'nowarn', 'apply.ignoreWhitespace': 'no' },
        input: patch,
      })
      if (applied.exitCode !== 0) return { ok: false, at: place, reason: applied.stderr.trim().slice(0, 2_000) }
      const previous = after
      after = (await git({ ...run, args: ['write-tree'] })).toString('latin1').trim() as Oid
      const hostile = await firstHostileEntry(
        repo,
        await rawDiff(repo, previous, after, quarantine.env),
        quarantine.env,
      )
      if (hostile !== null) return { ok: false, at: place, reason: hostile }
    }
    await quarantine.migrate()
    return { ok: true, checkpoint: await splitTree(repo, base, after, at) }
  } finally {
    await quarantine.drop()
    await rm(scratch, { recursive: true, force: true })
  }
}

/** The new working tree as a checkpoint: what the index does not know is untracked. */
async function splitTree(repo: Repository, base: Checkpoint, after: Oid, at: number): Promise<Oid> {
  const added = (await rawDiff(repo, base.index, after, {})).filter((entry) => entry.status === 'A')
  const tracked = await repo.objects.editTree(after, new Map(added.map((entry) => [entry.path, null])))
  const untracked = await repo.objects.editTree(
    null,
    new Map(added.map((entry) => [entry.path, { oid: entry.oid, mode: entry.mode }])),
  )
  return writeCheckpoint(repo, { head: base.head, index: base.index, tracked, untracked }, at)
}
