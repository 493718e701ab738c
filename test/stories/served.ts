/** `hangar serve` as a process of its own, which a story may kill with -9. */
import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import type { Test } from 'tap'
import { MAIN, waitUntil } from './support.ts'

export interface Served {
  readonly url: string
  readonly token: string
  kill(): Promise<void>
}

/** A port that nothing listens on now. */
export async function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as { port: number }
      probe.close(() => resolve(port))
    })
  })
}

/** Starts one and waits until it answers; it is killed with -9 at the end as well. */
export async function serve(
  t: Test,
  dir: string,
  env: Readonly<Record<string, string>>,
  args: readonly string[] = [],
): Promise<Served> {
  // Without the test runner's own preload, which would be handed on to whatever runs in a sandbox.
  const child: ChildProcess = spawn('env', ['-u', 'NODE_OPTIONS', process.execPath, MAIN, 'serve', ...args], {
    env: { ...env, HANGAR_LOG: 'warn' },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr?.on('data', (chunk: Buffer) => {
    said += chunk.toString()
  })
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  const kill = async () => {
    child.kill('SIGKILL')
    await ended
  }
  t.teardown(kill)
  await waitUntil(`the server answers (${said})`, () => /hangar serves (\S+),/.test(said) || child.exitCode !== null)
  const url = /hangar serves (\S+),/.exec(said)?.[1]
  if (url === undefined) throw new Error(said)
  const { token } = JSON.parse(readFileSync(join(dir, 'config', 'hangar', 'cli.json'), 'utf8')) as { token: string }
  return { url, token, kill }
}
