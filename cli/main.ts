#!/usr/bin/env node
/** The client program: its commands, and the one place where it ends with a sentence and an exit status. */
import { CommanderError } from 'commander'
import { EXIT, Failure } from './failure.ts'
import { createProgram } from './program.ts'

// A reader that went away (hangar … | head) is no failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) =>
  process.exit(error.code === 'EPIPE' ? EXIT.done : EXIT.unavailable),
)

try {
  await createProgram().parseAsync()
} catch (error) {
  process.exitCode = endOf(error)
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
