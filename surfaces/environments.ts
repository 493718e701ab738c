/** The configured environments as the orchestrator needs them: defaults, harness and provider, or the sentence why not. */
import { accessSync, constants, existsSync, realpathSync } from 'node:fs'
import { dirname, isAbsolute, join } from 'node:path'
import type { Config, Environment } from '../domain/config.ts'
import { errors } from '../domain/errors.ts'
import type { Provider } from '../domain/sandbox.ts'
import { createCommandHarness } from '../orchestrator/harnesses/command.ts'
import type { EnvironmentDefaults } from '../orchestrator/sessions.ts'
import type { TurnEnvironment } from '../orchestrator/turn-context.ts'

export interface Environments {
  /** Throws `not_found` or `harness_unusable`. */
  defaults(name: string): EnvironmentDefaults
  forTurns(name: string): TurnEnvironment
}

/** Where a sandbox of the local provider looks for programs, after the environment's own `path`. */
const SANDBOX_PATH = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']

export function createEnvironments({ config, local }: { config: Config; local: Provider }): Environments {
  const find = (name: string): Environment & { argv: readonly string[] } => {
    const environment = config.environments.get(name)
    if (environment === undefined)
      throw errors.notFound(
        `there is no environment ${JSON.stringify(name)}; there is ${[...config.environments.keys()].join(', ')}`,
      )
    const { argv } = environment
    if (argv === null)
      throw errors.harnessUnusable(
        `environment ${name} has no agent program; set environments.${name}.harness_options.argv in ${join(config.dataDir, 'hangar.config.json')}, ` +
          'for example {"environments": {"default": {"harness_options": {"argv": ["sh", "/srv/agents/demo.sh"]}}}}, and start the server again',
      )
    return { ...environment, argv }
  }
  return {
    defaults: (name) => {
      const environment = find(name)
      checkProgram(environment, environment.argv)
      return { harness: environment.harness, timeoutMs: environment.timeoutMs, budget: environment.budget }
    },
    forTurns: (name) => {
      const { argv, env, secrets, path, mounts } = find(name)
      return {
        env,
        secrets,
        path,
        mounts: [...mounts, ...filesOf(argv)],
        provider: local,
        harness: createCommandHarness({ argv }),
      }
    },
  }
}

/** An unknown program is refused before anything is begun. */
function checkProgram(environment: Environment, argv: readonly string[]): void {
  const [program = ''] = argv
  const places = isAbsolute(program)
    ? [program]
    : [...environment.path, ...SANDBOX_PATH].map((dir) => join(dir, program))
  if (program.includes('/') && !isAbsolute(program)) return
  if (places.some(isExecutable)) return
  throw errors.harnessUnusable(
    `the agent program ${program} of environment ${environment.name} is not installed; install it, or name its directory in environments.${environment.name}.path`,
  )
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/** Files of the host that the argv names: they must be there inside as well. */
function filesOf(argv: readonly string[]): string[] {
  return argv
    .filter((word) => isAbsolute(word) && existsSync(word))
    .flatMap((file) => [file, realpathSync(file)])
    .filter((file) => dirname(file) !== '/')
}
