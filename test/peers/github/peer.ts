/** A stand-in for GitHub on loopback: its API, held against its published shapes, and git behind the same credentials. See README.md. */
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import type { Test } from 'tap'
import type { Certificate } from '../certificate.ts'
import { APP_HANDLERS } from './apps.ts'
import { serveGit } from './git.ts'
import { findOperation } from './openapi.ts'
import { type Identity, type Permissions, Tokens } from './tokens.ts'

export interface PeerRepo {
  readonly id: number
  readonly owner: string
  name: string
  /** Its bare repository. */
  readonly dir: string
  /** Its git URL as it is now. */
  url(): string
  /** Refuses every push to the branch from now on. */
  protect(branch: string): void
  /** Old URLs answer with a redirect from now on. */
  rename(name: string): void
  remove(): void
}

/** How fitting requests fail, so often (default once). */
export interface Fault {
  /** Over `METHOD /path?query`. */
  readonly on: RegExp
  readonly times?: number
  readonly status?: number
  readonly headers?: Readonly<Record<string, string>>
  /** The connection ends without an answer; `after`: when the work is done. */
  readonly cut?: 'before' | 'after'
  /** Nothing comes, or an answer that never ends, or half of one. */
  readonly slow?: 'nothing' | 'drops' | 'half'
}

export interface ApiCall {
  readonly peer: GithubPeer
  readonly params: Readonly<Record<string, string>>
  readonly query: URLSearchParams
  // biome-ignore lint/suspicious/noExplicitAny: bodies were held against the schemas
  readonly body: any
  readonly identity: Identity
}

export interface ApiReply {
  readonly status: number
  readonly body: unknown
  readonly headers?: Readonly<Record<string, string>>
}

export interface PeerRequest {
  readonly what: string
  /** How the asker named itself. */
  readonly as: 'nobody' | 'app' | 'person' | 'installation'
}

const APP_ROUTES = /^\/app(?:\/|$)|^\/(?:repos\/[^/]+\/[^/]+|orgs\/[^/]+|users\/[^/]+)\/installation$/

export class GithubPeer {
  readonly tokens = new Tokens()
  readonly repos: PeerRepo[] = []
  readonly violations: string[] = []
  readonly requests: PeerRequest[] = []
  /** By operation id; add what a test needs. */
  readonly handlers = new Map(Object.entries(APP_HANDLERS))
  /** What the installation of the App grants. */
  permissions: Permissions = {
    contents: 'write',
    metadata: 'read',
    pull_requests: 'write',
    issues: 'write',
    checks: 'write',
  }
  tokenLifeMs = 3_600_000
  readonly #root: string
  readonly #server: Server
  readonly #scheme: 'http' | 'https'
  #faults: { fault: Fault; left: number }[] = []

  private constructor(root: string, server: Server, scheme: 'http' | 'https') {
    this.#root = root
    this.#server = server
    this.#scheme = scheme
  }

  /** Listens until the test ends; with a certificate, over https. */
  static async start(t: Test, root: string, tls: Certificate | null = null): Promise<GithubPeer> {
    const server = tls === null ? createServer() : createSecureServer({ key: tls.key, cert: tls.cert })
    const peer = new GithubPeer(root, server, tls === null ? 'http' : 'https')
    server.on('request', (req, res) => {
      req.on('error', () => {})
      res.on('error', () => {})
      peer.#serve(req, res).catch((error: unknown) => {
        peer.violations.push(`the peer failed: ${String(error)}`)
        res.destroy()
      })
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    t.teardown(() => peer.stop())
    return peer
  }

  get url(): string {
    return `${this.#scheme}://127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  get apiUrl(): string {
    return `${this.url}/api/v3`
  }

  /** Closes its port: nothing answers any more. */
  async stop(): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise<void>((resolve) => this.#server.close(() => resolve()))
  }

  fail(fault: Fault): void {
    this.#faults.push({ fault, left: fault.times ?? 1 })
  }

  heal(): void {
    this.#faults = []
  }

  addRepo(owner: string, name: string): PeerRepo {
    const dir = join(this.#root, owner, `${name}.git`)
    mkdirSync(join(this.#root, owner), { recursive: true })
    execFileSync('git', ['init', '-q', '--bare', '-b', 'main', dir])
    const repo: PeerRepo = {
      id: 1000 + this.repos.length,
      owner,
      name,
      dir,
      url: () => `${this.url}/${owner}/${repo.name}.git`,
      protect: (branch) => {
        const hook = join(dir, 'hooks', 'update')
        mkdirSync(join(dir, 'hooks'), { recursive: true })
        const script = `case "$1" in refs/heads/${branch}) echo "error: GH006: Protected branch update failed for $1." >&2; exit 1;; esac`
        writeFileSync(hook, `#!/bin/sh\n${script}\nexit 0\n`)
        chmodSync(hook, 0o755)
      },
      rename: (next) => {
        this.#renamed.set(`${owner}/${repo.name}`, `${owner}/${next}`)
        repo.name = next
      },
      remove: () => {
        this.repos.splice(this.repos.indexOf(repo), 1)
        renameSync(dir, `${dir}.gone`)
        rmSync(`${dir}.gone`, { recursive: true, force: true })
      },
    }
    this.repos.push(repo)
    return repo
  }

  readonly #renamed = new Map<string, string>()

  find(owner: string, name: string): PeerRepo | undefined {
    return this.repos.find((repo) => repo.owner === owner && repo.name === name)
  }

  async #serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const url = new URL(req.url ?? '/', this.url)
    const what = `${req.method ?? 'GET'} ${url.pathname}${url.search}`
    const identity = this.tokens.identify(secretOf(req))
    const isApp = url.pathname.startsWith('/api/v3') && APP_ROUTES.test(url.pathname.slice('/api/v3'.length))
    this.requests.push({ what, as: isApp ? 'app' : identity.kind === 'none' ? 'nobody' : identity.kind })
    const fault = this.#takeFault(what)
    if (fault?.cut === 'before') return void res.destroy()
    if (fault?.slow !== undefined) return crawl(res, fault.slow)
    if (fault?.status !== undefined) {
      req.resume()
      return send(res, { status: fault.status, body: { message: 'injected' }, headers: fault.headers ?? {} })
    }
    const cut = fault?.cut === 'after'
    // A client repeats by itself what was lost on a connection that it used before.
    res.setHeader('Connection', 'close')
    if (url.pathname.startsWith('/api/v3/')) return this.#serveApi(req, res, { url, identity, isApp, cut })
    this.#serveGit(req, res, { url, identity, cut })
  }

  #takeFault(what: string): Fault | null {
    const found = this.#faults.find(({ fault, left }) => left > 0 && fault.on.test(what))
    if (found === undefined) return null
    found.left--
    return found.fault
  }

  async #serveApi(
    req: IncomingMessage,
    res: ServerResponse,
    { url, identity, isApp, cut }: { url: URL; identity: Identity; isApp: boolean; cut: boolean },
  ): Promise<void> {
    const path = url.pathname.slice('/api/v3'.length)
    const what = `${req.method ?? 'GET'} ${path}`
    const chunks: Buffer[] = []
    for await (const chunk of req) chunks.push(chunk as Buffer)
    const text = Buffer.concat(chunks).toString('utf8')
    const body: unknown = text === '' ? undefined : JSON.parse(text)
    const operation = findOperation(req.method ?? 'GET', path)
    if (operation === null) {
      this.violations.push(`${what} is no operation that may be used`)
      return send(res, { status: 404, body: { message: 'Not Found' } })
    }
    const wrong = operation.requestFault(body)
    if (wrong !== null) this.violations.push(`${what}: ${wrong}`)
    const reply = this.#answer({
      operation: operation.id,
      params: operation.params,
      url,
      body,
      identity,
      isApp,
      secret: secretOf(req),
    })
    const fault = operation.responseFault(reply.status, reply.body)
    if (fault !== null) this.violations.push(`${what} was answered ${reply.status}: ${fault}`)
    if (cut) return void res.destroy()
    send(res, reply)
  }

  #answer(call: {
    operation: string
    params: Readonly<Record<string, string>>
    url: URL
    body: unknown
    identity: Identity
    isApp: boolean
    secret: string
  }): ApiReply {
    const refuse = (status: number, message: string): ApiReply => ({
      status,
      body: { message, status: String(status) },
    })
    if (call.isApp) {
      const wrong = this.tokens.jwtFault(call.secret)
      if (wrong !== null) return refuse(401, wrong)
    } else if (call.identity.kind === 'none') return refuse(401, 'Bad credentials')
    const { owner, repo } = call.params
    if (owner !== undefined && repo !== undefined) {
      if (this.#renamed.has(`${owner}/${repo}`)) return refuse(301, 'Moved Permanently')
      const found = this.find(owner, repo)
      if (found === undefined || !covers(call.identity, found.id)) return refuse(404, 'Not Found')
    }
    const handler = this.handlers.get(call.operation)
    if (handler === undefined) {
      this.violations.push(`${call.operation} has no handler`)
      return refuse(404, 'Not Found')
    }
    const { params, body, identity } = call
    return handler({ peer: this, params, query: call.url.searchParams, body, identity })
  }

  #serveGit(
    req: IncomingMessage,
    res: ServerResponse,
    { url, identity, cut }: { url: URL; identity: Identity; cut: boolean },
  ): void {
    const found = /^\/([^/]+)\/([^/]+?)(?:\.git)?\/(info\/refs|git-upload-pack|git-receive-pack)$/.exec(url.pathname)
    const [owner = '', name = '', endpoint = ''] = found?.slice(1) ?? []
    const repo = this.find(owner, name)
    const writes = endpoint === 'git-receive-pack' || url.searchParams.get('service') === 'git-receive-pack'
    const renamed = this.#renamed.get(`${owner}/${name}`)
    const refuse = (status: number, message: string, headers = {}) => {
      req.resume()
      res.writeHead(status, { 'Content-Type': 'text/plain', ...headers }).end(`${message}\n`)
    }
    if (identity.kind === 'none') refuse(401, 'Bad credentials', { 'WWW-Authenticate': 'Basic realm="GitHub"' })
    else if (renamed !== undefined)
      refuse(301, 'moved', { Location: `${this.url}/${renamed}.git/${endpoint}${url.search}` })
    else if (repo === undefined || !covers(identity, repo.id)) refuse(404, 'Repository not found.')
    else if (!allows(identity, writes ? 'write' : 'read')) refuse(403, 'Resource not accessible by integration')
    else {
      const path = `/${owner}/${repo.dir.split('/').at(-1) ?? ''}/${endpoint}`
      serveGit(req, res, { root: this.#root, path, query: url.search.slice(1), cut })
    }
  }
}

function crawl(res: ServerResponse, how: 'nothing' | 'drops' | 'half'): void {
  if (how === 'nothing') return
  res.writeHead(200, { 'Content-Type': 'application/x-git-upload-pack-advertisement' })
  res.write('001e# service=git-upload-pack\n0000')
  if (how === 'half') return void setTimeout(() => res.destroy(), 50)
  const timer = setInterval(() => res.write('0'), 50)
  res.once('close', () => clearInterval(timer))
}

function covers(identity: Identity, repo: number): boolean {
  return identity.kind !== 'installation' || (identity.minted.repositories?.includes(repo) ?? true)
}

function allows(identity: Identity, access: 'read' | 'write'): boolean {
  if (identity.kind !== 'installation') return true
  const granted = identity.minted.permissions['contents']
  return granted === 'write' || granted === access
}

/** The password of Basic, or the token of `Bearer` or `token`. */
function secretOf(req: IncomingMessage): string {
  const [scheme = '', value = ''] = (req.headers.authorization ?? '').split(' ')
  if (!/^basic$/i.test(scheme)) return value
  const pair = Buffer.from(value, 'base64').toString('latin1')
  return pair.slice(pair.indexOf(':') + 1)
}

function send(res: ServerResponse, { status, body, headers = {} }: ApiReply): void {
  res.writeHead(status, { 'Content-Type': 'application/json; charset=utf-8', ...headers })
  res.end(JSON.stringify(body))
}
