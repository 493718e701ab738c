import type { Token } from '../../domain/grant.ts'
import type { Oid, RefName, RepoSlug } from '../../domain/names.ts'
import type { Log } from '../../domain/ports.ts'
import type { RunEvent } from '../../domain/run-event.ts'
import type { SessionRecord, TurnRecord } from '../../domain/session.ts'
import type { RefUpdate } from '../git/repository.ts'

/** What happened in the store. `by` is `token:<id>`, `grant:<sandbox>` or `unknown`. */
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
  /** By id. */
  tokens: Token
  /** By `refSeenKey`. */
  refsSeen: Oid
  /** By `seqKey`. */
  storeEvents: StoreEvent
  /** By session name; how far the output of its turn was taken in. */
  cursors: unknown
  meta: unknown
}
export type SectionName = keyof Sections

export interface RangeOptions {
  readonly prefix?: string
  /** First key (included), or last when `reverse`. With a prefix it comes after the prefix's own. */
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
  /** All or nothing; a null value deletes. `durable` waits for the disk. */
  batch(changes: readonly IndexChange[], options?: { durable?: boolean }): Promise<void>
  /** Keys (`section/key`) and JSON texts of the sections, in order; default all. */
  dump(sections?: readonly SectionName[]): AsyncIterable<[string, string]>
  close(): Promise<void>
}

export function openIndex(_deps: { dir: string; log: Log }): Promise<Index> {
  throw new Error('not built')
}
export function turnKey(name: string, turn: number): string {
  return `${name}/${String(turn).padStart(6, '0')}`
}
export function runEventKey(name: string, seq: number): string {
  return `${name}/${String(seq).padStart(10, '0')}`
}
export function orderKey(createdAt: number, name: string): string {
  return `${String(createdAt).padStart(15, '0')}/${name}`
}
export function seqKey(seq: number): string {
  return String(seq).padStart(16, '0')
}
/** `repo` null is the server's own repository. */
export function refSeenKey(repo: RepoSlug | null, ref: RefName): string {
  return `${repo ?? ''}:${ref}`
}
