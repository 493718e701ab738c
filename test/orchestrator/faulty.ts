/** A provider through which calls fail, before or after they took effect, are slow, and give output in odd pieces; the same each time for a seed. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Provider } from '../../domain/sandbox.ts'

export interface FaultPlan {
  readonly seed: number
  /** Shares of calls, 0 to 1. */
  readonly before: number
  readonly after: number
  readonly slow: number
  /** Shares of readings that give a part of what is there. */
  readonly cut: number
}

/** What a fault throws: the connection broke, and nobody knows what came of the call. */
export class InjectedFault extends Error {}

/** Numbers from 0 to below 1, the same for a seed. */
export function seeded(seed: number): () => number {
  let state = seed % 2_147_483_648
  return () => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648
    return state / 2_147_483_648
  }
}

/** What the port says may be called again. A command (`exec`) and what takes or gives a stream fail before they did anything only. */
const REPEATABLE = ['create', 'inspect', 'list', 'start', 'read', 'stop', 'readFile', 'pause', 'resume', 'destroy']
const ONCE = ['exec', 'putTar', 'getTar']

export function faulty(
  provider: Provider,
  plan: FaultPlan,
): { readonly provider: Provider; readonly faults: () => number } {
  const random = seeded(plan.seed)
  let faults = 0
  const fault = (name: string, when: string) => {
    faults++
    return new InjectedFault(`${name} broke ${when} it took effect`)
  }
  const wrapped = wrap(provider, async (name, call) => {
    if (random() < plan.slow) await sleep(Math.floor(random() * 60))
    if (random() < plan.before) throw fault(name, 'before')
    const result = await call()
    if (REPEATABLE.includes(name) && random() < plan.after) throw fault(name, 'after')
    return result
  })
  const read: Provider['read'] = async (ref, key, cursor, options) => {
    const got = await wrapped.read(ref, key, cursor, options)
    if (got.out.length === 0 || random() >= plan.cut) return got
    const out = got.out.subarray(0, Math.floor(random() * got.out.length))
    const next = { out: cursor.out + out.length, err: got.next.err }
    return { out, err: got.err, next, process: { state: 'running' } }
  }
  return { provider: { ...wrapped, read }, faults: () => faults }
}

/** Makes each call again until no fault is met, as a provider over a bad connection must. */
export function insistent(provider: Provider): Provider {
  return wrap(provider, async (_name, call) => {
    for (let tries = 0; ; tries++)
      try {
        return await call()
      } catch (error) {
        if (!(error instanceof InjectedFault) || tries > 100) throw error
      }
  })
}

function wrap(provider: Provider, around: (name: string, call: () => Promise<unknown>) => Promise<unknown>): Provider {
  const methods = [...REPEATABLE, ...ONCE].map((name) => {
    const method = provider[name as keyof Provider] as (...args: unknown[]) => Promise<unknown>
    return [name, (...args: unknown[]) => around(name, () => method.apply(provider, args))]
  })
  return {
    kind: provider.kind,
    capabilities: () => provider.capabilities(),
    gatewayUrl: (url, egress) => provider.gatewayUrl(url, egress),
    describe: () => provider.describe(),
    paths: (ref) => provider.paths(ref),
    ...(Object.fromEntries(methods) as Omit<Provider, 'kind' | 'capabilities' | 'gatewayUrl' | 'describe' | 'paths'>),
  }
}
