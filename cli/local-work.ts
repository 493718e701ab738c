/** `--from-local`: the checkout's commits and uncommitted changes become a checkpoint that is pushed to the server. */
import { randomBytes } from 'node:crypto'
import { createInterface } from 'node:readline/promises'
import { type Checkout, gitIn, localSlug, matchRepo, revParse, sessionRefs, tryGitIn } from './checkout.ts'
import { callJson, type Server } from './client.ts'
import { EXIT, Failure, usage } from './failure.ts'
import type { Output } from './output.ts'
import { keepSnapshot, withSnapshot } from './snapshot.ts'
import type { Listed, WireRepo } from './wire.ts'

export interface HandedOver {
  readonly repo: string
  /** The pushed checkpoint. */
  readonly commit: string
}

export interface HandOverOptions {
  readonly server: Server
  readonly output: Output
  /** The repo that the user named; null: matched by remotes. */
  readonly repo: string | null
  readonly createRepo: boolean
}

/**
 * Pushes a checkpoint of the checkout, hosting the repo first when the server does not know it and the user agrees; gives it to `use`,
 * and when that was taken, keeps it under a local ref as well.
 */
export async function handOver<T>(
  checkout: Checkout,
  options: HandOverOptions,
  session: string,
  use: (handed: HandedOver) => Promise<T>,
): Promise<T> {
  const repo = await repoFor(checkout, options)
  return withSnapshot(checkout, { strict: true }, async (snapshot) => {
    for (const warning of snapshot.warnings) options.output.say(`note: ${warning}`)
    await seed(checkout, repo, options)
    const ref = `refs/hangar/incoming/${randomBytes(8).toString('hex')}`
    await push(checkout, repo, [`${snapshot.commit}:${ref}`], options.server, snapshot.env)
    const taken = await use({ repo: repo.slug, commit: snapshot.commit })
    await keepSnapshot(checkout, snapshot, sessionRefs(session).handed)
    return taken
  })
}

/** The server's repo for this checkout: named, matched, or made now. */
export async function repoFor(checkout: Checkout, options: HandOverOptions): Promise<WireRepo> {
  const { items } = await callJson<Listed<WireRepo>>(options.server, { path: '/api/repos' })
  const find = (slug: string) => items.find((repo) => repo.slug.toLowerCase() === slug.toLowerCase())
  const slug = options.repo ?? matchRepo(checkout, items)
  const found = slug === null ? undefined : find(slug)
  if (found !== undefined) return found
  const wanted = options.repo ?? localSlug(checkout)
  const unknown = `the server at ${options.server.url} does not know this checkout (no remote of it names a repo there, and there is no ${wanted})`
  if (!options.createRepo && !(await agrees(`${unknown}.\nHost it there as ${wanted}? [y/N] `)))
    throw usage(`${unknown}; host it there with --create-repo, or name another repo with --repo`)
  options.output.say(`hosting this checkout as ${wanted}`)
  return callJson<WireRepo>(options.server, { method: 'POST', path: '/api/repos', body: { slug: wanted } })
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
  const listed = await git(checkout, options.server, ['ls-remote', '--heads', gitUrl(options.server, repo)], {})
  if (listed.exitCode !== 0) throw pushFailure(listed.stderr, repo)
  if (listed.stdout.length > 0) return
  const start = await publishedCommit(checkout)
  if (start === null) return
  options.output.say(`seeding ${repo.slug} with ${start.branch}`)
  await push(checkout, repo, [`${start.commit}:refs/heads/${start.branch}`], options.server, {})
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

/** Pushes refspecs to the server with the token, past the user's hooks and push settings. */
async function push(
  checkout: Checkout,
  repo: WireRepo,
  refspecs: readonly string[],
  server: Server,
  env: Readonly<Record<string, string>>,
): Promise<void> {
  const run = await git(
    checkout,
    server,
    ['push', '--porcelain', '--no-verify', '--no-signed', '--no-follow-tags', gitUrl(server, repo), ...refspecs],
    env,
  )
  if (run.exitCode !== 0) throw pushFailure(`${run.stdout.toString('utf8')}${run.stderr}`, repo)
}

function git(checkout: Checkout, server: Server, args: readonly string[], env: Readonly<Record<string, string>>) {
  return tryGitIn(checkout, {
    args,
    env: { ...networkVariables(), ...env },
    config: {
      // In the environment of this one git only: not in its arguments, and not sent anywhere else.
      [`http.${server.url}/.extraHeader`]: `Authorization: Bearer ${server.token}`,
      'http.followRedirects': 'false',
      'credential.helper': '',
      'push.recurseSubmodules': 'no',
    },
  })
}

/** As this machine reaches the server, which its public URL need not say. */
function gitUrl(server: Server, repo: WireRepo): string {
  return `${server.url}/git/${repo.slug}.git`
}

/** What the user's shell says about the way to the network. */
function networkVariables(): Record<string, string> {
  const names = [
    'http_proxy',
    'https_proxy',
    'all_proxy',
    'no_proxy',
    'HTTPS_PROXY',
    'ALL_PROXY',
    'NO_PROXY',
    'SSL_CERT_FILE',
    'GIT_SSL_CAINFO',
  ]
  return Object.fromEntries(
    names.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name] ?? '']])),
  )
}

function pushFailure(said: string, repo: WireRepo): Failure {
  if (/shallow/.test(said))
    return usage(`this checkout is shallow and ${repo.slug} lacks its older commits; run: git fetch --unshallow`)
  const reason = said
    .split('\n')
    .filter((line) => /rejected|fatal|error|remote:/.test(line))
    .join('\n')
    .trim()
  return new Failure(EXIT.unavailable, `the push to ${repo.slug} failed:\n${reason === '' ? said.trim() : reason}`)
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
