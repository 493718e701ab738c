/** Which refs a caller sees, and which of them an advertisement lists. */
import { type Caller, type GrantCaller, hasScope } from '../domain/grant.ts'
import { type RefName, workBranch } from '../domain/names.ts'
import { placeOf, sessionRef } from './ref-names.ts'
import { currentOid, lowerBound, type RefEntry, type RefTable } from './ref-update.ts'

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
  // What a sandbox sees stays small, however many sessions there are: the others are not looked at.
  if (caller.kind === 'grant') return merge(ownEntries(caller, table), [...ownHeads(table), ...tags(table)])
  if (caller.kind === 'guest') return [...ownHeads(table), ...tags(table)]
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
  const branch = caller.kind === 'grant' ? ownEntries(caller, table).filter(({ name }) => name.startsWith(HEADS)) : []
  return merge(
    listed,
    merge(branch, ownHeads(table)).filter(({ name }) => sees(name)),
  )
}

/**
 * The refs to advertise for a push. To a person: the project's own, which are all that it may move; the refs of sessions, be there a hundred thousand,
 * would say nothing but what it may not.
 */
export function pushListedRefs(caller: Caller, table: RefTable): readonly RefEntry[] {
  if (caller.kind === 'grant') return visibleRefs(caller, table)
  const notes = between(table, 'refs/notes/', 'refs/notes0').filter(({ name }) => placeOf(name) === 'note')
  const sees = visibility(caller)
  return [...ownHeads(table), ...notes, ...tags(table)].filter(({ name }) => sees(name))
}

const HEADS = 'refs/heads/'

/** The project's own branches: those before and those after the folder of session branches, which is one run of the sorted table. */
function ownHeads(table: RefTable): readonly RefEntry[] {
  const around = [
    ...between(table, HEADS, 'refs/heads/hangar/'),
    ...between(table, 'refs/heads/hangar0', 'refs/heads0'),
  ]
  return around.filter(({ name }) => placeOf(name) === 'branch')
}

function tags(table: RefTable): readonly RefEntry[] {
  return between(table, 'refs/tags/', 'refs/tags0')
}

/** The refs from one text to another, not included; `0` is the character after `/`. */
function between(table: RefTable, from: string, to: string): readonly RefEntry[] {
  return table.refs.slice(lowerBound(table, from), lowerBound(table, to))
}

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
  const own = new Set<string>(ownNames(caller))
  return (ref) => {
    const place = placeOf(ref)
    return place === 'branch' || place === 'tag' || own.has(ref)
  }
}

/** The refs of sessions that a sandbox sees. */
function ownNames(grant: GrantCaller): readonly RefName[] {
  return [
    workBranch(grant.session),
    sessionRef(grant.session, 'checkpoint'),
    sessionRef(grant.session, 'context'),
    ...(grant.parent === null ? [] : [sessionRef(grant.parent, 'checkpoint')]),
  ]
}

function ownEntries(grant: GrantCaller, table: RefTable): readonly RefEntry[] {
  const entries = ownNames(grant).map((name) => ({ name, oid: currentOid(table, name) }))
  return entries.filter((entry): entry is RefEntry => entry.oid !== null).sort((a, b) => (a.name < b.name ? -1 : 1))
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
