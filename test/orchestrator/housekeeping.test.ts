/** Pushed checkpoints that nobody takes go after a day, and not before. */
import { existsSync, mkdirSync, readdirSync, utimesSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { type Oid, parseRepoSlug, type RefName, ZERO_OID } from '../../domain/names.ts'
import { pruneOld, repackWhenMany } from '../../gateway/git/maintenance.ts'
import { createRepositories } from '../../gateway/git/repositories.ts'
import { openIndex } from '../../gateway/state/index.ts'
import { createSigner } from '../../gateway/state/sign.ts'
import { createHousekeeping } from '../../orchestrator/housekeeping.ts'
import { createLocalProvider } from '../../orchestrator/providers/local.ts'
import { SILENT, shell, temporaryDirectory } from '../stories/support.ts'
import { createFakeHost } from './fake.ts'
import { HELPER_DIR } from './kubernetes-subject.ts'
import { sandboxSpec } from './provider-conformance.ts'

const DAY_MS = 24 * 3_600_000

t.test('an incoming ref is deleted a day after it was first seen', async (t) => {
  const dataDir = temporaryDirectory(t)
  let now = Date.UTC(2026, 0, 1)
  const clock = { now: () => now }
  const signer = await createSigner({ keyFile: join(dataDir, 'key.asc'), clock })
  const repositories = await createRepositories({ dataDir, signer, log: SILENT, clock })
  const index = await openIndex({ dir: join(dataDir, 'index'), log: SILENT })
  const remove = async () => {}
  const housekeeping = createHousekeeping({
    repositories,
    index,
    providers: [],
    remove,
    sweepJobs: async () => {},
    closedSessionsMs: null,
    clock,
    log: SILENT,
  })
  t.teardown(async () => {
    await housekeeping.close()
    await index.close()
    await repositories.close()
  })
  const repo = await repositories.create(parseRepoSlug('acme/app'))
  const tree = await repo.objects.writeTree([])
  const oid = await repo.objects.writeCommit({ tree, parents: [], message: 'waits', at: 0 })
  const early = 'refs/hangar/incoming/early' as RefName
  const late = 'refs/hangar/incoming/late' as RefName
  const main = 'refs/heads/main' as RefName
  await repo.refs.transact([early, main].map((ref) => ({ ref, old: ZERO_OID, new: oid })))
  await housekeeping.sweep()
  now += DAY_MS - 1
  await repo.refs.transact([{ ref: late, old: ZERO_OID, new: oid }])
  await housekeeping.sweep()
  t.equal(await repo.refs.read(early), oid, 'not before its day is over')
  now += 1
  await housekeeping.sweep()
  t.equal(await repo.refs.read(early), null)
  t.equal(await repo.refs.read(late), oid)
  t.equal(await repo.refs.read(main), oid, 'nothing else is touched')
  now += DAY_MS
  await housekeeping.sweep()
  t.equal(await repo.refs.read(late), null)
})

t.test('a sandbox of no session goes when it is old enough, by every provider that answers', async (t) => {
  const dataDir = temporaryDirectory(t)
  let now = Date.now()
  const clock = { now: () => now }
  const signer = await createSigner({ keyFile: join(dataDir, 'key.asc'), clock })
  const repositories = await createRepositories({ dataDir, signer, log: SILENT, clock })
  const index = await openIndex({ dir: join(dataDir, 'index'), log: SILENT })
  const helperFile = join(HELPER_DIR, 'hangar-agent')
  const local = createLocalProvider({ sandboxesDir: join(dataDir, 'local'), helperFile, clock, log: SILENT })
  const fake = createFakeHost({ dir: dataDir, helperFile }).provider()
  const down = { ...fake, kind: 'down', list: async () => Promise.reject(new Error('the engine is away')) }
  const housekeeping = createHousekeeping({
    repositories,
    index,
    providers: [down, local, fake],
    remove: async () => {},
    sweepJobs: async () => {},
    closedSessionsMs: null,
    clock,
    log: SILENT,
  })
  t.teardown(async () => {
    await housekeeping.close()
    await index.close()
    await repositories.close()
  })
  const ids = async () => [...(await local.list()), ...(await fake.list())].map(({ id }) => id)
  await local.create(sandboxSpec({ id: 'sbx-orphan' }))
  await local.create(sandboxSpec({ id: 'sbx-live' }))
  await fake.create(sandboxSpec({ id: 'sbx-fake' }))
  mkdirSync(join(dataDir, 'local', 'sbx-half'))
  const session = { name: 'live', state: 'idle', updatedAt: now, sandbox: { id: 'sbx-live' } }
  await index.batch([
    { section: 'sessions', key: 'live', value: { logOid: '', repo: 'acme/app', session } },
  ] as unknown as Parameters<typeof index.batch>[0])
  await housekeeping.sweep()
  t.strictSame(await ids(), ['sbx-half', 'sbx-live', 'sbx-orphan', 'sbx-fake'], 'one that may just be being made stays')
  now += 11 * 60_000
  await housekeeping.sweep()
  t.strictSame(await ids(), ['sbx-live'])
  await local.destroy({ provider: 'local', id: 'sbx-live' })
})

t.test('a session that was closed long ago goes; an open one and a younger one stay', async (t) => {
  const dataDir = temporaryDirectory(t)
  const now = Date.UTC(2026, 5, 1)
  const clock = { now: () => now }
  const signer = await createSigner({ keyFile: join(dataDir, 'key.asc'), clock })
  const repositories = await createRepositories({ dataDir, signer, log: SILENT, clock })
  const index = await openIndex({ dir: join(dataDir, 'index'), log: SILENT })
  const removed: string[] = []
  const remove = async (name: string) => void removed.push(name)
  const housekeeping = createHousekeeping({
    repositories,
    index,
    providers: [],
    remove,
    sweepJobs: async () => {},
    closedSessionsMs: 30 * DAY_MS,
    clock,
    log: SILENT,
  })
  t.teardown(async () => {
    await housekeeping.close()
    await index.close()
    await repositories.close()
  })
  const session = (name: string, state: string, days: number) => ({
    section: 'sessions' as const,
    key: name,
    value: { logOid: '', repo: 'acme/app', session: { name, state, updatedAt: now - days * DAY_MS } },
  })
  await index.batch([
    session('old', 'closed', 31),
    session('young', 'closed', 29),
    session('idle', 'idle', 400),
  ] as unknown as Parameters<typeof index.batch>[0])
  await housekeeping.sweep()
  t.strictSame(removed, ['old'])
})

t.test('many packs become few, and only what no ref has needed for two weeks goes', async (t) => {
  const dataDir = temporaryDirectory(t)
  const clock = { now: () => Date.now() }
  const signer = await createSigner({ keyFile: join(dataDir, 'key.asc'), clock })
  const repositories = await createRepositories({ dataDir, signer, log: SILENT, clock })
  t.teardown(() => repositories.close())
  const repo = await repositories.create(parseRepoSlug('acme/app'))
  const commit = async (message: string, parents: readonly Oid[] = []) =>
    repo.objects.writeCommit({ tree: await repo.objects.writeTree([]), parents, message, at: 0 })
  let tip: Oid | null = null
  for (let pack = 0; pack < 35; pack++) {
    tip = await commit(`pack ${pack}`, tip === null ? [] : [tip])
    await shell(repo.dir, `echo ${tip} | git -c safe.directory=* pack-objects -q objects/pack/pack`)
  }
  await repo.refs.transact([{ ref: 'refs/heads/main' as RefName, old: ZERO_OID, new: tip as Oid }])
  t.equal(await repackWhenMany(repo), true)
  const packs = readdirSync(join(repo.dir, 'objects', 'pack')).filter((name) => name.endsWith('.pack'))
  t.ok(packs.length < 5, `${packs.length} packs`)
  const gone = await commit('nobody names it, and it is old')
  const young = await commit('nobody names it yet')
  const file = (oid: string) => join(repo.dir, 'objects', oid.slice(0, 2), oid.slice(2))
  utimesSync(file(gone), new Date(0), new Date(0))
  mkdirSync(join(repo.dir, 'pack-cache'))
  await pruneOld(repo)
  t.notOk(existsSync(join(repo.dir, 'pack-cache')), 'answers that were kept may hold what has gone')
  t.equal(await repo.objects.info(gone), null)
  t.match(await repo.objects.info(young), { type: 'commit' })
  t.match(await repo.objects.readCommit(tip as Oid), { message: /pack 34/ })
  t.equal(await repackWhenMany(repo), false, 'there is nothing more to gain')
})
