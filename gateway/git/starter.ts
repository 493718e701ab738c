/**
 * A small process that starts git for a large one: a fork holds the event loop of the process that forks for as long as its memory is large
 * (docs/performance.md). Git talks to the large process itself, over sockets; the small one only pairs them with what is to be started.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { connect, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** What is to be started, and what it is given; `spawn`'s own words. */
export interface StartOrder {
  readonly id: number
  readonly file: string
  readonly args: readonly string[]
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  /** A file that takes the standard output instead of a socket. */
  readonly output: string | null
  /** Descriptor 3 is a socket as well. */
  readonly secret: boolean
}

/** What became of an order. */
export type StartReport = { readonly id: number } & (
  | { readonly pid: number }
  | { readonly error: string }
  | { readonly status: number | null; readonly signal: NodeJS.Signals | null }
)

export interface Starter {
  /** null: it is not there any more, and the caller has to start the process by itself. */
  start(order: Omit<StartOrder, 'id'>): ChildProcess | null
  close(): Promise<void>
}

/** Of a socket; what is longer is cut without a word. */
const MAX_PATH_BYTES = 103

const PROGRAM = fileURLToPath(new URL('./starter-process.js', import.meta.url))

/**
 * Starts the small process; `onLost` is called when it has ended by itself. Its socket lies in a directory that only this user enters.
 * Sockets carry no name: they are accepted in the order in which they were connected, which is that of the orders.
 */
export async function openStarter(onLost: () => void): Promise<Starter> {
  const prefix = join(tmpdir(), 'hangar-git-')
  const isShort = Buffer.byteLength(`${prefix}XXXXXX/s`) <= MAX_PATH_BYTES
  const dir = await mkdtemp(isShort ? prefix : '/tmp/hangar-git-')
  const path = join(dir, 's')
  const helper = fork(PROGRAM, [path], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    execArgv: [],
    // Secrets that the server has in its environment are none of its business.
    env: {},
    detached: true,
  })
  const running = new Map<number, RemoteChild>()
  let serial = 0
  let open = true
  await Promise.race([once(helper, 'message'), once(helper, 'exit')])
  helper.on('message', (report: StartReport) => running.get(report.id)?.take(report))
  helper.once('exit', () => {
    const lost = open
    open = false
    for (const child of running.values()) child.take({ id: 0, error: 'the process that starts git has ended' })
    if (lost) onLost()
  })
  if (helper.exitCode !== null || !helper.connected) open = false
  helper.unref()
  helper.channel?.unref()
  return {
    start(order) {
      if (!open || !helper.connected) return null
      const id = ++serial
      const child = new RemoteChild(path, order)
      running.set(id, child)
      helper.channel?.ref()
      child.once('exit', () => {
        running.delete(id)
        if (running.size === 0) helper.channel?.unref()
      })
      helper.send({ ...order, id } satisfies StartOrder, (error) => {
        if (error !== null) child.take({ id, error: error.message })
      })
      return child as unknown as ChildProcess
    },
    async close() {
      open = false
      if (helper.connected) helper.disconnect()
      await rm(dir, { recursive: true, force: true })
    },
  }
}

/** As much of a `ChildProcess` as is used of one: streams at once, `pid` with the event `spawn`, then `exit` and `close`. */
class RemoteChild extends EventEmitter {
  readonly stdin: Socket
  readonly stdout: Socket | null
  readonly stderr: Socket
  readonly stdio: readonly (Socket | null)[]
  pid: number | undefined
  exitCode: number | null = null
  signalCode: NodeJS.Signals | null = null
  #ended = false

  constructor(path: string, { output, secret }: Omit<StartOrder, 'id'>) {
    super()
    this.stdin = connect(path)
    this.stdout = output === null ? connect(path) : null
    this.stderr = connect(path)
    const third = secret ? [connect(path)] : []
    this.stdio = [this.stdin, this.stdout, this.stderr, ...third]
    // What is wrong with a socket shows in how the process ends; nothing comes back on those that it reads.
    for (const socket of this.stdio) socket?.on('error', () => {})
    for (const socket of [this.stdin, ...third]) socket.resume()
  }

  take(report: StartReport): void {
    if (this.#ended) return
    if ('pid' in report) {
      this.pid = report.pid
      this.emit('spawn')
      return
    }
    this.#ended = true
    for (const socket of [this.stdin, this.stdio[3]]) socket?.destroy()
    if ('error' in report) {
      for (const socket of this.stdio) socket?.destroy()
      this.emit('error', new Error(report.error))
      this.emit('exit', null, null)
      return
    }
    this.exitCode = report.status
    this.signalCode = report.signal
    this.emit('exit', report.status, report.signal)
    // `close` comes when all that was written has been read, as with a child of one's own.
    const open = [this.stdout, this.stderr].filter((socket) => socket !== null && !socket.closed)
    let left = open.length
    const closed = () => {
      if (--left <= 0) this.emit('close', report.status, report.signal)
    }
    if (left === 0) closed()
    for (const socket of open) {
      socket?.once('close', closed)
      if (socket?.readableFlowing === null) socket.resume()
    }
  }
}
