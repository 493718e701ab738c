import type { Oid } from '../../domain/names.ts'
import type { Repository } from './repository.ts'

export interface ChangedFile {
  /** Bytes as latin1. */
  readonly path: string
  readonly change: 'added' | 'modified' | 'deleted' | 'type_changed'
  readonly oldMode: string
  readonly newMode: string
  readonly oldOid: Oid
  readonly newOid: Oid
  /** null for a binary file. */
  readonly additions: number | null
  readonly deletions: number | null
}

export function diffTrees(_repo: Repository, _range: { from: Oid; to: Oid; maxBytes: number }): Promise<Buffer> {
  throw new Error('not built')
}
export function changedFiles(_repo: Repository, _from: Oid, _to: Oid): Promise<ChangedFile[]> {
  throw new Error('not built')
}
export function overlayTrees(_repo: Repository, _base: Oid, _over: Oid): Promise<Oid> {
  throw new Error('not built')
}
