/**
 * A fork whose server is killed (-9) at one of its steps after another, each followed by a restart: all children are there or none, and the
 * request made again with its key gives the same ones. `npm run test:kill` kills at every step; here at a few.
 */
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { api, serverEnvironment } from '../stories/support.ts'
import { AGENT, prepared, serve } from './life.ts'

const STRIDE = process.env['HANGAR_KILLS'] === undefined ? 6 : 1
const N = 3

t.test(`killed at every ${STRIDE}. step of a fork`, { timeout: 1_800_000 }, async (t) => {
  const { dir, env: first } = await prepared(t)
  const when = join(dir, 'count-now')
  const listen = first['HANGAR_LISTEN'] ?? ''
  const env = serverEnvironment(dir, { agent: AGENT, settings: { HANGAR_LISTEN: listen, HANGAR_KILL_WHEN: when } })
  let step = STRIDE > 1 ? 1 + Math.floor(Math.random() * STRIDE) : 1
  let server = await serve(dir, env, step)
  t.teardown(() => void server.child.kill('SIGKILL'))
  const call = (method: string, path: string, body?: unknown, headers = {}) =>
    api(server.url, server.token, { method, path, body, headers })
  await call('POST', '/api/sessions', { name: 'parent', repo: 'acme/app', message: 'slow' })
  await call('GET', '/api/sessions/parent/wait?timeout_seconds=60')
  const children = async () => {
    const { items } = (await call('GET', '/api/sessions?limit=200')).body
    return items.filter(({ parent }: { parent: string | null }) => parent === 'parent').length
  }
  const namesOf = (answer: { body: { items: { name: string }[] } }) => answer.body.items.map(({ name }) => name)

  let kills = 0
  for (let made = 0; ; made += N) {
    const what = `kill at ${step}: `
    const body = { n: N, ...(step % 4 < 2 ? {} : { names: ['a', 'b', 'c'].map((letter) => `${letter}${step}`) }) }
    const fork = () => call('POST', '/api/sessions/parent/fork', body, { 'Idempotency-Key': `step ${step}` })
    writeFileSync(when, '')
    const answer = await fork().catch(() => null)
    rmSync(when, { force: true })
    // A kill right after the answer takes a moment.
    await Promise.race([server.ended, sleep(300)])
    const killed = server.child.signalCode !== null
    if (killed) {
      kills++
      server = await serve(dir, env, step + STRIDE)
    }
    const there = (await children()) - made
    t.ok(there === 0 || there === N, `${what}${there} of ${N} children are there`)
    if (answer !== null) t.equal(there, N, `${what}it was answered`)
    const again = await fork()
    t.equal(again.status, 201, `${what}${JSON.stringify(again.body).slice(0, 300)}`)
    t.equal((await children()) - made, N, `${what}once`)
    if (answer?.status === 201) t.strictSame(namesOf(again), namesOf(answer), `${what}the same ones`)
    t.equal((await call('GET', `/api/sessions/${namesOf(again)[2]}/patch`)).status, 200, `${what}with their work`)
    if (!killed) break
    step += STRIDE
  }
  t.ok(kills > 2, `${kills} kills`)
})
