/** `pull --checkout`: work tree, index and HEAD become the session's, and nothing local is lost. */
import { lstat, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { PullOptions } from './apply-work.ts'
import { type Checkout, gitIn, lineEnds, sessionRefs, stateTrees, tryGitIn } from './checkout.ts'
import { protectedWork, usage } from './failure.ts'
import { beginCheckout, leftByCheckout } from './interrupted-checkout.ts'
import { type BranchMove, moveBranch, refuseBlockedBranch } from './local-branch.ts'
import { type Snapshot, withSnapshot } from './snapshot.ts'
import { listTree, standing, treeWith } from './tree-files.ts'

/** Makes work tree, index and HEAD the session's. All that could be lost is looked for before git moves the first file. */
export async function checkOut(
  checkout: Checkout,
  options: PullOptions,
  target: BranchMove & { readonly checkpoint: string },
): Promise<void> {
  await refuseUnfinished(checkout)
  await withSnapshot(checkout, { strict: false }, async (snapshot) => {
    const { env } = snapshot
    const trees = await stateTrees(checkout, target.checkpoint)
    if (trees === null)
      throw usage(`session ${options.session.name} moved while it was pulled; run the same command again`)
    const wanted = await treeWith(checkout, env, trees.tracked, await listTree(checkout, env, trees.untracked))
    const base = await replaceable(checkout, options, snapshot)
    const { same, obstacles } = await standing(
      checkout,
      env,
      await listTree(checkout, env, base),
      await listTree(checkout, env, wanted),
    )
    if (obstacles.length > 0)
      throw inTheWay(options, some(obstacles.map((path) => Buffer.from(path, 'latin1').toString('utf8'))))
    await refuseBlockedBranch(checkout, target)
    const from = await treeWith(checkout, env, base, same)
    await beginCheckout(checkout, snapshot, { session: options.session.name, from, target: target.checkpoint })
    await moveFiles(checkout, options, env, { from, to: wanted })
    await moveBranch(checkout, target)
    await gitIn(checkout, { args: ['symbolic-ref', '-m', 'hangar: pull --checkout', 'HEAD', target.branchRef] })
    await gitIn(checkout, { args: ['read-tree', '--reset', trees.index] })
    await tryGitIn(checkout, {
      args: ['update-index', '-q', '--refresh'],
      config: { 'core.autocrlf': lineEnds(checkout) },
    })
  })
}

/** Has git bring the work tree from one tree to another, with an index of its own; git refuses as a whole when a file is not as `from` says. */
async function moveFiles(
  checkout: Checkout,
  options: PullOptions,
  objects: Readonly<Record<string, string>>,
  trees: { readonly from: string; readonly to: string },
): Promise<void> {
  const scratch = await mkdtemp(join(tmpdir(), 'hangar-index-'))
  try {
    const env = { ...objects, GIT_INDEX_FILE: join(scratch, 'index') }
    const autocrlf = lineEnds(checkout)
    const config = { 'core.autocrlf': autocrlf }
    await gitIn(checkout, { args: ['read-tree', '--reset', trees.from], env })
    // Ends with 1 when a file differs; the merge then names it.
    await tryGitIn(checkout, { args: ['update-index', '-q', '--refresh'], env, config })
    const moved = await tryGitIn(checkout, { args: ['read-tree', '-m', '-u', trees.from, trees.to], env, config })
    if (moved.exitCode !== 0) throw inTheWay(options, moved.stderr.trim())
    if (autocrlf !== 'false') await writeExactly(checkout, { ...env, GIT_INDEX_FILE: join(scratch, 'exact') }, trees)
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

/** Writes once more, byte for byte, the files that git has just written with the user's line ends. */
async function writeExactly(
  checkout: Checkout,
  env: Readonly<Record<string, string>>,
  trees: { readonly from: string; readonly to: string },
): Promise<void> {
  const args = ['diff-tree', '-r', '-z', '--name-only', '--no-renames', '--diff-filter=AMT', trees.from, trees.to]
  const written = await gitIn(checkout, { args, env })
  if (written.length === 0) return
  await gitIn(checkout, { args: ['read-tree', trees.to], env })
  await gitIn(checkout, { args: ['checkout-index', '-f', '-q', '-z', '--stdin'], env, input: written })
}

async function refuseUnfinished(checkout: Checkout): Promise<void> {
  for (const state of [
    'MERGE_HEAD',
    'CHERRY_PICK_HEAD',
    'REVERT_HEAD',
    'rebase-merge',
    'rebase-apply',
    'BISECT_LOG',
    'index.lock',
  ])
    if (await lstat(join(checkout.gitDir, state)).catch(() => null))
      throw protectedWork(
        `this checkout is in the middle of something (${state}); finish or abort it first, then pull again`,
      )
}

/**
 * The tree of those local files that may be replaced: the tracked ones when nothing is uncommitted, or when what is uncommitted is just
 * what the session was handed, or what was pulled from it; then its untracked files as well, where they are still the same. And
 * whatever a checkout that was cut off has left.
 */
async function replaceable(checkout: Checkout, options: PullOptions, snapshot: Snapshot): Promise<string> {
  const refs = sessionRefs(options.session.name)
  for (const ref of [refs.handed, refs.checkpoint, refs.checkedOut]) {
    const state = await stateTrees(checkout, ref)
    if (state === null || state.tracked !== snapshot.tracked || state.index !== snapshot.index) continue
    const [present, known] = await Promise.all(
      [snapshot.untracked, state.untracked].map((tree) => listTree(checkout, snapshot.env, tree)),
    )
    const unchanged = new Map([...(present ?? [])].filter(([path, entry]) => known?.get(path) === entry))
    return treeWith(checkout, snapshot.env, snapshot.tracked, unchanged)
  }
  if (snapshot.tracked === snapshot.headTree && snapshot.index === snapshot.headTree) return snapshot.tracked
  const begun = await leftByCheckout(checkout, snapshot, options.session.name)
  if (begun !== null) return begun
  const files = new Set<string>()
  for (const tree of [snapshot.tracked, snapshot.index]) {
    const args = ['diff-tree', '-r', '-z', '--name-only', '--no-renames', snapshot.headTree, tree]
    for (const name of (await gitIn(checkout, { args, env: snapshot.env })).toString('utf8').split('\0'))
      if (name !== '') files.add(name)
  }
  throw protectedWork(
    `your uncommitted changes are not what session ${options.session.name} was given, so they would be lost: ${some([...files])}.\n` +
      'commit them, or put them aside with git stash -u, then pull again',
  )
}

function inTheWay(options: PullOptions, files: string): Error {
  return protectedWork(
    `files of yours are in the way of session ${options.session.name}: ${files}\n` +
      'move them away, or put them aside with git stash -u, then pull again; nothing was changed',
  )
}

function some(files: readonly string[]): string {
  return files.length <= 10 ? files.join(', ') : `${files.slice(0, 10).join(', ')} and ${files.length - 10} more`
}
