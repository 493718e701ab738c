/** The Kubernetes API through client-node, the one file that loads it: credentials, typed REST, exec sockets, watch lines. */
import { request as httpRequest, type IncomingMessage, type RequestOptions } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { PassThrough, Writable } from 'node:stream'
import {
  ApiException,
  type ConfigurationOptions,
  CoreV1Api,
  KubeConfig,
  NetworkingV1Api,
  Observable,
  type RequestContext,
  type ResponseContext,
  type V1ConfigMap,
  type V1NetworkPolicy,
  type V1Pod,
  VersionApi,
} from '@kubernetes/client-node'
import { WebSocketHandler } from '@kubernetes/client-node/dist/web-socket-handler.js'
import { errors, messageOf } from '../../domain/errors.ts'
import {
  type Cluster,
  ClusterError,
  type ExecHandlers,
  type ExecSocket,
  type ExecStatus,
  type WatchEvent,
} from './kubernetes-cluster.ts'
import { CONTAINER, type Meta } from './kubernetes-pod.ts'
import type { Pod } from './kubernetes-pod-state.ts'
import { createPodProvider, type KubernetesProvider, type PodProviderDeps } from './kubernetes-provider.ts'

export interface KubernetesDeps extends Omit<PodProviderDeps, 'cluster'> {
  /** A kubeconfig file; null: the pod's own service account, else the user's default file. */
  readonly kubeconfig: string | null
}

const CALL_TIMEOUT_MS = 30_000
const CONNECT_TIMEOUT_MS = 20_000
const PING_MS = 20_000
/** Pings without an answer after which a connection is taken for dead. */
const MISSED_PONGS = 2
const SEND_BYTES = 65_536
const MAX_UNSENT_BYTES = 1_048_576
/** A watch event is one pod; the API server takes objects of about 1.5 MiB. */
const MAX_LINE_BYTES = 8 * 1_048_576

/** A provider whose sandboxes are pods. Throws `config_invalid` when there are no credentials of a cluster. */
export function createKubernetesProvider({ kubeconfig, ...deps }: KubernetesDeps): KubernetesProvider {
  return createPodProvider({ ...deps, cluster: connectCluster(loadConfig(kubeconfig), deps.install.namespace) })
}

function loadConfig(kubeconfig: string | null): KubeConfig {
  const config = new KubeConfig()
  try {
    if (kubeconfig === null) config.loadFromDefault()
    else config.loadFromFile(kubeconfig)
  } catch (cause) {
    throw errors.configInvalid(
      `kubernetes.kubeconfig=${kubeconfig ?? 'null'} cannot be used: ${messageOf(cause)}`,
      {},
      cause,
    )
  }
  if (config.getCurrentCluster() === null)
    throw errors.configInvalid(
      `kubernetes.kubeconfig=${kubeconfig ?? 'null'} names no cluster; set its current-context`,
    )
  return config
}

function connectCluster(config: KubeConfig, namespace: string): Cluster {
  const core = config.makeApiClient(CoreV1Api)
  const networking = config.makeApiClient(NetworkingV1Api)
  const versions = config.makeApiClient(VersionApi)
  const pods = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`
  const server = new URL(config.getCurrentCluster()?.server ?? '')
  return {
    address: `${server.hostname}:${server.port === '' ? (server.protocol === 'https:' ? 443 : 80) : server.port}`,
    getPod: (name) => call((options) => core.readNamespacedPod({ namespace, name }, options)).then(plain<Pod>),
    createPod: async (pod) => {
      await call((options) => core.createNamespacedPod({ namespace, body: pod as unknown as V1Pod }, options))
    },
    deletePod: async (name, { uid, graceSeconds }) => {
      const body = { gracePeriodSeconds: graceSeconds, ...(uid === undefined ? {} : { preconditions: { uid } }) }
      await call((options) => core.deleteNamespacedPod({ namespace, name, body }, options))
    },
    listPods: async (labelSelector) => {
      const list = await call((options) => core.listNamespacedPod({ namespace, labelSelector }, options))
      return { items: list.items.map(plain<Pod>), resourceVersion: list.metadata?.resourceVersion ?? '' }
    },
    watchPods: (selector, { resourceVersion, seconds, signal, onEvent }) => {
      const query = new URLSearchParams({
        labelSelector: selector,
        watch: 'true',
        allowWatchBookmarks: 'true',
        resourceVersion,
        timeoutSeconds: String(seconds),
      })
      return watchLines(config, `${pods}?${query}`, { signal, silenceMs: (seconds + 15) * 1_000, onEvent })
    },
    createConfigMap: (body) =>
      call((options) =>
        core.createNamespacedConfigMap({ namespace, body: body as unknown as V1ConfigMap }, options),
      ).then(metaOf),
    getConfigMap: (name) => call((options) => core.readNamespacedConfigMap({ namespace, name }, options)).then(metaOf),
    createNetworkPolicy: async (body) => {
      await call((options) =>
        networking.createNamespacedNetworkPolicy({ namespace, body: body as unknown as V1NetworkPolicy }, options),
      )
    },
    listNetworkPolicies: async (labelSelector) => {
      const list = await call((options) =>
        networking.listNamespacedNetworkPolicy({ namespace, labelSelector }, options),
      )
      return list.items.map(metaOf)
    },
    deleteNetworkPolicy: async (name, { uid }) => {
      const body = { preconditions: { uid } }
      await call((options) => networking.deleteNamespacedNetworkPolicy({ namespace, name, body }, options))
    },
    connect: (pod, argv, handlers) => {
      const query = new URLSearchParams([
        ['container', CONTAINER],
        ['stdin', 'true'],
        ['stdout', 'true'],
        ['stderr', 'true'],
        // A terminal would turn line ends into two bytes.
        ['tty', 'false'],
        ...argv.map((word): [string, string] => ['command', word]),
      ])
      return connectExec(config, `${pods}/${encodeURIComponent(pod)}/exec?${query}`, handlers)
    },
    version: async () => (await call((options) => versions.getCode(options))).gitVersion,
  }
}

/** client-node's objects hold Dates and class instances; ours are JSON. */
function plain<T>(value: unknown): T {
  return JSON.parse(JSON.stringify(value)) as T
}

function metaOf(object: { readonly metadata?: unknown }): Meta {
  return plain<Meta>(object.metadata)
}

/** One REST call with a time limit; what it throws becomes a `ClusterError`. */
async function call<T>(make: (options: ConfigurationOptions) => Promise<T>): Promise<T> {
  const signal = AbortSignal.timeout(CALL_TIMEOUT_MS)
  const limit = {
    pre: (context: RequestContext) => {
      context.setSignal(signal)
      return new Observable(Promise.resolve(context))
    },
    post: (context: ResponseContext) => new Observable(Promise.resolve(context)),
  }
  try {
    return await make({ middleware: [limit], middlewareMergeStrategy: 'append' })
  } catch (error) {
    throw clusterError(error)
  }
}

function clusterError(error: unknown): ClusterError {
  if (!(error instanceof ApiException))
    return new ClusterError(0, 'Unreachable', `the Kubernetes API server cannot be reached: ${messageOf(error)}`, {
      cause: error,
    })
  const status = parseStatus(error.body)
  const after = Number((error.headers as Record<string, string>)['retry-after'])
  return new ClusterError(error.code, status.reason ?? '', status.message ?? `HTTP ${error.code}`, {
    retryAfterMs: Number.isFinite(after) ? after * 1_000 : null,
  })
}

function parseStatus(body: unknown): { readonly reason?: string; readonly message?: string } {
  try {
    return ((typeof body === 'string' ? JSON.parse(body) : body) ?? {}) as { reason?: string; message?: string }
  } catch {
    return { message: String(body).slice(0, 500) }
  }
}

/** Follows a watch to its end. Throws when it breaks off, or stays silent for longer than the server lets it live. */
async function watchLines(
  config: KubeConfig,
  path: string,
  options: { readonly signal: AbortSignal; readonly silenceMs: number; onEvent(event: WatchEvent): void },
): Promise<void> {
  const response = await openStream(config, path, options)
  let rest = ''
  response.setEncoding('utf8')
  try {
    for await (const text of response as AsyncIterable<string>) {
      const lines = (rest + text).split('\n')
      rest = lines.pop() ?? ''
      if (rest.length > MAX_LINE_BYTES) throw new Error('a watch event is too long')
      for (const line of lines) if (line.trim() !== '') options.onEvent(JSON.parse(line) as WatchEvent)
    }
  } catch (error) {
    throw error instanceof ClusterError
      ? error
      : new ClusterError(0, 'WatchBroken', `a watch broke off: ${messageOf(error)}`, { cause: error })
  } finally {
    response.destroy()
  }
}

async function openStream(
  config: KubeConfig,
  path: string,
  { signal, silenceMs }: { readonly signal: AbortSignal; readonly silenceMs: number },
): Promise<IncomingMessage> {
  const url = new URL(`${config.getCurrentCluster()?.server ?? ''}${path}`)
  const options: RequestOptions = { headers: {}, signal }
  await config.applyToHTTPSOptions(options)
  return new Promise((resolve, reject) => {
    const broken = (cause: unknown) =>
      reject(
        new ClusterError(0, 'Unreachable', `the Kubernetes API server cannot be reached: ${messageOf(cause)}`, {
          cause,
        }),
      )
    const send = url.protocol === 'https:' ? httpsRequest : httpRequest
    const sent = send(url, options, (response) => {
      if (response.statusCode === 200) return resolve(response)
      const after = Number(response.headers['retry-after'])
      response.resume()
      reject(
        new ClusterError(
          response.statusCode ?? 0,
          response.statusCode === 410 ? 'Expired' : '',
          `a watch was refused with HTTP ${response.statusCode}`,
          {
            retryAfterMs: Number.isFinite(after) ? after * 1_000 : null,
          },
        ),
      )
    })
    sent.setTimeout(silenceMs, () => sent.destroy(new Error('nothing came for too long')))
    sent.once('error', broken)
    sent.end()
  })
}

/** client-node's own stream arguments default to this process's standard streams, which it would end. */
const noStreams = () => ({
  stdin: new PassThrough(),
  stdout: new Writable({ write: (_chunk, _encoding, done) => done() }),
  stderr: new Writable({ write: (_chunk, _encoding, done) => done() }),
})

/** The part of `ws`'s socket that is used; client-node gives its type without its declarations. */
interface Socket {
  readonly bufferedAmount: number
  on(event: 'error' | 'pong', listener: () => void): void
  once(event: 'close', listener: () => void): void
  send(data: Buffer, sent: (error?: Error) => void): void
  ping(): void
  pause(): void
  resume(): void
  close(): void
  terminate(): void
}

async function connectExec(config: KubeConfig, path: string, handlers: ExecHandlers): Promise<ExecSocket> {
  let status: ExecStatus | null = null
  const handler = new WebSocketHandler(config, undefined, noStreams())
  const opening = handler.connect(path, null, (channel, bytes) => {
    if (channel === WebSocketHandler.StdoutStream) handlers.onOutput('out', bytes)
    else if (channel === WebSocketHandler.StderrStream) handlers.onOutput('err', bytes)
    else if (channel === WebSocketHandler.StatusStream) status = statusOf(bytes)
    return true
  }) as unknown as Promise<Socket>
  const socket = await openInTime(opening)
  const stopPings = keepAlive(socket)
  // Without a listener an error after the opening would end the process; `close` follows it.
  socket.on('error', () => {})
  socket.once('close', () => {
    stopPings()
    handlers.onEnd(status)
  })
  return {
    send: (piece) => sendPieces(socket, piece),
    pause: () => socket.pause(),
    resume: () => socket.resume(),
    close: () => {
      socket.close()
      // The other side may be gone: the connection is not waited for.
      setTimeout(() => socket.terminate(), 1_000).unref()
    },
  }
}

async function openInTime(opening: Promise<Socket>): Promise<Socket> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      opening.then((socket) => socket.terminate()).catch(() => {})
      reject(new ClusterError(0, 'Unreachable', 'a connection into the pod did not open in time'))
    }, CONNECT_TIMEOUT_MS)
  })
  try {
    return await Promise.race([opening, late])
  } catch (error) {
    if (error instanceof ClusterError) throw error
    // The handshake's answer is in `ws`'s words only.
    const words = (error as { readonly message?: string }).message ?? messageOf(error)
    const status = Number(/Unexpected server response: (\d+)/.exec(words)?.[1] ?? 0)
    throw new ClusterError(status, '', `a connection into the pod was refused: ${words}`, { cause: error })
  } finally {
    clearTimeout(timer)
  }
}

/** Pings, so that nothing in between takes the connection for idle, and a dead peer is noticed. */
function keepAlive(socket: Socket): () => void {
  let missed = 0
  socket.on('pong', () => {
    missed = 0
  })
  const timer = setInterval(() => {
    if (missed >= MISSED_PONGS) return socket.terminate()
    missed++
    socket.ping()
  }, PING_MS)
  timer.unref()
  return () => clearInterval(timer)
}

/** `ws` queues without a bound: pieces go one after the other as they leave. */
async function sendPieces(socket: Socket, piece: Buffer): Promise<void> {
  for (let at = 0; at < piece.length; at += SEND_BYTES) {
    const part = Buffer.concat([Buffer.from([WebSocketHandler.StdinStream]), piece.subarray(at, at + SEND_BYTES)])
    const sent = new Promise<void>((resolve, reject) =>
      socket.send(part, (error) => (error ? reject(new ClusterError(0, 'Broken', messageOf(error))) : resolve())),
    )
    if (socket.bufferedAmount > MAX_UNSENT_BYTES || at + SEND_BYTES >= piece.length) await sent
    else sent.catch(() => {})
  }
}

function statusOf(bytes: Buffer): ExecStatus {
  const status = parseStatus(bytes.toString('utf8')) as {
    readonly status?: string
    readonly message?: string
    readonly reason?: string
    readonly details?: { readonly causes?: readonly { readonly reason?: string; readonly message?: string }[] }
  }
  if (status.status === 'Success') return { exitCode: 0 }
  const code = status.details?.causes?.find(({ reason }) => reason === 'ExitCode')?.message
  if (status.reason === 'NonZeroExitCode' && code !== undefined && /^\d+$/.test(code)) return { exitCode: Number(code) }
  return { failure: status.message ?? status.reason ?? 'no reason given' }
}
