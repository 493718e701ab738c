/** Clients that read or write as slowly as they can: they hold what is theirs, for a time, and nobody else's. */
import { randomBytes } from 'node:crypto'
import { readdirSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { ZERO_OID } from '../../domain/names.ts'
import { type GitServer, gitServerOf } from './git-server.ts'

/** A push whose pack comes a byte at a time, until it is stopped. */
function dripPush(s: GitServer, secret: string): { stop(): void; said: Promise<string> } {
  const socket = connect(s.port, '127.0.0.1')
  const head = `${ZERO_OID} ${'a'.repeat(40)} refs/heads/drip\0report-status`
  const body = `${(head.length + 4).toString(16).padStart(4, '0')}${head}0000PACK`
  socket.write(
    `POST /git/acme/app.git/git-receive-pack HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${secret}\r\n` +
      `content-type: application/x-git-receive-pack-request\r\ncontent-length: 1000000\r\n\r\n${body}`,
  )
  const timer = setInterval(() => socket.write('x'), 100)
  let text = ''
  socket.on('data', (chunk: Buffer) => {
    text += chunk.toString('latin1')
  })
  socket.on('error', () => {})
  const said = new Promise<string>((resolve) => {
    const look = setInterval(() => {
      if (text.includes('drip ') || socket.destroyed) resolve(text)
    }, 50)
    socket.once('close', () => {
      clearInterval(look)
      clearInterval(timer)
      resolve(text)
    })
  })
  return { stop: () => void socket.destroy(), said }
}

t.test('slow clients of one caller leave room for others, and end at their time', async (t) => {
  const s = await gitServerOf(t, { limits: { maxGitProcesses: 4, maxTransferMs: 6_000 } })
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const slow = Array.from({ length: 4 }, () => dripPush(s, 'hgt_write'))
  await sleep(500)
  for (let n = 0; n < 3; n++) {
    const cloned = await s.git(work, 'clone', '-q', s.as('hgt_read'), `c${n}`)
    t.equal(cloned.code, 0, cloned.err)
  }
  for (const { said } of slow.slice(0, 3))
    t.match(await said, /HTTP\/1.1 200[\s\S]*ng refs\/heads\/drip .*took too long/)
  for (const { stop } of slow) stop()
  // Their slots are free again, whatever their bodies do.
  const pushed = await s.git(work, 'push', '-q', 'origin', 'HEAD:refs/heads/after')
  t.equal(pushed.code, 0, pushed.err)
  const left = readdirSync(join(s.repo.dir, 'objects')).filter((name) => name.startsWith('incoming'))
  t.strictSame(left, [])
})

t.test('a client that does not read its answer is cut at its time, and is no whole clone', async (t) => {
  const s = await gitServerOf(t, { limits: { maxGitProcesses: 1, maxTransferMs: 1_500 } })
  const work = await s.work('work')
  writeFileSync(join(work, 'big'), randomBytes(30_000_000))
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-q', '-m', 'big')
  await s.git(work, 'push', '-q', s.as('hgt_admin'), 'HEAD:refs/heads/main')
  const tip = await s.ref('refs/heads/main')
  const body = `0011command=fetch00010032want ${tip}\n0009done\n0000`
  const socket = connect(s.port, '127.0.0.1')
  socket.write(
    `POST /git/acme/app.git/git-upload-pack HTTP/1.1\r\nhost: x\r\nauthorization: Bearer hgt_read\r\ngit-protocol: version=2\r\n` +
      `content-type: application/x-git-upload-pack-request\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  )
  const ended = new Promise<void>((resolve) => socket.once('close', () => resolve()))
  socket.on('error', () => {})
  socket.pause()
  await sleep(3_000)
  // Read at last: it ends without the end of a chunked answer.
  let tail = ''
  socket.on('data', (chunk: Buffer) => {
    tail = (tail + chunk.toString('latin1')).slice(-10)
  })
  socket.resume()
  await ended
  t.notMatch(tail, '0\r\n\r\n')
  const cloned = await s.git(work, 'ls-remote', s.as('hgt_read'))
  t.equal(cloned.code, 0)
})

t.test('a request to fetch that comes a byte at a time ends at its time, and holds nobody up', async (t) => {
  const s = await gitServerOf(t, { limits: { maxGitProcesses: 1, maxTransferMs: 1_500 } })
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const socket = connect(s.port, '127.0.0.1')
  socket.on('error', () => {})
  const ended = new Promise<void>((resolve) => socket.once('close', () => resolve()))
  socket.resume()
  socket.write(
    `POST /git/acme/app.git/git-upload-pack HTTP/1.1\r\nhost: x\r\nauthorization: Bearer hgt_read\r\ngit-protocol: version=2\r\n` +
      'content-type: application/x-git-upload-pack-request\r\ncontent-length: 60000\r\n\r\n0011command=fetch0001',
  )
  const timer = setInterval(() => socket.write('0'), 50)
  t.teardown(() => clearInterval(timer))
  const cloned = await s.git(work, 'clone', '-q', s.as('hgt_read'), 'meanwhile')
  t.equal(cloned.code, 0, cloned.err)
  await ended
  t.pass('it was given up')
})

t.test('an answer that is read a byte at a time ends at its time, and others are answered', async (t) => {
  const s = await gitServerOf(t, { limits: { maxGitProcesses: 1, maxTransferMs: 2_000 } })
  const work = await s.work('work')
  writeFileSync(join(work, 'big'), randomBytes(30_000_000))
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-q', '-m', 'big')
  await s.git(work, 'push', '-q', s.as('hgt_admin'), 'HEAD:refs/heads/main')
  const tip = await s.ref('refs/heads/main')
  const body = `0011command=fetch00010032want ${tip}\n0009done\n0000`
  const socket = connect({ port: s.port, host: '127.0.0.1', onread: { buffer: Buffer.alloc(1), callback: () => true } })
  socket.on('error', () => {})
  const ended = new Promise<void>((resolve) => socket.once('close', () => resolve()))
  socket.write(
    `POST /git/acme/app.git/git-upload-pack HTTP/1.1\r\nhost: x\r\nauthorization: Bearer hgt_read\r\ngit-protocol: version=2\r\n` +
      `content-type: application/x-git-upload-pack-request\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  )
  await sleep(300)
  const cloned = await s.git(work, 'clone', '-q', s.as('hgt_read'), 'meanwhile')
  t.equal(cloned.code, 0, cloned.err)
  await ended
  t.ok(socket.bytesRead < 30_000_000, `cut after ${socket.bytesRead} bytes`)
})
