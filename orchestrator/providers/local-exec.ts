/** Runs a short helper command inside a local sandbox, with a time limit and a cap on its output, and leaves nothing of it behind. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { errors } from '../../domain/errors.ts'
import type { ExecOptions, ExecResult } from '../../domain/sandbox.ts'
import { insideCommand, insideEnvironment, type LocalSandbox } from './local-isolation.ts'
import { findMarked, killFound, signalProcess } from './local-processes.ts'

export interface InsideProcess {
  readonly child: ChildProcess
  /** Ends the command and all that it started. Safe to call when it has ended. */
  end(): Promise<void>
}

/** Starts a command inside with three pipes; the caller reads both outputs and calls `end` when it has done. */
export function startInside(
  sandbox: LocalSandbox,
  argv: readonly string[],
  options: { readonly env: Readonly<Record<string, string>>; readonly owner: string },
): InsideProcess {
  // The owner in the mark is the server process: the next one finds and ends what a killed server has left.
  const mark = `exec:${options.owner}:${randomUUID()}`
  const [program = '', ...args] = insideCommand(sandbox, argv, { mark })
  const child = spawn(program, args, {
    cwd: '/',
    env: insideEnvironment(sandbox, options.env),
    detached: true,
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  child.on('error', () => {})
  child.stdin?.on('error', () => {})
  let swept = false
  return {
    child,
    async end() {
      const ended = child.pid === undefined || child.exitCode !== null || child.signalCode !== null
      if (!ended && child.pid !== undefined) signalProcess(-child.pid, 'SIGKILL')
      if (sandbox.isolation === 'bubblewrap' || swept) return
      // After the command's own end nothing of it can be started any more but by what this finds.
      swept = (await killFound(() => findMarked(`HANGAR_RUN=${mark}`))) && ended
    },
  }
}

/** Runs a command inside to its end. Throws `sandbox_failed` without an exit status, and `limit_passed` past the cap on output. */
export async function execInside(
  sandbox: LocalSandbox,
  argv: readonly string[],
  options: ExecOptions & { readonly owner: string },
): Promise<ExecResult> {
  const name = argv[0] ?? 'command'
  const inside = startInside(sandbox, argv, { env: options.env ?? {}, owner: options.owner })
  const { child } = inside
  let passed: Error | null = null
  const stop = (why: Error) => {
    passed ??= why
    if (child.pid !== undefined) signalProcess(-child.pid, 'SIGKILL')
  }
  const timer = setTimeout(
    () => stop(errors.sandboxFailed(`${name} took longer than ${options.timeoutMs} ms in the sandbox and was ended`)),
    options.timeoutMs,
  )
  const onAbort = () => stop(errors.sandboxFailed(`${name} was given up by its caller`))
  options.signal?.addEventListener('abort', onAbort)
  if (options.signal?.aborted) onAbort()
  const tooMuch = () =>
    stop(errors.limitPassed(`${name} wrote more than ${options.maxOutputBytes} bytes in the sandbox and was ended`))
  const out = collect(child.stdout, options.maxOutputBytes, tooMuch)
  const err = collect(child.stderr, options.maxOutputBytes, tooMuch)
  try {
    const ended = waitForExit(child)
    const fed = feed(child, options.stdin)
    const exitCode = await ended
    // What the command left behind may hold its pipes open; it ends here, so that the outputs end as well.
    await inside.end()
    await fed
    await closed(child)
    if (passed !== null) throw passed
    const result = { exitCode: exitCode ?? -1, out: Buffer.concat(out), err: Buffer.concat(err) }
    if (exitCode === null || isSetUpFailure(result))
      throw errors.sandboxFailed(`${name} could not be run in the sandbox`, {
        reason: result.err.toString('utf8').slice(0, 2_000),
      })
    return result
  } finally {
    clearTimeout(timer)
    options.signal?.removeEventListener('abort', onAbort)
    await inside.end()
  }
}

/** Resolves with the exit code when the process has ended; null when a signal ended it or it never started. */
export function waitForExit(child: ChildProcess): Promise<number | null> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve(child.exitCode)
  return new Promise((resolve) => {
    child.once('exit', (code) => resolve(code))
    child.once('error', () => resolve(null))
  })
}

function closed(child: ChildProcess): Promise<void> {
  const open = [child.stdout, child.stderr].filter((stream) => stream !== null && !stream.closed)
  return Promise.all(open.map((stream) => new Promise((resolve) => stream?.once('close', resolve)))).then(() => {})
}

/** The words of bubblewrap, setpriv or the control groups' step, before any program ran. */
function isSetUpFailure(result: ExecResult): boolean {
  const words = result.err.subarray(0, 20).toString('latin1')
  return (
    result.out.length === 0 &&
    ((result.exitCode === 1 && words.startsWith('bwrap: ')) ||
      (result.exitCode === 127 && words.startsWith('setpriv: ')) ||
      (result.exitCode === 125 && words.startsWith('hangar-limits: ')))
  )
}

function collect(stream: Readable | null, maxBytes: number, tooMuch: () => void): Buffer[] {
  const chunks: Buffer[] = []
  let size = 0
  stream?.on('error', () => {})
  stream?.on('data', (chunk: Buffer) => {
    size += chunk.length
    if (size > maxBytes) tooMuch()
    else chunks.push(chunk)
  })
  return chunks
}

async function feed(child: ChildProcess, stdin: Uint8Array | Readable | undefined): Promise<void> {
  if (child.stdin === null) return
  // A command that ends before it has read all is no fault of ours: its exit status tells.
  if (stdin instanceof Readable) await pipeline(stdin, child.stdin).catch(() => {})
  else child.stdin.end(stdin ?? new Uint8Array())
}
