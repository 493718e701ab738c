import { execFileSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { type IncomingHttpHeaders, request } from 'node:http'
import { connect } from 'node:net'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { isOid, type Oid, type RefName, ZERO_OID } from '../../domain/names.ts'
import { pktLines } from '../../gateway/wire/pkt-line.ts'
import { type GitServer, gitServerOf } from './git-server.ts'
import { type PackObject, packIn, packOf, typesIn } from './packs.ts'

interface Answer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

interface Call {
  readonly path?: string
  readonly method?: string
  readonly secret?: string | null
  readonly headers?: Record<string, string>
  /** The whole body, or a function that gives chunks until it gives null. */
  readonly body?: Buffer | string | (() => Buffer | null)
}

const basic = (secret: string) => `Basic ${Buffer.from(`x:${secret}`).toString('base64')}`
const RECEIVE = { path: '/git/acme/app.git/git-receive-pack', type: 'application/x-git-receive-pack-request' }
const UPLOAD = { path: '/git/acme/app.git/git-upload-pack', type: 'application/x-git-upload-pack-request' }

function call(s: GitServer, options: Call): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const secret = options.secret === undefined ? 'hgt_admin' : options.secret
    const req = request({
      host: '127.0.0.1',
      port: s.port,
      path: options.path ?? '/git/acme/app.git/info/refs?service=git-upload-pack',
      method: options.method ?? (options.body === undefined ? 'GET' : 'POST'),
      headers: { ...(secret === null ? {} : { authorization: basic(secret) }), ...options.headers },
    })
    req.on('error', reject)
    req.on('response', (res) => {
      const chunks: Buffer[] = []
      res.on('data', (chunk: Buffer) => chunks.push(chunk))
      res.on('error', reject)
      res.on('end', () =>
        resolve({ status: res.statusCode ?? 0, headers: res.headers, body: Buffer.concat(chunks).toString('latin1') }),
      )
    })
    if (typeof options.body !== 'function') return void req.end(options.body)
    const { body } = options
    const pump = () => {
      for (;;) {
        const chunk = body()
        if (chunk === null) return void req.end()
        if (!req.write(chunk)) return void req.once('drain', pump)
      }
    }
    pump()
  })
}

const post = (s: GitServer, to: { path: string; type: string }, body: Buffer | string, options: Call = {}) =>
  call(s, { ...options, path: to.path, headers: { 'content-type': to.type, ...options.headers }, body })

/** The report of a push without sideband, as lines. */
const push = async (
  s: GitServer,
  secret: string,
  lines: readonly string[],
  pack: Buffer = Buffer.alloc(0),
  caps = 'report-status',
) => {
  const [first = '', ...rest] = lines
  const head = Buffer.concat([pktLines([`${first}\0${caps}`, ...rest]), Buffer.from('0000')])
  const answer = await post(s, RECEIVE, Buffer.concat([head, pack]), { secret })
  return answer.body.split(/\n?[0-9a-f]{4}(?=unpack|ok|ng)|\n?0000$/).filter(Boolean)
}

const oidOf = (type: string, bytes: Buffer) =>
  createHash('sha1').update(`${type} ${bytes.length}\0`).update(bytes).digest('hex') as Oid
const treeOf = (entries: readonly [string, Oid][]) =>
  Buffer.concat(entries.flatMap(([name, oid]) => [Buffer.from(`100644 ${name}\0`), Buffer.from(oid, 'hex')]))
const commitOf = (tree: Oid, parents: readonly Oid[] = []) =>
  Buffer.from(
    `tree ${tree}\n${parents.map((parent) => `parent ${parent}\n`).join('')}author a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n`,
  )

/** A store with main, and a commit with a secret file that only the session csv-fix and its like may see. */
async function withSecret(s: GitServer) {
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const main = (await s.git(work, 'rev-parse', 'HEAD')).out.trim() as Oid
  const mainTree = (await s.git(work, 'rev-parse', 'HEAD^{tree}')).out.trim() as Oid
  writeFileSync(join(work, 'secret'), `${'the secret of csv-fix\n'.repeat(20)}`)
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-qm', 'secret one')
  const inner = (await s.git(work, 'rev-parse', 'HEAD')).out.trim() as Oid
  await s.git(work, 'commit', '-q', '--allow-empty', '-m', 'secret two')
  const tip = (await s.git(work, 'rev-parse', 'HEAD')).out.trim() as Oid
  const pushed = await s.git(work, 'push', '-q', s.as('hgs_fix'), 'HEAD:refs/heads/hangar/csv-fix')
  if (pushed.code !== 0) throw new Error(pushed.err)
  const blob = (await s.git(work, 'rev-parse', 'HEAD:secret')).out.trim() as Oid
  const tree = (await s.git(work, 'rev-parse', 'HEAD^{tree}')).out.trim() as Oid
  return { work, main, mainTree, inner, tip, blob, tree }
}

t.test('every request is authenticated, and what is not for the caller is not there', async (t) => {
  const s = await gitServerOf(t)
  await s.work('work')
  const anonymous = [
    await call(s, { secret: null }),
    await call(s, { secret: 'hgt_unknown' }),
    await post(s, RECEIVE, `${pktLines([`${ZERO_OID} ${'a'.repeat(40)} refs/heads/x\0report-status`])}0000`, {
      secret: null,
    }),
    await post(s, UPLOAD, '0000', { secret: null }),
    await call(s, { secret: null, headers: { authorization: 'Digest x' } }),
    await call(s, { secret: null, path: '/git/no/such.git/info/refs?service=git-upload-pack' }),
  ]
  for (const answer of anonymous) {
    t.equal(answer.status, 401)
    t.equal(answer.body, '')
    t.equal(answer.headers['www-authenticate'], 'Basic realm="hangar"')
  }
  t.equal((await call(s, { secret: null, headers: { authorization: 'Bearer hgt_read' } })).status, 200)
  const hidden = [
    await call(s, { secret: 'hgt_other' }),
    await call(s, { path: '/git/acme/none.git/info/refs?service=git-upload-pack' }),
    await call(s, { secret: 'hgs_fix', path: '/git/acme/other.git/info/refs?service=git-upload-pack' }),
  ]
  for (const answer of hidden) t.equal(answer.status, 404)
  t.equal(new Set(hidden.map(({ body }) => body)).size, 1)
  const read = await push(s, 'hgt_read', [`${ZERO_OID} ${'a'.repeat(40)} refs/heads/x`])
  t.match(read[1], 'ng refs/heads/x this token has not the scope repo:write')
})

t.test('only the three paths of smart HTTP are there, written one way', async (t) => {
  const s = await gitServerOf(t)
  const reposBefore = readdirSync(join(s.repo.dir, '..')).join()
  const q = '?service=git-upload-pack'
  const paths = [
    `/git/acme/../acme/app.git/info/refs${q}`,
    `/git/%61cme/app.git/info/refs${q}`,
    `/git/acme/%2e%2e/app.git/info/refs${q}`,
    `/git/acme%2fapp.git/info/refs${q}`,
    `/git/acme\\app.git/info/refs${q}`,
    `/git//acme/app.git/info/refs${q}`,
    `/git/acme/app.git/refs/info/refs${q}`,
    `/git/acme/-app.git/info/refs%00${q}`,
    `/git/acme/app/info/refs${q}`,
    `/git/ACME/app.git/info/refs${q}`,
    `/git/acme/app.git.git/info/refs${q}`,
    '/git/acme/app.git/HEAD',
    '/git/acme/app.git/config',
    '/git/acme/app.git/objects/info/alternates',
    '/git/acme/app.git/objects/info/packs',
    '/git/acme/app.git/git-upload-pack',
    '/git/acme/app.git/git-upload-archive',
    '/git/',
  ]
  for (const path of paths) t.equal((await call(s, { path })).status, 404, path)
  t.equal((await call(s, { path: '/git/acme/app.git/info/refs' })).status, 403, 'the dumb protocol gets a sentence')
  t.equal((await call(s, { path: '/git/acme/app.git/info/refs?service=git-upload-archive' })).status, 403)
  t.equal(
    (await call(s, { path: '/git/acme/app.git/info/refs?service=git-upload-pack', method: 'DELETE' })).status,
    404,
  )
  t.equal(readdirSync(join(s.repo.dir, '..')).join(), reposBefore, 'nothing was made')
})

t.test('headers are exact, and encodings are looked up in no object', async (t) => {
  const s = await gitServerOf(t)
  const v0 = await call(s, {})
  t.equal(v0.headers['content-type'], 'application/x-git-upload-pack-advertisement')
  t.equal(v0.headers['cache-control'], 'no-cache, max-age=0, must-revalidate')
  t.match(v0.body, /^001e# service=git-upload-pack\n0000/)
  const v2 = await call(s, { headers: { 'git-protocol': 'trace=1:version=2:x' } })
  t.match(v2.body, /^000eversion 2\n/)
  for (const encoding of ['constructor', '__proto__', 'deflate', 'br', 'gzip, gzip', 'toString'])
    t.equal((await post(s, UPLOAD, '0000', { headers: { 'content-encoding': encoding } })).status, 415, encoding)
  for (const type of ['text/plain', `${UPLOAD.type}; charset=utf-8`, RECEIVE.type])
    t.equal((await post(s, { ...UPLOAD, type }, '0000')).status, 415, type)
  for (const to of [UPLOAD, RECEIVE]) {
    const flush = await post(s, to, '0000')
    t.strictSame([flush.status, flush.body], [200, ''], 'a lone flush packet is legal')
    t.equal(flush.headers['content-type'], to.type.replace('request', 'result'))
    const packed = await post(s, to, gzipSync('0000'), { headers: { 'content-encoding': 'x-gzip' } })
    t.equal(packed.status, 200)
    t.equal((await post(s, to, 'no gzip at all', { headers: { 'content-encoding': 'gzip' } })).status, 400)
    t.equal(
      (await post(s, to, gzipSync('0000').subarray(0, 12), { headers: { 'content-encoding': 'gzip' } })).status,
      400,
    )
    t.equal((await post(s, to, 'GET / HTTP/1.1')).status, 400)
  }
  const expected = await post(s, RECEIVE, '0000', { headers: { expect: '100-continue' } })
  t.equal(expected.status, 200)
  t.equal((await post(s, RECEIVE, '0000', { secret: null, headers: { expect: '100-continue' } })).status, 401)
})

t.test('bombs and endless bodies end early, in bounded memory', async (t) => {
  const s = await gitServerOf(t, { limits: { maxFetchRequestBytes: 8 * 1024 * 1024 } })
  const rss = process.memoryUsage().rss
  const zeros = gzipSync(Buffer.alloc(200 * 1024 * 1024))
  for (const to of [UPLOAD, RECEIVE])
    t.equal((await post(s, to, zeros, { headers: { 'content-encoding': 'gzip' } })).status, 400, 'a bomb of zero bytes')
  const have = Buffer.from(`0032have ${'a'.repeat(40)}\n`)
  const want = `0032want ${'a'.repeat(40)}\n0000`
  const many = Buffer.concat([Buffer.from(want), Buffer.alloc(have.length * 300_000, have)])
  const packed = gzipSync(many)
  t.equal((await post(s, UPLOAD, packed, { headers: { 'content-encoding': 'gzip' } })).status, 413, 'a bomb of haves')
  const command = Buffer.from(`0068${ZERO_OID} ${'a'.repeat(40)} refs/heads/aaaaaa\n`)
  const commands = Buffer.alloc(command.length * 1_000_000, command)
  t.equal(
    (await post(s, RECEIVE, gzipSync(commands), { headers: { 'content-encoding': 'gzip' } })).status,
    413,
    'a million commands',
  )
  let sent = 0
  const endless = call(s, {
    ...UPLOAD,
    headers: { 'content-type': UPLOAD.type },
    body: () => {
      sent += have.length * 1_000
      return Buffer.alloc(have.length * 1_000, have)
    },
  })
  t.match(
    await endless.catch((error: Error) => error.message),
    /ECONNRESET|EPIPE|socket hang up|\[object Object\]/,
    'a body without end',
  )
  t.ok(sent < 40 * 1024 * 1024, `${sent} bytes were sent`)
  t.ok(process.memoryUsage().rss - rss < 500 * 1024 * 1024)
  t.equal((await call(s, {})).status, 200)
})

t.test('a body that stops coming is given up', async (t) => {
  const s = await gitServerOf(t, { deps: { bodyIdleMs: 200 } })
  const answer = await new Promise<string>((resolve) => {
    const socket = connect(s.port, '127.0.0.1')
    let text = ''
    socket.write(
      `POST ${RECEIVE.path} HTTP/1.1\r\nHost: x\r\nAuthorization: ${basic('hgt_admin')}\r\nContent-Type: ${RECEIVE.type}\r\nContent-Length: 1000\r\n\r\n00`,
    )
    socket.on('data', (chunk) => {
      text += chunk
      socket.end()
      resolve(text)
    })
    socket.on('close', () => resolve(text))
  })
  t.match(answer, /^HTTP\/1\.1 400 /)
})

t.test('two lengths, or a length and chunks, are refused before us', async (t) => {
  const s = await gitServerOf(t)
  const head = `POST ${RECEIVE.path} HTTP/1.1\r\nHost: x\r\nAuthorization: ${basic('hgt_admin')}\r\nContent-Type: ${RECEIVE.type}\r\n`
  for (const extra of [
    'Content-Length: 4\r\nContent-Length: 5',
    'Content-Length: 4\r\nTransfer-Encoding: chunked',
    'Transfer-Encoding: chunked\r\n\r\nzz',
  ]) {
    const text = await new Promise<string>((resolve) => {
      const socket = connect(s.port, '127.0.0.1')
      let got = ''
      socket.on('data', (chunk) => {
        got += chunk
      })
      socket.on('close', () => resolve(got))
      socket.on('error', () => resolve(got))
      socket.write(`${head}${extra}\r\n\r\n0000`)
    })
    t.match(text, /^HTTP\/1\.1 400 /, extra)
  }
})

t.test('commands made by hand get an answer each', async (t) => {
  const s = await gitServerOf(t)
  const { main } = await withSecret(s)
  const names = [
    'refs/heads/../x',
    'refs/heads/a.lock',
    'refs/heads/a b',
    'refs/heads/a\x01b',
    'refs/heads/@{-1}',
    'HEAD',
    '--x',
    'refs/heads//x',
    `refs/heads/${'n'.repeat(300)}`,
  ]
  const report = await push(
    s,
    'hgt_admin',
    names.map((name) => `${ZERO_OID} ${main} ${name}`),
  )
  t.equal(report.length, names.length + 1)
  t.ok(report.slice(1).every((line) => line.startsWith('ng ') && line.endsWith('not a ref name that is taken here')))
  const forged = await push(s, 'hgt_admin', [`${ZERO_OID} ${main} refs/heads/a\nok refs/heads/b`])
  t.strictSame(forged, ['unpack ok', 'ng refs/heads/a?ok?refs/heads/b not a ref name that is taken here'])
  const twice = await push(s, 'hgt_admin', [`${ZERO_OID} ${main} refs/heads/x`, `${ZERO_OID} ${main} refs/heads/x`])
  t.ok(twice.slice(1).every((line) => line.startsWith('ng refs/heads/x named more than once')))
  const zero = await push(s, 'hgt_admin', [`${ZERO_OID} ${ZERO_OID} refs/heads/x`])
  t.match(zero[1], /^ng refs\/heads\/x neither/)
  const stale = await push(s, 'hgt_admin', [`${'b'.repeat(40)} ${main} refs/heads/main`])
  t.match(stale[1], /^ng refs\/heads\/main the ref moved meanwhile; fetch and push again/)
  const absent = await push(s, 'hgt_admin', [`${ZERO_OID} ${'b'.repeat(40)} refs/heads/x`], packOf([]))
  t.match(absent[1], /^ng refs\/heads\/x missing necessary objects/)
  const plain = await post(
    s,
    RECEIVE,
    Buffer.concat([pktLines([`${ZERO_OID} ${main} refs/hangar/x\0agent=x`]), Buffer.from('0000')]),
  )
  t.equal(plain.status, 403, 'a client that takes no report')
  t.match(plain.body, 'refs/hangar/x: refs/hangar/ and refs/notes/hangar are moved by hangar only')
  const cert = await post(s, RECEIVE, Buffer.concat([pktLines(['push-cert\0report-status']), Buffer.from('0000')]))
  t.equal(cert.status, 403)
  t.equal(await s.ref('refs/heads/x'), null)
})

t.test('what a caller does not see it cannot fetch by id, in any protocol', async (t) => {
  const s = await gitServerOf(t)
  const { work, main, inner, tip, blob, tree } = await withSecret(s)
  await s.git(work, 'init', '-q', 'thief')
  const thief = join(work, 'thief')
  for (const version of ['0', '1', '2'])
    for (const oid of [tip, inner, blob, tree]) {
      const stolen = await s.git(thief, '-c', `protocol.version=${version}`, 'fetch', s.as('hgs_two'), oid)
      t.not(stolen.code, 0, `v${version} ${oid}`)
      t.not((await s.git(thief, 'cat-file', '-e', oid)).code, 0)
    }
  for (const version of ['0', '2'])
    t.equal((await s.git(thief, '-c', `protocol.version=${version}`, 'fetch', '-q', s.as('hgs_two'), main)).code, 0)
  t.equal(
    (await s.git(thief, 'fetch', '-q', s.as('hgt_read'), inner)).code,
    0,
    'who sees the branch gets its history by id',
  )

  const v2 = { secret: 'hgs_two', headers: { 'git-protocol': 'version=2' } }
  const ask = (...args: string[]) =>
    post(
      s,
      UPLOAD,
      Buffer.concat([pktLines(['command=fetch']), Buffer.from('0001'), pktLines(args), Buffer.from('0000')]),
      v2,
    )
  const noRef = await ask(`want ${main}`, 'deepen-not hangar/csv-fix', 'done')
  t.match(noRef.body, 'ERR upload-pack: git upload-pack: deepen-not is not a ref')
  t.equal((await ask(`want ${main}`, 'deepen-not hangar/none', 'done')).body, noRef.body, 'as if it were not there')
  t.equal((await ask('want-ref refs/heads/hangar/csv-fix', 'done')).status, 400)
  const deep = await ask(`want ${main}`, `shallow ${tip}`, 'deepen 2147483647', 'done')
  t.equal(deep.status, 200)
  t.notMatch(deep.body, tip, 'a hidden commit is not unshallowed, so its parents are not sent')
  const pack = deep.body.slice(deep.body.indexOf('PACK'))
  t.equal(Buffer.from(pack, 'latin1').readUInt32BE(8), 2, 'a commit and its empty tree')
  const hiddenSparse = await ask(`want ${main}`, `filter sparse:oid=${blob}`, 'done')
  t.notMatch(hiddenSparse.body, 'PACK')
})

t.test('what a pusher does not see it cannot make its own by naming it', async (t) => {
  const s = await gitServerOf(t)
  const { main, mainTree, tip, blob, tree } = await withSecret(s)
  const own = 'refs/heads/hangar/second'
  const refused = async (name: string, oid: Oid, pack: Buffer) => {
    const report = await push(s, 'hgs_two', [`${ZERO_OID} ${oid} ${own}`], pack)
    t.match(report.at(-1), /^ng \S+ missing necessary objects$/, name)
    t.equal(await s.ref(own), null)
  }
  await refused('the id of a hidden commit, with an empty pack', tip, packOf([]))
  const child = commitOf(mainTree, [tip])
  await refused('a commit on a hidden one', oidOf('commit', child), packOf([{ type: 1, bytes: child }]))
  const onTree = commitOf(tree, [main])
  await refused('a commit of a hidden tree', oidOf('commit', onTree), packOf([{ type: 1, bytes: onTree }]))
  const withBlob = treeOf([['x', blob]])
  const onBlob = commitOf(oidOf('tree', withBlob), [main])
  await refused(
    'a tree that names a hidden blob',
    oidOf('commit', onBlob),
    packOf([
      { type: 2, bytes: withBlob },
      { type: 1, bytes: onBlob },
    ]),
  )

  // The delta copies all of its base: its result is the base itself, now "inside the push".
  const size = 'the secret of csv-fix\n'.length * 20
  const varint = (value: number) => (value < 128 ? [value] : [(value & 127) | 128, value >> 7])
  const copyAll = Buffer.from([...varint(size), ...varint(size), 0x80 | 0x10 | 0x20, size & 255, size >> 8])
  const delta = { type: 7 as const, base: blob, bytes: copyAll }
  const few = [
    { type: 2 as const, bytes: withBlob },
    { type: 1 as const, bytes: onBlob },
  ]
  await refused('a delta on a hidden blob', oidOf('commit', onBlob), packOf([delta, ...few]))
  const filler = Array.from({ length: 150 }, (_, at) => ({ type: 3 as const, bytes: Buffer.from(`filler ${at}`) }))
  await refused('the same in a pack of many', oidOf('commit', onBlob), packOf([delta, ...few, ...filler]))
  const extended = Buffer.from([
    ...varint(size),
    ...varint(size + 1),
    0x80 | 0x10 | 0x20,
    size & 255,
    size >> 8,
    1,
    0x21,
  ])
  const longer = Buffer.from(`${'the secret of csv-fix\n'.repeat(20)}!`)
  const readTree = treeOf([['x', oidOf('blob', longer)]])
  const reads = commitOf(oidOf('tree', readTree), [main])
  await refused(
    'a delta that adds to a hidden blob',
    oidOf('commit', reads),
    packOf([
      { type: 7, base: blob, bytes: extended },
      { type: 2, bytes: readTree },
      { type: 1, bytes: reads },
    ]),
  )
  t.strictSame(
    readdirSync(join(s.repo.dir, 'objects')).filter((name) => name.startsWith('incoming')),
    [],
  )
  t.equal((await s.git(s.repo.dir, 'cat-file', '-e', oidOf('commit', reads))).code, 1)

  // A delta whose base is in the pack is a client's right, and an old file may come back.
  const base = Buffer.from('x'.repeat(100))
  const self = Buffer.from([100, 101, 0x80 | 0x10, 100, 1, 0x21])
  const result = oidOf('blob', Buffer.concat([base, Buffer.from('!')]))
  const fine = treeOf([['x', result]])
  const good = commitOf(oidOf('tree', fine), [main])
  const taken = await push(
    s,
    'hgs_two',
    [`${ZERO_OID} ${oidOf('commit', good)} ${own}`],
    packOf([
      { type: 3, bytes: base },
      { type: 7, base: oidOf('blob', base), bytes: self },
      { type: 2, bytes: fine },
      { type: 1, bytes: good },
    ]),
  )
  t.strictSame(taken, ['unpack ok', `ok ${own}`])
  const again = commitOf(mainTree, [oidOf('commit', good)])
  const back = await push(
    s,
    'hgs_two',
    [`${oidOf('commit', good)} ${oidOf('commit', again)} ${own}`],
    packOf([{ type: 1, bytes: again }]),
  )
  t.strictSame(back, ['unpack ok', `ok ${own}`], 'a tree of older history')
  t.equal(
    (await push(s, 'hgt_write', [`${ZERO_OID} ${tip} refs/heads/opened`], packOf([]))).at(-1),
    'ok refs/heads/opened',
    'who sees it may',
  )
})

t.test('the same work from two sandboxes is the own work of each', async (t) => {
  const s = await gitServerOf(t)
  const { main, inner, blob, tree, work } = await withSecret(s)
  const own = 'refs/heads/hangar/second'
  const content = Buffer.from('the secret of csv-fix\n'.repeat(20))
  const treeBytes = treeOf([['secret', blob]])
  t.equal(oidOf('tree', treeBytes), tree)
  const same = commitOf(tree, [main])
  const pack = [
    { type: 3 as const, bytes: content },
    { type: 2 as const, bytes: treeBytes },
    { type: 1 as const, bytes: same },
  ]
  const taken = await push(s, 'hgs_two', [`${ZERO_OID} ${oidOf('commit', same)} ${own}`], packOf(pack))
  t.strictSame(taken, ['unpack ok', `ok ${own}`])
  const third = s.as('hgs_fork')
  t.equal((await s.git(work, 'push', '-q', third, `${inner}:refs/heads/hangar/forked`)).code, 0)
  t.equal(await s.ref('refs/heads/hangar/forked'), inner, 'the very same commits, sent again')
  t.equal(await s.inStore('fsck', '--connectivity-only'), '')
})

t.test('broken packs are refused at their refs, and leave nothing', async (t) => {
  const s = await gitServerOf(t)
  const { main, mainTree } = await withSecret(s)
  const bytes = commitOf(mainTree, [main])
  const oid = oidOf('commit', bytes)
  const pack = packOf([{ type: 1, bytes }])
  const flipped = Buffer.from(pack)
  flipped[20] = (flipped[20] ?? 0) ^ 255
  const claims = Buffer.from(pack)
  claims.writeUInt32BE(4_000_000_000, 8)
  const broken: readonly [string, Buffer][] = [
    ['cut', pack.subarray(0, pack.length - 5)],
    ['flipped', flipped],
    ['too many claimed', claims],
    ['no pack', Buffer.from('no pack at all, really')],
    ['nothing', Buffer.alloc(0)],
    [
      'a bomb',
      packOf([
        { type: 3, bytes: Buffer.alloc(50_000_000) },
        { type: 1, bytes: Buffer.from('tree x\n') },
      ]),
    ],
  ]
  for (const [name, body] of broken) {
    const report = await push(s, 'hgt_write', [`${ZERO_OID} ${oid} refs/heads/x`], body)
    t.match(report.at(-1), /^ng refs\/heads\/x /, name)
    t.equal(await s.ref('refs/heads/x'), null)
    t.equal((await s.git(s.repo.dir, 'cat-file', '-e', oid)).code, 1)
  }
  t.strictSame(
    readdirSync(join(s.repo.dir, 'objects')).filter((name) => name.startsWith('incoming')),
    [],
  )
  t.strictSame(await push(s, 'hgt_write', [`${ZERO_OID} ${oid} refs/heads/x`], pack), ['unpack ok', 'ok refs/heads/x'])
})

t.test('a refused push of 10 MB is answered before its pack, and the client reads the reason', async (t) => {
  const s = await gitServerOf(t)
  const { work } = await withSecret(s)
  writeFileSync(join(work, 'big'), randomBytes(10_000_000))
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-qm', 'big')
  const refused = await s.git(work, 'push', s.as('hgs_two'), 'HEAD:main')
  t.match(refused.err, '! [remote rejected] HEAD -> main (this grant may push only refs/heads/hangar/second)')
  t.ok(isOid((await s.ref('refs/heads/main' as RefName)) ?? ''))
})

t.test('a link in the store leads nowhere', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  symlinkSync(s.repo.dir, join(s.repo.dir, '..', 'linked.git'))
  symlinkSync(work, join(s.repo.dir, '..', '..', 'elsewhere'))
  for (const path of ['acme/linked.git', 'elsewhere/.git', 'elsewhere/work.git'])
    t.equal((await call(s, { path: `/git/${path}/info/refs?service=git-upload-pack` })).status, 404, path)
})

t.test('a URL in absolute form is no path', async (t) => {
  const s = await gitServerOf(t)
  for (const path of [
    `http://127.0.0.1:${s.port}/git/acme/app.git/info/refs?service=git-upload-pack`,
    'http://elsewhere.example/git/acme/app.git/info/refs?service=git-upload-pack',
  ])
    t.equal((await call(s, { path })).status, 404, path)
})

t.test('of a ref and one below it only one is taken, in either order', async (t) => {
  const s = await gitServerOf(t)
  const { main } = await withSecret(s)
  const create = (...refs: string[]) =>
    push(
      s,
      'hgt_write',
      refs.map((ref) => `${ZERO_OID} ${main} ${ref}`),
      packOf([]),
    )
  t.strictSame(await create('refs/heads/a'), ['unpack ok', 'ok refs/heads/a'])
  t.match(await create('refs/heads/a/b'), ['unpack ok', /^ng refs\/heads\/a\/b a ref that is a folder/])
  t.strictSame(await create('refs/heads/c/d'), ['unpack ok', 'ok refs/heads/c/d'])
  t.match(await create('refs/heads/c'), ['unpack ok', /^ng refs\/heads\/c a ref that is a folder/])
  const both = await create('refs/heads/e', 'refs/heads/e/f')
  t.equal(both.filter((line) => line.startsWith('ng ')).length, 1, both.join('\n'))
  t.match(await create('refs/heads/hangar'), [/^unpack/, /^ng refs\/heads\/hangar session branches/])
  t.equal(await s.inStore('fsck', '--connectivity-only'), '')
})

t.test('push options are data, whatever is in them', async (t) => {
  const s = await gitServerOf(t)
  const { main } = await withSecret(s)
  const head = pktLines([`${ZERO_OID} ${main} refs/heads/opted\0report-status push-options`])
  const options = pktLines(['a\nb;c', '$(touch /tmp/x)', 'x'.repeat(60_000), '\0\xff', '', '--upload-pack=id'])
  const flush = Buffer.from('0000')
  const answer = await post(s, RECEIVE, Buffer.concat([head, flush, options, flush, packOf([])]), {
    secret: 'hgt_write',
  })
  t.match(answer.body, 'ok refs/heads/opted')
  t.notMatch(JSON.stringify(s.logged) + JSON.stringify(s.events), /touch|b;c/)
  const endless = pktLines(Array<string>(72).fill('y'.repeat(60_000)))
  const refused = await post(s, RECEIVE, Buffer.concat([head, flush, endless, flush]), { secret: 'hgt_write' })
  t.equal(refused.status, 413)
})

t.test('deep deltas, wide trees and many files stay within memory', async (t) => {
  const s = await gitServerOf(t, { limits: { maxPushBytes: 64 * 1024 * 1024 } })
  const { main } = await withSecret(s)
  const rss = process.memoryUsage().rss
  // Each adds a byte to the one before: 4,000 deep.
  let content = Buffer.from('x'.repeat(100))
  let base = oidOf('blob', content)
  const chain: PackObject[] = [{ type: 3, bytes: content }]
  for (let at = 0; at < 4_000; at++) {
    const [size, next] = [content.length, Buffer.concat([content, Buffer.from('!')])]
    const varint = (value: number) => (value < 128 ? [value] : [(value & 127) | 128, value >> 7])
    const copy = [0x80 | 0x10 | 0x20, size & 255, size >> 8]
    chain.push({ type: 7, base, bytes: Buffer.from([...varint(size), ...varint(size + 1), ...copy, 1, 0x21]) })
    content = next
    base = oidOf('blob', content)
  }
  const wide = treeOf(Array.from({ length: 200_000 }, (_, at) => [`f${String(at).padStart(6, '0')}`, base]))
  const commit = commitOf(oidOf('tree', wide), [main])
  const objects = [...chain, { type: 2 as const, bytes: wide }, { type: 1 as const, bytes: commit }]
  const taken = await push(
    s,
    'hgs_two',
    [`${ZERO_OID} ${oidOf('commit', commit)} refs/heads/hangar/second`],
    packOf(objects),
  )
  t.match(taken[1], /^(ok|ng) refs\/heads\/hangar\/second/, 'it is decided')
  t.ok(process.memoryUsage().rss - rss < 300 * 1024 * 1024)
  t.equal((await call(s, {})).status, 200)
  t.equal(await s.inStore('fsck', '--no-dangling', '--no-progress'), '')
})

t.test('git here looks for made-up collisions of SHA-1', async (t) => {
  // The published pairs do not collide behind the header of a git object: what can be seen is that the check is built in.
  const git = join(execFileSync('git', ['--exec-path'], { encoding: 'utf8' }).trim(), 'git')
  t.ok(readFileSync(git).includes('collision attack'))
})

t.test('what someone says it has is no base of what it gets, unless it sees it', async (t) => {
  const s = await gitServerOf(t)
  const { main, tip } = await withSecret(s)
  // A guess at the hidden file, at its path: as a delta on the hidden one it would tell which bytes were right.
  const guess = Buffer.from(`${'the secret of csv-fix\n'.repeat(19)}the secret of csv-fax\n`)
  const tree = treeOf([['secret', oidOf('blob', guess)]])
  const commit = commitOf(oidOf('tree', tree), [main])
  const own = oidOf('commit', commit)
  const objects = [
    { type: 3 as const, bytes: guess },
    { type: 2 as const, bytes: tree },
    { type: 1 as const, bytes: commit },
  ]
  t.strictSame(await push(s, 'hgs_two', [`${ZERO_OID} ${own} refs/heads/hangar/second`], packOf(objects)), [
    'unpack ok',
    'ok refs/heads/hangar/second',
  ])
  const types = async (secret: string, have: string) => {
    // Of a client with shallow history git looks at all that it has for bases.
    const args = pktLines([`want ${own}`, `shallow ${main}`, `have ${have}`, 'thin-pack', 'done'])
    const body = Buffer.concat([pktLines(['command=fetch']), Buffer.from('0001'), args, Buffer.from('0000')])
    const answer = await post(s, UPLOAD, body, { secret, headers: { 'git-protocol': 'version=2' } })
    // Of the objects in it only deltas on what is not in it are of type 7.
    return typesIn(packIn(Buffer.from(answer.body, 'latin1'))).includes(7)
  }
  t.ok(await types('hgt_admin', tip), 'who sees the base gets a delta')
  t.notOk(await types('hgs_two', tip))
})
