/**
 * A job of three attempts with the server killed (-9) at one point after another: it is there once, each attempt ran once (the failing one
 * twice, since it is given back), and the best one that passes is delivered. In full by `npm run test:kill`; here a few.
 */
import { randomBytes } from 'node:crypto'
import t, { type Test } from 'tap'
import { shell } from '../stories/support.ts'
import { type Life, local, openLife, prepared } from './life.ts'

const POINTS = Math.max(3, Math.floor(Number(process.env['HANGAR_KILLS'] ?? 0) / 4))

async function live(t: Test, at: { readonly from: { dir: string }; readonly at: number }): Promise<Life> {
  const { call, repo, close } = await openLife(t, { ...at, place: local })
  const what = `kill at ${at.at}: `
  const body = {
    repo: 'acme/app',
    instructions: 'three ways',
    strategy: 'best_of_n',
    n: 3,
    verify: 'grep -q good x.txt',
    idempotency_key: 'one',
  }
  const made = await call('POST', '/api/jobs', body)
  t.equal(made.status, 201, `${what}${JSON.stringify(made.body).slice(0, 300)}`)
  const id = made.body.id as string
  for (let round = 0; round < 20; round++)
    if ((await call('GET', `/api/jobs/${id}/wait?timeout_seconds=15`)).body.done === true) break
  const job = (await call('GET', `/api/jobs/${id}`)).body
  t.equal(job.state, 'succeeded', `${what}${JSON.stringify(job.timeline)}`)
  t.equal(job.session, `${id}-3`, `${what}the best is chosen`)
  t.match(
    job.attempts,
    [
      { attempt: 1, rank: 3, verification: { passed: false } },
      { attempt: 2, rank: 2, verification: { passed: true } },
      { attempt: 3, rank: 1, verification: { passed: true } },
    ],
    `${what}all three are listed`,
  )
  for (const [attempt, runs] of [
    [1, 2],
    [2, 1],
    [3, 1],
  ]) {
    const { turns } = (await call('GET', `/api/sessions/${id}-${attempt}`)).body
    t.equal(turns.length, runs, `${what}turns of attempt ${attempt}`)
    t.equal(turns.at(-1).summary, `attempt ${attempt}, run ${runs}`, `${what}no agent ran twice`)
  }
  t.equal((await call('GET', '/api/jobs')).body.items.length, 1, `${what}one job`)
  t.equal((await call('GET', '/api/sessions')).body.items.length, 3, `${what}three sessions`)
  const git = (command: string) => shell(repo, `git -c safe.directory='*' ${command}`).then((out) => out.trim())
  t.equal(
    await git(`rev-parse refs/heads/hangar/${id}`),
    await git(`rev-parse refs/heads/hangar/${id}-3`),
    `${what}it is delivered`,
  )
  t.equal(job.delivery.commit, await git(`rev-parse refs/heads/hangar/${id}`))
  const record = await git(`log --first-parent --format=%s refs/hangar/jobs/${id}`)
  for (const state of ['queued', 'delivering', 'succeeded'])
    t.equal(record.match(new RegExp(`^${state}:`, 'gm'))?.length, 1, `${what}${state} once: ${record}`)
  t.equal(await git('fsck --no-dangling --no-progress 2>&1 || true'), '', `${what}fsck`)
  return close()
}

t.test(`a job of three attempts, killed at ${POINTS} points`, { timeout: 3_600_000 }, async (t) => {
  const from = await prepared(t)
  const { operations } = await live(t, { from, at: 0 })
  t.comment(`such a job has about ${operations} operations`)
  const random = randomBytes(4).readUInt32BE() % operations
  let kills = 0
  for (let place = 0; place < POINTS; place++) {
    const point = 1 + ((random + Math.floor((place * operations) / POINTS)) % operations)
    if ((await live(t, { from, at: point })).killed) kills++
  }
  t.ok(kills > POINTS / 2, `${kills} kills`)
})
