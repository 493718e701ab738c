/** The command line as one tree of commands; docs/cli.md is made from it. */
import { readFileSync } from 'node:fs'
import { Command } from 'commander'
import { addAuditCommand } from './commands/audit.ts'
import { addDemoCommand } from './commands/demo.ts'
import { addDoctorCommand } from './commands/doctor.ts'
import { addInboxCommand } from './commands/inbox.ts'
import { addJobCommands } from './commands/job.ts'
import { addMcpCommand } from './commands/mcp.ts'
import { addRepoCommands } from './commands/repo.ts'
import { addServeCommand } from './commands/serve.ts'
import { addSessionCommands } from './commands/session.ts'
import { addTokenCommands } from './commands/token.ts'

const PACKAGE = new URL('../../package.json', import.meta.url)

export function createProgram(): Command {
  const program = new Command('hangar')
    .description('Hand work to coding agents in sandboxes, and get it back by git.')
    .version((JSON.parse(readFileSync(PACKAGE, 'utf8')) as { version: string }).version)
    .showHelpAfterError('(hangar COMMAND --help shows how)')
    .exitOverride()
  addServeCommand(program)
  addDemoCommand(program)
  addDoctorCommand(program)
  addSessionCommands(program)
  addJobCommands(program)
  addInboxCommand(program)
  addMcpCommand(program)
  addRepoCommands(program)
  addTokenCommands(program)
  addAuditCommand(program)
  overrideExits(program)
  return program
}

function overrideExits(command: Command): void {
  for (const sub of command.commands) {
    sub.exitOverride().showHelpAfterError('(--help shows how)')
    overrideExits(sub)
  }
}
