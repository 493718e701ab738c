import { spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { git, killGit, runGit, spawnGit, startGitFromSmallProcess } from '../../gateway/git/process.ts'
import { gitServerOf } from './git-server.ts'

/** The processes that start git for one. */
function starters(parentPid = process.pid): number[] {
  return readdirSync('/proc')
    .filter((pid) => /^\d+$/.test(pid))
    .filter((pid) => {
      try {
        const parent = Number(/^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
        return parent === parentPid && readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('starter-process')
      } catch {
        return false
      }
    })
    .map(Number)
}

const shell = (script: string, more: Partial<Parameters<typeof runGit>[0]> = {}) =>
  runGit({ args: ['-c', `alias.x=!${script}`, 'x'], ...more })

t.test('git that a small process starts is like a child of our own', async (t) => {
  const stop = await startGitFromSmallProcess()
  t.teardown(stop)
  const [starter = 0] = starters()
  t.ok(starter > 0)
  const place = readFileSync(`/proc/${starter}/cmdline`, 'utf8').split('\0').at(-2) ?? ''
  t.equal(statSync(dirname(place)).mode & 0o777, 0o700, 'only this user reaches it')
  t.notMatch(readFileSync(`/proc/${starter}/environ`, 'latin1'), /PATH|HOME/)
  t.equal(String((await shell('echo $PPID >&2; ps -o ppid= -p $PPID')).stdout).trim(), String(starter))

  const many = Array.from({ length: 40 }, (_, at) =>
    shell(`cat; echo ${at} >&2; exit ${at % 3}`, { input: Buffer.from(`<${at}>`) }),
  )
  for (const [at, { exitCode, stdout, stderr }] of (await Promise.all(many)).entries())
    t.strictSame([exitCode, String(stdout), stderr], [at % 3, `<${at}>`, `${at}\n`])

  const bytes = randomBytes(20_000_000)
  const back = await shell('cat', { input: bytes })
  t.equal(Buffer.compare(back.stdout, bytes), 0)
  t.equal((await shell('head -c 5 >/dev/null', { input: bytes })).exitCode, 0, 'a git that does not read all')
  t.equal(String((await shell('cat <&3', { secretInput: Buffer.from('a secret') })).stdout), 'a secret')
  t.match(String(await git({ args: ['version'], maxMemoryBytes: 1 << 30 })), /git version/)
  t.equal(String((await shell('ulimit -v', { maxMemoryBytes: 1 << 30 })).stdout), `${1 << 20}\n`)
  await t.rejects(runGit({ cwd: '/nonexistent/x', args: ['version'] }), { code: 'git_failed' })
  await t.rejects(shell('exec sleep 60', { timeoutMs: 300 }), { code: 'limit_passed' })

  const file = join(t.testdir(), 'out')
  writeFileSync(file, '')
  const child = spawnGit({ args: ['version'], output: file })
  child.stdin.end()
  t.equal(await new Promise((resolve) => child.once('close', resolve)), 0)
  t.match(readFileSync(file, 'utf8'), /^git version/)

  const early = spawnGit({ args: ['-c', 'alias.x=!exec sleep 60', 'x'] })
  killGit(early)
  early.stderr.resume()
  t.equal(await new Promise((resolve) => early.once('exit', (_status, signal) => resolve(signal))), 'SIGTERM')
})

t.test('a server works the same with it', async (t) => {
  const stop = await startGitFromSmallProcess()
  t.teardown(stop)
  const s = await gitServerOf(t)
  const work = await s.work('work')
  const content = randomBytes(5_000_000)
  writeFileSync(join(work, 'random'), content)
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-qm', 'large')
  const pushed = await s.git(work, 'push', '-q', 'origin', 'main')
  t.equal(pushed.code, 0, pushed.err)
  for (const name of ['one', 'two']) {
    t.equal((await s.git(work, 'clone', '-q', s.as('hgs_fix'), name)).code, 0)
    const read = readFileSync(join(work, name, 'random'))
    t.equal(createHash('sha1').update(read).digest('hex'), createHash('sha1').update(content).digest('hex'))
  }
  await s.git(work, 'commit', '-q', '--allow-empty', '-m', 'more')
  t.equal((await s.git(work, 'push', '-q', 'origin', 'main')).code, 0)
  t.equal((await s.git(join(work, 'one'), 'pull', '-q')).code, 0)
})

t.test('where it is lost git is started from here, and what it had started is given up', async (t) => {
  const stop = await startGitFromSmallProcess()
  t.teardown(stop)
  const [starter = 0] = starters()
  const waiting = runGit({ args: ['-c', 'alias.x=!exec sleep 5', 'x'] })
  waiting.catch(() => {})
  t.match(String(await git({ args: ['version'] })), /git version/)
  process.kill(starter, 'SIGKILL')
  await t.rejects(waiting, { code: 'git_failed' })
  t.match(String(await git({ args: ['version'] })), /git version/)
  const again = await startGitFromSmallProcess()
  t.equal(starters().length, 1)
  await again()
  for (let tries = 0; tries < 100 && starters().length > 0; tries++) await sleep(50)
  t.strictSame(starters(), [], 'it ends when it is closed')
})

for (const [what, below] of [
  ['', '.'],
  [', also where a directory is too deep for a socket', 'x'.repeat(120)],
] as const) {
  t.test(`it ends with a server that is killed, and leaves nothing on the disk${what}`, async (t) => {
    const top = mkdtempSync(join(tmpdir(), 'hangar-starter-'))
    const dir = join(top, below)
    mkdirSync(dir, { recursive: true })
    const module = new URL('../../gateway/git/process.js', import.meta.url)
    const program = `
      const { runGit, startGitFromSmallProcess } = await import(${JSON.stringify(module.href)})
      await startGitFromSmallProcess()
      console.log('started')
      // Some end after their server, which cannot be told.
      for (;;) await Promise.all(Array.from({ length: 20 }, () => runGit({ args: ['version'] })))
    `
    const parent = spawn(process.execPath, ['--input-type=module', '-e', program], {
      env: { ...process.env, TMPDIR: dir },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    t.teardown(() => {
      parent.kill('SIGKILL')
      rmSync(top, { recursive: true, force: true })
    })
    let said = ''
    parent.stderr.on('data', (chunk: Buffer) => {
      said += chunk.toString('utf8')
    })
    await Promise.race([once(parent.stdout, 'data'), once(parent, 'exit')])
    const [starter = 0] = starters(parent.pid)
    t.ok(starter > 0)
    const socket = readFileSync(`/proc/${starter}/cmdline`, 'utf8').split('\0').at(-2) ?? ''
    t.ok(existsSync(socket), 'the socket is where it was meant to be')
    await sleep(300)
    parent.kill('SIGKILL')
    const isThere = () => readdirSync('/proc').includes(String(starter))
    for (let tries = 0; tries < 100 && isThere(); tries++) await sleep(50)
    t.notOk(isThere())
    t.notOk(existsSync(dirname(socket)))
    t.strictSame(readdirSync(dir), [])
    t.equal(said, '')
  })
}
