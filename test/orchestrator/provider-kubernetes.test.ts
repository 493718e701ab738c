import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { podName } from '../../orchestrator/providers/kubernetes-pod.ts'
import type { Faults } from '../peers/kubernetes/peer.ts'
import { whyNoPods } from '../peers/kubernetes/runtime.ts'
import { kubernetesSubject } from './kubernetes-subject.ts'
import { conformance, noneLeft, readToEnd, sandboxSpec, turn } from './provider-conformance.ts'

t.setTimeout(900_000)
const missing = whyNoPods()
const skip = { skip: missing }
const image = 'example.test/tools:1'
const ref = (id: string) => ({ provider: 'kubernetes', id })
const execOptions = { timeoutMs: 60_000, maxOutputBytes: 1_048_576 }

if (missing !== false) t.test('kubernetes', { skip: missing }, async () => {})
else {
  const { make } = await kubernetesSubject(t)
  await conformance(t, 'kubernetes', { provider: make(), again: () => make(), isolated: true, spec: { image } })
  const bad = await kubernetesSubject(t)
  Object.assign(bad.peer.faults, everythingBreaks())
  await conformance(t, 'kubernetes, where every kind of connection breaks', {
    provider: bad.make(),
    again: () => bad.make(),
    isolated: true,
    spec: { image },
  })
}

/** The same faults in the same order each time: about half of all connections into pods break, one in five says no status, and so on. */
function everythingBreaks(): Partial<Faults> {
  let seed = 7
  const random = () => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648
    return seed / 2_147_483_648
  }
  return {
    cutAfter: () => (random() < 0.4 ? Math.floor(random() * 60_000) : null),
    withoutStatus: () => random() < 0.2,
    refuse: ({ exec }) => (random() < (exec ? 0.1 : 0.15) ? (random() < 0.2 ? 429 : 500) : null),
    watchResetMs: 400,
    expired: () => random() < 0.3,
    protocol: 'v4.channel.k8s.io',
  }
}

t.test('slow frames and a connection that hangs without a sign cost time and no data', skip, async (t) => {
  const { peer, make } = await kubernetesSubject(t)
  const provider = make()
  const spec = sandboxSpec({ image })
  await provider.create(spec)
  peer.faults.slowFramesMs = 5
  await provider.start(ref(spec.id), turn('1-1', 'head -c 40000 /dev/zero | tr "\\0" x; echo end >&2; exit 3'))
  let connections = 0
  // The first connection that reads hangs; nothing says so.
  peer.faults.hangAfter = () => (connections++ === 0 ? 9_000 : null)
  const got = await readToEnd(provider, spec.id, '1-1')
  t.equal(got.out.length, 40_000)
  t.equal(got.err.toString(), 'end\n')
  t.match(got.process, { state: 'exited', exitCode: 3 })
  await provider.destroy(ref(spec.id))
})

t.test('why a sandbox is lost is said, and the same id gives a fresh one', skip, async (t) => {
  const { peer, make } = await kubernetesSubject(t)
  const provider = make()
  const ends = [
    ['evicted', (name: string) => peer.evict(name), /evicted: The node was low on resource: memory/],
    ['memory', (name: string) => peer.outOfMemory(name), /OOMKilled/],
    ['node', async (name: string) => peer.loseNode(name), /node node-1 of its pod is lost/],
    ['deleted', (name: string) => peer.deletePod(name), /was deleted/],
  ] as const
  await Promise.all(
    ends.map(async ([what, end, reason]) => {
      const spec = sandboxSpec({ image })
      await provider.create(spec)
      const marker = `hangar-lost-${what}-${process.pid}`
      await provider.start(ref(spec.id), turn('1-1', `echo up; bash -c "exec -a ${marker} sleep 300"`))
      const first = await provider.read(ref(spec.id), '1-1', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 100 })
      t.equal(first.out.toString(), 'up\n')
      await end(podName(spec.id))
      await t.rejects(readToEnd(provider, spec.id, '1-1', first.next), { code: 'sandbox_lost', message: reason }, what)
      t.match(await provider.inspect(ref(spec.id)), { state: 'gone', reason }, what)
      await provider.stop(ref(spec.id), '1-1')
      await provider.create(spec)
      t.equal((await provider.inspect(ref(spec.id))).state, 'up', what)
      const fresh = await provider.exec(ref(spec.id), ['sh', '-c', 'ls -A; cat /run/hangar/grant'], execOptions)
      t.equal(fresh.out.toString(), 'hgs_conformance-secret\n', what)
      await provider.destroy(ref(spec.id))
      if (what !== 'node') t.equal(await noneLeft(marker), 0, what)
    }),
  )
})

t.test('a node that does not answer any more is noticed while its pod is still said to run', skip, async (t) => {
  const { peer, make } = await kubernetesSubject(t)
  const provider = make({ silentMs: 4_000 })
  const spec = sandboxSpec({ image })
  await provider.create(spec)
  await provider.start(ref(spec.id), turn('1-1', 'while :; do echo tick; sleep 0.2; done'))
  let at = { out: 0, err: 0 }
  const follow = async () => {
    const output = await provider.read(ref(spec.id), '1-1', at, { waitMs: 200, maxBytes: 65_536 })
    at = output.next
    return output.process
  }
  for (let round = 0; round < 5; round++) await follow()
  t.match(await provider.inspect(ref(spec.id)), { state: 'up', reason: null })
  peer.unreadyNode(podName(spec.id))
  let found = await provider.inspect(ref(spec.id))
  for (let rounds = 0; found.state === 'up' && rounds < 150; rounds++) {
    t.match(await follow(), { state: 'running' }, 'silence is no end')
    found = await provider.inspect(ref(spec.id))
  }
  t.match(found, {
    state: 'paused',
    reason: /^nothing has been heard from its pod for \d+ s; its node node-1 is not ready$/,
  })
  peer.readyNode(podName(spec.id))
  await provider.destroy(ref(spec.id))
})

t.test('a NetworkPolicy that no pod is under any more goes; one that is needed stays', skip, async (t) => {
  const { peer, make } = await kubernetesSubject(t)
  const provider = make()
  const policies = () => peer.objects('networkpolicies').map(({ metadata }) => metadata.labels?.['hangar.dev/network'])
  const [open, shut] = [sandboxSpec({ image }), sandboxSpec({ image, egress: [] })]
  await Promise.all([open, shut].map((spec) => provider.create(spec)))
  t.equal(policies().length, 2)
  await provider.destroy(ref(shut.id))
  await provider.tidy?.()
  t.equal(policies().length, 2, 'it may be needed again at once')
  await provider.tidy?.()
  t.strictSame(policies(), [peer.pod(podName(open.id))?.metadata.labels?.['hangar.dev/network']])
  await provider.destroy(ref(open.id))
  await provider.tidy?.()
  await Promise.all([provider.create(open), provider.tidy?.()])
  t.equal(policies().length, 1, 'made under it meanwhile')
  await provider.destroy(ref(open.id))
})

t.test('a run whose supervisor is killed is lost, and nothing of it goes on', skip, async (t) => {
  const { make } = await kubernetesSubject(t)
  const provider = make()
  const spec = sandboxSpec({ image })
  await provider.create(spec)
  const marker = `hangar-orphan-${process.pid}`
  await provider.start(ref(spec.id), turn('1-1', `echo up; setsid bash -c "exec -a ${marker} sleep 300" & sleep 300`))
  await provider.read(ref(spec.id), '1-1', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 100 })
  await provider.exec(
    ref(spec.id),
    ['sh', '-c', 'read -r pid rest </run/hangar/turns/1-1/pid; kill -9 $pid'],
    execOptions,
  )
  const got = await readToEnd(provider, spec.id, '1-1')
  t.match(got.process, { state: 'lost', reason: /supervised/ })
  t.equal(got.out.toString(), 'up\n')
  t.equal(await noneLeft(marker), 0)
  await provider.destroy(ref(spec.id))
})

t.test('a helper command of a killed server is ended by the next one, which leaves the turn alone', skip, async (t) => {
  const { make } = await kubernetesSubject(t)
  const first = make()
  const spec = sandboxSpec({ image })
  await first.create(spec)
  const marker = `hangar-helper-${process.pid}`
  await first.start(ref(spec.id), turn('1-1', 'echo up; sleep 2; echo on'))
  const abandoned = first.exec(ref(spec.id), ['bash', '-c', `exec -a ${marker} sleep 300`], execOptions).catch(() => {})
  await sleep(500)
  await first.close()
  const next = make()
  t.equal((await next.exec(ref(spec.id), ['true'], execOptions)).exitCode, 0)
  t.equal(await noneLeft(marker), 0)
  t.equal((await readToEnd(next, spec.id, '1-1')).out.toString(), 'up\non\n')
  await next.destroy(ref(spec.id))
  await abandoned
})

t.test('what keeps a pod from starting is said in the words of the cluster', skip, async (t) => {
  const { peer, make } = await kubernetesSubject(t)
  peer.broken.set('none:1', { reason: 'ImagePullBackOff', message: 'Back-off pulling image "none:1": not found' })
  const provider = make({ startMs: 20_000 })
  const spec = sandboxSpec({ image: 'none:1' })
  await t.rejects(provider.create(spec), {
    code: 'sandbox_failed',
    message: /none:1 cannot start: ImagePullBackOff: .*not found/,
  })
  await provider.destroy(ref(spec.id))
  const late = sandboxSpec({ image: 'late:1' })
  peer.broken.set('late:1', { reason: 'ContainerCreating', message: '' })
  await t.rejects(make({ startMs: 300 }).create(late), { code: 'sandbox_failed', message: /did not start in time/ })
  await provider.destroy(ref(late.id))
  const many = sandboxSpec({ image, limits: { cpu: null, memoryMb: null, pids: 100 } })
  await t.rejects(provider.create(many), { code: 'sandbox_failed', message: /podPidsLimit/ })
  await t.rejects(provider.create(sandboxSpec({ id: '../x', image })), { code: 'invalid_name' })
})

t.test('no secret is in a manifest, a command line or a request, and idle connections are let go', skip, async (t) => {
  const { peer, make } = await kubernetesSubject(t)
  const provider = make()
  const spec = sandboxSpec({ image, grant: 'hgs_not-to-be-seen' })
  await provider.create(spec)
  await provider.start(ref(spec.id), turn('1-1', 'echo up; sleep 20', { env: { KEY: 'env-not-to-be-seen' } }))
  await provider.read(ref(spec.id), '1-1', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 100 })
  t.notMatch(
    JSON.stringify([peer.pods(), peer.objects('configmaps'), peer.objects('networkpolicies')]),
    /not-to-be-seen/,
  )
  t.notMatch(peer.paths.join('\n'), /not-to-be-seen/)
  const look = 'cat /proc/*/cmdline | tr "\\0" " "; find /run/hangar/turns -type f -exec cat {} +'
  const seen = (await provider.exec(ref(spec.id), ['sh', '-c', look], execOptions)).out.toString()
  t.match(seen, /sleep 20/)
  t.match(seen, /up\n/)
  t.notMatch(seen, /not-to-be-seen/)
  await provider.close()
  for (let tries = 0; tries < 100 && peer.connections() > 0; tries++) await sleep(30)
  t.equal(peer.connections(), 0)
})
