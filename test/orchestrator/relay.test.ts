/** The relay of sandboxes without a network: bytes pass whole in both directions by any program that may carry it, and nothing else passes. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { createRelay } from '../../orchestrator/providers/relay.ts'
import { RELAY_PROGRAMS, relayScript } from '../../orchestrator/providers/relay-inside.ts'
import { freePort } from '../stories/served.ts'

const dir = mkdtempSync(join(tmpdir(), 'hangar-relay-'))
const silent = { info() {}, warn() {}, error() {} }
t.teardown(() => rmSync(dir, { recursive: true, force: true }))

const listen = (server: Server) =>
  new Promise<number>((resolve) =>
    server.listen(0, '127.0.0.1', () => resolve((server.address() as { port: number }).port)),
  )
/** Answers, once the other side has said all, with all that it said. */
const echo = createServer({ allowHalfOpen: true }, (socket) => {
  const parts: Buffer[] = []
  socket.on('data', (part: Buffer) => parts.push(part))
  socket.on('end', () => socket.end(Buffer.concat(parts)))
  socket.on('error', () => {})
})
const gateway = { host: '127.0.0.1', port: await listen(echo) }
t.teardown(() => echo.close())

async function all(socket: Socket): Promise<Buffer> {
  const parts: Buffer[] = []
  for await (const part of socket as AsyncIterable<Buffer>) parts.push(part)
  return Buffer.concat(parts)
}

async function exchange(port: number, bytes: Buffer): Promise<Buffer> {
  for (let tries = 0; tries < 200; tries++) {
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
    const open = await new Promise<boolean>((resolve) => {
      socket.once('connect', () => resolve(true))
      socket.once('error', () => resolve(false))
    })
    if (open) {
      socket.end(bytes)
      return all(socket)
    }
    await sleep(50)
  }
  throw new Error('nothing listens')
}

for (const program of RELAY_PROGRAMS) {
  // The system's own: another one on the PATH may be a script that needs more of it.
  const env = { PATH: '/usr/bin:/bin' }
  const own = spawnSync('sh', ['-c', `command -v ${program}`], { env })
    .stdout.toString()
    .trim()
  const found = program === 'node' ? process.execPath : own
  t.test(`by ${program}`, { skip: found === '' && `${program} is not here` }, async (t) => {
    const bin = join(dir, program)
    mkdirSync(bin)
    symlinkSync(found, join(bin, program))
    symlinkSync('/bin/sleep', join(bin, 'sleep'))
    const relay = createRelay({ dir: join(dir, 'sockets'), gateway, log: silent })
    const sockets = await relay.directoryFor([])
    const port = await freePort()
    const inside: ChildProcess = spawn(
      '/bin/sh',
      ['-c', relayScript({ dir: sockets, ports: { gateway: port, proxy: 0 } })],
      {
        env: { PATH: bin },
        detached: true,
        stdio: 'ignore',
      },
    )
    t.teardown(() => process.kill(-(inside.pid ?? 0), 'SIGKILL'))
    const bytes = Buffer.from(Array.from({ length: 3_000_001 }, (_, at) => (at * 7 + (at >> 9)) & 255))
    const answers = await Promise.all([1, 2, 3].map((count) => exchange(port, bytes.subarray(0, 1_000_000 * count))))
    t.ok(answers.every((answer, at) => answer.equals(bytes.subarray(0, 1_000_000 * (at + 1)))))
    // A server that is started again on the same directory is found.
    await relay.close()
    const next = createRelay({ dir: join(dir, 'sockets'), gateway, log: silent })
    await next.directoryFor(null)
    t.equal((await exchange(port, Buffer.from('again'))).toString(), 'again')
    await next.close()
  })
}

t.test('the proxy connects to what is listed, by host and port, and refuses all else in words', async (t) => {
  const relay = createRelay({ dir: join(dir, 'proxies'), gateway, log: silent })
  t.teardown(() => relay.close())
  const path = join(await relay.directoryFor([`localhost:${gateway.port}`, 'localhost:1']), 'proxy.sock')
  const ask = async (head: string, more = '') => {
    const socket = connect({ path, allowHalfOpen: true })
    socket.end(`${head}\r\nHost: x\r\n\r\n${more}`)
    return (await all(socket)).toString()
  }
  t.match(await ask(`CONNECT LOCALHOST:${gateway.port} HTTP/1.1`, 'said'), /^HTTP\/1\.1 200 [^\r]*\r\n\r\nsaid$/)
  for (const target of [
    `127.0.0.1:${gateway.port}`,
    'localhost:2',
    'localhost',
    `localhost:${gateway.port}@x:1`,
    `x@localhost:${gateway.port}`,
  ])
    t.match(await ask(`CONNECT ${target} HTTP/1.1`), /^HTTP\/1\.1 403 .*egress: localhost:1, localhost:\d+/s, target)
  t.match(await ask('CONNECT localhost:1 HTTP/1.1'), /^HTTP\/1\.1 502 .*ECONNREFUSED/s)
  t.match(await ask(`GET http://localhost:${gateway.port}/ HTTP/1.1`), /^HTTP\/1\.1 403 .*CONNECT/s)
})

t.test('a data directory whose path is too long for a socket is said so', async (t) => {
  const relay = createRelay({ dir: join(dir, 'x'.repeat(120)), gateway, log: silent })
  await t.rejects(relay.directoryFor([]), { code: 'config_invalid', message: /HANGAR_DATA/ })
})

t.test('a reader that is slow gets all of it, though the other end has long closed', async (t) => {
  const bytes = Buffer.alloc(8_000_000, 'relayed')
  const giver = createServer((socket) => socket.end(bytes))
  await new Promise<void>((resolve) => giver.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void giver.close())
  const { port } = giver.address() as { port: number }
  const relay = createRelay({ dir: join(dir, 'slow'), gateway: { host: '127.0.0.1', port }, log: silent })
  t.teardown(() => relay.close())
  const socket = connect({ path: join(await relay.directoryFor([]), 'gateway.sock'), allowHalfOpen: true })
  socket.end()
  let read = 0
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    read += chunk.length
    if (read > bytes.length - 1_500_000) await sleep(20)
  }
  t.equal(read, bytes.length)
})
