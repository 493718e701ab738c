import { spawn, spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { type Oid, ZERO_OID } from '../../domain/names.ts'
import type { Repository } from '../../gateway/git/repository.ts'
import { fsck, gitIn, openStore, ref } from './store-fixture.ts'

const file = (path: string, body: string) => new Map([[path, Buffer.from(body)]])

t.test('the ledger', async (t) => {
  const store = await openStore(t.testdir())
  const { repo, ledger } = store
  t.teardown(() => store.repositories.close())
  const log = ref('refs/hangar/sessions/s/log')
  const filesOf = (name = log) => gitIn(repo.dir, ['ls-tree', '-r', '--name-only', name]).trim().split('\n')

  t.test('a record is files that change, with their history', async (t) => {
    const none = await ledger.append(repo, log, async () => null)
    t.same(none, { oid: null, changed: false })
    const first = await ledger.append(repo, log, async () => ({ files: file('session.json', '1'), message: 'Begin' }))
    const context = await repo.objects.writeCommit({
      tree: await repo.objects.editTree(
        null,
        new Map([['in', { oid: await repo.objects.writeBlob(Buffer.from('ctx')), mode: '100644' }]]),
      ),
      parents: [],
      message: 'context',
      at: 1_000,
    })
    const tree = (await repo.objects.readCommit(context))?.tree ?? ZERO_OID
    const second = await ledger.append(repo, log, async (tip) => {
      t.equal(tip, first.oid)
      return {
        files: new Map<string, Uint8Array | { oid: Oid; mode: '40000' } | null>([
          ['session.json', null],
          ['turns/1/turn.json', Buffer.from('t')],
          ['turns/1/in', { oid: tree, mode: '40000' }],
        ]),
        message: 'Turn 1',
        parents: [context],
        alsoMove: [{ ref: ref('refs/hangar/sessions/s/context'), old: ZERO_OID, new: context }],
      }
    })
    t.same(filesOf(), ['turns/1/in/in', 'turns/1/turn.json'])
    t.equal(await repo.refs.read(ref('refs/hangar/sessions/s/context')), context)
    t.same((await repo.objects.readCommit(second.oid ?? ZERO_OID))?.parents, [first.oid, context])
    t.match(await ledger.history(repo, log, 10), [
      { message: 'Turn 1', oid: second.oid },
      { message: 'Begin', oid: first.oid },
    ])
    t.equal((await ledger.history(repo, log, 1)).length, 1)
    t.equal((await ledger.readFile(repo, log, 'turns/1/turn.json'))?.toString(), 't')
    t.equal((await ledger.readFile(repo, first.oid ?? ZERO_OID, 'session.json'))?.toString(), '1')
    for (const path of ['session.json', 'turns', 'nope', './turns', 'a\nb', ''])
      t.equal(await ledger.readFile(repo, log, path), null, JSON.stringify(path))
    const unchanged = await ledger.append(repo, log, async () => null)
    t.same(unchanged, { oid: second.oid, changed: false })
  })

  t.test('two writers of one record lose nothing, nor do twenty at once', async (t) => {
    const other = ref('refs/hangar/sessions/many/log')
    const add = (name: string) => ledger.append(repo, other, async () => ({ files: file(name, name), message: name }))
    const long = async (writer: string) => {
      for (let at = 0; at < 10; at += 1) await add(`${writer}${at}`)
    }
    await Promise.all([long('a'), long('b')])
    await Promise.all([...Array(20).keys()].map((at) => add(`c${at}`)))
    t.equal(filesOf(other).length, 40)
    t.equal(gitIn(repo.dir, ['rev-list', '--count', other]).trim(), '40')
  })

  t.test('a change is asked again when another writer was first, or a ref beside it moved', async (t) => {
    const beside = ref('refs/heads/hangar/s')
    const tip = (await repo.refs.read(log)) ?? ZERO_OID
    await repo.refs.transact([{ ref: beside, old: ZERO_OID, new: tip }])
    let asked = 0
    const older = (await repo.objects.readCommit(tip))?.parents[0] ?? ZERO_OID
    await ledger.append(repo, log, async () => {
      asked += 1
      const now = (await repo.refs.read(beside)) ?? ZERO_OID
      if (asked === 1) gitIn(repo.dir, ['update-ref', beside, older])
      if (asked === 2) {
        const rival = gitIn(repo.dir, ['commit-tree', '-p', log, '-m', 'rival', `${log}^{tree}`]).trim()
        gitIn(repo.dir, ['update-ref', log, rival])
      }
      return { files: file('again', String(asked)), message: 'x', alsoMove: [{ ref: beside, old: now, new: tip }] }
    })
    t.equal(asked, 3)
    t.equal(await repo.refs.read(beside), tip)
    t.match(await ledger.history(repo, log, 2), [{ message: 'x' }, { message: 'rival' }])
  })

  t.test('records that move together all move, or none does', async (t) => {
    const refs = [ref('refs/hangar/sessions/a/log'), ref('refs/hangar/sessions/b/log')]
    const incoming = ref('refs/hangar/incoming/x')
    const tip = (await repo.refs.read(log)) ?? ZERO_OID
    await repo.refs.transact([{ ref: incoming, old: ZERO_OID, new: tip }])
    const both = (alsoMove: { ref: typeof log; old: Oid; new: Oid }[]) => async () =>
      refs.map((name) => ({ files: file('name', name), message: 'x', alsoMove }))
    const inTheWay = { ref: ref('refs/hangar/sessions/b/log/below'), old: ZERO_OID, new: tip }
    await t.rejects(ledger.appendAll(repo, refs, both([inTheWay])), { code: 'conflict' })
    t.strictSame(await Promise.all(refs.map((name) => repo.refs.read(name))), [null, null])
    const { oids } = await ledger.appendAll(repo, refs, both([{ ref: incoming, old: tip, new: ZERO_OID }]))
    t.strictSame(await Promise.all(refs.map((name) => repo.refs.read(name))), oids)
    t.equal(await repo.refs.read(incoming), null, 'what both take away goes once')
    t.strictSame(await ledger.appendAll(repo, refs, async () => null), { oids, changed: false })
  })

  t.test('what asking again does not mend is an error at once', async (t) => {
    let asked = 0
    const append = ledger.append(repo, ref('refs/hangar/sessions/s/log/below'), async () => {
      asked += 1
      return { files: file('a', 'a'), message: 'x' }
    })
    await t.rejects(append, { code: 'conflict' })
    t.equal(asked, 1)
    t.equal(fsck(repo.dir), '')
  })

  t.test('an append is quick', async (t) => {
    const began = performance.now()
    for (let at = 0; at < 50; at += 1)
      await ledger.append(repo, log, async () => ({
        files: new Map([...file('session.json', String(at)), ...file(`turns/${at}/turn.json`, String(at))]),
        message: 'm',
      }))
    const each = (performance.now() - began) / 50
    t.comment(`${each.toFixed(1)} ms an append`)
    t.ok(each < 2_000, 'even where the machine is busy')
  })
})

t.test('what was acknowledged is there after kill -9, and nothing is broken', async (t) => {
  const dataDir = t.testdir()
  const program = fileURLToPath(new URL('./append-forever.js', import.meta.url))
  const acknowledged = new Set<string>()
  for (let round = 0; round < 3; round += 1) {
    const child = spawn(process.execPath, [program, dataDir, '4'], { stdio: ['ignore', 'pipe', 'inherit'] })
    let out = ''
    await new Promise<void>((resolve) => {
      child.stdout.on('data', (chunk: Buffer) => {
        out += chunk.toString()
        if (out.split('\n').length > 30 + round * 7) child.kill('SIGKILL')
      })
      child.once('close', () => resolve())
    })
    for (const line of out.split('\n').slice(0, -1)) acknowledged.add(line)
  }
  const store = await openStore(dataDir)
  t.teardown(() => store.repositories.close())
  t.ok(acknowledged.size >= 90)
  const present = new Set<string>()
  for (const session of ['s0', 's1'])
    for (const path of gitIn(store.repo.dir, [
      'ls-tree',
      '-r',
      '--name-only',
      `refs/hangar/sessions/${session}/log`,
    ]).split('\n'))
      present.add(`${session} ${path}`)
  t.same(
    [...acknowledged].filter((line) => !present.has(line)),
    [],
  )
  t.equal(fsck(store.repo.dir), '')
  await appendWorks(t, store.repo, store.ledger)
  const updaters = (options: readonly string[]) =>
    spawnSync('pgrep', [...options, '-f', `${dataDir}.*update-ref`])
      .stdout.toString()
      .trim()
  t.equal(updaters([]), updaters(['-P', String(process.pid)]), 'no child outlives its server')
})

async function appendWorks(t: Tap, repo: Repository, ledger: Awaited<ReturnType<typeof openStore>>['ledger']) {
  const record = ref('refs/hangar/sessions/s0/log')
  t.equal(
    (await ledger.append(repo, record, async () => ({ files: file('after', 'a'), message: 'after' }))).changed,
    true,
  )
}

type Tap = Pick<typeof t, 'equal'>
