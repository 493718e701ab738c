/**
 * The audit trail of pushes: who asked for which move of which ref, and by which rule it was refused. Kept in hangar.git, off the path of requests.
 * What was accepted is taken from the event log by a cursor that lies beside the trail, so that it is never lost; what was refused is gathered in
 * memory for some seconds, and counted where it is a flood.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { messageOf } from '../domain/errors.ts'
import { type Oid, type RefName, ZERO_OID } from '../domain/names.ts'
import type { Clock, Log } from '../domain/ports.ts'
import type { Repository } from './git/repository.ts'
import type { Push, PushOutcome } from './push.ts'
import type { EventLog, StoreEvent } from './state/event-log.ts'

export interface AuditEntry {
  /** Milliseconds. */
  readonly at: number
  /** `token:<id>`, `grant:<sandbox>`, or `unknown`: a move that was found at a start. */
  readonly by: string
  readonly repo: string
  readonly ref: string
  readonly old: string
  readonly new: string
  readonly decision: 'accepted' | 'refused'
  /** The id of the rule that refused; of what was accepted null. */
  readonly rule: string | null
  readonly reason: string | null
  readonly forced: boolean
  /** More than 1: so many like this one came, of which it is the last. */
  readonly times: number
}

export interface AuditFilter {
  readonly repo?: string
  readonly ref?: string
  readonly by?: string
  readonly decision?: AuditEntry['decision']
  readonly rule?: string
}

export interface Audit {
  /** Takes in what a push was refused. */
  note(push: Pick<Push, 'slug' | 'caller'>, outcome: Pick<PushOutcome, 'verdicts'>): void
  /** Newest first; `before` is the cursor of the page before. */
  list(filter: AuditFilter, page: { limit: number; before: string | null }): Promise<AuditPage>
  /** Puts into git what is known by now. */
  flush(): Promise<void>
  close(): Promise<void>
}

export interface AuditPage {
  readonly entries: readonly AuditEntry[]
  readonly next: string | null
}

export interface AuditDeps {
  /** hangar.git */
  readonly server: Repository
  readonly events: Pick<EventLog, 'read' | 'follow'>
  readonly clock: Clock
  readonly log: Log
  /** Days that are kept; null: all. */
  readonly keepDays: number | null
  /** Default 10 seconds. */
  readonly flushMs?: number
}

export const AUDIT_REF = 'refs/hangar/audit' as RefName
const CURSOR = 'cursor'
const DAY_MS = 86_400_000
/** Refusals of one caller that are kept one by one: so many at once, and one more for each so many milliseconds. */
const BURST = 50
const REFILL_MS = 10_000
/** What is over is counted by caller, repo and rule, once a minute; more kinds than these are counted together. */
const FLOOD_MS = 60_000
const MOST_KINDS = 200
const MOST_CALLERS = 10_000
const EVENTS = 1_000

export async function createAudit(deps: AuditDeps): Promise<Audit> {
  const { server, clock, log } = deps
  const flushMs = deps.flushMs ?? 10_000
  const closing = new AbortController()
  const floods = createFloodGate(clock)
  let pending: AuditEntry[] = []
  let cursor = Number((await readText(server, `${AUDIT_REF}:${CURSOR}`)) ?? 0)
  let writing: Promise<void> = Promise.resolve()
  let batch = 0

  /** One commit: all refusals so far, and the next events. True when there may be more of these. */
  async function writeBatch(): Promise<boolean> {
    const events = await deps.events.read(cursor, EVENTS)
    const refused = [...pending, ...floods.due()]
    pending = []
    const entries = [...events.flatMap(entriesOf), ...refused].sort((a, b) => a.at - b.at)
    const last = events.at(-1)?.seq ?? cursor
    if (entries.length === 0) {
      // Events that are none of ours: in git the cursor moves with the next that is.
      cursor = last
      return events.length === EVENTS
    }
    try {
      await commit(entries, last)
      cursor = last
    } catch (error) {
      pending = [...refused, ...pending].slice(-EVENTS)
      throw error
    }
    return events.length === EVENTS
  }

  async function commit(entries: readonly AuditEntry[], last: number): Promise<void> {
    const now = clock.now()
    const tip = await server.refs.read(AUDIT_REF)
    const before = tip === null ? null : await server.objects.readCommit(tip)
    const files = new Map<string, Uint8Array | null>()
    const lines = entries.map((entry) => `${JSON.stringify(entry)}\n`).join('')
    files.set(`${fileName(now, batch++)}.jsonl`, Buffer.from(lines))
    files.set(CURSOR, Buffer.from(`${last}\n`))
    const old =
      before === null || deps.keepDays === null ? [] : await oldDays(before.tree, now - deps.keepDays * DAY_MS)
    for (const day of old) files.set(day, null)
    const message = `${entries.length} decisions on pushes`
    // With days that go their history goes as well.
    const parents = tip === null || old.length > 0 ? [] : [tip]
    const oid = await server.objects.commitFiles({ base: before?.tree ?? null, files, parents, message, at: now })
    const moved = await server.refs.transact([{ ref: AUDIT_REF, old: tip ?? ZERO_OID, new: oid }])
    if (!moved.ok) throw new Error(moved.reason)
  }

  async function oldDays(tree: Oid, until: number): Promise<string[]> {
    const first = new Date(until).toISOString().slice(0, 10)
    return (await server.objects.readTree(tree))
      .map(({ name }) => name)
      .filter((name) => name !== CURSOR && name < first)
  }

  function flush(): Promise<void> {
    const done = writing.then(async () => {
      while (await writeBatch());
    })
    writing = done.catch((error: unknown) =>
      log.error({ error: messageOf(error) }, 'the audit trail could not be written; it is tried again'),
    )
    return done
  }

  const rounds = (async () => {
    while (!closing.signal.aborted) {
      await sleep(flushMs, undefined, { signal: closing.signal, ref: false }).catch(() => {})
      await flush().catch(() => {})
    }
  })()

  return {
    note({ slug, caller }, { verdicts }) {
      for (const verdict of verdicts) {
        if (verdict.allowed) continue
        const { asked, rule, reason } = verdict
        const by = `${caller.kind}:${caller.id}`
        const move = { ref: text(asked.ref), old: asked.old, new: asked.new }
        const entry = { at: clock.now(), by, repo: slug, ...move, forced: false, times: 1 } as const
        const kept = floods.take({ ...entry, decision: 'refused', rule, reason: text(reason) })
        if (kept !== null) pending.push(kept)
      }
    },
    async list(filter, { limit, before }) {
      await flush()
      const entries: AuditEntry[] = []
      let next: string | null = null
      for await (const { entry, at } of newestFirst(server, before)) {
        if (!matches(entry, filter)) continue
        if (entries.length === limit) return { entries, next }
        entries.push(entry)
        next = at
      }
      return { entries, next: null }
    },
    flush,
    async close() {
      closing.abort()
      await rounds
      floods.closeAll()
      await flush().catch(() => {})
    },
  }
}

/** `2026-12-01/14/05-59.123-0007`: what comes later sorts later. */
function fileName(at: number, batch: number): string {
  const [day = '', time = ''] = new Date(at).toISOString().split('T')
  return `${day}/${time.slice(0, 2)}/${time.slice(3, 12).replace(':', '-')}-${String(batch % 10_000).padStart(4, '0')}`
}

function entriesOf(event: StoreEvent): AuditEntry[] {
  if (event.type !== 'push') return []
  return event.updates.map(({ ref, old, new: oid }) => ({
    at: event.at,
    by: event.by,
    repo: event.repo,
    ref: text(ref),
    old,
    new: oid,
    decision: 'accepted',
    rule: null,
    reason: null,
    forced: event.forced.includes(ref),
    times: 1,
  }))
}

/** Names are bytes, and whatever a client sends: cut, and as text. */
function text(bytes: string): string {
  return Buffer.from(bytes, 'latin1').toString('utf8').slice(0, 300)
}

function matches(entry: AuditEntry, filter: AuditFilter): boolean {
  return Object.entries(filter).every(
    ([key, value]) => value === undefined || entry[key as keyof AuditFilter] === value,
  )
}

/** Lets a caller's refusals through at a rate, and counts the rest. */
function createFloodGate(clock: Clock) {
  const rooms = new Map<string, { left: number; at: number }>()
  const counted = new Map<string, AuditEntry>()
  let since = clock.now()
  const hasRoom = (by: string, now: number): boolean => {
    const { left, at } = rooms.get(by) ?? { left: BURST, at: now }
    const refilled = Math.min(BURST, left + (now - at) / REFILL_MS)
    if (rooms.size >= MOST_CALLERS) rooms.clear()
    rooms.set(by, { left: refilled < 1 ? refilled : refilled - 1, at: now })
    return refilled >= 1
  }
  return {
    /** The entry, when it is to be kept by itself. */
    take(entry: AuditEntry): AuditEntry | null {
      if (hasRoom(entry.by, entry.at)) return entry
      const own = `${entry.by} ${entry.repo} ${entry.rule}`
      const key = counted.has(own) || counted.size < MOST_KINDS ? own : ''
      counted.set(key, { ...entry, times: (counted.get(key)?.times ?? 0) + 1 })
      return null
    },
    /** What was counted, once a minute. */
    due(): AuditEntry[] {
      if (counted.size === 0 || clock.now() - since < FLOOD_MS) return []
      since = clock.now()
      const entries = [...counted.values()]
      counted.clear()
      return entries
    },
    closeAll(): void {
      since = 0
    },
  }
}

/** All entries, newest first, from before a cursor on: `<file>:<line>`. Reads a file at a time. */
async function* newestFirst(
  server: Repository,
  before: string | null,
): AsyncGenerator<{ entry: AuditEntry; at: string }> {
  const tip = await server.refs.read(AUDIT_REF)
  const tree = tip === null ? null : ((await server.objects.readCommit(tip))?.tree ?? null)
  if (tree === null) return
  const [file = '', line = ''] = before?.split(':') ?? []
  for (const day of await names(server, tree))
    for (const hour of day.mode === '40000' && notAfter(day.name, file) ? await names(server, day.oid) : [])
      for (const { name, oid } of notAfter(`${day.name}/${hour.name}`, file) ? await names(server, hour.oid) : []) {
        const path = `${day.name}/${hour.name}/${name}`
        if (!notAfter(path, file)) continue
        const lines = ((await server.objects.read(oid))?.body.toString('utf8') ?? '').split('\n').slice(0, -1)
        const from = path === file ? Math.min(lines.length, Number(line)) : lines.length
        for (let at = from - 1; at >= 0; at--)
          yield { entry: JSON.parse(lines[at] ?? '') as AuditEntry, at: `${path}:${at}` }
      }
}

function notAfter(path: string, file: string): boolean {
  return file === '' || path <= file.slice(0, path.length)
}

async function names(server: Repository, tree: Oid) {
  return (await server.objects.readTree(tree)).toReversed()
}

async function readText(server: Repository, name: string): Promise<string | null> {
  return (await server.objects.read(name))?.body.toString('utf8') ?? null
}
