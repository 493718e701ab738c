/** Many jobs at once, eight at a time: none is lost, doubled or stuck, and one requester's many do not keep another's few waiting. */
import t from 'tap'
import { hostedRepo, submit } from './jobs-support.ts'
import { startHangar } from './support.ts'

const COUNT = Number(process.env['HANGAR_JOBS'] ?? 24)

t.test(`${COUNT} jobs of two requesters`, { timeout: 900_000 }, async (t) => {
  const agent = `cat >/dev/null; echo "$HANGAR_JOB" >>"$HANGAR_IO/../ran"; echo "$HANGAR_JOB" >made.txt`
  const hangar = await startHangar(t, {
    agent,
    settings: { HANGAR_QUEUE_MAX_RUNNING: '8', HANGAR_QUEUE_MAX_RUNNING_PER_REPO: '8' },
  })
  await hostedRepo(t, hangar)
  const few = (await hangar.api('POST', '/api/tokens', { name: 'few', scopes: ['read', 'jobs'] })).body.token as string
  const ids = await Promise.all(
    Array.from(
      { length: COUNT - 2 },
      async (_, place) => (await submit(hangar, { instructions: `job ${place}` })).body.id as string,
    ),
  )
  const late: string[] = []
  for (const instructions of ['one', 'two']) {
    const body = { repo: 'acme/app', instructions }
    const headers = { Authorization: `Bearer ${few}` }
    late.push((await hangar.api('POST', '/api/jobs', body, headers)).body.id)
  }
  const waitFor = async (id: string) => {
    for (;;) {
      const { body } = await hangar.api('GET', `/api/jobs/${id}/wait?timeout_seconds=60`)
      if (body.done === true) return
    }
  }
  for (const id of [...ids, ...late]) await waitFor(id)
  const jobs = (await hangar.api('GET', '/api/jobs?limit=200')).body.items as {
    id: string
    state: string
    state_reason: string
    timeline: { state: string; at: string }[]
  }[]
  t.equal(jobs.length, COUNT)
  t.same(
    jobs.filter(({ state }) => state !== 'succeeded').map(({ id, state_reason }) => [id, state_reason]),
    [],
  )
  const startedAt = (id: string) =>
    jobs.find((job) => job.id === id)?.timeline.find(({ state }) => state === 'running')?.at
  const order = [...ids, ...late].sort((a, b) => (String(startedAt(a)) < String(startedAt(b)) ? -1 : 1))
  for (const id of late) t.ok(order.indexOf(id) < COUNT - 4, 'the few that came last did not run last')
  for (const id of [...ids, ...late]) {
    const { body } = await hangar.api('GET', `/api/sessions/${id}`)
    if (body.turns.length !== 1) t.fail(`${id} has ${body.turns.length} turns`)
  }
})
