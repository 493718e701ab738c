/** The double keeps what every provider keeps, also over a connection that breaks: so do the suite's questions and the port's promises. */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { temporaryDirectory } from '../stories/support.ts'
import { createFakeHost } from './fake.ts'
import { type FaultPlan, faulty, insistent } from './faulty.ts'
import { HELPER_DIR } from './kubernetes-subject.ts'
import { conformance, readToEnd, sandboxSpec, turn } from './provider-conformance.ts'

t.setTimeout(300_000)
const host = (test: Test) =>
  createFakeHost({ dir: temporaryDirectory(test), helperFile: join(HELPER_DIR, 'hangar-agent') })
const PLAN: FaultPlan = { seed: 11, before: 0.15, after: 0.15, slow: 0.2, cut: 0.5 }

const plain = host(t)
await conformance(t, 'fake', { provider: plain.provider(), again: () => plain.provider(), isolated: false })

const bad = host(t)
const broken = faulty(bad.provider(), PLAN)
await conformance(t, 'fake, where calls break before and after they took effect', {
  provider: insistent(broken.provider),
  again: () => insistent(faulty(bad.provider(), { ...PLAN, seed: 12 }).provider),
  isolated: false,
})
t.ok(broken.faults() > 20, `${broken.faults()} calls broke`)

t.test('a sandbox that vanishes is lost with a reason, and the same id gives a fresh one', async (t) => {
  const there = host(t)
  const provider = there.provider()
  const spec = sandboxSpec()
  const ref = { provider: 'fake', id: spec.id }
  await provider.create(spec)
  await provider.start(ref, turn('1-1', 'echo up; sleep 300'))
  const first = await provider.read(ref, '1-1', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 100 })
  await there.vanish(spec.id)
  await t.rejects(readToEnd(provider, spec.id, '1-1', first.next), { code: 'sandbox_lost', message: /nobody knows/ })
  t.match(await provider.inspect(ref), { state: 'gone', reason: /nobody knows/ })
  await provider.create(spec)
  t.equal((await provider.read(ref, '1-1', { out: 0, err: 0 }, { waitMs: 0, maxBytes: 9 })).process.state, 'unknown')
  await provider.destroy(ref)
})
