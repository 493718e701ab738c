/** Git between the checkout's objects and the server: in a repository of its own, so that no URL rewriting, hook or push setting of the checkout's has a say. */
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type GitResult, runGit } from '../gateway/git/process.ts'
import type { Checkout } from './checkout.ts'
import type { Server } from './client.ts'
import { EXIT, Failure, usage } from './failure.ts'
import type { WireRepo } from './wire.ts'

/** Where to push, and from which objects. */
export interface Remote {
  readonly checkout: Checkout
  readonly server: Server
  readonly repo: WireRepo
  /** The object directories, for objects that are not in the checkout's own store; empty for its own. */
  readonly env: Readonly<Record<string, string>>
  /** Ends git when it aborts. */
  readonly signal?: AbortSignal | undefined
}

/** Whether the repo has a branch. */
export async function hasBranches(remote: Remote): Promise<boolean> {
  const listed = await git(remote, ['ls-remote', '--heads', gitUrl(remote)])
  if (listed.exitCode !== 0) throw pushFailure(listed.stderr, remote.repo)
  return listed.stdout.length > 0
}

/** Pushes `<oid>:<ref>` refspecs with the token. Throws git's and the server's own words. */
export async function push(remote: Remote, refspecs: readonly string[]): Promise<void> {
  const run = await git(remote, ['push', '--porcelain', '--no-signed', gitUrl(remote), ...refspecs])
  if (run.exitCode !== 0) throw pushFailure(`${run.stdout.toString('utf8')}${run.stderr}`, remote.repo)
}

async function git({ checkout, server, env, signal }: Remote, args: readonly string[]): Promise<GitResult> {
  const scratch = await mkdtemp(join(tmpdir(), 'hangar-push-'))
  try {
    await mkdir(join(scratch, 'refs'))
    await writeFile(join(scratch, 'HEAD'), 'ref: refs/heads/none\n')
    await writeFile(join(scratch, 'config'), '[core]\n\trepositoryformatversion = 0\n\tbare = true\n')
    // Absent unless the checkout is shallow.
    await copyFile(join(checkout.commonDir, 'shallow'), join(scratch, 'shallow')).catch(() => {})
    return await runGit({
      gitDir: scratch,
      args,
      ...(signal === undefined ? {} : { signal }),
      env: { GIT_OBJECT_DIRECTORY: join(checkout.commonDir, 'objects'), ...networkVariables(), ...env },
      config: {
        // In the environment of this one git only: not in its arguments, and not sent anywhere else.
        [`http.${server.url}/.extraHeader`]: `Authorization: Bearer ${server.token}`,
        'http.followRedirects': 'false',
        'credential.helper': '',
      },
    })
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

/** As this machine reaches the server, which its public URL need not say. */
function gitUrl({ server, repo }: Remote): string {
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
