/** The kinds of sandboxes that this server has: local ones always, others where an environment or a living sandbox needs them. */
import { createHash } from 'node:crypto'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Config } from '../domain/config.ts'
import type { ProviderKind } from '../domain/environment.ts'
import { errors } from '../domain/errors.ts'
import type { Clock, Log } from '../domain/ports.ts'
import type { Provider } from '../domain/sandbox.ts'
import type { Index } from '../gateway/state/index.ts'
import { openDockerProvider } from '../orchestrator/providers/docker.ts'
import { createLocalProvider } from '../orchestrator/providers/local.ts'
import type { createRelay } from '../orchestrator/providers/relay.ts'

const HELPER = fileURLToPath(new URL('../../agent-helper/hangar-agent', import.meta.url))

export interface Providers {
  readonly local: ReturnType<typeof createLocalProvider>
  readonly providers: ReadonlyMap<ProviderKind, Provider>
  close(): Promise<void>
}

/** Throws `config_invalid` where one that is needed cannot be had. */
export async function openProviders(deps: {
  readonly config: Config
  readonly index: Index
  readonly relay: ReturnType<typeof createRelay>
  /** The store's own, armored. */
  readonly publicKey: string
  readonly clock: Clock
  readonly log: Log
}): Promise<Providers> {
  const { config, index, relay, publicKey, clock, log } = deps
  let close = async () => {}
  const local = createLocalProvider({
    sandboxesDir: join(config.dataDir, 'sandboxes'),
    helperFile: HELPER,
    relay,
    clock,
    log,
  })
  const providers = new Map<ProviderKind, Provider>([['local', local]])
  if (await usesDocker(config, index)) {
    const docker = await openDockerProvider({
      socketPath: config.dockerSocket,
      helperFile: HELPER,
      instance: instanceOf(publicKey),
      relay,
      loopbackOnly: isLoopback(config.host),
      log,
    })
    providers.set('docker', docker)
  }
  if (await usesKubernetes(config, index)) {
    // Loaded here alone: nobody without a cluster needs it.
    const { createKubernetesProvider } = await import('../orchestrator/providers/kubernetes.ts')
    const { kubeconfig, ...settings } = config.kubernetes
    const install = { ...settings, instance: instanceOf(publicKey) }
    const made = createKubernetesProvider({ kubeconfig, install, helperDir: dirname(HELPER), log })
    providers.set('kubernetes', made)
    close = made.close.bind(made)
  }
  return { local, providers, close: () => close() }
}

/** Whether an environment names it, or a session's sandbox is still of it. */
async function usesDocker(config: Config, index: Index): Promise<boolean> {
  if ([...config.environments.values()].some(({ provider }) => provider === 'docker')) return true
  return (await index.sessions.range()).some(([, { session }]) => session.sandbox?.provider === 'docker')
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || host.startsWith('127.')
}

/** The same of pods. Throws `config_invalid` where they would not know how to reach this server. */
async function usesKubernetes(config: Config, index: Index): Promise<boolean> {
  const named = [...config.environments.values()].filter(({ provider }) => provider === 'kubernetes')
  const lost = named.find(({ gatewayUrl }) => gatewayUrl === null && config.kubernetes.gatewayUrl === null)
  if (lost !== undefined)
    throw errors.configInvalid(
      `kubernetes.gateway_url is not set, and environment ${lost.name} has pods: give the URL at which they reach this server, for example http://hangar.hangar.svc:4264`,
    )
  if (named.length > 0) return true
  return (await index.sessions.range()).some(([, { session }]) => session.sandbox?.provider === 'kubernetes')
}

/** What tells this store's sandboxes from those of others on the same engine: it goes where the store's keys go. */
function instanceOf(publicKey: string): string {
  return createHash('sha256').update(publicKey).digest('hex').slice(0, 16)
}

/** The provider that made a sandbox, as its session's record names it. */
export function providerOf(providers: ReadonlyMap<string, Provider>, kind: string): Provider {
  const provider = providers.get(kind)
  if (provider === undefined)
    throw errors.sandboxFailed(`the sandbox was made by the provider ${kind}, which this server does not have`)
  return provider
}
