/** What node-git-server 1.0.0 lets through by itself, each beside the same request at our gateway: the reason why its `handle` is replaced. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { IncomingMessage, ServerResponse } from 'node:http'
import { connect, Socket } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { ZERO_OID } from '../../domain/names.ts'
import { HangarGit } from '../../gateway/http/hangar-git.ts'
import { pktLine, pktLines } from '../../gateway/wire/pkt-line.ts'
import { type GitServer, gitServerOf } from './git-server.ts'

/** The raw package in a process of its own: everybody is denied, `push` takes the branch `ok` only, and events are printed. */
const RAW = `
  import ngs from 'node-git-server'
  const git = new ngs.Git(process.argv[1], { autoCreate: false, authenticate: (_, next) => next(new Error('denied')) })
  const say = (text) => process.stdout.write(text + '\\n')
  git.on('push', (push) => { say('push ' + push.branch); push.branch === 'bad' ? push.reject(403, 'no') : push.accept() })
  git.on('tag', (tag) => { say('tag ' + tag.version); tag.accept() })
  git.on('fetch', (fetch) => { say('fetch'); fetch.accept() })
  git.listen(0, { type: 'http' }, () => say('port ' + git.server.address().port))
`

interface Raw {
  readonly port: number
  readonly child: ChildProcess
  readonly dir: string
  readonly said: string[]
  readonly stderr: () => string
  readonly ended: Promise<number | null>
  ref(name: string): string
}

async function startRaw(t: Test, dir: string): Promise<Raw> {
  const bare = join(dir, 'app.git')
  execFileSync('git', ['init', '-q', '--bare', bare])
  const child = spawn(process.execPath, ['--input-type=module', '-e', RAW, dir], { stdio: ['ignore', 'pipe', 'pipe'] })
  t.teardown(() => child.kill('SIGKILL'))
  const said: string[] = []
  let stderr = ''
  child.stderr.on('data', (chunk) => {
    stderr += chunk
  })
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve))
  const port = await new Promise<number>((resolve) =>
    child.stdout.on('data', (chunk: Buffer) => {
      said.push(...String(chunk).trim().split('\n'))
      const found = /^port (\d+)$/.exec(said[0] ?? '')?.[1]
      if (found !== undefined) resolve(Number(found))
    }),
  )
  const ref = (name: string) => {
    try {
      return execFileSync('git', ['--git-dir', bare, 'rev-parse', '--verify', '-q', name], { encoding: 'utf8' }).trim()
    } catch {
      return ''
    }
  }
  return { port, child, dir: bare, said, stderr: () => stderr, ended, ref }
}

/** Sends pieces over one connection, a little apart; what came back once it was whole, the server closed, or it said nothing for so long. */
function send(
  port: number,
  pieces: readonly (string | Buffer)[],
  options: { abort?: boolean; silentMs?: number } = {},
): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    let got = ''
    const done = () => {
      clearTimeout(timer)
      socket.destroy()
      resolve(got)
    }
    const timer = setTimeout(done, options.silentMs ?? 20_000)
    socket.on('data', (chunk) => {
      got += chunk.toString('latin1')
      timer.refresh()
      if (/\r\n0\r\n\r\n$/.test(got) || isWhole(got)) done()
    })
    socket.on('close', done)
    socket.on('error', done)
    socket.setNoDelay(true)
    const next = (at: number) => {
      const piece = pieces[at]
      if (piece === undefined) {
        if (options.abort) done()
        return
      }
      socket.write(piece, () => setTimeout(() => next(at + 1), 60))
    }
    next(0)
  })
}

function isWhole(got: string): boolean {
  const length = /\r\nContent-Length: (\d+)\r\n/i.exec(got)?.[1]
  return length !== undefined && got.length >= got.indexOf('\r\n\r\n') + 4 + Number(length)
}

const EMPTY_PACK = Buffer.from('5041434b0000000200000000029d08823bd8a8eab510ad6ac75c823cfd3ed31e', 'hex')
const commands = (...lines: string[]) => {
  const [first = '', ...rest] = lines
  return Buffer.concat([pktLines([`${first}\0 report-status`, ...rest]), Buffer.from('0000'), EMPTY_PACK])
}
const header = (path: string, length: number, extra = '') =>
  `POST ${path}/git-receive-pack HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-receive-pack-request\r\nContent-Length: ${length}\r\n${extra}\r\n`
/** It never answers; a second is enough to see it. */
const HANGS = { silentMs: 1_000 }
const RAW_PATH = '/app.git'
const OUR_PATH = '/git/acme/app.git'
const as = (secret: string) => `Authorization: Basic ${Buffer.from(`x:${secret}`).toString('base64')}\r\n`

/** Both servers with one commit in the store. */
async function both(t: Test): Promise<{ raw: Raw; ours: GitServer; oid: string }> {
  const ours = await gitServerOf(t)
  const dir = t.testdirName
  mkdirSync(join(dir, 'raw'))
  const raw = await startRaw(t, join(dir, 'raw'))
  const work = await ours.work('work')
  await ours.git(work, 'push', '-q', 'origin', 'main')
  await ours.git(work, 'push', '-q', raw.dir, 'main')
  return { raw, ours, oid: (await ours.git(work, 'rev-parse', 'main')).out.trim() }
}

t.test('N1: a POST is not authenticated there; here every request is', async (t) => {
  const { raw, ours, oid } = await both(t)
  const body = commands(`${ZERO_OID} ${oid} refs/heads/pwned`)
  const answer = await send(raw.port, [header(RAW_PATH, body.length), body])
  t.match(answer, 'ok refs/heads/pwned')
  t.equal(raw.ref('refs/heads/pwned'), oid)
  t.match(await send(ours.port, [header(OUR_PATH, body.length), body]), /^HTTP\/1\.1 401 /)
  t.equal(await ours.ref('refs/heads/pwned'), null)
})

t.test('N2: one accepted ref lets all of its push in there; here each is decided', async (t) => {
  const { raw, ours, oid } = await both(t)
  const body = commands(`${ZERO_OID} ${oid} refs/heads/ok`, `${ZERO_OID} ${oid} refs/heads/bad`)
  await send(raw.port, [header(RAW_PATH, body.length), body])
  t.strictSame([raw.ref('refs/heads/ok'), raw.ref('refs/heads/bad')], [oid, oid])
  const mixed = commands(`${ZERO_OID} ${oid} refs/heads/hangar/csv-fix`, `${ZERO_OID} ${oid} refs/heads/bad`)
  const answer = await send(ours.port, [header(OUR_PATH, mixed.length, as('hgs_fix')), mixed])
  t.match(answer, /ok refs\/heads\/hangar\/csv-fix\n[0-9a-f]{4}ng refs\/heads\/bad this grant may push only/)
  t.equal(await ours.ref('refs/heads/bad'), null)
})

t.test('N3: other namespaces hang alone there, and slip in beside a branch; here they are refused', async (t) => {
  const { raw, ours, oid } = await both(t)
  const alone = commands(`${ZERO_OID} ${oid} refs/hangar/x`)
  const beside = commands(`${ZERO_OID} ${oid} refs/heads/ok`, `${ZERO_OID} ${oid} refs/hangar/x`)
  await send(raw.port, [header(RAW_PATH, beside.length), beside])
  t.equal(raw.ref('refs/hangar/x'), oid)
  t.notOk(
    raw.said.some((line) => line.includes('hangar')),
    'no event tells of it',
  )
  t.equal(await send(raw.port, [header(RAW_PATH, alone.length), alone], HANGS), '')
  for (const body of [alone, beside])
    t.match(await send(ours.port, [header(OUR_PATH, body.length, as('hgt_admin')), body]), 'ng refs/hangar/x ')
  t.equal(await ours.ref('refs/hangar/x'), null)
})

t.test('N4: the name is cut in the event there; here the event has it whole', async (t) => {
  const { raw, ours, oid } = await both(t)
  const body = commands(`${ZERO_OID} ${oid} refs/heads/v1.000-x`)
  await send(raw.port, [header(RAW_PATH, body.length), body])
  t.ok(raw.said.includes('push v1.'), raw.said.join())
  t.equal(raw.ref('refs/heads/v1.000-x'), oid)
  await send(ours.port, [header(OUR_PATH, body.length, as('hgt_write')), body])
  t.match(ours.events.at(-1), { updates: [{ ref: 'refs/heads/v1.000-x' }] })
})

t.test('N5: a command in two segments, and an empty body, hang there; here they are answered', async (t) => {
  const { raw, ours, oid } = await both(t)
  const body = commands(`${ZERO_OID} ${oid} refs/heads/ok`)
  const [a, b] = [body.subarray(0, 30), body.subarray(30)]
  t.equal(await send(raw.port, [header(RAW_PATH, body.length), a, b], HANGS), '')
  const another = await startRaw(t, join(raw.dir, '../another'))
  t.equal(await send(another.port, [header(RAW_PATH, 0)], HANGS), '')
  t.match(await send(ours.port, [header(OUR_PATH, body.length, as('hgt_write')), a, b]), 'ok refs/heads/ok')
  t.match(await send(ours.port, [header(OUR_PATH, 0, as('hgt_write'))]), /^HTTP\/1\.1 200 /)
})

t.test('N6: a client that goes away ends the process there; here it does not', async (t) => {
  const { raw, ours, oid } = await both(t)
  const cut = [header(RAW_PATH, 100_000), pktLine(`${ZERO_OID} ${oid} refs/heads/ok\0 report-status`)]
  await send(raw.port, cut, { abort: true })
  t.not(await raw.ended, 0)
  t.match(raw.stderr(), /aborted/)
  await send(ours.port, [header(OUR_PATH, 100_000, as('hgt_write')), ...cut.slice(1)], { abort: true })
  t.match(await send(ours.port, [header(OUR_PATH, 0, as('hgt_write'))]), /^HTTP\/1\.1 200 /)
})

t.test('N7: a bad encoding ends the process there; here it is a status', async (t) => {
  for (const [encoding, told, status] of [
    ['gzip', 'incorrect header check', 400],
    ['constructor', 'dest.on is not a function', 415],
  ] as const) {
    const { raw, ours } = await both(t)
    const extra = `Content-Encoding: ${encoding}\r\n`
    await send(raw.port, [header(RAW_PATH, 9, extra), 'no gzip..'])
    t.not(await raw.ended, 0, encoding)
    t.match(raw.stderr(), told)
    const answer = await send(ours.port, [header(OUR_PATH, 9, extra + as('hgt_write')), 'no gzip..'])
    t.match(answer, `HTTP/1.1 ${status} `)
  }
})

t.test("no request reaches the parent's handle", async (t) => {
  const parent = Object.getPrototypeOf(HangarGit.prototype) as { handle: () => void; create: () => void }
  const original = parent.handle
  let reached = 0
  parent.handle = () => {
    reached++
  }
  t.teardown(() => {
    parent.handle = original
  })
  const s = await gitServerOf(t)
  const work = await s.work('work')
  t.equal((await s.git(work, 'push', 'origin', 'main')).code, 0)
  t.equal((await s.git(work, 'clone', '-q', s.as('hgt_read'), 'clone')).code, 0)
  for (const path of [
    '/',
    '/git/',
    '/git/acme/app.git/HEAD',
    '/app.git/info/refs?service=git-upload-pack',
    '/git/acme/app.git/git-x',
  ])
    for (const method of ['GET', 'POST', 'PUT'])
      await send(s.port, [`${method} ${path} HTTP/1.1\r\nHost: x\r\n${as('hgt_admin')}Content-Length: 0\r\n\r\n`])
  t.equal(reached, 0)

  const served: string[] = []
  const git = new HangarGit({ repositories: s.repositories, serve: (req) => void served.push(req.url ?? '') })
  const req = new IncomingMessage(new Socket())
  req.url = '/x'
  git.handle(req, new ServerResponse(req))
  t.strictSame(served, ['/x'])
  t.equal(git.exists('acme/app'), false, 'what was not opened maps to nowhere')
  t.ok(await git.open(s.repo.slug ?? ('' as never)))
  t.equal(git.exists('acme/app'), true)
  t.equal(git.dirMap('acme/app'), s.repo.dir)
  t.equal(git.dirMap('../../etc'), git.dirMap('acme/none'))
  git.create('x', (error) => t.match(error?.message, 'made by an operation'))
})
