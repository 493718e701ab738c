/** The configured environments as the orchestrator needs them: defaults, harness and provider, or the sentence why not. */
import { existsSync, realpathSync } from 'node:fs'
import { dirname, isAbsolute, join } from 'node:path'
import type { Config, Environment } from '../domain/config.ts'
import { errors } from '../domain/errors.ts'
import type { Harness } from '../domain/harness.ts'
import type { Provider } from '../domain/sandbox.ts'
import type { EnvironmentDefaults } from '../orchestrator/sessions.ts'
import type { TurnEnvironment } from '../orchestrator/turn-context.ts'
import { findProgram, harnessOf, programOf } from './harnesses.ts'

export interface Environments {
  /** Throws `not_found` or `harness_unusable`. */
  defaults(name: string): EnvironmentDefaults
  forTurns(name: string): TurnEnvironment
}

export function createEnvironments({ config, local }: { config: Config; local: Provider }): Environments {
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
      return { harness: environment.harness, timeoutMs: environment.timeoutMs, budget: environment.budget }
    },
    forTurns: (name) => {
      const { environment, harness } = find(name)
      const { env, secrets, path, mounts, harnessOptions, idleSuspendMs } = environment
      return {
        env,
        secrets,
        path,
        mounts: [...mounts, ...filesOf(harnessOptions.argv ?? [])],
        provider: local,
        harness,
        model: harnessOptions.model,
        idleSuspendMs,
      }
    },
  }
}

/** An unknown program is refused before anything is begun. */
function checkProgram(environment: Environment): void {
  if (findProgram(environment) !== null) return
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
