/** /mcp under the protocol's corners: who gets in, sessions and restarts, cancelled and dropped requests, bounds. */
import { request as httpRequest } from 'node:http'
import { WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js'
import t, { type Test } from 'tap'
import { startHangar, waitUntil } from '../stories/support.ts'
import { connect, HEADERS, initialize, OBEDIENT, send, tokenFor, withRepo } from './mcp-client.ts'

const call = (id: string | number, name: string, args: unknown, meta?: unknown) => ({
  jsonrpc: '2.0',
  id,
  method: 'tools/call',
  params: { name, arguments: args, ...(meta === undefined ? {} : { _meta: meta }) },
})
const cancel = (requestId: string | number) => ({
  jsonrpc: '2.0',
  method: 'notifications/cancelled',
  params: { requestId, reason: 'enough' },
})

t.test('who gets in', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT, settings: { HANGAR_PUBLIC_URL: 'https://hangar.example' } })
  const url = `${hangar.url}/mcp`
  const bearer = { Authorization: `Bearer ${hangar.token}` }
  const { port } = new URL(hangar.url)

  await t.test('without a live token: 401, and no way to an authorization server that is not there', async (t) => {
    for (const headers of [{}, { Authorization: 'Bearer hgt_no' }, { Authorization: 'Basic eDp5' }]) {
      const refused = await send(url, { body: initialize(), headers })
      t.equal(refused.status, 401)
      t.match(refused.headers.get('www-authenticate'), /^Bearer realm="hangar"/)
      t.notMatch(refused.headers.get('www-authenticate'), /resource_metadata/)
      t.match(refused.messages, [{ jsonrpc: '2.0', id: null, error: { code: -32000, message: /hgt_/ } }])
    }
    for (const path of ['oauth-protected-resource', 'oauth-protected-resource/mcp', 'oauth-authorization-server'])
      t.equal((await fetch(`${hangar.url}/.well-known/${path}`)).status, 404, path)
    t.equal(
      (await send(url, { body: initialize(), headers: { Authorization: `bearer  ${hangar.token}` } })).status,
      200,
    )
  })

  await t.test('a web page of another origin does not reach it, whatever name it has', async (t) => {
    const table: [string, Record<string, string>, number][] = [
      ['no origin', {}, 200],
      ['its own', { Origin: `http://127.0.0.1:${port}` }, 200],
      ['its own by name', { Origin: `http://localhost:${port}` }, 200],
      ['its public URL', { Origin: 'https://hangar.example' }, 200],
      ['another port', { Origin: 'http://localhost:1' }, 403],
      ['another site', { Origin: 'https://evil.example' }, 403],
      ['the public name without TLS', { Origin: 'http://hangar.example' }, 403],
      ['a name that begins alike', { Origin: 'https://hangar.example.evil.example' }, 403],
      ['null', { Origin: 'null' }, 403],
      ['no origin at all', { Origin: 'x' }, 403],
      ['a rebound name', { Host: `evil.example:${port}` }, 403],
      ['a rebound name and its origin', { Host: `evil.example:${port}`, Origin: `http://evil.example:${port}` }, 403],
      ['localhost', { Host: `localhost:${port}` }, 200],
      ['IPv6', { Host: `[::1]:${port}` }, 200],
      ['the public name, by a proxy', { Host: 'hangar.example' }, 200],
      ['userinfo', { Host: `localhost@evil.example:${port}` }, 403],
    ]
    for (const [what, headers, status] of table) t.equal(await statusWith(url, { ...bearer, ...headers }), status, what)
  })

  await t.test('a method, body or session that is none gets its own status', async (t) => {
    const client = await connect(hangar, hangar.token)
    const own = { ...bearer, 'Mcp-Session-Id': client.session }
    for (const method of ['PUT', 'PATCH']) {
      const refused = await send(url, { method, body: {}, headers: bearer })
      t.equal(refused.status, 405, method)
      t.equal(refused.headers.get('allow'), 'GET, POST, DELETE')
    }
    t.equal((await send(url, { method: 'GET', headers: bearer })).status, 400, 'GET without a session is never 404')
    t.match(await send(url, { body: { jsonrpc: '2.0', id: 1, method: 'tools/list' }, headers: bearer }), {
      status: 400,
    })
    for (const headers of [{ 'Mcp-Session-Id': 'nobody' }, { 'Mcp-Session-Id': '../x' }])
      t.match(
        await send(url, { body: { jsonrpc: '2.0', id: 1, method: 'ping' }, headers: { ...bearer, ...headers } }),
        {
          status: 404,
          messages: [{ error: { code: -32001 } }],
        },
      )
    t.match(await send(url, { body: '{', headers: own }), { status: 400, messages: [{ error: { code: -32700 } }] })
    t.match(await send(url, { body: '', headers: own }), { status: 400, messages: [{ error: { code: -32700 } }] })
    t.match(await send(url, { body: '3', headers: own }), { status: 400 })
    t.match(await client.post({ jsonrpc: '1.0', id: 1, method: 'ping' }), { status: 400 })
    for (const batch of [[], [{ jsonrpc: '2.0', id: 1, method: 'ping' }], [initialize()]])
      t.match(await client.post(batch), { status: 400, messages: [{ error: { code: -32600 }, id: null }] }, 'a batch')
    t.equal((await client.post(initialize())).status, 400, 'a second initialize')
    t.equal((await client.post(call(1, 'x', {}), { Accept: 'application/json' })).status, 406)
    t.equal((await client.post('x', { 'Content-Type': 'text/plain' })).status, 415)
    t.equal(
      (await client.post({ jsonrpc: '2.0', id: 1, method: 'ping' }, { 'Mcp-Protocol-Version': '1999-01-01' })).status,
      400,
    )
    t.match(await client.request('no/such'), { messages: [{ error: { code: -32601 } }] })
    t.match(await client.request('tools/call', { name: 'no_such' }), {
      messages: [{ error: { code: -32602, message: /no_such/ } }],
    })
    t.match((await client.request('logging/setLevel', { level: 'debug' })).messages, [{ result: {} }])
    t.equal((await send(url, { method: 'DELETE', headers: own })).status, 200)
    t.equal((await client.request('ping')).status, 404, 'it has ended')
    t.equal((await fetch(`${hangar.url}/mcp/x`)).status, 401, 'nothing is below it')
  })

  await t.test('an initialize that is refused leaves no session', async (t) => {
    const { sessions } = hangar.server.activity().mcp
    t.equal((await send(url, { body: initialize(), headers: { ...bearer, Accept: 'application/json' } })).status, 406)
    t.equal(hangar.server.activity().mcp.sessions, sessions)
  })

  await t.test('large bodies of one token take turns, small ones pass', async (t) => {
    const client = await connect(hangar, hangar.token)
    const { secret } = await tokenFor(hangar, ['read'])
    const other = await connect(hangar, secret)
    const large = { jsonrpc: '2.0', id: 1, method: 'ping', params: { _meta: { pad: 'x'.repeat(1_500_000) } } }
    const halves = await Promise.all([0, 1].map(() => unfinished(url, bearer, JSON.stringify(large))))
    let answered = false
    const third = client.post(large).then((answer) => {
      answered = true
      return answer
    })
    t.equal((await client.request('ping')).status, 200, 'a small one')
    t.equal((await other.post(large)).status, 200, "another token's")
    t.equal(answered, false)
    for (const half of halves) half.destroy()
    t.equal((await third).status, 200)
    t.match(
      await statusWith(url, { ...bearer, 'Content-Length': String(200_000_000) }, 'x'),
      413,
      'over the cap, unread',
    )
  })

  await t.test('a session is found by its own token only', async (t) => {
    const { secret } = await tokenFor(hangar, ['admin'])
    const client = await connect(hangar, hangar.token)
    const stranger = await connect(hangar, secret, client.session)
    t.match(await stranger.request('ping'), { status: 404, messages: [{ error: { code: -32001 } }] })
    t.equal((await client.request('ping')).status, 200)
  })

  await t.test('an unknown version of the protocol is answered with one that hangar speaks', async (t) => {
    for (const [asked, given] of [
      ['2025-06-18', '2025-06-18'],
      ['2024-11-05', '2024-11-05'],
      ['2099-01-01', '2025-11-25'],
    ]) {
      const message = initialize()
      message.params.protocolVersion = asked
      const { messages } = await send(url, { body: message, headers: bearer })
      t.match(messages[0].result, {
        protocolVersion: given,
        serverInfo: { name: 'hangar' },
        instructions: /new_session/,
      })
    }
  })
})

t.test('requests that end before their time', async (t) => {
  const transports = knownTransports(t)
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    server: { mcp: { keepAliveMs: 50, beatMs: 200, lineMs: 50 } },
  })
  await withRepo(hangar)
  await hangar.api('POST', '/api/sessions', { name: 'long', repo: 'acme/app', message: 'echo started; sleep 600' })
  t.teardown(() => hangar.api('POST', '/api/sessions/long/close', {}).catch(() => {}))
  await waitUntil(
    'the agent runs',
    async () => (await hangar.api('GET', '/api/sessions/long')).body.turns[0].state === 'running',
  )
  const idle = () => {
    const { mcp, waiters } = hangar.server.activity()
    return mcp.requests === 0 && waiters === 0
  }
  const wait = { ref: 'long', timeout_seconds: 600 }

  await t.test('a cancelled wait ends its stream and is forgotten, also request 0; the turn goes on', async (t) => {
    const client = await connect(hangar, hangar.token)
    for (const id of [20, 0, 'text']) {
      const stream = await client.open(call(id, 'wait_for_turn', wait, { progressToken: 'tok' }))
      await waitUntil('progress comes', () => stream.messages().length > 0)
      t.equal((await client.post(cancel(id))).status, 202)
      await stream.ended
      t.match(stream.messages().at(-1), { id, error: { code: -32800 } }, JSON.stringify(id))
      await waitUntil('nothing waits', idle)
    }
    t.match((await hangar.api('GET', '/api/sessions/long')).body.turns[0], { state: 'running', outcome: null })
    t.equal((await client.post(cancel(999))).status, 202, 'one that does not run')
  })

  await t.test('a client that vanishes leaves nothing behind', async (t) => {
    const client = await connect(hangar, hangar.token)
    const stream = await client.open(call(1, 'wait_for_turn', wait, { progressToken: 1 }))
    await waitUntil('it waits', () => hangar.server.activity().waiters > 0)
    stream.drop()
    await waitUntil('nothing waits', idle)
    t.equal((await client.request('ping', {}, 1)).status, 200, 'its id is free again')
  })

  await t.test('an id that is still running is refused', async (t) => {
    const client = await connect(hangar, hangar.token)
    const stream = await client.open(call(7, 'wait_for_turn', wait))
    t.match(await client.post(call(7, 'list_repos', {})), { status: 400, messages: [{ error: { code: -32600 } }] })
    t.equal((await client.post(call('7', 'list_repos', {}))).status, 200, 'the text 7 is another id')
    stream.drop()
    await waitUntil('nothing waits', idle)
  })

  await t.test('a byte comes although nothing happens', async (t) => {
    const client = await connect(hangar, hangar.token)
    const silent = await client.open(call(1, 'wait_for_turn', wait))
    const listening = await client.listen()
    t.match(silent.text(), /^(: hangar\n\n)?/)
    await waitUntil('keep-alives', () =>
      [silent, listening].every((one) => (one.text().match(/^: keepalive$/gm) ?? []).length >= 3),
    )
    t.strictSame(silent.messages(), [], 'without a token no progress is told')
    t.equal((await client.listen()).status, 409, 'one stream of notifications a session')
    for (const stream of [silent, listening]) stream.drop()
    await waitUntil('nothing waits', () => idle() && hangar.server.activity().mcp.streams === 0)
    const again = await client.listen()
    t.equal(again.status, 200, 'it can be opened again')
    again.drop()
  })

  await t.test(
    'progress rises, is never merged, and something is said while nothing happens, for token and id 0 too',
    async (t) => {
      const client = await connect(hangar, hangar.token)
      const stream = await client.open(call(0, 'wait_for_turn', wait, { progressToken: 0 }))
      await waitUntil('it says that it still runs', () => /still running, \d+s: started/.test(stream.text()))
      await waitUntil('and again', () => stream.messages().length >= 5)
      const { params } = stream.messages()[0]
      t.equal(params.progressToken, 0)
      t.strictSame(
        stream.messages().map((message) => message.params.progress),
        stream.messages().map((_, at) => at + 1),
      )
      stream.drop()
      await waitUntil('nothing waits', idle)
    },
  )

  await t.test('200 clients wait; when their sockets are cut nobody listens any more', async (t) => {
    const clients = await Promise.all(Array.from({ length: 200 }, () => connect(hangar, hangar.token)))
    const streams = await Promise.all(
      clients.map((client) => client.open(call(1, 'wait_for_turn', wait, { progressToken: 1 }))),
    )
    await waitUntil('all wait', () => hangar.server.activity().mcp.requests === 200)
    await waitUntil('all are told of progress', () => streams.every((stream) => stream.messages().length > 0))
    t.ok(hangar.server.activity().waiters >= 200)
    for (const stream of streams) stream.drop()
    await waitUntil('nothing waits', idle)
    t.match(hangar.server.activity(), { waiters: 0, mcp: { requests: 0 } })
  })

  await t.test("the SDK's transports, too, hold nothing of what was cancelled or dropped", async (t) => {
    t.ok(transports.size >= 200)
    const held = () => [...transports].flatMap((transport) => MAPS.map((map) => transport[map].size))
    await waitUntil('late answers were let go', () => held().every((size) => size === 0))
    t.equal(
      held().reduce((sum, size) => sum + size, 0),
      0,
    )
  })

  await t.test('a server that stops answers those who wait', async (t) => {
    const client = await connect(hangar, hangar.token)
    const stream = await client.open(call(1, 'wait_for_turn', wait, { progressToken: 1 }))
    await waitUntil('it waits', () => hangar.server.activity().waiters > 0)
    const again = await hangar.restart()
    t.teardown(() => again.close())
    await stream.ended
    t.match(stream.messages().at(-1), { id: 1, result: { structuredContent: { done: false, hint: /wait_for_turn/ } } })
    const later = await connect(again, hangar.token, client.session)
    t.match((await later.request('ping')).status, 200, 'and the session goes on with the next one')
    await again.api('POST', '/api/sessions/long/close', {})
  })
})

t.test('sessions are bounded and kept', async (t) => {
  let now = Date.parse('2026-06-01T00:00:00Z')
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    server: { clock: { now: () => now }, mcp: { maxSessionsPerToken: 40, maxSessions: 60 } },
  })

  await t.test('500 clients that never say goodbye', async (t) => {
    const first = await connect(hangar, hangar.token)
    for (let at = 0; at < 500; at += 20)
      await Promise.all(Array.from({ length: 20 }, () => connect(hangar, hangar.token)))
    t.match(hangar.server.activity().mcp, { sessions: 40, live: 40 })
    t.match(await first.request('ping'), { status: 404, messages: [{ error: { code: -32001 } }] })
    const { secret } = await tokenFor(hangar, ['read'])
    const other = await connect(hangar, secret)
    for (let at = 0; at < 50; at += 1) await connect(hangar, secret)
    t.equal(hangar.server.activity().mcp.sessions, 60, 'in all')
    t.equal((await other.request('ping')).status, 404)
  })

  await t.test('one with an open stream is not pushed out', async (t) => {
    const client = await connect(hangar, hangar.token)
    const stream = await client.listen()
    for (let at = 0; at < 50; at += 1) await connect(hangar, hangar.token)
    t.equal((await client.request('ping')).status, 200)
    stream.drop()
  })

  await t.test(
    'an idle one leaves the memory after half an hour and is there when its client comes back, for a week',
    async (t) => {
      const client = await connect(hangar, hangar.token)
      now += 31 * 60_000
      await hangar.server.sweepMcp()
      t.match(hangar.server.activity().mcp, { live: 0, sessions: /./ })
      t.equal((await client.request('ping')).status, 200)
      t.equal(hangar.server.activity().mcp.live, 1)
      now += 8 * 24 * 3_600_000
      await hangar.server.sweepMcp()
      t.equal(hangar.server.activity().mcp.sessions, 0)
      t.equal((await client.request('ping')).status, 404)
    },
  )

  await t.test('the sessions of a revoked token go', async (t) => {
    const { id, secret } = await tokenFor(hangar, ['read'])
    const client = await connect(hangar, secret)
    const stream = await client.listen()
    await hangar.api('DELETE', `/api/tokens/${id}`)
    t.equal((await client.request('ping')).status, 401)
    await hangar.server.sweepMcp()
    await stream.ended
    t.equal(hangar.server.activity().mcp.sessions, 0)
  })

  await t.test('what a client is, and watches, outlives the server, also when the index is built anew', async (t) => {
    await withRepo(hangar)
    await hangar.api('POST', '/api/sessions', { name: 'kept', repo: 'acme/app', message: 'true' })
    const client = await connect(hangar, hangar.token)
    await client.request('resources/subscribe', { uri: 'hangar://sessions/kept' })
    const again = await hangar.restart({ reindex: true })
    t.teardown(() => again.close())
    const later = await connect(again, hangar.token, client.session)
    const stream = await later.listen()
    t.equal(stream.status, 200)
    await later.tool('send_to_session', { ref: 'kept', message: 'true' })
    await waitUntil('it is told', () => /resources\/updated/.test(stream.text()))
    stream.drop()
  })
})

/** Private to the SDK: what it keeps of each request. */
const MAPS = ['_streamMapping', '_requestToStreamMapping', '_requestResponseMap'] as const

/** Collects each transport of the SDK that is used during a test. */
function knownTransports(t: Test): ReadonlySet<Readonly<Record<(typeof MAPS)[number], Map<unknown, unknown>>>> {
  const seen = new Set<never>()
  const { prototype } = WebStandardStreamableHTTPServerTransport
  const { handleRequest } = prototype
  prototype.handleRequest = function (...args) {
    seen.add(this as never)
    return handleRequest.apply(this, args)
  }
  t.teardown(() => {
    prototype.handleRequest = handleRequest
  })
  return seen
}

/** A POST whose body never comes to its end. */
async function unfinished(url: string, headers: Readonly<Record<string, string>>, body: string) {
  // The server says continue once it is at the request.
  const length = { 'Content-Length': String(Buffer.byteLength(body)), Expect: '100-continue' }
  const req = httpRequest(url, { method: 'POST', agent: false, headers: { ...HEADERS, ...headers, ...length } })
  req.on('error', () => {})
  await new Promise<void>((resolve) => {
    req.once('continue', () => resolve())
    req.flushHeaders()
  })
  req.write(body.slice(0, -10))
  return req
}

/** fetch does not let a Host be set. */
function statusWith(
  url: string,
  headers: Readonly<Record<string, string>>,
  body = JSON.stringify(initialize()),
): Promise<number> {
  return new Promise((resolve, reject) => {
    const req = httpRequest(url, {
      method: 'POST',
      agent: false,
      headers: { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream', ...headers },
    })
    req.once('response', (res) => {
      res.resume()
      res.once('close', () => resolve(res.statusCode ?? 0))
    })
    req.once('error', reject)
    req.on('close', () => resolve(0))
    req.write(body)
    if (headers['Content-Length'] === undefined) req.end()
  })
}
