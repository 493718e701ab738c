/** What one bare repository of the store is to the floors above: its objects and its refs. Interfaces only. */
import type { Oid, RefName, RepoSlug } from '../../domain/names.ts'

export interface GitObject {
  readonly oid: Oid
  readonly type: 'commit' | 'tree' | 'blob' | 'tag'
  readonly body: Buffer
}

/** An entry of a tree; its name is bytes, held as latin1. */
export interface TreeEntry {
  readonly mode: '100644' | '100755' | '120000' | '40000' | '160000'
  readonly name: string
  readonly oid: Oid
}

/** What a path becomes; null removes it. */
export type TreeEdit = { readonly oid: Oid; readonly mode: TreeEntry['mode'] } | null

export interface CommitData {
  readonly tree: Oid
  readonly parents: Oid[]
  /** The raw ident line, `name <mail> seconds zone`. */
  readonly author: string
  readonly committer: string
  readonly message: string
}

/** Reads through one long-lived git, writes through isomorphic-git. What a write resolved with is on the disk. */
export interface ObjectStore {
  /** By id or revision (`ref:path`); null when there is none. Throws `limit_passed` when the body has more than `maxBytes` (default 64 MiB). */
  read(name: string, maxBytes?: number): Promise<GitObject | null>
  info(name: string): Promise<{ oid: Oid; type: GitObject['type']; size: number } | null>
  /** Entries in git's order. Throws `not_found` when there is no such tree. */
  readTree(oid: Oid): Promise<TreeEntry[]>
  readCommit(oid: Oid): Promise<CommitData | null>
  writeBlob(body: Uint8Array): Promise<Oid>
  /** Sorts as git does. */
  writeTree(entries: readonly TreeEntry[]): Promise<Oid>
  /** Keys are paths (latin1). Reads and writes only the trees on the way; directories that become empty vanish; a file and a directory replace one another. */
  editTree(base: Oid | null, edits: ReadonlyMap<string, TreeEdit>): Promise<Oid>
  /** A signed commit of files changed on a tree: blobs (from bytes), trees and commit are written side by side. */
  commitFiles(input: {
    base: Oid | null
    files: ReadonlyMap<string, Uint8Array | TreeEdit>
    parents: readonly Oid[]
    message: string
    at: number
  }): Promise<Oid>
  /** Author and committer are `hangar <hangar@localhost>`, UTC, signed with the server's key. `at` is milliseconds. */
  writeCommit(input: { tree: Oid; parents: readonly Oid[]; message: string; at: number }): Promise<Oid>
  close(): Promise<void>
}

/** One move of a ref; ZERO_OID as `old` creates, as `new` deletes. */
export interface RefUpdate {
  readonly ref: RefName
  readonly old: Oid
  readonly new: Oid
}

/** A lost compare-and-swap or a directory/file conflict is a value, with a reason of one line. */
export type TransactResult =
  | { readonly ok: true }
  | { readonly ok: false; readonly ref: RefName | null; readonly reason: string }

export interface RefSnapshot {
  /** Rises with every change that was seen. */
  readonly version: number
  /** HEAD's target, perhaps unborn. */
  readonly head: RefName
  /** Sorted by bytes; not to be mutated. */
  readonly refs: readonly { readonly name: RefName; readonly oid: Oid }[]
}

export interface RefStore {
  read(ref: RefName): Promise<Oid | null>
  snapshot(): Promise<RefSnapshot>
  /** All or nothing, and on the disk when it resolves. */
  transact(updates: readonly RefUpdate[]): Promise<TransactResult>
  /** Packs all refs; called by itself every few hundred updates. */
  pack(): Promise<void>
  /** Called after each commit of a transaction of this server; returns its removal. */
  onChange(listener: (updates: readonly RefUpdate[]) => void): () => void
  close(): Promise<void>
}

export interface Repository {
  /** null: the server's own hangar.git. */
  readonly slug: RepoSlug | null
  readonly dir: string
  readonly objects: ObjectStore
  readonly refs: RefStore
}
