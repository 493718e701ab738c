/**
 * The same lives in pods, over a cluster where everything breaks: connections are cut or say nothing, watches are reset, expire and tell twice or
 * late, requests are refused or done without an answer, all is slow. And lives whose pod is evicted, deleted or lost with its node behind the
 * server's back: the turn says so, is recorded once, and the next one works. A short form here, `npm run test:kill` has all.
 */
import { randomBytes } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { seeded } from '../orchestrator/faulty.ts'
import { processesNaming } from '../orchestrator/provider-conformance.ts'
import { type Faults, type Peer, startPeer } from '../peers/kubernetes/peer.ts'
import { whyNoPods } from '../peers/kubernetes/runtime.ts'
import { shell, waitUntil } from '../stories/support.ts'
import { AGENT, live, openLife, type Place, prepared } from './life.ts'

const POINTS = Number(process.env['HANGAR_KILLS'] ?? 2)
const KILLS = Math.ceil(POINTS / 2)
const LOSSES = Math.ceil(POINTS / 2)
/** Operations of a life, as `HANGAR_KILL_AT=0` counts them. */
const OPERATIONS = 580
const SEED = Number(process.env['HANGAR_KILL_SEED'] ?? randomBytes(3).readUIntBE(0, 3))
const missing = whyNoPods()
t.setTimeout(5_400_000)

/** The faults of one life, the same for a seed as far as its requests come in the same order. */
function faultPlan(seed: number): Partial<Faults> {
  const random = seeded(seed)
  const share = (part: number) => () => random() < part
  return {
    cutAfter: () => (random() < 0.25 ? Math.floor(random() * 60_000) : null),
    withoutStatus: share(0.1),
    refuse: () => (random() < 0.07 ? (random() < 0.3 ? 429 : 500) : null),
    unanswered: share(0.05),
    slowMs: () => (random() < 0.1 ? Math.floor(random() * 300) : 0),
    watchResetMs: 700,
    expired: share(0.2),
    duplicated: share(0.3),
    reordered: share(0.2),
  }
}

interface ClusterPlace extends Place {
  peer(): Peer
}

function cluster(faults: Partial<Faults>): ClusterPlace {
  let peer: Peer | null = null
  const there = () => {
    if (peer === null) throw new Error('no life is open')
    return peer
  }
  return {
    peer: there,
    config: (dir, port) => ({
      kubernetes: { kubeconfig: join(dir, 'kubeconfig'), gateway_url: `http://127.0.0.1:${port}` },
      environments: {
        default: {
          provider: 'kubernetes',
          image: 'example.test/tools:1',
          egress: [],
          harness_options: { argv: ['sh', '-c', AGENT] },
        },
      },
    }),
    open: async (t: Test, dir) => {
      mkdirSync(join(dir, 'pods'))
      const started = await startPeer({ dir: join(dir, 'pods') })
      peer = started
      Object.assign(started.faults, faults)
      t.teardown(() => started.close())
      writeFileSync(join(dir, 'kubeconfig'), JSON.stringify(started.kubeconfig('hangar-sandboxes')))
    },
    left: async (dir) => {
      const pods = there()
        .pods()
        .map(({ metadata }) => metadata.name)
      for (let tries = 0; tries < 100 && processesNaming(`${dir}/pods`).length > 0; tries++) await sleep(30)
      return [...pods, ...processesNaming(`${dir}/pods`)].join(' ')
    },
  }
}

t.test(`killed at ${KILLS} points of a life in pods`, { skip: missing, timeout: 5_400_000 }, async (t) => {
  t.comment(`HANGAR_KILL_SEED=${SEED}`)
  const from = await prepared(t)
  const random = seeded(SEED)
  let kills = 0
  for (let life = 0; life < KILLS; life++) {
    const at = 1 + Math.floor(((life + random()) * OPERATIONS) / KILLS)
    const { killed } = await live(t, {
      from,
      at,
      place: cluster(faultPlan(SEED + life)),
      name: `in pods, seed ${SEED}`,
    })
    if (killed) kills++
  }
  t.comment(`${kills} of ${KILLS} lives were cut`)
  t.ok(kills >= KILLS / 2, `${kills} kills`)
})

const LOSS = [
  ['evicted', (peer: Peer, name: string) => peer.evict(name), /evicted: The node was low on resource: memory/],
  ['deleted', (peer: Peer, name: string) => peer.deletePod(name), /its pod was deleted/],
  ['node lost', async (peer: Peer, name: string) => peer.loseNode(name), /node node-1 of its pod is lost/],
] as const

t.test(`${LOSSES} pods lost behind the server's back`, { skip: missing, timeout: 5_400_000 }, async (t) => {
  const from = await prepared(t)
  const random = seeded(SEED)
  for (let life = 0; life < LOSSES; life++) {
    const [how, lose, reason] = LOSS[(SEED + life) % LOSS.length] as (typeof LOSS)[number]
    const afterMs = Math.floor(random() * 2_500)
    const killed = random() < 0.5
    const what = `${how} ${afterMs} ms after its start${killed ? ', the server killed as well' : ''} (seed ${SEED}): `
    const place = cluster(faultPlan(SEED + 1_000 + life))
    const { call, ended, kill, repo, close } = await openLife(t, { from, at: -1, place })
    const made = await call('POST', '/api/sessions', { name: 's', repo: 'acme/app', message: 'slow' })
    t.equal(made.status, 201, what + JSON.stringify(made.body).slice(0, 300))
    const running = () =>
      place
        .peer()
        .pods()
        .find(({ status }) => status?.phase === 'Running')
    while (running() === undefined) await sleep(20)
    await sleep(afterMs)
    const pod = running()
    if (pod !== undefined) await lose(place.peer(), pod.metadata.name)
    if (killed) await kill()
    await ended(1)
    const [lost] = (await call('GET', '/api/sessions/s')).body.turns
    if (lost.outcome !== 'exited')
      t.match(lost, { outcome: 'failed', error: { code: 'sandbox_lost', message: reason } }, `${what}why it failed`)
    const next = await call('POST', '/api/sessions/s/turns', { message: 'slow' })
    t.equal(next.status, 202, what + JSON.stringify(next.body).slice(0, 300))
    await ended(2)
    const { turns } = (await call('GET', '/api/sessions/s')).body
    t.match(turns[1], { outcome: 'exited', error: null, summary: 'slow' }, `${what}the next turn`)
    const { items } = (await call('GET', '/api/sessions/s/events?limit=1000')).body
    for (const turn of turns) {
      const ticks = items
        .filter((event: { turn: number; text?: string }) => event.turn === turn.turn && event.text?.startsWith('tick '))
        .map((event: { text: string }) => event.text)
      const whole = Array.from({ length: 15 }, (_, tick) => `tick ${tick}`)
      t.strictSame(ticks, turn.outcome === 'exited' ? whole : whole.slice(0, ticks.length), `${what}each tick once`)
    }
    const log = 'git -c safe.directory=* log --first-parent --format=%s refs/hangar/sessions/s/log'
    const record = await shell(repo, log)
    for (const turn of [1, 2])
      t.equal(record.match(new RegExp(`^turn ${turn} ended`, 'gm'))?.length, 1, `${what}one end of turn ${turn}`)
    t.equal((await call('POST', '/api/sessions/s/close', {})).status, 200, `${what}close`)
    t.equal(await shell(repo, 'git -c safe.directory=* fsck --no-dangling --no-progress 2>&1 || true'), '', what)
    await close()
  }
})

t.test(
  'a node that says nothing any more: the turn tells of it, and goes on where it was',
  { skip: missing, timeout: 300_000 },
  async (t) => {
    const from = await prepared(t)
    const place = cluster({})
    const { call, ended, kill, close } = await openLife(t, { from, at: -1, place })
    await call('POST', '/api/sessions', { name: 's', repo: 'acme/app', message: 'slow' })
    const ticks = async () => {
      const { items } = (await call('GET', '/api/sessions/s/events?limit=1000')).body
      return items
        .map((event: { text?: string }) => event.text ?? '')
        .filter((text: string) => text.startsWith('tick '))
    }
    const turn = async () => (await call('GET', '/api/sessions/s')).body.turns[0]
    await waitUntil('the agent works', async () => (await ticks()).length > 0)
    const [pod] = place.peer().pods()
    place.peer().unreadyNode(pod?.metadata.name ?? '')
    const still =
      /the sandbox stands still: nothing has been heard from its pod for \d+ s; its node node-1 is not ready/
    const isTold = async () => (await turn()).warnings.some((warning: string) => still.test(warning))
    await waitUntil('the turn tells of it', isTold, 1_200)
    await kill()
    t.match(await turn(), { outcome: null, error: null }, 'silence is no end')
    place.peer().readyNode(pod?.metadata.name ?? '')
    await ended(1)
    t.match(await turn(), { outcome: 'exited', error: null, summary: 'slow' })
    t.strictSame(
      await ticks(),
      Array.from({ length: 15 }, (_, tick) => `tick ${tick}`),
      'each tick once',
    )
    t.equal((await call('POST', '/api/sessions/s/close', {})).status, 200)
    await close()
  },
)
