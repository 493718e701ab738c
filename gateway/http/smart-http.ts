/** Smart HTTP: from a request under `/git/` to git's answer. Authenticated, then parsed, then served; one function a step. */
import { setMaxListeners } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { errors, HangarError, messageOf } from '../../domain/errors.ts'
import { type Caller, callerAt, type GrantCaller, type TokenCaller } from '../../domain/grant.ts'
import type { Limits } from '../../domain/limits.ts'
import { type Metrics, NO_METRICS } from '../../domain/metrics.ts'
import type { RepoSlug } from '../../domain/names.ts'
import type { Clock, Log } from '../../domain/ports.ts'
import { createSecretSearch, type SecretSearch } from '../../domain/secret-search.ts'
import type { Repositories } from '../git/repositories.ts'
import { createGitSlots } from '../git-slots.ts'
import { createPushes, failAll, type Push, type PushOutcome, type PushSettings, resultsOf } from '../push.ts'
import { createReachable } from '../reachable.ts'
import type { EventLog } from '../state/event-log.ts'
import { createViews } from '../view.ts'
import { PktReader } from '../wire/pkt-line.ts'
import { pushReport, readPushHead } from '../wire/receive-pack.ts'
import { readUploadRequest, V2_ADVERTISEMENT } from '../wire/upload-pack.ts'
import { drain, sendError, sendGit, startGitAnswer } from './answer.ts'
import { authenticateRequest } from './authenticate.ts'
import { createExchanges, type Exchange } from './exchange.ts'
import { createFetches } from './fetches.ts'
import { type GitRequest, parseGitRequest, readBody } from './git-request.ts'
import { HangarGit } from './hangar-git.ts'

export interface SmartHttpDeps {
  readonly repositories: Repositories
  readonly authenticate: (secret: string) => TokenCaller | GrantCaller | null
  /** Whether the caller is still valid; asked again right before refs move. */
  readonly isLive: (caller: Caller) => boolean
  /** Whether the repo follows an upstream, so that people push there. Default: none does. */
  readonly mirrored?: (slug: RepoSlug) => boolean
  /** What is asked of pushes beyond their names. Default: nothing. */
  readonly settings?: PushSettings
  /** Default: hangar's own secrets, and by shape. */
  readonly search?: SecretSearch
  /** Told of each push once it is decided, before its report goes out. */
  readonly decided?: (push: Push, outcome: PushOutcome) => void
  /** Brings a repo that follows an upstream up to date before a fetch, in bounded time. */
  readonly freshen?: (slug: RepoSlug) => Promise<void>
  readonly events: Pick<EventLog, 'append'>
  readonly limits: Limits
  readonly log: Log
  readonly clock: Clock
  readonly metrics?: Metrics
  /** How long a body may send nothing. Default a minute. */
  readonly bodyIdleMs?: number
}

export interface SmartHttp {
  /** Serves every path under `/git/`. */
  handle(req: IncomingMessage, res: ServerResponse): void
  /** For the server's `checkContinue`: a client that asks first is told to go on only once it is known. */
  checkContinue(req: IncomingMessage, res: ServerResponse): void
  /** Ends what runs, and waits for it. */
  close(): Promise<void>
}

/** While a push is looked at the client hears from us, as git's own receive-pack does it. */
const KEEP_ALIVE_MS = 5_000
/** Of a request that was refused outright this much is still read, so that the answer reaches a client that writes first. */
const REFUSED_BYTES = 1_048_576
const REFUSED_MS = 10_000
/** A push whose refs were refused may send its pack for so long. */
const DRAINED_MS = 10 * 60_000

export function createSmartHttp(deps: SmartHttpDeps): SmartHttp {
  const { limits, log } = deps
  const bodyIdleMs = deps.bodyIdleMs ?? 60_000
  const metrics = deps.metrics ?? NO_METRICS
  const views = createViews((cache, result) => metrics.count('hangar_cache_requests_total', { cache, result }))
  const reachable = createReachable()
  const slots = createGitSlots({
    most: limits.maxGitProcesses,
    mostWaiting: limits.maxGitProcesses * 8,
    waitMs: 30_000,
  })
  metrics.gauge('hangar_git_slots', () =>
    Object.entries(slots.load()).map(([state, value]) => ({ labels: { state }, value })),
  )
  const exchanges = createExchanges({ slots, metrics, log, maxMs: limits.maxTransferMs })
  const fetches = createFetches({ views, reachable, exchanges, limits, log, metrics })
  const pushes = createPushes({
    ...deps,
    reachable,
    mirrored: deps.mirrored ?? (() => false),
    settings: deps.settings ?? { fastForwardOnly: [], branchOf: async () => null },
    search: deps.search ?? createSecretSearch([]),
  })
  const closing = new AbortController()
  // Each request listens to it.
  setMaxListeners(0, closing.signal)
  const running = new Set<Promise<void>>()
  const asksFirst = new WeakSet<IncomingMessage>()
  /** Bytes of a connection that metrics have already. */
  const counted = new WeakMap<object, { readonly read: number; readonly written: number }>()
  const git = new HangarGit({ repositories: deps.repositories, serve: start })

  function start(req: IncomingMessage, res: ServerResponse): void {
    const gone = new AbortController()
    const onClosing = () => gone.abort()
    closing.signal.addEventListener('abort', onClosing)
    res.once('close', () => {
      closing.signal.removeEventListener('abort', onClosing)
      if (!res.writableFinished) gone.abort()
    })
    res.on('error', () => {})
    const work = serve(req, res, gone.signal)
      .catch((error: unknown) => refuse(req, res, error))
      .finally(() => running.delete(work))
    running.add(work)
  }

  async function serve(req: IncomingMessage, res: ServerResponse, signal: AbortSignal): Promise<void> {
    const authenticated = authenticateRequest(req, deps.authenticate)
    const request = parseGitRequest(req)
    const caller = callerAt(authenticated, request.slug)
    const repo = caller === null ? null : await git.open(request.slug)
    if (caller === null || repo === null) throw errors.notFound('no such repository or path')
    if (request.kind === 'advertisement' && request.service === 'upload-pack') await deps.freshen?.(request.slug)
    if (asksFirst.has(req)) res.writeContinue()
    measure(req, res, request)
    const exchange: Exchange = { req, res, request, caller, repo, signal }
    if (request.kind === 'advertisement') await advertise(exchange)
    else if (request.service === 'upload-pack') await uploadPack(exchange)
    else await receivePack(exchange)
  }

  /** Counts the request when its answer has ended; bytes are those of its connection since the request before, so that nothing is counted on their way. */
  function measure({ socket }: IncomingMessage, res: ServerResponse, { service, kind, protocol }: GitRequest): void {
    const begun = performance.now()
    metrics.count('hangar_git_requests_total', { service, kind, protocol: String(protocol) })
    res.once('close', () => {
      metrics.observe('hangar_git_seconds', { service, kind }, (performance.now() - begun) / 1_000)
      const before = counted.get(socket) ?? { read: 0, written: 0 }
      const now = { read: socket.bytesRead, written: socket.bytesWritten }
      counted.set(socket, now)
      metrics.count('hangar_git_received_bytes_total', { service }, Math.max(0, now.read - before.read))
      metrics.count('hangar_git_sent_bytes_total', { service }, Math.max(0, now.written - before.written))
    })
  }

  async function advertise({ res, request, repo, caller }: Exchange): Promise<void> {
    const { service, protocol } = request
    const body =
      protocol === 2 ? V2_ADVERTISEMENT : await (await views.of(repo, caller)).advertisement(service, protocol)
    sendGit(res, service, 'advertisement', body)
  }

  async function uploadPack(exchange: Exchange): Promise<void> {
    const { res, request, repo, caller } = exchange
    const maxBytes = limits.maxFetchRequestBytes
    const upload = await withBody(exchange, maxBytes, (body) =>
      readUploadRequest(new PktReader(body, maxBytes), request.protocol),
    )
    drain(exchange.req, { maxBytes: REFUSED_BYTES, maxMs: REFUSED_MS })
    if (upload.kind === 'nothing') return sendGit(res, 'upload-pack', 'result', Buffer.alloc(0))
    if (upload.kind === 'fetch') return fetches.serve(exchange, upload)
    sendGit(res, 'upload-pack', 'result', await (await views.of(repo, caller)).lsRefs(upload.command))
  }

  /** The body is given back when the work is done, so that what is left of it can be drained. */
  async function withBody<T>(
    { req, request }: Exchange,
    maxBytes: number,
    work: (body: AsyncIterator<Buffer>) => Promise<T>,
  ): Promise<T> {
    const body = readBody(req, { gzip: request.gzip, maxBytes, idleMs: bodyIdleMs, wholeMs: limits.maxTransferMs })
    try {
      return await work(body)
    } finally {
      // Not awaited: it settles only when the chunk that is waited for has come.
      body.return(undefined).catch(() => {})
    }
  }

  async function receivePack(exchange: Exchange): Promise<void> {
    const maxBytes = limits.maxCommandBytes + limits.maxPushBytes
    await withBody(exchange, maxBytes, (body) => takePush(exchange, new PktReader(body, limits.maxCommandBytes)))
    // A client that writes before it reads must be able to finish, or a reset would hide its answer.
    drain(exchange.req, { maxBytes: limits.maxPushBytes, maxMs: DRAINED_MS })
  }

  async function takePush(exchange: Exchange, reader: PktReader): Promise<void> {
    const { res, request, repo, caller } = exchange
    const head = await readPushHead(reader, limits)
    if (head === null) return sendGit(res, 'receive-pack', 'result', Buffer.alloc(0))
    const push: Push = { slug: request.slug, repo, caller, head, view: await views.of(repo, caller) }
    const verdicts = pushes.decide(push)
    // Nothing to take: the answer goes out before the pack has come in.
    if (verdicts.every((verdict) => !verdict.allowed)) return report(res, push, { unpack: 'ok', verdicts })
    const release = await exchanges.takeSlot(exchange)
    const stop = keepAlive(res, push)
    try {
      await exchanges.inTime(exchange, async (signal) =>
        report(res, push, await pushes.receive(push, verdicts, reader.rest(), signal)),
      )
    } catch (error) {
      if (!res.headersSent || exchange.signal.aborted) throw error
      log.error({ repo: push.slug, error: messageOf(error) }, 'a push failed')
      report(res, push, failAll(verdicts, 'the server failed; its log says why'))
    } finally {
      stop()
      release()
    }
  }

  /** The report, or what a client that takes no report can be told. */
  function report(res: ServerResponse, push: Push, outcome: PushOutcome): void {
    for (const verdict of outcome.verdicts) {
      const [decision, rule] = verdict.allowed ? ['accepted', ''] : ['refused', verdict.rule]
      metrics.count('hangar_push_refs_total', { decision, rule })
    }
    deps.decided?.(push, outcome)
    const { reportStatus, sideband } = push.head.capabilities
    const results = resultsOf(outcome.verdicts)
    if (reportStatus) {
      const remarks = (outcome.faults ?? []).map(({ oid, why }) => `hangar: keep out ${oid} ${why}`)
      const body = pushReport(outcome.unpack, results, sideband, remarks)
      if (res.headersSent) res.end(body)
      else sendGit(res, 'receive-pack', 'result', body)
      return
    }
    const refused = results.find(({ reason }) => reason !== null)
    if (refused === undefined) sendGit(res, 'receive-pack', 'result', Buffer.alloc(0))
    else sendError(res, errors.forbidden(`${refused.ref}: ${refused.reason}`))
  }

  function keepAlive(res: ServerResponse, push: Push): () => void {
    const { reportStatus, sideband } = push.head.capabilities
    if (sideband === null || !reportStatus) return () => {}
    const timer = setInterval(() => {
      if (!res.headersSent) startGitAnswer(res, 'receive-pack', 'result')
      res.write(KEEP_ALIVE_PKT)
    }, KEEP_ALIVE_MS)
    return () => clearInterval(timer)
  }

  function refuse(req: IncomingMessage, res: ServerResponse, error: unknown): void {
    if (res.destroyed || res.writableEnded) return
    const known = error instanceof HangarError ? error : errors.internal('a fault of the server; its log says which')
    if (known.status >= 500 && known.code !== 'busy')
      log.error({ error: messageOf(error), reason: known.details.reason }, 'a git request failed')
    sendError(res, known)
    drain(req, { maxBytes: REFUSED_BYTES, maxMs: REFUSED_MS })
  }

  return {
    handle: (req, res) => git.handle(req, res),
    checkContinue(req, res) {
      asksFirst.add(req)
      git.handle(req, res)
    },
    async close() {
      closing.abort()
      await Promise.all(running)
      await fetches.close()
    },
  }
}

/** An empty piece of band 1. */
const KEEP_ALIVE_PKT = Buffer.from('0005\x01', 'latin1')
