/** The local branch of a pull: whether it may move, and its move. */
import type { PullOptions } from './apply-work.ts'
import { type Checkout, gitIn, revParse, sessionRefs, tryGitIn } from './checkout.ts'
import { protectedWork } from './failure.ts'

const ZERO = '0'.repeat(40)

/** A branch, where it is now and where it is to be; null: it is not there. */
export interface BranchMove {
  readonly branchRef: string
  readonly local: string | null
  readonly head: string | null
}

/** A local branch may move when each of its commits is in the session now, or came from an earlier pull: an agent may amend its own. */
export async function refuseLostCommits(
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

/** A branch that another work tree stands on moves only there. */
export async function refuseOtherWorktrees(checkout: Checkout, branchRef: string, current: string): Promise<void> {
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

/** Moves it unless somebody else has; makes or deletes it where one side is null. */
export async function moveBranch(checkout: Checkout, { branchRef, local, head }: BranchMove): Promise<void> {
  if (head === local) return
  const change = head === null ? ['-d', branchRef, local ?? ZERO] : [branchRef, head, local ?? ZERO]
  const moved = await tryGitIn(checkout, { args: ['update-ref', '-m', 'hangar: pull', ...change] })
  if (moved.exitCode !== 0) throw blockedBranch(branchRef, moved.stderr)
}

/** Tries the move without making it, so that no file is touched for a branch that cannot be had. */
export async function refuseBlockedBranch(checkout: Checkout, { branchRef, local, head }: BranchMove): Promise<void> {
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
