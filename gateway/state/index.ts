/** What can be looked up fast and rebuilt from git: LevelDB in typed sections. Deleting its directory loses nothing but open cursors and MCP sessions. */
import { randomBytes } from 'node:crypto'
import { mkdir, rename } from 'node:fs/promises'
import { Level } from 'level'
import { errors, messageOf } from '../../domain/errors.ts'
import type { Token } from '../../domain/grant.ts'
import type { JobRecord } from '../../domain/job.ts'
import type { Oid, RefName, RepoSlug } from '../../domain/names.ts'
import type { Log } from '../../domain/ports.ts'
import type { RunEvent } from '../../domain/run-event.ts'
import type { SessionRecord, TurnRecord } from '../../domain/session.ts'
import type { RefUpdate } from '../git/repository.ts'
import type { DiskReserve } from './disk-reserve.ts'

/** What happened in the store. `by` is `token:<id>`, `grant:<sandbox>`, `upstream` (the mirror) or `unknown`. */
export type StoreEventBody =
  | {
      readonly type: 'push'
      readonly repo: RepoSlug
      readonly by: string
      readonly updates: readonly RefUpdate[]
      readonly forced: readonly RefName[]
    }
  | { readonly type: 'record'; readonly repo: RepoSlug | null; readonly ref: RefName; readonly oid: Oid }
export type StoreEvent = StoreEventBody & { readonly seq: number; readonly at: number }

export interface SessionEntry {
  readonly logOid: Oid
  readonly repo: RepoSlug
  readonly session: SessionRecord
}

export interface JobEntry {
  /** The commit that the record was read from. */
  readonly oid: Oid
  readonly job: JobRecord
}

/** How an MCP client began its session, kept so that it goes on after a restart of the server. */
export interface McpSessionRecord {
  /** Whose it is; no other token finds it. */
  readonly tokenId: string
  /** The client's `initialize` message. */
  readonly initialize: unknown
  /** URIs that the client is subscribed to. */
  readonly watched: readonly string[]
  readonly usedAt: number
}

/** Each section with the type of its values. */
export interface Sections {
  /** By session name. */
  sessions: SessionEntry
  /** By `turnKey`. */
  turns: TurnRecord
  /** By `runEventKey`. */
  runEvents: RunEvent
  /** By `orderKey`; the value is the session's name. Read in reverse for the newest first. */
  order: string
  /** By session name: those whose question waits for an answer. */
  questions: true
  /** By id. */
  tokens: Token
  /** By `refSeenKey`. */
  refsSeen: Oid
  /** By `seqKey`. */
  storeEvents: StoreEvent
  /** By id. */
  jobs: JobEntry
  /** By `orderKey`; the value is the job's id. */
  jobOrder: string
  /** By session name; how far the output of its turn was taken in. */
  cursors: unknown
  /** By session id. The one section that nothing else could give back: reindexing leaves it as it is. */
  mcpSessions: McpSessionRecord
  meta: unknown
}
export type SectionName = keyof Sections

export interface RangeOptions {
  readonly prefix?: string
  /** The key to begin at (included), in the direction of reading; a whole key, prefix included. */
  readonly from?: string
  readonly limit?: number
  readonly reverse?: boolean
}

export interface Section<V> {
  get(key: string): Promise<V | null>
  put(key: string, value: V): Promise<void>
  del(key: string): Promise<void>
  range(options?: RangeOptions): Promise<[string, V][]>
}

export type IndexChange = {
  [S in SectionName]:
    | { readonly section: S; readonly key: string; readonly value: Sections[S] }
    | { readonly section: S; readonly key: string; readonly value: null }
}[SectionName]

export type Index = { readonly [S in SectionName]: Section<Sections[S]> } & {
  /** It was made just now, or by a hangar that kept other sections, so it wants a full reindex. */
  readonly fresh: boolean
  /** All or nothing; a null value deletes. `durable` waits for the disk. */
  batch(changes: readonly IndexChange[], options?: { durable?: boolean }): Promise<void>
  /** Keys (`section/key`) and JSON texts of the sections, in order; default all. */
  dump(sections?: readonly SectionName[]): AsyncIterable<[string, string]>
  close(): Promise<void>
}

/** In the order of the database; `!` ends a section's name in its keys. */
export const SECTIONS: readonly SectionName[] = [
  'cursors',
  'jobOrder',
  'jobs',
  'mcpSessions',
  'meta',
  'order',
  'questions',
  'refsSeen',
  'runEvents',
  'sessions',
  'storeEvents',
  'tokens',
  'turns',
]

/**
 * Opens the index, or makes an empty one (`fresh`): also when what is there is damaged, which is then kept beside it under another name.
 * Throws `store_unusable` when another process holds it.
 */
export async function openIndex(deps: {
  readonly dir: string
  readonly log: Log
  readonly disk?: Pick<DiskReserve, 'write'>
}): Promise<Index> {
  const level = await openLevel(deps.dir).catch(async (error: unknown) => {
    if (reasonOf(error) === 'LEVEL_LOCKED')
      throw errors.storeUnusable(`the index ${deps.dir} is held by another process; stop that hangar first`, {}, error)
    const aside = `${deps.dir}.damaged-${randomBytes(4).toString('hex')}`
    deps.log.warn(
      { dir: deps.dir, aside, error: messageOf(error) },
      'the index is damaged; it was put aside and is built again from git',
    )
    await rename(deps.dir, aside)
    return openLevel(deps.dir)
  })
  const fresh = (await level.get('meta!sections')) !== JSON.stringify(SECTIONS)
  if (fresh) await level.put('meta!sections', JSON.stringify(SECTIONS))
  const sections = Object.fromEntries(SECTIONS.map((name) => [name, createSection(level, name)]))
  return {
    ...(sections as { readonly [S in SectionName]: Section<Sections[S]> }),
    fresh,
    async batch(changes, options = {}) {
      const operations = changes.map(({ section, key, value }) =>
        value === null
          ? { type: 'del' as const, key: `${section}!${key}` }
          : { type: 'put' as const, key: `${section}!${key}`, value: JSON.stringify(value) },
      )
      const write = () => level.batch(operations, { sync: options.durable ?? false })
      await (deps.disk === undefined ? write() : deps.disk.write(write))
    },
    async *dump(names = SECTIONS) {
      for (const name of [...names].sort())
        for await (const [key, value] of level.iterator({ gt: `${name}!`, lt: `${name}"` }))
          yield [key.replace('!', '/'), value]
    },
    close: () => level.close(),
  }
}

async function openLevel(dir: string): Promise<Level<string, string>> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const level = new Level<string, string>(dir, { keyEncoding: 'utf8', valueEncoding: 'utf8' })
  await level.open()
  return level
}

function reasonOf(error: unknown): string {
  const { code, cause } = error as { code?: string; cause?: { code?: string } }
  return cause?.code ?? code ?? ''
}

function createSection<V>(level: Level<string, string>, name: SectionName): Section<V> {
  const prefix = `${name}!`
  return {
    async get(key) {
      const text = await level.get(prefix + key)
      return text === undefined ? null : (JSON.parse(text) as V)
    },
    put: (key, value) => level.put(prefix + key, JSON.stringify(value)),
    del: (key) => level.del(prefix + key),
    async range(options = {}) {
      const first = prefix + (options.prefix ?? '')
      // One past every key with the prefix: no key of ours holds this character.
      let bounds: { gte: string; lt?: string; lte?: string } = { gte: first, lt: `${first}\uffff` }
      if (options.from !== undefined)
        bounds = options.reverse
          ? { gte: first, lte: prefix + options.from }
          : { ...bounds, gte: prefix + options.from }
      const range = { ...bounds, reverse: options.reverse ?? false, limit: options.limit ?? -1 }
      const found = await level.iterator(range).all()
      return found.map(([key, value]) => [key.slice(prefix.length), JSON.parse(value) as V])
    },
  }
}

/** Key of a turn; turns of a session sort by number. */
export function turnKey(name: string, turn: number): string {
  return `${name}/${String(turn).padStart(6, '0')}`
}
/** Key of a run event; events of a session sort by seq. */
export function runEventKey(name: string, seq: number): string {
  return `${name}/${String(seq).padStart(10, '0')}`
}
/** Key in the listing by time of creation. */
export function orderKey(createdAt: number, name: string): string {
  return `${String(createdAt).padStart(15, '0')}/${name}`
}
/** Key of a store event. */
export function seqKey(seq: number): string {
  return String(seq).padStart(16, '0')
}
/** `repo` null is the server's own repository. */
export function refSeenKey(repo: RepoSlug | null, ref: RefName): string {
  return `${repo ?? ''}:${ref}`
}
