import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { Level } from 'level'
import * as openpgp from 'openpgp'
import t from 'tap'
import type { GrantCaller } from '../../domain/grant.ts'
import { type Oid, type RepoSlug, type SessionName, ZERO_OID } from '../../domain/names.ts'
import { createGrants } from '../../gateway/grants.ts'
import { createEventLog, reconcilePushes, type StoreEvent } from '../../gateway/state/event-log.ts'
import { type Index, openIndex, orderKey, runEventKey, type SectionName, turnKey } from '../../gateway/state/index.ts'
import { reindex } from '../../gateway/state/reindex.ts'
import { createSealer } from '../../gateway/state/seal.ts'
import { createSigner } from '../../gateway/state/sign.ts'
import { createTokens } from '../../gateway/tokens.ts'
import { clock, gitIn, log, openStore, random, ref, SLUG, type Store } from './store-fixture.ts'

const REBUILT: readonly SectionName[] = ['sessions', 'turns', 'runEvents', 'order', 'questions', 'tokens']
const oid = (digit: string) => digit.repeat(40) as Oid

async function dumpOf(index: Index, sections?: readonly SectionName[]): Promise<[string, string][]> {
  const all: [string, string][] = []
  for await (const entry of index.dump(sections)) all.push(entry)
  return all
}

t.test('the index', async (t) => {
  const dir = join(t.testdir(), 'index')
  const index = await openIndex({ dir, log })
  t.ok(index.fresh)

  t.test('sections keep to themselves and are read by range', async (t) => {
    await index.batch([
      { section: 'order', key: orderKey(5, 'a'), value: 'a' },
      { section: 'order', key: orderKey(40, 'b'), value: 'b' },
      { section: 'order', key: orderKey(300, 'c'), value: 'c' },
      { section: 'cursors', key: 'a', value: { turn: 1, out: 2 } },
      { section: 'refsSeen', key: 'x/y:refs/heads/\xff', value: oid('1') },
    ])
    const names = async (options: Parameters<Index['order']['range']>[0]) =>
      (await index.order.range(options)).map(([, name]) => name).join('')
    t.equal(await names({}), 'abc')
    t.equal(await names({ reverse: true, limit: 2 }), 'cb')
    t.equal(await names({ reverse: true, from: orderKey(40, 'b') }), 'ba')
    t.equal(await names({ from: orderKey(6, '') }), 'bc')
    t.equal(await names({ prefix: orderKey(40, '') }), 'b')
    t.same(await index.cursors.get('a'), { turn: 1, out: 2 })
    t.equal(await index.refsSeen.get('x/y:refs/heads/\xff'), oid('1'))
    await index.batch([{ section: 'cursors', key: 'a', value: null }])
    t.equal(await index.cursors.get('a'), null)
    t.same(await dumpOf(index, ['refsSeen']), [['refsSeen/x/y:refs/heads/\xff', `"${oid('1')}"`]])
  })

  t.test('one that another holds is refused, a damaged one is put aside', async (t) => {
    await t.rejects(openIndex({ dir, log }), { code: 'store_unusable' })
    await index.close()
    const again = await openIndex({ dir, log })
    t.notOk(again.fresh)
    await again.close()
    const level = new Level(dir)
    await level.put('meta!sections', '["sessions"]')
    await level.close()
    const older = await openIndex({ dir, log })
    t.ok(older.fresh, 'made by a hangar that kept other sections: it wants a full reindex')
    await older.close()
    for (const name of readdirSync(dir)) if (/^(CURRENT|MANIFEST)/.test(name)) writeFileSync(join(dir, name), 'junk')
    const made = await openIndex({ dir, log })
    t.ok(made.fresh)
    t.same(await made.order.range(), [])
    await made.close()
  })
})

t.test('the event log', async (t) => {
  const store = await openStore(t.testdir())
  t.teardown(() => store.repositories.close())
  const { repositories, repo } = store
  const dir = join(store.dataDir, 'index/level')
  let index = await openIndex({ dir, log })
  let events = await createEventLog({ index, clock: { now: () => 1_000 } })
  const push = (name: string, old: Oid, now: Oid) =>
    events.append({ type: 'push', repo: SLUG, by: 'token:a', updates: [{ ref: ref(name), old, new: now }], forced: [] })

  t.test('seq rises without gaps, and followers wake at once', async (t) => {
    const seen: number[] = []
    const stop = new AbortController()
    const following = (async () => {
      for await (const event of events.follow(0, stop.signal)) {
        seen.push(event.seq)
        if (seen.length === 30) stop.abort()
      }
    })()
    const first = await push('refs/heads/x', ZERO_OID, oid('1'))
    t.equal(first, 1_001)
    await Promise.all([...Array(29).keys()].map((at) => push('refs/heads/x', oid('1'), oid(String(at % 9)))))
    await following
    t.same(
      seen,
      [...Array(30).keys()].map((at) => 1_001 + at),
    )
    t.match(await events.read(1_028, 5), [{ seq: 1_029 }, { seq: 1_030, at: 1_000, type: 'push', by: 'token:a' }])
    const idle = new AbortController()
    const none: StoreEvent[] = []
    const waiting = (async () => {
      for await (const event of events.follow(1_030, idle.signal)) none.push(event)
    })()
    setTimeout(() => idle.abort(), 20)
    await waiting
    t.same(none, [])
  })

  t.test('a new start goes on counting; closing ends followers', async (t) => {
    const following = (async () => {
      for await (const _ of events.follow(1_030, new AbortController().signal));
    })()
    await events.close()
    await following
    await t.rejects(push('refs/heads/x', ZERO_OID, oid('1')), { code: 'busy' })
    await index.close()
    index = await openIndex({ dir, log })
    events = await createEventLog({ index, clock })
    t.equal(await push('refs/heads/x', oid('1'), ZERO_OID), 1_031)
  })

  t.test('refs that moved without an event get one at start, but not the first time', async (t) => {
    const commit = await repo.objects.writeCommit({
      tree: await repo.objects.writeTree([]),
      parents: [],
      message: 'm',
      at: 1,
    })
    const [a, b] = [ref('refs/heads/a'), ref('refs/heads/b')]
    await repo.refs.transact([{ ref: a, old: ZERO_OID, new: commit }])
    t.same(await reconcilePushes({ repositories, index, events }), { events: 0, unreadable: [] })
    t.same(await reconcilePushes({ repositories, index, events }), { events: 0, unreadable: [] })
    await repo.refs.transact([
      { ref: a, old: commit, new: ZERO_OID },
      { ref: b, old: ZERO_OID, new: commit },
    ])
    t.same(await reconcilePushes({ repositories, index, events }), { events: 1, unreadable: [] })
    t.match(await events.read(1_031, 10), [
      {
        type: 'push',
        repo: SLUG,
        by: 'unknown',
        updates: [
          { ref: b, old: ZERO_OID, new: commit },
          { ref: a, old: commit, new: ZERO_OID },
        ],
      },
    ])
    await repo.refs.transact([{ ref: a, old: ZERO_OID, new: commit }])
    await push(a, ZERO_OID, commit)
    await repo.refs.transact([{ ref: ref('refs/hangar/sessions/s/log'), old: ZERO_OID, new: commit }])
    await events.append({ type: 'record', repo: SLUG, ref: ref('refs/hangar/sessions/s/log'), oid: commit })
    t.same(await reconcilePushes({ repositories, index, events }), { events: 0, unreadable: [] })
    await events.close()
    await index.close()
  })
})

async function record(store: Store, name: string, turns: number): Promise<void> {
  const session = { name, repo: SLUG, state: 'idle', turns, createdAt: 1_000 + name.length, updatedAt: 2_000 }
  const files = new Map<string, Uint8Array>([['session.json', Buffer.from(`${JSON.stringify(session)}\n`)]])
  for (let turn = 1; turn <= turns; turn += 1) {
    files.set(`turns/${turn}/turn.json`, Buffer.from(JSON.stringify({ turn, message: 'grüße', state: 'ended' })))
    const lines = [1, 2, 3].map(
      (at) => `${JSON.stringify({ kind: 'state', state: 's', text: 't', seq: turn * 10 + at, at: 5, turn })}\n`,
    )
    files.set(`turns/${turn}/events.jsonl.gz`, gzipSync(lines.join('')))
  }
  await store.ledger.append(store.repo, ref(`refs/hangar/sessions/${name}/log`), async () => ({
    files,
    message: 'record',
  }))
}

t.test('a rebuilt index is the same as the kept one', async (t) => {
  const store = await openStore(t.testdir())
  const { repositories, ledger, repo } = store
  const index = await openIndex({ dir: join(store.dataDir, 'index/a'), log })
  const tokens = await createTokens({ server: repositories.server, ledger, index, clock, random })
  await record(store, 'one', 2)
  await record(store, 'three', 1)
  t.same(await reindex({ repositories, index, ledger }, { full: false }), { sessions: 2, unreadable: [] })
  t.same(await reindex({ repositories, index, ledger }, { full: false }), { sessions: 0, unreadable: [] })
  const { token } = await tokens.create({ name: 'ci', scopes: ['read'], repos: null, expiresAt: null })
  await tokens.revoke(token.id)
  await tokens.create({ name: 'b', scopes: ['admin'], repos: ['acme/*'], expiresAt: 5 })

  // A running turn: its events are in the index only, and stay there while its cursor does.
  const live = { kind: 'state', state: 'x', text: 'y', seq: 31, at: 9, turn: 3 } as const
  await index.runEvents.put(runEventKey('one', 31), live)
  await index.cursors.put('one', { turn: 3, out: 10 })
  await record(store, 'one', 3)
  t.same(await reindex({ repositories, index, ledger }, { full: false }), { sessions: 1, unreadable: [] })
  t.equal((await index.runEvents.range({ prefix: 'one/' })).length, 9, 'recorded now, so taken from git')
  await index.runEvents.put(runEventKey('one', 41), { ...live, seq: 41, turn: 4 })
  await record(store, 'one', 2)
  await reindex({ repositories, index, ledger }, { full: false })
  t.ok(await index.runEvents.get(runEventKey('one', 41)), 'of a turn that git has no events of')
  t.same(await index.cursors.get('one'), { turn: 3, out: 10 })
  t.match(await index.turns.get(turnKey('one', 1)), { message: 'grüße' })
  t.match(await index.sessions.get('one'), {
    repo: SLUG,
    logOid: await repo.refs.read(ref('refs/hangar/sessions/one/log')),
  })

  await reindex({ repositories, index, ledger }, { full: true })
  t.equal(await index.cursors.get('one'), null)
  const other = await openIndex({ dir: join(store.dataDir, 'index/b'), log })
  await reindex({ repositories, index: other, ledger }, { full: true })
  const [kept, rebuilt] = [await dumpOf(index, REBUILT), await dumpOf(other, REBUILT)]
  t.same(rebuilt, kept)
  t.equal(kept.filter(([key]) => key.startsWith('tokens/')).length, 2)

  gitIn(repo.dir, ['update-ref', '-d', 'refs/hangar/sessions/three/log'])
  await reindex({ repositories, index, ledger }, { full: false })
  t.same(
    (await index.order.range()).map(([, name]) => name),
    ['one'],
  )
  t.same(await index.runEvents.range({ prefix: 'three/' }), [])

  // One record that is cut and one repo that is missing do not keep the rest from being indexed, nor cost what was.
  await record(store, 'cut', 1)
  await store.ledger.append(repo, ref('refs/hangar/sessions/cut/log'), async () => ({
    files: new Map([['session.json', Buffer.from('{"na')]]),
    message: 'cut',
  }))
  const lost = await repositories.create('acme/lost' as RepoSlug)
  await repositories.close()
  rmSync(lost.dir, { recursive: true })
  const next = await openStore(store.dataDir)
  t.teardown(() => next.repositories.close())
  const entry = await index.sessions.get('one')
  if (entry !== null) await index.sessions.put('kept', { ...entry, repo: 'acme/lost' as RepoSlug })
  const { unreadable } = await reindex({ ...next, index }, { full: true })
  t.match(unreadable, [
    { repo: SLUG, session: 'cut' },
    { repo: 'acme/lost', session: null, reason: /missing/ },
  ])
  t.same(
    (await index.sessions.range()).map(([name]) => name),
    ['kept', 'one'],
  )
  await index.close()
  await other.close()
})

t.test('tokens and grants', async (t) => {
  const store = await openStore(t.testdir())
  t.teardown(() => store.repositories.close())
  const index = await openIndex({ dir: join(store.dataDir, 'index/t'), log })
  t.teardown(() => index.close())
  let now = 10_000
  const deps = { server: store.repositories.server, ledger: store.ledger, index, random, clock: { now: () => now } }

  t.test('a token works until it is revoked or expires, also after a restart', async (t) => {
    const tokens = await createTokens(deps)
    const forever = await tokens.create({ name: 'a', scopes: ['read', 'sessions'], repos: ['acme/*'], expiresAt: null })
    const short = await tokens.create({ name: 'b', scopes: ['admin'], repos: null, expiresAt: 20_000 })
    t.match(forever.secret, /^hgt_[0-9A-Za-z]{43}$/)
    const again = await createTokens(deps)
    for (const table of [tokens, again]) {
      t.same(table.authenticate(forever.secret), {
        kind: 'token',
        id: forever.token.id,
        name: 'a',
        scopes: ['read', 'sessions'],
        repos: ['acme/*'],
      })
      t.match(table.authenticate(short.secret), { name: 'b' })
      for (const wrong of ['', 'hgt_', `${forever.secret}x`, forever.token.hash])
        t.equal(table.authenticate(wrong), null)
    }
    now = 20_000
    t.equal(tokens.authenticate(short.secret), null)
    await tokens.revoke(forever.token.id)
    t.equal(tokens.authenticate(forever.secret), null)
    await t.rejects(tokens.revoke('nope'), { code: 'not_found' })
    const third = await createTokens(deps)
    t.equal(third.authenticate(forever.secret), null)
    t.equal((await third.list()).length, 2)
    const kept = gitIn(store.repositories.server.dir, ['grep', '-h', '', `refs/hangar/tokens/${forever.token.id}`])
    t.ok(kept.includes(forever.token.hash) && !kept.includes(forever.secret.slice(4)), 'only the hash is kept')
  })

  t.test('a grant ends with its sandbox, its renewal and its time', async (t) => {
    let elapsed = 5
    const grants = createGrants({ ...deps, elapsed: () => elapsed })
    const caller: GrantCaller = {
      kind: 'grant',
      id: 'sb1',
      session: 's' as SessionName,
      repo: SLUG as RepoSlug,
      parent: null,
      mayRead: [],
    }
    const first = grants.mint()
    t.match(first.secret, /^hgs_[0-9A-Za-z]{43}$/)
    t.equal(grants.authenticate(first.secret), null)
    grants.set(first.hash, { caller, expiresAt: now + 10 })
    t.equal(grants.authenticate(first.secret), caller)
    t.ok(grants.isLive(caller))
    grants.set(first.hash, { caller, expiresAt: now + 100 })
    elapsed += 50
    t.ok(grants.isLive(caller), 'renewed')
    now += 1_000_000
    t.ok(grants.isLive(caller), 'the clock was set')
    const second = grants.mint()
    grants.set(second.hash, { caller, expiresAt: now + 100 })
    t.equal(grants.authenticate(first.secret), null, 'one grant a sandbox')
    grants.revoke(first.hash)
    t.ok(grants.isLive(caller))
    elapsed += 100
    t.notOk(grants.isLive(caller))
    t.equal(grants.authenticate(second.secret), null)
    grants.set(second.hash, { caller, expiresAt: now + 100 })
    grants.revoke(second.hash)
    t.notOk(grants.isLive(caller))
  })
})

t.test('keys', async (t) => {
  const keys = join(t.testdir(), 'keys')
  const keyFile = join(keys, 'seal.asc')

  t.test('what is sealed is GCM, comes back, and opens for nobody else', async (t) => {
    const sealer = await createSealer({ keyFile, clock })
    t.equal(statSync(keyFile).mode & 0o777, 0o600)
    t.equal(statSync(keys).mode & 0o777, 0o700)
    const large = Buffer.from(random.bytes(25 * 1_048_576))
    const began = performance.now()
    const sealed = await sealer.seal(large)
    const opened = await (await createSealer({ keyFile, clock })).open(sealed)
    t.comment(`25 MB there and back: ${(performance.now() - began).toFixed(0)} ms`)
    t.ok(large.equals(opened))
    const message = await openpgp.readMessage({ binaryMessage: sealed })
    const packet = message.packets.findPacket(openpgp.enums.packet.symEncryptedIntegrityProtectedData) as unknown as {
      version: number
      aeadAlgorithm: number
    }
    t.match(packet, { version: 2, aeadAlgorithm: openpgp.enums.aead.gcm })
    const small = await sealer.seal(Buffer.from('x'))
    await t.rejects(sealer.open(Buffer.from(small).fill(0, small.length - 9, small.length - 5)), {
      code: 'store_unusable',
    })
    const stranger = await createSealer({ keyFile: join(keys, 'other.asc'), clock })
    await t.rejects(stranger.open(small), { code: 'store_unusable', message: /another key/ })
  })

  t.test('servers that start at once agree on one key', async (t) => {
    const file = join(mkdtempSync(join(keys, 'x-')), 'k/sign.asc')
    const signers = await Promise.all([1, 2, 3].map(() => createSigner({ keyFile: file, clock })))
    t.equal(new Set(signers.map((signer) => signer.publicKeyArmored)).size, 1)
    t.match(readFileSync(file, 'utf8'), /BEGIN PGP PRIVATE KEY/)
    t.same(readdirSync(join(file, '..')), ['sign.asc'])
    const past = await createSigner({ keyFile: file, clock: { now: () => 1_000 } })
    t.match(await past.sign('payload'), /BEGIN PGP SIGNATURE/, 'also with a clock that went back')
  })
})
