/** One long-lived `git update-ref --stdin`: transactions one after another, each answered with git's own verdict. */
import { errors } from '../../domain/errors.ts'
import { killGit, spawnGit } from './process.ts'
import type { RefUpdate } from './repository.ts'

const IDLE_MS = 60_000
/** Git waits for locks by itself (packed-refs: 1 s); past this it is taken to hang. */
const STUCK_MS = 30_000
/** A child is replaced after so many, as it keeps every object that it parsed. */
const TRANSACTIONS_A_CHILD = 5_000

/** `unknown`: the child died without a word (killed), so the refs must be looked at. */
export type UpdaterAnswer =
  | { readonly kind: 'done' }
  | { readonly kind: 'refused'; readonly reason: string }
  | { readonly kind: 'unknown' }

/** Not re-entrant: its caller asks for one transaction at a time. */
export class RefUpdater {
  readonly #gitDir: string
  #child: ReturnType<typeof spawnGit> | null = null
  #out = ''
  #stderr = ''
  #count = 0
  #settle: ((answer: UpdaterAnswer) => void) | null = null
  #timer: NodeJS.Timeout | null = null

  constructor(gitDir: string) {
    this.#gitDir = gitDir
  }

  run(updates: readonly RefUpdate[]): Promise<UpdaterAnswer> {
    if (this.#settle !== null) throw errors.internal('two ref transactions were started at once')
    return new Promise((resolve) => {
      const child = this.#child ?? this.#start()
      this.#settle = (answer) => {
        this.#settle = null
        this.#watch(IDLE_MS)
        resolve(answer)
      }
      this.#out = ''
      this.#count += 1
      this.#watch(STUCK_MS)
      child.stdin.write(Buffer.from(formatTransaction(updates), 'latin1'))
    })
  }

  /** Ends the child unless it works; the next transaction starts another. */
  rest(): void {
    const child = this.#child
    if (child === null || this.#settle !== null) return
    if (this.#timer !== null) clearTimeout(this.#timer)
    this.#child = null
    child.stdin.end()
    killGit(child)
  }

  #start(): ReturnType<typeof spawnGit> {
    const child = spawnGit({ gitDir: this.#gitDir, args: ['update-ref', '--stdin', '-z'] })
    this.#child = child
    this.#stderr = ''
    this.#count = 0
    child.stdin.on('error', () => {})
    child.stderr.on('data', (chunk: Buffer) => {
      if (this.#stderr.length < 8_000) this.#stderr += chunk.toString('latin1')
    })
    child.stdout.on('data', (chunk: Buffer) => {
      if (this.#child !== child) return
      this.#out += chunk.toString('latin1')
      if (!this.#out.endsWith('commit: ok\n')) return
      this.#settle?.({ kind: 'done' })
      if (this.#count >= TRANSACTIONS_A_CHILD) this.rest()
    })
    child.once('error', () => this.#died(child))
    child.once('close', () => this.#died(child))
    return child
  }

  /** Git ends itself on any refusal, with `fatal: <step>: <reason>` as its last words. */
  #died(child: ReturnType<typeof spawnGit>): void {
    if (this.#child !== child) return
    this.#child = null
    const reason = /^fatal: (?:\w+: )?(.*)$/m.exec(this.#stderr)?.[1]
    this.#settle?.(reason === undefined ? { kind: 'unknown' } : { kind: 'refused', reason })
  }

  #watch(ms: number): void {
    if (this.#timer !== null) clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      if (this.#settle === null) this.rest()
      else if (this.#child !== null) killGit(this.#child)
    }, ms)
    this.#timer.unref()
  }
}

/** `update` with both values says everything: an old value of zeros creates, a new one deletes. */
function formatTransaction(updates: readonly RefUpdate[]): string {
  const lines = updates.map(({ ref, old, new: oid }) => `update ${ref}\0${oid}\0${old}\0`)
  return `start\0${lines.join('')}prepare\0commit\0`
}
