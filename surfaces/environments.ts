/** The configured environments as the orchestrator needs them: defaults, harness and provider, or the sentence why not. */
import { existsSync, realpathSync } from 'node:fs'
import { dirname, isAbsolute, join } from 'node:path'
import type { Config } from '../domain/config.ts'
import type { Environment, ProviderKind } from '../domain/environment.ts'
import { errors } from '../domain/errors.ts'
import type { Harness } from '../domain/harness.ts'
import type { Provider, SandboxLimits } from '../domain/sandbox.ts'
import { notKept } from '../orchestrator/providers/local-limits.ts'
import type { EnvironmentDefaults } from '../orchestrator/sessions.ts'
import type { TurnEnvironment } from '../orchestrator/turn-context.ts'
import { findProgram, harnessOf, programOf } from './harnesses.ts'

export interface Environments {
  /** Throws `not_found` or `harness_unusable`. */
  defaults(name: string): EnvironmentDefaults
  forTurns(name: string): TurnEnvironment
}

export interface EnvironmentsDeps {
  readonly config: Config
  /** By kind, as environments name them. */
  readonly providers: ReadonlyMap<ProviderKind, Provider>
  /** The URL at which this host reaches the server. */
  readonly url: string
}

/** Throws `config_invalid` for an environment with a limit that its provider cannot keep: one that is set and not kept protects nobody. */
export function createEnvironments({ config, providers, url }: EnvironmentsDeps): Environments {
  for (const environment of config.environments.values()) checkLimits(environment, providers)
  const find = (name: string): { environment: Environment; harness: Harness } => {
    const environment = config.environments.get(name)
    if (environment === undefined)
      throw errors.notFound(
        `there is no environment ${JSON.stringify(name)}; there is ${[...config.environments.keys()].join(', ')}`,
      )
    const harness = harnessOf(environment)
    if (harness === null)
      throw errors.harnessUnusable(
        `environment ${name} has no agent program; set environments.${name}.harness_options.argv in ${join(config.dataDir, 'hangar.config.json')}, ` +
          'for example {"environments": {"default": {"harness_options": {"argv": ["sh", "/srv/agents/demo.sh"]}}}}, and start the server again',
      )
    return { environment, harness }
  }
  return {
    defaults: (name) => {
      const { environment } = find(name)
      checkProgram(environment)
      const { harness, timeoutMs, budget, jobs } = environment
      return { harness, timeoutMs, budget, jobs }
    },
    forTurns: (name) => {
      const { environment, harness } = find(name)
      const { env, setup, setupSecrets, secrets, path, mounts, harnessOptions, image, limits, egress } = environment
      const { maxUntrackedBytes, idleSuspendMs } = environment
      const { verify } = environment.jobs
      const provider = providers.get(environment.provider)
      if (provider === undefined) throw errors.internal(`there is no provider ${environment.provider}`)
      return {
        env,
        setup,
        setupSecrets,
        secrets,
        path,
        mounts: [...mounts, ...filesOf(harnessOptions.argv ?? [])],
        image,
        limits,
        maxUntrackedBytes,
        egress,
        gatewayUrl: environment.gatewayUrl ?? provider.gatewayUrl(url, egress),
        provider,
        harness,
        model: harnessOptions.model,
        verify,
        idleSuspendMs,
        warnings: [],
      }
    },
  }
}

function checkLimits({ name, provider, limits }: Environment, providers: ReadonlyMap<ProviderKind, Provider>): void {
  const kept = providers.get(provider)?.capabilities().limits ?? []
  for (const [limit, value] of Object.entries(limits) as [keyof SandboxLimits, number | null][])
    if (value !== null && !kept.includes(limit))
      throw errors.configInvalid(
        `environments.${name}.limits: ${provider === 'local' ? notKept(limit) : `${provider} cannot keep ${limit}`}`,
      )
}

/** An unknown program is refused before anything is begun. */
function checkProgram(environment: Environment): void {
  // Of an image only a sandbox of it can tell.
  if (environment.provider !== 'local' || findProgram(environment) !== null) return
  throw errors.harnessUnusable(
    `the agent program ${programOf(environment)} of environment ${environment.name} is not installed; install it, or name its directory in environments.${environment.name}.path`,
  )
}

/** Files of the host that the argv names: they must be there inside as well. */
function filesOf(argv: readonly string[]): string[] {
  return argv
    .filter((word) => isAbsolute(word) && existsSync(word))
    .flatMap((file) => [file, realpathSync(file)])
    .filter((file) => dirname(file) !== '/')
}
