/** The user's checkout: where it is, which repo of the server it belongs to, and git run in it under neutral settings. */
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { basename, join } from 'node:path'
import { type GitRun, git, runGit } from '../gateway/git/process.ts'
import { usage } from './failure.ts'
import type { WireRepo } from './wire.ts'

export interface Checkout {
  /** The top level of the work tree. */
  readonly top: string
  /** This work tree's own git directory. */
  readonly gitDir: string
  /** The git directory that linked work trees share. */
  readonly commonDir: string
}

/** Settings that decide what bytes git reads from and writes into a work tree: the bytes, exactly, whatever the user's config says. */
const EXACT = {
  'core.autocrlf': 'false',
  'core.eol': 'lf',
  'core.safecrlf': 'false',
  'core.fileMode': 'true',
  'core.symlinks': 'true',
  'core.ignoreStat': 'false',
  'core.splitIndex': 'false',
  'core.untrackedCache': 'false',
  'core.logAllRefUpdates': 'true',
  'core.attributesFile': '/dev/null',
  'filter.lfs.clean': '',
  'filter.lfs.smudge': '',
  'filter.lfs.process': '',
  'filter.lfs.required': 'false',
} as const

/** The checkout around a directory, found by the user's own git (which knows what they trust). Throws a usage failure outside of one. */
export function findCheckout(cwd: string): Checkout {
  const asked = userGit(cwd, [
    'rev-parse',
    '--path-format=absolute',
    '--show-toplevel',
    '--git-dir',
    '--git-common-dir',
  ])
  const [top, gitDir, commonDir, ...more] = asked.out.replace(/\n$/, '').split('\n')
  if (more.length > 0)
    throw usage(`${JSON.stringify(cwd)} has a line break in its path, which is not supported; move the checkout`)
  if (asked.status !== 0 || !top || !gitDir || !commonDir)
    throw usage(
      `${cwd} is not in a git checkout${asked.err === '' ? '' : ` (${asked.err.split('\n')[0]})`}; change into one, or name a repo with --repo`,
    )
  return { top, gitDir, commonDir }
}

/** Runs git in the checkout and gives its stdout; throws git's own words unless it exits with 0. */
export function gitIn(checkout: Checkout, run: Omit<GitRun, 'cwd'>): Promise<Buffer> {
  return git(exactly(checkout, run))
}

/** The same, with the exit status for the caller to judge. */
export function tryGitIn(checkout: Checkout, run: Omit<GitRun, 'cwd'>) {
  return runGit(exactly(checkout, run))
}

function exactly(checkout: Checkout, run: Omit<GitRun, 'cwd'>): GitRun {
  return { ...run, cwd: checkout.top, config: { ...EXACT, ...run.config } }
}

/** A commit that a revision names, or null. */
export async function revParse(checkout: Checkout, revision: string): Promise<string | null> {
  const run = await tryGitIn(checkout, {
    args: ['rev-parse', '--verify', '--quiet', '--end-of-options', `${revision}^{commit}`],
  })
  return run.exitCode === 0 ? run.stdout.toString('latin1').trim() : null
}

/** The user's file of global ignore rules: what they keep out of git everywhere is not handed over either. */
export function globalExcludes(checkout: Checkout): string | null {
  const set = userGit(checkout.top, ['config', '--get', '--type=path', 'core.excludesFile'])
  const home = process.env['XDG_CONFIG_HOME'] ?? join(process.env['HOME'] ?? '/nonexistent', '.config')
  const file = set.status === 0 && set.out !== '' ? set.out.replace(/\n$/, '') : join(home, 'git', 'ignore')
  return existsSync(file) ? file : null
}

/** The user's `core.autocrlf`: git takes a tracked file whose line ends only it has changed for unchanged, and so does a hand-over. */
export function lineEnds(checkout: Checkout): 'true' | 'input' | 'false' {
  const set = userGit(checkout.top, ['config', '--get', 'core.autocrlf']).out.trim().toLowerCase()
  if (set === 'input') return 'input'
  return /^(true|yes|on|1)$/.test(set) ? 'true' : 'false'
}

/** The repo that one of the checkout's remotes names, else `local/<directory>` where the server has it; null when it knows neither. */
export function matchRepo(checkout: Checkout, repos: readonly WireRepo[]): string | null {
  // As written, and as url.<base>.insteadOf has it.
  const written = userGit(checkout.top, ['config', '--get-regexp', '^remote\\..*\\.url$'])
    .out.split('\n')
    .map((line) => line.slice(line.indexOf(' ') + 1))
  const used = userGit(checkout.top, ['remote', '-v'])
    .out.split('\n')
    .map((line) => line.slice(line.indexOf('\t') + 1).replace(/ \(\w+\).*$/, ''))
  const urls = [...written, ...used].filter((url) => url !== '').map(normalUrl)
  const byUrl = repos.find(
    (repo) => urls.includes(normalUrl(repo.url)) || (repo.upstream !== null && urls.includes(normalUrl(repo.upstream))),
  )
  if (byUrl !== undefined) return byUrl.slug
  const local = localSlug(checkout).toLowerCase()
  return repos.find((repo) => repo.slug.toLowerCase() === local)?.slug ?? null
}

/** The slug under which a checkout is hosted that no remote names: `local/<directory>`. */
export function localSlug(checkout: Checkout): string {
  const name = basename(checkout.top)
    .replace(/[^A-Za-z0-9_-]+/g, '-')
    .replace(/^-+|-+$/g, '')
    .slice(0, 80)
  return `local/${name === '' ? 'checkout' : name}`
}

/** The forms of one remote URL compare equal: https, ssh and scp, with or without user, port and `.git`. */
function normalUrl(url: string): string {
  const scp = /^(?:[^@/]+@)?([^:/]+):(?!\/\/)(.+)$/.exec(url)
  const [host, path] = scp
    ? [scp[1], scp[2]]
    : [url.replace(/^\w+:\/\/(?:[^@/]*@)?([^/]*).*$/, '$1'), url.replace(/^\w+:\/\/[^/]*\//, '')]
  const port = /^https?:/.test(url) ? '' : /:\d+$/
  return `${(host ?? '').toLowerCase().replace(port, '')}/${(path ?? '')
    .replace(/\/+$/, '')
    .replace(/\.git$/, '')
    .toLowerCase()}`
}

/** Trees of a whole working state. */
export interface StateTrees {
  readonly index: string
  readonly tracked: string
  readonly untracked: string
}

/** Local refs of a session; `git stash apply` takes the first three. */
export interface SessionRefs {
  /** What the session was given from here. */
  readonly handed: string
  /** What was pulled from it last. */
  readonly checkpoint: string
  /** What was checked out last. */
  readonly checkedOut: string
  /** Its branch, as it was pulled last. */
  readonly branch: string
  /** There only while a checkout is under way, or after one that was cut off. */
  readonly pulling: string
}

export function sessionRefs(name: string): SessionRefs {
  const folder = `refs/hangar/sessions/${name}`
  return {
    handed: `${folder}/handed`,
    checkpoint: `${folder}/checkpoint`,
    checkedOut: `${folder}/checked-out`,
    branch: `${folder}/branch`,
    pulling: `${folder}/pulling`,
  }
}

/** The trees of a checkpoint that is in the checkout's store; null when it is not there. */
export async function stateTrees(checkout: Checkout, checkpoint: string): Promise<StateTrees | null> {
  const names = ['', '^2', '^3'].map((parent) => `${checkpoint}${parent}^{tree}`)
  const run = await tryGitIn(checkout, { args: ['rev-parse', '--verify', '--quiet', names[0] ?? ''] })
  if (run.exitCode !== 0) return null
  const [tracked = '', index = '', untracked = ''] = (await gitIn(checkout, { args: ['rev-parse', ...names] }))
    .toString('latin1')
    .trim()
    .split('\n')
  return { tracked, index, untracked }
}

/** The user's git with all of their own settings: only asks, never writes. */
function userGit(cwd: string, args: readonly string[]): { status: number | null; out: string; err: string } {
  const run = spawnSync('git', args, {
    cwd,
    encoding: 'utf8',
    env: { ...process.env, LC_ALL: 'C', GIT_OPTIONAL_LOCKS: '0' },
  })
  if (run.error !== undefined && !existsSync(cwd)) throw usage(`${cwd} is not there; name the directory of a checkout`)
  if (run.error !== undefined) throw usage(`git could not be started (${run.error.message}); install git 2.39 or newer`)
  return { status: run.status, out: run.stdout, err: run.stderr.trim() }
}
