/** Commands of `hangar-pod` over exec connections that may break off at any moment: short ones, and runs that are followed. */
import { setTimeout as sleep } from 'node:timers/promises'
import { errors, messageOf } from '../../domain/errors.ts'
import type { TurnCursor } from '../../domain/sandbox.ts'
import {
  backOffMs,
  type Cluster,
  ClusterError,
  type ExecSocket,
  type ExecStatus,
  isPassing,
  isStatus,
} from './kubernetes-cluster.ts'
import { createFrameReader, type Frame, FrameError } from './kubernetes-frames.ts'
import { POD_PATHS } from './kubernetes-pod.ts'

/** The pod that commands go to. */
export interface PodLink {
  readonly cluster: Cluster
  readonly name: string
  /** Why there is no such sandbox any more; null: it is there, or nobody can tell now. */
  ended(): Promise<string | null>
  /** The same, without asking anyone. */
  knownEnd(): string | null
}

export interface CommandOptions {
  readonly stdin?: Buffer
  readonly forMs: number
  readonly maxBytes?: number
  readonly signal?: AbortSignal
}

export interface CommandResult {
  readonly exitCode: number
  readonly out: Buffer
  readonly err: string
}

/** Its input was cut off. */
const TRY_AGAIN = 75
/** Killed: maybe by its pod's end, of which nothing may be known yet. */
const KILLED = 137
/** By when the end of a pod is told, mostly. */
const TOLD_MS = 3_000
/** A frame comes every five seconds. After so much silence the pod is looked at, after three times that the connection is given up. */
const SILENCE_MS = 7_000
/** How long one connection follows a run; then it is made anew. */
const FOLLOW_MS = 120_000
/** What one frame holds of each log at most; less after each failure, so that something gets through a bad connection. */
const FRAME_BYTES = 524_288
const MIN_FRAME_BYTES = 16_384
/** A connection that has lived for so long was no failure. */
const STEADY_MS = 10_000
const MAX_QUEUED_BYTES = 4 * 1_048_576
const MAX_BAD_FRAMES = 5

/** How `hangar-pod` is called. */
export const podCommand = (...args: readonly (string | number)[]): string[] => [
  'sh',
  `${POD_PATHS.helperDir}/hangar-pod`,
  ...args.map(String),
]

/**
 * Runs a command that may be repeated, until its exit status is known. Throws `sandbox_lost` when the pod is gone, `sandbox_failed` when no
 * status came in time.
 */
export async function runCommand(
  pod: PodLink,
  argv: readonly string[],
  options: CommandOptions,
): Promise<CommandResult> {
  const until = performance.now() + options.forMs
  for (let failures = 1; ; failures++) {
    let failure: unknown
    try {
      const result = await runOnce(pod, argv, { ...options, forMs: Math.max(1_000, until - performance.now()) })
      // What was killed with its pod, or lost its files there, tells nothing of itself.
      if (result.exitCode === 0) return result
      if (result.exitCode !== TRY_AGAIN && (await endAfter(pod, result.exitCode, until)) === null) return result
      failure = new ClusterError(0, 'CutOff', result.err)
    } catch (error) {
      failure = error
    }
    await beforeRetry(pod, failure, {
      failures,
      until,
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    })
  }
}

/** How the pod ended in which a command failed; null: it is there. That of a killed one is asked for a while. */
async function endAfter(pod: PodLink, exitCode: number, until: number): Promise<string | null> {
  const last = exitCode === KILLED ? Math.min(until, performance.now() + TOLD_MS) : 0
  for (;;) {
    const ended = await pod.ended()
    if (ended !== null || performance.now() >= last) return ended
    await sleep(200)
  }
}

/** Waits as long as is due, or throws what is to be said when there is no use in another try. */
async function beforeRetry(
  pod: PodLink,
  failure: unknown,
  { failures, until, signal }: { readonly failures: number; readonly until: number; readonly signal?: AbortSignal },
): Promise<void> {
  const ended = await pod.ended()
  if (ended !== null) throw errors.sandboxLost(ended, {}, failure)
  if (signal?.aborted) throw errors.sandboxFailed('a command in the pod was given up by its caller', {}, failure)
  const wait = backOffMs(failures, failure)
  // 404 comes for a moment of a pod that is there but not yet known to its node.
  const passing = isPassing(failure) || isStatus(failure, 400, 404) || failure instanceof FrameError
  if (!passing || performance.now() + wait > until)
    throw errors.sandboxFailed(`the pod ${pod.name} could not be worked in: ${messageOf(failure)}`, {}, failure)
  await sleep(wait, undefined, signal === undefined ? {} : { signal }).catch(() => {})
}

async function runOnce(pod: PodLink, argv: readonly string[], options: CommandOptions): Promise<CommandResult> {
  const out: Buffer[] = []
  let err = ''
  let size = 0
  const maxBytes = options.maxBytes ?? 65_536
  const connection = await openConnection(pod, argv, (stream, bytes) => {
    size += bytes.length
    if (size > maxBytes + 65_536) connection.socket.close()
    else if (stream === 'out') out.push(bytes)
    else if (err.length < 4_096) err += bytes.toString('utf8')
  })
  const timer = setTimeout(() => connection.socket.close(), Math.min(options.forMs, 600_000))
  try {
    if (options.stdin !== undefined) await connection.send(options.stdin)
    const status = await connection.ended
    if (status === null)
      throw new ClusterError(0, 'NoStatus', `the connection ended without an exit status${said(err)}`)
    if ('failure' in status) throw new ClusterError(500, 'ExecFailed', status.failure)
    return { exitCode: status.exitCode, out: Buffer.concat(out), err }
  } finally {
    clearTimeout(timer)
    connection.socket.close()
  }
}

const said = (err: string): string => (err === '' ? '' : `; it said: ${err.slice(-500)}`)

interface Connection {
  readonly socket: ExecSocket
  readonly ended: Promise<ExecStatus | null>
  send(stdin: Buffer): Promise<void>
}

async function openConnection(
  pod: PodLink,
  argv: readonly string[],
  onOutput: (stream: 'out' | 'err', bytes: Buffer) => void,
): Promise<Connection> {
  let end: (status: ExecStatus | null) => void = () => {}
  const ended = new Promise<ExecStatus | null>((resolve) => {
    end = resolve
  })
  const socket = await pod.cluster.connect(pod.name, argv, { onOutput, onEnd: end })
  return {
    socket,
    ended,
    // A command that has ended takes no more input; a dead peer takes none either, and the connection's end tells.
    send: async (stdin) => {
      const sent = socket.send(stdin).catch(() => {})
      await Promise.race([sent, ended])
    },
  }
}

/** A run in the pod, by its directory under the run directory, and where to read on. */
export interface FollowedRun {
  readonly dir: string
  readonly from: TurnCursor
  /** What starts it, where it is not running yet: arguments of `hangar-pod run` but the last two, and its input. */
  readonly begin?: { readonly args: readonly (string | number)[]; readonly stdin: Buffer }
  readonly signal: AbortSignal
}

/**
 * The frames of a run from a cursor on, without a gap or a repetition, over as many connections as it takes; the last one tells its end.
 * Throws `sandbox_lost` when the pod is gone, and `sandbox_failed` when what comes cannot be read. Ends early when the signal aborts.
 */
export async function* followRun(pod: PodLink, run: FollowedRun): AsyncGenerator<Frame> {
  let cursor = run.from
  let begun = run.begin === undefined
  let failures = 0
  let badFrames = 0
  while (!run.signal.aborted) {
    const opened = performance.now()
    try {
      const { begin } = run
      const frameBytes = Math.max(MIN_FRAME_BYTES, FRAME_BYTES >> Math.min(failures, 8))
      const argv =
        begun || begin === undefined
          ? podCommand('follow', run.dir, cursor.out, cursor.err, frameBytes, FOLLOW_MS)
          : podCommand('run', ...begin.args, frameBytes, FOLLOW_MS)
      for await (const frame of framesOf(pod, argv, { stdin: begun ? undefined : begin?.stdin, signal: run.signal })) {
        if (frame.at.out !== cursor.out || frame.at.err !== cursor.err)
          throw new FrameError('a frame is not the next one')
        cursor = { out: cursor.out + frame.out.length, err: cursor.err + frame.err.length }
        begun = true
        if (frame.out.length + frame.err.length > 0) failures = Math.max(0, failures - 1)
        yield frame
        if (frame.process.state !== 'running') return
      }
    } catch (error) {
      if (run.signal.aborted) return
      failures = performance.now() - opened > STEADY_MS ? 1 : failures + 1
      if (error instanceof FrameError && ++badFrames > MAX_BAD_FRAMES)
        throw errors.sandboxFailed(`what the pod ${pod.name} sends cannot be read: ${error.message}`, {}, error)
      // As long as the pod is said to be there, an API server that is away for an hour ends no turn.
      await beforeRetry(pod, error, { failures, until: Number.POSITIVE_INFINITY, signal: run.signal })
    }
  }
}

async function* framesOf(
  pod: PodLink,
  argv: readonly string[],
  { stdin, signal }: { readonly stdin: Buffer | undefined; readonly signal: AbortSignal },
): AsyncGenerator<Frame> {
  const reader = createFrameReader(FRAME_BYTES)
  const queue: Frame[] = []
  let queued = 0
  let broken: unknown = null
  let over: ExecStatus | null | 'open' = 'open'
  let err = ''
  let wake = () => {}
  const connection = await openConnection(pod, argv, (stream, bytes) => {
    if (stream === 'err') err = (err + bytes.toString('utf8')).slice(-2_000)
    else if (broken === null)
      try {
        for (const frame of reader.push(bytes)) {
          queue.push(frame)
          queued += frame.out.length + frame.err.length
        }
        if (queued > MAX_QUEUED_BYTES) connection.socket.pause()
      } catch (error) {
        broken = error
      }
    wake()
  })
  void connection.ended.then((status) => {
    over = status
    wake()
  })
  let silences = 0
  const onAbort = () => wake()
  signal.addEventListener('abort', onAbort)
  try {
    if (stdin !== undefined) await connection.send(stdin)
    for (;;) {
      for (let frame = queue.shift(); frame !== undefined; frame = queue.shift()) {
        queued -= frame.out.length + frame.err.length
        if (queued === 0) connection.socket.resume()
        yield frame
      }
      if (broken !== null) throw broken
      if (signal.aborted) return
      if (over !== 'open') return endOf(over, err)
      const silent = await new Promise<boolean>((resolve) => {
        const timer = setTimeout(() => resolve(true), SILENCE_MS)
        wake = () => {
          clearTimeout(timer)
          resolve(false)
        }
      })
      silences = silent ? silences + 1 : 0
      if (silences >= 3 || (silent && pod.knownEnd() !== null))
        throw new ClusterError(0, 'Silent', 'nothing came from the pod for too long')
    }
  } finally {
    signal.removeEventListener('abort', onAbort)
    connection.socket.close()
  }
}

function endOf(status: ExecStatus | null, err: string): void {
  if (status === null) throw new ClusterError(0, 'NoStatus', `the connection ended without an exit status${said(err)}`)
  if ('failure' in status) throw new ClusterError(500, 'ExecFailed', status.failure)
  if (status.exitCode === TRY_AGAIN || status.exitCode === KILLED)
    throw new ClusterError(0, 'CutOff', `exit status ${status.exitCode}${said(err)}`)
  if (status.exitCode !== 0) throw new ClusterError(422, 'CommandFailed', `exit status ${status.exitCode}${said(err)}`)
}
