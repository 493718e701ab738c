/** Settings: the environment, then the config file; read once, each value checked, each default written down here. */
import { readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { type Static, type TSchema, Type } from '@sinclair/typebox'
import { type Environment, EnvironmentShape, environmentsOf, secretValue } from './environment.ts'
import { errors, HangarError, messageOf } from './errors.ts'
import { DEFAULT_LIMITS, type Limits, MB } from './limits.ts'
import type { Budget, PriceTable } from './run-event.ts'
import { parseShape } from './schema.ts'
import { PORT, Positive, strict } from './setting-shapes.ts'
import { GithubTokenShape, ReposShape, type UpstreamConfig, upstreamConfigOf } from './upstream.ts'

/** One plain setting: its path in the config file, its variable `HANGAR_<PATH>`, its default, and what it is. */
interface Setting {
  readonly path: string
  readonly schema: TSchema
  readonly default: string | number | boolean | null
  readonly doc: string
}

const mb = (bytes: number) => bytes / MB

/** Every plain setting; docs/settings.md is made from this table. */
export const SETTINGS = [
  {
    path: 'listen',
    schema: Type.String({ pattern: `^[^ ]+:${PORT}$`, description: 'ADDRESS:PORT, the port 0 to 65535.' }),
    default: '127.0.0.1:4264',
    doc: 'Address and port that the server listens on. Port 0 takes a free one.',
  },
  {
    path: 'public_url',
    schema: Type.Union([Type.Null(), Type.String({ pattern: '^https?://[^ ]+$' })]),
    default: null,
    doc: 'The URL that people reach the server at, when it is not http://<listen>. Sandboxes do not use it.',
  },
  {
    path: 'queue.max_running',
    schema: Type.Integer({ minimum: 1 }),
    default: 8,
    doc: 'Turns that run at once; the others wait. A free place goes to the requester who has the fewest, then to who has waited longest.',
  },
  {
    path: 'queue.max_running_per_repo',
    schema: Type.Integer({ minimum: 1 }),
    default: 4,
    doc: 'Turns that run at once in one repo.',
  },
  {
    path: 'budget.max_minutes',
    schema: Type.Union([Type.Null(), Positive]),
    default: null,
    doc: 'Minutes that a turn may run, where neither it nor its session or environment says.',
  },
  {
    path: 'budget.max_tokens',
    schema: Type.Union([Type.Null(), Positive]),
    default: null,
    doc: 'Tokens that a turn may use (input, output and those written to a cache; those read from one are counted apart), where nothing nearer says.',
  },
  {
    path: 'budget.max_cost_usd',
    schema: Type.Union([Type.Null(), Positive]),
    default: null,
    doc: 'US dollars that a turn may cost, as its agent reports them or by the price table, where nothing nearer says.',
  },
  {
    path: 'kubernetes.namespace',
    schema: Type.String({ pattern: '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$' }),
    default: 'hangar-sandboxes',
    doc: 'kubernetes: the namespace of the pods that sandboxes are.',
  },
  {
    path: 'kubernetes.kubeconfig',
    schema: Type.Union([Type.Null(), Type.String({ minLength: 1 })]),
    default: null,
    doc: 'kubernetes: a kubeconfig file. Without one it is `KUBECONFIG` or ~/.kube/config, and in a pod its own service account.',
  },
  {
    path: 'kubernetes.gateway_url',
    schema: Type.Union([Type.Null(), Type.String({ pattern: '^https?://[^ ]+$' })]),
    default: null,
    doc: 'kubernetes: the URL at which pods reach this server, as `http://hangar.hangar.svc:4264`. It has to be set.',
  },
  {
    path: 'kubernetes.node_selector',
    schema: Type.String({ pattern: '^([A-Za-z0-9./_-]+=[A-Za-z0-9._-]*(,(?=.)|$))*$' }),
    default: '',
    doc: 'kubernetes: labels of the nodes that pods may run on, as `pool=agents,disk=ssd`.',
  },
  {
    path: 'kubernetes.runtime_class',
    schema: Type.Union([Type.Null(), Type.String({ minLength: 1 })]),
    default: null,
    doc: 'kubernetes: the RuntimeClass of pods, as `gvisor`, where the cluster has one.',
  },
  {
    path: 'prices_file',
    schema: Type.Union([Type.Null(), Type.String({ minLength: 1 })]),
    default: null,
    doc: 'A JSON file `{"date": "2026-11-30", "models": {"gpt-5": {"input": 1.25, "output": 10, "cache_read": 0.125, "cache_write": 0}}}` of dollars for a million tokens, by the beginning of a model\'s name; it stands for the built-in table.',
  },
  {
    path: 'exchange.max_patch_mb',
    schema: Positive,
    default: mb(DEFAULT_LIMITS.maxPatchBytes),
    doc: 'Largest patch item, and largest get_session_patch, in MB.',
  },
  {
    path: 'exchange.max_bundle_mb',
    schema: Positive,
    default: mb(DEFAULT_LIMITS.maxBundleBytes),
    doc: 'Largest bundle item, in MB.',
  },
  {
    path: 'exchange.max_result_kb',
    schema: Positive,
    default: DEFAULT_LIMITS.maxResultBytes / 1024,
    doc: 'Largest out/result.json, in KB.',
  },
  {
    path: 'exchange.max_artifacts',
    schema: Type.Integer({ minimum: 0 }),
    default: DEFAULT_LIMITS.maxArtifacts,
    doc: 'New artifacts collected per turn.',
  },
  {
    path: 'exchange.max_artifact_mb',
    schema: Positive,
    default: mb(DEFAULT_LIMITS.maxArtifactBytes),
    doc: 'Largest artifact, in MB.',
  },
  {
    path: 'exchange.max_artifacts_mb',
    schema: Positive,
    default: mb(DEFAULT_LIMITS.maxArtifactsBytes),
    doc: 'Artifacts of one turn together, in MB.',
  },
  {
    path: 'exchange.repair_timeout_minutes',
    schema: Positive,
    default: DEFAULT_LIMITS.repairTimeoutMs / 60_000,
    doc: 'Minutes that the one repair of a missing or invalid result may run.',
  },
  {
    path: 'exchange.inline_artifact_kb',
    schema: Positive,
    default: DEFAULT_LIMITS.inlineArtifactBytes / 1024,
    doc: 'Largest artifact that an MCP answer (get_artifact, a resource) holds in itself, in KB; larger ones are fetched over REST or by the CLI.',
  },
  {
    path: 'github.api_url',
    schema: Type.String({ pattern: '^(https://|http://(127\\.|localhost|\\[::1\\]))[^ ]+$' }),
    default: 'https://api.github.com',
    doc: "GitHub's API; of GitHub Enterprise Server `https://HOST/api/v3`.",
  },
  {
    path: 'github.app_id',
    schema: Type.Union([Type.Null(), Type.Integer({ minimum: 1 })]),
    default: null,
    doc: 'The id of a GitHub App that is installed on the upstreams; it goes with its private key.',
  },
  {
    path: 'github.app_private_key_file',
    schema: Type.Union([Type.Null(), Type.String({ minLength: 1 })]),
    default: null,
    doc: "The App's private key, a PEM file that only the server's user can read.",
  },
  {
    path: 'upstream.allow_private_addresses',
    schema: Type.Boolean(),
    default: false,
    doc: 'Whether an upstream may be at a private address (a forge in your own network), or over plain http on loopback.',
  },
  {
    path: 'upstream.ca_file',
    schema: Type.Union([Type.Null(), Type.String({ minLength: 1 })]),
    default: null,
    doc: "A PEM file of certificate authorities that upstreams and GitHub's API are held against, beside the well-known ones: for a forge with a certificate of your own.",
  },
  {
    path: 'upstream.fresh_seconds',
    schema: Type.Number({ minimum: 0 }),
    default: 10,
    doc: 'A fetch of a repo with an upstream asks upstream first, unless that was done less than so many seconds ago. A new session always asks.',
  },
  {
    path: 'callbacks.allow_private_addresses',
    schema: Type.Boolean(),
    default: false,
    doc: 'Whether callbacks of jobs may go to private addresses (a receiver in your own network), and over plain http.',
  },
  {
    path: 'retention.closed_sessions_days',
    schema: Type.Union([Type.Null(), Positive]),
    default: 30,
    doc: 'Days that a closed session is kept before its refs go; `null` in the config file: for ever. Its objects go two weeks later.',
  },
  {
    path: 'retention.audit_days',
    schema: Type.Union([Type.Null(), Positive]),
    default: 365,
    doc: 'Days that the audit trail of pushes is kept; `null` in the config file: for ever.',
  },
  {
    path: 'gateway.max_push_mb',
    schema: Positive,
    default: mb(DEFAULT_LIMITS.maxPushBytes),
    doc: 'Largest pack of one push, in MB.',
  },
  {
    path: 'gateway.fast_forward_only',
    schema: Type.String({ pattern: '^[^ ]*$' }),
    default: '',
    doc: 'Branches and tags of projects that are not to be rewritten by a push, whoever pushes, as `main,release/*`. Deleting them is another matter.',
  },
  {
    path: 'gateway.max_git_processes',
    schema: Type.Integer({ minimum: 1 }),
    default: DEFAULT_LIMITS.maxGitProcesses,
    doc: 'Fetches and pushes served at once; more wait, then get 503. A quarter of them is kept for callers (tokens, sandboxes) that have none.',
  },
  {
    path: 'gateway.pack_cache_mb',
    schema: Type.Number({ minimum: 0 }),
    default: mb(DEFAULT_LIMITS.maxPackCacheBytes),
    doc: 'Most that answers to clones, kept on the disk and given again to who asks the same, may take in MB. What was not used for longest goes first; `0` keeps none.',
  },
  {
    path: 'gateway.max_transfer_minutes',
    schema: Positive,
    default: DEFAULT_LIMITS.maxTransferMs / 60_000,
    doc: 'Minutes that one fetch or push may take, however slowly its client reads or writes.',
  },
] as const satisfies readonly Setting[]

const FileShape = Type.Object(
  {
    ...groupedShapes(),
    environments: Type.Optional(
      Type.Record(Type.String({ pattern: '^[a-z0-9][a-z0-9-]{0,62}$' }), EnvironmentShape, strict),
    ),
    repos: Type.Optional(ReposShape),
  },
  strict,
)

/** The cluster whose pods are sandboxes. */
export interface KubernetesConfig {
  readonly namespace: string
  /** null: the default file, or in a pod its own service account. */
  readonly kubeconfig: string | null
  /** The gateway as pods reach it. */
  readonly gatewayUrl: string | null
  readonly nodeSelector: Readonly<Record<string, string>>
  readonly runtimeClass: string | null
}

export interface CallbackConfig {
  readonly allowPrivateAddresses: boolean
  /** The key that callbacks are signed with; null: none is set, and jobs can have no callback. */
  readonly secret: Uint8Array | null
}

export interface Config {
  readonly dataDir: string
  readonly host: string
  readonly port: number
  readonly publicUrl: string | null
  readonly maxRunning: number
  readonly maxRunningPerRepo: number
  readonly limits: Limits
  /** Patterns of branches and tags that only grow. */
  readonly fastForwardOnly: readonly string[]
  /** How long a closed session is kept; null: for ever. */
  readonly closedSessionsMs: number | null
  /** null: for ever. */
  readonly auditDays: number | null
  readonly environments: ReadonlyMap<string, Environment>
  readonly kubernetes: KubernetesConfig
  readonly upstreams: UpstreamConfig
  readonly callbacks: CallbackConfig
  /** The unix socket of the Docker engine, by `DOCKER_HOST`. */
  readonly dockerSocket: string
  /** null: the built-in table. */
  readonly prices: PriceTable | null
}

export interface ConfigSources {
  /** The process's environment. */
  readonly env: Readonly<Record<string, string | undefined>>
  /** The file named by `--config`. */
  readonly configFile?: string
}

/** `HANGAR_DATA`, else `${XDG_DATA_HOME:-~/.local/share}/hangar`. */
export function dataDirectory(env: ConfigSources['env']): string {
  return env['HANGAR_DATA'] ?? join(env['XDG_DATA_HOME'] ?? join(env['HOME'] ?? homedir(), '.local', 'share'), 'hangar')
}

/** The variable of a setting: `exchange.max_patch_mb` is `HANGAR_EXCHANGE_MAX_PATCH_MB`. */
export function settingVariable(path: string): string {
  return `HANGAR_${path.replace(/\./g, '_').toUpperCase()}`
}

/** Reads all settings. Throws `config_invalid` with the setting's name, its value and what is accepted. */
export function readConfig(sources: ConfigSources): Config {
  const dataDir = dataDirectory(sources.env)
  const file = readConfigFile(sources, dataDir)
  const values = new Map(SETTINGS.map((setting) => [setting.path, settingValue(setting, file, sources.env)]))
  const number = (path: (typeof SETTINGS)[number]['path']) => values.get(path) as number
  const listen = values.get('listen') as string
  const colon = listen.lastIndexOf(':')
  const budget: Budget = {
    maxMinutes: values.get('budget.max_minutes') as number | null,
    maxTokens: values.get('budget.max_tokens') as number | null,
    maxCostUsd: values.get('budget.max_cost_usd') as number | null,
  }
  const pricesFile = values.get('prices_file') as string | null
  return {
    dataDir,
    host: listen.slice(0, colon).replace(/^\[(.*)\]$/, '$1'),
    port: Number(listen.slice(colon + 1)),
    publicUrl: (values.get('public_url') as string | null)?.replace(/\/+$/, '') ?? null,
    maxRunning: number('queue.max_running'),
    maxRunningPerRepo: number('queue.max_running_per_repo'),
    callbacks: {
      allowPrivateAddresses: values.get('callbacks.allow_private_addresses') as boolean,
      secret: callbackSecret(file as { callbacks?: { secret?: Static<typeof GithubTokenShape> } }, sources.env),
    },
    limits: {
      ...DEFAULT_LIMITS,
      maxPatchBytes: number('exchange.max_patch_mb') * MB,
      maxBundleBytes: number('exchange.max_bundle_mb') * MB,
      maxResultBytes: number('exchange.max_result_kb') * 1024,
      maxArtifacts: number('exchange.max_artifacts'),
      maxArtifactBytes: number('exchange.max_artifact_mb') * MB,
      maxArtifactsBytes: number('exchange.max_artifacts_mb') * MB,
      repairTimeoutMs: number('exchange.repair_timeout_minutes') * 60_000,
      inlineArtifactBytes: number('exchange.inline_artifact_kb') * 1024,
      maxPushBytes: number('gateway.max_push_mb') * MB,
      maxGitProcesses: number('gateway.max_git_processes'),
      maxPackCacheBytes: number('gateway.pack_cache_mb') * MB,
      maxTransferMs: number('gateway.max_transfer_minutes') * 60_000,
    },
    fastForwardOnly: (values.get('gateway.fast_forward_only') as string).split(',').filter((name) => name !== ''),
    closedSessionsMs: daysOf(values.get('retention.closed_sessions_days') as number | null),
    auditDays: values.get('retention.audit_days') as number | null,
    environments: environmentsOf(file.environments ?? {}, { budget, env: sources.env }),
    kubernetes: {
      namespace: values.get('kubernetes.namespace') as string,
      kubeconfig: values.get('kubernetes.kubeconfig') as string | null,
      gatewayUrl: (values.get('kubernetes.gateway_url') as string | null)?.replace(/\/+$/, '') ?? null,
      nodeSelector: labelsOf(values.get('kubernetes.node_selector') as string),
      runtimeClass: values.get('kubernetes.runtime_class') as string | null,
    },
    upstreams: upstreamConfigOf({
      repos: file.repos ?? {},
      github: {
        apiUrl: values.get('github.api_url') as string,
        appId: values.get('github.app_id') as number | null,
        appPrivateKeyFile: values.get('github.app_private_key_file') as string | null,
        token: (file as { github?: { token?: Static<typeof GithubTokenShape> } }).github?.token,
      },
      allowPrivateAddresses: values.get('upstream.allow_private_addresses') as boolean,
      freshSeconds: number('upstream.fresh_seconds'),
      caFile: values.get('upstream.ca_file') as string | null,
      env: sources.env,
    }),
    dockerSocket: dockerSocket(sources.env),
    prices: pricesFile === null ? null : readPrices(pricesFile),
  }
}

function daysOf(days: number | null): number | null {
  return days === null ? null : days * 24 * 3_600_000
}

/** Only a socket of this host: the server binds files of its own into containers, and the API over TCP is root for whoever reaches it. */
function dockerSocket(env: ConfigSources['env']): string {
  const host = env['DOCKER_HOST'] ?? ''
  if (host === '') return '/var/run/docker.sock'
  if (host.startsWith('unix://')) return host.slice('unix://'.length)
  // Of no concern to a server without docker environments; one that uses it finds nothing there, and says so.
  return host
}

/** `whsec_` and base64 of 24 to 64 bytes, as Standard Webhooks has it. Throws `config_invalid`. */
function callbackSecret(
  { callbacks }: { readonly callbacks?: { readonly secret?: Static<typeof GithubTokenShape> } },
  env: ConfigSources['env'],
): Uint8Array | null {
  const from = callbacks?.secret?.from
  if (from === undefined) return null
  const value = secretValue('callbacks.secret', from, env)
  const bytes = Buffer.from(value.replace(/^whsec_/, ''), 'base64')
  if (!value.startsWith('whsec_') || bytes.length < 24 || bytes.length > 64)
    throw errors.configInvalid(
      `callbacks.secret (from ${from}): give whsec_ and the base64 of 24 to 64 random bytes, as this prints: echo "whsec_$(openssl rand -base64 32)"`,
    )
  return bytes
}

/** `a=b,c=d`. */
function labelsOf(text: string): Record<string, string> {
  const terms = text.split(',').filter((term) => term !== '')
  return Object.fromEntries(terms.map((term) => [term.slice(0, term.indexOf('=')), term.slice(term.indexOf('=') + 1)]))
}

/** 1e999 is read as infinite, and no budget would be passed by what costs no number. */
const Dollars = Type.Number({ minimum: 0, maximum: 1_000_000 })

const PricesShape = Type.Object(
  {
    date: Type.String({ pattern: '^[0-9]{4}-[0-9]{2}-[0-9]{2}$' }),
    models: Type.Record(
      Type.String({ minLength: 1 }),
      Type.Object(
        {
          input: Dollars,
          output: Dollars,
          cache_read: Dollars,
          cache_write: Dollars,
        },
        strict,
      ),
    ),
  },
  strict,
)

function readPrices(path: string): PriceTable {
  try {
    const { date, models } = parseShape(PricesShape, JSON.parse(readFileSync(path, 'utf8')), `the price table ${path}`)
    return {
      date,
      models: Object.fromEntries(
        Object.entries(models).map(([model, price]) => [
          model,
          { input: price.input, output: price.output, cacheRead: price.cache_read, cacheWrite: price.cache_write },
        ]),
      ),
    }
  } catch (cause) {
    throw errors.configInvalid(`prices_file=${path}: ${messageOf(cause)}`, {}, cause)
  }
}

function readConfigFile(sources: ConfigSources, dataDir: string): Static<typeof FileShape> {
  const named = sources.configFile ?? sources.env['HANGAR_CONFIG']
  const path = named ?? join(dataDir, 'hangar.config.json')
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (cause) {
    if (named === undefined && (cause as NodeJS.ErrnoException).code === 'ENOENT') return {}
    throw errors.configInvalid(`the config file ${path} cannot be read: ${messageOf(cause)}`, {}, cause)
  }
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch (cause) {
    throw errors.configInvalid(`the config file ${path} is not JSON: ${messageOf(cause)}`, {}, cause)
  }
  try {
    return parseShape(FileShape, parsed, `the config file ${path}`)
  } catch (cause) {
    throw cause instanceof HangarError ? errors.configInvalid(cause.message, {}, cause) : cause
  }
}

function settingValue(setting: Setting, file: unknown, env: ConfigSources['env']): unknown {
  const variable = settingVariable(setting.path)
  const text = env[variable]
  if (text === undefined || text === '') {
    const value = valueAt(file, setting.path)
    return value === undefined ? setting.default : value
  }
  const value = valueOfText(setting.schema, text)
  try {
    return parseShape(setting.schema, value, variable)
  } catch (cause) {
    throw errors.configInvalid(
      `${variable}=${JSON.stringify(text)} is not accepted: ${setting.doc} ${messageOf(cause)}`,
      {},
      cause,
    )
  }
}

/** A variable's text as the type that its setting has. */
function valueOfText(schema: TSchema, text: string): unknown {
  const types = [schema, ...((schema['anyOf'] as TSchema[] | undefined) ?? [])].map((one) => one['type'] as string)
  if (types.includes('boolean') && /^(true|false)$/.test(text)) return text === 'true'
  if ((types.includes('number') || types.includes('integer')) && /^-?[0-9.]+$/.test(text)) return Number(text)
  return text
}

function valueAt(file: unknown, path: string): unknown {
  return path.split('.').reduce<unknown>((at, key) => (at as Record<string, unknown> | undefined)?.[key], file)
}

/** The settings table as the shape of the config file: `exchange.max_patch_mb` sits in the object `exchange`. */
function groupedShapes(): Record<string, TSchema> {
  const shapes: Record<string, TSchema> = {}
  const groups = new Map<string, Record<string, TSchema>>()
  for (const { path, schema } of SETTINGS) {
    const [group, key] = path.split('.') as [string, string | undefined]
    if (key === undefined) shapes[group] = Type.Optional(schema)
    else groups.set(group, { ...groups.get(group), [key]: Type.Optional(schema) })
  }
  // What names a secret is no plain setting, and has no variable.
  groups.set('github', { ...groups.get('github'), token: Type.Optional(GithubTokenShape) })
  groups.set('callbacks', { ...groups.get('callbacks'), secret: Type.Optional(GithubTokenShape) })
  for (const [group, members] of groups) shapes[group] = Type.Optional(Type.Object(members, strict))
  return shapes
}
