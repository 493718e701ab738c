/** An environment: a named set of defaults for turns, its settings in words, and how the config file's part is read. */
import { readFileSync } from 'node:fs'
import { type Static, Type } from '@sinclair/typebox'
import { errors, messageOf } from './errors.ts'
import { HARNESS_KINDS, type HarnessKind } from './harness.ts'
import { DEFAULT_LIMITS, MB } from './limits.ts'
import type { Budget } from './run-event.ts'
import type { SandboxLimits } from './sandbox.ts'
import { BudgetShape, PORT, Positive, strict } from './setting-shapes.ts'

const Strings = Type.Array(Type.String({ minLength: 1 }))
const VariableName = Type.String({ pattern: '^[A-Za-z_][A-Za-z0-9_]*$' })
/** What a program can be started with: no argument and no variable can hold a NUL. */
const Argument = Type.String({ pattern: '^[^\\0]*$', description: 'Text without NUL.' })
/** Variables by name, of an environment as of a repo's own file. */
export const VariablesShape = Type.Record(VariableName, Argument, strict)
const AbsolutePath = Type.String({ pattern: '^/[^\\0]*$', description: 'An absolute path.' })
const SecretShape = Type.Object(
  {
    from: Type.String({ pattern: '^(env|file):.+$', description: '`env:NAME` or `file:PATH`.' }),
    phase: Type.Optional(Type.Union([Type.Literal('setup'), Type.Literal('agent')])),
  },
  strict,
)

/** Where turns run; each has its own needs, checked when the settings are read. */
const PROVIDER_KINDS = ['local', 'docker', 'kubernetes'] as const
export type ProviderKind = (typeof PROVIDER_KINDS)[number]

/** When a session's branch goes upstream: with its delivery, or after each push of its sandbox as well. */
const FORWARD_MODES = ['on_delivery', 'on_push'] as const
export type ForwardMode = (typeof FORWARD_MODES)[number]

/** An environment as the config file spells it. */
export const EnvironmentShape = Type.Object(
  {
    provider: Type.Optional(Type.Union(PROVIDER_KINDS.map((kind) => Type.Literal(kind)))),
    image: Type.Optional(Type.String({ pattern: '^[^ ]+$' })),
    limits: Type.Optional(
      Type.Object(
        {
          cpu: Type.Optional(Positive),
          memory_mb: Type.Optional(Type.Integer({ minimum: 16 })),
          pids: Type.Optional(Type.Integer({ minimum: 16 })),
          untracked_mb: Type.Optional(Type.Integer({ minimum: 1, maximum: 1_048_576 })),
        },
        strict,
      ),
    ),
    egress: Type.Optional(Type.Array(Type.String({ pattern: `^[A-Za-z0-9.-]+:${PORT}$`, description: 'HOST:PORT.' }))),
    gateway_url: Type.Optional(Type.String({ pattern: '^https?://[^ ]+$' })),
    harness: Type.Optional(Type.Union(HARNESS_KINDS.map((kind) => Type.Literal(kind)))),
    harness_options: Type.Optional(
      Type.Object(
        {
          argv: Type.Optional(Type.Array(Argument, { minItems: 1 })),
          model: Type.Optional(Type.String({ minLength: 1 })),
          provider: Type.Optional(Type.String({ minLength: 1 })),
          args: Type.Optional(Type.Array(Argument)),
        },
        strict,
      ),
    ),
    setup: Type.Optional(Type.String({ minLength: 1 })),
    env: Type.Optional(VariablesShape),
    secrets: Type.Optional(Type.Record(VariableName, SecretShape, strict)),
    path: Type.Optional(Strings),
    mounts: Type.Optional(Type.Array(AbsolutePath)),
    timeout_minutes: Type.Optional(Positive),
    idle_suspend_minutes: Type.Optional(Type.Union([Type.Null(), Positive])),
    forward: Type.Optional(Type.Union(FORWARD_MODES.map((mode) => Type.Literal(mode)))),
    credential_mode: Type.Optional(Type.Literal('gateway')),
    budget: Type.Optional(BudgetShape),
    forbidden_paths: Type.Optional(
      Type.Array(Type.String({ pattern: '^[^/\\0][^\\0]*$', description: 'A relative path.' })),
    ),
    max_file_mb: Type.Optional(Positive),
    max_changed_files: Type.Optional(Type.Integer({ minimum: 1 })),
    fast_forward_only: Type.Optional(Type.Boolean()),
    verify: Type.Optional(Type.String({ pattern: '^[^\\0]+$', description: 'A shell command.' })),
    verify_retries: Type.Optional(Type.Integer({ minimum: 0, maximum: 10 })),
    judge: Type.Optional(Type.String({ minLength: 1 })),
    stop_at_first_pass: Type.Optional(Type.Boolean()),
    draft_pull_requests: Type.Optional(Type.Boolean()),
  },
  strict,
)

/** The settings of an environment, in words; docs/settings.md is made from this table. */
export const ENVIRONMENT_SETTINGS = [
  { path: 'provider', default: '`local`', doc: 'Where turns run: `local`, `docker` or `kubernetes`.' },
  {
    path: 'image',
    default: 'none',
    doc: 'docker, kubernetes: the image that sandboxes run, by tag or digest. With docker it is never pulled by hangar.',
  },
  {
    path: 'limits.cpu',
    default: 'none',
    doc: 'Processors that a sandbox may use, `0.5` is half of one. local: by control groups, which the server must be allowed to make (as root, or as a systemd service with `Delegate=yes`); a limit that cannot be kept stops the start.',
  },
  {
    path: 'limits.memory_mb',
    default: 'none',
    doc: 'Memory of a sandbox in MB, its /tmp included; no swap. kubernetes: without /tmp, 4096 by default.',
  },
  {
    path: 'limits.pids',
    default: '`4096`',
    doc: 'local, docker: processes and threads of a sandbox at once. local: where it is not set, the default holds if sandboxes have users of their own (the server runs as root).',
  },
  {
    path: 'limits.untracked_mb',
    default: '`512`',
    doc: 'MB of untracked, not ignored files that a checkpoint holds. A hand-over with more is refused; of what an agent leaves, the biggest files are left out until the rest fits, and the turn has a warning that names them. `--from-local` has a cap of its own (`HANGAR_UNTRACKED_MB`).',
  },
  {
    path: 'egress',
    default: 'what the provider gives',
    doc: '`[]` lets a sandbox reach the gateway and nothing else, `["api.example.com:443"]` these as well, through a proxy (`HTTPS_PROXY`). local: needs bubblewrap. kubernetes: by a NetworkPolicy, to addresses; without the setting a sandbox reaches the gateway and public addresses.',
  },
  {
    path: 'gateway_url',
    default: "the provider's",
    doc: 'The URL at which sandboxes reach this server, where the one that the provider works out does not fit.',
  },
  {
    path: 'harness',
    default: '`command`',
    doc: 'The agent program: `command` (any program, with the prompt on standard input), `claude`, `codex`, `pi` or `antigravity`.',
  },
  {
    path: 'harness_options.argv',
    default: 'none',
    doc: 'command: the program and its arguments. Files that it names by absolute path are there inside the sandbox, read-only.',
  },
  { path: 'harness_options.model', default: "the program's own", doc: 'The model that the program is told to use.' },
  { path: 'harness_options.provider', default: "the program's own", doc: 'pi: the provider of the model.' },
  {
    path: 'harness_options.args',
    default: '`[]`',
    doc: 'Further arguments of the program, for all but `command`, as `["-c", "model_provider=mine"]`.',
  },
  { path: 'env', default: '`{}`', doc: 'Variables of everything that runs in the sandbox.' },
  {
    path: 'setup',
    default: 'none',
    doc: 'A shell script that is run in the checkout of each fresh sandbox, before its first turn. What it made (HOME, ignored files) is kept and put back where script, image and lock files are the same.',
  },
  {
    path: 'secrets.<NAME>',
    default: '`{}`',
    doc: 'Variables of the agent alone (`"phase": "agent"`, the default) or of the set-up alone (`"setup"`), `{"from": "env:NAME" or "file:PATH", "phase": …}`, read when the server starts. Their values are masked in all that comes back.',
  },
  { path: 'path', default: '`[]`', doc: 'Directories put before PATH in the sandbox, bound read-only.' },
  { path: 'mounts', default: '`[]`', doc: 'Further files and directories of the host, bound read-only.' },
  { path: 'timeout_minutes', default: '`60`', doc: 'Minutes that a turn may run, where its message does not say.' },
  {
    path: 'idle_suspend_minutes',
    default: '`30`',
    doc: 'Minutes after which an idle session is suspended: its sandbox goes, all of it is in git, and the next message makes a fresh one. `null`: never.',
  },
  {
    path: 'forward',
    default: '`on_delivery`',
    doc: "Of repos that follow an upstream, when a session's branch goes there: `on_delivery`, or `on_push`, after each push of its sandbox as well.",
  },
  {
    path: 'credential_mode',
    default: '`gateway`',
    doc: 'Who holds credentials of upstreams: the gateway, and never a sandbox. There is no other.',
  },
  {
    path: 'budget.max_minutes',
    default: '`budget.max_minutes`',
    doc: 'Minutes that a turn may run; passing them ends it as over_budget.',
  },
  {
    path: 'budget.max_tokens',
    default: '`budget.max_tokens`',
    doc: 'Tokens that a turn may use; passing them ends it as over_budget within one usage event.',
  },
  {
    path: 'budget.max_cost_usd',
    default: '`budget.max_cost_usd`',
    doc: 'US dollars that a turn may cost; passing them ends it as over_budget.',
  },
  {
    path: 'forbidden_paths',
    default: '`[".github/workflows/**"]`',
    doc: 'Paths that the commits of a session may not change, by pattern (`*` within a name, `**` over any number of directories). A branch with such a commit is refused; the work stays in the checkpoint, and the turn has a warning.',
  },
  {
    path: 'max_file_mb',
    default: '`100`',
    doc: 'Largest file that a commit of a session may bring, in MB; kept as `forbidden_paths` is.',
  },
  {
    path: 'max_changed_files',
    default: '`50000`',
    doc: 'Files that one push to the branch of a session may change, counted in each of its commits.',
  },
  {
    path: 'fast_forward_only',
    default: '`false`',
    doc: 'Whether the branch of a session only grows: rewritten commits are refused.',
  },
  {
    path: 'verify',
    default: 'none',
    doc: "A shell command that verifies the work of jobs: it is run in the checkout after the agent, without the agent's secrets, for as long as a turn may run. A job may bring its own, and a repo's `.hangar/environment.json` may name one where this is not set.",
  },
  {
    path: 'verify_retries',
    default: '`1`',
    doc: 'How often a failing verification is given back to the agent, with the end of its output, before the job fails.',
  },
  {
    path: 'judge',
    default: 'none',
    doc: 'best_of_n: what a judge is to look at. With it, a turn of the same agent program ranks the attempts that pass their verification; without, the smallest difference wins.',
  },
  {
    path: 'stop_at_first_pass',
    default: '`false`',
    doc: 'best_of_n: whether the first attempt that passes its verification is taken, and those still at work are stopped.',
  },
  {
    path: 'draft_pull_requests',
    default: '`true`',
    doc: 'Whether pull requests of jobs are opened as drafts.',
  },
] as const

/** How an agent program is run; which of these count depends on the harness. */
export interface HarnessOptions {
  /** command: its program; null when none is set, which is refused when a session is made. */
  readonly argv: readonly string[] | null
  readonly model: string | null
  /** pi: the provider of its model. */
  readonly provider: string | null
  /** Further arguments, for all but command. */
  readonly args: readonly string[]
}

/** An environment with every default filled in. */
export interface Environment {
  readonly name: string
  readonly provider: ProviderKind
  readonly image: string | null
  readonly limits: SandboxLimits
  /** Of untracked files in a checkpoint. */
  readonly maxUntrackedBytes: number
  /** null: what the provider gives; else the gateway and these `host:port` only. */
  readonly egress: readonly string[] | null
  readonly gatewayUrl: string | null
  readonly harness: HarnessKind
  readonly harnessOptions: HarnessOptions
  readonly env: Readonly<Record<string, string>>
  /** A script for fresh sandboxes; null: none. */
  readonly setup: string | null
  /** Variables of the agent alone, and of the set-up alone, by name: their values, to be masked wherever they show. */
  readonly secrets: Readonly<Record<string, string>>
  readonly setupSecrets: Readonly<Record<string, string>>
  readonly path: readonly string[]
  readonly mounts: readonly string[]
  readonly timeoutMs: number
  /** How long an idle session keeps its sandbox; null: for ever. */
  readonly idleSuspendMs: number | null
  readonly forward: ForwardMode
  readonly budget: Budget
  readonly branch: BranchSettings
  readonly jobs: JobSettings
}

/** How the work of jobs is verified, ranked and delivered. */
export interface JobSettings {
  /** null: none, unless the job or the repo names one. */
  readonly verify: string | null
  readonly verifyRetries: number
  /** What a judge of several attempts is to look at; null: there is no judge. */
  readonly judge: string | null
  readonly stopAtFirstPass: boolean
  readonly draftPullRequests: boolean
}

/** What is asked of the commits that a session's sandbox pushes to its branch. */
export interface BranchSettings {
  /** Patterns; see refs-policy's `pathMatcher`. */
  readonly forbiddenPaths: readonly string[]
  readonly maxFileBytes: number
  /** Files that one push may change. */
  readonly maxChangedFiles: number
  /** Its commits may be added to, and not be rewritten. */
  readonly fastForwardOnly: boolean
}

/** Workflows run with the project's own secrets, wherever the branch is pushed to. */
const FORBIDDEN_PATHS = ['.github/workflows/**']

/** All environments with every default filled in; `default` is always there. Throws `config_invalid`. */
export function environmentsOf(
  shapes: Record<string, Static<typeof EnvironmentShape>>,
  { budget, env }: { readonly budget: Budget; readonly env: Readonly<Record<string, string | undefined>> },
): ReadonlyMap<string, Environment> {
  const all: Record<string, Static<typeof EnvironmentShape>> = { default: {}, ...shapes }
  return new Map(
    Object.entries(all).map(([name, shape]) => [
      name,
      {
        name,
        ...sandboxSettings(name, shape),
        harness: shape.harness ?? 'command',
        harnessOptions: {
          argv: shape.harness_options?.argv ?? null,
          model: shape.harness_options?.model ?? null,
          provider: shape.harness_options?.provider ?? null,
          args: shape.harness_options?.args ?? [],
        },
        maxUntrackedBytes:
          shape.limits?.untracked_mb === undefined ? DEFAULT_LIMITS.maxUntrackedBytes : shape.limits.untracked_mb * MB,
        env: shape.env ?? {},
        setup: shape.setup ?? null,
        secrets: secretsOf(name, shape, 'agent', env),
        setupSecrets: secretsOf(name, shape, 'setup', env),
        path: shape.path ?? [],
        mounts: shape.mounts ?? [],
        timeoutMs: (shape.timeout_minutes ?? 60) * 60_000,
        idleSuspendMs: shape.idle_suspend_minutes === null ? null : (shape.idle_suspend_minutes ?? 30) * 60_000,
        forward: shape.forward ?? 'on_delivery',
        budget: {
          maxMinutes: shape.budget?.max_minutes ?? budget.maxMinutes,
          maxTokens: shape.budget?.max_tokens ?? budget.maxTokens,
          maxCostUsd: shape.budget?.max_cost_usd ?? budget.maxCostUsd,
        },
        branch: {
          forbiddenPaths: shape.forbidden_paths ?? FORBIDDEN_PATHS,
          maxFileBytes: (shape.max_file_mb ?? 100) * MB,
          maxChangedFiles: shape.max_changed_files ?? 50_000,
          fastForwardOnly: shape.fast_forward_only ?? false,
        },
        jobs: {
          verify: shape.verify ?? null,
          verifyRetries: shape.verify_retries ?? 1,
          judge: shape.judge ?? null,
          stopAtFirstPass: shape.stop_at_first_pass ?? false,
          draftPullRequests: shape.draft_pull_requests ?? true,
        },
      },
    ]),
  )
}

/** What a provider cannot keep is refused here: a limit that is set and not kept protects nobody. */
function sandboxSettings(
  name: string,
  shape: Static<typeof EnvironmentShape>,
): Pick<Environment, 'provider' | 'image' | 'limits' | 'egress' | 'gatewayUrl'> {
  const provider = shape.provider ?? 'local'
  const settings = {
    provider,
    image: shape.image ?? null,
    limits: {
      cpu: shape.limits?.cpu ?? null,
      memoryMb: shape.limits?.memory_mb ?? null,
      pids: shape.limits?.pids ?? null,
    },
    egress: shape.egress ?? null,
    gatewayUrl: shape.gateway_url?.replace(/\/+$/, '') ?? null,
  }
  const refuse = (setting: string, why: string) => errors.configInvalid(`environments.${name}.${setting}: ${why}`)
  if (provider === 'local' && settings.image !== null)
    throw refuse('image', 'the local provider has no images; take it out, or set "provider": "docker"')
  if (provider !== 'kubernetes' && settings.egress !== null && settings.gatewayUrl !== null)
    throw refuse(
      'gateway_url',
      'with egress the gateway is reached through a relay, at an address of its own; take one of the two out',
    )
  if (provider === 'kubernetes' && settings.limits.pids !== null)
    throw refuse(
      'limits.pids',
      'it is set for a whole cluster (podPidsLimit of its kubelets), not for a pod; take it out',
    )
  if (provider === 'kubernetes' && shape.mounts !== undefined)
    throw refuse('mounts', "a pod has none of this host's files; put them into its image")
  if (provider !== 'local' && settings.image === null)
    throw refuse('image', `the ${provider} provider needs one, for example "image": "node:22-bookworm"`)
  return settings
}

function secretsOf(
  name: string,
  { secrets = {} }: Static<typeof EnvironmentShape>,
  wanted: 'setup' | 'agent',
  env: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(secrets)
      .filter(([, { phase = 'agent' }]) => phase === wanted)
      .map(([variable, { from }]) => [variable, secretValue(`environments.${name}.secrets.${variable}`, from, env)]),
  )
}

/** Masking needs a length that ordinary text does not have by chance. */
const MIN_SECRET_CHARACTERS = 6

/** The value of `env:NAME` or `file:PATH`; the line end of a file does not count. Never part of an error. */
export function secretValue(setting: string, from: string, env: Readonly<Record<string, string | undefined>>): string {
  const [kind = '', ...rest] = from.split(':')
  const place = rest.join(':')
  const refuse = (why: string, cause?: unknown) => errors.configInvalid(`${setting} (from ${from}): ${why}`, {}, cause)
  let value: string | undefined
  try {
    value = kind === 'env' ? env[place] : readFileSync(place, 'utf8').replace(/\r?\n$/, '')
  } catch (cause) {
    throw refuse(`the file cannot be read: ${messageOf(cause)}`, cause)
  }
  if (value === undefined || value === '')
    throw refuse(kind === 'env' ? "it is not set in the server's environment, or empty" : 'the file is empty')
  if (value.includes('\0')) throw refuse('it holds a NUL byte, which no variable can; store it encoded')
  if (value.trim().length < MIN_SECRET_CHARACTERS)
    throw refuse(`it has fewer than ${MIN_SECRET_CHARACTERS} characters, so it could not be masked in what comes back`)
  return value
}
