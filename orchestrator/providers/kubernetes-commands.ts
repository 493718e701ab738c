/** Helper commands, inputs and outputs in a pod, each as a run of its own or in pieces, so that no broken connection loses any of them. */
import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import { errors, messageOf } from '../../domain/errors.ts'
import type { Log } from '../../domain/ports.ts'
import type { ExecOptions, TurnStart } from '../../domain/sandbox.ts'
import { followRun, type PodLink, podCommand, runCommand } from './kubernetes-exec.ts'
import { blobId } from './kubernetes-frames.ts'
import { quote } from './kubernetes-install.ts'
import { PERSIST_MS } from './kubernetes-pods.ts'

export interface PodCommands {
  /** Ends the helper commands that another process has left in the pod. */
  sweep(link: PodLink): Promise<void>
  payload(link: PodLink, dir: string, run: PodRun): Promise<RunPayload>
  run(link: PodLink, argv: readonly string[], options: ExecOptions, onOutput: OnOutput): Promise<number>
  tarOf(link: PodLink, dir: string, maxBytes: number): AsyncGenerator<Buffer>
  /** Forgets what is to be removed in a pod that is gone. */
  drop(pod: string): void
}

type OnOutput = (stream: 'out' | 'err', bytes: Buffer) => void | Promise<void>
type PodRun = Omit<TurnStart, 'key' | 'stdin'> & { readonly stdin: Uint8Array | Readable }

/** How `hangar-pod start` is called. */
export interface RunPayload {
  readonly args: readonly (string | number)[]
  readonly stdin: Buffer
  /** The name of an input that was put before; `-`: none. */
  readonly put: string
}

const INLINE_BYTES = 262_144
const PUT_BYTES = 2 * 1_048_576
const FORGET_AT = 8

export function createPodCommands(deps: { readonly log: Log }): PodCommands {
  return new Commands(deps)
}

class Commands implements PodCommands {
  readonly #deps: { readonly log: Log }
  /** Marks the helper commands of this process: another's are ended when a sandbox is first worked in. */
  readonly #owner = randomUUID().slice(0, 8)
  /** Helper commands whose results have been read, by pod; removed with a later one. */
  readonly #forgotten = new Map<string, string[]>()

  constructor(deps: { readonly log: Log }) {
    this.#deps = deps
  }

  async sweep(link: PodLink) {
    await runCommand(link, podCommand('sweep', this.#owner), { forMs: PERSIST_MS })
  }

  drop(pod: string) {
    this.#forgotten.delete(pod)
  }

  /** Arguments of `hangar-pod start` and its input. Variables and arguments go by standard input: a command line is in the API server's log. */
  async payload(
    link: PodLink,
    dir: string,
    run: Omit<TurnStart, 'key' | 'stdin'> & { readonly stdin: Uint8Array | Readable },
  ) {
    const inline = run.stdin instanceof Readable || run.stdin.length > INLINE_BYTES ? null : Buffer.from(run.stdin)
    const put = inline === null ? await this.#put(link, run.stdin) : '-'
    const spec = Buffer.from(specOf(run, dir))
    const stdin = Buffer.concat([spec, inline ?? Buffer.alloc(0)])
    const limits = [Math.ceil(run.timeoutMs), Math.ceil(run.graceMs), run.maxOutputBytes]
    return { args: [dir, stdin.length, blobId(stdin), spec.length, put, ...limits], stdin, put }
  }

  /** A helper command as a run of its own, so that no broken connection loses its output or its end. */
  async run(
    link: PodLink,
    argv: readonly string[],
    options: ExecOptions,
    onOutput: (stream: 'out' | 'err', bytes: Buffer) => void | Promise<void>,
  ): Promise<number> {
    const name = argv[0] ?? 'command'
    const dir = `execs/${this.#owner}.${randomUUID()}`
    const stop = new AbortController()
    let passed: Error | null = null
    const end = (why: Error) => {
      passed ??= why
      stop.abort()
    }
    const timer = setTimeout(
      () => end(errors.sandboxFailed(`${name} took longer than ${options.timeoutMs} ms in the sandbox and was ended`)),
      options.timeoutMs,
    )
    const onAbort = () => end(errors.sandboxFailed(`${name} was given up by its caller`))
    options.signal?.addEventListener('abort', onAbort)
    if (options.signal?.aborted) onAbort()
    let put = '-'
    try {
      const forgotten = this.#forgotten.get(link.name) ?? []
      if (forgotten.length >= FORGET_AT) {
        this.#forgotten.delete(link.name)
        await runCommand(link, podCommand('forget', ...forgotten), { forMs: PERSIST_MS })
      }
      const begin = await this.payload(link, dir, {
        argv,
        env: options.env ?? {},
        stdin: options.stdin ?? new Uint8Array(),
        // A little later than ours: it counts when this server is gone.
        timeoutMs: options.timeoutMs + 5_000,
        graceMs: 1_000,
        // The supervisor cuts at whole blocks; one byte too many must be seen here.
        maxOutputBytes: options.maxOutputBytes + 1_024,
      })
      put = begin.put
      let out = 0
      let err = 0
      for await (const frame of followRun(link, { dir, from: { out: 0, err: 0 }, begin, signal: stop.signal })) {
        out += frame.out.length
        err += frame.err.length
        if (Math.max(out, err) > options.maxOutputBytes)
          throw errors.limitPassed(
            `${name} wrote more than ${options.maxOutputBytes} bytes in the sandbox and was ended`,
          )
        if (frame.out.length > 0) await onOutput('out', frame.out)
        if (frame.err.length > 0) await onOutput('err', frame.err)
        if (frame.process.state === 'running') continue
        this.#forget(link, dir)
        if (frame.process.state === 'exited' && !frame.process.timedOut) return frame.process.exitCode
        throw errors.sandboxFailed(`${name} could not be run in the sandbox`, {
          reason: frame.process.state === 'lost' ? frame.process.reason : 'it was ended at its time limit',
        })
      }
      throw passed ?? errors.sandboxFailed(`${name} gave no exit status`)
    } catch (error) {
      await this.#endRun(link, dir)
      throw passed ?? error
    } finally {
      clearTimeout(timer)
      options.signal?.removeEventListener('abort', onAbort)
      if (put !== '-') await runCommand(link, podCommand('drop', put), { forMs: PERSIST_MS }).catch(() => {})
    }
  }

  #forget(link: PodLink, dir: string) {
    this.#forgotten.set(link.name, [...(this.#forgotten.get(link.name) ?? []), dir])
  }

  async #endRun(link: PodLink, dir: string): Promise<void> {
    if ((await link.ended()) !== null) return
    await runCommand(link, podCommand('stop', dir, 0), { forMs: 20_000 }).catch((error: unknown) =>
      this.#deps.log.warn(
        { pod: link.name, error: messageOf(error) },
        'a helper command could not be ended; its own time limit will',
      ),
    )
    this.#forget(link, dir)
  }

  /** Sends an input of any length in pieces, each of which may be sent again; gives its name in the pod. */
  async #put(link: PodLink, input: Uint8Array | Readable): Promise<string> {
    const id = randomUUID()
    let number = 0
    const send = async (piece: Buffer) => {
      number++
      const result = await runCommand(
        link,
        podCommand('put', id, String(number).padStart(6, '0'), piece.length, blobId(piece)),
        { stdin: piece, forMs: PERSIST_MS * 2 },
      )
      if (result.exitCode !== 0)
        throw errors.sandboxFailed('an input could not be put into the pod', { reason: result.err })
    }
    for await (const piece of pieces(input, PUT_BYTES)) await send(piece)
    if (number === 0) await send(Buffer.alloc(0))
    return id
  }

  async *tarOf(link: PodLink, dir: string, maxBytes: number): AsyncGenerator<Buffer> {
    const pipe = createPipe()
    let words = ''
    const abort = new AbortController()
    const options = { timeoutMs: 15 * 60_000, maxOutputBytes: maxBytes, signal: abort.signal }
    // Busybox's tar says 1 of a directory that is not there.
    const argv = ['sh', '-c', 'cd -- "$1" || exit 2; exec tar -c -f - .', 'sh', dir]
    const ran = this.run(link, argv, options, (stream, bytes) => {
      if (stream === 'err' && words.length < 2_000) words += bytes.toString('utf8')
      return stream === 'out' ? pipe.write(bytes) : undefined
    })
    ran.then(
      () => pipe.end(null),
      (error: unknown) => pipe.end(error),
    )
    let over = false
    try {
      yield* pipe.read()
      over = true
    } finally {
      if (!over) abort.abort()
    }
    const exitCode = await ran
    // 1 says only that a file changed while it was read.
    if (exitCode !== 0 && exitCode !== 1)
      throw errors.sandboxFailed(`${dir} of the sandbox could not be read`, { reason: words.slice(0, 2_000) })
  }
}

/** See `hangar-pod start`: removes itself, appends the program, exports its variables. */
function specOf({ argv, env }: Pick<TurnStart, 'argv' | 'env'>, dir: string): string {
  for (const [name, value] of Object.entries(env))
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) || value.includes('\0'))
      throw errors.sandboxFailed(`the variable ${JSON.stringify(name.slice(0, 80))} cannot be given to a program`)
  // The mark is on the program alone: its supervisor must not be found by it.
  const program = ['env', `HANGAR_RUN=${dir}`, ...argv]
  return [
    'rm -f "$spec"',
    `set -- "$@" ${program.map(quote).join(' ')}`,
    ...Object.entries(env).map(([name, value]) => `export ${name}=${quote(value)}`),
    '',
  ].join('\n')
}

async function* pieces(input: Uint8Array | Readable, size: number): AsyncGenerator<Buffer> {
  if (!(input instanceof Readable)) {
    for (let at = 0; at < input.length; at += size) yield Buffer.from(input.subarray(at, at + size))
    return
  }
  let held: Buffer[] = []
  let length = 0
  for await (const chunk of input as AsyncIterable<Buffer | string>) {
    const bytes = Buffer.from(chunk)
    held.push(bytes)
    length += bytes.length
    if (length < size) continue
    yield Buffer.concat(held)
    held = []
    length = 0
  }
  if (length > 0) yield Buffer.concat(held)
}

/** One writer that waits for one reader. */
function createPipe() {
  let piece: Buffer | null = null
  let ended: { readonly error: unknown } | null = null
  let wake = () => {}
  let taken = () => {}
  return {
    write: (bytes: Buffer) =>
      new Promise<void>((resolve) => {
        piece = bytes
        taken = resolve
        wake()
      }),
    end: (error: unknown) => {
      ended = { error }
      taken()
      wake()
    },
    async *read(): AsyncGenerator<Buffer> {
      for (;;) {
        if (piece !== null) {
          const bytes = piece
          piece = null
          yield bytes
          taken()
        } else if (ended !== null) {
          if (ended.error !== null) throw ended.error
          return
        } else
          await new Promise<void>((resolve) => {
            wake = resolve
          })
      }
    },
  }
}
