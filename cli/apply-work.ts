/** `pull`: a session's commits into a local branch, and with `--checkout` its whole working state, without losing anything local. */
import { createWriteStream } from 'node:fs'
import { lstat, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ReadableStream } from 'node:stream/web'
import { type Checkout, gitIn, revParse, sessionRefs, stateTrees, tryGitIn } from './checkout.ts'
import { call, type Server } from './client.ts'
import { protectedWork, usage } from './failure.ts'
import { hasCommit, haves } from './local-work.ts'
import { type Snapshot, withSnapshot } from './snapshot.ts'
import { listTree, standing, treeWith } from './tree-files.ts'
import type { WireSession } from './wire.ts'

export interface PullOptions {
  readonly server: Server
  readonly session: WireSession
  /** The local branch; default `hangar/<name>`. */
  readonly branch: string
  readonly checkout: boolean
  /** Overwrite commits of the local branch that the session does not have. */
  readonly force: boolean
}

export interface Pulled {
  readonly branch: string
  /** The branch's commit; null while the session's branch is unborn. */
  readonly head: string | null
  readonly moved: boolean
  readonly checkedOut: boolean
}

const ZERO = '0'.repeat(40)

/** Fetches and applies; throws a `protected` failure before it touches anything that it would overwrite. */
export async function pullSession(checkout: Checkout, options: PullOptions): Promise<Pulled> {
  const { name } = options.session
  const tips = await fetchTips(checkout, options)
  const branchRef = `refs/heads/${options.branch}`
  if ((await tryGitIn(checkout, { args: ['check-ref-format', branchRef] })).exitCode !== 0)
    throw usage(`--branch ${options.branch}: that is no branch name that git takes`)
  const local = await revParse(checkout, branchRef)
  await refuseLostCommits(checkout, options, local, tips.head)
  const current = (await tryGitIn(checkout, { args: ['symbolic-ref', '-q', 'HEAD'] })).stdout.toString('utf8').trim()
  await refuseOtherWorktrees(checkout, branchRef, current)
  if (options.checkout) {
    if (tips.checkpoint === null)
      throw usage(`session ${name} has no checkpoint yet; wait for its turn to end: hangar session wait ${name}`)
    await checkOut(checkout, options, { branchRef, local, head: tips.head, checkpoint: tips.checkpoint })
  } else if (current === branchRef && local !== tips.head) {
    throw protectedWork(
      `${options.branch} is your current branch, and session ${name} has moved on; to move your working tree along: hangar session pull ${name} --checkout, ` +
        `or take it into another branch: --branch NAME`,
    )
  } else await moveBranch(checkout, branchRef, local, tips.head)
  const { checkpoint, checkedOut } = sessionRefs(name)
  for (const ref of options.checkout ? [checkpoint, checkedOut] : [checkpoint])
    if (tips.checkpoint !== null)
      await gitIn(checkout, { args: ['update-ref', '-m', 'hangar: pull', ref, tips.checkpoint] })
  return { branch: options.branch, head: tips.head, moved: local !== tips.head, checkedOut: options.checkout }
}

interface Tips {
  readonly head: string | null
  readonly checkpoint: string | null
}

/** Brings the session's objects into the checkout's store, and says where branch and checkpoint are. */
async function fetchTips(checkout: Checkout, { server, session }: PullOptions): Promise<Tips> {
  const path = `/api/sessions/${session.name}/pull`
  const response = await call(server, { path, query: { have: await haves(checkout) } })
  if (response.status === 204 || response.body === null) {
    const tips: Tips = { head: session.head_commit, checkpoint: session.checkpoint?.commit ?? null }
    for (const oid of [tips.head, tips.checkpoint])
      if (oid !== null && !(await hasCommit(checkout, oid)))
        throw usage(`session ${session.name} moved while it was pulled; run the same command again`)
    return tips
  }
  const scratch = await mkdtemp(join(tmpdir(), 'hangar-pull-'))
  try {
    const file = join(scratch, 'session.bundle')
    await pipeline(Readable.fromWeb(response.body as ReadableStream), createWriteStream(file))
    const listed = await gitIn(checkout, { args: ['bundle', 'unbundle', file] })
    const heads = new Map(
      listed
        .toString('utf8')
        .split('\n')
        .filter((line) => line !== '')
        .map((line): [string, string] => [line.slice(41), line.slice(0, 40)]),
    )
    return {
      head: heads.get(`refs/heads/hangar/${session.name}`) ?? null,
      checkpoint: heads.get(`refs/hangar/sessions/${session.name}/checkpoint`) ?? null,
    }
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

/** A local branch may move when the session contains it, or when it is just what the last pull made of it. */
async function refuseLostCommits(
  checkout: Checkout,
  options: PullOptions,
  local: string | null,
  head: string | null,
): Promise<void> {
  if (local === null || local === head || options.force) return
  if (
    head !== null &&
    (await tryGitIn(checkout, { args: ['merge-base', '--is-ancestor', local, head] })).exitCode === 0
  )
    return
  if ((await revParse(checkout, `${sessionRefs(options.session.name).checkpoint}^1`)) === local) return
  const range = head === null ? [local] : [local, `^${head}`]
  const own = (await gitIn(checkout, { args: ['log', '--format=%h %s', '--max-count=5', ...range] }))
    .toString('utf8')
    .trim()
  throw protectedWork(
    `your branch ${options.branch} has commits that session ${options.session.name} does not have:\n${own}\n` +
      `take the session into another branch (--branch NAME), or overwrite yours (--force)`,
  )
}

async function refuseOtherWorktrees(checkout: Checkout, branchRef: string, current: string): Promise<void> {
  const listed = (await gitIn(checkout, { args: ['worktree', 'list', '--porcelain', '-z'] })).toString('utf8')
  for (const block of listed.split('\0\0')) {
    const fields = block.split('\0')
    if (!fields.includes(`branch ${branchRef}`)) continue
    const path = fields.find((field) => field.startsWith('worktree '))?.slice('worktree '.length)
    if (current === branchRef) return
    throw protectedWork(
      `${branchRef.slice('refs/heads/'.length)} is checked out in ${path}; pull there, or take another branch with --branch NAME`,
    )
  }
}

async function moveBranch(
  checkout: Checkout,
  branchRef: string,
  local: string | null,
  head: string | null,
): Promise<void> {
  if (head === null || head === local) return
  const moved = await tryGitIn(checkout, { args: ['update-ref', '-m', 'hangar: pull', branchRef, head, local ?? ZERO] })
  if (moved.exitCode !== 0)
    throw protectedWork(
      `${branchRef.slice('refs/heads/'.length)} could not be moved: ${moved.stderr.trim().split('\n')[0]}; take another branch with --branch NAME`,
    )
}

interface Target {
  readonly branchRef: string
  readonly local: string | null
  readonly head: string | null
  readonly checkpoint: string
}

/** Makes work tree, index and HEAD the session's. All that could be lost is looked for before git moves the first file. */
async function checkOut(checkout: Checkout, options: PullOptions, target: Target): Promise<void> {
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
    await moveFiles(checkout, options, env, { from: await treeWith(checkout, env, base, same), to: wanted })
    await moveBranch(checkout, target.branchRef, target.local, target.head)
    await gitIn(checkout, { args: ['symbolic-ref', '-m', 'hangar: pull --checkout', 'HEAD', target.branchRef] })
    await gitIn(checkout, { args: ['read-tree', '--reset', trees.index] })
    await tryGitIn(checkout, { args: ['update-index', '-q', '--refresh'] })
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
    await gitIn(checkout, { args: ['read-tree', '--reset', trees.from], env })
    // Ends with 1 when a file differs; the merge then names it.
    await tryGitIn(checkout, { args: ['update-index', '-q', '--refresh'], env })
    const moved = await tryGitIn(checkout, { args: ['read-tree', '-m', '-u', trees.from, trees.to], env })
    if (moved.exitCode !== 0) throw inTheWay(options, moved.stderr.trim())
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
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
 * what the session was handed, or what was pulled from it; then its untracked files as well, where they are still the same.
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
