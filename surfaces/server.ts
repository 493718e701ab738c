/** The composition root: opens the store, wires the floors together, listens, and closes it all in order. */
import { randomBytes } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { rootCertificates } from 'node:tls'
import { fileURLToPath } from 'node:url'
import type express from 'express'
import type { Config } from '../domain/config.ts'
import type { BranchSettings, JobSettings } from '../domain/environment.ts'
import { errors, messageOf } from '../domain/errors.ts'
import type { Caller, GrantCaller, TokenCaller } from '../domain/grant.ts'
import type { RepoSlug } from '../domain/names.ts'
import type { Clock, Log, Random } from '../domain/ports.ts'
import { createRedactor, redactedLog } from '../domain/redact.ts'
import { createSecretSearch } from '../domain/secret-search.ts'
import { upstreamSecrets } from '../domain/upstream.ts'
import { createArtifactStore } from '../exchange/artifacts.ts'
import { createConversationStore } from '../exchange/conversation-state.ts'
import { projectBranches } from '../exchange/project-refs.ts'
import { createResultChecker } from '../exchange/result-schema.ts'
import { createAudit } from '../gateway/audit.ts'
import { createRepositories } from '../gateway/git/repositories.ts'
import { createGrants } from '../gateway/grants.ts'
import { createSmartHttp } from '../gateway/http/smart-http.ts'
import { createLedger } from '../gateway/ledger.ts'
import { openDiskReserve } from '../gateway/state/disk-reserve.ts'
import { createEventLog, reconcilePushes } from '../gateway/state/event-log.ts'
import { type Index, openIndex } from '../gateway/state/index.ts'
import { reindex } from '../gateway/state/reindex.ts'
import { createSealer } from '../gateway/state/seal.ts'
import { createSigner } from '../gateway/state/sign.ts'
import { createTokens } from '../gateway/tokens.ts'
import { createApiClient } from '../gateway/upstream/api-client.ts'
import { type AppTokens, createCredentials } from '../gateway/upstream/credentials.ts'
import { createGithubForge } from '../gateway/upstream/forge.ts'
import { createRemote } from '../gateway/upstream/remote.ts'
import { createUpstreams } from '../gateway/upstream/upstreams.ts'
import { createSafeFetch } from '../hooks/safe-fetch.ts'
import { createCallbacks } from '../hooks/sinks/callback.ts'
import { checkEnvironment } from '../orchestrator/environment-check.ts'
import { showable } from '../orchestrator/event-text.ts'
import { createHousekeeping } from '../orchestrator/housekeeping.ts'
import { createJobDeliverer } from '../orchestrator/job-delivery.ts'
import { createJobJudge } from '../orchestrator/job-judge.ts'
import { createJobPublisher } from '../orchestrator/job-publish.ts'
import { createJobRecords } from '../orchestrator/job-records.ts'
import { createJobRunner } from '../orchestrator/job-runner.ts'
import { createJobs } from '../orchestrator/jobs.ts'
import { createNameClaims } from '../orchestrator/name-claims.ts'
import { BUILT_IN_PRICES } from '../orchestrator/prices.ts'
import { createRelay } from '../orchestrator/providers/relay.ts'
import { recover, restoreGrants } from '../orchestrator/recovery.ts'
import { createSessionControl } from '../orchestrator/session-control.ts'
import { createSessionDelivery } from '../orchestrator/session-delivery.ts'
import { createSessionEvents } from '../orchestrator/session-events.ts'
import { createSessionOut } from '../orchestrator/session-out.ts'
import { createSessionRecords } from '../orchestrator/session-records.ts'
import { createSessionSuspend } from '../orchestrator/session-suspend.ts'
import { createSessions } from '../orchestrator/sessions.ts'
import { createSetupCache } from '../orchestrator/setup-cache.ts'
import { createSlots } from '../orchestrator/slots.ts'
import { createExclusive, type TurnServices } from '../orchestrator/turn-context.ts'
import { createTurnRunner } from '../orchestrator/turn-runner.ts'
import { createApp } from './app.ts'
import { createEnvironments } from './environments.ts'
import { welcomeCli } from './first-start.ts'
import { callbackView, jobView } from './job-view.ts'
import { closeListener, createListener, listen } from './listener.ts'
import { createMcpEndpoint } from './mcp/endpoint.ts'
import { hangarFeatures } from './mcp/hangar.ts'
import { MCP_LIMITS, type McpLimits, type McpStats } from './mcp/sessions.ts'
import type { ProgressOptions } from './mcp/wait.ts'
import { createMetrics } from './metrics.ts'
import { openApiDocument } from './openapi.ts'
import { OPERATIONS } from './operations/all.ts'
import type { Services } from './operations/operation.ts'
import { openProviders, providerOf } from './providers.ts'
import { createRest } from './rest.ts'

export interface ServerOptions {
  readonly config: Config
  readonly log: Log
  /** Rebuild the index from git, whatever it holds. */
  readonly reindex?: boolean
  /** Where the CLI's file is written; null: nowhere. */
  readonly cliFile: string | null
  readonly clock?: Clock
  /** Where MCP is to keep other bounds and intervals than its own. */
  readonly mcp?: Partial<McpLimits & ProgressOptions>
}

export interface HangarServer {
  /** `http://address:port`, without a trailing slash. */
  readonly url: string
  /** Whether this was the store's first start, which made the admin token. */
  readonly firstStart: boolean
  /** One line about the isolation of sandboxes. */
  readonly isolation: { readonly level: 'ok' | 'warning'; readonly text: string }
  /** What is at work: MCP sessions, requests and streams, and who waits for moves and events of sessions. */
  activity(): ServerActivity
  /** Lets idle MCP sessions go now; once a minute it happens by itself. */
  sweepMcp(): Promise<void>
  /** Kept when another server has taken the store over: this one writes no more, and is to be stopped. */
  readonly lost: Promise<void>
  /** Stops listening, lets go of running turns (agents run on), closes the store. */
  close(): Promise<void>
}

export interface ServerActivity {
  readonly mcp: McpStats
  readonly waiters: number
}

const PACKAGE = fileURLToPath(new URL('../../package.json', import.meta.url))

/** Starts a server on the configured data directory. Throws `store_unusable` or `config_invalid` with what to do. */
export async function startServer({ config, cliFile, ...options }: ServerOptions): Promise<HangarServer> {
  const secrets = [...config.environments.values()].flatMap(({ secrets, setupSecrets }) =>
    [...Object.entries(secrets), ...Object.entries(setupSecrets)].map(([name, value]) => ({ name, value })),
  )
  secrets.push(...upstreamSecrets(config.upstreams).map((value) => ({ name: 'of an upstream', value })))
  if (config.callbacks.secret !== null)
    secrets.push({ name: 'of callbacks', value: `whsec_${Buffer.from(config.callbacks.secret).toString('base64')}` })
  const redactor = createRedactor(secrets.map(({ value }) => value))
  const log = redactedLog(options.log, redactor)
  const clock: Clock = options.clock ?? { now: Date.now }
  const random: Random = { bytes: (count) => randomBytes(count) }
  const undo: (() => Promise<void>)[] = []
  const lost = createGate<void>()
  const keep = <T>(value: T, close: (value: T) => Promise<void>): T => {
    undo.push(() => close(value))
    return value
  }
  try {
    const disk = keep(await openDiskReserve({ dataDir: config.dataDir, log }), (value) => value.close())
    await mkdir(join(config.dataDir, 'keys'), { recursive: true, mode: 0o700 })
    const signer = await createSigner({ keyFile: join(config.dataDir, 'keys', 'signing.asc'), clock })
    const sealer = await createSealer({ keyFile: join(config.dataDir, 'keys', 'sealing.asc'), clock })
    const repositories = keep(
      await createRepositories({ dataDir: config.dataDir, signer, log, clock, onLost: lost.open }),
      (value) => value.close(),
    )
    const index = keep(await openIndex({ dir: join(config.dataDir, 'index'), log, disk }), (value) => value.close())
    const ledger = createLedger({ clock, disk })
    const eventLog = keep(await createEventLog({ index, clock }), (value) => value.close())
    const indexed = await reindex({ repositories, index, ledger }, { full: options.reindex === true || index.fresh })
    const reconciled = await reconcilePushes({ repositories, index, events: eventLog })
    for (const unreadable of [...indexed.unreadable, ...reconciled.unreadable])
      log.error({ ...unreadable }, 'something in the store cannot be read; what else there is works on')
    const tokens = await createTokens({ server: repositories.server, ledger, index, clock, random })
    const grants = createGrants({ clock, elapsed: () => performance.now(), random })

    const authenticate = (secret: string): TokenCaller | GrantCaller | null =>
      tokens.authenticate(secret) ?? grants.authenticate(secret)
    const isLive = (caller: Caller): boolean =>
      caller.kind === 'token' ? tokens.isLive(caller) : grants.isLive(caller)
    const mayRead = (repo: RepoSlug) => config.upstreams.mayRead.get(repo) ?? []
    const metrics = keep(createMetrics(), async (value) => value.close())
    const audit = keep(
      await createAudit({ server: repositories.server, events: eventLog, clock, log, keepDays: config.auditDays }),
      (value) => value.close(),
    )
    const authorities = authoritiesOf(config)
    const credentials = createCredentials(config.upstreams, await appTokens(config, { clock, authorities }))
    const { allowPrivateAddresses } = config.upstreams
    const caFile = authorities === null ? null : join(config.dataDir, 'upstream-authorities.pem')
    if (caFile !== null) await writeFile(caFile, `${authorities?.join('\n')}\n`)
    const upstreams = keep(
      await createUpstreams({
        repositories,
        remote: createRemote({ credentials, allowPrivateAddresses, caFile }),
        credentials,
        index,
        events: eventLog,
        config: config.upstreams,
        clock,
        log,
      }),
      (value) => value.close(),
    )
    const smartHttp = keep(
      createSmartHttp({
        repositories,
        authenticate,
        isLive,
        settings: {
          fastForwardOnly: config.fastForwardOnly,
          branchOf: (caller) => branchSettings(config, index, caller),
        },
        search: createSecretSearch(secrets, (secret) => authenticate(secret) !== null),
        decided: audit.note,
        metrics,
        mirrored: (slug) => upstreams.of(slug) !== null,
        freshen: upstreams.freshen,
        events: eventLog,
        limits: config.limits,
        log,
        clock,
      }),
      (value) => value.close(),
    )

    const closing = new AbortController()
    // Each waiting request listens to it.
    setMaxListeners(0, closing.signal)
    // From the first connection on: sandboxes that live on reach the gateway at once, other requests wait for the recovery.
    const ready = createGate<express.Express>()
    const listener = createListener({ smartHttp, metrics, app: ready.opened })
    await restoreGrants({ index, grants, mayRead })
    await listen(listener, config)
    undo.push(() => closeListener(listener, closing))
    const address = listener.address() as AddressInfo
    const host = ['0.0.0.0', '::'].includes(config.host) ? '127.0.0.1' : config.host
    const url = `http://${host.includes(':') ? `[${host}]` : host}:${address.port}`

    const relayDeps = { dir: join(config.dataDir, 'relay'), gateway: { host, port: address.port }, log }
    const relay = keep(createRelay(relayDeps), (value) => value.close())
    // Sandboxes that live on find their way out again at once.
    for (const { egress, provider } of config.environments.values())
      if (egress !== null || provider === 'docker') await relay.directoryFor(egress)
    const { local, providers } = keep(
      await openProviders({ config, index, relay, publicKey: signer.publicKeyArmored, clock, log }),
      (value) => value.close(),
    )
    const environments = createEnvironments({ config, providers, url })
    const records = createSessionRecords({ repositories, ledger, index, clock })
    const events = createSessionEvents({ index, clock })
    const jobRecords = createJobRecords({ repositories, ledger, index, clock })
    const artifacts = createArtifactStore({ ledger, sealer })
    const conversations = createConversationStore({ ledger, sealer })
    const results = keep(createResultChecker(), (value) => value.close())
    const turnServices: TurnServices = {
      records,
      events,
      jobs: jobRecords,
      index,
      grants,
      upstreams,
      mayRead,
      artifacts,
      conversations,
      setups: createSetupCache({ dir: join(config.dataDir, 'setups'), maxBytes: config.limits.maxSetupCacheBytes }),
      prices: config.prices ?? BUILT_IN_PRICES,
      results,
      environment: environments.forTurns,
      redactor,
      redactEvent: (body) => showable(body, redactor, config.limits.maxEventTextBytes),
      limits: config.limits,
      metrics,
      clock,
      log,
      elapsed: () => performance.now(),
      exclusive: createExclusive(),
      newSandboxId: (session) => `${session.slice(0, 40)}-${randomBytes(5).toString('hex')}`,
    }
    const slots = createSlots({ max: config.maxRunning, maxPerRepo: config.maxRunningPerRepo })
    const runner = keep(createTurnRunner({ ...turnServices, slots }), (value) => value.close())
    const suspension = keep(createSessionSuspend(turnServices), (value) => value.close())
    const claims = createNameClaims({ server: repositories.server, ledger })
    const control = createSessionControl({
      records,
      claims,
      runner,
      grants,
      events,
      provider: (kind) => providerOf(providers, kind),
      clock,
    })
    const sessions = createSessions({
      repositories,
      records,
      claims,
      runner,
      results,
      upstreams,
      environmentDefaults: environments.defaults,
      maxUntrackedBytes: (name) => config.environments.get(name)?.maxUntrackedBytes ?? config.limits.maxUntrackedBytes,
      limits: config.limits,
      checkRoom: disk.check,
      clock,
    })
    const delivery = keep(
      createSessionDelivery({
        records,
        events,
        storeEvents: eventLog,
        index,
        upstreams,
        environments: config.environments,
        log,
      }),
      (value) => value.close(),
    )
    const safeFetch = createSafeFetch({ allowPrivateAddresses: config.callbacks.allowPrivateAddresses })
    const settings = (environment: string) => jobSettings(config, environment)
    const publisher = createJobPublisher({
      records,
      events,
      clock,
      upstreams,
      forge: createGithubForge({
        apiUrl: config.upstreams.github.apiUrl,
        token: credentials.bearer,
        request: createApiClient(authorities),
      }),
      projectBranches: async (slug) => projectBranches(await jobRecords.repository(slug)),
      isDraft: (environment) => settings(environment).draftPullRequests,
      redactor,
      publicUrl: () => config.publicUrl ?? url,
    })
    const jobRunner = keep(
      createJobRunner({
        jobs: jobRecords,
        records,
        events,
        sessions,
        control,
        suspension,
        deliverer: createJobDeliverer({ records, index, upstreams, publisher }),
        judge: createJobJudge({ records, events, sessions, control, settings, clock }),
        settings,
        clock,
        log,
      }),
      (value) => value.close(),
    )
    const jobs = createJobs({
      jobs: jobRecords,
      runner: jobRunner,
      records,
      events,
      sessions,
      control,
      index,
      environmentDefaults: environments.defaults,
      keepCallback: async (target) => {
        if (config.callbacks.secret === null)
          throw errors.invalidRequest(
            'callback_url: this server signs no callbacks; its operator sets callbacks.secret in the config file. Till then wait with wait_for_turn',
          )
        safeFetch.check(target)
        const sealed = await sealer.seal(Buffer.from(target))
        return { callbackUrl: new URL(target).origin, callbackSealed: Buffer.from(sealed).toString('base64') }
      },
      keptMs: config.closedSessionsMs,
      clock,
      random,
      log,
    })
    const out = createSessionOut({ records, artifacts, refresh: runner.refresh, limits: config.limits })
    const services: Services = {
      config,
      repositories,
      upstreams,
      credentials,
      index,
      tokens,
      audit,
      records,
      sessions,
      control,
      suspension,
      delivery,
      out,
      jobs,
      jobRecords,
      events,
      checkEnvironment: (name) => checkEnvironment(environments.forTurns(name), { random, log }),
      clock,
      publicUrl: () => config.publicUrl ?? url,
    }

    const complete = indexed.unreadable.length === 0 && reconciled.unreadable.length === 0
    await recover({
      repositories,
      index,
      claims,
      grants,
      control,
      runner,
      providers: [...providers.values()],
      complete,
      clock,
      log,
    })
    const housekeeping = keep(
      createHousekeeping({
        repositories,
        index,
        providers: complete ? [...providers.values()] : [],
        remove: control.remove,
        sweepJobs: jobs.sweep,
        closedSessionsMs: config.closedSessionsMs,
        clock,
        log,
      }),
      (value) => value.close(),
    )
    await jobs.recover({ complete })
    await housekeeping.sweep()
    await delivery.start()
    const callbacks = keep(
      createCallbacks({
        jobs: jobRecords,
        server: repositories.server,
        ledger,
        fetch: safeFetch,
        open: sealer.open,
        secret: config.callbacks.secret,
        complete,
        view: async (job) => callbackView(job, await jobView(job, services), services),
        clock,
        log,
      }),
      (value) => value.close(),
    )
    await callbacks.start()
    const welcome = cliFile === null ? { made: false } : await welcomeCli(cliFile, config.publicUrl ?? url, tokens)

    const release = await version()
    const mcp = await createMcpEndpoint({
      features: hangarFeatures({
        operations: OPERATIONS,
        services,
        version: release,
        log,
        progress: options.mcp ?? {},
      }),
      index,
      authenticate: (secret): TokenCaller | null => tokens.authenticate(secret),
      isLive: (id) => tokens.isLive({ id }),
      own: { host: config.host, port: address.port, publicUrl: config.publicUrl },
      maxBodyBytes: config.limits.maxJsonBytes,
      limits: { ...MCP_LIMITS, ...options.mcp },
      clock,
      random,
      log,
    })
    undo.push(() => mcp.close())
    const document = openApiDocument(OPERATIONS, { version: release, url: config.publicUrl ?? url })
    ready.open(
      createApp({
        metrics,
        publicKey: signer.publicKeyArmored,
        document,
        mcp,
        rest: createRest({
          operations: OPERATIONS,
          services,
          authenticate: (secret): TokenCaller | null => tokens.authenticate(secret),
          limits: config.limits,
          log,
          closing: closing.signal,
        }),
      }),
    )
    return {
      url,
      firstStart: welcome.made,
      lost: lost.opened,
      isolation: await local.describe(),
      activity: () => ({ mcp: mcp.stats(), waiters: records.listening() + events.listening() }),
      sweepMcp: mcp.sweep,
      close: () => closeAll(undo, log),
    }
  } catch (error) {
    await closeAll(undo, log)
    throw error
  }
}

/** Loaded where there is an App alone. */
async function appTokens(
  { upstreams: { github } }: Config,
  deps: { readonly clock: Clock; readonly authorities: readonly string[] | null },
): Promise<AppTokens | null> {
  if (github.app === null) return null
  const { createGithubTokens } = await import('../gateway/upstream/github.ts')
  return createGithubTokens({ apiUrl: github.apiUrl, app: github.app, ...deps })
}

/** The well-known certificate authorities and the configured ones; null: the system's and node's own, as they are. */
function authoritiesOf({ upstreams: { authorities } }: Config): readonly string[] | null {
  return authorities === null ? null : [...rootCertificates, authorities]
}

/** How jobs of an environment are verified and ranked; those of one that is no longer configured, as the default one's. */
function jobSettings({ environments }: Config, name: string): JobSettings {
  const found = environments.get(name) ?? environments.get('default')
  if (found === undefined) throw errors.internal('there is no default environment')
  return found.jobs
}

/** What a session's environment asks of its branch; an environment that is no longer configured asks what the default one does. */
async function branchSettings(config: Config, index: Index, caller: Caller): Promise<BranchSettings | null> {
  if (caller.kind !== 'grant') return null
  const entry = await index.sessions.get(caller.session)
  const { environments } = config
  return (environments.get(entry?.session.environment ?? '') ?? environments.get('default'))?.branch ?? null
}

/** A promise that is kept from outside. */
function createGate<T>(): { readonly opened: Promise<T>; open(value: T): void } {
  let open: (value: T) => void = () => {}
  const opened = new Promise<T>((resolve) => {
    open = resolve
  })
  return { opened, open }
}

/** In reverse order of opening; one that fails does not keep the others open. */
async function closeAll(undo: (() => Promise<void>)[], log: Log): Promise<void> {
  for (const close of undo.splice(0).reverse())
    await close().catch((error: unknown) => log.error({ error: messageOf(error) }, 'something did not close'))
}

async function version(): Promise<string> {
  return (JSON.parse(await readFile(PACKAGE, 'utf8')) as { version: string }).version
}
