/** The kubernetes provider over the test peer, as several tests make it. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { createKubernetesProvider, type KubernetesDeps } from '../../orchestrator/providers/kubernetes.ts'
import type { KubernetesProvider } from '../../orchestrator/providers/kubernetes-provider.ts'
import { type Peer, type PeerOptions, startPeer } from '../peers/kubernetes/peer.ts'

export interface KubernetesSubject {
  readonly dir: string
  readonly peer: Peer
  readonly kubeconfig: string
  /** A provider on the peer; closed at the end. */
  make(more?: Partial<KubernetesDeps>): KubernetesProvider
}

export const NAMESPACE = 'hangar-sandboxes'
export const HELPER_DIR = fileURLToPath(new URL('../../../agent-helper', import.meta.url))
const silent = { info() {}, warn() {}, error() {} }

export async function kubernetesSubject(t: Test, options: Partial<PeerOptions> = {}): Promise<KubernetesSubject> {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-kubernetes-'))
  mkdirSync(join(dir, 'pods'))
  const peer = await startPeer({ dir: join(dir, 'pods'), ...options })
  const kubeconfig = join(dir, 'kubeconfig.json')
  writeFileSync(kubeconfig, JSON.stringify(peer.kubeconfig(NAMESPACE)))
  const providers: KubernetesProvider[] = []
  t.teardown(async () => {
    await Promise.all(providers.map((provider) => provider.close()))
    await peer.close()
    rmSync(dir, { recursive: true, force: true, maxRetries: 5 })
  })
  return {
    dir,
    peer,
    kubeconfig,
    make: (more = {}) => {
      const provider = createKubernetesProvider({
        kubeconfig,
        install: {
          instance: 'test-install',
          namespace: NAMESPACE,
          gatewayUrl: 'http://127.0.0.1:9',
          nodeSelector: {},
          runtimeClass: null,
        },
        helperDir: HELPER_DIR,
        log: silent,
        patienceMs: 500,
        ...more,
      })
      providers.push(provider)
      return provider
    },
  }
}
