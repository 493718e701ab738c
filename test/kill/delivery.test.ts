/**
 * A delivery whose server is killed (-9) at one of its steps after another, each followed by a restart: upstream gets each commit once, what was
 * noted on the way is cleared, and the next delivery goes on from there. `npm run test:kill` kills at every step; here at a few.
 */
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { GithubPeer } from '../peers/github/peer.ts'
import { tipOf } from '../stories/mirrored.ts'
import { freePort } from '../stories/served.ts'
import { api, serverEnvironment, shell, temporaryDirectory, waitUntil } from '../stories/support.ts'
import { serve } from './life.ts'

const STRIDE = process.env['HANGAR_KILLS'] === undefined ? 4 : 1
const BRANCH = 'refs/heads/hangar/s'

t.test(`killed at every ${STRIDE}. step of a delivery`, { timeout: 1_800_000 }, async (t) => {
  const dir = temporaryDirectory(t)
  const peer = await GithubPeer.start(t, join(dir, 'github'))
  const upstream = peer.addRepo('acme', 'app')
  await shell(upstream.dir, 'git config core.logAllRefUpdates always')
  await shell(
    dir,
    `git init -q -b main seed && cd seed && git commit -q --allow-empty -m base && git push -q '${upstream.dir}' main`,
  )
  const when = join(dir, 'count-now')
  const agent = 'echo one >a.txt; git add .; git commit -qm one'
  const env = serverEnvironment(dir, {
    agent,
    settings: {
      HANGAR_LISTEN: `127.0.0.1:${await freePort()}`,
      HANGAR_UPSTREAM_ALLOW_PRIVATE_ADDRESSES: 'true',
      HANGAR_CREDENTIAL_PAT: peer.tokens.person(),
      HANGAR_KILL_WHEN: when,
    },
    config: {
      environments: { default: { harness_options: { argv: ['sh', join(dir, 'agent.sh')] }, forward: 'on_push' } },
      repos: { 'acme/app': { upstream: upstream.url(), credential: 'env:HANGAR_CREDENTIAL_PAT' } },
    },
  })
  const store = join(dir, 'data', 'repos', 'acme', 'app.git')
  let step = STRIDE > 1 ? 1 + Math.floor(Math.random() * STRIDE) : 1
  let server = await serve(dir, env, step)
  t.teardown(() => void server.child.kill('SIGKILL'))
  const call = (method: string, path: string, body?: unknown) => api(server.url, server.token, { method, path, body })
  const arrived = (oid: string) =>
    waitUntil(`${oid} is upstream, and known to be`, async () => {
      const noted = await shell(
        store,
        `git -c safe.directory=* for-each-ref refs/upstream/delivering refs/upstream/heads/hangar`,
      )
      return (await tipOf(upstream.dir, BRANCH)) === oid && noted === `${oid} commit\trefs/upstream/heads/hangar/s\n`
    })
  await call('POST', '/api/sessions', { name: 's', repo: 'acme/app', message: 'go' })
  await call('GET', '/api/sessions/s/wait?timeout_seconds=120')
  const commits = [await tipOf(store, BRANCH)]
  await arrived(commits[0] ?? '')

  let kills = 0
  for (let isOver = false; !isOver; step += STRIDE) {
    // As if its sandbox had pushed, and amended what it pushed before.
    const message = `work ${step}`
    const script = `git -c safe.directory=* update-ref ${BRANCH} $(git -c safe.directory=* commit-tree -p main -m '${message}' '${BRANCH}^{tree}')`
    await shell(store, script)
    commits.push(await tipOf(store, BRANCH))
    writeFileSync(when, '')
    const answer = await call('POST', '/api/sessions/s/deliver', {}).catch(() => null)
    // Its last step is the answer itself, after which it may end as well.
    await (answer === null ? server.ended : Promise.race([server.ended, sleep(500)]))
    rmSync(when)
    isOver = server.child.exitCode === null && server.child.signalCode === null
    if (!isOver) {
      kills++
      server = await serve(dir, env, step + STRIDE)
    }
    await arrived(commits.at(-1) ?? '')
  }
  t.comment(`${kills} kills; a delivery has about ${step - STRIDE} steps`)
  t.ok(kills > (STRIDE === 1 ? 8 : 1), `${kills} kills`)
  const moves = (await shell(upstream.dir, `cut -d ' ' -f 1,2 logs/${BRANCH}`)).trim().split('\n')
  const wanted = commits.map((oid, at) => `${commits[at - 1] ?? '0'.repeat(40)} ${oid}`)
  t.strictSame(moves, wanted, 'upstream got each commit once, each from the one before')
  t.match((await call('POST', '/api/sessions/s/deliver', {})).body, { status: 'unchanged', commit: commits.at(-1) })
  const { items } = (await call('GET', '/api/sessions/s/events?limit=1000')).body as {
    items: { state?: string; text?: string }[]
  }
  const told = items
    .filter(({ state }) => state === 'delivered')
    .map(({ text }) => /[0-9a-f]{40}/.exec(text ?? '')?.[0])
  t.equal(new Set(told).size, told.length, 'none was told twice')
  t.same(
    items.filter(({ state }) => state === 'delivery_failed'),
    [],
  )
  t.equal(await shell(store, 'git -c safe.directory=* fsck --no-dangling --no-progress 2>&1'), '')
  t.notOk(existsSync(when))
  server.child.kill('SIGTERM')
  await server.ended
  t.strictSame(peer.violations, [])
})
