/** The refs of one repository: read from memory, moved by git alone, one transaction at a time. */
import { readdir, rm, stat } from 'node:fs/promises'
import { uptime } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { errors, messageOf } from '../../domain/errors.ts'
import { type RefName, ZERO_OID } from '../../domain/names.ts'
import type { Log } from '../../domain/ports.ts'
import { runGit } from './process.ts'
import { RefTable } from './ref-table.ts'
import { RefUpdater } from './ref-updater.ts'
import type { RefStore, RefUpdate, TransactResult } from './repository.ts'

/** Loose refs are what makes refs slow (facts: 23x at 10,000): packed after so many updates, a moment later. */
const PACK_AFTER_UPDATES = 200
const PACK_DELAY_MS = 500
/** Git holds the lock of a ref for milliseconds; one this old was left by a crash. */
const STALE_LOCK_MS = 5 * 60_000

/** The ref store of a repository, with `rest()` to end its child and forget its table until the next use. */
export function createRefStore(deps: RefStoreDeps): RefStore & { rest(): void } {
  return new GitRefStore(deps)
}

export interface RefStoreDeps {
  readonly gitDir: string
  readonly log: Log
  /** Asked before each transaction; throws when this server may not write any more. */
  mayWrite?(): Promise<void>
}

class GitRefStore implements RefStore {
  readonly #gitDir: string
  readonly #log: Log
  readonly #mayWrite: () => Promise<void>
  readonly #table: RefTable
  readonly #updater: RefUpdater
  readonly #listeners = new Set<(updates: readonly RefUpdate[]) => void>()
  #queue: Promise<unknown> = Promise.resolve()
  #unpacked = 0
  #packTimer: NodeJS.Timeout | null = null
  #closed = false

  constructor({ gitDir, log, mayWrite }: RefStoreDeps) {
    this.#gitDir = gitDir
    this.#log = log
    this.#mayWrite = mayWrite ?? (async () => {})
    this.#table = new RefTable(gitDir)
    this.#updater = new RefUpdater(gitDir)
  }

  async read(ref: RefName) {
    this.#table.refresh()
    return this.#table.get(ref)
  }

  async snapshot() {
    this.#table.refresh()
    return this.#table.snapshot()
  }

  transact(updates: readonly RefUpdate[]): Promise<TransactResult> {
    return this.#inTurn(async () => {
      const result = await this.#transact(updates)
      if (result.ok) this.#committed(updates)
      return result
    })
  }

  pack(): Promise<void> {
    return this.#inTurn(() => this.#pack())
  }

  onChange(listener: (updates: readonly RefUpdate[]) => void) {
    this.#listeners.add(listener)
    return () => {
      this.#listeners.delete(listener)
    }
  }

  rest(): void {
    this.#updater.rest()
    this.#table.clear()
  }

  async close() {
    this.#closed = true
    if (this.#packTimer !== null) clearTimeout(this.#packTimer)
    await this.#queue
    this.#updater.rest()
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (this.#closed) return Promise.reject(errors.busy('the repository is closed: the server is stopping'))
    const done = this.#queue.then(work)
    this.#queue = done.catch(() => {})
    return done
  }

  async #transact(updates: readonly RefUpdate[], attempt = 1): Promise<TransactResult> {
    if (updates.length === 0) return { ok: true }
    this.#table.refresh()
    // Said by the table, a lost compare-and-swap costs nothing; said by git, it costs the child.
    const lost = this.#firstLost(updates)
    if (lost !== null) return lost
    await this.#mayWrite()
    const answer = await this.#updater.run(updates)
    if (answer.kind === 'done') {
      this.#table.apply(updates)
      return { ok: true }
    }
    if (answer.kind === 'refused') {
      if (/\.lock': File exists/.test(answer.reason)) await sweepStaleLocks(this.#gitDir)
      return { ok: false, ref: refNamedIn(answer.reason, updates), reason: oneLine(answer.reason) }
    }
    this.#table.clear()
    this.#table.refresh()
    if (updates.every(({ ref, new: oid }) => (this.#table.get(ref) ?? ZERO_OID) === oid)) return { ok: true }
    if (attempt === 1 && this.#firstLost(updates) === null) return this.#transact(updates, 2)
    throw errors.gitFailed('git update-ref died in the middle of a transaction; the refs may be half moved')
  }

  #firstLost(updates: readonly RefUpdate[]): TransactResult | null {
    const seen = new Set<string>()
    for (const { ref, old, new: oid } of updates) {
      const now = this.#table.get(ref) ?? ZERO_OID
      const refuse = (reason: string) => ({ ok: false as const, ref, reason })
      if (seen.has(ref)) return refuse('the same ref is updated twice')
      if (old === ZERO_OID && oid === ZERO_OID) return refuse('neither an old nor a new value is given')
      if (now !== old && old === ZERO_OID) return refuse(`reference already exists at ${now}`)
      if (now !== old) return refuse(now === ZERO_OID ? 'reference is gone' : `is at ${now} but expected ${old}`)
      seen.add(ref)
    }
    return null
  }

  #committed(updates: readonly RefUpdate[]): void {
    for (const listener of this.#listeners) {
      try {
        listener(updates)
      } catch (error) {
        this.#log.error({ error: messageOf(error), dir: this.#gitDir }, 'a listener of ref changes failed')
      }
    }
    this.#unpacked += updates.length
    if (this.#unpacked < PACK_AFTER_UPDATES || this.#packTimer !== null || this.#closed) return
    this.#packTimer = setTimeout(() => {
      this.#packTimer = null
      this.pack().catch((error: unknown) =>
        this.#log.warn({ error: messageOf(error), dir: this.#gitDir }, 'refs could not be packed; tried again later'),
      )
    }, PACK_DELAY_MS)
    this.#packTimer.unref()
  }

  async #pack(): Promise<void> {
    this.#unpacked = 0
    for (let attempt = 1; ; attempt += 1) {
      const result = await runGit({ gitDir: this.#gitDir, args: ['pack-refs', '--all'], timeoutMs: 120_000 })
      if (result.exitCode === 0) return
      if (attempt === 5 || !/\.lock': File exists/.test(result.stderr))
        throw errors.gitFailed('git pack-refs failed', { reason: result.stderr.slice(0, 2_000) })
      await sleep(50 * attempt)
    }
  }
}

/** Git quotes the ref that it could not lock first. */
function refNamedIn(reason: string, updates: readonly RefUpdate[]): RefName | null {
  const at = (ref: RefName) => reason.indexOf(`'${ref}'`)
  const named = updates.filter(({ ref }) => at(ref) >= 0).sort((a, b) => at(a.ref) - at(b.ref))
  return named[0]?.ref ?? null
}

function oneLine(reason: string): string {
  return reason.replace(/[\x00-\x1f\x7f]+/g, ' ').slice(0, 500)
}

/** Removes the locks that a crash left: older than five minutes, or than the machine's start. Nothing else ever frees such a ref. */
export async function sweepStaleLocks(gitDir: string): Promise<void> {
  const booted = Date.now() - uptime() * 1000
  const sweep = async (path: string) => {
    const found = await stat(path).catch(() => null)
    if (found === null) return
    if (found.mtimeMs < booted || Date.now() - found.mtimeMs > STALE_LOCK_MS) await rm(path, { force: true })
  }
  for (const name of ['packed-refs.lock', 'HEAD.lock', 'config.lock']) await sweep(join(gitDir, name))
  for (const name of await readdir(join(gitDir, 'refs'), { recursive: true }).catch(() => []))
    if (name.endsWith('.lock')) await sweep(join(gitDir, 'refs', name))
}
