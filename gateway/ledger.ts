/** Records in git: each change is a commit on the record's ref, put there by compare-and-swap, so that none is ever lost. */
import { setTimeout as sleep } from 'node:timers/promises'
import { errors } from '../domain/errors.ts'
import { isOid, type Oid, type RefName, ZERO_OID } from '../domain/names.ts'
import type { Clock } from '../domain/ports.ts'
import type { RefUpdate, Repository, TreeEntry } from './git/repository.ts'
import type { DiskReserve } from './state/disk-reserve.ts'

export interface Change {
  /** Paths to bytes, to an object that exists (a subtree, say), or to null: removed. */
  readonly files: ReadonlyMap<string, Uint8Array | { oid: Oid; mode: TreeEntry['mode'] } | null>
  readonly message: string
  /** Put after the tip, so that history keeps them. */
  readonly parents?: readonly Oid[]
  /** Refs of the same repository that move in the same transaction. */
  readonly alsoMove?: readonly RefUpdate[]
}

/** Gives the change to make on the record as it stands, or null when there is nothing to do. Must not append to the same ref itself. */
export type MakeChange = (tip: Oid | null) => Promise<Change | null>

/** The same for several records at once, by their tips: a change for each, in order. */
export type MakeChanges = (tips: readonly (Oid | null)[]) => Promise<readonly Change[] | null>

export interface Ledger {
  /**
   * Puts a commit on the ref and resolves when it is on the disk. When another writer was first, or a ref of `alsoMove` has moved,
   * `change` is called again with the newest commit, at most 100 times. Gives the ref's new (or unchanged) commit.
   * On a full disk the reserve makes room. Throws `disk_full`, `conflict` when git refuses for a reason that asking again does not mend, and `busy` when the attempts ran out.
   */
  append(repo: Repository, ref: RefName, change: MakeChange): Promise<{ oid: Oid | null; changed: boolean }>
  /** The same for records of one repository that move together, all or none: their commits are made, then all refs move in one transaction. */
  appendAll(
    repo: Repository,
    refs: readonly RefName[],
    change: MakeChanges,
  ): Promise<{ oids: readonly (Oid | null)[]; changed: boolean }>
  /** A file of the newest record, or of a given commit; null when there is none. At most 64 MiB. */
  readFile(repo: Repository, ref: RefName | Oid, path: string): Promise<Buffer | null>
  /** Newest first, along first parents. */
  history(repo: Repository, ref: RefName, limit: number): Promise<{ oid: Oid; message: string; at: number }[]>
}

const MAX_ATTEMPTS = 100
const MAX_PAUSE_MS = 50

/** The ledger over any repository of the store. */
export function createLedger(deps: { readonly clock: Clock; readonly disk?: Pick<DiskReserve, 'write'> }): Ledger {
  /** Writers of this process that lost once wait for one another instead of racing on. */
  const turns = new Map<string, Promise<unknown>>()

  async function attempt(repo: Repository, refs: readonly RefName[], change: MakeChanges) {
    const tips = await Promise.all(refs.map((ref) => repo.refs.read(ref)))
    const wanted = await change(tips)
    if (wanted === null) return { oids: tips, changed: false }
    const at = deps.clock.now()
    const oids: Oid[] = []
    const updates = new Map<RefName, RefUpdate>()
    for (const [place, one] of wanted.entries()) {
      const [ref, tip] = [refs[place], tips[place] ?? null]
      if (ref === undefined) throw errors.internal('there are more changes than records')
      const oid = await commit(repo, { tip, change: one, at })
      oids.push(oid)
      for (const update of [{ ref, old: tip ?? ZERO_OID, new: oid }, ...(one.alsoMove ?? [])])
        updates.set(update.ref, update)
    }
    const moves = [...updates.values()]
    const result = await repo.refs.transact(moves)
    if (result.ok) return { oids, changed: true }
    if (isTransient(result.reason) || (await anyMoved(repo, moves))) return null
    throw errors.conflict(`${result.ref ?? refs[0]} cannot be moved: ${result.reason}`, { reason: result.reason })
  }

  async function retry(repo: Repository, refs: readonly RefName[], change: MakeChanges) {
    for (let count = 2; count <= MAX_ATTEMPTS; count += 1) {
      const done = await attempt(repo, refs, change)
      if (done !== null) return done
      await sleep(Math.random() * Math.min(MAX_PAUSE_MS, count * 2))
    }
    throw errors.busy(`${refs.join(', ')} was moved by others ${MAX_ATTEMPTS} times in a row; try again`)
  }

  async function appendAll(repo: Repository, refs: readonly RefName[], change: MakeChanges) {
    const write = async () => {
      const done = await attempt(repo, refs, change)
      return done ?? inTurn(turns, [repo.dir, ...refs].join('\0'), () => retry(repo, refs, change))
    }
    return deps.disk === undefined ? write() : deps.disk.write(write)
  }

  return {
    appendAll,
    async append(repo, ref, change) {
      const { oids, changed } = await appendAll(repo, [ref], async ([tip = null]) => {
        const one = await change(tip)
        return one === null ? null : [one]
      })
      return { oid: oids[0] ?? null, changed }
    },
    async readFile(repo, ref, path) {
      const commitOid = isOid(ref) ? ref : await repo.refs.read(ref)
      // Git reads `./` and `../` after the colon relative to a working directory.
      if (commitOid === null || path.startsWith('.')) return null
      const object = await repo.objects.read(`${commitOid}:${path}`)
      return object?.type === 'blob' ? object.body : null
    },
    async history(repo, ref, limit) {
      const commits: { oid: Oid; message: string; at: number }[] = []
      for (let oid = await repo.refs.read(ref); oid !== null && commits.length < limit; ) {
        const data = await repo.objects.readCommit(oid)
        if (data === null) break
        const seconds = Number(/ (\d+) [+-]\d{4}$/.exec(data.committer)?.[1] ?? 0)
        commits.push({ oid, message: data.message.trimEnd(), at: seconds * 1000 })
        oid = data.parents[0] ?? null
      }
      return commits
    },
  }
}

async function commit(repo: Repository, input: { tip: Oid | null; change: Change; at: number }): Promise<Oid> {
  const { tip, change, at } = input
  const before = tip === null ? null : await repo.objects.readCommit(tip)
  if (tip !== null && before === null) throw errors.storeUnusable(`commit ${tip} of a record cannot be read`)
  const parents = [...new Set([...(tip === null ? [] : [tip]), ...(change.parents ?? [])])]
  const { files, message } = change
  return repo.objects.commitFiles({ base: before?.tree ?? null, files, parents, message, at })
}

/** Another git holds a lock for a moment. */
function isTransient(reason: string): boolean {
  return /\.lock': File exists/.test(reason)
}

async function anyMoved(repo: Repository, updates: readonly RefUpdate[]): Promise<boolean> {
  for (const { ref, old } of updates) if (((await repo.refs.read(ref)) ?? ZERO_OID) !== old) return true
  return false
}

async function inTurn<T>(turns: Map<string, Promise<unknown>>, key: string, work: () => Promise<T>): Promise<T> {
  const done = (turns.get(key) ?? Promise.resolve()).then(work)
  const settled = done.catch(() => {})
  turns.set(key, settled)
  try {
    return await done
  } finally {
    if (turns.get(key) === settled) turns.delete(key)
  }
}
