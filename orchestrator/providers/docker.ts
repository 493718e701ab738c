/** The provider whose sandboxes are containers of a Docker engine (or Podman's compatible socket) on this host. */

import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { errors, HangarError } from '../../domain/errors.ts'
import type { Log } from '../../domain/ports.ts'
import type { Provider, SandboxRef, SandboxSpec, TurnCursor, TurnOutput, TurnStart } from '../../domain/sandbox.ts'
import {
  containerBody,
  containerName,
  HOST_NAME,
  INSIDE,
  LABELS,
  labelsOf,
  newestTar,
  sandboxTar,
  TMP_OPTIONS,
  turnDirectory,
} from './docker-container.ts'
import { createEngine, type Engine, EngineUnreachable, refusal } from './docker-engine.ts'
import { endMarked, execInside, type Inside, type StartedInside, startInside } from './docker-exec.ts'
import { type Follower, openFollower } from './docker-follow.ts'
import { probeSandbox } from './docker-probe.ts'
import { READ_FILE_SCRIPT } from './inside-scripts.ts'
import type { Relay } from './relay.ts'
import { RELAY_URL } from './relay-inside.ts'

export interface DockerProviderDeps {
  /** The engine's unix socket. */
  readonly socketPath: string
  /** The script `hangar-agent`. */
  readonly helperFile: string
  /** Tells this server's containers from those of others on the same engine. */
  readonly instance: string
  /** Leads to the gateway, and to what an environment allows, where a sandbox has no network that does. */
  readonly relay: Relay
  /** Whether the gateway listens on this host's loopback alone, where no container with a network of its own reaches it. */
  readonly loopbackOnly: boolean
  readonly log: Log
}

/** A reader bears an engine that is away for so long: with live-restore its containers run on meanwhile. */
const ENGINE_AWAY_MS = 120_000
const START_MS = 60_000
const FIRST_LOOK_MS = 3_000

/** Asks the engine once whether it has a network of its own for containers; one that does not answer is taken for an ordinary one. */
export async function openDockerProvider(deps: DockerProviderDeps): Promise<Provider> {
  const engine = createEngine(deps)
  let network: 'bridge' | 'host' = 'bridge'
  try {
    const { status, body } = await engine.ask('GET', '/networks', { timeoutMs: 10_000, once: true })
    const names = status === 200 ? (body as { Name: string }[]).map(({ Name }) => Name) : ['bridge']
    if (!names.includes('bridge') && !names.includes('podman')) network = 'host'
  } catch (error) {
    deps.log.warn(
      { error: String(error) },
      'the Docker engine does not answer; sandboxes of it cannot be made until it does',
    )
  }
  return new DockerProvider(deps, { engine, network })
}

class DockerProvider implements Provider {
  readonly kind = 'docker'
  readonly #deps: DockerProviderDeps
  readonly #engine: Engine
  readonly #network: 'bridge' | 'host'
  /** One process of the server: its commands in sandboxes are told from those that a killed one has left. */
  readonly #owner = `exec:${process.pid}.${Math.round(performance.timeOrigin)}:`
  /** Sandboxes in which no command of an earlier server is left. */
  readonly #clean = new Map<string, Promise<void>>()
  readonly #followers = new Map<string, Follower>()
  #awaySince: number | null = null

  constructor(deps: DockerProviderDeps, found: { readonly engine: Engine; readonly network: 'bridge' | 'host' }) {
    this.#deps = deps
    this.#engine = found.engine
    this.#network = found.network
  }

  capabilities() {
    return { pause: true, limits: ['cpu', 'memoryMb', 'pids'], network: true } as const
  }

  gatewayUrl(url: string, egress: SandboxSpec['egress']) {
    if (egress !== null || (this.#network === 'bridge' && this.#deps.loopbackOnly)) return RELAY_URL
    if (this.#network === 'host') return url
    const inside = new URL(url)
    inside.hostname = HOST_NAME
    return inside.origin
  }

  async describe() {
    try {
      const version = await this.#ask('GET', '/version', { once: true })
      const info = await this.#ask('GET', '/info', { once: true })
      const name = `${version.body.Components?.[0]?.Name ?? 'Engine'} ${version.body.Version} at ${this.#engine.socketPath}`
      const missing = [
        info.body.MemoryLimit === false ? 'memory' : null,
        info.body.PidsLimit === false ? 'pids' : null,
        info.body.CpuCfsQuota === false ? 'cpu' : null,
      ].filter((limit) => limit !== null)
      if (missing.length > 0)
        return { level: 'warning', text: `${name}: it cannot limit ${missing.join(', ')} here` } as const
      const net =
        this.#network === 'host' ? "the host's network, since the engine has no bridge" : "the engine's bridge"
      const text = `${name}: a container for each sandbox, without capabilities, on the host's kernel; ${net}`
      return { level: 'ok', text } as const
    } catch (error) {
      return { level: 'warning', text: error instanceof Error ? error.message : String(error) } as const
    }
  }

  async create(spec: SandboxSpec) {
    const name = containerName(spec.id)
    const found = await this.#ask('GET', `/containers/${name}/json`)
    const state = found.status === 200 ? stateOf(found.body) : 'gone'
    if (found.status === 200 && found.body.Config?.Labels?.[LABELS.instance] !== this.#deps.instance)
      throw errors.sandboxFailed(`the container ${name} belongs to another server; remove it: docker rm -f ${name}`)
    // One that has stopped is no base to build on: the checkpoint is.
    if (state === 'stopped') await this.destroy({ provider: this.kind, id: spec.id })
    if (state === 'gone' || state === 'stopped') await this.#make(name, spec)
    if (state === 'paused') await this.resume({ provider: this.kind, id: spec.id })
    // Before it starts: its first process begins the relay.
    await this.#upload(name, await sandboxTar(spec, this.#deps.helperFile))
    if (state !== 'up' && state !== 'paused') await this.#startContainer(name, spec)
    if (state !== 'up' && state !== 'paused') {
      this.#clean.set(spec.id, Promise.resolve())
      await probeSandbox(this.#inside(spec.id), { image: spec.image ?? '', relay: needsRelay(spec) })
    }
    return this.paths({ provider: this.kind, id: spec.id })
  }

  async #make(name: string, spec: SandboxSpec) {
    if (spec.image === null) throw errors.sandboxFailed('the environment names no image; set environments.NAME.image')
    if (spec.egress !== null && spec.gatewayUrl !== RELAY_URL)
      throw errors.sandboxFailed(
        `a sandbox with an egress list does not reach ${spec.gatewayUrl}; take gateway_url or egress out of the environment`,
      )
    const image = await this.#ask('GET', `/images/${encodeURIComponent(spec.image)}/json`)
    if (image.status === 404)
      throw errors.sandboxFailed(`the image ${spec.image} is not on this host; get it with: docker pull ${spec.image}`)
    if (image.status !== 200) throw errors.sandboxFailed(`the image ${spec.image} cannot be used: ${refusal(image)}`)
    const volume = await this.#ask('POST', '/volumes/create', {
      json: { Name: name, Labels: labelsOf(spec, this.#deps.instance) },
    })
    if (volume.status !== 201) throw errors.sandboxFailed(`no volume could be made: ${refusal(volume)}`)
    const imageEnv = (image.body.Config?.Env ?? []) as string[]
    const tmp = TMP_OPTIONS[(await isPodman(this.#engine)) ? 'podman' : 'docker']
    const network = spec.egress === null ? this.#network : 'none'
    const relayDir = needsRelay(spec) ? await this.#deps.relay.directoryFor(spec.egress) : null
    const body = await containerBody(spec, { instance: this.#deps.instance, network, imageEnv, relayDir, tmp })
    const made = await this.#ask('POST', '/containers/create', { query: { name }, json: body })
    // 409: another attempt has made it meanwhile.
    if (made.status !== 201 && made.status !== 409)
      throw errors.sandboxFailed(`no container could be made of ${spec.image}: ${refusal(made)}`)
  }

  async #startContainer(name: string, spec: SandboxSpec) {
    const started = await this.#ask('POST', `/containers/${name}/start`, { timeoutMs: 120_000 })
    if (started.status === 204 || started.status === 304) return
    const words = refusal(started)
    await this.destroy({ provider: this.kind, id: spec.id })
    if (/"?sh"?: executable file not found/.test(words))
      throw errors.sandboxFailed(`the image ${spec.image} has no sh; a sandbox needs sh, git, awk and tar`)
    throw errors.sandboxFailed(`the container could not be started: ${words}`)
  }

  async #upload(name: string, tar: Uint8Array) {
    const put = await this.#ask('PUT', `/containers/${name}/archive`, { query: { path: INSIDE.root }, tar })
    if (put.status === 404) throw errors.sandboxLost(`the container of the sandbox is gone: ${refusal(put)}`)
    if (put.status !== 200) throw errors.sandboxFailed(`nothing can be put into the sandbox: ${refusal(put)}`)
  }

  paths(ref: SandboxRef) {
    containerName(ref.id)
    const { home, repo, grantFile, helperDir } = INSIDE
    return { home, repo, grantFile, helperDir }
  }

  async inspect(ref: SandboxRef) {
    const found = await this.#ask('GET', `/containers/${containerName(ref.id)}/json`)
    if (found.status === 404)
      return { state: 'gone', reason: `the container ${containerName(ref.id)} is gone` } as const
    if (found.status !== 200) throw errors.sandboxFailed(`the sandbox cannot be looked at: ${refusal(found)}`)
    const state = stateOf(found.body)
    if (state === 'up' || state === 'paused') return { state, reason: null } as const
    const { ExitCode, OOMKilled, Error: said } = found.body.State
    const why = `${OOMKilled === true ? ', out of memory' : ''}${said ? `, ${said}` : ''}`
    return { state: 'gone', reason: `its container has stopped (exit status ${ExitCode}${why})` } as const
  }

  /** By label, so that what no record names is found; a volume whose container is gone counts as well. */
  async list() {
    const filters = JSON.stringify({ label: [`${LABELS.instance}=${this.#deps.instance}`] })
    const containers = await this.#ask('GET', '/containers/json', { query: { all: 'true', filters }, once: true })
    const volumes = await this.#ask('GET', '/volumes', { query: { filters }, once: true })
    if (containers.status !== 200) throw errors.sandboxFailed(`containers cannot be listed: ${refusal(containers)}`)
    if (volumes.status !== 200) throw errors.sandboxFailed(`volumes cannot be listed: ${refusal(volumes)}`)
    const labelled = [...(volumes.body.Volumes ?? []), ...containers.body] as Labelled[]
    const created = new Map<string, number>()
    for (const { Labels, Created, CreatedAt } of labelled) {
      const id = Labels?.[LABELS.sandbox]
      // A container's own age counts, where there is one.
      const at = Created === undefined ? Date.parse(CreatedAt ?? '') : Created * 1_000
      if (id !== undefined) created.set(id, Number.isNaN(at) ? 0 : at)
    }
    return [...created].sort().map(([id, createdAt]) => ({ provider: this.kind, id, createdAt }))
  }

  async start(ref: SandboxRef, turn: TurnStart) {
    const inside = await this.#open(ref)
    // A follower of an earlier run that still finds its end would end this one with it.
    for (const [at, follower] of this.#followersOf(ref))
      if (at !== followerName(ref, turn.key)) {
        this.#followers.delete(at)
        await follower.close()
      }
    await this.#upload(inside.container, await newestTar(turn.key))
    const argv = ['hangar-agent', 'start', '--stdin-bytes', String(turn.stdin.length), '--cwd', INSIDE.repo]
    argv.push('--timeout-ms', String(Math.ceil(turn.timeoutMs)), '--grace-ms', String(Math.ceil(turn.graceMs)))
    argv.push('--max-bytes', String(turn.maxOutputBytes), turnDirectory(turn.key), '--', ...turn.argv)
    const options = { env: turn.env, stdin: turn.stdin, timeoutMs: START_MS, maxOutputBytes: 65_536 }
    const begin = () => execInside(inside, argv, { ...options, mark: `turn:${turn.key}` })
    // A run that is claimed is not begun twice, so what says nothing may be asked again: the connection broke, or the agent ended all it could.
    const { exitCode, err } = await begin().catch((error: unknown) => {
      if (error instanceof HangarError && error.code === 'sandbox_failed') return begin()
      throw error
    })
    if (exitCode !== 0)
      throw errors.sandboxFailed('the run could not be started in the sandbox', { reason: err.toString('utf8') })
  }

  async read(
    ref: SandboxRef,
    key: string,
    cursor: TurnCursor,
    options: Parameters<Provider['read']>[3],
  ): Promise<TurnOutput> {
    const until = performance.now() + options.waitMs
    const left = () => until - performance.now()
    const nothing = { out: Buffer.alloc(0), err: Buffer.alloc(0), next: cursor, process: { state: 'running' } } as const
    for (;;) {
      const follower = await this.#followerAt(ref, key, cursor).catch((error: unknown) => this.#away(error))
      if (follower === null) {
        await pause(left(), options.signal)
        return nothing
      }
      // A new one gets the time for its first look, however short the caller's patience.
      await follower.news(Math.max(left(), follower.looked() ? 0 : FIRST_LOOK_MS), options.signal)
      const { out, err, end } = follower.take(options.maxBytes)
      if (end !== null) this.#followers.delete(followerName(ref, key))
      const next = follower.position()
      if (end !== null || out.length > 0 || err.length > 0)
        return { out, err, next, process: end ?? { state: 'running' } }
      if (follower.over()) this.#followers.delete(followerName(ref, key))
      if (left() <= 0 || options.signal?.aborted) return nothing
      if (follower.fault() !== null) await pause(Math.min(left(), 200), options.signal)
    }
  }

  /** The follower that is at the cursor; any other is let go. Null while the sandbox is paused. */
  async #followerAt(ref: SandboxRef, key: string, cursor: TurnCursor): Promise<Follower | null> {
    turnDirectory(key)
    const name = followerName(ref, key)
    const known = this.#followers.get(name)
    if (known !== undefined) {
      const at = known.position()
      if (at.out === cursor.out && at.err === cursor.err && known.fault() === null) return known
      this.#followers.delete(name)
      await known.close()
    }
    const inside = await this.#open(ref)
    try {
      const follower = await openFollower(inside, key, cursor)
      this.#awaySince = null
      this.#followers.set(name, follower)
      return follower
    } catch (error) {
      if ((await this.inspect(ref)).state === 'paused') return null
      throw error
    }
  }

  /** An engine that does not answer says nothing of the run: a reader waits for it, up to a limit. */
  #away(error: unknown): null {
    if (!(error instanceof EngineUnreachable)) throw error
    this.#awaySince ??= performance.now()
    if (performance.now() - this.#awaySince > ENGINE_AWAY_MS) throw error
    return null
  }

  async stop(ref: SandboxRef, key: string) {
    const directory = turnDirectory(key)
    const { state } = await this.inspect(ref)
    if (state === 'gone') return
    if (state === 'paused') await this.resume(ref)
    const options = { timeoutMs: 120_000, maxOutputBytes: 65_536 }
    await execInside(await this.#open(ref), ['hangar-agent', 'stop', directory], options)
  }

  async exec(ref: SandboxRef, argv: readonly string[], options: Parameters<Provider['exec']>[2]) {
    return execInside(await this.#open(ref), argv, options)
  }

  async readFile(ref: SandboxRef, path: string, options: Parameters<Provider['readFile']>[2]) {
    if (path.includes('\0')) return null
    const inside = await this.#open(ref)
    // Most looks find nothing new: the engine says the size without a process being started.
    const size = await this.#engine.fileSize(inside.container, path)
    if (size === null) return null
    if (size > 0 && size <= options.offset) return Buffer.alloc(0)
    const { offset, maxBytes } = options
    const argv = ['sh', '-c', READ_FILE_SCRIPT, 'sh', path, String(offset + 1), String(maxBytes)]
    try {
      const { exitCode, out } = await execInside(inside, argv, { timeoutMs: 30_000, maxOutputBytes: maxBytes + 1 })
      return exitCode === 0 ? out : null
    } catch (error) {
      // What has come meanwhile is read when it goes on.
      if ((await this.inspect(ref)).state === 'paused') return Buffer.alloc(0)
      throw error
    }
  }

  async putTar(ref: SandboxRef, dir: string, tar: Readable) {
    const script = 'mkdir -p -- "$1" && exec tar -x -f - --no-same-owner -C "$1"'
    const options = { stdin: tar, timeoutMs: 10 * 60_000, maxOutputBytes: 1_048_576 }
    const result = await execInside(await this.#open(ref), ['sh', '-c', script, 'sh', dir], options)
    if (result.exitCode !== 0)
      throw errors.sandboxFailed(`files could not be put into ${dir} of the sandbox`, {
        reason: result.err.toString('utf8').slice(0, 2_000),
      })
  }

  async getTar(ref: SandboxRef, dir: string, options: { readonly maxBytes: number }) {
    const inside = await this.#open(ref)
    const mark = `${inside.owner}tar`
    // Not every tar tells a directory that is not there from a file that changed.
    const argv = ['sh', '-c', '[ -d "$1" ] || exit 3; exec tar -c -f - -C "$1" .', 'sh', dir]
    const started = await startInside(inside, argv, { env: {}, stdin: false, mark })
    return Readable.from(tarOf(started, dir, options.maxBytes), { objectMode: false })
  }

  async pause(ref: SandboxRef) {
    await this.#turnTo(ref, 'pause', 'paused')
  }

  async resume(ref: SandboxRef) {
    await this.#turnTo(ref, 'unpause', 'up')
  }

  /** The engine answers before its own record says so; commands are refused until then. */
  async #turnTo(ref: SandboxRef, verb: 'pause' | 'unpause', wanted: 'paused' | 'up') {
    const done = await this.#ask('POST', `/containers/${containerName(ref.id)}/${verb}`)
    if (done.status === 404) throw errors.sandboxLost(`the container of the sandbox ${ref.id} is gone`)
    for (let tries = 0; (await this.inspect(ref)).state !== wanted; tries++) {
      if (done.status !== 204 || tries > 100)
        throw errors.sandboxFailed(`the sandbox cannot be made to ${verb}: ${refusal(done)}`)
      await sleep(20)
    }
  }

  async destroy(ref: SandboxRef) {
    const name = containerName(ref.id)
    for (const [at, follower] of this.#followersOf(ref)) {
      this.#followers.delete(at)
      follower.abandon()
    }
    this.#clean.delete(ref.id)
    await this.#ask('POST', `/containers/${name}/unpause`)
    await this.#untilGone('container', `/containers/${name}`, { force: 'true', v: 'true' })
    await this.#untilGone('volume', `/volumes/${name}`, { force: 'true' })
  }

  /** Removed means that the engine knows it no more: a removal that is under way answers 409. */
  async #untilGone(what: string, path: string, query: Record<string, string>) {
    for (let tries = 0; ; tries++) {
      const removed = await this.#ask('DELETE', path, { query, timeoutMs: 120_000 })
      if (removed.status === 404) return
      if (tries > 100) throw errors.sandboxFailed(`the ${what} of the sandbox cannot be removed: ${refusal(removed)}`)
      if (removed.status === 204 && what === 'volume') return
      if (removed.status !== 204) await sleep(Math.min(50 * (tries + 1), 500))
    }
  }

  #followersOf(ref: SandboxRef): [string, Follower][] {
    return [...this.#followers].filter(([at]) => at.startsWith(`${ref.id}/`))
  }

  #inside(id: string): Inside {
    return { engine: this.#engine, container: containerName(id), owner: this.#owner }
  }

  /** At the first use by this server, what commands of a killed one are left inside is ended. */
  async #open(ref: SandboxRef): Promise<Inside> {
    const inside = this.#inside(ref.id)
    if (!this.#clean.has(ref.id)) this.#clean.set(ref.id, endMarked(inside, 'exec:', this.#owner))
    await this.#clean.get(ref.id)
    return inside
  }

  #ask(...request: Parameters<Engine['ask']>) {
    return this.#engine.ask(...request)
  }
}

async function isPodman(engine: Engine): Promise<boolean> {
  const { body } = await engine.ask('GET', '/version')
  return /podman/i.test(JSON.stringify(body.Components ?? ''))
}

function needsRelay(spec: SandboxSpec): boolean {
  return spec.egress !== null || spec.gatewayUrl === RELAY_URL
}

/** A container has its age in seconds, a volume as a time in text. */
interface Labelled {
  readonly Labels?: Readonly<Record<string, string>> | null
  readonly Created?: number
  readonly CreatedAt?: string
}

const followerName = (ref: SandboxRef, key: string) => `${ref.id}/${key}`

type ContainerState = 'up' | 'paused' | 'created' | 'stopped'

// biome-ignore lint/suspicious/noExplicitAny: the engine's answer
function stateOf({ State }: any): ContainerState {
  if (State?.Paused === true || State?.Status === 'paused') return 'paused'
  if (State?.Running === true && State?.Restarting !== true) return 'up'
  return State?.Status === 'created' || State?.Status === 'initialized' ? 'created' : 'stopped'
}

async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  if (ms > 0) await sleep(ms, undefined, signal === undefined ? {} : { signal }).catch(() => {})
}

async function* tarOf({ socket, output }: StartedInside, dir: string, maxBytes: number): AsyncGenerator<Buffer> {
  let size = 0
  let words = ''
  try {
    const written = output()
    for (;;) {
      const next = await written.next()
      if (next.done === true) {
        // 1 says only that a file changed while it was read.
        if (next.value === 0 || next.value === 1) return
        throw errors.sandboxFailed(`${dir} of the sandbox could not be read`, { reason: words.slice(0, 2_000) })
      }
      const { stream, data } = next.value
      if (stream === 'err') {
        if (words.length < 2_000) words += data.toString('utf8')
        continue
      }
      size += data.length
      if (size > maxBytes) throw errors.limitPassed(`${dir} of the sandbox is bigger than ${maxBytes} bytes as a tar`)
      yield data
    }
  } finally {
    socket.destroy()
  }
}
