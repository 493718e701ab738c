/** The mirror of one upstream: listed, fetched by id, then all refs moved in one transaction, so that nobody ever sees half of it. */
import { errors } from '../../domain/errors.ts'
import { type Oid, type RefName, ZERO_OID } from '../../domain/names.ts'
import type { Upstream } from '../../domain/upstream.ts'
import { placeOf, upstreamRef } from '../../refs-policy/ref-names.ts'
import { currentOid, type RefEntry, type RefTable } from '../../refs-policy/ref-update.ts'
import { isAncestor } from '../git/ancestry.ts'
import { setHead } from '../git/repositories.ts'
import type { RefUpdate, Repository } from '../git/repository.ts'
import { isVanished, type Listed, type Remote } from './remote.ts'

export interface Refreshed {
  /** What moved of the project's own refs. */
  readonly updates: readonly RefUpdate[]
  /** Branches that were forced to other commits, or went, with commits that are nowhere else. */
  readonly rewritten: readonly RefUpdate[]
}

/** Upstream may move while it is read; then it is listed again. */
const ATTEMPTS = 4
const HEADS = 'refs/upstream/heads/'

/** Brings the repo to what its upstream has. Throws `upstream_*`, and then no ref has moved. */
export async function refreshMirror(
  remote: Remote,
  repo: Repository,
  upstream: Upstream,
  signal?: AbortSignal,
): Promise<Refreshed> {
  for (let attempt = 1; ; attempt++) {
    const listed = await remote.list(upstream, 'read', signal)
    const wanted = listed.refs.filter(({ name }) => isProjects(name))
    const table = await repo.refs.snapshot()
    if (!wanted.some(({ name }) => placeOf(name) === 'branch') && table.refs.some(({ name }) => name.startsWith(HEADS)))
      throw errors.upstreamEmpty(
        `${upstream.url} has no branch any more; if it was made anew, remove the repo here and add it again`,
      )
    try {
      await fetchMissing(remote, repo, upstream, wanted, table, signal)
    } catch (error) {
      if (attempt < ATTEMPTS && isVanished(error)) continue
      throw error
    }
    const updates = updatesOf(wanted, table)
    const rewritten = await rewrittenOf(repo, updates)
    if (await move(repo, updates)) {
      await followHead(repo, listed)
      return { updates: updates.filter(({ ref }) => isProjects(ref)), rewritten }
    }
    if (attempt === ATTEMPTS)
      throw errors.conflict(`refs of ${repo.slug ?? ''} were moved by others while the mirror was refreshed; try again`)
  }
}

/** The project's own branches and tags; session branches upstream are what was delivered, and no matter of the mirror. */
function isProjects(ref: string): boolean {
  const place = placeOf(ref)
  return place === 'branch' || place === 'tag'
}

async function fetchMissing(
  remote: Remote,
  repo: Repository,
  upstream: Upstream,
  wanted: readonly RefEntry[],
  table: RefTable,
  signal: AbortSignal | undefined,
): Promise<void> {
  // What a ref names is whole; an object that merely lies in the store may not be.
  const named = new Set(table.refs.map(({ oid }) => oid))
  const missing = [...new Set(wanted.map(({ oid }) => oid))].filter((oid) => !named.has(oid))
  if (missing.length > 0) await remote.fetch(repo, upstream, missing, signal)
}

/** Heads, their images under `refs/upstream/heads/`, and tags, from what they are to what they are to be. */
function updatesOf(wanted: readonly RefEntry[], table: RefTable): RefUpdate[] {
  const next = new Map<RefName, Oid>()
  for (const { name, oid } of wanted) {
    next.set(name, oid)
    if (placeOf(name) === 'branch') next.set(upstreamRef(name), oid)
  }
  const updates: RefUpdate[] = []
  for (const { name, oid } of table.refs)
    if (isMirrored(name) && !next.has(name)) updates.push({ ref: name, old: oid, new: ZERO_OID })
  for (const [ref, oid] of next) {
    const old = currentOid(table, ref) ?? ZERO_OID
    if (old !== oid) updates.push({ ref, old, new: oid })
  }
  return updates
}

/** Not what was delivered of sessions. */
function isMirrored(ref: RefName): boolean {
  return isProjects(ref) || (ref.startsWith(HEADS) && isProjects(ref.replace(HEADS, 'refs/heads/')))
}

/**
 * One transaction. Git takes no name in one that another name of it frees (a branch `a` upstream that became `a/b`): then what goes, goes
 * first, in a transaction of its own.
 */
async function move(repo: Repository, updates: readonly RefUpdate[]): Promise<boolean> {
  if (updates.length === 0) return true
  const moved = await repo.refs.transact(updates)
  if (moved.ok) return true
  const gone = updates.filter((update) => update.new === ZERO_OID)
  if (gone.length === 0 || !/exists; cannot create|conflict|cannot process/.test(moved.reason)) return false
  if (!(await repo.refs.transact(gone)).ok) return false
  return (await repo.refs.transact(updates.filter((update) => update.new !== ZERO_OID))).ok
}

async function rewrittenOf(repo: Repository, updates: readonly RefUpdate[]): Promise<RefUpdate[]> {
  const rewritten: RefUpdate[] = []
  for (const update of updates) {
    if (placeOf(update.ref) !== 'branch' || update.old === ZERO_OID || update.new === ZERO_OID) continue
    if (!(await isAncestor(repo, update.old, update.new))) rewritten.push(update)
  }
  return rewritten
}

/** The default branch is upstream's. */
async function followHead(repo: Repository, { head, refs }: Listed): Promise<void> {
  if (head === null || !refs.some(({ name }) => name === head)) return
  if ((await repo.refs.snapshot()).head !== head) await setHead(repo, head)
}
