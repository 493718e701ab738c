/** The audit trail: nothing accepted is lost, floods are counted, days go, and git has it all. */
import { join } from 'node:path'
import t from 'tap'
import type { TokenCaller } from '../../domain/grant.ts'
import { type Oid, type SessionName, ZERO_OID } from '../../domain/names.ts'
import { type Audit, type AuditEntry, createAudit } from '../../gateway/audit.ts'
import { createEventLog, type EventLog } from '../../gateway/state/event-log.ts'
import { openIndex } from '../../gateway/state/index.ts'
import type { Verdict } from '../../refs-policy/decide.ts'
import { fsck, gitIn, log, openStore, ref, SLUG, type Store } from './store-fixture.ts'

const A = 'a'.repeat(40) as Oid
const B = 'b'.repeat(40) as Oid
const caller = (id: string): TokenCaller => ({ kind: 'token', id, name: id, scopes: ['admin'], repos: null })
const refusal = (name: string, rule = 'records'): Verdict => ({
  allowed: false,
  ref: name,
  rule,
  reason: 'no',
  asked: { ref: name, old: A, new: B },
})

async function open(store: Store, time: { now: number }, keepDays: number | null = null) {
  const index = await openIndex({ dir: join(store.dataDir, 'index/level'), log })
  const clock = { now: () => time.now }
  const events = await createEventLog({ index, clock })
  const server = store.repositories.server
  const audit = await createAudit({ server, events, clock, log, keepDays, flushMs: 3_600_000 })
  return {
    audit,
    events,
    close: async () => {
      await audit.close()
      await events.close()
      await index.close()
    },
  }
}

const pushed = (events: EventLog, name: string, by = 'token:a') =>
  events.append({
    type: 'push',
    repo: SLUG,
    by,
    updates: [{ ref: ref(name), old: ZERO_OID, new: A }],
    forced: name.endsWith('forced') ? [ref(name)] : [],
  })

async function all(audit: Audit, filter = {}): Promise<AuditEntry[]> {
  const entries: AuditEntry[] = []
  for (let before: string | null = null; ; ) {
    const page = await audit.list(filter, { limit: 7, before })
    entries.push(...page.entries)
    before = page.next
    if (before === null) return entries
  }
}

t.test('decisions are in git, newest first, by page and filter', async (t) => {
  const store = await openStore(t.testdir())
  t.teardown(() => store.repositories.close())
  const time = { now: Date.UTC(2026, 11, 1, 23, 59, 50) }
  const first = await open(store, time)
  for (let n = 0; n < 10; n++) {
    await pushed(first.events, `refs/heads/b${n}`)
    first.audit.note({ slug: SLUG, caller: caller('a') }, { verdicts: [refusal(`refs/hangar/x${n}`)] })
    await first.events.append({ type: 'record', repo: SLUG, ref: ref('refs/hangar/jobs/x'), oid: A })
    time.now += 2_000
    if (n % 4 === 3) await first.audit.flush()
  }
  await pushed(first.events, 'refs/heads/forced', 'grant:sb')
  const entries = await all(first.audit)
  t.equal(entries.length, 21)
  t.match(entries[0], { ref: 'refs/heads/forced', by: 'grant:sb', decision: 'accepted', rule: null, forced: true })
  t.strictSame(
    entries.map(({ at }) => at),
    entries.map(({ at }) => at).sort((a, b) => b - a),
  )
  const refused = await all(first.audit, { decision: 'refused', rule: 'records' })
  t.strictSame(
    refused.map((entry) => entry.ref),
    Array.from({ length: 10 }, (_, n) => `refs/hangar/x${9 - n}`),
  )
  t.match(refused[0], { by: 'token:a', repo: SLUG, old: A, new: B, reason: 'no', forced: false, times: 1 })
  t.equal((await all(first.audit, { ref: 'refs/heads/b3' })).length, 1)
  t.equal((await all(first.audit, { repo: 'other/x' })).length, 0)
  // A crash after the event, before the trail: the next server finds it. What was written is not written twice.
  await pushed(first.events, 'refs/heads/late')
  await first.events.close()
  await first.audit.close()
  await first.close()
  const second = await open(store, time)
  t.teardown(() => second.close())
  t.strictSame((await all(second.audit)).map((entry) => entry.ref).slice(0, 2), [
    'refs/heads/late',
    'refs/heads/forced',
  ])
  t.equal((await all(second.audit)).length, 22)
  const { dir } = store.repositories.server
  t.match(
    gitIn(dir, ['log', '-p', 'refs/hangar/audit']),
    /\+\{"at":\d+,"by":"token:a","repo":"acme\/app","ref":"refs\/heads\/b0"/,
  )
  t.equal(fsck(dir), '')
})

t.test('a flood is counted, by what was refused, and does not hide others', async (t) => {
  const store = await openStore(t.testdir())
  t.teardown(() => store.repositories.close())
  const time = { now: Date.UTC(2026, 11, 1) }
  const { audit, close } = await open(store, time)
  t.teardown(close)
  for (let n = 0; n < 20_000; n++) {
    time.now += 1
    audit.note(
      { slug: SLUG, caller: caller('flood') },
      { verdicts: [refusal(`refs/x/${n}`, n % 2 === 0 ? 'records' : 'scope')] },
    )
  }
  for (let n = 0; n < 500; n++)
    audit.note({ slug: SLUG, caller: caller('flood') }, { verdicts: [refusal('refs/x/y', `rule${n}`)] })
  const grant = { kind: 'grant', id: 'sb', session: 's' as SessionName, repo: SLUG, parent: null, mayRead: [] } as const
  audit.note({ slug: SLUG, caller: grant }, { verdicts: [refusal(`refs/heads/${'x'.repeat(5_000)}\xff`)] })
  t.equal((await all(audit)).length < 60, true, 'as many as there may be at once')
  t.match(await all(audit, { by: 'grant:sb' }), [{ times: 1 }])
  time.now += 60_000
  const entries = await all(audit)
  const times = (rule: string) =>
    entries.filter((entry) => entry.rule === rule).reduce((sum, entry) => sum + entry.times, 0)
  t.equal(times('records') + times('scope'), 20_001)
  t.equal(
    entries.reduce((sum, entry) => sum + entry.times, 0),
    20_501,
  )
  t.equal(entries.length < 300, true, String(entries.length))
})

t.test('what is older than its days goes, and its history with it', async (t) => {
  const store = await openStore(t.testdir())
  t.teardown(() => store.repositories.close())
  const time = { now: Date.UTC(2026, 11, 1) }
  const { audit, events, close } = await open(store, time, 30)
  t.teardown(close)
  for (let day = 0; day < 40; day++) {
    await pushed(events, `refs/heads/d${day}`)
    await audit.flush()
    time.now += 86_400_000
  }
  const kept = (await all(audit)).map((entry) => entry.ref)
  t.equal(kept[0], 'refs/heads/d39')
  t.equal(kept.length, 31)
  const { dir } = store.repositories.server
  t.equal(gitIn(dir, ['rev-list', '--count', 'refs/hangar/audit']).trim(), '1')
})
