/**
 * What sandboxes in a cluster cost the server that drives them: requests and processor time a running turn, an idle sandbox, a new pod. The
 * cluster is the tests' peer in a process of its own, whose pods really run; give their number (default 50) and the seconds of each part (20).
 */
import { fork } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createKubernetesProvider } from '../orchestrator/providers/kubernetes.ts'
import type { KubernetesProvider } from '../orchestrator/providers/kubernetes-provider.ts'
import { sandboxSpec, turn } from '../test/orchestrator/provider-conformance.ts'
import { startPeer } from '../test/peers/kubernetes/peer.ts'

const HELPER_DIR = fileURLToPath(new URL('../../agent-helper', import.meta.url))
const NAMESPACE = 'hangar-sandboxes'
const WAIT_MS = 400

interface Counts {
  readonly requests: number
  readonly execs: number
  readonly connections: number
}

if (process.send !== undefined) await servePeer(process.argv[2] ?? '')
else await bench(Number(process.argv[2] ?? 50), Number(process.argv[3] ?? 20))

async function servePeer(dir: string): Promise<void> {
  const peer = await startPeer({ dir })
  process.on('message', async (asked) => {
    if (asked === 'end') {
      await peer.close()
      process.disconnect()
      return
    }
    const all = [...peer.requests]
    const sum = (counts: typeof all) => counts.reduce((total, [, count]) => total + count, 0)
    process.send?.({
      requests: sum(all.filter(([key]) => key !== 'create pods/exec')),
      execs: peer.requests.get('get pods/exec') ?? 0,
      connections: peer.connections(),
    } satisfies Counts)
  })
  process.send?.(peer.kubeconfig(NAMESPACE))
}

async function bench(pods: number, seconds: number): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-bench-kubernetes-'))
  mkdirSync(join(dir, 'pods'))
  const peer = fork(fileURLToPath(import.meta.url), [join(dir, 'pods')])
  const answer = <T>() => new Promise<T>((resolve) => peer.once('message', (value) => resolve(value as T)))
  writeFileSync(join(dir, 'kubeconfig'), JSON.stringify(await answer<unknown>()))
  const count = () => {
    const counts = answer<Counts>()
    peer.send('count')
    return counts
  }
  const provider = createKubernetesProvider({
    kubeconfig: join(dir, 'kubeconfig'),
    install: {
      instance: 'bench',
      namespace: NAMESPACE,
      gatewayUrl: 'http://127.0.0.1:9',
      nodeSelector: {},
      runtimeClass: null,
    },
    helperDir: HELPER_DIR,
    log: console,
  })
  const measure = async (what: string, per: string, work: () => Promise<void>) => {
    const [before, cpu, began] = [await count(), process.cpuUsage(), performance.now()]
    await work()
    const [after, used, ms] = [await count(), process.cpuUsage(cpu), performance.now() - began]
    const minutes = per === 'minute' ? ms / 60_000 : 1
    const each = (total: number) => Math.round((total / pods / minutes) * 100) / 100
    console.log(
      `${what}: ${each(after.requests - before.requests)} requests (${each(after.execs - before.execs)} of them connections into pods) and ` +
        `${each((used.user + used.system) / 1_000)} ms of processor for each ${per === 'minute' ? 'and minute' : 'one'}; ${after.connections} connections open, ` +
        `${Math.round(process.memoryUsage().rss / 1_048_576)} MB resident`,
    )
  }
  const specs = Array.from({ length: pods }, () => sandboxSpec({ image: 'bench' }))
  try {
    console.log(`${pods} pods`)
    await measure('a new sandbox', 'one', () => inGroups(specs, 8, async (spec) => void (await provider.create(spec))))
    await measure('an idle sandbox', 'minute', async () => void (await sleep(seconds * 1_000)))
    await measure('a turn that says a line every two seconds', 'minute', () =>
      runTurns(provider, specs, { key: '1-1', script: 'while :; do echo a line of output; sleep 2; done', seconds }),
    )
    await measure('a turn that thinks without a word', 'minute', () =>
      runTurns(provider, specs, { key: '2-1', script: 'sleep 600', seconds }),
    )
    await inGroups(specs, 8, (spec) => provider.destroy({ provider: 'kubernetes', id: spec.id }))
  } finally {
    await provider.close()
    peer.send('end')
    await new Promise((resolve) => peer.once('exit', resolve))
    rmSync(dir, { recursive: true, force: true })
  }
}

/** As the server follows turns: it asks again and again, for a short while each time. */
async function runTurns(
  provider: KubernetesProvider,
  specs: readonly { readonly id: string }[],
  { key, script, seconds }: { readonly key: string; readonly script: string; readonly seconds: number },
): Promise<void> {
  const until = performance.now() + seconds * 1_000
  await Promise.all(
    specs.map(async ({ id }) => {
      const ref = { provider: 'kubernetes', id }
      await provider.start(ref, turn(key, script))
      let cursor = { out: 0, err: 0 }
      while (performance.now() < until)
        cursor = (await provider.read(ref, key, cursor, { waitMs: WAIT_MS, maxBytes: 65_536 })).next
      await provider.stop(ref, key)
    }),
  )
}

async function inGroups<T>(items: readonly T[], size: number, work: (item: T) => Promise<void>): Promise<void> {
  const left = [...items]
  await Promise.all(
    Array.from({ length: size }, async () => {
      for (let item = left.shift(); item !== undefined; item = left.shift()) await work(item)
    }),
  )
}
