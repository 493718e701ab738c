/** Ports of a sandbox: the Provider that makes it, and what a turn leaves on its disk. Interfaces only. */
import type { Readable } from 'node:stream'
import type { RepoSlug, SessionName } from './names.ts'

export interface SandboxRef {
  readonly provider: string
  readonly id: string
}

/** A sandbox as its provider's own list has it; `createdAt` in epoch milliseconds, by the clock of whatever made it. */
export interface ListedSandbox extends SandboxRef {
  readonly createdAt: number
}

/** What a sandbox may use at most; null: no limit of hangar's. */
export interface SandboxLimits {
  /** Processors, 0.5 is half of one. */
  readonly cpu: number | null
  readonly memoryMb: number | null
  /** Processes and threads at once. */
  readonly pids: number | null
}

/** What a sandbox is made from. The same id gives the same sandbox, also after a crash half-way. */
export interface SandboxSpec {
  readonly id: string
  readonly session: SessionName
  readonly repo: RepoSlug
  /** Base URL of the gateway as the sandbox reaches it, without a trailing slash. */
  readonly gatewayUrl: string
  /** Repos that it may read and that follow an upstream, its own first: git in the sandbox finds what is at these URLs at the gateway. */
  readonly mirrors: readonly { readonly repo: RepoSlug; readonly url: string }[]
  /** The `hgs_…` secret: put where only this sandbox's processes can read it; never in an environment, argv or log. */
  readonly grant: string
  /** Directories put before PATH, bound read-only. */
  readonly path: readonly string[]
  /** Further read-only files and directories of the host. */
  readonly mounts: readonly string[]
  /** The image it runs, for providers that need one. */
  readonly image: string | null
  readonly limits: SandboxLimits
  /** null: whatever network the provider gives; else the gateway and these `host:port` only. */
  readonly egress: readonly string[] | null
  /** Further labels, for people who look at the engine's own lists. */
  readonly labels: Readonly<Record<string, string>>
}

/** What a provider can do; what it cannot is refused, never left out silently. */
export interface ProviderCapabilities {
  readonly pause: boolean
  /** Which of a spec's limits it keeps. */
  readonly limits: readonly (keyof SandboxLimits)[]
  /** Whether it keeps a spec's `egress`. */
  readonly network: boolean
}

/** Where things are, as seen from inside the sandbox. */
export interface SandboxPaths {
  readonly home: string
  /** The checkout: working directory of every command. */
  readonly repo: string
  /** The file that holds the grant. */
  readonly grantFile: string
  /** Directory on PATH that holds `hangar-agent`. */
  readonly helperDir: string
}

/** One run of a program, named by an idempotency key (`<turn>-<attempt>`). */
export interface TurnStart {
  readonly key: string
  readonly argv: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly stdin: Uint8Array
  /** Milliseconds after which the supervisor itself ends the run, also when the server is gone. */
  readonly timeoutMs: number
  /** Between TERM and KILL. */
  readonly graceMs: number
  /** Bytes kept of each of stdout and stderr. */
  readonly maxOutputBytes: number
}

export type TurnProcess =
  | { readonly state: 'unknown' }
  | { readonly state: 'running' }
  | {
      readonly state: 'exited'
      readonly exitCode: number
      readonly timedOut: boolean
      readonly endedAt: number
      /** Whether the kernel ended a process of the run for want of memory: a note, the exit status may still be 0. */
      readonly oom?: boolean
      /** Whether what the run wrote, or its record, found no room on the sandbox's disk. */
      readonly diskFull?: boolean
    }
  | { readonly state: 'lost'; readonly reason: string }

export interface TurnCursor {
  readonly out: number
  readonly err: number
}

export interface TurnOutput {
  readonly out: Buffer
  readonly err: Buffer
  readonly next: TurnCursor
  readonly process: TurnProcess
}

export interface ExecResult {
  readonly exitCode: number
  readonly out: Buffer
  readonly err: Buffer
}

export interface ExecOptions {
  readonly env?: Readonly<Record<string, string>>
  readonly stdin?: Uint8Array | Readable
  readonly timeoutMs: number
  readonly maxOutputBytes: number
  readonly signal?: AbortSignal
}

/** Makes sandboxes and runs programs in them. Every method may be called again after a crash: all are idempotent. */
export interface Provider {
  readonly kind: string
  capabilities(): ProviderCapabilities
  /** The gateway's base URL as a sandbox with this `egress` reaches it, from the URL at which the server's own host does. */
  gatewayUrl(url: string, egress: SandboxSpec['egress']): string
  /** One line for `hangar doctor`: what isolates, and what it does not protect from. */
  describe(): Promise<{ readonly level: 'ok' | 'warning'; readonly text: string }>
  create(spec: SandboxSpec): Promise<SandboxPaths>
  paths(ref: SandboxRef): SandboxPaths
  /** `paused`: it stands still, by `pause` or by what `reason` says; only `read` and `readFile` are answered meanwhile. */
  inspect(ref: SandboxRef): Promise<{ readonly state: 'up' | 'paused' | 'gone'; readonly reason: string | null }>
  /** All that this store has, made in full or not, whether a record names them or not. */
  list(): Promise<readonly ListedSandbox[]>
  /** Returns when the run is claimed; a second call with the same key changes nothing. */
  start(ref: SandboxRef, turn: TurnStart): Promise<void>
  /** Output from the cursor on; waits up to `waitMs` when there is none yet and the run goes on. Repeatable. */
  read(
    ref: SandboxRef,
    key: string,
    cursor: TurnCursor,
    options: { readonly waitMs: number; readonly maxBytes: number; readonly signal?: AbortSignal },
  ): Promise<TurnOutput>
  /** Ends the run's whole process tree: TERM, after the run's grace KILL. An unknown key is no error. */
  stop(ref: SandboxRef, key: string): Promise<void>
  /** A short helper command inside; throws `sandbox_failed` when no exit status came. */
  exec(ref: SandboxRef, argv: readonly string[], options: ExecOptions): Promise<ExecResult>
  /** Bytes of a file inside from an offset; null when it is absent or no regular file. Never follows a link out of the sandbox. */
  readFile(
    ref: SandboxRef,
    path: string,
    options: { readonly offset: number; readonly maxBytes: number },
  ): Promise<Buffer | null>
  /** Unpacks a tar under a directory inside, as the sandbox's own user. */
  putTar(ref: SandboxRef, dir: string, tar: Readable): Promise<void>
  /** A tar of a directory inside (links not followed); ends with an error when it is cut. */
  getTar(ref: SandboxRef, dir: string, options: { readonly maxBytes: number }): Promise<Readable>
  /** Freezes everything in it where it stands; nothing is lost. Refused with `sandbox_failed` without the capability. */
  pause(ref: SandboxRef): Promise<void>
  /** Lets it go on. One that is not paused is no error. */
  resume(ref: SandboxRef): Promise<void>
  /** Ends everything in it, paused or not, and removes it; resolves when it is gone. */
  destroy(ref: SandboxRef): Promise<void>
  /** `host:port` of the engine's own that every sandbox would reach if nothing kept it, to be tried by those that may not; absent: nothing is. */
  forbidden?(): string
  /** Removes what several sandboxes have shared and none needs any more; called every few minutes. */
  tidy?(): Promise<void>
}
