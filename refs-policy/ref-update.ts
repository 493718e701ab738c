/** What a push asks for, ref by ref. */
import type { Oid, RefName } from '../domain/names.ts'

/** One command of a push as it came: the name is bytes held as latin1, and may be no ref name at all. */
export interface RefCommand {
  readonly ref: string
  /** ZERO_OID: the client believes there is no such ref. */
  readonly old: Oid
  /** ZERO_OID: delete. */
  readonly new: Oid
}

/** A command whose name was found good. */
export interface RefUpdate extends RefCommand {
  readonly ref: RefName
}

export interface RefEntry {
  readonly name: RefName
  readonly oid: Oid
}

/** All refs of a repository at one moment, sorted by bytes. */
export interface RefTable {
  /** HEAD's target, perhaps unborn. */
  readonly head: RefName
  readonly refs: readonly RefEntry[]
}

/** The value of a ref in the table; null when there is none. */
export function currentOid(table: RefTable, ref: string): Oid | null {
  const entry = table.refs[lowerBound(table, ref)]
  return entry?.name === ref ? entry.oid : null
}

/** The index of the first ref that is not before the text. */
export function lowerBound(table: RefTable, text: string): number {
  let low = 0
  let high = table.refs.length
  while (low < high) {
    const middle = (low + high) >>> 1
    if ((table.refs[middle]?.name ?? '') < text) low = middle + 1
    else high = middle
  }
  return low
}
