/** The servers that the gateway is measured beside, and the gateway itself: each in processes of its own, each with the same repositories. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { GrantCaller, TokenCaller } from '../domain/grant.ts'
import { DEFAULT_LIMITS } from '../domain/limits.ts'
import type { RepoSlug, SessionName } from '../domain/names.ts'
import { startGitFromSmallProcess } from '../gateway/git/process.ts'
import { createRepositories } from '../gateway/git/repositories.ts'
import { createSmartHttp } from '../gateway/http/smart-http.ts'
import { createEventLog } from '../gateway/state/event-log.ts'
import { openIndex } from '../gateway/state/index.ts'

export const REPOS = ['small', 'large', 'refs'] as const
export type Repo = (typeof REPOS)[number]

export interface Peer {
  readonly name: string
  /** false: it speaks git's own protocol, and is no peer over HTTP. */
  readonly http: boolean
  readonly port: number
  /** The path of a repository on the server. */
  path(repo: Repo): string
  /** For the client with a number, each somebody of its own where the server knows people; `refused`: one who may not push. */
  url(repo: Repo, client?: number, refused?: boolean): string
  /** The bare repository on the disk. */
  dir(repo: Repo): string
  /** ms of processor time of the server and all that it started; null where the system has no control groups that we may use. */
  cpuMs(): number | null
}

export interface Peers {
  readonly all: readonly Peer[]
  close(): Promise<void>
}

export const REPLIES = 'nothing but replies'

/** Refs of the repository `refs` beside its main: half are branches of sessions, half their logs. */
export const MANY_REFS = 50_000

/** The commands of the servers that are ours: the gateway on a data directory, and what repeats the replies of the gateway on a port. */
export interface OwnServers {
  gateway(dataDir: string): readonly string[]
  replies(port: number): readonly string[]
}

/** Starts all of them below a directory. */
export async function startPeers(root: string, own: OwnServers): Promise<Peers> {
  const started: Started[] = []
  const nginx = await startNginx(join(root, 'nginx'), started)
  const gateway = await startGateway(join(root, 'hangar'), own, started)
  const all = [
    nginx,
    hiding(nginx),
    await startNodeGitServer(join(root, 'node-git-server'), started),
    await startDaemon(join(root, 'daemon'), started),
    gateway,
    await startReplies(gateway, own, started),
  ]
  return {
    all,
    async close() {
      for (const { child } of started) endGroup(child)
      await sleep(500)
      for (const { group } of started) group?.remove()
    },
  }
}

/** Our gateway in this process, as `hangar serve` puts it together; its port is printed. */
export async function serveGateway(dataDir: string): Promise<void> {
  const log = { info: () => {}, warn: console.error, error: console.error }
  const clock = { now: () => Date.now() }
  const signer = { publicKeyArmored: '', sign: async () => 'unsigned' }
  await startGitFromSmallProcess()
  const repositories = await createRepositories({ dataDir, signer, log })
  for (const name of REPOS) await repositories.create(`bench/${name}` as RepoSlug)
  const index = await openIndex({ dir: join(dataDir, 'events'), log })
  const events = await createEventLog({ index, clock })
  const person = (id: string): TokenCaller => ({
    kind: 'token',
    id,
    name: id,
    scopes: ['read', 'repo:write'],
    repos: null,
  })
  const grant: GrantCaller = {
    kind: 'grant',
    id: 'g',
    session: 's' as SessionName,
    repo: 'bench/small' as RepoSlug,
    parent: null,
    mayRead: [],
  }
  const smart = createSmartHttp({
    repositories,
    events,
    log,
    clock,
    limits: DEFAULT_LIMITS,
    authenticate: (secret) => (secret === 'hgs_x' ? grant : secret.startsWith('hgt_x') ? person(secret) : null),
    isLive: () => true,
  })
  const server = createServer({ requestTimeout: 0 }, smart.handle)
  server.on('checkContinue', smart.checkContinue)
  server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port))
}

/** Runs git to its end; throws with its words. */
export function git(cwd: string, ...args: string[]): string {
  return execFileSync('git', args, { cwd, env: ENV, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
}

export const ENV: Readonly<Record<string, string | undefined>> = {
  PATH: process.env['PATH'],
  HOME: '/nonexistent',
  GIT_CONFIG_GLOBAL: '/dev/null',
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_TERMINAL_PROMPT: '0',
  GIT_AUTHOR_NAME: 'a',
  GIT_AUTHOR_EMAIL: 'a@b',
  GIT_COMMITTER_NAME: 'a',
  GIT_COMMITTER_EMAIL: 'a@b',
}

async function startGateway(dataDir: string, own: OwnServers, started: Started[]): Promise<Peer> {
  const { child, cpuMs } = start('hangar', own.gateway(dataDir), started)
  const port = await printedPort(child)
  return {
    name: 'hangar',
    http: true,
    port,
    cpuMs,
    path: (repo) => `/git/bench/${repo}.git`,
    url: (repo, client = 0, refused) =>
      `http://x:${refused ? 'hgs_x' : `hgt_x${client}`}@127.0.0.1:${port}/git/bench/${repo}.git`,
    dir: (repo) => join(dataDir, 'repos', 'bench', `${repo}.git`),
  }
}

/** No peer, but a floor: the gateway's replies, said again without any work. It has no repositories of its own. */
async function startReplies(gateway: Peer, own: OwnServers, started: Started[]): Promise<Peer> {
  const { child, cpuMs } = start('replies', own.replies(gateway.port), started)
  const port = await printedPort(child)
  return {
    ...gateway,
    name: REPLIES,
    http: false,
    port,
    cpuMs,
    url: (repo, client) => gateway.url(repo, client).replace(`:${gateway.port}/`, `:${port}/`),
  }
}

/** As its manual has it: HTTP authentication by nginx, everything else by git. */
async function startNginx(dir: string, started: Started[]): Promise<Peer> {
  makeRepos(dir)
  git(dir, 'init', '-q', '--bare', '-b', 'main', 'hidden-refs.git')
  git(join(dir, 'hidden-refs.git'), 'config', 'http.receivepack', 'true')
  for (const hidden of ['refs/hangar', 'refs/heads/hangar'])
    git(join(dir, 'hidden-refs.git'), 'config', '--add', 'transfer.hideRefs', hidden)
  writeFileSync(join(dir, 'passwords'), 'x:{PLAIN}hgt_x\n')
  const port = await freePort()
  const socket = join(dir, 'fcgi.sock')
  writeFileSync(join(dir, 'nginx.conf'), nginxConfig(dir, port, socket))
  const { cpuMs } = start('nginx', ['nginx', '-p', dir, '-c', join(dir, 'nginx.conf')], started)
  const wrap = start('fcgiwrap', ['fcgiwrap', '-c', '8', '-s', `unix:${socket}`], started)
  for (let tries = 0; tries < 50 && !existsSync(socket); tries++) await sleep(100)
  await sleep(500)
  const total = () => {
    const [one, other] = [cpuMs(), wrap.cpuMs()]
    return one === null || other === null ? null : one + other
  }
  return {
    name: 'nginx',
    http: true,
    port,
    cpuMs: total,
    path: (repo) => `/${repo}.git`,
    url: (repo, _client, refused) => `http://x:hgt_x@127.0.0.1:${port}/${refused ? 'no-' : ''}${repo}.git`,
    dir: (repo) => join(dir, `${repo}.git`),
  }
}

/** The same server, on a repository that hides the refs of sessions. */
function hiding(nginx: Peer): Peer {
  return {
    ...nginx,
    name: 'nginx, hideRefs',
    path: (repo) => `/hidden-${repo}.git`,
    url: (repo) => `http://x:hgt_x@127.0.0.1:${nginx.port}/hidden-${repo}.git`,
    dir: (repo) => join(nginx.dir(repo), '..', `hidden-${repo}.git`),
  }
}

/** The package by itself, with its own authentication. */
async function startNodeGitServer(dir: string, started: Started[]): Promise<Peer> {
  makeRepos(dir)
  const program = `
    import ngs from 'node-git-server'
    const authenticate = ({ user }, next) =>
      user((_name, password) => next(password === 'hgt_x' ? undefined : new Error('denied')))
    const git = new ngs.Git(process.argv[1], { autoCreate: false, authenticate })
    git.on('push', (push) => (push.branch === 'no' ? push.reject(403, 'no') : push.accept()))
    git.listen(0, { type: 'http' }, () => console.log(git.server.address().port))
  `
  const { child, cpuMs } = start(
    'node-git-server',
    [process.execPath, '--input-type=module', '-e', program, dir],
    started,
  )
  const port = await printedPort(child)
  return {
    name: 'node-git-server',
    http: true,
    port,
    cpuMs,
    path: (repo) => `/${repo}.git`,
    url: (repo) => `http://x:hgt_x@127.0.0.1:${port}/${repo}.git`,
    dir: (repo) => join(dir, `${repo}.git`),
  }
}

async function startDaemon(dir: string, started: Started[]): Promise<Peer> {
  makeRepos(dir)
  const port = await freePort()
  const options = ['--export-all', '--enable=receive-pack', '--listen=127.0.0.1', `--port=${port}`, '--reuseaddr']
  const { cpuMs } = start('daemon', ['git', 'daemon', ...options, `--base-path=${dir}`, dir], started)
  await sleep(500)
  return {
    name: 'git daemon',
    http: false,
    port,
    cpuMs,
    path: (repo) => `/${repo}.git`,
    url: (repo, _client, refused) => `git://127.0.0.1:${port}/${refused ? 'no-' : ''}${repo}.git`,
    dir: (repo) => join(dir, `${repo}.git`),
  }
}

/** Bare repositories, and one with a hook that refuses. */
function makeRepos(dir: string): void {
  mkdirSync(dir, { recursive: true })
  for (const repo of [...REPOS, 'no-small']) {
    git(dir, 'init', '-q', '--bare', '-b', 'main', `${repo}.git`)
    git(join(dir, `${repo}.git`), 'config', 'http.receivepack', 'true')
  }
  writeFileSync(join(dir, 'no-small.git/hooks/pre-receive'), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
}

function nginxConfig(dir: string, port: number, socket: string): string {
  const user = process.getuid?.() === 0 ? 'user root;' : ''
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${dir}/${name};`,
  )
  return `${user}
daemon off; worker_processes 2; pid ${dir}/pid; error_log ${dir}/error.log;
events { worker_connections 256; }
http {
  access_log off; ${temporary.join(' ')}
  server {
    listen 127.0.0.1:${port}; client_max_body_size 0;
    location / {
      auth_basic git; auth_basic_user_file ${dir}/passwords;
      fastcgi_pass unix:${socket}; fastcgi_buffering off; fastcgi_request_buffering off;
      fastcgi_param SCRIPT_FILENAME ${git('/', '--exec-path').trim()}/git-http-backend;
      fastcgi_param GIT_PROJECT_ROOT ${dir}; fastcgi_param GIT_HTTP_EXPORT_ALL "";
      fastcgi_param PATH_INFO $uri; fastcgi_param QUERY_STRING $query_string; fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param CONTENT_TYPE $content_type; fastcgi_param CONTENT_LENGTH $content_length;
      fastcgi_param HTTP_CONTENT_ENCODING $http_content_encoding; fastcgi_param REMOTE_USER $remote_user;
      fastcgi_param GIT_PROTOCOL $http_git_protocol;
    }
  }
}
`
}

interface Started {
  readonly child: ChildProcess
  readonly group: Group | null
}

/** Starts a server in a process group and, where there are such, a control group of its own. */
function start(name: string, command: readonly string[], started: Started[]) {
  const group = makeGroup(name)
  const enter = group === null ? ':' : `echo $$ >${group.dir}/cgroup.procs`
  const child = spawn('sh', ['-c', `${enter}; exec "$@"`, 'sh', ...command], {
    detached: true,
    env: { ...process.env, HOME: '/nonexistent', GIT_CONFIG_GLOBAL: '/dev/null', GIT_CONFIG_NOSYSTEM: '1' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  started.push({ child, group })
  return { child, cpuMs: () => group?.cpuMs() ?? null }
}

interface Group {
  readonly dir: string
  cpuMs(): number
  remove(): void
}

/** A control group counts the time of all that is in it, also of children that nobody waited for. */
function makeGroup(name: string): Group | null {
  for (const root of ['/sys/fs/cgroup/cpuacct', '/sys/fs/cgroup/unified', '/sys/fs/cgroup']) {
    const dir = join(root, `hangar-bench-${name}-${randomBytes(3).toString('hex')}`)
    try {
      mkdirSync(dir)
    } catch {
      continue
    }
    if (!existsSync(join(dir, 'cgroup.procs'))) {
      rmdirSync(dir)
      continue
    }
    const cpuMs = () =>
      existsSync(join(dir, 'cpuacct.usage'))
        ? Number(readFileSync(join(dir, 'cpuacct.usage'), 'utf8')) / 1e6
        : Number(/usage_usec (\d+)/.exec(readFileSync(join(dir, 'cpu.stat'), 'utf8'))?.[1]) / 1e3
    const remove = () => {
      try {
        rmdirSync(dir)
      } catch {
        // Something in it still ends; an empty group costs nothing.
      }
    }
    return { dir, cpuMs, remove }
  }
  return null
}

async function printedPort(child: ChildProcess): Promise<number> {
  return new Promise((resolve, reject) => {
    child.stdout?.once('data', (chunk) => resolve(Number(String(chunk).trim())))
    child.once('exit', (status) => reject(new Error(`a server ended with ${status} before it listened`)))
  })
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

function endGroup({ pid }: ChildProcess): void {
  if (pid === undefined) return
  try {
    process.kill(-pid, 'SIGTERM')
  } catch {
    // It has ended by itself.
  }
}
