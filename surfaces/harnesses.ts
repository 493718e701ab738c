/** The configured agent programs as harnesses, and the program that each starts. */
import { accessSync, constants } from 'node:fs'
import { isAbsolute, join } from 'node:path'
import type { Environment } from '../domain/environment.ts'
import type { Harness, HarnessKind } from '../domain/harness.ts'
import { createAntigravityHarness } from '../orchestrator/harnesses/antigravity.ts'
import { createClaudeHarness } from '../orchestrator/harnesses/claude.ts'
import { createCodexHarness } from '../orchestrator/harnesses/codex.ts'
import { createCommandHarness } from '../orchestrator/harnesses/command.ts'
import { createPiHarness } from '../orchestrator/harnesses/pi.ts'

/** The versions whose streams were recorded and which the tests run; null: it was never run. */
export const TESTED_VERSIONS: Readonly<Record<Exclude<HarnessKind, 'command'>, string | null>> = {
  claude: '2.1.332',
  codex: '0.171.0',
  pi: '1.6.0',
  antigravity: null,
}

/** Where a sandbox of the local provider looks for programs, after the environment's own `path`. */
export const SANDBOX_PATH = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']

/** The harness of an environment; null for `command` without a program. */
export function harnessOf({ harness, harnessOptions }: Environment): Harness | null {
  const { argv, model, provider, args } = harnessOptions
  switch (harness) {
    case 'command':
      return argv === null ? null : createCommandHarness({ argv })
    case 'claude':
      return createClaudeHarness({ model, args })
    case 'codex':
      return createCodexHarness({ model, args })
    case 'pi':
      return createPiHarness({ provider, model, args })
    case 'antigravity':
      return createAntigravityHarness({ model, args })
    default:
      return harness satisfies never
  }
}

/** The program that an environment's turns start; null for `command` without one. */
export function programOf({ harness, harnessOptions }: Environment): string | null {
  if (harness === 'command') return harnessOptions.argv?.[0] ?? null
  return harness === 'antigravity' ? 'agy' : harness
}

/** Where the program of an environment is, by its own `path` and the sandbox's; one that the repository brings is taken at its word. Null when it is not there. */
export function findProgram(environment: Environment): string | null {
  const program = programOf(environment)
  if (program === null) return null
  if (program.includes('/') && !isAbsolute(program)) return program
  const places = isAbsolute(program)
    ? [program]
    : [...environment.path, ...SANDBOX_PATH].map((directory) => join(directory, program))
  return places.find(isExecutable) ?? null
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}
