import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { Oid } from '../../domain/names.ts'
import { createGitSlots } from '../../gateway/git-slots.ts'
import { type GitServer, gitServerOf } from './git-server.ts'

const commit = async (s: GitServer, cwd: string, file: string, text: string) => {
  writeFileSync(join(cwd, file), text)
  await s.git(cwd, 'add', '.')
  await s.git(cwd, 'commit', '-q', '-m', `change ${file}`)
  return (await s.git(cwd, 'rev-parse', 'HEAD')).out.trim() as Oid
}

const incoming = (s: GitServer) =>
  readdirSync(join(s.repo.dir, 'objects')).filter((name) => name.startsWith('incoming'))

t.test('a fetch with 25,000 haves and divergent history', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  await s.git(work, 'init', '-q', 'other')
  const other = join(work, 'other')
  const stream: string[] = []
  for (let at = 0; at < 25_000; at++)
    stream.push(`commit refs/heads/x\ncommitter a <a@example.com> ${1_700_000_000 + at} +0000\ndata 1\nx\n`)
  writeFileSync(join(other, 'stream'), stream.join('\n'))
  await s.git(other, '-c', 'alias.fi=!git fast-import --quiet < stream', 'fi')
  const tip = await s.ref('refs/heads/main')
  for (const version of ['0', '2']) {
    const args = [
      ...['-c', `protocol.version=${version}`, '-c', 'http.postBuffer=65536'],
      ...['-c', 'fetch.negotiationAlgorithm=consecutive'],
    ]
    const fetched = await s.git(other, ...args, 'fetch', '-q', s.as('hgt_read'), '+main:refs/heads/got')
    t.equal(fetched.code, 0, fetched.err)
    t.equal((await s.git(other, 'rev-parse', 'got')).out.trim(), tip)
    await s.git(other, 'update-ref', '-d', 'refs/heads/got')
    await s.git(other, 'prune', '--expire=now')
  }
})

t.test('aborted clones leave no process', async (t) => {
  const s = await gitServerOf(t, { limits: { maxGitProcesses: 4 } })
  const work = await s.work('work')
  for (let at = 0; at < 20; at++) writeFileSync(join(work, `f${at}`), Buffer.alloc(400_000, Math.random().toString()))
  writeFileSync(join(work, 'random'), randomBytes(12_000_000))
  await commit(s, work, 'a', 'a')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const oid = await s.ref('refs/heads/main')
  const body = `0011command=fetch0001000fno-progress0032want ${oid}\n0009done\n0000`
  const auth = `Basic ${Buffer.from('x:hgt_read').toString('base64')}`
  const one = async () => {
    const gone = new AbortController()
    const answer = await fetch(`${s.url}/git-upload-pack`, {
      method: 'POST',
      body,
      headers: {
        authorization: auth,
        'git-protocol': 'version=2',
        'content-type': 'application/x-git-upload-pack-request',
      },
      signal: gone.signal,
    })
    if (answer.status === 200) await answer.body?.getReader().read()
    gone.abort()
    return answer.status
  }
  const statuses: number[] = []
  for (let at = 0; at < 10; at++) statuses.push(...(await Promise.all([one(), one(), one(), one(), one()])))
  t.equal(statuses.filter((status) => status === 200).length, 50)
  const left = () =>
    readdirSync('/proc')
      .filter((pid) => /^\d+$/.test(pid))
      .filter((pid) => {
        try {
          const command = readFileSync(`/proc/${pid}/cmdline`, 'latin1')
          const where = readFileSync(`/proc/${pid}/environ`, 'latin1')
          return /upload-pack|pack-objects/.test(command) && where.includes(s.repo.dir)
        } catch {
          return false
        }
      })
  for (let tries = 0; tries < 50 && left().length > 0; tries++) await sleep(100)
  t.strictSame(left(), [])
  t.equal((await s.git(work, 'ls-remote', s.as('hgt_read'))).code, 0)
})

t.test('a push of 60 MB does not grow the memory of the server', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  for (let at = 0; at < 6; at++) writeFileSync(join(work, `big${at}`), randomBytes(10_000_000))
  await commit(s, work, 'a', 'a')
  const before = process.memoryUsage().rss
  let most = 0
  const timer = setInterval(() => {
    most = Math.max(most, process.memoryUsage().rss)
  }, 20)
  const pushed = await s.git(work, 'push', 'origin', 'main')
  clearInterval(timer)
  t.equal(pushed.code, 0, pushed.err)
  t.ok(most - before < 60_000_000, `grew by ${most - before}`)
  t.equal((await s.git(work, 'clone', '-q', s.as('hgt_read'), 'clone')).code, 0)
})

t.test('a push larger than the cap is refused at its refs, and nothing of it stays', async (t) => {
  const s = await gitServerOf(t, { limits: { maxPushBytes: 3_000_000 } })
  const work = await s.work('work')
  writeFileSync(join(work, 'big'), randomBytes(8_000_000))
  const oid = await commit(s, work, 'a', 'a')
  const pushed = await s.git(work, 'push', 'origin', 'main')
  t.equal(pushed.code, 1)
  t.match(pushed.err, /larger than 3000000 bytes/)
  t.equal((await s.git(s.repo.dir, 'cat-file', '-e', oid)).code, 1)
  t.strictSame(incoming(s), [])
})

t.test('slots go to who waits, and a full queue or a long wait is told to come back', async (t) => {
  const slots = createGitSlots({ most: 1, mostWaiting: 1, waitMs: 100 })
  const { signal } = new AbortController()
  const release = await slots.take('a', signal)
  const second = slots.take('a', signal)
  await t.rejects(slots.take('a', signal), { code: 'busy', status: 503 })
  release()
  release()
  const releaseSecond = await second
  await t.rejects(slots.take('a', signal), { code: 'busy' })
  const gone = new AbortController()
  const third = slots.take('a', gone.signal)
  gone.abort()
  await t.rejects(third, { code: 'busy' })
  releaseSecond()
  t.type(await slots.take('a', signal), 'function')
})

t.test('a caller shares slots and queue with others', async (t) => {
  const slots = createGitSlots({ most: 4, mostWaiting: 8, waitMs: 60_000 })
  const { signal } = new AbortController()
  const order: string[] = []
  const releases = new Map<string, () => void>()
  const take = (name: string, caller: string) =>
    slots.take(caller, signal).then((release) => {
      order.push(name)
      releases.set(name, release)
    })
  const settle = () => new Promise((resolve) => setImmediate(resolve))
  const ends = (name: string) => {
    releases.get(name)?.()
    return settle()
  }
  for (const name of ['a1', 'a2', 'a3']) await take(name, 'a')
  const waiting = [take('a4', 'a'), take('a5', 'a')]
  await settle()
  t.strictSame(order, ['a1', 'a2', 'a3'], 'one slot is kept')
  await t.rejects(slots.take('a', signal), { code: 'busy' }, 'and most of the queue')
  await take('b1', 'b')
  waiting.push(take('b2', 'b'), take('c1', 'c'))
  await settle()
  t.strictSame(slots.load(), { running: 4, waiting: 4 })
  await ends('a1')
  t.equal(order.at(-1), 'c1', 'who has none is next')
  await ends('b1')
  t.equal(order.at(-1), 'b2')
  await ends('c1')
  t.equal(order.at(-1), 'b2', 'the last free one is for others')
  await ends('a2')
  t.equal(order.at(-1), 'a4')
  for (const name of ['a3', 'b2', 'a4']) await ends(name)
  await Promise.all(waiting)
  await ends('a5')
  t.strictSame(slots.load(), { running: 0, waiting: 0 })
})

t.test('a busy server answers 503 and when to come back', async (t) => {
  const s = await gitServerOf(t, { limits: { maxGitProcesses: 0 } })
  const answer = await fetch(`${s.url}/git-upload-pack`, {
    method: 'POST',
    body: `0011command=fetch00010032want ${'a'.repeat(40)}\n0009done\n0000`,
    headers: {
      authorization: `Bearer hgt_read`,
      'git-protocol': 'version=2',
      'content-type': 'application/x-git-upload-pack-request',
    },
  })
  t.equal(answer.status, 503)
  t.equal(answer.headers.get('retry-after'), '5')
})
