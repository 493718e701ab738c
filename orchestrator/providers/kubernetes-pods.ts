/** The pods of an install: made once for each sandbox, looked at, waited for, removed with a note of how they ended. */
import { lookup } from 'node:dns/promises'
import { isIP } from 'node:net'
import { errors, messageOf } from '../../domain/errors.ts'
import type { Log } from '../../domain/ports.ts'
import type { SandboxSpec } from '../../domain/sandbox.ts'
import { type Cluster, ClusterError, isStatus, persist } from './kubernetes-cluster.ts'
import type { PodLink } from './kubernetes-exec.ts'
import {
  type NetworkRules,
  networkManifest,
  parseTarget,
  serviceNamespace,
  type Target,
  targetOf,
} from './kubernetes-network.ts'
import { type Install, type Meta, ownerManifest, podManifest, podName, selectorOf } from './kubernetes-pod.ts'
import { isNodeLost, outOfMemory, type Pod, podState } from './kubernetes-pod-state.ts'
import { createPolicies, type Policies } from './kubernetes-policies.ts'
import { createPodWatch, type PodWatch } from './kubernetes-watch.ts'

export interface PodsDeps {
  readonly cluster: Cluster
  readonly install: Install
  readonly log: Log
  /** How long a pod may take until it runs; default ten minutes, which a large image may need. */
  readonly startMs?: number
  /** How long an error that waiting seldom mends (no such image) is waited for; default 20 seconds. */
  readonly patienceMs?: number
}

export interface Pods {
  /** What is heard of them; it begins with the first question. */
  readonly watch: PodWatch
  /** Makes the sandbox's pod, or finds it, and waits until it runs. Throws `sandbox_failed` with the cluster's reason. */
  make(spec: SandboxSpec): Promise<PodLink>
  /** The pod now; null when there is none. */
  look(name: string): Promise<Pod | null>
  link(name: string): PodLink
  /** Resolves when it is gone. */
  remove(name: string, pod: Pod): Promise<void>
  /** Removes NetworkPolicies that no pod is under any more. */
  tidy(): Promise<void>
  close(): Promise<void>
}

/** A call is made again for as long as this; an API server that is restarted is away for less. */
export const PERSIST_MS = 60_000
const WATCH_SECONDS = 240

export function createPods(deps: PodsDeps): Pods {
  return new InstalledPods(deps)
}

class InstalledPods implements Pods {
  readonly #deps: PodsDeps
  readonly #policies: Policies
  #watching: PodWatch | null = null
  #ownerObject: Promise<Meta> | null = null

  constructor(deps: PodsDeps) {
    this.#deps = deps
    this.#policies = createPolicies(deps)
  }

  get watch(): PodWatch {
    const { cluster, install, log } = this.#deps
    this.#watching ??= createPodWatch({ cluster, selector: selectorOf(install), log, watchSeconds: WATCH_SECONDS })
    return this.#watching
  }

  async make(spec: SandboxSpec) {
    const name = podName(spec.id)
    try {
      const owner = await this.#owns()
      const rules = await this.#rulesOf(spec, owner)
      const manifest = () => podManifest(this.#deps.install, spec, { owner, network: rules.label })
      await this.#policies.under(rules, () => this.#putPod(name, manifest))
      await this.#waitUntilUp(name, spec)
    } catch (error) {
      throw error instanceof ClusterError ? refusal(error) : error
    }
    return this.link(name)
  }

  #owns(): Promise<Meta> {
    const { cluster, install } = this.#deps
    const manifest = ownerManifest(install)
    this.#ownerObject ??= persist(
      async () => {
        try {
          return await cluster.createConfigMap(manifest)
        } catch (error) {
          if (!isStatus(error, 409)) throw error
          return cluster.getConfigMap(manifest.metadata.name)
        }
      },
      { forMs: PERSIST_MS },
    ).catch((error: unknown) => {
      this.#ownerObject = null
      throw error
    })
    return this.#ownerObject
  }

  async #rulesOf(spec: SandboxSpec, owner: Meta): Promise<NetworkRules> {
    const { install } = this.#deps
    const lookUp = (target: Omit<Target, 'addresses'>) => lookUpTarget(target, install.namespace)
    const gateway = await lookUp(targetOf(spec.gatewayUrl))
    const egress = spec.egress === null ? null : await Promise.all(spec.egress.map((text) => lookUp(parseTarget(text))))
    return networkManifest(install, { gateway, egress }, owner)
  }

  /** Makes the pod where there is none. One that has ended, or is being deleted, is waited away first. */
  async #putPod(name: string, manifest: () => ReturnType<typeof podManifest>): Promise<void> {
    const { cluster } = this.#deps
    for (let tries = 0; ; tries++) {
      try {
        await persist(() => cluster.createPod(manifest()), { forMs: PERSIST_MS })
        return
      } catch (error) {
        if (!isStatus(error, 409) || tries >= 5) throw error
      }
      const there = await this.look(name)
      if (there !== null && podState(there).kind !== 'ended') return
      if (there !== null) await this.remove(name, there)
    }
  }

  async #waitUntilUp(name: string, spec: SandboxSpec): Promise<void> {
    const began = performance.now()
    const patience = this.#deps.patienceMs ?? 20_000
    let hopelessSince: number | null = null
    for (let round = 0; ; round++) {
      // Watched, and looked at now and then: no one way of hearing of it is relied on.
      const pod = round % 10 === 0 ? await this.look(name) : (this.watch.get(name) ?? (await this.look(name)))
      if (pod === null) throw errors.sandboxLost(this.watch.endOf(name) ?? 'its pod was deleted')
      const state = podState(pod)
      if (state.kind === 'up') return
      if (state.kind === 'ended') throw errors.sandboxLost(state.reason)
      const now = performance.now()
      hopelessSince = state.hope === 'good' ? null : (hopelessSince ?? now)
      if (hopelessSince !== null && (state.hope === 'none' || now - hopelessSince >= patience))
        throw errors.sandboxFailed(`the pod of image ${spec.image} cannot start: ${state.why}`)
      if (now - began > (this.#deps.startMs ?? 600_000))
        throw errors.sandboxFailed(`the pod ${name} did not start in time: ${state.why}`)
      await this.watch.next(1_000)
    }
  }

  async look(name: string): Promise<Pod | null> {
    try {
      const pod = await persist(() => this.#deps.cluster.getPod(name), { forMs: PERSIST_MS })
      this.watch.note(pod)
      return pod
    } catch (error) {
      if (!isStatus(error, 404)) throw error instanceof ClusterError ? refusal(error) : error
      this.watch.noteGone(name, 'its pod was deleted')
      return null
    }
  }

  link(name: string): PodLink {
    return {
      cluster: this.#deps.cluster,
      name,
      knownEnd: () => this.watch.endOf(name),
      ended: async () => {
        const known = this.watch.endOf(name)
        if (known !== null) return known
        try {
          this.watch.note(await this.#deps.cluster.getPod(name))
        } catch (error) {
          if (isStatus(error, 404)) this.watch.noteGone(name, 'its pod was deleted')
        }
        return this.watch.endOf(name)
      },
    }
  }

  /** Notes how the pod ended, which nobody can ask any more once it is deleted; resolves when it is gone. */
  async remove(name: string, pod: Pod): Promise<void> {
    const { cluster, log } = this.#deps
    const state = podState(pod)
    if (state.kind === 'ended')
      log.info({ pod: name, reason: state.reason, oom: outOfMemory(pod) }, 'a pod that had ended is removed')
    const uid = pod.metadata.uid === undefined ? {} : { uid: pod.metadata.uid }
    const began = performance.now()
    // A node that is lost confirms no end.
    for (let force = isNodeLost(pod); ; ) {
      await persist(() => cluster.deletePod(name, { ...uid, graceSeconds: force ? 0 : 2 }), {
        forMs: PERSIST_MS,
      }).catch(ignore(404, 409))
      for (let round = 0; round < 30; round++) {
        const now = await this.look(name)
        if (now === null || now.metadata.uid !== pod.metadata.uid) return
        await this.watch.next(1_000)
      }
      // Its node does not answer: the API server forgets it, the node removes it when it comes back.
      if (performance.now() - began > 120_000) throw errors.sandboxFailed(`the pod ${name} could not be deleted`)
      force = true
    }
  }

  tidy() {
    return this.#policies.sweep()
  }

  async close() {
    await this.#watching?.close()
  }
}

async function lookUpTarget(target: Omit<Target, 'addresses'>, namespace: string): Promise<Target> {
  const { host } = target
  if (isIP(host) !== 0) return { ...target, addresses: [host] }
  if (serviceNamespace(host, namespace) !== null) return { ...target, addresses: [] }
  try {
    const found = await lookup(host, { all: true })
    return { ...target, addresses: [...new Set(found.map(({ address }) => address))].sort() }
  } catch (cause) {
    throw errors.sandboxFailed(
      `the address of ${host}, which the sandbox may reach, could not be found: ${messageOf(cause)}`,
      {},
      cause,
    )
  }
}

/** The API server's own sentence, and what is likely meant by its status. */
function refusal(error: ClusterError): Error {
  const hint =
    error.status === 401 || error.status === 403
      ? '; see docs/kubernetes.md for the rights that hangar needs and the standard that its pods keep'
      : ''
  return errors.sandboxFailed(`the cluster refused a sandbox: ${error.message}${hint}`, {}, error)
}

const ignore =
  (...statuses: readonly number[]) =>
  (error: unknown): void => {
    if (!isStatus(error, ...statuses)) throw error
  }
