/** Callbacks against the published vectors, and the addresses that are never asked. */
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import type { JobRecord } from '../../domain/job.ts'
import type { JobId } from '../../domain/names.ts'
import { createSafeFetch } from '../../hooks/safe-fetch.ts'
import { afterAttempt, callbackHeaders } from '../../hooks/signed-callback.ts'
import { createCallbacks } from '../../hooks/sinks/callback.ts'
import { clock, gitIn, log, openStore } from '../gateway/store-fixture.ts'
import { temporaryDirectory, waitUntil } from '../stories/support.ts'

const vectors = (name: string) =>
  JSON.parse(
    readFileSync(fileURLToPath(new URL(`../../../test/fixtures/vectors/${name}.json`, import.meta.url)), 'utf8'),
  )
const keyOf = (secret: string) => Buffer.from(secret.replace('whsec_', ''), 'base64')

t.test('signatures are those of the specification, and of its own library', async (t) => {
  const { secret, id, timestamp, body, headers, spec_library_vector: library } = vectors('callback')
  t.strictSame(callbackHeaders({ id, body }, { secret: keyOf(secret), timestamp }), headers)
  t.match(
    callbackHeaders(
      { id: library.id, body: library.body },
      { secret: keyOf(library.secret), timestamp: library.timestamp },
    ),
    { 'webhook-signature': library.signature },
  )
})

t.test('what happens after an attempt', async (t) => {
  const { retry_after_seconds: schedule } = vectors('callback') as { retry_after_seconds: number[] }
  for (const status of [500, 302, null, 408])
    for (let attempts = 1; attempts < schedule.length; attempts++)
      t.same(afterAttempt(attempts, status, ''), { kind: 'again', afterMs: (schedule[attempts] ?? 0) * 1_000 })
  t.same(afterAttempt(schedule.length, 500, ''), { kind: 'parked' })
  t.same(afterAttempt(1, 204, ''), { kind: 'sent' })
  t.same(afterAttempt(1, 410, ''), { kind: 'gone' })
  t.same(afterAttempt(2, 404, ''), { kind: 'again', afterMs: 300_000 })
  t.same(afterAttempt(3, 404, ''), { kind: 'parked' }, 'a refusal is not asked for days')
  t.same(afterAttempt(1, 429, '7'), { kind: 'again', afterMs: 7_000 })
  t.same(afterAttempt(1, 429, '999999'), { kind: 'again', afterMs: 3_600_000 })
})

t.test('private addresses are never connected to, however they are written or resolved', async (t) => {
  const { blocked, names } = vectors('ssrf') as { blocked: string[]; names: Record<string, (string | string[])[]> }
  const asked: string[] = []
  let round = 0
  const fetch = createSafeFetch({
    allowPrivateAddresses: false,
    resolve: async (name) => {
      asked.push(name)
      const found = names[name] ?? []
      // One that is another address each time it is asked for.
      const one = Array.isArray(found[0])
        ? (found[Math.min(round++, found.length - 1)] as string[])
        : (found as string[])
      return one
    },
  })
  const post = (url: string) => fetch.post(url, { headers: {}, body: '{}' })
  for (const url of [...blocked, ...blocked.map((url) => url.replace(/^http:/, 'https:'))])
    await t.rejects(post(url), /is not asked|has no address/, url)
  await t.rejects(post('https://evil.test/'), /127\.0\.0\.1, which is no public address/)
  await t.rejects(post('https://mixed.test/'), /10\.0\.0\.5/, 'one bad address is enough')
  t.throws(() => fetch.check('https://localhost/'), { code: 'invalid_request' })
  t.throws(() => fetch.check('http://example.com/'), /https/)
  t.doesNotThrow(() => fetch.check('https://example.com/hook?x=1'))
  for (const secret of [
    'https://evil.test/sec-ret?key=sec-ret',
    'http://example.com/sec-ret',
    'sec-ret',
    'https://u:sec-ret@x.test/',
  ])
    await t.rejects(
      post(secret),
      { message: /^(?!.*sec-ret).*is not asked/s },
      'what is refused is named without its path',
    )
  round = 1
  await t.rejects(post('https://rebind.test/'), /127\.0\.0\.1/, 'the address that is checked is the one that is used')
  t.same(asked.filter((name) => name === 'rebind.test').length, 1, 'a name is resolved once')
})

t.test('a redirect is an answer, and is not followed; an endless answer is cut', async (t) => {
  let seen = 0
  const server = createServer((req, res) => {
    seen++
    if (req.url === '/moved') return void res.writeHead(302, { location: '/elsewhere' }).end()
    res.writeHead(200)
    const timer = setInterval(() => res.write(Buffer.alloc(65_536)), 1)
    res.on('close', () => clearInterval(timer))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const fetch = createSafeFetch({ allowPrivateAddresses: true })
  t.match(await fetch.post(`${url}/moved`, { headers: {}, body: '{}' }), { status: 302 })
  t.equal(seen, 1)
  t.match(await fetch.post(`${url}/flood`, { headers: {}, body: '{}' }), { status: 200 })
})

t.test('the outbox of a job that is removed goes at once', async (t) => {
  const { repositories, ledger } = await openStore(temporaryDirectory(t))
  const id = 'job-aaaaaaaaaa' as JobId
  const timeline = [{ at: 1, state: 'running', text: '' }]
  const job = { id, state: 'running', callbackUrl: 'https://x.test', timeline } as unknown as JobRecord
  let present: JobRecord | null = job
  let removed = (_id: JobId) => {}
  const callbacks = createCallbacks({
    jobs: {
      all: async () => [job],
      find: async () => present,
      annotate: async () => {},
      onAnyMove: () => () => {},
      onRemove: (listener) => {
        removed = listener
        return () => {}
      },
    },
    server: repositories.server,
    ledger,
    open: async (sealed) => sealed,
    fetch: { check: () => {}, post: async () => ({ status: 500, headers: {} }) },
    secret: Buffer.alloc(32),
    complete: true,
    view: async () => ({}),
    clock,
    log,
  })
  t.teardown(async () => {
    await callbacks.close()
    await repositories.close()
  })
  const isThere = async () => gitIn(repositories.server.dir, ['for-each-ref', 'refs/hangar/outbox']) !== ''
  await callbacks.start()
  await waitUntil('it is noted', isThere)
  present = null
  removed(id)
  await waitUntil('it is gone', async () => !(await isThere()))
})
