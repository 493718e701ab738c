/** A server that has lost its store to another writes no more, and says so; the winner's work stands. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { RefName } from '../../domain/names.ts'
import { shell, startHangar, waitUntil } from '../stories/support.ts'

const EPOCH = 'refs/hangar/meta/epoch' as RefName

t.test('each start raises the epoch', async (t) => {
  let hangar = await startHangar(t, { agent: 'true' })
  const epoch = async () =>
    JSON.parse(await shell(join(hangar.dataDir, 'hangar.git'), `git -c safe.directory=* cat-file blob ${EPOCH}`)).epoch
  const first = await epoch()
  hangar = await hangar.restart()
  t.teardown(() => hangar.close())
  t.equal(await epoch(), first + 1)
})

t.test('what another server has taken over is not written to, loose or packed', async (t) => {
  const hangar = await startHangar(t, { agent: 'read -r line; eval "$line"' })
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await hangar.api('POST', '/api/sessions', { name: 'one', repo: 'acme/app', message: 'sleep 2; echo x >x.txt' })
  const server = join(hangar.dataDir, 'hangar.git')
  const repo = join(hangar.dataDir, 'repos', 'acme', 'app.git')
  await waitUntil(
    'the turn runs',
    async () => (await hangar.api('GET', '/api/sessions/one')).body.turns[0].state === 'running',
  )
  // As another machine that shares the disk would.
  await shell(
    server,
    `blob=$(echo '{"epoch":99}' | git -c safe.directory=* hash-object -w --stdin) && git -c safe.directory=* update-ref ${EPOCH} $blob && git -c safe.directory=* pack-refs --all`,
  )
  const before = await shell(repo, 'git -c safe.directory=* for-each-ref')
  const refused = await hangar.api('POST', '/api/sessions', { name: 'two', repo: 'acme/app', message: 'true' })
  t.equal(refused.status, 500)
  t.match(refused.body, { code: 'store_unusable', detail: /another server has taken this store over/ })
  await hangar.server.lost
  await new Promise((resolve) => setTimeout(resolve, 4_000))
  t.equal(await shell(repo, 'git -c safe.directory=* for-each-ref'), before, 'the running turn moved no ref either')
})

t.test('hangar serve ends when it finds so', async (t) => {
  const hangar = await startHangar(t, { agent: 'true' })
  await hangar.close()
  const { spawn } = await import('node:child_process')
  const { MAIN } = await import('../stories/support.ts')
  const child = spawn(process.execPath, [MAIN, 'serve'], {
    env: {
      ...process.env,
      HOME: join(hangar.dir, 'home'),
      XDG_CONFIG_HOME: join(hangar.dir, 'config'),
      HANGAR_DATA: hangar.dataDir,
      HANGAR_LISTEN: '127.0.0.1:0',
    },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr.on('data', (chunk: Buffer) => {
    said += chunk.toString('utf8')
  })
  t.teardown(() => void child.kill('SIGKILL'))
  await waitUntil('it serves', () => said.includes('hangar serves'))
  const url = /hangar serves (\S+),/.exec(said)?.[1] ?? ''
  const blob = join(hangar.dir, 'blob')
  writeFileSync(blob, '{"epoch":1000}\n')
  await shell(
    join(hangar.dataDir, 'hangar.git'),
    `git -c safe.directory=* update-ref ${EPOCH} $(git -c safe.directory=* hash-object -w ${blob})`,
  )
  const { token } = JSON.parse(readFileSync(join(hangar.dir, 'config', 'hangar', 'cli.json'), 'utf8')) as {
    token: string
  }
  await fetch(`${url}/api/repos`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
    body: '{"slug":"a/b"}',
  })
  await waitUntil('it has ended', () => child.exitCode !== null)
  t.equal(child.exitCode, 4)
  t.match(said, /another server has taken this store over; this one writes no more/)
})
