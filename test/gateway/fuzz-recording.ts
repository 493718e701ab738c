/** What real git sends, recorded on its way to the gateway: the stuff that the fuzzer's requests are made of. */
import { execFile } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import type { Ready } from './fuzz-server.ts'

export interface Recorded {
  readonly method: string
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: Buffer
}

/** Headers that are the transport's own, and made anew. */
const OWN = new Set(['host', 'connection', 'content-length', 'transfer-encoding', 'authorization'])

/** Clones, fetches and pushes of the session `second`, over each protocol version and with what clients may add. */
export async function record(ready: Ready, dir: string): Promise<Recorded[]> {
  const recorded: Recorded[] = []
  const proxy = createServer((req, res) => {
    const chunks: Buffer[] = []
    req.on('data', (chunk: Buffer) => chunks.push(chunk))
    req.on('end', () => {
      const body = Buffer.concat(chunks)
      const named = Object.entries(req.headers).map(([name, value]) => [name, String(value)] as const)
      const headers = Object.fromEntries(named.filter(([name]) => !OWN.has(name)))
      recorded.push({ method: req.method ?? '', path: req.url ?? '', headers, body })
      const { host: _, connection: __, ...sent } = req.headers
      const on = request(
        { host: '127.0.0.1', port: ready.port, method: req.method, path: req.url, headers: sent },
        (answer) => {
          res.writeHead(answer.statusCode ?? 502, answer.headers)
          answer.pipe(res)
        },
      )
      on.end(body)
    })
  })
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
  const { port } = proxy.address() as AddressInfo
  const url = `http://x:hgs_two@127.0.0.1:${port}/git/acme/app.git`
  mkdirSync(join(dir, 'client'))
  const git = (cwd: string, ...args: string[]) => client(join(dir, 'client', cwd), args)
  for (const version of ['0', '1', '2']) {
    const at = `v${version}`
    const v = ['-c', `protocol.version=${version}`]
    await git('.', ...v, 'clone', '-q', url, at)
    await git('.', ...v, 'clone', '-q', '--depth', '1', url, `${at}-shallow`)
    await git(`${at}-shallow`, ...v, 'fetch', '-q', '--unshallow')
    await git('.', ...v, 'clone', '-q', '--filter=blob:none', '--no-checkout', url, `${at}-partial`)
    await git(`${at}-partial`, ...v, 'checkout', '-q')
    await git(at, ...v, 'fetch', '-q', 'origin', ready.old)
  }
  writeFileSync(join(dir, 'client', 'v2', 'new.txt'), 'new\n'.repeat(30))
  await git('v2', 'add', '.')
  await git('v2', 'commit', '-qm', 'new')
  await git('v2', 'push', '-q', '--atomic', '-o', 'a=b', url, 'HEAD:refs/heads/hangar/second')
  // Behind what is there now, so that the next fetch has something to bring and much to say that it has.
  await git('v0', 'commit', '-q', '--allow-empty', '-m', 'mine')
  for (const version of ['0', '2']) await git('v0', '-c', `protocol.version=${version}`, 'fetch', '-q')
  await git('v2', 'commit', '-q', '--amend', '-m', 'amended')
  await git('v2', 'push', '-qf', url, 'HEAD:refs/heads/hangar/second', 'HEAD:refs/hangar/sessions/second/checkpoint')
  await git('v2', 'push', '-q', url, 'HEAD:refs/heads/main', ':refs/heads/topic', 'HEAD:refs/heads/hangar/csv-fix')
  proxy.closeAllConnections()
  await new Promise((resolve) => proxy.close(resolve))
  return recorded
}

/** Never throws: what is refused is recorded as well. */
function client(cwd: string, args: string[]): Promise<void> {
  const env = {
    PATH: process.env['PATH'],
    HOME: '/nonexistent',
    LC_ALL: 'C',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_CONFIG_GLOBAL: '/dev/null',
    GIT_TERMINAL_PROMPT: '0',
    GIT_AUTHOR_NAME: 'a',
    GIT_AUTHOR_EMAIL: 'a@example.com',
    GIT_COMMITTER_NAME: 'a',
    GIT_COMMITTER_EMAIL: 'a@example.com',
    GIT_AUTHOR_DATE: '2026-01-02T03:04:06Z',
    GIT_COMMITTER_DATE: '2026-01-02T03:04:06Z',
  }
  return new Promise((resolve) => {
    execFile('git', args, { cwd, env, timeout: 30_000 }, () => resolve())
  })
}
