/** What the stories share: a real server in this process (or its own), real checkouts, the real CLI, and trees to compare. */
import { spawn } from 'node:child_process'
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { readConfig } from '../../domain/config.ts'
import type { Limits } from '../../domain/limits.ts'
import type { Log } from '../../domain/ports.ts'
import { type HangarServer, type ServerOptions, startServer } from '../../surfaces/server.ts'

export const MAIN = fileURLToPath(new URL('../../cli/main.js', import.meta.url))

export const SILENT: Log = { info: () => {}, warn: () => {}, error: () => {} }

export interface Ran {
  readonly status: number | null
  readonly out: string
  readonly bytes: Buffer
  readonly err: string
}

export interface RunOptions {
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  readonly input?: string
}

export interface Hangar {
  readonly url: string
  readonly token: string
  readonly dir: string
  readonly dataDir: string
  readonly server: HangarServer
  /** Runs the CLI as its own process. */
  cli(args: readonly string[], options?: RunOptions): Promise<Ran>
  /** A REST call with the admin token, or another. */
  api(method: string, path: string, body?: unknown, headers?: Readonly<Record<string, string>>): Promise<ApiAnswer>
  /** `git` with the admin token for this server. */
  git(cwd: string, args: readonly string[], options?: RunOptions): Promise<Ran>
  /** Closes the server and opens another on the same data and port. */
  restart(options?: { readonly reindex?: boolean }): Promise<Hangar>
  close(): Promise<void>
}

export interface ApiAnswer {
  readonly status: number
  readonly headers: Headers
  // biome-ignore lint/suspicious/noExplicitAny: answers are looked into by tests only
  readonly body: any
  readonly bytes: Buffer
}

export interface HangarOptions {
  /** The agent: a shell script; its prompt on stdin. */
  readonly agent: string
  readonly settings?: Readonly<Record<string, string>>
  readonly config?: Readonly<Record<string, unknown>>
  /** Bounds and intervals of MCP; the clock. */
  readonly server?: Pick<ServerOptions, 'mcp' | 'clock'>
  /** Where the server's log goes; default nowhere. */
  readonly log?: Log
  /** Other limits than the default ones. */
  readonly limits?: Partial<Limits>
}

/** A directory outside of the project (its own .git would be found from inside), removed at the end. */
export function temporaryDirectory(t: Test): string {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-story-'))
  t.teardown(() => removeTree(dir))
  return dir
}

export function removeTree(dir: string): void {
  rmSync(dir, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
}

export async function startHangar(t: Test, options: HangarOptions): Promise<Hangar> {
  const dir = temporaryDirectory(t)
  const env = serverEnvironment(dir, options)
  const hangar = await open(dir, env, { ...options.server, log: options.log ?? SILENT, limits: options.limits ?? {} })
  t.teardown(() => hangar.close())
  return hangar
}

/** Writes the agent and the config file; gives the environment of a server and its CLI. */
export function serverEnvironment(dir: string, options: HangarOptions): Record<string, string> {
  const agent = join(dir, 'agent.sh')
  writeFileSync(agent, `#!/bin/sh\n${options.agent}\n`)
  chmodSync(agent, 0o755)
  mkdirSync(join(dir, 'data'), { recursive: true })
  mkdirSync(join(dir, 'home'), { recursive: true })
  const config = { environments: { default: { harness_options: { argv: ['sh', agent] } } }, ...options.config }
  writeFileSync(join(dir, 'data', 'hangar.config.json'), JSON.stringify(config))
  return {
    PATH: process.env['PATH'] ?? '/usr/bin:/bin',
    HOME: join(dir, 'home'),
    XDG_CONFIG_HOME: join(dir, 'config'),
    HANGAR_DATA: join(dir, 'data'),
    HANGAR_LISTEN: '127.0.0.1:0',
    NO_COLOR: '1',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_AUTHOR_NAME: 'A Developer',
    GIT_AUTHOR_EMAIL: 'dev@example.com',
    GIT_COMMITTER_NAME: 'A Developer',
    GIT_COMMITTER_EMAIL: 'dev@example.com',
    ...options.settings,
  }
}

async function open(
  dir: string,
  env: Record<string, string>,
  { limits, ...more }: Pick<ServerOptions, 'mcp' | 'clock' | 'reindex' | 'log'> & { readonly limits: Partial<Limits> },
): Promise<Hangar> {
  const config = readConfig({ env })
  const server = await startServer({
    config: { ...config, limits: { ...config.limits, ...limits } },
    cliFile: join(dir, 'config', 'hangar', 'cli.json'),
    ...more,
  })
  const { token } = JSON.parse(readFileSync(join(dir, 'config', 'hangar', 'cli.json'), 'utf8')) as { token: string }
  const { url } = server
  return {
    url,
    token,
    dir,
    dataDir: join(dir, 'data'),
    server,
    cli: (args, options = {}) =>
      run(process.execPath, [MAIN, ...args], { ...options, env: { ...env, ...options.env } }),
    api: (method, path, body, headers = {}) => api(url, token, { method, path, body, headers }),
    git: (cwd, args, options = {}) =>
      run('git', ['-c', `http.${url}/.extraHeader=Authorization: Bearer ${token}`, ...args], {
        ...options,
        cwd,
        env: { ...env, ...options.env },
      }),
    restart: async (options = {}) => {
      await server.close()
      const listen = `127.0.0.1:${new URL(url).port}`
      return open(dir, { ...env, HANGAR_LISTEN: listen }, { ...more, limits, reindex: options.reindex === true })
    },
    close: () => server.close(),
  }
}

export async function api(
  url: string,
  token: string | null,
  request: {
    readonly method: string
    readonly path: string
    readonly body?: unknown
    readonly headers?: Readonly<Record<string, string>>
  },
): Promise<ApiAnswer> {
  const response = await fetch(url + request.path, {
    method: request.method,
    headers: {
      ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
      ...(request.body === undefined ? {} : { 'Content-Type': 'application/json' }),
      ...request.headers,
    },
    ...(request.body === undefined
      ? {}
      : { body: typeof request.body === 'string' ? request.body : JSON.stringify(request.body) }),
  })
  const bytes = Buffer.from(await response.arrayBuffer())
  const json = (response.headers.get('content-type') ?? '').includes('json')
  return {
    status: response.status,
    headers: response.headers,
    body: json ? (JSON.parse(bytes.toString('utf8')) as unknown) : null,
    bytes,
  }
}

/** Runs a program to its end. */
export function run(program: string, args: readonly string[], options: RunOptions = {}): Promise<Ran> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      cwd: options.cwd ?? tmpdir(),
      env: options.env ?? process.env,
      stdio: ['pipe', 'pipe', 'pipe'],
    })
    const out: Buffer[] = []
    const err: Buffer[] = []
    child.stdout.on('data', (chunk: Buffer) => out.push(chunk))
    child.stderr.on('data', (chunk: Buffer) => err.push(chunk))
    child.once('error', reject)
    child.once('close', (status) => {
      const bytes = Buffer.concat(out)
      resolve({ status, bytes, out: bytes.toString('utf8'), err: Buffer.concat(err).toString('utf8') })
    })
    child.stdin.on('error', () => {})
    child.stdin.end(options.input ?? '')
  })
}

/** Runs a shell script in a directory; throws what it said when it fails. */
export async function shell(cwd: string, script: string, env: Readonly<Record<string, string>> = {}): Promise<string> {
  const ran = await run('sh', ['-ec', script], { cwd, env: { ...PLAIN, ...env } })
  if (ran.status !== 0) throw new Error(`${script}\nended with ${ran.status}\n${ran.out}${ran.err}`)
  return ran.out
}

const PLAIN: Readonly<Record<string, string>> = {
  PATH: process.env['PATH'] ?? '/usr/bin:/bin',
  HOME: '/nonexistent',
  LC_ALL: 'C',
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_CONFIG_GLOBAL: '/dev/null',
  GIT_AUTHOR_NAME: 'A Developer',
  GIT_AUTHOR_EMAIL: 'dev@example.com',
  GIT_COMMITTER_NAME: 'A Developer',
  GIT_COMMITTER_EMAIL: 'dev@example.com',
  GIT_AUTHOR_DATE: '2026-01-02T03:04:05Z',
  GIT_COMMITTER_DATE: '2026-01-02T03:04:05Z',
}

/** Every entry of a work tree, path (latin1) to kind, mode and content; without .git. */
export function workTree(dir: string): Record<string, string> {
  const files: Record<string, string> = {}
  const walk = (prefix: string) => {
    const at = Buffer.concat([Buffer.from(`${dir}/`), Buffer.from(prefix, 'latin1')])
    for (const name of readdirSync(at, { encoding: 'buffer' })) {
      const path = prefix + name.toString('latin1')
      if (path === '.git') continue
      const file = Buffer.concat([Buffer.from(`${dir}/`), Buffer.from(path, 'latin1')])
      const stat = lstatSync(file)
      if (stat.isDirectory()) walk(`${path}/`)
      else if (stat.isSymbolicLink()) files[path] = `link ${readlinkSync(file, 'latin1')}`
      else if (!stat.isFile()) files[path] = 'special'
      else files[path] = `file ${stat.mode & 0o100 ? 'x' : '-'} ${readFileSync(file).toString('base64')}`
    }
  }
  walk('')
  return files
}

/** The index and HEAD of a checkout, and whether it is unborn. */
export async function gitState(dir: string): Promise<{ index: string; head: string }> {
  const index = await shell(dir, 'git -c safe.directory=* ls-files -s -z | tr "\\0" "\\n"')
  const head = await shell(dir, 'git -c safe.directory=* rev-parse -q --verify HEAD || echo unborn')
  return { index, head: head.trim() }
}

/** The checkout of a session's sandbox, on this host's disk. */
export function sandboxCheckout(hangar: Pick<Hangar, 'dataDir'>, sandboxId: string): string {
  return join(hangar.dataDir, 'sandboxes', sandboxId, 'home', 'repo')
}

export async function waitUntil(what: string, holds: () => boolean | Promise<boolean>, tries = 400): Promise<void> {
  for (let attempt = 0; attempt < tries; attempt++) {
    if (await holds()) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error(`waited too long for: ${what}`)
}
