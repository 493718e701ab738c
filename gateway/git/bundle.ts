import type { Readable } from 'node:stream'
import type { Oid, RefName } from '../../domain/names.ts'
import type { Quarantine } from './quarantine.ts'
import type { Repository } from './repository.ts'

export interface BundleHeads {
  readonly heads: readonly { readonly ref: string; readonly oid: Oid }[]
  /** Prerequisites that the repository lacks. */
  readonly missing: readonly Oid[]
}

export interface Unbundled {
  readonly commit: Oid
  keep(): Promise<void>
  drop(): Promise<void>
}

export function createBundle(
  _repo: Repository,
  _ask: { refs: readonly RefName[]; have: readonly Oid[] },
): Promise<Readable | null> {
  throw new Error('not built')
}
export function inspectBundle(_repo: Repository, _file: string): Promise<BundleHeads> {
  throw new Error('not built')
}
/** `tip` is the commit that the intake names; without it the bundle must have one. `visible`: tips that its history may build on; default all refs. */
export function unbundle(
  _repo: Repository,
  _file: string,
  _quarantine: Quarantine,
  _options: { tip?: Oid; visible?: readonly Oid[]; maxBytes: number },
): Promise<Unbundled> {
  throw new Error('not built')
}
