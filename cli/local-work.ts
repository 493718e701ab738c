/** `--from-local`: the checkout's commits and uncommitted changes become a checkpoint that is pushed to the server. */
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline/promises'
import { type Checkout, gitIn, localSlug, matchRepo, revParse, sessionRefs, tryGitIn } from './checkout.ts'
import { callJson, type Server } from './client.ts'
import { usage } from './failure.ts'
import type { Output } from './output.ts'
import { hasBranches, push } from './push.ts'
import { keepSnapshot, withSnapshot } from './snapshot.ts'
import type { Listed, WireRepo } from './wire.ts'

export interface HandedOver {
  readonly repo: string
  /** The pushed checkpoint. */
  readonly commit: string
}

export interface HandOverOptions {
  readonly server: Server
  readonly output: Pick<Output, 'say'>
  /** The repo that the user named; null: matched by remotes. */
  readonly repo: string | null
  readonly createRepo: boolean
  /** Ask on the terminal, where there is one, whether the repo is to be hosted. */
  readonly mayAsk: boolean
  /** Ends what goes on between here and the server when it aborts. */
  readonly signal?: AbortSignal
}

/**
 * Pushes a checkpoint of the checkout, hosting the repo first when the server does not know it and the user agrees; gives it to `use`,
 * and when that was taken, keeps it under a local ref of the session that took it as well.
 */
export async function handOver<T>(
  checkout: Checkout,
  options: HandOverOptions,
  sessionOf: (taken: T) => string | null,
  use: (handed: HandedOver) => Promise<T>,
): Promise<T> {
  // What cannot be carried is refused before anything is made on the server.
  return withSnapshot(checkout, { strict: true }, async (snapshot) => {
    const repo = await repoFor(checkout, options)
    for (const warning of snapshot.warnings) options.output.say(`note: ${warning}`)
    await seed(checkout, repo, options)
    const ref = `refs/hangar/incoming/${randomBytes(8).toString('hex')}`
    await push({ ...options, checkout, repo, env: snapshot.env }, [`${snapshot.commit}:${ref}`])
    const taken = await use({ repo: repo.slug, commit: snapshot.commit })
    const session = sessionOf(taken)
    if (session !== null) await keepSnapshot(checkout, snapshot, sessionRefs(session).handed)
    return taken
  })
}

/** The server's repo for this checkout: named, matched, or made now. */
export async function repoFor(checkout: Checkout, options: HandOverOptions): Promise<WireRepo> {
  const { items } = await callJson<Listed<WireRepo>>(options.server, { ...signalOf(options), path: '/api/repos' })
  const find = (slug: string) => items.find((repo) => repo.slug.toLowerCase() === slug.toLowerCase())
  const slug = options.repo ?? matchRepo(checkout, items)
  const found = slug === null ? undefined : find(slug)
  if (found !== undefined) return found
  const wanted = options.repo ?? localSlug(checkout)
  const unknown = `the server at ${options.server.url} does not know this checkout (no remote of it names a repo there, and there is no ${wanted})`
  const agreed =
    options.createRepo || (options.mayAsk && (await agrees(`${unknown}.\nHost it there as ${wanted}? [y/N] `)))
  if (!agreed) throw usage(`${unknown}; host it there with --create-repo, or name another repo with --repo`)
  if (existsSync(join(checkout.commonDir, 'shallow')))
    throw usage(
      `this checkout is shallow, so the server cannot host its history as ${wanted}; run: git fetch --unshallow`,
    )
  options.output.say(`hosting this checkout as ${wanted}`)
  const request = { method: 'POST', path: '/api/repos', body: { slug: wanted } } as const
  return callJson<WireRepo>(options.server, { ...signalOf(options), ...request })
}

function signalOf({ signal }: HandOverOptions): { readonly signal?: AbortSignal } {
  return signal === undefined ? {} : { signal }
}

async function agrees(question: string): Promise<boolean> {
  if (process.stdin.isTTY !== true || process.stderr.isTTY !== true) return false
  const prompt = createInterface({ input: process.stdin, output: process.stderr })
  try {
    return /^y(es)?$/i.test((await prompt.question(question)).trim())
  } finally {
    prompt.close()
  }
}

/** A hosted repo without branches gets the checkout's published history, so that the session has a base. */
async function seed(checkout: Checkout, repo: WireRepo, options: HandOverOptions): Promise<void> {
  const remote = { ...options, checkout, repo, env: {} }
  if (await hasBranches(remote)) return
  const start = await publishedCommit(checkout)
  if (start === null) return
  options.output.say(`seeding ${repo.slug} with ${start.branch}`)
  await push(remote, [`${start.commit}:refs/heads/${start.branch}`])
}

/** The newest commit that others have as well, with the branch to put it on; without a remote, the main branch or HEAD. */
async function publishedCommit(checkout: Checkout): Promise<{ commit: string; branch: string } | null> {
  const current = (await tryGitIn(checkout, { args: ['symbolic-ref', '-q', '--short', 'HEAD'] })).stdout
    .toString('utf8')
    .trim()
  const remoteHead = (
    await tryGitIn(checkout, { args: ['symbolic-ref', '-q', '--short', 'refs/remotes/origin/HEAD'] })
  ).stdout
    .toString('utf8')
    .trim()
  const candidates: [revision: string, branch: string][] = [
    ['refs/remotes/origin/HEAD', remoteHead.replace(/^origin\//, '') || 'main'],
    ['refs/remotes/origin/main', 'main'],
    ['refs/remotes/origin/master', 'master'],
    ['@{upstream}', 'main'],
    ['refs/heads/main', 'main'],
    ['refs/heads/master', 'master'],
    ['HEAD', current === '' || current.startsWith('hangar/') ? 'main' : current],
  ]
  for (const [revision, branch] of candidates) {
    const commit = await revParse(checkout, revision)
    if (commit !== null) return { commit, branch }
  }
  return null
}

/** Whether a commit is in the checkout's own store. */
export async function hasCommit(checkout: Checkout, commit: string): Promise<boolean> {
  return (await tryGitIn(checkout, { args: ['cat-file', '-e', `${commit}^{commit}`] })).exitCode === 0
}

/** Commits to name in `pull?have=`: tips of this checkout, the newest first, at most 256. */
export async function haves(checkout: Checkout): Promise<string[]> {
  const tips = await gitIn(checkout, {
    args: ['for-each-ref', '--sort=-committerdate', '--count=250', '--format=%(objecttype) %(objectname)'],
  })
  const commits = tips
    .toString('latin1')
    .split('\n')
    .filter((line) => line.startsWith('commit '))
    .map((line) => line.slice(7))
  const head = await revParse(checkout, 'HEAD')
  return [...new Set([...(head === null ? [] : [head]), ...commits])].slice(0, 256)
}
