/** Reads objects through one long-lived `git cat-file --batch-command`, which sees packs and loose objects that others write later. */
import { errors } from '../../domain/errors.ts'
import type { Oid } from '../../domain/names.ts'
import { killGit, spawnGit } from './process.ts'
import type { GitObject } from './repository.ts'

const IDLE_MS = 60_000
/** Without a byte for this long git is taken to hang. */
const STUCK_MS = 60_000

export interface ObjectInfo {
  readonly oid: Oid
  readonly type: GitObject['type']
  readonly size: number
}

interface Question {
  readonly line: Buffer
  readonly wantsBody: boolean
  readonly answer: (found: { info: ObjectInfo; body: Buffer | null } | null) => void
  readonly fail: (error: unknown) => void
  asked: number
}

/** Questions are pipelined: answers come in their order. The child starts when first asked, ends when idle, and is started again when it dies. */
export class CatFile {
  readonly #gitDir: string
  #child: ReturnType<typeof spawnGit> | null = null
  #unsent: Question[] = []
  #waiting: Question[] = []
  #chunks: Buffer[] = []
  #size = 0
  #header: ObjectInfo | null = null
  #stderr = ''
  #timer: NodeJS.Timeout | null = null
  #closed = false

  constructor(gitDir: string) {
    this.#gitDir = gitDir
  }

  async info(name: string): Promise<ObjectInfo | null> {
    return (await this.#ask('info', name))?.info ?? null
  }

  async contents(oid: Oid): Promise<GitObject | null> {
    const found = await this.#ask('contents', oid)
    if (found === null || found.body === null) return null
    return { oid: found.info.oid, type: found.info.type, body: found.body }
  }

  /** Ends the child; a later question starts another. */
  rest(): void {
    if (this.#waiting.length === 0 && this.#unsent.length === 0) this.#end()
  }

  close(): void {
    this.#closed = true
    this.#end()
    for (const question of [...this.#waiting.splice(0), ...this.#unsent.splice(0)]) question.fail(closedError())
  }

  #ask(command: 'info' | 'contents', name: string): Promise<{ info: ObjectInfo; body: Buffer | null } | null> {
    // The protocol is one line a question, and git ends a name at NUL.
    if (name === '' || /[\n\0]/.test(name)) return Promise.resolve(null)
    if (this.#closed) return Promise.reject(closedError())
    return new Promise((answer, fail) => {
      const line = Buffer.from(`${command} ${name}\n`, 'latin1')
      this.#unsent.push({ line, wantsBody: command === 'contents', answer, fail, asked: 0 })
      if (this.#unsent.length === 1) queueMicrotask(() => this.#send())
    })
  }

  /** Writes all questions of this turn of the event loop at once; `flush` makes git answer them. */
  #send(): void {
    const questions = this.#unsent.splice(0)
    if (questions.length === 0) return
    for (const question of questions) question.asked += 1
    this.#waiting.push(...questions)
    const child = this.#child ?? this.#start()
    child.stdin.write(Buffer.concat([...questions.map((question) => question.line), Buffer.from('flush\n')]))
    this.#watch()
  }

  #start(): ReturnType<typeof spawnGit> {
    const child = spawnGit({ gitDir: this.#gitDir, args: ['cat-file', '--batch-command', '--buffer'] })
    this.#child = child
    this.#stderr = ''
    child.stdin.on('error', () => {})
    child.stderr.on('data', (chunk: Buffer) => {
      this.#stderr = (this.#stderr + chunk.toString('utf8')).slice(-2_000)
    })
    child.stdout.on('data', (chunk: Buffer) => {
      if (this.#child !== child) return
      this.#chunks.push(chunk)
      this.#size += chunk.length
      this.#read()
      this.#watch()
    })
    child.once('error', () => this.#died(child))
    child.once('close', () => this.#died(child))
    return child
  }

  #read(): void {
    for (let question = this.#waiting[0]; question !== undefined; question = this.#waiting[0]) {
      if (this.#header === null) {
        const line = this.#takeLine()
        if (line === null) return
        const info = parseHeader(line)
        if (info === null || !question.wantsBody) {
          this.#waiting.shift()
          question.answer(info === null ? null : { info, body: null })
          continue
        }
        this.#header = info
      }
      if (this.#size < this.#header.size + 1) return
      const info = this.#header
      const body = this.#take(info.size + 1).subarray(0, info.size)
      this.#header = null
      this.#waiting.shift()
      question.answer({ info, body })
    }
  }

  #takeLine(): string | null {
    const all = this.#chunks.length === 1 && this.#chunks[0] ? this.#chunks[0] : Buffer.concat(this.#chunks)
    this.#chunks = [all]
    const end = all.indexOf(10)
    if (end < 0) return null
    return this.#take(end + 1)
      .subarray(0, end)
      .toString('latin1')
  }

  #take(count: number): Buffer {
    const all = this.#chunks.length === 1 && this.#chunks[0] ? this.#chunks[0] : Buffer.concat(this.#chunks)
    this.#chunks = all.length > count ? [all.subarray(count)] : []
    this.#size = all.length - count
    return all.subarray(0, count)
  }

  /** What it had not answered is asked again of a new child; a question that two children died of fails. */
  #died(child: ReturnType<typeof spawnGit>): void {
    if (this.#child !== child) return
    this.#forget()
    const questions = this.#waiting.splice(0)
    const first = questions[0]
    if (first === undefined) return
    if (first.asked >= 2) {
      questions.shift()
      first.fail(errors.gitFailed('git cat-file died while it read an object', { reason: this.#stderr }))
    }
    this.#unsent.unshift(...questions)
    this.#send()
  }

  #forget(): void {
    if (this.#timer !== null) clearTimeout(this.#timer)
    this.#child = null
    this.#chunks = []
    this.#size = 0
    this.#header = null
  }

  #end(): void {
    const child = this.#child
    this.#forget()
    child?.stdin.end()
    if (child !== null) killGit(child)
  }

  #watch(): void {
    if (this.#timer !== null) clearTimeout(this.#timer)
    const busy = this.#waiting.length > 0
    this.#timer = setTimeout(
      () => {
        if (busy && this.#child !== null) killGit(this.#child)
        else this.rest()
      },
      busy ? STUCK_MS : IDLE_MS,
    )
    this.#timer.unref()
  }
}

function closedError() {
  return errors.busy('the repository is closed: the server is stopping')
}

/** `<oid> <type> <size>`; what git cannot find comes back as `<name> missing` or `<name> ambiguous`. */
function parseHeader(line: string): ObjectInfo | null {
  const match = /^([0-9a-f]{40}) (commit|tree|blob|tag) (\d+)$/.exec(line)
  if (match === null) return null
  return { oid: match[1] as Oid, type: match[2] as GitObject['type'], size: Number(match[3]) }
}
