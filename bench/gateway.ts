/**
 * The git gateway beside nginx + fcgiwrap + `git http-backend`, on one machine in one interleaved run: medians of wall time, their ratio, and our CPU.
 * Usage: `node dist/bench/gateway.js [rounds]` (default 15). Debian packages nginx-light and fcgiwrap; both are started here and end with the run.
 */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { appendFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { GrantCaller } from '../domain/grant.ts'
import { DEFAULT_LIMITS } from '../domain/limits.ts'
import type { RepoSlug, SessionName } from '../domain/names.ts'
import { createRepositories } from '../gateway/git/repositories.ts'
import { createSmartHttp } from '../gateway/http/smart-http.ts'
import { createEventLog } from '../gateway/state/event-log.ts'
import { openIndex } from '../gateway/state/index.ts'

const [, self = '', mode = '15', ...rest] = process.argv

/** Our gateway in its own process, as `hangar serve` puts it together. */
async function serve(dataDir: string): Promise<void> {
  const log = { info: () => {}, warn: console.error, error: console.error }
  const clock = { now: () => Date.now() }
  const signer = { publicKeyArmored: '', sign: async () => 'unsigned' }
  const repositories = await createRepositories({ dataDir, signer, log })
  for (const name of ['small', 'large']) await repositories.create(`bench/${name}` as RepoSlug)
  const index = await openIndex({ dir: join(dataDir, 'events'), log })
  const events = await createEventLog({ index, clock })
  const admin = { kind: 'token', id: 'a', name: 'a', scopes: ['admin'], repos: null } as const
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
    authenticate: (secret) => (secret === 'hgs_x' ? grant : secret === 'hgt_x' ? admin : null),
    isLive: () => true,
  })
  const server = createServer({ requestTimeout: 0 }, smart.handle)
  server.on('checkContinue', smart.checkContinue)
  server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port))
}

interface Server {
  readonly name: string
  url(repo: string, refused?: boolean): string
  readonly pid: number
}

interface Measure {
  readonly name: string
  /** Makes what one run needs, then gives the command that is timed. */
  prepare(server: Server, round: number): { cwd: string; args: string[]; fails?: boolean }
}

async function bench(rounds: number): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'hangar-bench-'))
  const children: ChildProcess[] = []
  try {
    makeSource(join(root, 'small-src'), 200, 50, 400)
    makeSource(join(root, 'large-src'), 200, 4, 200_000)
    const servers = [await startNginx(root, children), await startOurs(root, children)]
    for (const server of servers)
      for (const repo of ['small', 'large']) git(join(root, `${repo}-src`), 'push', '-q', server.url(repo), 'main')
    report(rounds, run(measures(root, servers), servers, rounds))
  } finally {
    for (const child of children) if (child.pid !== undefined) stop(child)
    await sleep(300)
    rmSync(root, { recursive: true, force: true })
  }
}

function measures(root: string, servers: readonly Server[]): Measure[] {
  const big = join(root, 'big')
  git(root, 'clone', '-q', join(root, 'small-src'), big)
  writeFileSync(join(big, 'big'), randomBytes(10_000_000))
  git(big, 'add', '.')
  git(big, 'commit', '-qm', 'big')
  for (const server of servers) git(root, 'clone', '-q', server.url('small'), work(server))
  function work(server: Server): string {
    return join(root, `work-${server.name}`)
  }
  const clone = (repo: string): Measure => ({
    name: `clone, ${repo}`,
    prepare: (server, round) => ({
      cwd: root,
      args: ['clone', '-q', '--bare', server.url(repo), `c-${repo}-${server.name}-${round}`],
    }),
  })
  return [
    clone('small'),
    clone('large'),
    { name: 'fetch, nothing new', prepare: (server) => ({ cwd: work(server), args: ['fetch', '-q'] }) },
    {
      name: 'push, 1 commit',
      prepare(server, round) {
        appendFileSync(join(work(server), 'f1'), `${round}\n`)
        git(work(server), 'commit', '-qam', 'one more')
        return { cwd: work(server), args: ['push', '-q', 'origin', 'main'] }
      },
    },
    {
      name: 'push, 10 MB, refused',
      prepare: (server) => ({
        cwd: big,
        args: ['push', '-q', server.url('small', true), 'HEAD:refs/heads/no'],
        fails: true,
      }),
    },
  ]
}

interface Sample {
  readonly measure: string
  readonly server: string
  readonly ms: number
  readonly cpuMs: number
}

function run(all: readonly Measure[], servers: readonly Server[], rounds: number): Sample[] {
  const samples: Sample[] = []
  for (let round = -1; round < rounds; round++)
    for (const measure of all)
      for (const server of round % 2 === 0 ? servers : [...servers].reverse()) {
        const { cwd, args, fails } = measure.prepare(server, round)
        const cpu = cpuOf(server.pid)
        const start = process.hrtime.bigint()
        const result = spawnSync('git', args, { cwd, env: ENV, encoding: 'utf8' })
        const ms = Number(process.hrtime.bigint() - start) / 1e6
        if ((result.status !== 0) !== (fails ?? false))
          throw new Error(`${measure.name}, ${server.name}: ${result.stderr}`)
        // The first round warms up.
        if (round >= 0) samples.push({ measure: measure.name, server: server.name, ms, cpuMs: cpuOf(server.pid) - cpu })
      }
  return samples
}

function report(rounds: number, samples: readonly Sample[]): void {
  const names = [...new Set(samples.map(({ measure }) => measure))]
  const of = (measure: string, server: string) =>
    samples.filter((sample) => sample.measure === measure && sample.server === server)
  const rows = names.map((measure) => {
    const [peer, ours] = [of(measure, 'nginx'), of(measure, 'hangar')]
    const ratios = ours.map(({ ms }, at) => ms / (peer[at]?.ms ?? ms))
    return [
      measure,
      median(peer.map(({ ms }) => ms)).toFixed(0),
      median(ours.map(({ ms }) => ms)).toFixed(0),
      median(ratios).toFixed(2),
      median(ours.map(({ cpuMs }) => cpuMs)).toFixed(0),
    ]
  })
  console.log(
    `${rounds} rounds; medians in ms; the ratio is the median of the rounds' ratios; CPU is our server and its git\n`,
  )
  for (const row of [['', 'nginx', 'hangar', 'ratio', 'CPU'], ...rows])
    console.log(row.map((cell, at) => (at === 0 ? cell.padEnd(24) : cell.padStart(8))).join(''))
}

async function startOurs(root: string, children: ChildProcess[]): Promise<Server> {
  const child = spawn(process.execPath, [self, 'serve', join(root, 'data')], { stdio: ['ignore', 'pipe', 'inherit'] })
  children.push(child)
  const port = await new Promise<string>((resolve) =>
    child.stdout.once('data', (chunk) => resolve(String(chunk).trim())),
  )
  return {
    name: 'hangar',
    pid: child.pid ?? 0,
    url: (repo, refused) => `http://x:${refused ? 'hgs_x' : 'hgt_x'}@127.0.0.1:${port}/git/bench/${repo}.git`,
  }
}

/** The peer as its manual has it: HTTP authentication by nginx, everything else by git. A repository `no-…` has a hook that refuses. */
async function startNginx(root: string, children: ChildProcess[]): Promise<Server> {
  const dir = join(root, 'nginx')
  mkdirSync(dir)
  for (const repo of ['small', 'large', 'no-small']) {
    git(dir, 'init', '-q', '--bare', '-b', 'main', `${repo}.git`)
    git(join(dir, `${repo}.git`), 'config', 'http.receivepack', 'true')
  }
  git(join(root, 'small-src'), 'push', '-q', join(dir, 'no-small.git'), 'main')
  writeFileSync(join(dir, 'no-small.git/hooks/pre-receive'), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
  writeFileSync(join(dir, 'passwords'), 'x:{PLAIN}hgt_x\n')
  const port = await freePort()
  const socket = join(dir, 'fcgi.sock')
  writeFileSync(join(dir, 'nginx.conf'), nginxConfig(dir, port, socket))
  children.push(spawn('fcgiwrap', ['-c', '4', '-s', `unix:${socket}`], { stdio: 'ignore', detached: true }))
  children.push(spawn('nginx', ['-p', dir, '-c', join(dir, 'nginx.conf')], { stdio: 'ignore', detached: true }))
  for (let tries = 0; tries < 50 && !existsSync(socket); tries++) await sleep(100)
  await sleep(500)
  return {
    name: 'nginx',
    pid: 0,
    url: (repo, refused) => `http://x:hgt_x@127.0.0.1:${port}/${refused ? 'no-' : ''}${repo}.git`,
  }
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
      fastcgi_param SCRIPT_FILENAME ${gitExecPath()}/git-http-backend;
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

/** Commits that each change one of the files; built by fast-import. */
function makeSource(dir: string, commits: number, files: number, bytes: number): void {
  const stream: string[] = []
  for (let at = 0; at < commits; at++) {
    const text = randomBytes(bytes / 2).toString('hex')
    stream.push(`commit refs/heads/main\ncommitter a <a@b> ${1_700_000_000 + at} +0000\ndata 1\nx\n`)
    stream.push(`M 100644 inline f${at % files}\ndata ${text.length}\n${text}\n`)
  }
  git(join(dir, '..'), 'init', '-q', '--bare', '-b', 'main', dir)
  execFileSync('git', ['fast-import', '--quiet'], { cwd: dir, input: stream.join('') })
}

const ENV = {
  PATH: process.env['PATH'],
  HOME: '/nonexistent',
  GIT_CONFIG_GLOBAL: '/dev/null',
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_AUTHOR_NAME: 'a',
  GIT_AUTHOR_EMAIL: 'a@b',
  GIT_COMMITTER_NAME: 'a',
  GIT_COMMITTER_EMAIL: 'a@b',
}

function git(cwd: string, ...args: string[]): string {
  return execFileSync('git', args, { cwd, env: ENV, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
}

function gitExecPath(): string {
  return git('/', '--exec-path').trim()
}

/** CPU of a process and the children it has waited for, in ms. */
function cpuOf(pid: number): number {
  if (pid === 0) return 0
  const fields = readFileSync(`/proc/${pid}/stat`, 'latin1')
    .replace(/^.*\) /, '')
    .split(' ')
  return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks) * 10, 0)
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[sorted.length >> 1] ?? 0
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

function stop(child: ChildProcess): void {
  try {
    process.kill(child.spawnargs[0] === process.execPath ? (child.pid ?? 0) : -(child.pid ?? 0), 'SIGTERM')
  } catch {
    // It has ended by itself.
  }
}

if (mode === 'serve') await serve(rest[0] ?? '')
else await bench(Number(mode))
