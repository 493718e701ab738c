/** Jobs tell a receiver what happens to them: signed, in order, again where it was not taken, also over restarts. */
import { createHmac, randomBytes } from 'node:crypto'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { hostedRepo, SCRIPTED_AGENT, settled, submit } from './jobs-support.ts'
import { run, startHangar, temporaryDirectory, waitUntil } from './support.ts'

interface Received {
  readonly path: string | undefined
  readonly headers: IncomingHttpHeaders
  readonly text: string
  // biome-ignore lint/suspicious/noExplicitAny: looked into by tests only
  readonly body: any
}

/** Answers with what `answer` says; keeps what came. */
async function receiver(t: Test, answer: (count: number) => number) {
  const received: Received[] = []
  const server = createServer((req, res) => {
    let text = ''
    req.on('data', (chunk: Buffer) => {
      text += chunk.toString()
    })
    req.on('end', () => {
      received.push({ path: req.url, headers: req.headers, text, body: JSON.parse(text) })
      res.writeHead(answer(received.length)).end()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  return { received, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook` }
}

const key = randomBytes(32)
const secret = `whsec_${key.toString('base64')}`
const options = (secretIs: string | null) => ({
  agent: SCRIPTED_AGENT,
  settings: {
    HANGAR_CALLBACKS_ALLOW_PRIVATE_ADDRESSES: 'true',
    ...(secretIs === null ? {} : { CALLBACK_SECRET: secretIs }),
  },
  config: {
    environments: { default: { harness_options: { argv: ['sh', '-c', SCRIPTED_AGENT] } } },
    ...(secretIs === null ? {} : { callbacks: { secret: { from: 'env:CALLBACK_SECRET' } } }),
  },
})

t.test('a job tells of its start, its question and its end, in order, each once it is taken', async (t) => {
  // The first attempt fails, and is made again after five seconds.
  const { received, url } = await receiver(t, (count) => (count === 1 ? 500 : 204))
  let hangar = await startHangar(t, options(secret))
  await hostedRepo(t, hangar)
  const { body } = await submit(hangar, {
    instructions:
      '! if [ "$HANGAR_TURN" = 1 ]; then hangar-agent ask "Which?"; else echo x >x.txt; hangar-agent done "did it"; fi',
    callback_url: url,
  })
  t.equal((await settled(hangar, body.id)).state, 'needs_input')
  await waitUntil('the first attempt', async () => received.length >= 1)
  hangar = await hangar.restart()
  t.teardown(() => hangar.close())
  await waitUntil('the question', async () => received.some(({ body }) => body.type === 'job.needs_input'), 600)
  await hangar.api('POST', `/api/jobs/${body.id}/follow-up`, { message: 'this one' })
  const job = await settled(hangar, body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  await waitUntil('the end', async () => received.some(({ body }) => body.type === 'job.finished'), 600)
  t.same(
    received.map(({ headers }) => headers['webhook-id']),
    ['job.started_1', 'job.started_1', 'job.needs_input_1', 'job.finished_1'].map((end) => `evt_${body.id}_${end}`),
  )
  t.equal(received[0]?.text, received[1]?.text, 'the same again, byte for byte')
  for (const { headers, text } of received) {
    const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${text}`
    t.equal(headers['webhook-signature'], `v1,${createHmac('sha256', key).update(signed).digest('base64')}`)
  }
  t.match(received.at(-1)?.body.data, {
    job: { id: body.id, state: 'succeeded', repo: 'acme/app' },
    outcome: 'exited',
    summary: 'did it',
  })
  t.match(received[2]?.body.data, { needs_input: 'Which?' })
})

t.test('a receiver that is gone is asked no more; without a secret no callback is taken', async (t) => {
  const { received, url } = await receiver(t, () => 410)
  const hangar = await startHangar(t, options(secret))
  await hostedRepo(t, hangar)
  const { body } = await submit(hangar, { instructions: '! true', callback_url: url })
  await settled(hangar, body.id)
  await waitUntil('the first', async () => received.length === 1)
  await new Promise((resolve) => setTimeout(resolve, 500))
  t.ok(received.length <= 2, 'at most what was noted meanwhile')
  for (const wrong of ['ftp://example.com/', 'http://user:pw@127.0.0.1/', 'no url']) {
    const refused = await submit(hangar, { instructions: '! true', callback_url: wrong })
    t.equal(refused.status, 400, wrong)
  }
  const without = await startHangar(t, options(null))
  await hostedRepo(t, without)
  const refused = await submit(without, { instructions: '! true', callback_url: url })
  t.equal(refused.status, 400)
  t.match(refused.body.detail, 'callbacks.secret')
  t.equal((await without.api('GET', '/api/sessions')).body.items.length, 0)
})

t.test("a receiver's URL is a secret; what was told of a job at its end is not kept, and not told again", async (t) => {
  const { received, url } = await receiver(t, () => 204)
  const logged: string[] = []
  const keep = (fields: object, message?: string) => void logged.push(JSON.stringify(fields) + message)
  const begun = await startHangar(t, { ...options(secret), log: { info: keep, warn: keep, error: keep } })
  await hostedRepo(t, begun)
  const { body } = await submit(begun, {
    instructions: '! hangar-agent done "did it"',
    callback_url: `${url}/T0/sec-ret-path?key=sec-ret-query`,
  })
  await settled(begun, body.id)
  await waitUntil('the end', async () => received.some(({ body }) => body.type === 'job.finished'), 600)
  t.same(new Set(received.map(({ path }) => path)), new Set(['/hook/T0/sec-ret-path?key=sec-ret-query']))
  const outbox = () =>
    run('git', ['-C', join(begun.dataDir, 'hangar.git'), 'for-each-ref', 'refs/hangar/outbox']).then(({ out }) => out)
  await waitUntil('nothing is kept of what was told', async () => (await outbox()) === '')
  const checkout = temporaryDirectory(t)
  await begun.git(checkout, ['clone', '-q', '--mirror', `${begun.url}/git/acme/app.git`, '.'])
  const record = await begun.git(checkout, ['log', '-p', `refs/hangar/jobs/${body.id}`])
  t.match(record.out, `"callbackUrl": "${new URL(url).origin}"`)
  t.notMatch(record.out + logged.join(''), /sec-ret/)

  const hangar = await begun.restart()
  t.teardown(() => hangar.close())
  await hangar.api('POST', `/api/jobs/${body.id}/follow-up`, { message: 'again' })
  await settled(hangar, body.id)
  const ends = ['job.started_1', 'job.finished_1', 'job.started_2', 'job.finished_2']
  await waitUntil('the second end', async () => received.length >= ends.length, 600)
  t.same(
    received.map(({ headers }) => headers['webhook-id']),
    ends.map((end) => `evt_${body.id}_${end}`),
  )
})
