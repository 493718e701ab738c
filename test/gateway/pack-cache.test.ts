import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { existsSync, mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { GIT_STARTED, type spawnGit } from '../../gateway/git/process.ts'
import type { Repository } from '../../gateway/git/repository.ts'
import { createPackCache, type KeptAnswer } from '../../gateway/pack-cache.ts'
import { type GitServer, gitServerOf, SLUG } from './git-server.ts'

/** Counts the upload-packs that are started from now on. */
function countGits(t: Test): () => number {
  let count = 0
  const onStart = (message: unknown) => {
    if ((message as { command: string }).command === 'upload-pack') count++
  }
  subscribe(GIT_STARTED, onStart)
  t.teardown(() => unsubscribe(GIT_STARTED, onStart))
  return () => count
}

const pkt = (text: string) => (text.length + 4).toString(16).padStart(4, '0') + text
const wantBody = (oid: string, ...lines: string[]) =>
  `${pkt('command=fetch')}0001${[...lines, 'no-progress', `want ${oid}\n`, 'done\n'].map(pkt).join('')}0000`

/** Posts a fetch of protocol v2 and gives the answer, or with `read: false` leaves it unread. */
function post(s: GitServer, secret: string, body: string, read = true): Promise<{ text: string; end: () => void }> {
  return new Promise((resolve, reject) => {
    const sent = request(`${s.url}/git-upload-pack`, {
      method: 'POST',
      agent: false,
      headers: {
        authorization: `Basic ${Buffer.from(`x:${secret}`).toString('base64')}`,
        'git-protocol': 'version=2',
        'content-type': 'application/x-git-upload-pack-request',
      },
    })
    sent.once('error', reject)
    sent.once('response', (answer) => {
      const end = () => sent.destroy()
      answer.on('error', () => {})
      if (!read) return resolve({ text: '', end })
      let text = ''
      answer.setEncoding('latin1')
      answer.on('data', (chunk: string) => {
        text += chunk
      })
      answer.once('end', () => resolve({ text, end }))
    })
    sent.end(body)
  })
}

const cacheFiles = (s: GitServer) => {
  const dir = join(s.repo.dir, 'pack-cache')
  return existsSync(dir) ? readdirSync(dir) : []
}

t.test('many who clone one base at once are answered by one git, and by none later', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  writeFileSync(join(work, 'random'), randomBytes(3_000_000))
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-qm', 'base')
  await s.git(work, 'push', '-q', 'origin', 'main', 'main:refs/heads/a-branch')
  const base = await s.ref('refs/heads/main')
  const gits = countGits(t)
  const clone = async (secret: string, name: string, ...args: string[]) => {
    const cloned = await s.git(work, 'clone', '-q', ...args, s.as(secret), name)
    t.equal(cloned.code, 0, cloned.err)
    t.equal((await s.git(join(work, name), 'fsck', '--strict')).code, 0)
    t.equal((await s.git(join(work, name), 'rev-parse', 'HEAD')).out.trim(), base)
  }
  const callers = ['hgs_fix', 'hgs_two', 'hgt_read', 'hgt_admin', 'hgs_fix', 'hgs_two']
  await Promise.all(callers.map((secret, at) => clone(secret, `c${at}`)))
  t.equal(gits(), 1)
  t.equal(cacheFiles(s).length, 1)
  await clone('hgs_fork', 'later')
  t.equal(gits(), 1)
  for (const args of [['--depth=1'], ['--filter=blob:none', '--no-checkout'], ['-c', 'protocol.version=0']]) {
    const before = gits()
    await clone('hgs_fix', `one-${before}`, ...args)
    t.equal(gits(), before + 1, `${args} is another question`)
    await clone('hgs_two', `two-${before}`, ...args)
    t.equal(gits(), before + 1, `${args} is not asked of git again`)
  }
})

t.test('a kept answer is given only to those who see what it holds', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  writeFileSync(join(work, 'own'), 'of the second session\n')
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-qm', 'own')
  t.equal((await s.git(work, 'push', '-q', s.as('hgs_two'), 'HEAD:refs/heads/hangar/second')).code, 0)
  const own = (await s.git(work, 'rev-parse', 'HEAD')).out.trim()
  const file = (await s.git(work, 'rev-parse', 'HEAD:own')).out.trim()
  for (const oid of [own, file]) {
    t.match((await post(s, 'hgs_two', wantBody(oid))).text, /packfile/)
    t.match((await post(s, 'hgt_read', wantBody(oid))).text, /packfile/)
    const gits = countGits(t)
    t.match((await post(s, 'hgs_two', wantBody(oid))).text, /packfile/)
    t.equal(gits(), 0, 'it is kept')
    for (const other of ['hgs_fix', 'hgs_fork']) {
      const { text } = await post(s, other, wantBody(oid))
      t.match(text, /ERR upload-pack: not our ref/)
      t.notMatch(text, /packfile|PACK/)
    }
  }
  // A ref that goes takes the answer with it.
  const tip = await s.ref('refs/heads/hangar/second')
  const zero = '0'.repeat(40)
  await s.repo.refs.transact([{ ref: 'refs/heads/hangar/second', old: tip, new: zero }] as never)
  for (const oid of [own, file]) t.match((await post(s, 'hgs_two', wantBody(oid))).text, /ERR upload-pack: not our ref/)
})

t.test('what moved since is in the next answer, tags among it', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const old = await s.ref('refs/heads/main')
  const gits = countGits(t)
  const ask = () => post(s, 'hgs_fix', wantBody(old ?? '', 'include-tag'))
  const first = await ask()
  t.equal((await ask()).text, first.text)
  t.equal(gits(), 1)
  await s.git(work, 'tag', '-a', '-m', 'a tag', 'v1')
  await s.git(work, 'push', '-q', 'origin', 'v1')
  const tagged = await ask()
  t.equal(gits(), 2)
  t.not(tagged.text, first.text, 'the tag object is with it')
  t.equal((await post(s, 'hgs_fix', wantBody(old ?? ''))).text.length < tagged.text.length, true)
  await s.git(work, 'commit', '-q', '--allow-empty', '-m', 'more')
  await s.git(work, 'push', '-q', 'origin', 'main')
  for (const name of ['one', 'two']) {
    await s.git(work, 'clone', '-q', s.as('hgs_fix'), name)
    t.equal((await s.git(join(work, name), 'rev-parse', 'origin/main')).out.trim(), await s.ref('refs/heads/main'))
    t.equal((await s.git(join(work, name), 'rev-parse', 'v1^{}')).out.trim(), old)
  }
})

t.test('a reader that stands still keeps no slot, and nobody else waiting', async (t) => {
  const s = await gitServerOf(t, { limits: { maxGitProcesses: 1 } })
  const work = await s.work('work')
  writeFileSync(join(work, 'random'), randomBytes(20_000_000))
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-qm', 'big')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const oid = (await s.ref('refs/heads/main')) ?? ''
  const gits = countGits(t)
  const still = await post(s, 'hgs_fix', wantBody(oid), false)
  const cloned = await s.git(work, 'clone', '-q', s.as('hgs_two'), 'clone')
  t.equal(cloned.code, 0, cloned.err)
  t.ok((await post(s, 'hgs_two', wantBody(oid))).text.length > 20_000_000, 'a second reader of the same')
  t.equal(gits(), 2)
  still.end()
})

t.test('what is kept goes with its repo, and with the start of a server', async (t) => {
  const s = await gitServerOf(t)
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const oid = (await s.ref('refs/heads/main')) ?? ''
  t.match((await post(s, 'hgt_admin', wantBody(oid))).text, /packfile/)
  t.equal(cacheFiles(s).length, 1)
  await s.repositories.remove(SLUG)
  t.notOk(existsSync(s.repo.dir))
  mkdirSync(join(s.repo.dir, '..'), { recursive: true })
  await s.git(join(s.repo.dir, '..'), 'init', '-q', '--bare', s.repo.dir)
  mkdirSync(join(s.repo.dir, 'pack-cache'))
  writeFileSync(join(s.repo.dir, 'pack-cache', 'half'), 'of another life')
  const again = await s.repositories.create(SLUG)
  t.strictSame(cacheFiles(s), [])
  t.equal(again.dir, s.repo.dir)
  t.notMatch((await post(s, 'hgt_admin', wantBody(oid))).text, /packfile/)
})

t.test('no cache is kept where its size is 0', async (t) => {
  const s = await gitServerOf(t, { limits: { maxPackCacheBytes: 0 } })
  const work = await s.work('work')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const gits = countGits(t)
  for (const name of ['one', 'two']) t.equal((await s.git(work, 'clone', '-q', s.as('hgs_fix'), name)).code, 0)
  t.equal(gits(), 2)
  t.strictSame(cacheFiles(s), [])
})

/** A cache over a directory, and answers made by shell scripts. */
function bareCache(t: Test, maxBytes: number, maxMs = 60_000) {
  const dir = t.testdir({ objects: { pack: {} } })
  const cache = createPackCache({ maxBytes, maxMs, log: { info() {}, warn() {}, error() {} } })
  t.teardown(() => cache.close())
  const repo = { dir, slug: null } as unknown as Repository
  const pids: number[] = []
  let released = 0
  const keep = (key: string, script: string) =>
    cache.keep(
      repo,
      key,
      (output) => {
        const child = spawn('sh', ['-c', `exec >>"$0"; ${script}`, output], {
          stdio: ['pipe', 'ignore', 'pipe'],
          detached: true,
        })
        pids.push(child.pid ?? 0)
        return child as unknown as ReturnType<typeof spawnGit>
      },
      () => released++,
    )
  const files = () => readdirSync(join(dir, 'pack-cache'))
  return { cache, repo, keep, pids, files, dir, released: () => released }
}

async function textOf(answer: KeptAnswer | null): Promise<string> {
  const chunks: Buffer[] = []
  try {
    for await (const chunk of answer?.chunks() ?? []) chunks.push(Buffer.from(chunk))
  } finally {
    await answer?.leave()
  }
  return Buffer.concat(chunks).toString('latin1')
}

t.test('a git that is killed, or fails, leaves no answer behind', async (t) => {
  const { cache, repo, keep, pids, files, released } = bareCache(t, 1e9)
  const killed = await keep('key', 'echo half; exec sleep 60')
  const reading = textOf(killed)
  process.kill(pids[0] ?? 0, 'SIGKILL')
  await t.rejects(reading, { code: 'git_failed' })
  t.equal(await cache.find(repo, 'key'), null)
  t.equal(released(), 1)
  t.equal(await textOf(await keep('key', 'echo ERR no; exit 128')), 'ERR no\n', 'what git said goes out')
  t.equal(await cache.find(repo, 'key'), null)
  t.strictSame(files(), [])
  t.equal(await textOf(await keep('key', 'echo whole')), 'whole\n')
  t.equal(await textOf(await cache.find(repo, 'key')), 'whole\n')
  t.equal(pids.length, 3)
  t.equal(files().length, 1)
})

t.test('a git without readers is ended, one that takes too long as well, and one with a reader goes on', async (t) => {
  const { cache, repo, keep, pids, files } = bareCache(t, 1e9)
  const script = 'echo begun; read -r line <&0; echo ended'
  const first = await keep('key', 'echo begun; sleep 0.3; echo ended')
  const second = await cache.find(repo, 'key')
  await first?.leave()
  t.equal(await textOf(second), 'begun\nended\n', 'the first one has gone, and the second has it all')
  const alone = await keep('other', script)
  await alone?.leave()
  while (isAlive(pids[1])) await new Promise((resolve) => setTimeout(resolve, 20))
  t.equal(await cache.find(repo, 'other'), null)
  t.equal(files().length, 1)
  const late = bareCache(t, 1e9, 50)
  await t.rejects(textOf(await late.keep('key', 'echo begun; exec sleep 60')), { code: 'git_failed' })
})

function isAlive(pid: number | undefined): boolean {
  try {
    process.kill(pid ?? 0, 0)
    return true
  } catch {
    return false
  }
}

t.test('the cache stays within its size: what was not used for longest goes, what is being read stays', async (t) => {
  const { cache, repo, keep, files, dir } = bareCache(t, 1_000_000)
  const make = (key: string) => keep(key, 'head -c 250000 /dev/zero')
  const onDisk = () => files().reduce((sum, name) => sum + statSync(join(dir, 'pack-cache', name)).size, 0)
  for (const key of ['a', 'b', 'c']) await textOf(await make(key))
  const read = await cache.find(repo, 'a')
  for (const key of ['d', 'e']) await textOf(await make(key))
  t.ok(onDisk() <= 1_000_000, `${onDisk()} bytes`)
  t.equal(await cache.find(repo, 'b'), null)
  for (const key of ['d', 'e']) {
    const kept = await cache.find(repo, key)
    t.equal(kept?.size, 250_000)
    await kept?.leave()
  }
  t.equal((await textOf(read)).length, 250_000)
  t.ok(cache.load().bytes <= 1_000_000)
  // Small ones count for more than they have, so that there are not too many.
  for (let at = 0; at < 40; at++) await textOf(await keep(`small-${at}`, 'echo x'))
  t.ok(cache.load().answers <= 16, `${cache.load().answers} answers`)
  // More than the whole: it is not kept, and the caller is to ask git itself.
  writeFileSync(join(dir, 'objects', 'pack', 'pack-x.pack'), Buffer.alloc(2_000_000))
  const before = cache.load().answers
  t.equal(await keep('huge', 'exit 1'), null)
  t.equal(cache.load().answers, before, 'and nothing goes for it')
})
