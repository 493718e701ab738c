/** Request bodies: JSON however it is sent, caps, and room for the large ones. */
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import t from 'tap'
import { HangarError } from '../../domain/errors.ts'
import { createBodyRoom } from '../../surfaces/body-room.ts'
import { readJsonBody } from '../../surfaces/json-body.ts'

t.test('bodies', async (t) => {
  let aborted: (error: unknown) => void = () => {}
  const server = createServer((req, res) => {
    readJsonBody(req, { maxBytes: 1_000, digest: req.headers['x-digest'] !== undefined, timeoutMs: 500 }).then(
      (body) => res.end(JSON.stringify(body)),
      (error: unknown) => {
        aborted(error)
        res.statusCode = error instanceof HangarError ? error.status : 500
        res.end(error instanceof Error ? error.message : String(error))
      },
    )
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  const post = async (body: string | Buffer | undefined, headers: Record<string, string> = {}) => {
    const response = await fetch(`http://127.0.0.1:${port}/`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', ...headers },
      ...(body === undefined ? {} : { body: Buffer.from(body as string) }),
    })
    return { status: response.status, text: await response.text() }
  }
  const value = (text: string) => ({ status: 200, text: JSON.stringify({ value: JSON.parse(text), digest: null }) })
  const big = JSON.stringify({ x: 'y'.repeat(2_000) })
  const rows: readonly (readonly [
    what: string,
    body: string | Buffer | undefined,
    headers: Record<string, string>,
    expected: object,
  ])[] = [
    ['an object', '{"a":"é"}', {}, value('{"a":"é"}')],
    ['nothing', undefined, {}, value('{}')],
    ['nothing, of another type', undefined, { 'Content-Type': 'text/plain' }, value('{}')],
    ['a byte order mark', '\ufeff{}', {}, value('{}')],
    ['a charset', '{}', { 'Content-Type': 'application/json; charset="UTF-8"' }, value('{}')],
    ['another kind of JSON', '{}', { 'Content-Type': 'application/merge-patch+json' }, value('{}')],
    ['gzip', gzipSync('{"a":1}'), { 'Content-Encoding': 'gzip' }, value('{"a":1}')],
    ['deflate', deflateSync('{"a":1}'), { 'Content-Encoding': 'deflate' }, value('{"a":1}')],
    ['brotli', brotliCompressSync('{"a":1}'), { 'Content-Encoding': 'br' }, value('{"a":1}')],
    [
      'its digest',
      '{}',
      { 'X-Digest': 'yes' },
      { text: /"digest":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"/ },
    ],
    ['no JSON', '{', {}, { status: 400, text: /the body is not JSON/ }],
    ['another type', '{}', { 'Content-Type': 'text/plain' }, { status: 415, text: /application\/json/ }],
    ['another charset', '{}', { 'Content-Type': 'application/json; charset=latin1' }, { status: 415, text: /latin1/ }],
    ['another encoding', '{}', { 'Content-Encoding': 'zstd' }, { status: 415, text: /zstd/ }],
    ['no gzip after all', '{}', { 'Content-Encoding': 'gzip' }, { status: 400, text: /could not be read/ }],
    ['too much', big, {}, { status: 413, text: /larger than the server takes.*--from-local/ }],
    ['too much when unpacked', gzipSync(big), { 'Content-Encoding': 'gzip' }, { status: 413 }],
  ]
  for (const [what, body, headers, expected] of rows) t.match(await post(body, headers), expected, what)

  const raw = (bytes: string) =>
    new Promise<string>((resolve) => {
      const failed = new Promise<unknown>((given) => {
        aborted = given
      })
      const socket = connect(port, '127.0.0.1', () => socket.write(bytes))
      if (bytes.endsWith('cut')) setTimeout(() => socket.destroy(), 50)
      socket.on('error', () => {})
      void failed.then((error) => {
        socket.destroy()
        resolve(String(error))
      })
    })
  const head = 'POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n'
  t.match(await raw(`${head}Content-Length: 900\r\n\r\n{"cut`), /could not be read|was cut/)
  t.match(await raw(`${head}Content-Length: 900\r\n\r\n{"slow`), /took longer than 0\.5 s to arrive/)
  t.match(
    await raw(`${head}Transfer-Encoding: chunked\r\n\r\n7d0\r\n${'x'.repeat(2_000)}\r\n`),
    /larger than the server takes/,
  )
})

t.test('large bodies wait for room, in order; small ones do not', async (t) => {
  const MB = 1_048_576
  const room = createBodyRoom(100 * MB)
  const never = new AbortController()
  const order: string[] = []
  const take = (name: string, bytes: number, signal = never.signal) =>
    room.take(bytes, signal).then((leave) => {
      order.push(name)
      return leave
    })
  const first = await take('first', 60 * MB)
  const given = new AbortController()
  const abandoned = take('abandoned', 90 * MB, given.signal).catch((error: unknown) => String(error))
  const second = take('second', 60 * MB)
  const third = take('third', 500 * MB)
  await take('small', MB)
  t.strictSame(order, ['first', 'small'])
  given.abort(new Error('gone'))
  t.match(await abandoned, /gone/)
  first()
  first()
  const leave = await second
  t.strictSame(order, ['first', 'small', 'second'])
  leave()
  ;(await third)()
  t.strictSame(
    order,
    ['first', 'small', 'second', 'third'],
    'one that announces more than all the room waits for all of it',
  )
  await t.rejects(room.take(2 * MB, given.signal), /gone/)
})
