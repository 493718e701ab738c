import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { EMPTY_TREE, type Oid, type RepoSlug, ZERO_OID } from '../../domain/names.ts'
import { createBundle, inspectBundle, unbundle } from '../../gateway/git/bundle.ts'
import { changedFiles, diffTrees, overlayTrees } from '../../gateway/git/diff.ts'
import { appendNote, readNote } from '../../gateway/git/notes.ts'
import { openQuarantine } from '../../gateway/git/quarantine.ts'
import { createRepositories, type Repository, setHead } from '../../gateway/git/repositories.ts'
import type { TreeEdit } from '../../gateway/git/repository.ts'
import { clock, fsck, gitIn, log, openStore, ref, SLUG } from './store-fixture.ts'

const text = (value: string) => Buffer.from(value, 'latin1')
const errorCode = (code: string) => ({ code })

async function treeOf(repo: Repository, files: Record<string, string | [string, TreeEdit & {}]>): Promise<Oid> {
  const edits = new Map<string, TreeEdit>()
  for (const [path, value] of Object.entries(files)) {
    const [body, mode] = Array.isArray(value) ? [value[0], value[1].mode] : [value, '100644' as const]
    edits.set(path, { oid: await repo.objects.writeBlob(text(body)), mode })
  }
  return repo.objects.editTree(null, edits)
}

async function commitOf(repo: Repository, tree: Oid, parents: Oid[] = [], message = 'm'): Promise<Oid> {
  return repo.objects.writeCommit({ tree, parents, message, at: clock.now() })
}

t.test('objects', async (t) => {
  const store = await openStore(t.testdir())
  const { repo } = store
  t.teardown(() => store.repositories.close())

  t.test('what is written is what git reads, whatever bytes the names have', async (t) => {
    const tree = await treeOf(repo, { 'a.txt': 'a', 'caf\xe9/\xff\xfe': 'b', 'a/b': 'c', 'a-b': 'd', a0: 'e' })
    const names = gitIn(repo.dir, ['ls-tree', '-r', '-z', '--name-only', tree]).split('\0').filter(Boolean)
    t.same(names, ['a-b', 'a.txt', 'a/b', 'a0', 'caf\xe9/\xff\xfe'])
    t.equal(fsck(repo.dir), '')
    const entries = await repo.objects.readTree(tree)
    t.equal(await repo.objects.writeTree([...entries].reverse()), tree, 'entries sort as git sorts them')
  })

  t.test('edits touch only what is on the way, and empty directories vanish', async (t) => {
    const base = await treeOf(repo, { 'a/b/c': '1', 'a/b/d': '2', 'x/y': '3', z: '4' })
    const blob = { oid: await repo.objects.writeBlob(text('9')), mode: '100755' as const }
    const cases: [string, Map<string, TreeEdit>, string[]][] = [
      ['add', new Map([['a/n/m', blob]]), ['a/b/c', 'a/b/d', 'a/n/m', 'x/y', 'z']],
      ['remove the last file', new Map([['x/y', null]]), ['a/b/c', 'a/b/d', 'z']],
      ['remove a directory', new Map([['a', null]]), ['x/y', 'z']],
      ['a file becomes a directory', new Map([['z/k', blob]]), ['a/b/c', 'a/b/d', 'x/y', 'z/k']],
      ['a directory becomes a file', new Map([['a', blob]]), ['a', 'x/y', 'z']],
      ['remove what is not there', new Map([['q/r', null]]), ['a/b/c', 'a/b/d', 'x/y', 'z']],
      ['remove below a file', new Map([['z/k', null]]), ['a/b/c', 'a/b/d', 'x/y', 'z']],
      [
        'replace a directory',
        new Map<string, TreeEdit>([
          ['a', null],
          ['a/w', blob],
        ]),
        ['a/w', 'x/y', 'z'],
      ],
    ]
    for (const [name, edits, expected] of cases) {
      const tree = await repo.objects.editTree(base, edits)
      t.same(gitIn(repo.dir, ['ls-tree', '-r', '--name-only', tree]).trim().split('\n'), expected, name)
    }
    const all = new Map<string, TreeEdit>(['a', 'x', 'z'].map((name) => [name, null]))
    t.equal(await repo.objects.editTree(base, all), EMPTY_TREE)
    for (const path of ['', '/a', 'a//b', '../a', 'a/.git/config'])
      await t.rejects(repo.objects.editTree(base, new Map([[path, blob]])), errorCode('invalid_name'), path)
  })

  t.test('reads answer in order, say nothing for what is not there, and refuse what is too large', async (t) => {
    const oids = await Promise.all(
      [...Array(40).keys()].map((at) => repo.objects.writeBlob(text(`body ${at}\n`.repeat(at)))),
    )
    const read = await Promise.all(oids.map((oid) => repo.objects.read(oid)))
    t.same(
      read.map((object, at) => object?.body.toString() === `body ${at}\n`.repeat(at)),
      oids.map(() => true),
    )
    for (const name of ['nope', ZERO_OID, 'a\nb', '', `${ZERO_OID} blob 3`, 'HEAD:x'])
      t.equal(await repo.objects.read(name), null, JSON.stringify(name))
    const large = await repo.objects.writeBlob(Buffer.alloc(100_000, 7))
    await t.rejects(repo.objects.read(large, 99_999), errorCode('limit_passed'))
    t.equal((await repo.objects.read(large, 100_000))?.body.length, 100_000)
    t.equal((await repo.objects.info(large))?.size, 100_000)
  })

  t.test('objects that another git writes or packs later are seen, and a killed reader is replaced', async (t) => {
    const oid = gitIn(repo.dir, ['hash-object', '-w', '--stdin'], 'from outside').trim()
    t.equal((await repo.objects.read(oid))?.body.toString(), 'from outside')
    const commit = await commitOf(repo, await treeOf(repo, { f: 'packed' }))
    await repo.refs.transact([{ ref: ref('refs/heads/packed'), old: ZERO_OID, new: commit }])
    gitIn(repo.dir, ['repack', '-a', '-d', '-q'])
    t.equal((await repo.objects.read('refs/heads/packed:f'))?.body.toString(), 'packed')
    const children = execFileSync('pgrep', ['-P', String(process.pid), '-f', `${repo.dir} cat-file`])
      .toString()
      .trim()
      .split('\n')
    for (const pid of children) process.kill(Number(pid), 'SIGKILL')
    const many = await Promise.all([...Array(20).keys()].map(() => repo.objects.read(commit)))
    t.ok(many.every((object) => object?.oid === commit))
  })

  t.test('a corrupt object is an error, and those asked beside it are still read', async (t) => {
    const [good, bad] = [await repo.objects.writeBlob(text('good one')), await repo.objects.writeBlob(text('bad one'))]
    const file = join(repo.dir, 'objects', bad.slice(0, 2), bad.slice(2))
    rmSync(file)
    writeFileSync(file, readFileSync(join(repo.dir, 'objects', good.slice(0, 2), good.slice(2))).fill(0, 6, 9))
    const [broken, fine] = await Promise.allSettled([repo.objects.read(bad), repo.objects.read(good)])
    t.ok(broken.status === 'rejected' || broken.value === null)
    t.ok(fine.status === 'fulfilled' && fine.value?.body.toString() === 'good one')
    rmSync(file)
  })

  const skip = spawnSync('gpg', ['--version']).status === 0 ? false : 'no gpg here'
  t.test('git verify-commit passes with the exported key', { skip }, async (t) => {
    const commit = await commitOf(repo, await treeOf(repo, { f: '1' }), [], 'Signed\n\nbody caf\u00e9\n')
    const home = join(store.dataDir, 'gpg')
    mkdirSync(home, { mode: 0o700 })
    const env = { PATH: process.env['PATH'], HOME: home, GNUPGHOME: home }
    execFileSync('gpg', ['--batch', '--import'], { env, input: store.signer.publicKeyArmored, stdio: 'pipe' })
    const verified = spawnSync('git', ['verify-commit', commit], { cwd: repo.dir, env })
    t.equal(verified.status, 0, verified.stderr.toString())
    spawnSync('gpgconf', ['--kill', 'all'], { env })
    const data = await repo.objects.readCommit(commit)
    t.match(data?.committer, /^hangar <hangar@localhost> \d+ \+0000$/)
    t.equal(data?.message, 'Signed\n\nbody caf\u00e9\n')
  })
})

t.test('refs', async (t) => {
  const store = await openStore(t.testdir())
  const { repo } = store
  t.teardown(() => store.repositories.close())
  const one = await commitOf(repo, await treeOf(repo, { f: '1' }))
  const two = await commitOf(repo, await treeOf(repo, { f: '2' }), [one])
  const tableIs = async (t: Test, message: string) => {
    const { refs } = await repo.refs.snapshot()
    const seen = refs.map(({ name, oid }) => `${oid} ${name}\n`).join('')
    t.equal(seen, gitIn(repo.dir, ['for-each-ref', '--format=%(objectname) %(refname)']), message)
  }

  t.test('a transaction is all or nothing; losing is a value that names the ref', async (t) => {
    const changes: string[] = []
    const off = repo.refs.onChange((updates) => changes.push(...updates.map((update) => update.ref)))
    const a = ref('refs/heads/a')
    t.same(await repo.refs.transact([{ ref: a, old: ZERO_OID, new: one }]), { ok: true })
    const cases = [
      [
        { ref: ref('refs/heads/b'), old: ZERO_OID, new: one },
        { ref: a, old: two, new: two },
      ],
      [
        { ref: ref('refs/heads/b'), old: ZERO_OID, new: one },
        { ref: a, old: ZERO_OID, new: two },
      ],
      [
        { ref: ref('refs/heads/b'), old: ZERO_OID, new: one },
        { ref: ref('refs/heads/a/x'), old: ZERO_OID, new: one },
      ],
      [
        { ref: ref('refs/heads/b'), old: ZERO_OID, new: one },
        { ref: ref('refs/heads/c'), old: ZERO_OID, new: 'e'.repeat(40) as Oid },
      ],
      [
        { ref: ref('refs/heads/b'), old: ZERO_OID, new: one },
        { ref: ref('refs/heads/b'), old: ZERO_OID, new: two },
      ],
    ]
    for (const updates of cases) {
      const result = await repo.refs.transact(updates)
      t.ok(
        !result.ok && result.ref === updates[1]?.ref && result.reason !== '' && !/\n/.test(result.reason),
        JSON.stringify(result),
      )
      t.equal(await repo.refs.read(ref('refs/heads/b')), null)
    }
    t.same(
      await repo.refs.transact([
        { ref: a, old: one, new: two },
        { ref: ref('refs/heads/b'), old: ZERO_OID, new: one },
      ]),
      { ok: true },
    )
    t.same(await repo.refs.transact([{ ref: ref('refs/heads/b'), old: one, new: ZERO_OID }]), { ok: true })
    t.same(changes, [a, a, 'refs/heads/b', 'refs/heads/b'])
    off()
    await tableIs(t, 'after all of it')
  })

  t.test('names that are not UTF-8 survive, here and in git', async (t) => {
    const odd = ref('refs/heads/\xff\xfe-caf\xe9')
    t.same(await repo.refs.transact([{ ref: odd, old: ZERO_OID, new: one }]), { ok: true })
    t.equal(await repo.refs.read(odd), one)
    await tableIs(t, 'loose')
    await repo.refs.pack()
    await tableIs(t, 'packed')
    t.same(await repo.refs.transact([{ ref: odd, old: one, new: ZERO_OID }]), { ok: true })
    await tableIs(t, 'deleted')
  })

  t.test('what other gits write is seen at once', async (t) => {
    const moves: [string, string[]][] = [
      ['create', ['update-ref', 'refs/heads/out/side/one', one]],
      ['update', ['update-ref', 'refs/heads/out/side/one', two]],
      ['update again at once', ['update-ref', 'refs/heads/out/side/one', one]],
      ['create deeper', ['update-ref', 'refs/tags/v/1', one]],
      ['pack', ['pack-refs', '--all']],
      ['update a packed one', ['update-ref', 'refs/tags/v/1', two]],
      ['delete', ['update-ref', '-d', 'refs/heads/out/side/one']],
      ['a file where a directory was', ['update-ref', 'refs/heads/out', one]],
      ['a symbolic one', ['symbolic-ref', 'refs/remotes/origin/HEAD', 'refs/heads/out']],
      ['its target moves', ['update-ref', 'refs/heads/out', two]],
    ]
    for (const [name, args] of moves) {
      gitIn(repo.dir, args)
      await tableIs(t, name)
    }
    gitIn(repo.dir, ['symbolic-ref', '-d', 'refs/remotes/origin/HEAD'])
    t.equal((await repo.refs.snapshot()).head, 'refs/heads/main')
    await setHead(repo, ref('refs/heads/trunk'))
    t.equal((await repo.refs.snapshot()).head, 'refs/heads/trunk')
  })

  t.test('pack-refs from outside beside our writes loses nothing', async (t) => {
    const names = [...Array(150).keys()].map((at) => ref(`refs/heads/race/${at % 7}/${at}`))
    const packing = (async () => {
      for (let at = 0; at < 15; at += 1) {
        await new Promise((resolve) => setTimeout(resolve, 5))
        spawnSync('git', ['pack-refs', '--all'], { cwd: repo.dir })
      }
    })()
    const results = await Promise.all(
      names.map(async (name) => {
        const made = await repo.refs.transact([{ ref: name, old: ZERO_OID, new: one }])
        const moved = await repo.refs.transact([{ ref: name, old: one, new: two }])
        return [name, made.ok && moved.ok] as const
      }),
    )
    await packing
    for (const [name, ok] of results) {
      const now = await repo.refs.read(name)
      // A lock held too long by the outsider is a refusal, never a lost write.
      if (ok) t.equal(now, two)
    }
    t.ok(results.filter(([, ok]) => ok).length > 100)
    await tableIs(t, 'afterwards')
    t.equal(fsck(repo.dir), '')
  })

  t.test('2,000 refs are quick, and packed by themselves', async (t) => {
    const began = performance.now()
    const updates = [...Array(2_000).keys()].map((at) => ({
      ref: ref(`refs/heads/many/${at}`),
      old: ZERO_OID,
      new: one,
    }))
    t.same(await repo.refs.transact(updates), { ok: true })
    t.comment(`2,000 refs in one transaction: ${(performance.now() - began).toFixed(0)} ms`)
    await new Promise((resolve) => setTimeout(resolve, 700))
    await repo.refs.pack()
    const loose = readdirSync(join(repo.dir, 'refs/heads'))
    t.notOk(loose.includes('many'))
    await repo.refs.snapshot()
    const reading = performance.now()
    for (let at = 0; at < 100; at += 1) await repo.refs.snapshot()
    t.ok(performance.now() - reading < 3_000, 'a snapshot costs a few stats')
    await tableIs(t, 'packed')
  })

  t.test('a killed update-ref is replaced, and its locks do not stay', async (t) => {
    const children = execFileSync('pgrep', ['-P', String(process.pid), '-f', `${repo.dir} update-ref`])
      .toString()
      .trim()
      .split('\n')
    for (const pid of children) process.kill(Number(pid), 'SIGKILL')
    const results = await Promise.all(
      [...Array(10).keys()].map((at) =>
        repo.refs.transact([{ ref: ref(`refs/heads/k/${at}`), old: ZERO_OID, new: one }]),
      ),
    )
    t.ok(
      results.every((result) => result.ok),
      JSON.stringify(results),
    )
  })
})

t.test('repositories', async (t) => {
  const dataDir = t.testdir()
  const store = await openStore(dataDir)
  const { repositories, repo, signer } = store
  const again = () => createRepositories({ dataDir, signer, log, clock })

  t.test('they are made whole, listed, and unique whatever the case', async (t) => {
    t.equal((await repositories.create(SLUG)).dir, repo.dir)
    await t.rejects(repositories.create('ACME/App' as RepoSlug), errorCode('name_taken'))
    t.same(await repositories.list(), [SLUG])
    t.equal(await repositories.open('acme/other' as RepoSlug), null)
    t.notOk(readdirSync(repo.dir).includes('hooks'))
    t.equal(gitIn(repo.dir, ['symbolic-ref', 'HEAD']), 'refs/heads/main\n')
    for (const [name, mode] of [
      ['', 0o711],
      ['repos', 0o700],
      ['hangar.git', 0o700],
      ['keys', 0o700],
      ['index', 0o700],
    ] as const)
      t.equal(statSync(join(dataDir, name)).mode & 0o777, mode, name)
    t.match(
      await store.ledger.readFile(repositories.server, ref('refs/hangar/repos/acme/app'), 'repo.json'),
      /"slug":"acme\/app"/,
    )
    await repositories.create('acme/gone' as RepoSlug)
    await repositories.remove('acme/gone' as RepoSlug)
    await repositories.remove('acme/gone' as RepoSlug)
    t.equal(await repositories.open('acme/gone' as RepoSlug), null)
    const lost = await repositories.create('acme/lost' as RepoSlug)
    rmSync(lost.dir, { recursive: true })
  })

  t.test('a repo that was not used lately has no children, and wakes when asked', async (t) => {
    const few = await createRepositories({ dataDir: join(dataDir, 'few'), signer, log, clock, maxAwake: 2 })
    const repos: Repository[] = []
    for (const name of ['a', 'b', 'c', 'd', 'e']) repos.push(await few.create(`x/${name}` as RepoSlug))
    const use = async (at: number) => {
      const repo = await few.open(`x/${'abcde'[at]}` as RepoSlug)
      if (repo === null) throw new Error('it was made')
      const commit = await commitOf(repo, await treeOf(repo, { f: String(at) }))
      const old = (await repo.refs.read(ref('refs/heads/f'))) ?? ZERO_OID
      t.same(await repo.refs.transact([{ ref: ref('refs/heads/f'), old, new: commit }]), { ok: true })
      t.equal((await repo.objects.read('refs/heads/f:f'))?.body.toString(), String(at))
    }
    const children = () =>
      spawnSync('pgrep', ['-P', String(process.pid), '-f', '/few/repos/'])
        .stdout.toString()
        .trim()
        .split('\n').length
    for (const at of [0, 1, 2, 3, 4, 0, 1]) await use(at)
    for (let wait = 0; wait < 50 && children() > 4; wait += 1) await new Promise((resolve) => setTimeout(resolve, 50))
    t.equal(children(), 4, 'two children each for the two last used')
    await few.close()
  })

  t.test('a second server is refused; a dead one is succeeded', async (t) => {
    await t.rejects(again(), { code: 'store_unusable', message: new RegExp(`pid ${process.pid}`) })
    mkdirSync(join(repo.dir, 'objects/incoming-x'))
    const half = `ff/${'0'.repeat(38)}`
    mkdirSync(join(repo.dir, 'objects/accepted-y/ff'), { recursive: true })
    writeFileSync(join(repo.dir, 'objects/accepted-y', half), 'an object')
    writeFileSync(join(repo.dir, 'packed-refs.lock'), '')
    execFileSync('touch', ['-d', '1 hour ago', join(repo.dir, 'packed-refs.lock')])
    await repositories.close()
    for (const holder of [
      `{"pid":${process.pid},"started":"1","boot":"x"}`,
      '{"pid":4194304,"started":"1","boot":"x"}',
      'cut',
    ]) {
      writeFileSync(join(dataDir, 'lock'), holder)
      const next = await again()
      t.ok(await next.open(SLUG))
      await t.rejects(next.open('acme/lost' as RepoSlug), { code: 'store_unusable', message: /missing/ })
      await next.close()
    }
    t.notOk(readdirSync(join(repo.dir, 'objects')).includes('incoming-x'))
    t.notOk(readdirSync(join(repo.dir, 'objects')).includes('accepted-y'))
    t.ok(existsSync(join(repo.dir, 'objects', half)), 'what was accepted is moved to its end')
    rmSync(join(repo.dir, 'objects', half))
    t.notOk(readdirSync(repo.dir).includes('packed-refs.lock'))
  })

  t.test('other kinds of repositories and newer formats are refused with a sentence', async (t) => {
    const sha256 = join(dataDir, 'repos/acme/lost.git')
    gitIn(dataDir, ['init', '-q', '--bare', '--object-format=sha256', sha256])
    const next = await again()
    await t.rejects(next.open('acme/lost' as RepoSlug), { code: 'store_unusable', message: /SHA-256/ })
    await next.close()
    const server = join(dataDir, 'hangar.git')
    const blob = gitIn(server, ['hash-object', '-w', '--stdin'], '{"version":2}').trim()
    gitIn(server, ['update-ref', 'refs/hangar/meta/format', blob])
    await t.rejects(again(), { code: 'store_unusable', message: /format 2 .* install a newer hangar/ })
    await t.rejects(again(), { message: /format 2/ }, 'the lock was given back')
  })
})

t.test('what goes out and comes in', async (t) => {
  const store = await openStore(t.testdir())
  const { repo } = store
  t.teardown(() => store.repositories.close())

  t.test('a diff is what git apply takes whole, whatever the project configures', async (t) => {
    const binary = String.fromCharCode(
      ...Array(600)
        .fill(0)
        .map((_, at) => (at * 7) % 256),
    )
    const long = 'line\n'.repeat(50)
    const from = await treeOf(repo, {
      '.gitattributes': '* -diff\n*.x diff=evil\n',
      a: 'old\n',
      gone: 'x\n',
      bin: binary,
      run: 'r\n',
      move: long,
      'sp ace/\xe9': '1',
    })
    const link = { mode: '120000', oid: EMPTY_TREE } as const
    const exec = { mode: '100755', oid: EMPTY_TREE } as const
    const to = await treeOf(repo, {
      '.gitattributes': '* -diff\n*.x diff=evil\n',
      a: 'new\nno end',
      added: '',
      bin: `${binary}!`,
      run: ['r\n', exec],
      moved: long,
      ln: ['a', link],
      'sp ace/\xe9': '2',
    })
    gitIn(repo.dir, ['config', 'diff.noprefix', 'true'])
    gitIn(repo.dir, ['config', 'diff.evil.textconv', 'false'])
    gitIn(repo.dir, ['config', 'diff.external', 'false'])
    const patch = await diffTrees(repo, { from, to, maxBytes: 1_000_000 })
    t.match(patch.toString('latin1'), /^-old\n\+new\n/m, 'text is shown as text')
    const work = join(store.dataDir, 'work')
    gitIn(store.dataDir, ['clone', '-q', repo.dir, work])
    gitIn(work, ['read-tree', from])
    gitIn(work, ['apply', '--cached', '--whitespace=nowarn'], patch)
    t.equal(gitIn(work, ['write-tree']).trim(), to)
    t.equal((await diffTrees(repo, { from: to, to, maxBytes: 10 })).length, 0)
    await t.rejects(diffTrees(repo, { from: EMPTY_TREE, to, maxBytes: 100 }), {
      code: 'too_large',
      message: /the patch has more than 100 bytes/,
    })

    const files = await changedFiles(repo, from, to)
    const line = (path: string) => files.find((file) => file.path === path)
    t.match(line('a'), { change: 'modified', additions: 2, deletions: 1 })
    t.match(line('gone'), { change: 'deleted', newOid: ZERO_OID, deletions: 1 })
    t.match(line('bin'), { additions: null, deletions: null })
    t.match(line('run'), { oldMode: '100644', newMode: '100755' })
    t.match(line('ln'), { change: 'added', newMode: '120000' })
    t.ok(line('sp ace/\xe9'))
    t.equal(files.length, 9)
  })

  t.test('one tree lies over another', async (t) => {
    const base = await treeOf(repo, { 'a/x': '1', 'a/y': '2', f: '3', 'd/e': '4' })
    const over = await treeOf(repo, { 'a/y': '9', 'a/z/w': '8', 'f/g': '7', d: '6' })
    const merged = await overlayTrees(repo, base, over)
    t.equal(merged, await treeOf(repo, { 'a/x': '1', 'a/y': '9', 'a/z/w': '8', 'f/g': '7', d: '6' }))
    t.equal(await overlayTrees(repo, base, EMPTY_TREE), base)
    t.equal(await overlayTrees(repo, EMPTY_TREE, over), over)
  })

  t.test('a bundle lists exactly the refs asked for, and comes back in through quarantine', async (t) => {
    const one = await commitOf(repo, await treeOf(repo, { f: '1' }))
    const two = await commitOf(repo, await treeOf(repo, { f: '2', big: 'x'.repeat(5_000) }), [one])
    const [branch, checkpoint] = [ref('refs/heads/hangar/s'), ref('refs/hangar/sessions/s/checkpoint')]
    await repo.refs.transact([
      { ref: branch, old: ZERO_OID, new: one },
      { ref: checkpoint, old: ZERO_OID, new: two },
    ])
    const full = await createBundle(repo, { refs: [branch, checkpoint], have: ['f'.repeat(40) as Oid] })
    const thin = await createBundle(repo, { refs: [branch, checkpoint], have: [one] })
    t.equal(await createBundle(repo, { refs: [branch], have: [two] }), null)
    await t.rejects(createBundle(repo, { refs: [ref('refs/heads/none')], have: [] }), errorCode('not_found'))
    const [fullFile, thinFile] = [join(store.dataDir, 'full.bundle'), join(store.dataDir, 'thin.bundle')]
    if (full === null || thin === null) throw new Error('a bundle was expected')
    writeFileSync(fullFile, await buffer(full))
    writeFileSync(thinFile, await buffer(thin))
    const heads = `${one} ${branch}\n${two} ${checkpoint}\n`
    t.equal(gitIn(store.dataDir, ['bundle', 'list-heads', fullFile]), heads)
    t.equal(gitIn(store.dataDir, ['bundle', 'list-heads', thinFile]), heads)
    const clone = join(store.dataDir, 'clone')
    gitIn(store.dataDir, ['init', '-q', clone])
    gitIn(clone, ['fetch', '-q', fullFile, `${branch}:refs/heads/x`])
    gitIn(clone, ['fetch', '-q', thinFile, `${checkpoint}:refs/heads/y`])
    t.equal(gitIn(clone, ['rev-parse', 'y']).trim(), two)

    const other = await store.repositories.create('acme/other' as RepoSlug)
    t.same(await inspectBundle(other, thinFile), {
      heads: [
        { ref: branch, oid: one },
        { ref: checkpoint, oid: two },
      ],
      missing: [one],
    })
    const options = { tip: two, maxBytes: 1_000_000 }
    await t.rejects(
      openQuarantine(other).then((q) => unbundle(other, thinFile, q, options)),
      { code: 'missing_commits', details: { missing: [one] } },
    )
    await t.rejects(
      openQuarantine(other).then((q) => unbundle(other, fullFile, q, { maxBytes: 1_000_000 })),
      { message: /2 tips/ },
    )
    await t.rejects(
      openQuarantine(other).then((q) => unbundle(other, fullFile, q, { tip: two, maxBytes: 50 })),
      errorCode('invalid_context'),
    )
    const cut = readFileSync(fullFile).subarray(0, -30)
    writeFileSync(join(store.dataDir, 'cut.bundle'), cut)
    await t.rejects(
      openQuarantine(other).then((q) => unbundle(other, join(store.dataDir, 'cut.bundle'), q, options)),
      errorCode('invalid_context'),
    )
    t.notOk(
      readdirSync(join(other.dir, 'objects')).some((name) => name.startsWith('incoming-')),
      'a refusal leaves nothing',
    )

    const dropped = await unbundle(other, fullFile, await openQuarantine(other), options)
    await dropped.drop()
    t.equal(await other.objects.info(two), null)
    const taken = await unbundle(other, fullFile, await openQuarantine(other), options)
    t.equal(await other.objects.info(two), null, 'not before it is kept')
    await taken.keep()
    await taken.keep()
    t.equal((await other.objects.info(two))?.type, 'commit')
    t.same(await other.refs.transact([{ ref: branch, old: ZERO_OID, new: one }]), { ok: true })
    const onTop = await unbundle(other, thinFile, await openQuarantine(other), { ...options, visible: [one] })
    await onTop.keep()
    t.equal(fsck(other.dir), '')
    for (const junk of ['', 'no bundle', '# v2 git bundle\nxyz\n\nPACK', '# v3 git bundle\n@filter=blob:none\n\n']) {
      writeFileSync(join(store.dataDir, 'junk'), junk)
      await t.rejects(
        inspectBundle(other, join(store.dataDir, 'junk')),
        errorCode('invalid_context'),
        JSON.stringify(junk),
      )
    }
  })

  t.test('a bundle whose commits lack objects is refused', async (t) => {
    const tree = await treeOf(repo, { deep: 'only here' })
    const commit = await commitOf(repo, tree)
    const pack = execFileSync('git', ['pack-objects', '--stdout', '-q'], {
      cwd: repo.dir,
      input: `${commit}\n${tree}\n`,
      stdio: ['pipe', 'pipe', 'ignore'],
    })
    const file = join(store.dataDir, 'lacking.bundle')
    writeFileSync(file, Buffer.concat([text(`# v2 git bundle\n${commit} refs/heads/x\n\n`), pack]))
    const other = await store.repositories.create('acme/lacking' as RepoSlug)
    await t.rejects(
      openQuarantine(other).then((q) => unbundle(other, file, q, { maxBytes: 1_000_000 })),
      errorCode('invalid_context'),
    )
  })

  t.test('notes are read by git, flat and fanned out, and none is lost', async (t) => {
    const notes = ref('refs/notes/hangar')
    const tree = await treeOf(repo, { f: 'n' })
    const commit = await commitOf(repo, tree, [], 'noted')
    const add = (line: string, on = commit) => appendNote(repo, { ref: notes, commit: on, line, at: clock.now() })
    await add('{"turn":1}')
    await Promise.all(['2', '3', '4', '5'].map((turn) => add(`{"turn":${turn}}`)))
    const shown = gitIn(repo.dir, ['notes', '--ref=hangar', 'show', commit])
    t.same(
      shown.trim().split('\n').sort(),
      [1, 2, 3, 4, 5].map((turn) => `{"turn":${turn}}`),
    )
    t.equal(await readNote(repo, notes, commit), shown)
    const fake = (at: number) => at.toString(16).padStart(4, '0') + 'a'.repeat(36)
    const blob = await repo.objects.writeBlob(text('other\n'))
    const edits = new Map(
      [...Array(600).keys()].map((at): [string, TreeEdit] => [fake(at * 97), { oid: blob, mode: '100644' }]),
    )
    const many = await commitOf(
      repo,
      await repo.objects.editTree(
        (await repo.objects.readCommit((await repo.refs.read(notes)) ?? ZERO_OID))?.tree ?? null,
        edits,
      ),
    )
    await repo.refs.transact([{ ref: notes, old: (await repo.refs.read(notes)) ?? ZERO_OID, new: many }])
    await add('{"turn":6}')
    t.match(gitIn(repo.dir, ['notes', '--ref=hangar', 'show', commit]), /"turn":1[\s\S]*"turn":6/)
    gitIn(repo.dir, ['notes', '--ref=hangar', 'append', '-m', 'by git', commit])
    await add('{"turn":7}')
    t.match(gitIn(repo.dir, ['notes', '--ref=hangar', 'show', commit]), /"turn":6[\s\S]*by git\n\{"turn":7\}/)
    t.equal(await readNote(repo, notes, tree), null)
  })
})
