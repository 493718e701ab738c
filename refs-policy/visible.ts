/** Which refs a caller sees, and which of them an advertisement lists. */
import { type Caller, hasScope } from '../domain/grant.ts'
import { type RefName, workBranch } from '../domain/names.ts'
import { placeOf, sessionRef } from './ref-names.ts'
import { lowerBound, type RefEntry, type RefTable } from './ref-update.ts'

/** What the client asked to have listed. */
export interface Listing {
  readonly protocol: 0 | 1 | 2
  /** `ref-prefix` lines of protocol v2; none lists everything that is seen. */
  readonly prefixes: readonly string[]
}

/** Whether the caller sees everything, so that no object needs to be looked at on its behalf. */
export function seesAll(caller: Caller): boolean {
  return caller.kind === 'token' && hasScope(caller, 'admin')
}

/** All refs that the caller may fetch, sorted. Source: MODEL, "Who sees what". */
export function visibleRefs(caller: Caller, table: RefTable): readonly RefEntry[] {
  if (seesAll(caller)) return table.refs
  const sees = visibility(caller)
  return table.refs.filter((entry) => sees(entry.name))
}

/**
 * The refs to advertise: those that the caller sees and its prefixes cover. Under v2 a token's `refs/heads/hangar/*` needs a prefix that says more
 * than `refs/heads/`, which is what a default clone or fetch asks for. A grant's own branch is always listed.
 */
export function listedRefs(caller: Caller, table: RefTable, listing: Listing): readonly RefEntry[] {
  const { prefixes } = listing
  if (listing.protocol !== 2 || prefixes.length === 0) return visibleRefs(caller, table)
  const sees = visibility(caller)
  const precise = prefixes.filter((prefix) => prefix !== HEADS)
  const listed = candidates(table, precise).filter(({ name }) => sees(name))
  if (precise.length === prefixes.length) return listed
  const heads = candidates(table, [HEADS]).filter(
    ({ name }) => sees(name) && (caller.kind === 'grant' || placeOf(name) !== 'session_branch'),
  )
  return merge(listed, heads)
}

const HEADS = 'refs/heads/'

/** Both lists as one, sorted, without doubles. */
function merge(a: readonly RefEntry[], b: readonly RefEntry[]): RefEntry[] {
  const merged: RefEntry[] = []
  let [atA, atB] = [0, 0]
  for (;;) {
    const [left, right] = [a[atA], b[atB]]
    if (left === undefined) return [...merged, ...b.slice(atB)]
    if (right === undefined) return [...merged, ...a.slice(atA)]
    merged.push(left.name <= right.name ? left : right)
    if (left.name <= right.name) atA++
    if (right.name <= left.name) atB++
  }
}

/** The test of one ref name for this caller. */
export function visibility(caller: Caller): (ref: RefName) => boolean {
  if (seesAll(caller)) return () => true
  if (caller.kind === 'token') {
    if (!hasScope(caller, 'read')) return () => false
    return (ref) => {
      const place = placeOf(ref)
      return place !== 'incoming' && place !== 'sealed'
    }
  }
  if (caller.kind === 'guest') return (ref) => ['branch', 'tag'].includes(placeOf(ref))
  const own = new Set<string>([
    workBranch(caller.session),
    sessionRef(caller.session, 'checkpoint'),
    sessionRef(caller.session, 'context'),
    ...(caller.parent === null ? [] : [sessionRef(caller.parent, 'checkpoint')]),
  ])
  return (ref) => {
    const place = placeOf(ref)
    return place === 'branch' || place === 'tag' || own.has(ref)
  }
}

/** The refs under any of the prefixes, in order and once each, without looking at the others. */
function candidates(table: RefTable, prefixes: readonly string[]): RefEntry[] {
  const found: RefEntry[] = []
  let next = 0
  for (const prefix of [...new Set(prefixes)].sort()) {
    for (let at = Math.max(next, lowerBound(table, prefix)); at < table.refs.length; at++) {
      const entry = table.refs[at]
      if (!entry?.name.startsWith(prefix)) break
      found.push(entry)
      next = at + 1
    }
  }
  return found
}
