/** What large payloads cost the server's own process: `hangar serve` as a child, bundles, patches and artifacts through it, its memory read from /proc. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

const MB = 1_048_576
const MAIN = fileURLToPath(new URL('../cli/main.js', import.meta.url))

/** Bytes that the process holds now, and the most since the last look; null where there is no /proc. */
export interface Memory {
  readonly now: number
  readonly peak: number
}

export interface PayloadServer {
  /** Sends a payload through and says whether it came out byte by byte. */
  bundle(megabytes: number): Promise<boolean>
  patch(megabytes: number): Promise<boolean>
  artifacts(sizes: readonly number[]): Promise<boolean>
  /** Sends a bundle that is refused once it has been read whole. */
  refusedBundle(megabytes: number): Promise<boolean>
  memory(): Memory | null
  /** Waits until the server is idle, and forgets the peak so far. */
  settle(): Promise<void>
  close(): Promise<void>
}

/** Starts a server on temporary data with one small repo; its agent does what it is told. */
export async function startPayloadServer(): Promise<PayloadServer> {
  const root = mkdtempSync(join(tmpdir(), 'hangar-payloads-'))
  const agent = join(root, 'agent.sh')
  writeFileSync(agent, '#!/bin/sh\nread -r line; eval "$line"\n')
  chmodSync(agent, 0o755)
  mkdirSync(join(root, 'data'))
  mkdirSync(join(root, 'home'))
  const config = { environments: { default: { harness_options: { argv: ['sh', agent] } } } }
  writeFileSync(join(root, 'data', 'hangar.config.json'), JSON.stringify(config))
  const child = spawn(process.execPath, [MAIN, 'serve'], {
    env: {
      PATH: process.env['PATH'] ?? '/usr/bin:/bin',
      HOME: join(root, 'home'),
      XDG_CONFIG_HOME: join(root, 'config'),
      HANGAR_DATA: join(root, 'data'),
      HANGAR_LISTEN: '127.0.0.1:0',
      HANGAR_LOG: 'warn',
    },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const end = () => void child.kill('SIGKILL')
  process.once('exit', end)
  const url = await new Promise<string>((resolve, reject) => {
    let said = ''
    child.stderr.on('data', (chunk) => {
      said += String(chunk)
      const found = /hangar serves (\S+),/.exec(said)?.[1]
      if (found !== undefined) resolve(found)
    })
    child.once('exit', () => reject(new Error(`the server did not start: ${said}`)))
  })
  const { token } = JSON.parse(readFileSync(join(root, 'config', 'hangar', 'cli.json'), 'utf8')) as { token: string }
  const client = createClient({ root, url, token })
  await client.prepare()
  return {
    bundle: client.bundle,
    patch: client.patch,
    artifacts: client.artifacts,
    refusedBundle: client.refusedBundle,
    memory: () => memoryOf(child),
    settle: async () => {
      await sleep(1_000)
      if (child.pid !== undefined && memoryOf(child) !== null) writeFileSync(`/proc/${child.pid}/clear_refs`, '5')
    },
    close: async () => {
      child.kill('SIGTERM')
      for (let tries = 0; tries < 100 && child.exitCode === null && child.signalCode === null; tries++) await sleep(100)
      end()
      process.removeListener('exit', end)
      rmSync(root, { recursive: true, force: true, maxRetries: 5 })
    },
  }
}

function memoryOf(child: ChildProcess): Memory | null {
  try {
    const status = readFileSync(`/proc/${child.pid}/status`, 'utf8')
    const field = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)?.[1] ?? 0) * 1_024
    return { now: field('VmRSS'), peak: field('VmHWM') }
  } catch {
    return null
  }
}

function createClient({ root, url, token }: { root: string; url: string; token: string }) {
  const dir = join(root, 'client')
  const files = new Map<string, string>()
  let count = 0
  const git = (...args: string[]): string =>
    execFileSync('git', ['-c', `http.${url}/.extraHeader=Authorization: Bearer ${token}`, ...args], {
      cwd: dir,
      env: {
        PATH: process.env['PATH'] ?? '',
        GIT_CONFIG_GLOBAL: '/dev/null',
        GIT_CONFIG_NOSYSTEM: '1',
        GIT_AUTHOR_NAME: 'A Developer',
        GIT_AUTHOR_EMAIL: 'dev@example.com',
        GIT_COMMITTER_NAME: 'A Developer',
        GIT_COMMITTER_EMAIL: 'dev@example.com',
      },
      maxBuffer: 256 * MB,
    }).toString('latin1')
  const call = async (method: string, path: string, body?: unknown): Promise<Response> => {
    const response = await fetch(url + path, {
      method,
      headers: {
        Authorization: `Bearer ${token}`,
        'Content-Type': 'application/json',
        'Idempotency-Key': `${++count}`,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`)
    return response
  }
  /** Runs a session to the end of its first turn, lets it be looked at, and deletes it. */
  const session = async (
    message: string,
    context: readonly object[],
    look: (name: string, said: string) => Promise<boolean>,
  ) => {
    const name = `payload-${++count}`
    await call('POST', '/api/sessions', { name, repo: 'bench/payloads', message, context })
    const waited = await call('GET', `/api/sessions/${name}/wait?timeout_seconds=300`)
    const turn = (await waited.json()) as { outcome: string; summary: string | null }
    if (turn.outcome !== 'exited') throw new Error(`the turn of ${name} ended ${JSON.stringify(turn)}`)
    const good = await look(name, turn.summary ?? '')
    await call('POST', `/api/sessions/${name}/close`, { delete: true })
    return good
  }
  /** A file of random bytes (or lines of text) on a commit of its own, made once a size. */
  const payload = (kind: 'bundle' | 'patch', megabytes: number): string => {
    const key = `${kind}-${megabytes}`
    const known = files.get(key)
    if (known !== undefined) return known
    const file = join(root, key)
    git('checkout', '-q', '--detach', 'main')
    const make = kind === 'bundle' ? `head -c ${megabytes * MB}` : `head -c ${Math.floor(megabytes * MB * 0.73)}`
    execFileSync('sh', ['-c', `${make} /dev/urandom ${kind === 'bundle' ? '' : '| base64'} >'${join(dir, 'payload')}'`])
    git('add', 'payload')
    if (kind === 'patch') git('diff', '--binary', '--cached', `--output=${file}`)
    git('commit', '-q', '-m', key)
    if (kind === 'bundle') git('bundle', 'create', '-q', file, 'HEAD', '--not', 'main')
    files.set(key, file)
    files.set(`${key} is`, git('rev-parse', 'HEAD:payload').trim())
    return file
  }
  const arrives = (key: string) => async (_name: string, said: string) => said.trim() === files.get(`${key} is`)
  const SHOW = 'hangar-agent done "$(git hash-object payload)"'
  return {
    prepare: async () => {
      mkdirSync(dir)
      git('init', '-q', '-b', 'main')
      writeFileSync(join(dir, 'a'), 'one\n')
      git('add', 'a')
      git('commit', '-q', '-m', 'base')
      await call('POST', '/api/repos', { slug: 'bench/payloads' })
      git('push', '-q', `${url}/git/bench/payloads.git`, 'main')
    },
    bundle: (megabytes: number) => {
      const content = readFileSync(payload('bundle', megabytes)).toString('base64')
      const item = { kind: 'bundle', content, base_commit: git('rev-parse', 'main').trim() }
      return session(SHOW, [item], arrives(`bundle-${megabytes}`))
    },
    refusedBundle: async (megabytes: number) => {
      const content = readFileSync(payload('bundle', megabytes)).toString('base64')
      const item = { kind: 'bundle', content, base_commit: 'a'.repeat(40) }
      const body = { name: 'payload-refused', repo: 'bench/payloads', message: 'true', context: [item] }
      const answer = await call('POST', '/api/sessions', body).catch((error: unknown) => String(error))
      return typeof answer === 'string' && answer.includes('missing_commits')
    },
    patch: (megabytes: number) => {
      const content = readFileSync(payload('patch', megabytes)).toString('base64')
      return session(SHOW, [{ kind: 'patch', content, encoding: 'base64' }], arrives(`patch-${megabytes}`))
    },
    artifacts: (sizes: readonly number[]) => {
      const make = sizes.map((size, at) => `head -c ${size * MB} /dev/urandom >"$HANGAR_IO/out/artifacts/${at}"`)
      return session(
        `${make.join('; ')}; hangar-agent done "$(cd "$HANGAR_IO/out/artifacts"; sha256sum *)"`,
        [],
        async (name, said) => {
          for (const [at, line] of said.trim().split('\n').entries()) {
            const got = await call('GET', `/api/sessions/${name}/artifacts/1/${at}`)
            const hash = createHash('sha256')
              .update(Buffer.from(await got.arrayBuffer()))
              .digest('hex')
            if (!line.startsWith(hash)) return false
          }
          return said.trim().split('\n').length === sizes.length
        },
      )
    },
  }
}
