/** Where a turn starts: from the repo, the session's state and what was handed in, to a base, a branch tip and a context checkpoint. */
import { errors, HangarError } from '../domain/errors.ts'
import { EMPTY_TREE, type Oid } from '../domain/names.ts'
import { isAncestor, mergeBase } from '../gateway/git/ancestry.ts'
import type { Repository } from '../gateway/git/repository.ts'
import type { ReceivedBundle } from './bundle-in.ts'
import {
  asCheckpoint,
  type Checkpoint,
  cleanCheckpoint,
  isClean,
  readCheckpoint,
  UNBORN_ROOT,
  unbornCheckpoint,
  writeCheckpoint,
} from './checkpoint.ts'
import { type Intake, patchRefused } from './intake.ts'
import { applyPatches, type Pending } from './patch-in.ts'
import { defaultHead, projectTips, resolveProjectRef } from './project-refs.ts'

/** Where a session or turn starts. */
export interface HandOver {
  /** What patches out start from; null is the empty tree. */
  readonly base: Oid | null
  /** The work branch's commit; null while it is unborn. */
  readonly start: Oid | null
  /** A checkpoint to restore over the start; null when the start alone says it. */
  readonly context: Oid | null
  /** The commit that was asked for by bundle or checkpoint. */
  readonly requested: Oid | null
}

/** The hand-over of a new session. `ref` null is the repo's default branch. Throws with the item's place when something does not fit. */
export async function handOverNew(repo: Repository, intake: Intake, ref: string | null, at: number): Promise<HandOver> {
  const { brought } = intake
  if (brought?.kind === 'bundle') {
    const { commit, baseCommit } = brought.bundle
    const context = await onBundle(repo, brought.bundle, intake, at)
    return { base: baseCommit, start: commit, context, requested: commit }
  }
  if (brought?.kind === 'checkpoint') {
    const { checkpoint } = brought
    const unborn = checkpoint.head === UNBORN_ROOT
    const base = await baseOf(repo, checkpoint)
    const context = (await withPatches(repo, checkpoint, intake, at)) ?? (await asCheckpoint(repo, checkpoint, at))
    return { base, start: unborn ? null : checkpoint.head, context, requested: checkpoint.head }
  }
  const start = ref === null ? await defaultHead(repo) : await resolveProjectRef(repo, ref)
  const context = await withPatches(
    repo,
    start === null ? unbornCheckpoint(repo) : await cleanCheckpoint(repo, start),
    intake,
    at,
  )
  return { base: start, start, context, requested: null }
}

export interface SessionTips {
  readonly base: Oid | null
  readonly branch: Oid | null
  readonly checkpoint: Oid | null
}

/**
 * The hand-over of a later message; null when it brings no commits: patches alone are only tried here, and applied when their turn
 * comes. Commits must fast-forward the branch (or start afresh while the session has none of its own) and need a clean tree. Throws
 * `not_fast_forward`, `conflict`, `invalid_context`.
 */
export async function handOverLater(
  repo: Repository,
  session: SessionTips,
  intake: Intake,
  at: number,
): Promise<HandOver | null> {
  const { brought } = intake
  const current = await currentCheckpoint(repo, session)
  if (brought === null) {
    await withPatches(repo, current, intake, at)
    return null
  }
  if (!isClean(current))
    throw errors.conflict(
      'the session has uncommitted changes, so commits cannot be handed to it; ask the agent to commit first, or start another session',
    )
  const head = brought.kind === 'bundle' ? brought.bundle.commit : brought.checkpoint.head
  const fresh = session.branch === session.base
  const env = brought.kind === 'bundle' ? brought.bundle.env : {}
  if (!fresh && session.branch !== null && !(await isAncestor(repo, session.branch, head, env)))
    throw errors.notFastForward(
      `the handed-over commit ${head} does not continue the session's branch at ${session.branch}; pull the session's work, rebase on it, and hand over again`,
    )
  const start = head === UNBORN_ROOT ? null : head
  if (brought.kind === 'bundle') {
    const context = (await onBundle(repo, brought.bundle, intake, at)) ?? (await cleanContext(repo, head, at))
    return { base: fresh ? brought.bundle.baseCommit : session.base, start, context, requested: head }
  }
  const { checkpoint } = brought
  const context = (await withPatches(repo, checkpoint, intake, at)) ?? (await asCheckpoint(repo, checkpoint, at))
  const base = fresh ? await baseOf(repo, checkpoint) : session.base
  return { base, start, context, requested: head }
}

/** Where a checkpoint's work was begun: what its HEAD shares with the repo's own branches and tags. */
async function baseOf(repo: Repository, { head }: Checkpoint): Promise<Oid | null> {
  return head === UNBORN_ROOT ? null : mergeBase(repo, head, await projectTips(repo))
}

/** Keeps the bundle's commits once its patches are known to apply; gives their checkpoint, or null without patches. */
async function onBundle(repo: Repository, bundle: ReceivedBundle, intake: Intake, at: number): Promise<Oid | null> {
  const { commit, tree } = bundle
  const clean = { commit, head: commit, headTree: tree, index: tree, tracked: tree, untracked: EMPTY_TREE }
  const context = await withPatches(repo, clean, intake, at, bundle)
  if (context === null) await bundle.keep()
  return context
}

/** The session's newest checkpoint; where there is none, its branch without changes. */
export async function currentCheckpoint(repo: Repository, session: SessionTips): Promise<Checkpoint> {
  if (session.checkpoint !== null) {
    const found = await readCheckpoint(repo, session.checkpoint)
    if (found === null) throw errors.internal(`checkpoint ${session.checkpoint} is not stash-shaped`)
    return found
  }
  return session.branch === null ? unbornCheckpoint(repo) : cleanCheckpoint(repo, session.branch)
}

async function cleanContext(repo: Repository, head: Oid, at: number): Promise<Oid> {
  return writeCheckpoint(repo, await cleanCheckpoint(repo, head), at)
}

async function withPatches(
  repo: Repository,
  base: Checkpoint | Promise<Checkpoint>,
  intake: Intake,
  at: number,
  pending: Pending | null = null,
): Promise<Oid | null> {
  if (intake.patches.length === 0) return null
  const outcome = await applyPatches(
    repo,
    await base,
    intake.patches.map((patch) => patch.content),
    at,
    pending,
  )
  if (outcome.ok) return outcome.checkpoint
  const item = intake.patches[outcome.at]
  throw item === undefined ? new HangarError('invalid_context', outcome.reason) : patchRefused(item, outcome.reason)
}
