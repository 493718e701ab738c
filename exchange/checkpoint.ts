/** The checkpoint on the server's side: a stash-shaped commit, read, written and compared. (hangar-agent makes it in a work tree.) */
import { errors } from '../domain/errors.ts'
import { EMPTY_TREE, type Oid } from '../domain/names.ts'
import { overlayTrees } from '../gateway/git/diff.ts'
import { git } from '../gateway/git/process.ts'
import type { Repository } from '../gateway/git/repository.ts'

/** Parent 1 of a checkpoint whose branch is unborn: one fixed root commit of the empty tree, which `hangar-agent snapshot` makes the same way. */
export const UNBORN_ROOT = '4f16da4ccd063e4a1b9518d1152b8e77df2aa266' as Oid

const UNBORN_COMMIT = `tree ${EMPTY_TREE}
author hangar <hangar@localhost> 0 +0000
committer hangar <hangar@localhost> 0 +0000

hangar: unborn
`

export interface Checkpoint {
  readonly commit: Oid
  /** Parent 1; `UNBORN_ROOT` when the branch is unborn. */
  readonly head: Oid
  readonly headTree: Oid
  /** Trees: the index, the tracked files of the work tree, the untracked ones. */
  readonly index: Oid
  readonly tracked: Oid
  readonly untracked: Oid
}

/**
 * Reads a checkpoint: parents HEAD, a commit of the index whose only parent is HEAD, and a root commit of the untracked files.
 * Gives null when the commit is not there or has another shape.
 */
export async function readCheckpoint(repo: Repository, commit: Oid): Promise<Checkpoint | null> {
  const top = await repo.objects.readCommit(commit)
  const [head, indexCommit, untrackedCommit, ...more] = top?.parents ?? []
  if (
    top === null ||
    head === undefined ||
    indexCommit === undefined ||
    untrackedCommit === undefined ||
    more.length > 0
  )
    return null
  const [base, index, untracked] = await Promise.all(
    [head, indexCommit, untrackedCommit].map((oid) => repo.objects.readCommit(oid)),
  )
  if (!base || !index || !untracked) return null
  if (index.parents.length !== 1 || index.parents[0] !== head || untracked.parents.length !== 0) return null
  return { commit, head, headTree: base.tree, index: index.tree, tracked: top.tree, untracked: untracked.tree }
}

/**
 * Reads what a person pushed as a checkpoint: plain `git stash` makes no third parent when nothing is untracked.
 * Gives null when the commit is not there or is not stash-shaped.
 */
export async function readStash(repo: Repository, commit: Oid): Promise<Checkpoint | null> {
  const top = await repo.objects.readCommit(commit)
  if (top?.parents.length !== 2) return readCheckpoint(repo, commit)
  const [base, index] = await Promise.all(top.parents.map((oid) => repo.objects.readCommit(oid)))
  const [head] = top.parents
  if (!head || !base || !index || index.parents.length !== 1 || index.parents[0] !== head) return null
  return { commit, head, headTree: base.tree, index: index.tree, tracked: top.tree, untracked: EMPTY_TREE }
}

/** The checkpoint's commit; of a stash that has no third parent, a checkpoint that says the same. */
export async function asCheckpoint(repo: Repository, checkpoint: Checkpoint, at: number): Promise<Oid> {
  const parents = (await repo.objects.readCommit(checkpoint.commit))?.parents.length
  return parents === 3 ? checkpoint.commit : writeCheckpoint(repo, checkpoint, at)
}

/** Whether nothing is uncommitted. */
export function isClean(checkpoint: Checkpoint): boolean {
  return (
    checkpoint.tracked === checkpoint.headTree &&
    checkpoint.index === checkpoint.headTree &&
    checkpoint.untracked === EMPTY_TREE
  )
}

/** The whole working tree, tracked and untracked files, as one tree. */
export async function workingTree(repo: Repository, checkpoint: Checkpoint): Promise<Oid> {
  if (checkpoint.untracked === EMPTY_TREE) return checkpoint.tracked
  return overlayTrees(repo, checkpoint.tracked, checkpoint.untracked)
}

/** A checkpoint without uncommitted changes on the given commit. */
export async function cleanCheckpoint(repo: Repository, head: Oid): Promise<Checkpoint> {
  const commit = await repo.objects.readCommit(head)
  if (commit === null) throw errors.notFound(`commit ${head} is not in the repository`)
  const { tree } = commit
  return { commit: head, head, headTree: tree, index: tree, tracked: tree, untracked: EMPTY_TREE }
}

/** A checkpoint of an unborn branch without any file. */
export async function unbornCheckpoint(repo: Repository): Promise<Checkpoint> {
  await git({
    gitDir: repo.dir,
    args: ['hash-object', '-t', 'commit', '-w', '--stdin'],
    input: Buffer.from(UNBORN_COMMIT),
  })
  return cleanCheckpoint(repo, UNBORN_ROOT)
}

/** Writes a checkpoint's three commits, signed, and gives the last one. */
export async function writeCheckpoint(
  repo: Repository,
  parts: Pick<Checkpoint, 'head' | 'index' | 'tracked' | 'untracked'>,
  at: number,
): Promise<Oid> {
  const index = await repo.objects.writeCommit({
    tree: parts.index,
    parents: [parts.head],
    message: 'hangar: index',
    at,
  })
  const untracked = await repo.objects.writeCommit({
    tree: parts.untracked,
    parents: [],
    message: 'hangar: untracked files',
    at,
  })
  return repo.objects.writeCommit({
    tree: parts.tracked,
    parents: [parts.head, index, untracked],
    message: 'hangar: checkpoint',
    at,
  })
}
