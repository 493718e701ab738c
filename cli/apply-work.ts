/** `pull`: a session's commits into a local branch, and with `--checkout` its whole working state, without losing anything local. */
import { createWriteStream } from 'node:fs'
import { lstat, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ReadableStream } from 'node:stream/web'
import { type Checkout, gitIn, lineEnds, revParse, sessionRefs, stateTrees, tryGitIn } from './checkout.ts'
import { call, type Server } from './client.ts'
import { protectedWork, usage } from './failure.ts'
import { beginCheckout, leftByCheckout } from './interrupted-checkout.ts'
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
/** Parent 1 of a checkpoint whose HEAD was unborn, as hangar-agent makes it. */
const UNBORN = '4f16da4ccd063e4a1b9518d1152b8e77df2aa266'

/** Fetches and applies; throws a `protected` failure before it touches anything that it would overwrite. */
export async function pullSession(checkout: Checkout, options: PullOptions): Promise<Pulled> {
  const { name } = options.session
  const tips = await fetchTips(checkout, options)
  const branchRef = `refs/heads/${options.branch}`
  if ((await tryGitIn(checkout, { args: ['check-ref-format', branchRef] })).exitCode !== 0)
    throw usage(`--branch ${options.branch}: that is no branch name that git takes`)
  const local = await revParse(checkout, branchRef)
  const head = options.checkout ? await checkpointHead(checkout, options, tips) : tips.head
  await refuseLostCommits(checkout, options, local, [head, tips.head])
  const current = (await tryGitIn(checkout, { args: ['symbolic-ref', '-q', 'HEAD'] })).stdout.toString('utf8').trim()
  if (options.checkout || local !== head) await refuseOtherWorktrees(checkout, branchRef, current)
  if (options.checkout && tips.checkpoint !== null) {
    await checkOut(checkout, options, { branchRef, local, head, checkpoint: tips.checkpoint })
  } else if (current === branchRef && local !== head) {
    throw protectedWork(
      `${options.branch} is your current branch, and session ${name} has moved on; to move your working tree along: hangar session pull ${name} --checkout, ` +
        `or take it into another branch: --branch NAME`,
    )
  } else if (head !== null) await moveBranch(checkout, branchRef, local, head)
  await remember(checkout, options, tips)
  return { branch: options.branch, head, moved: local !== head, checkedOut: options.checkout }
}

/** HEAD of the checkpoint, which its index and files belong to; null when it was unborn. */
async function checkpointHead(checkout: Checkout, { session }: PullOptions, tips: Tips): Promise<string | null> {
  if (tips.checkpoint === null)
    throw usage(
      `session ${session.name} has no checkpoint yet; wait for its turn to end: hangar session wait ${session.name}`,
    )
  const head = await revParse(checkout, `${tips.checkpoint}^1`)
  return head === UNBORN ? null : head
}

/** Keeps under local refs what the session's branch and checkpoint are now. */
async function remember(checkout: Checkout, options: PullOptions, tips: Tips): Promise<void> {
  const refs = sessionRefs(options.session.name)
  const updates: [ref: string, oid: string | null][] = [
    [refs.branch, tips.head],
    [refs.checkpoint, tips.checkpoint],
    ...(options.checkout ? [[refs.checkedOut, tips.checkpoint] as [string, string | null]] : []),
  ]
  const lines = updates.flatMap(([ref, oid]) => (oid === null ? [] : [`update ${ref} ${oid}\n`]))
  if (options.checkout) lines.push(`delete ${refs.pulling}\n`)
  await gitIn(checkout, { args: ['update-ref', '-m', 'hangar: pull', '--stdin'], input: Buffer.from(lines.join('')) })
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

/** A local branch may move when each of its commits is in the session now, or came from an earlier pull: an agent may amend its own. */
async function refuseLostCommits(
  checkout: Checkout,
  options: PullOptions,
  local: string | null,
  heads: readonly (string | null)[],
): Promise<void> {
  if (local === null || local === heads[0] || options.force) return
  const { branch, checkpoint, checkedOut } = sessionRefs(options.session.name)
  const pulled = await Promise.all([branch, checkpoint, checkedOut].map((ref) => revParse(checkout, ref)))
  const known = [...heads, ...pulled].flatMap((oid) => (oid === null ? [] : [`^${oid}`]))
  const own = (await gitIn(checkout, { args: ['log', '--format=%h %s', '--max-count=5', local, ...known] }))
    .toString('utf8')
    .trim()
  if (own === '') return
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
  if (head === local) return
  const change = head === null ? ['-d', branchRef, local ?? ZERO] : [branchRef, head, local ?? ZERO]
  const moved = await tryGitIn(checkout, { args: ['update-ref', '-m', 'hangar: pull', ...change] })
  if (moved.exitCode !== 0) throw blockedBranch(branchRef, moved.stderr)
}

/** Tries the move without making it, so that no file is touched for a branch that cannot be had. */
async function refuseBlockedBranch(checkout: Checkout, { branchRef, local, head }: Target): Promise<void> {
  if (head === null || head === local) return
  const input = Buffer.from(`start\nupdate ${branchRef} ${head} ${local ?? ZERO}\nprepare\nabort\n`)
  const tried = await tryGitIn(checkout, { args: ['update-ref', '--stdin'], input })
  if (tried.exitCode !== 0) throw blockedBranch(branchRef, tried.stderr)
}

function blockedBranch(branchRef: string, said: string): Error {
  return protectedWork(
    `${branchRef.slice('refs/heads/'.length)} could not be moved: ${said.trim().split('\n')[0]}; take another branch with --branch NAME`,
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
    await refuseBlockedBranch(checkout, target)
    const from = await treeWith(checkout, env, base, same)
    await beginCheckout(checkout, snapshot, { session: options.session.name, from, target: target.checkpoint })
    await moveFiles(checkout, options, env, { from, to: wanted })
    await moveBranch(checkout, target.branchRef, target.local, target.head)
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
