/** A gateway on loopback for tests: a real store in a temporary directory, callers by secret, and git as the client. */
import { execFile } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import type { Test } from 'tap'
import type { GrantCaller, TokenCaller } from '../../domain/grant.ts'
import { DEFAULT_LIMITS, type Limits } from '../../domain/limits.ts'
import type { Oid, RefName, RepoSlug, SessionName } from '../../domain/names.ts'
import type { Log } from '../../domain/ports.ts'
import { createRepositories, type Repositories, type Repository } from '../../gateway/git/repositories.ts'
import { createSmartHttp, type SmartHttpDeps } from '../../gateway/http/smart-http.ts'
import type { StoreEventBody } from '../../gateway/state/event-log.ts'

export const SLUG = 'acme/app' as RepoSlug

export interface GitRunResult {
  readonly code: number
  readonly out: string
  readonly err: string
}

export interface GitServer {
  readonly url: string
  readonly port: number
  readonly repo: Repository
  readonly repositories: Repositories
  readonly events: StoreEventBody[]
  readonly callers: Map<string, TokenCaller | GrantCaller>
  /** Log lines with their fields. */
  readonly logged: { message: string; fields: Record<string, unknown> }[]
  /** The URL with a secret in it. */
  as(secret: string): string
  /** Runs the client git in a directory; never throws. */
  git(cwd: string, ...args: string[]): Promise<GitRunResult>
  /** Runs git in the store's repository; throws unless it exits with 0. */
  inStore(...args: string[]): Promise<string>
  /** An empty clone's directory with an identity and one commit on main. */
  work(name: string): Promise<string>
  ref(name: string): Promise<Oid | null>
  close(): Promise<void>
}

export function token(scopes: TokenCaller['scopes'], repos: readonly string[] | null = null): TokenCaller {
  return { kind: 'token', id: scopes.join('-'), name: 'test', scopes, repos }
}

export function grant(session: string, parent: string | null = null): GrantCaller {
  return {
    kind: 'grant',
    id: `sb-${session}`,
    session: session as SessionName,
    repo: SLUG,
    parent: parent as SessionName | null,
    mayRead: ['acme/lib' as RepoSlug],
  }
}

export interface GitServerOptions {
  readonly limits?: Partial<Limits>
  readonly deps?: Partial<SmartHttpDeps>
}

/** A server for one test, closed at its end and before its directory goes: tap undoes in the order in which these were asked for. */
export async function gitServerOf(t: Test, options: GitServerOptions = {}): Promise<GitServer> {
  let server: GitServer | undefined
  t.teardown(() => server?.close())
  server = await startGitServer(t.testdir(), options)
  return server
}

export async function startGitServer(dir: string, options: GitServerOptions = {}): Promise<GitServer> {
  const logged: GitServer['logged'] = []
  const note = (fields: Record<string, unknown>, message: string) => void logged.push({ fields, message })
  const log: Log = { info: note, warn: note, error: note }
  const signer = { publicKeyArmored: '', sign: async () => 'no signature' }
  const repositories = await createRepositories({ dataDir: join(dir, 'data'), signer, log })
  const repo = await repositories.create(SLUG)
  const events: StoreEventBody[] = []
  const callers = new Map<string, TokenCaller | GrantCaller>([
    ['hgt_admin', token(['admin'])],
    ['hgt_write', token(['read', 'repo:write'])],
    ['hgt_read', token(['read'])],
    ['hgt_sessions', token(['sessions'])],
    ['hgt_other', token(['admin'], ['other/*'])],
    ['hgs_fix', grant('csv-fix')],
    ['hgs_two', grant('second')],
    ['hgs_fork', grant('forked', 'csv-fix')],
  ])
  const smart = createSmartHttp({
    repositories,
    authenticate: (secret) => callers.get(secret) ?? null,
    isLive: (caller) => [...callers.values()].some((known) => known === caller),
    events: { append: async (event) => events.push(event) },
    limits: { ...DEFAULT_LIMITS, ...options.limits },
    log,
    clock: { now: () => Date.now() },
    ...options.deps,
  })
  const server: Server = createServer({ requestTimeout: 0 }, smart.handle)
  server.on('checkContinue', smart.checkContinue)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const self: GitServer = {
    url: `http://127.0.0.1:${port}/git/${SLUG}.git`,
    port,
    repo,
    repositories,
    events,
    callers,
    logged,
    as: (secret) => `http://x:${secret}@127.0.0.1:${port}/git/${SLUG}.git`,
    git: runClient,
    async inStore(...args) {
      const result = await runClient(repo.dir, ...args)
      if (result.code !== 0) throw new Error(`git ${args.join(' ')}: ${result.err}`)
      return result.out.trim()
    },
    async work(name) {
      const cwd = join(dir, name)
      mkdirSync(cwd)
      await runClient(cwd, 'init', '-q', '-b', 'main')
      await runClient(cwd, 'commit', '-q', '--allow-empty', '-m', 'first')
      await runClient(cwd, 'remote', 'add', 'origin', self.as('hgt_write'))
      return cwd
    },
    ref: (name) => repo.refs.read(name as RefName),
    async close() {
      server.closeAllConnections()
      await smart.close()
      await new Promise((resolve) => server.close(resolve))
      await repositories.close()
    },
  }
  return self
}

function runClient(cwd: string, ...args: string[]): Promise<GitRunResult> {
  const env = {
    PATH: process.env['PATH'],
    HOME: cwd,
    LC_ALL: 'C',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_CONFIG_GLOBAL: '/dev/null',
    GIT_TERMINAL_PROMPT: '0',
    GIT_AUTHOR_NAME: 'a',
    GIT_AUTHOR_EMAIL: 'a@example.com',
    GIT_COMMITTER_NAME: 'a',
    GIT_COMMITTER_EMAIL: 'a@example.com',
  }
  return new Promise((resolve) => {
    execFile('git', args, { cwd, env, maxBuffer: 1 << 28, encoding: 'latin1' }, (error, out, err) => {
      resolve({ code: error === null ? 0 : Number(error.code ?? 1), out, err })
    })
  })
}
