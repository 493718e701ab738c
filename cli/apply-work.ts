/** `pull`: a session's commits into a local branch, and with `--checkout` its whole working state, without losing anything local. */
import { createWriteStream } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ReadableStream } from 'node:stream/web'
import { checkOut } from './check-out.ts'
import { type Checkout, gitIn, revParse, sessionRefs, tryGitIn } from './checkout.ts'
import { call, callJson, type Server } from './client.ts'
import { protectedWork, usage } from './failure.ts'
import { moveBranch, refuseLostCommits, refuseOtherWorktrees } from './local-branch.ts'
import { hasCommit, haves } from './local-work.ts'
import type { WireSession } from './wire.ts'

export interface PullOptions {
  readonly server: Server
  readonly session: WireSession
  /** The local branch; default `hangar/<name>`. */
  readonly branch: string
  readonly checkout: boolean
  /** Overwrite commits of the local branch that the session does not have. */
  readonly force: boolean
  /** Ends what goes on between here and the server when it aborts; the checkout's own move is not cut off. */
  readonly signal?: AbortSignal
}

export interface Pulled {
  readonly branch: string
  /** The branch's commit; null while the session's branch is unborn. */
  readonly head: string | null
  readonly moved: boolean
  readonly checkedOut: boolean
}

/** The same by the session's name; `branch` null is the usual one. */
export async function pullByName(
  checkout: Checkout,
  options: Omit<PullOptions, 'session' | 'branch'> & { readonly name: string; readonly branch: string | null },
): Promise<Pulled> {
  const { name, branch, ...rest } = options
  const session = await callJson<WireSession>(rest.server, {
    path: `/api/sessions/${encodeURIComponent(name)}`,
    ...(rest.signal === undefined ? {} : { signal: rest.signal }),
  })
  return pullSession(checkout, { ...rest, session, branch: branch ?? `hangar/${name}` })
}

/** What a pull did, and the next thing to do. */
export function pulledText(pulled: Pulled, name: string): string {
  const at = pulled.head === null ? 'no commits yet' : pulled.head.slice(0, 12)
  if (pulled.checkedOut) return `you are on ${pulled.branch} at ${at}, with the session's uncommitted changes`
  if (!pulled.moved) return `${pulled.branch} is up to date at ${at}`
  return `${pulled.branch} is at ${at}; look at it with: git log ${pulled.branch}\ntake over its uncommitted changes as well with: hangar session pull ${name} --checkout`
}

/** Parent 1 of a checkpoint whose HEAD was unborn, as hangar-agent makes it. */
const UNBORN = '4f16da4ccd063e4a1b9518d1152b8e77df2aa266'

/** Fetches and applies; throws a `protected` failure before it touches anything that it would overwrite. */
async function pullSession(checkout: Checkout, options: PullOptions): Promise<Pulled> {
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
  } else if (head !== null) await moveBranch(checkout, { branchRef, local, head })
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
async function fetchTips(checkout: Checkout, { server, session, signal }: PullOptions): Promise<Tips> {
  const path = `/api/sessions/${session.name}/pull`
  const response = await call(server, {
    path,
    query: { have: await haves(checkout) },
    ...(signal === undefined ? {} : { signal }),
  })
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
