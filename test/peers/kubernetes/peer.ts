/**
 * A stand-in for a small Kubernetes cluster: an API server with a store, discovery, watches, exec over WebSockets, rights and the restricted Pod
 * Security Standard, whose pods really run; and the faults of real ones, to order. It is no proof that a real cluster works.
 */
import type { ChildProcess } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import type { AddressInfo, Socket } from 'node:net'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { type WebSocket, WebSocketServer } from 'ws'
import { makeCertificate } from '../certificate.ts'
import { ApiFailure, type ApiObject, createObjectStore, fits, type StoreEvent } from './objects.ts'
import { type RunningPod, startPod } from './runtime.ts'
import { restrictedViolations } from './security.ts'

/** What goes wrong, until it is changed again. */
export interface Faults {
  /** Bytes that the server sends on an exec connection before the connection is cut; null: it is not cut. Asked for each connection. */
  cutAfter(): number | null
  /** The same, but nothing is closed: no byte goes either way any more. */
  hangAfter(): number | null
  /** Whether an exec that has ended closes without its status. */
  withoutStatus(): boolean
  /** Milliseconds before each piece of output, which then is cut small. */
  slowFramesMs: number
  /** An HTTP status for a request, instead of its answer. */
  refuse(request: { readonly method: string; readonly path: string; readonly exec: boolean }): 429 | 500 | 503 | null
  /** Milliseconds after which a watch's connection is reset. */
  watchResetMs: number | null
  /** Whether a watch is told at once that its version is too old. */
  expired(): boolean
  /** Whether a watch event is told twice. */
  duplicated(): boolean
  /** Whether a watch event comes after the next one, or a moment late. */
  reordered(): boolean
  /** Milliseconds before a request is looked at. */
  slowMs(): number
  /** Whether a request is done and its connection reset before the answer: asked again, it meets what it did. */
  unanswered(): boolean
  /** The newest exec protocol that is spoken. */
  protocol: 'v5.channel.k8s.io' | 'v4.channel.k8s.io'
}

/** One right: verbs on a resource (`pods/exec`), as a Role has them. */
export interface Rule {
  readonly apiGroups: readonly string[]
  readonly resources: readonly string[]
  readonly verbs: readonly string[]
}

export interface PeerOptions {
  /** Holds the pods' volumes. */
  readonly dir: string
  /** What the token may do; null: all. */
  readonly rules?: readonly Rule[] | null
  /** Refuses objects that are not of the published shape, with a sentence. */
  readonly validate?: (object: ApiObject) => string | null
  /** Pods only as records, with nothing that runs. */
  readonly inert?: boolean
}

export interface Peer {
  readonly url: string
  readonly faults: Faults
  /** Whether it speaks TLS. */
  readonly secure: boolean
  /** A kubeconfig of one context for it. */
  kubeconfig(namespace: string): Record<string, unknown>
  /** Requests by verb and resource, since the start. */
  readonly requests: Map<string, number>
  /** What the rights did not allow. */
  readonly denied: Set<string>
  /** Paths with queries of all requests, as an audit log has them. */
  readonly paths: string[]
  /** Open exec connections. */
  connections(): number
  pods(): ApiObject[]
  pod(name: string): ApiObject | null
  objects(resource: string): ApiObject[]
  /** The node's pressure ends a pod. */
  evict(name: string): Promise<void>
  /** The pod's node answers no more: its state is not known, and exec fails. */
  loseNode(name: string): void
  /** The pod's node stops answering, and only the pod's condition says so yet: open connections hang, new ones fail. */
  unreadyNode(name: string): void
  /** It answers again, and so do the pods on it. */
  readyNode(name: string): void
  /** The kernel ends the container for want of memory. */
  outOfMemory(name: string): Promise<void>
  /** Somebody deletes it. */
  deletePod(name: string): Promise<void>
  /** A waiting reason instead of a start, for images whose name holds the text. */
  readonly broken: Map<string, { readonly reason: string; readonly message: string }>
  close(): Promise<void>
}

const TOKEN = 'peer-token'
const NO_FAULTS: Faults = {
  cutAfter: () => null,
  hangAfter: () => null,
  withoutStatus: () => false,
  slowFramesMs: 0,
  refuse: () => null,
  watchResetMs: null,
  expired: () => false,
  duplicated: () => false,
  reordered: () => false,
  slowMs: () => 0,
  unanswered: () => false,
  protocol: 'v5.channel.k8s.io',
}
/** Resource, kind, group, whether it has a namespace. */
const RESOURCES = [
  ['pods', 'Pod', '', true],
  ['configmaps', 'ConfigMap', '', true],
  ['services', 'Service', '', true],
  ['serviceaccounts', 'ServiceAccount', '', true],
  ['persistentvolumeclaims', 'PersistentVolumeClaim', '', true],
  ['namespaces', 'Namespace', '', false],
  ['secrets', 'Secret', '', true],
  ['events', 'Event', '', true],
  ['deployments', 'Deployment', 'apps', true],
  ['networkpolicies', 'NetworkPolicy', 'networking.k8s.io', true],
  ['roles', 'Role', 'rbac.authorization.k8s.io', true],
  ['rolebindings', 'RoleBinding', 'rbac.authorization.k8s.io', true],
] as const

interface Target {
  readonly group: string
  readonly resource: string
  readonly namespace: string
  readonly name: string | null
  readonly sub: string | null
}

/** Starts one on a free port of this host. */
export async function startPeer(options: PeerOptions): Promise<Peer> {
  const peer = new KubernetesPeer(options)
  await peer.listen()
  return peer
}

class KubernetesPeer implements Peer {
  readonly faults: Faults = { ...NO_FAULTS }
  readonly requests = new Map<string, number>()
  readonly denied = new Set<string>()
  readonly paths: string[] = []
  readonly broken = new Map<string, { reason: string; message: string }>()
  readonly #options: PeerOptions
  readonly #store = createObjectStore()
  readonly #running = new Map<string, RunningPod>()
  readonly #lost = new Set<string>()
  readonly #execs = new Set<ChildProcess>()
  /** By pod: what makes an exec connection into it hang. */
  readonly #hangs = new Map<string, Set<() => void>>()
  readonly #sockets = new Set<Duplex>()
  readonly #starting = new Set<Promise<void>>()
  readonly #certificate = makeCertificate()
  readonly #server: Server
  #open = 0
  #closing = false

  constructor(options: PeerOptions) {
    this.#options = options
    const handle = (req: IncomingMessage, res: ServerResponse) => {
      this.#answer(req, res).catch((error: unknown) => sendFailure(res, error))
    }
    // Clients send no token over plain HTTP, but for client-node.
    this.#server = this.#certificate === null ? createServer(handle) : createSecureServer(this.#certificate, handle)
    this.#server.on('connection', (socket: Socket) => {
      this.#sockets.add(socket)
      socket.once('close', () => this.#sockets.delete(socket))
    })
    this.#server.on('upgrade', (req, socket, head) => this.#upgrade(req, socket, head))
  }

  async listen() {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve))
  }

  get url() {
    return `${this.#certificate === null ? 'http' : 'https'}://127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  get secure() {
    return this.#certificate !== null
  }

  kubeconfig(namespace: string) {
    const trust =
      this.#certificate === null
        ? { 'insecure-skip-tls-verify': true }
        : { 'certificate-authority-data': Buffer.from(this.#certificate.cert).toString('base64') }
    return {
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': 'peer',
      clusters: [{ name: 'peer', cluster: { server: this.url, ...trust } }],
      users: [{ name: 'hangar', user: { token: TOKEN } }],
      contexts: [{ name: 'peer', context: { cluster: 'peer', user: 'hangar', namespace } }],
    }
  }

  connections() {
    return this.#open
  }

  pods() {
    return this.#store.list('pods', '')
  }

  pod(name: string) {
    return this.pods().find(({ metadata }) => metadata.name === name) ?? null
  }

  objects(resource: string) {
    return this.#store.list(resource, '')
  }

  async evict(name: string) {
    await this.#end(name, {
      reason: 'Evicted',
      message: 'The node was low on resource: memory.',
      exitCode: 137,
      why: 'Error',
    })
  }

  async outOfMemory(name: string) {
    await this.#end(name, { exitCode: 137, why: 'OOMKilled' })
  }

  loseNode(name: string) {
    this.#lost.add(name)
    for (const hang of this.#hangs.get(name) ?? []) hang()
    this.#changePod(name, (status) => ({
      ...status,
      phase: 'Unknown',
      reason: 'NodeLost',
      message: 'Node node-1 which was running pod is unresponsive',
    }))
  }

  unreadyNode(name: string) {
    this.#lost.add(name)
    for (const hang of this.#hangs.get(name) ?? []) hang()
    this.#changePod(name, (status) => ({ ...status, conditions: [{ type: 'Ready', status: 'False' }] }))
  }

  readyNode(name: string) {
    this.#lost.delete(name)
    this.#changePod(name, (status) => ({ ...status, conditions: [{ type: 'Ready', status: 'True' }] }))
  }

  async deletePod(name: string) {
    const pod = this.pod(name)
    if (pod !== null) await this.#deletePod(pod.metadata.namespace ?? '', name, 0)
  }

  async close() {
    this.#closing = true
    for (const child of this.#execs) child.kill('SIGKILL')
    await Promise.allSettled(this.#starting)
    await Promise.all([...this.#running.values()].map((pod) => pod.remove()))
    for (const socket of this.#sockets) socket.destroy()
    await new Promise((resolve) => this.#server.close(resolve))
  }

  // --- requests ---------------------------------------------------------------------------------------------------------

  async #answer(req: IncomingMessage, res: ServerResponse) {
    const url = new URL(req.url ?? '/', this.url)
    const method = req.method ?? 'GET'
    this.paths.push(req.url ?? '')
    if (req.headers.authorization !== `Bearer ${TOKEN}`) throw new ApiFailure(401, 'Unauthorized', 'Unauthorized')
    const slowMs = this.faults.slowMs()
    if (slowMs > 0) await sleep(slowMs)
    const fault = this.faults.refuse({ method, path: url.pathname, exec: false })
    if (fault !== null) return sendFault(res, fault)
    const unanswered = this.faults.unanswered()
    const known = discovery(url.pathname)
    if (known !== null) return sendJson(res, 200, known)
    const target = parsePath(url.pathname)
    const verb = verbOf(method, target, url)
    this.#allow(verb, target)
    const { resource, namespace, name } = target
    const send = unanswered ? () => void req.socket.destroy() : sendJson
    switch (verb) {
      case 'watch':
        return this.#watch(req, res, target, url)
      case 'list':
        return send(res, 200, this.#list(target, url))
      case 'get':
        if (target.sub === 'log') return void res.end(this.#running.get(name ?? '')?.logs() ?? '')
        return send(res, 200, this.#store.get(resource, namespace, name ?? ''))
      case 'create':
        return send(res, 201, this.#create(target, parseBody(await readBody(req))))
      case 'patch': {
        const patch = parseBody(await readBody(req))
        return send(
          res,
          200,
          this.#store.change(resource, namespace, name ?? '', (object) => merge(object, patch) as ApiObject),
        )
      }
      case 'update': {
        const body = parseBody(await readBody(req))
        return send(
          res,
          200,
          this.#store.change(resource, namespace, name ?? '', (object) => {
            const expected = body.metadata.resourceVersion
            if (expected !== undefined && expected !== object.metadata.resourceVersion)
              throw new ApiFailure(409, 'Conflict', 'the object has been modified')
            return { ...body, metadata: { ...object.metadata, ...body.metadata } }
          }),
        )
      }
      case 'delete':
        return send(res, 200, await this.#delete(target, url, await readBody(req)))
      default:
        throw new ApiFailure(405, 'MethodNotAllowed', `${method} is not known here`)
    }
  }

  #allow(verb: string, target: Target) {
    const what = target.sub === null ? target.resource : `${target.resource}/${target.sub}`
    const key = `${verb} ${what}`
    this.requests.set(key, (this.requests.get(key) ?? 0) + 1)
    const { rules } = this.#options
    if (rules === null || rules === undefined) return
    const allowed = rules.some(
      (rule) => rule.apiGroups.includes(target.group) && rule.resources.includes(what) && rule.verbs.includes(verb),
    )
    if (!allowed) this.denied.add(key)
    if (!allowed)
      throw new ApiFailure(
        403,
        'Forbidden',
        `User "hangar" cannot ${verb} resource "${what}" in API group "${target.group}"`,
      )
  }

  #list({ resource, namespace, group }: Target, url: URL) {
    const [, kind = ''] = RESOURCES.find(([name]) => name === resource) ?? []
    const field = /metadata\.name=([^,]+)/.exec(url.searchParams.get('fieldSelector') ?? '')?.[1]
    return {
      kind: `${kind}List`,
      apiVersion: group === '' ? 'v1' : `${group}/v1`,
      metadata: { resourceVersion: String(this.#store.version()) },
      items: this.#store
        .list(resource, namespace)
        .filter(({ metadata }) => fits(url.searchParams.get('labelSelector'), metadata.labels))
        .filter(({ metadata }) => field === undefined || metadata.name === field),
    }
  }

  #watch(req: IncomingMessage, res: ServerResponse, { resource, namespace }: Target, url: URL) {
    const selector = url.searchParams.get('labelSelector')
    const field = /metadata\.name=([^,]+)/.exec(url.searchParams.get('fieldSelector') ?? '')?.[1]
    const from = Number(url.searchParams.get('resourceVersion') ?? this.#store.version())
    const missed = this.faults.expired() ? null : this.#store.since(from)
    res.writeHead(200, { 'content-type': 'application/json' })
    const line = (type: string, object: unknown) => res.write(`${JSON.stringify({ type, object })}\n`)
    let held: StoreEvent | null = null
    const tell = (event: StoreEvent) => {
      if (held === null && this.faults.reordered()) {
        held = event
        setTimeout(release, 200)
        return
      }
      line(event.type, event.object)
      if (this.faults.duplicated()) line(event.type, event.object)
      release()
    }
    const release = () => {
      if (held !== null) line(held.type, held.object)
      held = null
    }
    if (missed === null) {
      line('ERROR', { kind: 'Status', code: 410, reason: 'Expired', message: `too old resource version: ${from}` })
      return void res.end()
    }
    const take = (event: StoreEvent) => {
      const { metadata } = event.object
      const wanted = event.resource === resource && (namespace === '' || metadata.namespace === namespace)
      if (wanted && fits(selector, metadata.labels) && (field === undefined || metadata.name === field)) tell(event)
    }
    // Who asked may have gone while the answer was slow, and no `close` comes again.
    if (res.closed) return
    res.flushHeaders()
    for (const event of missed) take(event)
    const stop = this.#store.onEvent(take)
    const seconds = Number(url.searchParams.get('timeoutSeconds') ?? 300)
    const end = setTimeout(() => res.end(), seconds * 1_000)
    const bookmark = setInterval(
      () => line('BOOKMARK', { kind: 'Pod', metadata: { resourceVersion: String(this.#store.version()) } }),
      5_000,
    )
    const reset =
      this.faults.watchResetMs === null ? undefined : setTimeout(() => req.socket.destroy(), this.faults.watchResetMs)
    res.once('close', () => {
      stop()
      clearTimeout(end)
      clearTimeout(reset)
      clearInterval(bookmark)
    })
  }

  #create({ resource, namespace }: Target, object: ApiObject): ApiObject {
    const wrong = this.#options.validate?.(object) ?? null
    if (wrong !== null) throw new ApiFailure(400, 'BadRequest', `strict decoding error: ${wrong}`)
    if (resource !== 'pods') return this.#store.create(resource, namespace, object)
    const violations = restrictedViolations(object)
    if (violations.length > 0)
      throw new ApiFailure(
        403,
        'Forbidden',
        `pods "${object.metadata.name}" is forbidden: violates PodSecurity "restricted:latest": ${violations.join('; ')}`,
      )
    const pod = this.#store.create(resource, namespace, { ...object, status: { phase: 'Pending' } })
    const starting = this.#start(pod).finally(() => this.#starting.delete(starting))
    this.#starting.add(starting)
    return pod
  }

  async #delete({ resource, namespace, name }: Target, url: URL, body: Buffer): Promise<ApiObject> {
    const options =
      body.length === 0
        ? {}
        : (JSON.parse(body.toString()) as { gracePeriodSeconds?: number; preconditions?: { uid?: string } })
    const found = this.#store.get(resource, namespace, name ?? '')
    const uid = options.preconditions?.uid
    if (uid !== undefined && uid !== found.metadata.uid)
      throw new ApiFailure(
        409,
        'Conflict',
        `the UID in the precondition (${uid}) does not match the UID in record (${found.metadata.uid})`,
      )
    const grace =
      options.gracePeriodSeconds ??
      url.searchParams.get('gracePeriodSeconds') ??
      found.spec?.terminationGracePeriodSeconds ??
      30
    if (resource === 'pods') return this.#deletePod(namespace, name ?? '', Number(grace))
    const removed = this.#store.remove(resource, namespace, name ?? '')
    for (const owned of this.#store.ownedBy(found.metadata.uid ?? '')) {
      const { name: ownedName, namespace: in_ = '' } = owned.object.metadata
      if (owned.resource === 'pods') await this.#deletePod(in_, ownedName, 0)
      else this.#store.remove(owned.resource, in_, ownedName)
    }
    return removed
  }

  // --- pods -------------------------------------------------------------------------------------------------------------

  async #start(pod: ApiObject) {
    const { name } = pod.metadata
    const spec = pod.spec as { containers: { name: string; image: string; command: string[] }[] }
    const [container] = spec.containers
    if (container === undefined) return
    await sleep(20)
    const scheduled = { type: 'PodScheduled', status: 'True' }
    const waiting = [...this.broken].find(([text]) => container.image.includes(text))?.[1]
    const statuses = (state: unknown) => [
      { name: container.name, image: container.image, ready: true, restartCount: 0, state },
    ]
    if (waiting !== undefined)
      return this.#changePod(name, () => ({
        phase: 'Pending',
        conditions: [scheduled],
        containerStatuses: statuses({ waiting }),
      }))
    if (this.#options.inert !== true) {
      const dir = join(this.#options.dir, pod.metadata.uid ?? name)
      mkdirSync(dir, { recursive: true })
      const running = await startPod(name, container, dir)
      if (this.#closing || this.pod(name)?.metadata.uid !== pod.metadata.uid) return running.remove()
      this.#running.set(name, running)
      void running.ended.then(({ exitCode }) =>
        this.#end(name, { exitCode, why: exitCode === 0 ? 'Completed' : 'Error', uid: pod.metadata.uid }),
      )
    }
    this.#store.change('pods', pod.metadata.namespace ?? '', name, (object) => ({
      ...object,
      spec: { ...object.spec, nodeName: 'node-1' },
    }))
    this.#changePod(name, () => ({
      phase: 'Running',
      conditions: [scheduled, { type: 'Ready', status: 'True' }],
      startTime: new Date().toISOString(),
      containerStatuses: statuses({ running: { startedAt: new Date().toISOString() } }),
    }))
  }

  #changePod(name: string, change: (status: Record<string, unknown>) => Record<string, unknown>) {
    const pod = this.pod(name)
    if (pod === null) return
    this.#store.change('pods', pod.metadata.namespace ?? '', name, (object) => ({
      ...object,
      status: change((object.status ?? {}) as Record<string, unknown>),
    }))
  }

  async #end(
    name: string,
    end: { reason?: string; message?: string; exitCode: number; why: string; uid?: string | undefined },
  ) {
    const pod = this.pod(name)
    if (pod === null || this.#closing || (end.uid !== undefined && end.uid !== pod.metadata.uid)) return
    const running = this.#running.get(name)
    this.#running.delete(name)
    const [container] = pod.spec.containers as { name: string; image: string }[]
    if (['Failed', 'Succeeded'].includes(pod.status?.phase)) return
    this.#changePod(name, (status) => ({
      ...status,
      phase: end.exitCode === 0 ? 'Succeeded' : 'Failed',
      ...(end.reason === undefined ? {} : { reason: end.reason, message: end.message }),
      containerStatuses: [
        {
          name: container?.name,
          image: container?.image,
          ready: false,
          restartCount: 0,
          state: { terminated: { exitCode: end.exitCode, reason: end.why, finishedAt: new Date().toISOString() } },
        },
      ],
    }))
    await running?.remove()
  }

  async #deletePod(namespace: string, name: string, graceSeconds: number): Promise<ApiObject> {
    const marked = this.#store.change('pods', namespace, name, (object) => ({
      ...object,
      metadata: {
        ...object.metadata,
        deletionTimestamp: object.metadata.deletionTimestamp ?? new Date().toISOString(),
        deletionGracePeriodSeconds: graceSeconds,
      },
    }))
    // A node that does not answer confirms nothing; only a grace of zero removes the record all the same.
    if (this.#lost.has(name) && graceSeconds > 0) return marked
    const finish = async () => {
      const running = this.#running.get(name)
      this.#running.delete(name)
      if (running !== undefined) {
        if (graceSeconds > 0) {
          running.signal('SIGTERM')
          await Promise.race([running.ended, sleep(graceSeconds * 1_000)])
        }
        await running.remove()
      }
      if (this.pod(name)?.metadata.uid === marked.metadata.uid) this.#store.remove('pods', namespace, name)
      this.#lost.delete(name)
    }
    if (graceSeconds === 0) await finish()
    else void finish()
    return marked
  }

  // --- exec -------------------------------------------------------------------------------------------------------------

  #upgrade(req: IncomingMessage, socket: Duplex, head: Buffer) {
    const url = new URL(req.url ?? '/', this.url)
    this.paths.push(req.url ?? '')
    const refuse = (code: number, reason: string, message: string) => {
      const body = JSON.stringify({ kind: 'Status', status: 'Failure', code, reason, message })
      socket.end(
        `HTTP/1.1 ${code} ${reason}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
      )
    }
    socket.on('error', () => {})
    try {
      if (req.headers.authorization !== `Bearer ${TOKEN}`) throw new ApiFailure(401, 'Unauthorized', 'Unauthorized')
      const target = parsePath(url.pathname)
      if (target.resource !== 'pods' || target.sub !== 'exec') throw new ApiFailure(404, 'NotFound', 'no such upgrade')
      // Over WebSockets an exec is a GET, and API servers of late ask for `create` as well.
      this.#allow('get', target)
      this.#allow('create', target)
      const fault = this.faults.refuse({ method: 'GET', path: url.pathname, exec: true })
      if (fault !== null) throw new ApiFailure(fault, 'InternalError', 'a fault to order')
      const name = target.name ?? ''
      this.#store.get('pods', target.namespace, name)
      if (this.#lost.has(name))
        throw new ApiFailure(500, 'InternalError', 'error dialing backend: dial tcp: i/o timeout')
      const pod = this.#running.get(name)
      if (pod === undefined) throw new ApiFailure(500, 'InternalError', 'container not found ("agent")')
      const server = new WebSocketServer({
        noServer: true,
        handleProtocols: (offered) => {
          if (this.faults.protocol === 'v5.channel.k8s.io' && offered.has(this.faults.protocol))
            return this.faults.protocol
          return offered.has('v4.channel.k8s.io') ? 'v4.channel.k8s.io' : false
        },
      })
      server.handleUpgrade(req, socket, head, (ws) =>
        this.#exec(ws, socket, pod.exec(url.searchParams.getAll('command')), { url, name }),
      )
    } catch (error) {
      const { code, reason, message } =
        error instanceof ApiFailure ? error : new ApiFailure(500, 'InternalError', String(error))
      refuse(code, reason, message)
    }
  }

  #exec(ws: WebSocket, socket: Duplex, child: ChildProcess, { url, name }: { url: URL; name: string }) {
    this.#open++
    this.#execs.add(child)
    const cutAfter = this.faults.cutAfter()
    const hangAfter = this.faults.hangAfter()
    const hasStdin = url.searchParams.get('stdin') === 'true'
    let sent = 0
    let hung = false
    const hang = () => {
      hung = true
      ws.pause()
    }
    const hangs = this.#hangs.get(name) ?? new Set()
    this.#hangs.set(name, hangs.add(hang))
    const frame = (channel: number, bytes: Uint8Array) => {
      if (hung) return
      sent += bytes.length
      if (hangAfter !== null && sent > hangAfter) return hang()
      if (cutAfter !== null && sent > cutAfter) return void socket.destroy()
      ws.send(Buffer.concat([Buffer.from([channel]), bytes]), () => {})
    }
    let queue = Promise.resolve()
    const output = (channel: number, chunk: Buffer) => {
      const { slowFramesMs } = this.faults
      if (slowFramesMs === 0) return frame(channel, chunk)
      queue = queue.then(async () => {
        for (let at = 0; at < chunk.length; at += 1_500) {
          await sleep(slowFramesMs)
          frame(channel, chunk.subarray(at, at + 1_500))
        }
      })
    }
    child.stdout?.on('data', (chunk: Buffer) => output(1, chunk))
    child.stderr?.on('data', (chunk: Buffer) => output(2, chunk))
    child.stdin?.on('error', () => {})
    child.on('error', () => {})
    if (!hasStdin) child.stdin?.end()
    ws.on('message', (data: Buffer) => {
      if (hung) return
      if (data[0] === 0) child.stdin?.write(data.subarray(1))
      // The half-close of v5.
      if (data[0] === 255 && data[1] === 0 && ws.protocol === 'v5.channel.k8s.io') child.stdin?.end()
    })
    ws.on('error', () => {})
    // The command goes on when its client goes; only its input ends.
    ws.on('close', () => {
      this.#open--
      hangs.delete(hang)
      child.stdin?.end()
    })
    child.once('close', (code) => {
      this.#execs.delete(child)
      void queue.then(() => {
        if (!this.faults.withoutStatus()) frame(3, Buffer.from(JSON.stringify(exitStatus(code ?? 137))))
        if (!hung) ws.close(1000)
      })
    })
  }
}

function exitStatus(code: number) {
  if (code === 0) return { metadata: {}, status: 'Success' }
  return {
    metadata: {},
    status: 'Failure',
    message: `command terminated with exit code ${code}`,
    reason: 'NonZeroExitCode',
    details: { causes: [{ reason: 'ExitCode', message: String(code) }] },
  }
}

function parsePath(path: string): Target {
  const parts = path
    .split('/')
    .filter((part) => part !== '')
    .map(decodeURIComponent)
  const [group, rest] = parts[0] === 'api' ? ['', parts.slice(2)] : [parts[1] ?? '', parts.slice(3)]
  const namespaced = rest[0] === 'namespaces' && rest.length > 2
  const [resource = '', name = null, sub = null] = namespaced ? rest.slice(2) : rest
  if (!RESOURCES.some(([known, , of]) => known === resource && of === group))
    throw new ApiFailure(404, 'NotFound', 'the server could not find the requested resource')
  return { group, resource, namespace: namespaced ? (rest[1] ?? '') : '', name, sub }
}

function verbOf(method: string, { name, sub }: Target, url: URL): string {
  if (method === 'GET' && sub !== null) return 'get'
  if (method === 'GET' && ['true', '1'].includes(url.searchParams.get('watch') ?? '')) return 'watch'
  if (method === 'GET') return name === null ? 'list' : 'get'
  return { POST: 'create', PUT: 'update', PATCH: 'patch', DELETE: 'delete' }[method] ?? method
}

function discovery(path: string): unknown {
  if (path === '/version') return { major: '1', minor: '35', gitVersion: 'v1.35.0-peer', platform: 'linux/amd64' }
  if (path === '/api') return { kind: 'APIVersions', versions: ['v1'] }
  const groups = [...new Set(RESOURCES.map(([, , group]) => group))].filter((group) => group !== '')
  if (path === '/apis')
    return {
      kind: 'APIGroupList',
      apiVersion: 'v1',
      groups: groups.map((name) => {
        const version = { groupVersion: `${name}/v1`, version: 'v1' }
        return { name, versions: [version], preferredVersion: version }
      }),
    }
  const group = path === '/api/v1' ? '' : /^\/apis\/([^/]+)\/v1$/.exec(path)?.[1]
  if (group === undefined) return null
  const verbs = ['create', 'delete', 'get', 'list', 'patch', 'update', 'watch']
  return {
    kind: 'APIResourceList',
    apiVersion: 'v1',
    groupVersion: group === '' ? 'v1' : `${group}/v1`,
    resources: RESOURCES.filter(([, , of]) => of === group).map(([name, kind, , namespaced]) => ({
      name,
      singularName: kind.toLowerCase(),
      namespaced,
      kind,
      verbs,
    })),
  }
}

/** A merge patch of RFC 7396. */
function merge(target: unknown, patch: unknown): unknown {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch
  const result: Record<string, unknown> = { ...(typeof target === 'object' && target !== null ? target : {}) }
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key]
    else result[key] = merge(result[key], value)
  }
  return result
}

function parseBody(bytes: Buffer): ApiObject {
  try {
    return JSON.parse(bytes.toString()) as ApiObject
  } catch {
    throw new ApiFailure(400, 'BadRequest', 'the body is not JSON')
  }
}

async function readBody(req: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of req as AsyncIterable<Buffer>) chunks.push(chunk)
  return Buffer.concat(chunks)
}

function sendJson(res: ServerResponse, status: number, body: unknown): void {
  res.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

function sendFault(res: ServerResponse, code: number): void {
  const body = {
    kind: 'Status',
    apiVersion: 'v1',
    status: 'Failure',
    code,
    reason: code === 429 ? 'TooManyRequests' : 'InternalError',
    message: 'a fault to order',
  }
  res
    .writeHead(code, { 'content-type': 'application/json', ...(code === 429 ? { 'retry-after': '1' } : {}) })
    .end(JSON.stringify(body))
}

function sendFailure(res: ServerResponse, error: unknown): void {
  const { code, reason, message } =
    error instanceof ApiFailure ? error : new ApiFailure(500, 'InternalError', String(error))
  if (res.headersSent) return void res.destroy()
  sendJson(res, code, { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Failure', code, reason, message })
}
