/**
 * Commands inside a container. The engine's stream may end early, and its exit code may be said of a command that still runs: so each
 * command says its own end, on both of its streams, with a word that nobody else knows beforehand. Without that word there is no result.
 */
import { randomUUID } from 'node:crypto'
import type { Socket } from 'node:net'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { errors, messageOf } from '../../domain/errors.ts'
import type { ExecOptions, ExecResult } from '../../domain/sandbox.ts'
import { INSIDE } from './docker-container.ts'
import { type Engine, refusal } from './docker-engine.ts'
import { ENTER } from './inside-scripts.ts'

/** A container, and the mark that all commands of this server bear in it. */
export interface Inside {
  readonly engine: Engine
  readonly container: string
  /** `exec:<server>:`; another server's commands are found by not having it. */
  readonly owner: string
}

export interface InsideOptions {
  readonly env: Readonly<Record<string, string>>
  readonly stdin: boolean
  /** What finds the command and all that it started, as HANGAR_RUN in their environment. */
  readonly mark: string
}

/** What it wrote, then its exit status. */
export type InsideOutput = { readonly stream: 'out' | 'err'; readonly data: Buffer }

/**
 * Both streams end with the word and the status; what is left of standard input is swallowed then, so that no writer meets a closed pipe.
 * Names that no environment has: a variable that comes from outside would be changed for the command.
 */
const WRAP = `_hangar_word=$1 _hangar_stdin=$3
unset $4
${ENTER}
enter "$2" 2>/dev/null || cd "$HOME" || exit 125
unset OLDPWD
shift 4
"$@"
_hangar_code=$?
printf '\\000%s %03d' "$_hangar_word" "$_hangar_code" >&2
printf '\\000%s %03d' "$_hangar_word" "$_hangar_code"
if [ "$_hangar_stdin" = yes ]; then exec cat >/dev/null 2>&1; fi`

/** What engines put into every environment, and nobody asked for. */
const ENGINE_VARIABLES = ['HOSTNAME', 'TERM', 'container']

export interface StartedInside {
  readonly socket: Socket
  /** Ends, or throws `sandbox_failed` when no exit status came. */
  output(): AsyncGenerator<InsideOutput, number>
}

/** Starts a command. Throws `sandbox_lost` when the container is gone or stopped. */
export async function startInside(at: Inside, argv: readonly string[], options: InsideOptions): Promise<StartedInside> {
  const word = randomUUID()
  const strange = ENGINE_VARIABLES.filter((name) => !(name in options.env)).join(' ')
  const made = await at.engine.ask('POST', `/containers/${at.container}/exec`, {
    json: {
      AttachStdin: options.stdin,
      AttachStdout: true,
      AttachStderr: true,
      // A terminal would turn line ends around.
      Tty: false,
      User: INSIDE.user,
      WorkingDir: '/',
      Env: Object.entries({ ...options.env, HANGAR_RUN: options.mark }).map(([name, value]) => `${name}=${value}`),
      Cmd: ['sh', '-c', WRAP, 'sh', word, INSIDE.repo, options.stdin ? 'yes' : 'no', strange, ...argv],
    },
  })
  if (made.status === 404) throw errors.sandboxLost(`the container of the sandbox is gone: ${refusal(made)}`)
  // Podman says it with 500.
  if (made.status === 409 || /container state improper/.test(refusal(made))) throw stoppedOrPaused(refusal(made))
  if (made.status !== 201) throw errors.sandboxFailed(`no command can be run in the sandbox: ${refusal(made)}`)
  const socket = await at.engine.attach(`/exec/${made.body.Id}/start`, { Detach: false, Tty: false })
  if (!('destroy' in socket)) {
    if (socket.status === 404) throw errors.sandboxLost(`the container of the sandbox is gone: ${refusal(socket)}`)
    if (socket.status === 409) throw stoppedOrPaused(refusal(socket))
    throw errors.sandboxFailed(`no command can be run in the sandbox: ${refusal(socket)}`)
  }
  socket.on('error', () => {})
  return { socket, output: () => readOutput(socket, word, argv[0] ?? 'command') }
}

/** Both are 409 with words of the engine's own. */
function stoppedOrPaused(words: string): Error {
  if (/paused/i.test(words)) return errors.sandboxFailed('the sandbox is paused; resume it first')
  return errors.sandboxLost(`the container of the sandbox has stopped: ${words}`)
}

async function* readOutput(socket: Socket, word: string, name: string): AsyncGenerator<InsideOutput, number> {
  const streams = { out: createEndFinder(word), err: createEndFinder(word) }
  const tail: Buffer[] = []
  try {
    for await (const { stream, data } of demultiplex(socket)) {
      if (stream === 'err') tail.push(data)
      if (tail.length > 8) tail.shift()
      const given = streams[stream].take(data)
      if (given.length > 0) yield { stream, data: given }
      const code = streams.out.code()
      if (code !== null && streams.err.code() !== null) return code
    }
  } catch (cause) {
    throw errors.sandboxFailed(`the connection to ${name} in the sandbox broke: ${messageOf(cause)}`, {}, cause)
  }
  throw errors.sandboxFailed(`${name} in the sandbox ended without an exit status`, {
    reason: Buffer.concat(tail).toString('utf8').slice(0, 2_000),
  })
}

/** The engine's frames: a stream's number, three zeros, a length of 32 bits, that many bytes. */
async function* demultiplex(socket: Socket): AsyncGenerator<InsideOutput> {
  let header = Buffer.alloc(0)
  let stream: 'out' | 'err' = 'out'
  let left = 0
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    let rest = chunk
    while (rest.length > 0) {
      if (left === 0) {
        const wanted = 8 - header.length
        header = Buffer.concat([header, rest.subarray(0, wanted)])
        rest = rest.subarray(wanted)
        if (header.length < 8) break
        stream = header[0] === 2 ? 'err' : 'out'
        left = header.readUInt32BE(4)
        header = Buffer.alloc(0)
        continue
      }
      const data = rest.subarray(0, left)
      left -= data.length
      rest = rest.subarray(data.length)
      yield { stream, data }
    }
  }
}

/** Passes a stream on up to the word that ends it; what might be the word's beginning waits. */
function createEndFinder(word: string): { take(data: Buffer): Buffer; code(): number | null } {
  const mark = Buffer.from(`\0${word} `)
  const whole = mark.length + 3
  let held = Buffer.alloc(0)
  let code: number | null = null
  return {
    code: () => code,
    take(data) {
      if (code !== null) return Buffer.alloc(0)
      const all = held.length === 0 ? data : Buffer.concat([held, data])
      const at = all.indexOf(mark)
      if (at !== -1 && all.length >= at + whole) {
        code = Number(all.subarray(at + mark.length, at + whole).toString('latin1'))
        return all.subarray(0, at)
      }
      const given = at !== -1 ? at : beginningOf(mark, all)
      held = Buffer.from(all.subarray(given))
      return all.subarray(0, given)
    },
  }
}

/** Where the bytes may have begun to say the mark; their length when they have not. */
function beginningOf(mark: Buffer, bytes: Buffer): number {
  const from = Math.max(0, bytes.length - mark.length + 1)
  for (let at = bytes.indexOf(0, from); at !== -1; at = bytes.indexOf(0, at + 1))
    if (mark.subarray(0, bytes.length - at).equals(bytes.subarray(at))) return at
  return bytes.length
}

/** Runs a command inside to its end. Throws `sandbox_failed` without an exit status, and `limit_passed` past the cap on output. */
export async function execInside(
  at: Inside,
  argv: readonly string[],
  options: ExecOptions & { readonly mark?: string },
): Promise<ExecResult> {
  const name = argv[0] ?? 'command'
  const mark = options.mark ?? `${at.owner}${randomUUID()}`
  const stdin = options.stdin !== undefined && !(options.stdin instanceof Uint8Array && options.stdin.length === 0)
  const { socket, output } = await startInside(at, argv, { env: options.env ?? {}, stdin, mark })
  let passed: Error | null = null
  const stop = (why: Error) => {
    passed ??= why
    socket.destroy()
  }
  const timer = setTimeout(
    () => stop(errors.sandboxFailed(`${name} took longer than ${options.timeoutMs} ms in the sandbox and was ended`)),
    options.timeoutMs,
  )
  const onAbort = () => stop(errors.sandboxFailed(`${name} was given up by its caller`))
  options.signal?.addEventListener('abort', onAbort)
  if (options.signal?.aborted) onAbort()
  const parts: Record<'out' | 'err', Buffer[]> = { out: [], err: [] }
  const sizes = { out: 0, err: 0 }
  const fed = stdin ? feed(socket, options.stdin as Uint8Array | Readable) : Promise.resolve(null)
  try {
    const written = output()
    for (;;) {
      const next = await written.next()
      if (next.done === true) {
        if (passed !== null) throw passed
        return { exitCode: next.value, out: Buffer.concat(parts.out), err: Buffer.concat(parts.err) }
      }
      const { stream, data } = next.value
      sizes[stream] += data.length
      if (sizes[stream] > options.maxOutputBytes)
        stop(errors.limitPassed(`${name} wrote more than ${options.maxOutputBytes} bytes in the sandbox and was ended`))
      else parts[stream].push(data)
    }
  } catch (error) {
    await endMarked(at, mark)
    throw passed ?? (await fed) ?? error
  } finally {
    clearTimeout(timer)
    options.signal?.removeEventListener('abort', onAbort)
    socket.destroy()
  }
}

/** Gives what kept the input from being read to its end; a command that did not want it all is no fault. */
async function feed(socket: Socket, stdin: Uint8Array | Readable): Promise<Error | null> {
  if (stdin instanceof Uint8Array) {
    socket.end(stdin)
    return null
  }
  let fault: Error | null = null
  stdin.once('error', (error: Error) => {
    fault = error
  })
  await pipeline(stdin, socket).catch(() => {})
  return fault
}

/** Ends a command and all that it started, which closing its connection does not; a sandbox that is gone has none. */
export async function endMarked(at: Inside, mark: string, but = ''): Promise<void> {
  const argv = ['hangar-agent', 'end-marked', mark, ...(but === '' ? [] : [but])]
  try {
    const { socket, output } = await startInside(at, argv, { env: {}, stdin: false, mark: `${at.owner}end` })
    const timer = setTimeout(() => socket.destroy(), 20_000)
    try {
      for await (const _ of output());
    } finally {
      clearTimeout(timer)
      socket.destroy()
    }
  } catch {
    // Paused or gone: the next command of this server, or the end of the sandbox, clears it away.
  }
}
