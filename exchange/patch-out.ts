/** The change of a session as one patch: from its base (or from what was handed over) to its working tree, untracked files included. */
import { errors } from '../domain/errors.ts'
import type { Limits } from '../domain/limits.ts'
import { EMPTY_TREE, type Oid } from '../domain/names.ts'
import { diffTrees } from '../gateway/git/diff.ts'
import type { Repository } from '../gateway/git/repository.ts'
import { readCheckpoint, workingTree } from './checkpoint.ts'

export interface PatchRange {
  /** A commit, or a checkpoint (then its working tree); null is the empty tree. */
  readonly from: Oid | null
  /** The checkpoint to go to. */
  readonly to: Oid
}

/** A patch that `git apply` takes as it is; empty when nothing changed. Throws `too_large` past `maxPatchBytes`, naming `pull`. */
export async function patchBetween(repo: Repository, range: PatchRange, limits: Limits): Promise<Buffer> {
  const [from, to] = await Promise.all([
    range.from === null ? EMPTY_TREE : wholeTree(repo, range.from),
    wholeTree(repo, range.to),
  ])
  if (from === to) return Buffer.alloc(0)
  return diffTrees(repo, { from, to, maxBytes: limits.maxPatchBytes })
}

async function wholeTree(repo: Repository, commit: Oid): Promise<Oid> {
  const checkpoint = await readCheckpoint(repo, commit)
  if (checkpoint !== null) return workingTree(repo, checkpoint)
  const plain = await repo.objects.readCommit(commit)
  if (plain === null) throw errors.notFound(`commit ${commit} is not in the repo any more`)
  return plain.tree
}
