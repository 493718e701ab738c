/** The host's clock is set while a turn runs: it ends neither early nor late, and what it did is kept. */
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { sandboxCheckout, startHangar, waitUntil } from './support.ts'

const DAY_MS = 24 * 3_600_000
const AGENT = 'touch begun; until [ -e go ]; do sleep 0.02; done; rm go begun; echo work >work.txt; echo done'

for (const [way, days] of [
  ['forward', 400],
  ['back', -400],
] as const)
  t.test(`a clock that is set ${way} during a turn`, async (t) => {
    let offset = 0
    const clock = { now: () => Date.now() + offset }
    const hangar = await startHangar(t, { agent: AGENT, server: { clock } })
    const session = async () => (await hangar.api('GET', '/api/sessions/late')).body
    await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
    await hangar.api('POST', '/api/sessions', { name: 'late', repo: 'acme/app', message: 'x', timeout_minutes: 1 })
    await waitUntil('there is a sandbox', async () => (await session()).sandbox !== null)
    const checkout = sandboxCheckout(hangar, (await session()).sandbox.id)
    await waitUntil('the agent runs', () => existsSync(join(checkout, 'begun')))
    offset = days * DAY_MS
    // Several looks of the server at its run.
    await new Promise((resolve) => setTimeout(resolve, 1_500))
    t.match((await session()).state, 'running')
    writeFileSync(join(checkout, 'go'), '')
    await hangar.api('GET', '/api/sessions/late/wait?timeout_seconds=60')
    const { turns, checkpoint } = await session()
    t.match(turns[0], { outcome: 'exited', summary: 'done', warnings: [] })
    t.match(checkpoint, { turn: 1 }, 'the sandbox could still push its checkpoint')
    t.match((await hangar.api('GET', '/api/sessions/late/patch')).bytes.toString(), /work\.txt/)
    const again = await hangar.restart()
    t.teardown(() => again.close())
    t.match(await session(), { state: 'idle' }, 'and a restart finds it as it was')
  })
