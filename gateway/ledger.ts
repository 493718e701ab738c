import type { Oid, RefName } from '../domain/names.ts'
import type { Clock } from '../domain/ports.ts'
import type { RefUpdate, Repository, TreeEntry } from './git/repository.ts'

export interface Change {
  /** Paths to bytes, to an object that exists (a subtree, say), or to null: removed. */
  readonly files: ReadonlyMap<string, Uint8Array | { oid: Oid; mode: TreeEntry['mode'] } | null>
  readonly message: string
  /** Put after the tip, so that history keeps them. */
  readonly parents?: readonly Oid[]
  /** Refs of the same repository that move in the same transaction. */
  readonly alsoMove?: readonly RefUpdate[]
}

export interface Ledger {
  /** Compare-and-swap append with retry; `change` is called again with the newest commit when another writer won; null = nothing to do. */
  append(
    repo: Repository,
    ref: RefName,
    change: (tip: Oid | null) => Promise<Change | null>,
  ): Promise<{ oid: Oid | null; changed: boolean }>
  readFile(repo: Repository, ref: RefName | Oid, path: string): Promise<Buffer | null>
  history(repo: Repository, ref: RefName, limit: number): Promise<{ oid: Oid; message: string; at: number }[]>
}

export function createLedger(_deps: { clock: Clock }): Ledger {
  throw new Error('not built')
}
