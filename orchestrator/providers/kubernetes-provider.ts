/** The provider whose sandboxes are pods: made, followed and removed over an API server that may be away at any moment. */
import { Readable } from 'node:stream'
import { errors, messageOf } from '../../domain/errors.ts'
import type { ExecOptions, ExecResult, Provider, SandboxRef, SandboxSpec, TurnStart } from '../../domain/sandbox.ts'
import { persist } from './kubernetes-cluster.ts'
import { createPodCommands, type PodCommands } from './kubernetes-commands.ts'
import { type PodLink, podCommand, runCommand } from './kubernetes-exec.ts'
import { blobId } from './kubernetes-frames.ts'
import { installInPod } from './kubernetes-install.ts'
import { POD_PATHS, podName, SANDBOX_ID, selectorOf } from './kubernetes-pod.ts'
import { isNodeUnready, podState } from './kubernetes-pod-state.ts'
import { createPods, PERSIST_MS, type Pods, type PodsDeps } from './kubernetes-pods.ts'
import { followTail, type RunTail } from './kubernetes-tail.ts'

export interface PodProviderDeps extends PodsDeps {
  /** Directory of the scripts `hangar-agent` and `hangar-pod`. */
  readonly helperDir: string
  /** Silence of a followed run after which its pod is taken to stand still; default 30 seconds. */
  readonly silentMs?: number
}

export interface KubernetesProvider extends Provider {
  /** Lets go of every connection; what runs in pods runs on. */
  close(): Promise<void>
}

const KEY = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/
const ID = KEY
const LIST_MS = 10_000
const TAIL_IDLE_MS = 60_000
/** Several frames' worth, and one new connection. */
const SILENT_MS = 30_000

/** A provider over a cluster; nothing is asked of it yet. */
export function createPodProvider(deps: PodProviderDeps): KubernetesProvider {
  return new PodProvider(deps)
}

class PodProvider implements KubernetesProvider {
  readonly kind = 'kubernetes'
  readonly #deps: PodProviderDeps
  readonly #pods: Pods
  readonly #commands: PodCommands
  readonly #tails = new Map<string, RunTail>()
  /** By the pod's uid. */
  readonly #swept = new Map<string, Promise<void>>()

  constructor(deps: PodProviderDeps) {
    this.#deps = deps
    this.#pods = createPods(deps)
    this.#commands = createPodCommands(deps)
  }

  capabilities() {
    return { pause: false, limits: ['cpu', 'memoryMb'], network: true } as const
  }

  gatewayUrl() {
    const { gatewayUrl } = this.#deps.install
    if (gatewayUrl === null)
      throw errors.configInvalid(
        'kubernetes.gateway_url is not set: pods need an address at which they reach this server',
      )
    return gatewayUrl
  }

  async describe() {
    const { namespace } = this.#deps.install
    try {
      const version = await this.#deps.cluster.version()
      return {
        level: 'ok',
        text: `pods in namespace ${namespace} of Kubernetes ${version}; egress holds where the cluster's network plugin enforces NetworkPolicies`,
      } as const
    } catch (error) {
      return { level: 'warning', text: `kubernetes: ${messageOf(error)}` } as const
    }
  }

  paths() {
    const { home, repo, grantFile, helperDir } = POD_PATHS
    return { home, repo, grantFile, helperDir }
  }

  async create(spec: SandboxSpec) {
    checkSpec(spec)
    const link = await this.#pods.make(spec)
    await installInPod(link, spec, this.#deps.helperDir)
    return this.paths()
  }

  /** The sandbox's pod, which is there, with helper commands of other servers ended. Throws `sandbox_lost`. */
  async #open(ref: SandboxRef): Promise<PodLink> {
    checkId(ref.id)
    const name = podName(ref.id)
    const pod = this.#pods.watch.get(name) ?? (await this.#pods.look(name))
    const state = pod === null ? null : podState(pod)
    if (pod === null || state === null || state.kind === 'ended')
      throw errors.sandboxLost(
        `the sandbox ${ref.id} is gone: ${this.#pods.watch.endOf(name) ?? 'there is no pod of it'}`,
      )
    if (state.kind === 'pending')
      throw errors.sandboxFailed(`the pod of sandbox ${ref.id} does not run yet: ${state.why}`)
    const link = this.#pods.link(name)
    await this.#sweep(link, pod.metadata.uid ?? '')
    return link
  }

  #sweep(link: PodLink, uid: string): Promise<void> {
    const swept =
      this.#swept.get(uid) ??
      this.#commands.sweep(link).catch((error: unknown) => {
        this.#swept.delete(uid)
        throw error
      })
    this.#swept.set(uid, swept)
    return swept
  }

  async inspect(ref: SandboxRef) {
    checkId(ref.id)
    const name = podName(ref.id)
    const pod = await this.#pods.look(name)
    const state = pod === null ? null : podState(pod)
    if (pod !== null && state?.kind === 'up') {
      const silentMs = this.#silentMs(name)
      if (silentMs < (this.#deps.silentMs ?? SILENT_MS)) return { state: 'up', reason: null } as const
      const why = isNodeUnready(pod) ? `; its node ${pod.spec?.nodeName ?? ''} is not ready` : ''
      const reason = `nothing has been heard from its pod for ${Math.round(silentMs / 1_000)} s${why}`
      return { state: 'paused', reason } as const
    }
    const gone = this.#pods.watch.endOf(name) ?? 'there is no pod of it'
    return { state: 'gone', reason: state?.kind === 'pending' ? state.why : gone } as const
  }

  /** How long the run that was heard of last has said nothing; one that no reader follows says nothing of the pod. */
  #silentMs(name: string): number {
    const silences = [...this.#tails]
      .filter(([at, tail]) => at.startsWith(`${name}/`) && tail.idleMs() < SILENT_MS)
      .map(([, tail]) => tail.silentMs())
    return silences.length === 0 ? 0 : Math.min(...silences)
  }

  async list() {
    const { cluster, install } = this.#deps
    const { items } = await persist(() => cluster.listPods(selectorOf(install)), { forMs: LIST_MS })
    return items.map(({ metadata }) => ({
      provider: this.kind,
      id: metadata.annotations?.[SANDBOX_ID] ?? '',
      createdAt: Date.parse(metadata.creationTimestamp ?? '') || 0,
    }))
  }

  /** The API server: no sandbox has business with it, and every pod reaches it where policies are not enforced. */
  forbidden() {
    return this.#deps.cluster.address
  }

  tidy() {
    return this.#pods.tidy()
  }

  async start(ref: SandboxRef, turn: TurnStart) {
    const dir = turnDir(turn.key)
    const link = await this.#open(ref)
    const { args, stdin } = await this.#commands.payload(link, dir, turn)
    const result = await runCommand(link, podCommand('start', ...args), { stdin, forMs: PERSIST_MS })
    if (result.exitCode !== 0)
      throw errors.sandboxFailed('the run could not be started in its pod', { reason: result.err.slice(0, 2_000) })
  }

  async read(
    ref: SandboxRef,
    key: string,
    cursor: Parameters<Provider['read']>[2],
    options: Parameters<Provider['read']>[3],
  ) {
    checkId(ref.id)
    const dir = turnDir(key)
    const name = podName(ref.id)
    const known = this.#tails.get(`${name}/${dir}`)
    let tail = known
    if (known === undefined || !known.isAt(cursor)) {
      known?.close()
      tail = followTail(() => this.#open(ref), { dir, from: cursor })
      this.#tails.set(`${name}/${dir}`, tail)
      this.#closeIdleTails()
    }
    const output = await (tail as RunTail).take(options)
    if (output.process.state !== 'running') {
      tail?.close()
      if (this.#tails.get(`${name}/${dir}`) === tail) this.#tails.delete(`${name}/${dir}`)
    }
    return output
  }

  #closeIdleTails() {
    for (const [at, tail] of this.#tails)
      if (tail.idleMs() > TAIL_IDLE_MS) {
        tail.close()
        this.#tails.delete(at)
      }
  }

  async stop(ref: SandboxRef, key: string) {
    const dir = turnDir(key)
    const gone = (error: unknown) => {
      if ((error as { readonly code?: string }).code !== 'sandbox_lost') throw error
    }
    try {
      const link = await this.#open(ref)
      const began = performance.now()
      for (;;) {
        const { out } = await runCommand(link, podCommand('stop', dir, 10), { forMs: PERSIST_MS })
        const [word, graceMs] = out.toString('utf8').trim().split(' ')
        if (word === 'ended') return
        if (performance.now() - began > Number(graceMs ?? 0) + 10_000) break
      }
      await runCommand(link, podCommand('stop', dir, 0), { forMs: PERSIST_MS })
    } catch (error) {
      gone(error)
    }
  }

  async exec(ref: SandboxRef, argv: readonly string[], options: ExecOptions): Promise<ExecResult> {
    const out: Buffer[] = []
    const err: Buffer[] = []
    const exitCode = await this.#commands.run(await this.#open(ref), argv, options, (stream, bytes) => {
      ;(stream === 'out' ? out : err).push(bytes)
    })
    return { exitCode, out: Buffer.concat(out), err: Buffer.concat(err) }
  }

  async readFile(ref: SandboxRef, path: string, { offset, maxBytes }: Parameters<Provider['readFile']>[2]) {
    if (path.includes('\0')) return null
    const at = path.startsWith('/') ? path : `${POD_PATHS.home}/${path}`
    const argv = podCommand('cat', at, offset, maxBytes)
    const link = await this.#open(ref)
    for (let tries = 0; tries < 5; tries++) {
      const { exitCode, out, err } = await runCommand(link, argv, { forMs: PERSIST_MS, maxBytes: maxBytes + 256 })
      const end = out.indexOf(10)
      const [word, size, oid] = out.toString('utf8', 0, Math.max(0, end)).split(' ')
      if (exitCode === 0 && word === 'none') return null
      const body = out.subarray(end + 1)
      if (exitCode === 0 && word === 'file' && body.length === Number(size) && blobId(body, oid?.length ?? 40) === oid)
        return body
      if (exitCode !== 0) throw errors.sandboxFailed('a file of the pod could not be read', { reason: err })
    }
    throw errors.sandboxFailed('a file of the pod changed each time it was read')
  }

  async putTar(ref: SandboxRef, dir: string, tar: Readable) {
    const script = 'mkdir -p -- "$1" && exec tar -x -f - -o -C "$1"'
    const result = await this.exec(ref, ['sh', '-c', script, 'sh', dir], {
      stdin: tar,
      timeoutMs: 10 * 60_000,
      maxOutputBytes: 1_048_576,
    })
    if (result.exitCode !== 0)
      throw errors.sandboxFailed(`files could not be put into ${dir} of the sandbox`, {
        reason: result.err.toString('utf8').slice(0, 2_000),
      })
  }

  async getTar(ref: SandboxRef, dir: string, { maxBytes }: { readonly maxBytes: number }) {
    const link = await this.#open(ref)
    return Readable.from(this.#commands.tarOf(link, dir, maxBytes), { objectMode: false })
  }

  async pause(ref: SandboxRef): Promise<void> {
    throw errors.sandboxFailed(`the sandbox ${ref.id} is a pod: pods cannot be paused`)
  }

  async resume(): Promise<void> {}

  async destroy(ref: SandboxRef) {
    checkId(ref.id)
    const name = podName(ref.id)
    for (const [at, tail] of this.#tails)
      if (at.startsWith(`${name}/`)) {
        tail.close()
        this.#tails.delete(at)
      }
    this.#commands.drop(name)
    const pod = await this.#pods.look(name)
    if (pod === null) return
    await this.#pods.remove(name, pod)
    this.#swept.delete(pod.metadata.uid ?? '')
  }

  async close() {
    for (const tail of this.#tails.values()) tail.close()
    this.#tails.clear()
    await this.#pods.close()
  }
}

function checkId(id: string): void {
  if (!ID.test(id)) throw errors.invalidName(`sandbox id ${JSON.stringify(id.slice(0, 80))} is not taken`)
}

function checkSpec(spec: SandboxSpec): void {
  checkId(spec.id)
  if (spec.image === null) throw errors.sandboxFailed('a pod needs an image; set environments.<name>.image')
  if (spec.limits.pids !== null)
    throw errors.sandboxFailed(
      'a limit of processes is set for a whole cluster (podPidsLimit of its kubelets), not for a pod; take limits.pids out',
    )
}

function turnDir(key: string): string {
  if (!KEY.test(key)) throw errors.invalidName(`run key ${JSON.stringify(key.slice(0, 80))} is not taken`)
  return `turns/${key}`
}
