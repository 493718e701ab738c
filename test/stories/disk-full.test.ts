/** An agent that fills the disk on which the server keeps everything: the turn says so, nothing is lost, and there is a way out. */
import { mkdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { serve } from './served.ts'
import { api, run, serverEnvironment, shell, temporaryDirectory } from './support.ts'

const FILL = 'echo kept >kept.txt; head -c 400000000 /dev/urandom >big; echo filled'
const TALK = 'i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; echo talked >talk.txt'

/** A file system of its own, of 200 MB; null where nobody may mount one. */
async function smallDisk(dir: string): Promise<string | null> {
  mkdirSync(dir)
  const { status, err } = await run('mount', ['-t', 'tmpfs', '-o', 'size=200m,mode=711', 'tmpfs', dir])
  return status === 0 ? null : err.trim()
}

t.test('a full disk', { timeout: 300_000 }, async (t) => {
  const dir = temporaryDirectory(t)
  const data = join(dir, 'data')
  const missing = await smallDisk(data).catch((error: Error) => error.message)
  if (missing !== null) {
    t.comment(`no small disk can be made here: ${missing}`)
    return
  }
  t.teardown(async () => void (await run('umount', ['-l', data])))
  const env = serverEnvironment(dir, { agent: 'read -r line; eval "$line"' })
  let server = await serve(t, dir, env)
  const call = (method: string, path: string, body?: unknown) => api(server.url, server.token, { method, path, body })
  const ended = async (name: string) => {
    t.match(
      await call('GET', `/api/sessions/${name}/wait?timeout_seconds=60`),
      { body: { done: true } },
      `${name} ends`,
    )
    return (await call('GET', `/api/sessions/${name}`)).body.turns.at(-1)
  }
  await call('POST', '/api/repos', { slug: 'acme/app' })
  await call('POST', '/api/sessions', { name: 'talker', repo: 'acme/app', message: TALK })
  await call('POST', '/api/sessions', { name: 'filler', repo: 'acme/app', message: FILL })

  const turn = await ended('filler')
  t.match(turn.warnings.join('\n'), /disk was full.*remove files in the sandbox/, 'the turn says what was short')
  t.match(turn.warnings.join('\n'), /no checkpoint could be made/, 'and that its work is not in git yet')
  await ended('talker')

  await server.kill()
  server = await serve(t, dir, env)
  t.match(await call('GET', '/api/sessions/filler'), { body: { state: 'idle' } }, 'a server starts on the full disk')

  await shell(data, 'head -c 400000000 /dev/urandom >rest 2>/dev/null || true')
  const refused = await call('POST', '/api/sessions', { name: 'more', repo: 'acme/app', message: 'true' })
  t.match(refused, { status: 507, body: { code: 'disk_full', detail: /close sessions .*--delete/ } })
  await shell(data, 'rm rest')

  await call('POST', '/api/sessions/filler/turns', { message: 'rm big; cat kept.txt' })
  t.match(await ended('filler'), { outcome: 'exited', summary: 'kept', warnings: [] }, 'the sandbox has all it had')
  await call('POST', '/api/sessions/talker/turns', { message: 'echo hi' })
  t.match(await ended('talker'), { outcome: 'exited', summary: 'hi' })
  for (const name of ['filler', 'talker']) await call('POST', `/api/sessions/${name}/close`, { delete: true })
  await server.kill()
  await shell(join(data, 'repos', 'acme', 'app.git'), 'git -c safe.directory=* fsck --no-dangling')
  server = await serve(t, dir, env)
  t.ok(statSync(join(data, 'reserve')).size > 10_000_000, 'the reserve is made again')
})
