/** The only place that starts git: a fixed, neutral configuration, argument arrays, a time limit and a cap on output. */
import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process'
import { channel } from 'node:diagnostics_channel'
import { closeSync, openSync } from 'node:fs'
import type { Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { errors } from '../../domain/errors.ts'
import { DEFAULT_LIMITS } from '../../domain/limits.ts'
import type { Starter, StartOrder } from './starter.ts'

export interface GitCommand {
  /** The git directory; absent for commands that need none, or that find it from `cwd`. */
  readonly gitDir?: string
  readonly cwd?: string
  readonly args: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  /** Settings on top of the pinned ones; they win. */
  readonly config?: Readonly<Record<string, string>>
  /** What git and its children read from descriptor 3: for a credential, which neither arguments nor environment may hold. */
  readonly secretInput?: Uint8Array
  /** A file to whose end git's output goes; `stdout` is null then. */
  readonly output?: string
  /** Address space that git gets, where the system knows such a limit: for reading what outsiders made. */
  readonly maxMemoryBytes?: number
}

export interface GitRun extends GitCommand {
  readonly input?: Uint8Array | Readable
  readonly timeoutMs?: number
  /** Bytes of stdout that are taken; more ends the process. Default 64 MiB. */
  readonly maxOutputBytes?: number
  readonly signal?: AbortSignal
}

export interface GitResult {
  readonly exitCode: number
  readonly stdout: Buffer
  /** Cut at 8,000 characters. */
  readonly stderr: string
}

/** Settings that hold for every git that hangar runs, whatever a repository's own config says. */
const PINNED: Readonly<Record<string, string>> = {
  'core.hooksPath': '/dev/null',
  'core.fsmonitor': 'false',
  'core.fsync': 'committed,pack-metadata',
  'core.quotePath': 'false',
  'gc.auto': '0',
  'maintenance.auto': 'false',
  'receive.autogc': 'false',
  'protocol.ext.allow': 'never',
  'safe.directory': '*',
  'advice.detachedHead': 'false',
}

/**
 * The whole environment of a git process: no system or user config, no prompt, C locale.
 * PATH is the server's own, since git may be installed anywhere.
 */
export function gitEnvironment(
  command: Pick<GitCommand, 'env' | 'config' | 'maxMemoryBytes'> = {},
): Record<string, string> {
  const config = Object.entries({ ...PINNED, ...command.config })
  const environment: Record<string, string> = {
    PATH: process.env['PATH'] ?? '/usr/local/bin:/usr/bin:/bin',
    HOME: '/nonexistent',
    LC_ALL: 'C',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_CONFIG_GLOBAL: '/dev/null',
    GIT_ATTR_NOSYSTEM: '1',
    GIT_TERMINAL_PROMPT: '0',
    GIT_OPTIONAL_LOCKS: '0',
    GIT_CONFIG_COUNT: String(config.length),
  }
  config.forEach(([key, value], at) => {
    environment[`GIT_CONFIG_KEY_${at}`] = key
    environment[`GIT_CONFIG_VALUE_${at}`] = value
  })
  if (command.maxMemoryBytes !== undefined)
    environment['GIT_ALLOC_LIMIT'] = String(Math.floor(command.maxMemoryBytes / 4))
  return { ...environment, ...command.env }
}

/** Channels that hear of each git: `{ command }` when it is started, and when it has ended. */
export const GIT_STARTED = 'hangar:git:started'
export const GIT_ENDED = 'hangar:git:ended'

/**
 * Has git started by a small process from now on, since this one is large; undone by what is given back. It holds for the whole process, as memory
 * does, and so it is the one thing that this module remembers.
 */
export async function startGitFromSmallProcess(): Promise<() => Promise<void>> {
  // Loaded here alone: clients of the server have no use for it.
  const { openStarter } = await import('./starter.ts')
  const opened = await openStarter(() => {
    starter = null
  })
  starter = opened
  return async () => {
    if (starter === opened) starter = null
    await opened.close()
  }
}
let starter: Starter | null = null

/** Starts git in its own process group, for callers that stream; they must read stderr and end it with `killGit`. `pid` may come with `spawn` only. */
export function spawnGit(
  command: GitCommand,
): ChildProcess & { stdin: NodeJS.WritableStream; stdout: Readable; stderr: Readable } {
  const args = command.gitDir === undefined ? command.args : [`--git-dir=${command.gitDir}`, ...command.args]
  const [file, argv] = command.maxMemoryBytes === undefined ? ['git', args] : capped(args, command.maxMemoryBytes)
  const order = {
    file,
    args: argv,
    cwd: command.cwd ?? command.gitDir ?? '/',
    env: gitEnvironment(command),
    output: command.output ?? null,
    secret: command.secretInput !== undefined,
  }
  const child = starter?.start(order) ?? startHere(order)
  if (command.secretInput !== undefined) handOver(child, command.secretInput)
  channel(GIT_STARTED).publish({ command: command.args[0] ?? '' })
  let told = false
  const ended = () => {
    if (!told) channel(GIT_ENDED).publish({})
    told = true
  }
  child.once('exit', ended)
  child.once('error', ended)
  return child as ReturnType<typeof spawnGit>
}

function startHere({ file, args, cwd, env, output, secret }: Omit<StartOrder, 'id'>): ChildProcess {
  const descriptor = output === null ? null : openSync(output, 'a')
  try {
    const stdio = ['pipe', descriptor ?? 'pipe', 'pipe', ...(secret ? (['pipe'] as const) : [])] as StdioOptions
    return spawn(file, [...args], { cwd, env, detached: true, stdio })
  } finally {
    if (descriptor !== null) closeSync(descriptor)
  }
}

function capped(args: readonly string[], maxMemoryBytes: number): [string, readonly string[]] {
  return ['sh', ['-c', CAPPED, 'git', String(Math.floor(maxMemoryBytes / 1024)), ...args]]
}

/** A pipe holds a credential whole, so it is gone from here before anybody asks for it. */
function handOver(child: ChildProcess, secret: Uint8Array): void {
  const pipe = child.stdio[3] as Writable
  pipe.on('error', () => {})
  pipe.end(secret)
}

/** A system without this limit runs git all the same: what a single object may take is limited by git itself. */
const CAPPED = 'ulimit -v "$1" 2>/dev/null; shift; exec git "$@"'

/** Ends git and all that it started: TERM to its group, KILL two seconds later. Safe to call when it has ended. */
export function killGit(child: ChildProcess): void {
  const { pid } = child
  if (child.exitCode !== null || child.signalCode !== null) return
  // Not started yet, by the small process; or never, and then this is never heard.
  if (pid === undefined) return void child.once('spawn', () => killGit(child))
  signalGroup(pid, 'SIGTERM')
  const timer = setTimeout(() => {
    if (child.exitCode === null && child.signalCode === null) signalGroup(pid, 'SIGKILL')
  }, 2_000)
  child.once('exit', () => clearTimeout(timer))
}

function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal)
  } catch {
    // The group is gone already.
  }
}

/** Runs git to its end and gives its exit code and output. Throws `git_failed` when it cannot start, and `limit_passed` past the time or output limit. */
export async function runGit(run: GitRun): Promise<GitResult> {
  const child = spawnGit(run)
  const timeoutMs = run.timeoutMs ?? DEFAULT_LIMITS.gitTimeoutMs
  const maxOutputBytes = run.maxOutputBytes ?? 64 * 1_048_576
  const chunks: Buffer[] = []
  let size = 0
  let stderr = ''
  let passed: string | null = null
  const stop = (why: string) => {
    passed ??= why
    killGit(child)
  }
  const timer = setTimeout(() => stop(`ran longer than ${timeoutMs} ms`), timeoutMs)
  const onAbort = () => stop('was given up by its caller')
  run.signal?.addEventListener('abort', onAbort)
  child.stdout.on('data', (chunk: Buffer) => {
    size += chunk.length
    if (size > maxOutputBytes) stop(`wrote more than ${maxOutputBytes} bytes`)
    else chunks.push(chunk)
  })
  child.stderr.on('data', (chunk: Buffer) => {
    if (stderr.length < 8_000) stderr = (stderr + chunk.toString('utf8')).slice(0, 8_000)
  })
  try {
    const exitCode = await new Promise<number>((resolve, reject) => {
      child.once('error', reject)
      child.once('close', (code, signal) => resolve(code ?? (signal === null ? 128 : 143)))
      feed(child, run.input).catch(reject)
      if (run.signal?.aborted) onAbort()
    }).catch((cause: unknown) => {
      throw errors.gitFailed('git could not be started; install git 2.39 or newer and put it on PATH', {}, cause)
    })
    if (passed !== null)
      throw errors.limitPassed(`git ${run.args[0] ?? ''} ${passed}`, { reason: stderr.slice(0, 2_000) })
    return { exitCode, stdout: Buffer.concat(chunks), stderr }
  } finally {
    clearTimeout(timer)
    run.signal?.removeEventListener('abort', onAbort)
  }
}

/** Runs git and gives its stdout. Throws `git_failed` with git's own words unless it exits with 0. */
export async function git(run: GitRun): Promise<Buffer> {
  const result = await runGit(run)
  if (result.exitCode === 0) return result.stdout
  const reason = result.stderr.trim().slice(0, 2_000)
  throw errors.gitFailed(
    `git ${run.args[0] ?? ''} failed with exit status ${result.exitCode}: ${reason.split('\n')[0] ?? ''}`,
    { reason },
  )
}

async function feed(child: ReturnType<typeof spawnGit>, input: GitRun['input']): Promise<void> {
  // A git that ends before it has read everything is no fault of ours: its exit status tells.
  child.stdin.on('error', () => {})
  if (input === undefined) child.stdin.end()
  else if (input instanceof Uint8Array) child.stdin.end(input)
  else await pipeline(input, child.stdin).catch(() => {})
}
