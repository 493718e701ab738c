/** One run followed by one command inside: its framed output, read ahead a little, and its end. Broken, it is begun again at the reader's cursor. */
import { randomUUID } from 'node:crypto'
import type { Socket } from 'node:net'
import type { TurnCursor, TurnProcess } from '../../domain/sandbox.ts'
import { parseExit } from '../turn-record.ts'
import { INSIDE, turnDirectory } from './docker-container.ts'
import { endMarked, type Inside, startInside } from './docker-exec.ts'

/** So long one command follows: what a killed server left behind ends by itself. */
const FOLLOW_SECONDS = 30
const READ_AHEAD_BYTES = 1_048_576
const MAX_LINE_BYTES = 4_096

export interface Follower {
  /** Where the next `take` goes on. */
  position(): TurnCursor
  /** What has come, `maxBytes` of each stream at most, and the end once all before it was taken. */
  take(maxBytes: number): { readonly out: Buffer; readonly err: Buffer; readonly end: TurnProcess | null }
  /** Resolves when something came, when it is over, and after `ms`. */
  news(ms: number, signal: AbortSignal | undefined): Promise<void>
  /** Whether nothing more will come: it ended, was told to begin again, or broke. */
  over(): boolean
  /** Whether it has told anything yet, were it only that there is nothing. */
  looked(): boolean
  /** What broke it, or null. */
  fault(): unknown
  /** Resolves when the command inside has ended as well. */
  close(): Promise<void>
  /** The same, where the sandbox goes as well. */
  abandon(): void
}

export async function openFollower(at: Inside, key: string, from: TurnCursor): Promise<Follower> {
  const argv = ['hangar-agent', 'follow', '--out', String(from.out), '--err', String(from.err)]
  argv.push('--seconds', String(FOLLOW_SECONDS), '--newest', INSIDE.newest, turnDirectory(key))
  const mark = `${at.owner}${randomUUID()}`
  const started = await startInside(at, argv, { env: {}, stdin: false, mark })
  return new RunFollower(at, { key, mark, from, socket: started.socket, output: started.output() })
}

class RunFollower implements Follower {
  readonly #at: Inside
  readonly #mark: string
  readonly #socket: Socket
  #position: TurnCursor
  readonly #waiting: { out: Buffer[]; err: Buffer[] } = { out: [], err: [] }
  #held = 0
  #end: TurnProcess | null = null
  #over = false
  #looked = false
  #fault: unknown = null
  #wake = () => {}
  #room = () => {}

  constructor(
    at: Inside,
    run: {
      key: string
      mark: string
      from: TurnCursor
      socket: Socket
      output: AsyncGenerator<{ stream: string; data: Buffer }, number>
    },
  ) {
    this.#at = at
    this.#mark = run.mark
    this.#position = run.from
    this.#socket = run.socket
    void this.#readAll(run.output)
  }

  async #readAll(output: AsyncGenerator<{ stream: string; data: Buffer }, number>) {
    try {
      let line = Buffer.alloc(0)
      let part: 'out' | 'err' = 'out'
      let left = 0
      for await (const { stream, data } of output) {
        if (stream !== 'out') continue
        let rest = data
        while (rest.length > 0) {
          if (left > 0) {
            const bytes = rest.subarray(0, left)
            left -= bytes.length
            rest = rest.subarray(bytes.length)
            this.#waiting[part].push(Buffer.from(bytes))
            this.#held += bytes.length
            this.#looked = true
            this.#wake()
            continue
          }
          const at = rest.indexOf(10)
          line = Buffer.concat([line, at === -1 ? rest : rest.subarray(0, at)])
          if (line.length > MAX_LINE_BYTES) throw new Error('a line of the follower is too long')
          rest = at === -1 ? Buffer.alloc(0) : rest.subarray(at + 1)
          if (at === -1) break
          const [word = '', ...more] = line.toString('utf8').split(' ')
          line = Buffer.alloc(0)
          if (word === 'out' || word === 'err') {
            part = word
            left = Number(more[0])
          } else if (word === 'quiet') {
            this.#looked = true
            this.#wake()
          } else this.#end = endOf(word, more.join(' '))
        }
        while (this.#held > READ_AHEAD_BYTES && !this.#socket.destroyed)
          await new Promise<void>((resolve) => {
            this.#room = resolve
          })
      }
    } catch (error) {
      this.#fault = error
    }
    this.#over = true
    this.#socket.destroy()
    this.#wake()
  }

  position() {
    return this.#position
  }

  take(maxBytes: number) {
    const out = takeFrom(this.#waiting.out, maxBytes)
    const err = takeFrom(this.#waiting.err, maxBytes)
    this.#held -= out.length + err.length
    this.#position = { out: this.#position.out + out.length, err: this.#position.err + err.length }
    this.#room()
    return { out, err, end: this.#over && this.#held === 0 ? this.#end : null }
  }

  async news(ms: number, signal: AbortSignal | undefined) {
    if (this.#held > 0 || this.#over || signal?.aborted || ms <= 0) return
    await new Promise<void>((resolve) => {
      const done = () => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', done)
        this.#wake = () => {}
        resolve()
      }
      const timer = setTimeout(done, ms)
      signal?.addEventListener('abort', done, { once: true })
      this.#wake = done
    })
  }

  over() {
    return this.#over
  }

  looked() {
    return this.#looked
  }

  fault() {
    return this.#fault
  }

  abandon() {
    this.#socket.destroy()
    this.#room()
  }

  async close() {
    const going = !this.#over
    this.abandon()
    if (going) await endMarked(this.#at, this.#mark)
  }
}

/** `again` is no end: the run goes on, and so does the next follower. */
function endOf(word: string, text: string): TurnProcess | null {
  switch (word) {
    case 'exited':
      return parseExit(text)
    case 'lost':
      return { state: 'lost', reason: text }
    case 'unknown':
      return { state: 'unknown' }
    default:
      return null
  }
}

function takeFrom(waiting: Buffer[], maxBytes: number): Buffer {
  const taken: Buffer[] = []
  let size = 0
  while (waiting.length > 0 && size < maxBytes) {
    const next = waiting[0] as Buffer
    const part = next.subarray(0, maxBytes - size)
    if (part.length === next.length) waiting.shift()
    else waiting[0] = next.subarray(part.length)
    taken.push(part)
    size += part.length
  }
  return taken.length === 1 ? (taken[0] as Buffer) : Buffer.concat(taken)
}
