/** A session's branch goes upstream: exactly that branch, from exactly what was delivered last, and read back before it counts. */
import { errors, type HangarError } from '../../domain/errors.ts'
import { isJobId, type Oid, type RefName, ZERO_OID } from '../../domain/names.ts'
import type { Upstream } from '../../domain/upstream.ts'
import { deliveringRef, upstreamRef } from '../../refs-policy/ref-names.ts'
import type { RefUpdate, Repository } from '../git/repository.ts'
import { refuseLfs } from './lfs.ts'
import type { Remote } from './remote.ts'

export interface DeliverAsk {
  /** The session's work branch, here and upstream. */
  readonly branch: RefName
  /** What of it is delivered; absent: all, as it is now. */
  readonly commit?: Oid
  /** What a person saw upstream and wants replaced, where that is not what was delivered last; ZERO_OID: no branch. */
  readonly expected?: Oid
  readonly signal?: AbortSignal
}

export interface Delivered {
  /** `unchanged`: it was known to be there already. */
  readonly status: 'delivered' | 'unchanged'
  readonly oid: Oid
  readonly ref: RefName
}

/**
 * Pushes the branch as it is now. What is about to be pushed is written down before, what arrived after: done again after a crash at any
 * point it knows its own commits upstream from others'. Throws `upstream_moved`, `upstream_protected`, `lfs_unsupported` and what a remote throws.
 */
export async function deliverBranch(
  remote: Remote,
  repo: Repository,
  upstream: Upstream,
  { branch, commit, expected, signal }: DeliverAsk,
): Promise<Delivered> {
  const oid = commit ?? (await repo.refs.read(branch))
  if (oid === null) throw errors.noContent(`${branch} has no commit yet; there is nothing to deliver`)
  const there = await valueThere(remote, upstream, branch, signal)
  const known = { last: await repo.refs.read(upstreamRef(branch)), begun: await repo.refs.read(deliveringRef(branch)) }
  if (there === oid) {
    await settle(repo, branch, oid)
    // What an earlier delivery pushed, and could not tell of, is told now.
    return { status: known.last === oid || known.begun !== oid ? 'unchanged' : 'delivered', oid, ref: branch }
  }
  const own = expected === undefined ? [known.last ?? ZERO_OID, known.begun] : [expected]
  if (!own.includes(there)) throw moved(upstream, branch, there, expected ?? known.last ?? ZERO_OID)
  await refuseLfs(repo, oid)
  // What others pushed is kept here when it is to be replaced there; a ref may name only what is in the store.
  if (there !== ZERO_OID && (await repo.objects.info(there)) === null)
    await remote.fetch(repo, upstream, [there], signal)
  await note(repo, branch, there, oid)
  const pushed = await remote.push(repo, upstream, { branch, oid, known: there }, signal)
  if (!pushed.ok && pushed.kind === 'refused')
    throw errors.upstreamProtected(`${upstream.url} refuses ${branch}: ${pushed.reason}`, { reason: pushed.reason })
  const now = await valueThere(remote, upstream, branch, signal)
  if (now !== oid) throw moved(upstream, branch, now, there)
  await settle(repo, branch, oid)
  return { status: 'delivered', oid, ref: branch }
}

async function valueThere(
  remote: Remote,
  upstream: Upstream,
  branch: RefName,
  signal: AbortSignal | undefined,
): Promise<Oid> {
  const { refs } = await remote.list(upstream, 'write', signal)
  return refs.find(({ name }) => name === branch)?.oid ?? ZERO_OID
}

/** What is about to be pushed, so that a restart that finds it upstream knows it as its own; and that what is there now was known. */
async function note(repo: Repository, branch: RefName, there: Oid, oid: Oid): Promise<void> {
  const [last, begun] = [upstreamRef(branch), deliveringRef(branch)]
  await transact(repo, [
    { ref: last, old: (await repo.refs.read(last)) ?? ZERO_OID, new: there },
    { ref: begun, old: (await repo.refs.read(begun)) ?? ZERO_OID, new: oid },
  ])
}

async function settle(repo: Repository, branch: RefName, oid: Oid): Promise<void> {
  const [last, begun] = [upstreamRef(branch), deliveringRef(branch)]
  await transact(repo, [
    { ref: last, old: (await repo.refs.read(last)) ?? ZERO_OID, new: oid },
    { ref: begun, old: (await repo.refs.read(begun)) ?? ZERO_OID, new: ZERO_OID },
  ])
}

async function transact(repo: Repository, updates: readonly RefUpdate[]): Promise<void> {
  const changes = updates.filter((update) => update.old !== update.new)
  if (changes.length === 0) return
  const done = await repo.refs.transact(changes)
  if (!done.ok) throw errors.conflict(`${done.ref ?? ''} could not be moved: ${done.reason}; try again`)
}

function moved(upstream: Upstream, branch: RefName, there: Oid, known: Oid): HangarError {
  const name = branch.replace('refs/heads/hangar/', '')
  // Of a job only its own branch is ever delivered by hand, not that of one of several attempts.
  const command = isJobId(name) ? `job deliver ${name}` : name.startsWith('job-') ? null : `session deliver ${name}`
  const words = (oid: Oid, none: string) => (oid === ZERO_OID ? none : oid)
  return errors.upstreamMoved(
    `${branch} at ${upstream.url} is ${words(there, 'not there (any more)')}, and what was delivered last is ${words(known, 'nothing')}; ` +
      `nothing was overwritten. Look at what is there${command === null ? '' : `; to replace it: hangar ${command} --expected ${there}`}`,
  )
}
