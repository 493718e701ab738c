/** The NetworkPolicies of an install: there before any pod that they hold, and removed when they hold none any more. */
import { messageOf } from '../../domain/errors.ts'
import type { Log } from '../../domain/ports.ts'
import { type Cluster, isStatus, persist } from './kubernetes-cluster.ts'
import type { NetworkRules } from './kubernetes-network.ts'
import { type Install, NETWORK, selectorOf } from './kubernetes-pod.ts'

export interface Policies {
  /** Runs `make`, which makes a pod under the policy, with the policy in place from before to after. */
  under<T>(rules: NetworkRules, make: () => Promise<T>): Promise<T>
  /** Removes policies that no pod has been under for two rounds of this. */
  sweep(): Promise<void>
}

export interface PoliciesDeps {
  readonly cluster: Cluster
  readonly install: Install
  readonly log: Log
}

const CREATE_MS = 60_000

/** Only this process makes pods and removes policies of the install: one server a store, and a store's install is its own. */
export function createPolicies({ cluster, install, log }: PoliciesDeps): Policies {
  /** By label: pods that are being made under it. */
  const making = new Map<string, number>()
  /** Those that a pod was made under since the last round began. */
  const used = new Set<string>()
  const removing = new Map<string, Promise<void>>()
  let idle = new Set<string>()

  const remove = async (label: string, name: string, uid: string) => {
    await cluster.deleteNetworkPolicy(name, { uid }).catch((error: unknown) => {
      if (!isStatus(error, 404, 409))
        log.warn({ policy: name, error: messageOf(error) }, 'a NetworkPolicy was not removed')
    })
    removing.delete(label)
  }

  return {
    under: async ({ label, policy }, make) => {
      while (removing.has(label)) await removing.get(label)
      making.set(label, (making.get(label) ?? 0) + 1)
      used.add(label)
      try {
        await persist(() => cluster.createNetworkPolicy(policy), { forMs: CREATE_MS }).catch((error: unknown) => {
          if (!isStatus(error, 409)) throw error
        })
        return await make()
      } finally {
        used.add(label)
        making.set(label, (making.get(label) ?? 1) - 1)
      }
    },
    sweep: async () => {
      used.clear()
      const { items: pods } = await cluster.listPods(selectorOf(install))
      const held = new Set(pods.map(({ metadata }) => metadata.labels?.[NETWORK]))
      const found = await cluster.listNetworkPolicies(selectorOf(install))
      const without = found.flatMap(({ name, uid = '', labels }) => {
        const label = labels?.[NETWORK]
        return label === undefined || held.has(label) ? [] : [{ name, uid, label }]
      })
      for (const { name, uid, label } of without) {
        // No step between this look and the note that it is being removed.
        if (!idle.has(uid) || used.has(label) || (making.get(label) ?? 0) > 0) continue
        const done = remove(label, name, uid)
        removing.set(label, done)
        await done
      }
      idle = new Set(without.map(({ uid }) => uid))
    },
  }
}
