import { chmodSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { Oid } from '../../domain/names.ts'
import { type GitServer, gitServerOf } from './git-server.ts'

const commit = async (s: GitServer, cwd: string, file: string, text: string) => {
  writeFileSync(join(cwd, file), text)
  await s.git(cwd, 'add', '.')
  await s.git(cwd, 'commit', '-q', '-m', `change ${file}`)
  return (await s.git(cwd, 'rev-parse', 'HEAD')).out.trim() as Oid
}

const incoming = (s: GitServer) =>
  readdirSync(join(s.repo.dir, 'objects')).filter((name) => name.startsWith('incoming'))

t.test('a push, a clone and a fetch, in every protocol version', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await commit(s, work, 'a', 'a\n')
  t.equal((await s.git(work, 'push', 'origin', 'main')).code, 0)
  await s.git(work, 'tag', '-am', 'one', 'v1')
  await s.git(work, 'tag', 'light')
  t.equal((await s.git(work, 'push', 'origin', '--tags')).code, 0)
  for (const version of ['0', '1', '2']) {
    const dir = `clone${version}`
    const cloned = await s.git(work, '-c', `protocol.version=${version}`, 'clone', '-q', s.as('hgt_read'), dir)
    t.equal(cloned.code, 0, cloned.err)
    const next = await commit(s, work, 'a', `changed ${version}\n`)
    t.equal((await s.git(work, 'push', '-q', 'origin', 'main')).code, 0)
    const fetched = await s.git(join(work, dir), '-c', `protocol.version=${version}`, 'pull', '-q')
    t.equal(fetched.code, 0, fetched.err)
    t.equal((await s.git(join(work, dir), 'rev-parse', 'HEAD')).out.trim(), next)
    t.equal((await s.git(join(work, dir), 'describe', '--tags', 'v1')).out.trim(), 'v1')
    const shallow = await s.git(
      work,
      '-c',
      `protocol.version=${version}`,
      'clone',
      '-q',
      '--depth=1',
      s.as('hgt_read'),
      `s${dir}`,
    )
    t.equal(shallow.code, 0, shallow.err)
    t.equal(
      (await s.git(join(work, `s${dir}`), '-c', `protocol.version=${version}`, 'fetch', '-q', '--unshallow')).code,
      0,
    )
  }
  t.equal(await s.inStore('fsck', '--full'), '')
})

t.test('the first push names the default branch, and its event is kept before the report', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  const empty = await s.git(work, 'clone', '-q', s.as('hgt_read'), 'empty')
  t.equal(empty.code, 0, 'an empty repository can be cloned')
  t.equal((await s.git(work, 'push', 'origin', 'main:trunk')).code, 0)
  t.equal(await s.inStore('symbolic-ref', 'HEAD'), 'refs/heads/trunk')
  t.equal((await s.git(work, 'clone', '-q', s.as('hgt_read'), 'clone')).code, 0)
  t.equal((await s.git(join(work, 'clone'), 'branch', '--show-current')).out.trim(), 'trunk')
  await s.git(work, 'commit', '-q', '--amend', '--allow-empty', '-m', 'other')
  t.equal((await s.git(work, 'push', '-f', 'origin', 'main:trunk')).code, 0)
  await s.git(work, 'commit', '-q', '--allow-empty', '-m', 'more')
  t.equal((await s.git(work, 'push', 'origin', 'main:trunk')).code, 0)
  t.match(s.events, [
    { type: 'push', repo: 'acme/app', by: 'token:read-repo:write', forced: [] },
    { forced: ['refs/heads/trunk'] },
    { forced: [], updates: [{ ref: 'refs/heads/trunk', new: await s.ref('refs/heads/trunk') }] },
  ])
})

t.test('a grant pushes its own refs, and a refusal is a sentence at the ref', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const before = await s.ref('refs/heads/main')
  const mine = await commit(s, work, 'mine', 'x\n')
  const refused = await s.git(work, 'push', s.as('hgs_fix'), 'main')
  t.equal(refused.code, 1)
  t.match(refused.err, '! [remote rejected] main -> main (this grant may push only refs/heads/hangar/csv-fix)')
  t.notMatch(refused.err, /RPC failed/)
  t.equal((await s.git(s.repo.dir, 'cat-file', '-e', mine)).code, 1, 'no object of a refused push stays')
  t.strictSame(incoming(s), [])

  const mixed = await s.git(work, 'push', s.as('hgs_fix'), 'main', 'main:refs/heads/hangar/csv-fix', 'main:refs/tags/x')
  t.match(mixed.err, /\* \[new branch\] +main -> hangar\/csv-fix/)
  t.match(mixed.err, /\[remote rejected\] main -> main \(this grant/)
  t.equal(await s.ref('refs/heads/hangar/csv-fix'), mine)
  t.equal(await s.ref('refs/heads/main'), before)
  t.equal(await s.ref('refs/tags/x'), null)

  const more = await commit(s, work, 'mine', 'y\n')
  const atomic = await s.git(work, 'push', '--atomic', s.as('hgs_fix'), 'main', 'main:refs/heads/hangar/csv-fix')
  t.match(atomic.err, /main -> hangar\/csv-fix \(atomic push/)
  t.equal(await s.ref('refs/heads/hangar/csv-fix'), mine)
  t.equal((await s.git(s.repo.dir, 'cat-file', '-e', more)).code, 1)

  await s.git(work, 'commit', '-q', '--amend', '-m', 'amended')
  const checkpoint = 'HEAD:refs/hangar/sessions/csv-fix/checkpoint'
  const both = await s.git(
    work,
    'push',
    '--atomic',
    '-f',
    s.as('hgs_fix'),
    'HEAD:refs/heads/hangar/csv-fix',
    checkpoint,
  )
  t.equal(both.code, 0, both.err)
  const gone = await s.git(work, 'push', s.as('hgs_fix'), ':refs/heads/hangar/csv-fix')
  t.match(gone.err, 'this grant may not delete refs')
  const options = await s.git(work, 'push', '-o', 'a;b $(x)', s.as('hgs_fix'), 'HEAD~1:refs/heads/hangar/csv-fix', '-f')
  t.equal(options.code, 0, options.err)
  t.match(s.events.at(-1), { type: 'push', by: 'grant:sb-csv-fix' })
})

t.test('a default clone stays clean of session branches, and asking for one gets it', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  await commit(s, work, 'x', 'x')
  await s.git(
    work,
    'push',
    '-q',
    s.as('hgs_fix'),
    'HEAD:refs/heads/hangar/csv-fix',
    'HEAD:refs/hangar/sessions/csv-fix/checkpoint',
  )
  await s.git(work, 'clone', '-q', s.as('hgt_admin'), 'clone')
  const clone = join(work, 'clone')
  t.notMatch((await s.git(clone, 'branch', '-r')).out, 'hangar')
  t.equal((await s.git(clone, 'fetch', 'origin', 'hangar/csv-fix')).code, 0)
  t.equal((await s.git(clone, 'fetch', 'origin', 'refs/hangar/sessions/csv-fix/checkpoint')).code, 0)
  t.match((await s.git(clone, 'ls-remote', 'origin')).out, 'refs/heads/hangar/csv-fix')
  t.equal((await s.git(work, 'clone', '-q', '--mirror', s.as('hgt_admin'), 'mirror')).code, 0)
  t.match((await s.git(join(work, 'mirror'), 'for-each-ref')).out, 'refs/hangar/sessions/csv-fix/checkpoint')
  const forked = await s.git(clone, 'fetch', s.as('hgs_fork'), 'refs/hangar/sessions/csv-fix/checkpoint')
  t.equal(forked.code, 0, 'a fork sees the checkpoint of its parent')
  t.not((await s.git(clone, 'fetch', s.as('hgs_two'), 'refs/hangar/sessions/csv-fix/checkpoint')).code, 0)
})

t.test(
  "a person's push is told of the project's refs alone, and may build on a session's branch all the same",
  async (t) => {
    const s = await gitServerOf(t)
    const work = await s.work('work')
    await s.git(work, 'push', '-q', 'origin', 'main')
    await s.git(work, 'commit', '-q', '--allow-empty', '-m', 'of a session')
    await s.git(work, 'commit', '-q', '--allow-empty', '-m', 'and its second')
    const own = await s.git(work, 'push', '-q', s.as('hgs_fix'), 'HEAD:refs/heads/hangar/csv-fix')
    t.equal(own.code, 0, own.err)
    const auth = { authorization: `Basic ${Buffer.from('x:hgt_write').toString('base64')}` }
    const told = await (await fetch(`${s.url}/info/refs?service=git-receive-pack`, { headers: auth })).text()
    t.match(told, /refs\/heads\/main/)
    t.notMatch(told, /csv-fix/)
    await s.git(work, 'commit', '-q', '--allow-empty', '-m', 'on top')
    const tip = (await s.git(work, 'rev-parse', 'HEAD')).out.trim()
    const body = [
      `${'0'.repeat(40)} ${tip} refs/heads/on-top\0report-status`,
      `${'0'.repeat(40)} ${tip} refs/heads/again`,
    ].map((line) => (line.length + 4).toString(16).padStart(4, '0') + line)
    // The pack holds the last commit alone: what is below it only the session's branch reaches.
    await s.git(work, '-c', `alias.pack=!printf '%s\n' ${tip} ^${tip}^ | git pack-objects --revs -q one`, 'pack')
    const [name = ''] = readdirSync(work).filter((file) => file.endsWith('.pack'))
    const push = Buffer.concat([Buffer.from(`${body.join('')}0000`), readFileSync(join(work, name))])
    const answer = await fetch(`${s.url}/git-receive-pack`, {
      method: 'POST',
      body: push,
      headers: { ...auth, 'content-type': 'application/x-git-receive-pack-request' },
    })
    t.match(await answer.text(), /unpack ok.*ok refs\/heads\/on-top.*ok refs\/heads\/again/s)
    t.equal(await s.ref('refs/heads/on-top'), tip)
  },
)

t.test('partial clones, and their lazy fetches, by a grant', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  for (let at = 0; at < 5; at++) await commit(s, work, 'file', `${at}\n`.repeat(100))
  await s.git(work, 'push', '-q', 'origin', 'main')
  for (const version of ['0', '2'])
    for (const filter of ['blob:none', 'tree:0']) {
      const dir = `${filter.replace(':', '')}-${version}`
      const args = ['-c', `protocol.version=${version}`]
      const cloned = await s.git(work, ...args, 'clone', '-q', `--filter=${filter}`, s.as('hgs_fix'), dir)
      t.equal(cloned.code, 0, cloned.err)
      const log = await s.git(join(work, dir), ...args, 'log', '-p', '--format=%H')
      t.equal(log.code, 0, log.err)
      t.match(log.out, '-3', 'old blobs come when asked for')
    }
  const sparse = await s.git(work, 'clone', '-q', '--filter=sparse:oid=main:file', s.as('hgs_fix'), 'sparse')
  t.not(sparse.code, 0, 'a filter that reads a blob is not taken')
})

t.test('pushes without objects, of deletes, of many refs, of many objects', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  for (let at = 0; at < 150; at++) writeFileSync(join(work, `f${at}`), `${at}\n`)
  await commit(s, work, 'last', 'x')
  t.equal((await s.git(work, 'push', 'origin', 'main')).code, 0)
  t.equal(readdirSync(join(s.repo.dir, 'objects/pack')).filter((name) => name.endsWith('.pack')).length, 1)
  t.equal((await s.git(work, 'push', 'origin', 'main:again')).code, 0, 'an empty pack')
  const resets = Array.from({ length: 400 }, (_, at) => `reset refs/heads/b/${at}\nfrom refs/heads/main\n\n`)
  writeFileSync(join(work, '.git', 'stream'), resets.join(''))
  await s.git(work, '-c', 'alias.fi=!git fast-import --quiet < .git/stream', 'fi')
  t.equal((await s.git(work, 'push', '-q', 'origin', 'refs/heads/b/*:refs/heads/b/*')).code, 0)
  for (const version of ['0', '2']) {
    const dir = `many${version}`
    t.equal((await s.git(work, '-c', `protocol.version=${version}`, 'clone', '-q', s.as('hgt_read'), dir)).code, 0)
    t.equal((await s.git(join(work, dir), 'branch', '-r')).out.trim().split('\n').length, 403)
  }
  const deleted = await s.git(work, 'push', 'origin', ':b/1', ':b/2', 'main:new')
  t.equal(deleted.code, 0, deleted.err)
  t.equal(await s.ref('refs/heads/b/1'), null)
  const folder = await s.git(work, 'push', 'origin', 'main:new/below', 'main:b')
  t.match(folder.err, /main -> new\/below \(a ref that is a folder/)
  t.match(folder.err, /main -> b \(a ref that is a folder/)
  await s.git(work, 'tag', '-am', 'x', 'annotated')
  const tagged = await s.git(work, 'push', 'origin', 'annotated:refs/heads/annotated')
  t.match(tagged.err, /this ref may name only a commit|not a commit|cannot be resolved/)
  const tree = await s.git(work, 'push', 'origin', 'main^{tree}:refs/heads/tree')
  t.not(tree.code, 0)
})

t.test('refs whose names are no UTF-8 keep their bytes', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  const script = join(work, 'push.sh')
  writeFileSync(script, `#!/bin/sh\nname=$(printf 'refs/heads/\\377\\376')\ngit push -q "$1" "HEAD:$name"\n`)
  chmodSync(script, 0o755)
  t.equal((await s.git(work, '-c', 'alias.bytes=!./push.sh', 'bytes', s.as('hgt_write'))).code, 0)
  const { refs } = await s.repo.refs.snapshot()
  t.equal(refs[0]?.name, 'refs/heads/\xff\xfe')
  t.match((await s.git(work, 'ls-remote', s.as('hgt_read'))).out, 'refs/heads/\xff\xfe')
})

t.test('a push from a shallow clone is taken when the rest is here, and told what to do when not', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await commit(s, work, 'a', '1')
  await commit(s, work, 'a', '2')
  await s.git(work, 'push', '-q', 'origin', 'main')
  await s.git(work, 'clone', '-q', '--depth=1', s.as('hgt_read'), 'shallow')
  const shallow = join(work, 'shallow')
  await commit(s, shallow, 'a', '3')
  const taken = await s.git(shallow, 'push', s.as('hgt_write'), 'HEAD:topic')
  t.equal(taken.code, 0, taken.err)
  const other = await s.work('other')
  await commit(s, other, 'b', '1')
  await commit(s, other, 'b', '2')
  await s.git(work, 'clone', '-q', '--depth=1', `file://${other}`, 'cut')
  const cut = await s.git(join(work, 'cut'), 'push', s.as('hgt_write'), 'HEAD:cut')
  t.match(cut.err, 'shallow update not allowed: run git fetch --unshallow')
  t.strictSame(incoming(s), [])
})

t.test('of two pushes that race one wins, and the other is told', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const base = (await s.git(work, 'rev-parse', 'HEAD')).out.trim()
  const racers: string[] = []
  for (let at = 0; at < 4; at++) {
    await s.git(work, 'checkout', '-q', '-B', `r${at}`, base)
    racers.push(await commit(s, work, `r${at}`, `${at}`))
  }
  const results = await Promise.all(racers.map((_, at) => s.git(work, 'push', 'origin', `r${at}:main`)))
  t.equal(results.filter(({ code }) => code === 0).length, 1)
  t.ok(racers.includes((await s.ref('refs/heads/main')) ?? ''))
  for (const { code, err } of results) if (code !== 0) t.match(err, /moved meanwhile; fetch and push again|fetch first/)
})

t.test('a caller that is revoked while it uploads moves nothing', async (t) => {
  let live = true
  const s = await gitServerOf(t, { deps: { isLive: () => live } })
  const work = await s.work('work')
  live = false
  const late = await s.git(work, 'push', s.as('hgs_fix'), 'main:refs/heads/hangar/csv-fix')
  t.match(late.err, 'this grant is no longer valid')
  t.equal(await s.ref('refs/heads/hangar/csv-fix'), null)
  s.callers.delete('hgs_fix')
  t.match((await s.git(work, 'fetch', s.as('hgs_fix'))).err, 'Authentication failed')
})

t.test('content that git holds for an attack is refused, and old faults are not', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  writeFileSync(join(work, 'module'), '[submodule "x"]\n\tpath = x\n\turl = -uevil\n')
  const blob = (await s.git(work, 'hash-object', '-w', 'module')).out.trim()
  const commitOf = async (name: string, mode: string, entry: string) => {
    const raw = Buffer.concat([Buffer.from(`${mode} ${name}\0`), Buffer.from(entry, 'hex')])
    writeFileSync(join(work, 'tree'), raw)
    const tree = (await s.git(work, 'hash-object', '-t', 'tree', '-w', '--literally', 'tree')).out.trim()
    return (await s.git(work, 'commit-tree', '-m', 'x', '-p', 'HEAD', tree)).out.trim()
  }
  const inner = (await s.git(work, 'write-tree')).out.trim()
  const cases: readonly [string, string, string, boolean][] = [
    ['.git', '40000', inner, false],
    ['.GIT', '40000', inner, false],
    ['..', '40000', inner, false],
    ['.gitmodules', '100644', blob, false],
    ['.gitmodules', '120000', blob, false],
    ['a', '0100644', blob, true],
    ['a', '100644', blob, true],
  ]
  for (const [name, mode, entry, taken] of cases) {
    const oid = await commitOf(name, mode, entry)
    const pushed = await s.git(work, 'push', '-f', 'origin', `${oid}:refs/heads/try`)
    t.equal(pushed.code === 0, taken, `${mode} ${name}: ${pushed.err}`)
    if (!taken) t.equal((await s.git(s.repo.dir, 'cat-file', '-e', oid)).code, 1)
  }
})

t.test('as many git processes run as may, and the rest waits', async (t) => {
  const s = await gitServerOf(t, { limits: { maxGitProcesses: 2 } })
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const clones = await Promise.all(
    Array.from({ length: 8 }, (_, at) => s.git(work, 'clone', '-q', s.as('hgt_read'), `c${at}`)),
  )
  t.ok(clones.every(({ code }) => code === 0))
})

t.test('a server of a test is closed before its directory goes', async (t) => {
  let there = false
  await t.test('one', async (t) => {
    const s = await gitServerOf(t)
    t.teardown(() => {
      there = existsSync(s.repo.dir)
    })
  })
  t.ok(there)
})
