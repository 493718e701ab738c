/** What every command is given, and how its options are read. */
import { readFileSync } from 'node:fs'
import { InvalidArgumentError } from 'commander'
import { findServer, type Server } from './client.ts'
import { usage } from './failure.ts'
import { createOutput, type Output } from './output.ts'

export interface Context {
  readonly output: Output
  readonly cwd: string
  readonly env: NodeJS.ProcessEnv
  /** Found when first asked for: commands that need no server do not fail without one. */
  server(): Server
}

export function createContext(options: { readonly json?: boolean }): Context {
  let server: Server | null = null
  return {
    output: createOutput({ json: options.json === true, env: process.env }),
    cwd: process.cwd(),
    env: process.env,
    server: () => {
      server ??= findServer(process.env)
      return server
    },
  }
}

/** Collects a repeated option's values. */
export function collect(value: string, before: readonly string[]): readonly string[] {
  return [...before, value]
}

export function positiveNumber(value: string): number {
  const number = Number(value)
  if (!(number > 0)) throw new InvalidArgumentError('Give a number above 0.')
  return number
}

export function wholeNumber(value: string): number {
  if (!/^\d{1,9}$/.test(value)) throw new InvalidArgumentError('Give a whole number.')
  return Number(value)
}

/** A file that the user named with an option. */
export function readNamedFile(path: string, option: string): Buffer {
  try {
    return readFileSync(path)
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException
    const why = code === 'ENOENT' ? 'there is no such file' : cause instanceof Error ? cause.message : String(cause)
    throw usage(`${option} ${path} cannot be read: ${why}; give the path of a file`)
  }
}

/** All of standard input. */
export function readStandardInput(): Buffer {
  return readFileSync(0)
}
