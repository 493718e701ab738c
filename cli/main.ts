#!/usr/bin/env node
/** The client program: its commands, and the one place where it ends with a sentence and an exit status. */
import { readFileSync } from 'node:fs'
import { Command, CommanderError } from 'commander'
import { addDemoCommand } from './commands/demo.ts'
import { addDoctorCommand } from './commands/doctor.ts'
import { addRepoCommands } from './commands/repo.ts'
import { addServeCommand } from './commands/serve.ts'
import { addSessionCommands } from './commands/session.ts'
import { addTokenCommands } from './commands/token.ts'
import { EXIT, Failure } from './failure.ts'

const program = new Command('hangar')
  .description('Hand work to coding agents in sandboxes, and get it back by git.')
  .version(
    (JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string }).version,
  )
  .showHelpAfterError('(hangar COMMAND --help shows how)')
  .exitOverride()
addServeCommand(program)
addDemoCommand(program)
addDoctorCommand(program)
addSessionCommands(program)
addRepoCommands(program)
addTokenCommands(program)
overrideExits(program)

// A reader that went away (hangar … | head) is no failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) =>
  process.exit(error.code === 'EPIPE' ? EXIT.done : EXIT.unavailable),
)

try {
  await program.parseAsync()
} catch (error) {
  process.exitCode = endOf(error)
}

function overrideExits(command: Command): void {
  for (const sub of command.commands) {
    sub.exitOverride().showHelpAfterError('(--help shows how)')
    overrideExits(sub)
  }
}

/** Prints what has not been said yet, and gives the exit status. */
function endOf(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.done : EXIT.usage
  if (error instanceof Failure) {
    process.stderr.write(`hangar: ${error.message}\n`)
    return error.status
  }
  const said = error instanceof Error ? error.message : String(error)
  process.stderr.write(
    `hangar: ${said}\n${process.env['HANGAR_DEBUG'] && error instanceof Error ? `${error.stack}\n` : ''}`,
  )
  return EXIT.unavailable
}
