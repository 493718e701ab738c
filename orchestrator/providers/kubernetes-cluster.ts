/** The API server as the provider needs it, and when a call to it is made again. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Manifest, Meta } from './kubernetes-pod.ts'
import type { Pod } from './kubernetes-pod-state.ts'

/** A call that the API server refused, or that did not reach it. */
export class ClusterError extends Error {
  /** HTTP status; 0 when no answer came. */
  readonly status: number
  /** The reason word of the API server's Status object. */
  readonly reason: string
  readonly retryAfterMs: number | null

  constructor(
    status: number,
    reason: string,
    message: string,
    more: { readonly retryAfterMs?: number | null; readonly cause?: unknown } = {},
  ) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause })
    this.name = 'ClusterError'
    this.status = status
    this.reason = reason
    this.retryAfterMs = more.retryAfterMs ?? null
  }
}

export interface PodList {
  readonly items: readonly Pod[]
  readonly resourceVersion: string
}

export interface WatchEvent {
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR'
  readonly object: Pod & { readonly code?: number; readonly message?: string }
}

/** One exec connection. Its output comes by `onOutput`; after `onEnd` nothing comes any more. */
export interface ExecSocket {
  /** Resolves when the piece of standard input has left this process. */
  send(piece: Buffer): Promise<void>
  /** Stops and starts the flow of output. */
  pause(): void
  resume(): void
  close(): void
}

export interface ExecHandlers {
  onOutput(stream: 'out' | 'err', bytes: Buffer): void
  /** `status` is the API server's last word on the command; null when the connection ended without one: then nothing is known. */
  onEnd(status: ExecStatus | null): void
}

/** The exit status of the command, or why it could not be run. */
export type ExecStatus = { readonly exitCode: number } | { readonly failure: string }

/** Each call is made once, with a time limit, and throws `ClusterError`. */
export interface Cluster {
  /** `host:port` of the API server. */
  readonly address: string
  getPod(name: string): Promise<Pod>
  createPod(pod: Manifest): Promise<void>
  deletePod(name: string, options: { readonly uid?: string; readonly graceSeconds: number }): Promise<void>
  listPods(selector: string): Promise<PodList>
  /** Resolves when the server has ended the watch, as it does after `seconds`. */
  watchPods(
    selector: string,
    options: {
      readonly resourceVersion: string
      readonly seconds: number
      readonly signal: AbortSignal
      onEvent(event: WatchEvent): void
    },
  ): Promise<void>
  createConfigMap(object: Manifest): Promise<Meta>
  getConfigMap(name: string): Promise<Meta>
  createNetworkPolicy(object: Manifest): Promise<void>
  listNetworkPolicies(selector: string): Promise<readonly Meta[]>
  deleteNetworkPolicy(name: string, options: { readonly uid: string }): Promise<void>
  connect(pod: string, argv: readonly string[], handlers: ExecHandlers): Promise<ExecSocket>
  version(): Promise<string>
}

export const isStatus = (error: unknown, ...statuses: readonly number[]): boolean =>
  error instanceof ClusterError && statuses.includes(error.status)

/** Whether the same call may well go through a little later. */
export function isPassing(error: unknown): boolean {
  return isStatus(error, 0, 408, 429, 500, 502, 503, 504)
}

/** How long to wait before the try after `failures` of them; what the server asks for counts. */
export function backOffMs(failures: number, error?: unknown): number {
  const asked = error instanceof ClusterError ? (error.retryAfterMs ?? 0) : 0
  return Math.max(asked, Math.min(10_000, 200 * 2 ** Math.min(failures - 1, 10)))
}

/** Makes a call until it goes through, is refused for good, or `forMs` have passed; only for calls that may be repeated. */
export async function persist<T>(
  call: () => Promise<T>,
  options: { readonly forMs: number; readonly signal?: AbortSignal },
): Promise<T> {
  const until = performance.now() + options.forMs
  for (let failures = 1; ; failures++) {
    try {
      return await call()
    } catch (error) {
      const wait = backOffMs(failures, error)
      if (!isPassing(error) || performance.now() + wait > until || options.signal?.aborted) throw error
      await sleep(wait, undefined, options.signal === undefined ? {} : { signal: options.signal })
    }
  }
}
