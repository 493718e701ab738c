/** A fork of a session begins with its parent's very work and conversation, whatever the parent is at. */
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { hostedRepo, SCRIPTED_AGENT } from './jobs-support.ts'
import { type Hangar, run, startHangar, waitUntil } from './support.ts'

const WORK = `work
! echo committed >c.txt; git add c.txt; git commit -qm c; echo staged >s.txt; git add s.txt; echo changed >>README.md; echo untracked >'u n.txt'; chmod +x 'u n.txt'; rm -f gone`

/** Prints the whole state of a checkout: HEAD's tree, index, work tree and what each file holds. */
const LOOK = `! { git log --format=%s; git status --porcelain=v1; git ls-files -s; for f in *; do echo "== $f"; cat "$f"; done; cat "$HANGAR_CONVERSATION/log"; git rev-parse --abbrev-ref HEAD; } >"$HANGAR_IO/out/artifacts/look.txt"`

const done = (hangar: Hangar, name: string) => hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=60`)
const look = async (hangar: Hangar, name: string) => {
  await hangar.api('POST', `/api/sessions/${name}/turns`, { message: LOOK })
  const { body } = await done(hangar, name)
  if (body.outcome !== 'exited') throw new Error(JSON.stringify(body))
  const turn = body.turn as number
  return (await hangar.api('GET', `/api/sessions/${name}/artifacts/${turn}/look.txt`)).bytes.toString()
}

t.test('children have the commits, the index, the uncommitted and untracked files, and the conversation', async (t) => {
  const hangar = await startHangar(t, { agent: SCRIPTED_AGENT })
  const checkout = await hostedRepo(t, hangar)
  await hangar.api('POST', '/api/sessions', { name: 'parent', repo: 'acme/app', message: WORK })
  t.equal((await done(hangar, 'parent')).body.outcome, 'exited')
  const before = await size(hangar)
  const forked = await hangar.cli(['session', 'fork', 'parent', '-n', '3', '--json'])
  t.equal(forked.status, 0, forked.err)
  const { items } = JSON.parse(forked.out)
  t.match(items, [
    { name: 'parent-fork-1', parent: 'parent', state: 'idle', branch: 'hangar/parent-fork-1', turns: [] },
    { name: 'parent-fork-2' },
    { name: 'parent-fork-3' },
  ])
  t.ok((await size(hangar)) - before < 40_000, 'the store grows by records alone')
  const patch = (name: string) => hangar.api('GET', `/api/sessions/${name}/patch`).then(({ bytes }) => bytes.toString())
  t.equal(await patch('parent-fork-1'), await patch('parent'), 'before its first turn too')
  const pulled = await hangar.cli(['session', 'pull', 'parent-fork-2', '--checkout'], { cwd: checkout })
  t.equal(pulled.status, 0, pulled.err)
  t.match((await run('git', ['status', '--porcelain'], { cwd: checkout })).out, /A {2}s\.txt\n\?\? "u n\.txt"/)
  const seen = await Promise.all([1, 2, 3].map((k) => look(hangar, `parent-fork-${k}`)))
  for (const [at, text] of seen.entries()) {
    t.match(text, `== u n.txt\nuntracked\n`)
    t.match(text, /^A {2}s\.txt$/m, 'what was staged is staged')
    t.match(text, /^ M README\.md$/m)
    t.match(text, 'turn 1\nturn 1\n', 'the conversation of the parent, then its own')
    t.match(text, `hangar/parent-fork-${at + 1}\n`, 'on its own branch')
  }
  const refused: [Record<string, unknown>, number, RegExp][] = [
    [{ n: 0 }, 400, /n/],
    [{ n: 2, names: ['a'] }, 400, /names/],
    [{ names: ['job-x'] }, 400, /belong to jobs/],
    [{ names: ['parent'] }, 409, /exists/],
    [{ names: ['fresh', 'parent'] }, 409, /exists/],
    [{ turn: 7 }, 404, /no turn 7/],
    [{ message: ' ' }, 400, /message/],
  ]
  for (const [body, status, words] of refused) {
    const answer = await hangar.api('POST', '/api/sessions/parent/fork', body)
    t.equal(answer.status, status, JSON.stringify(answer.body))
    t.match(answer.body.detail, words)
  }
  t.equal((await hangar.api('GET', '/api/sessions/fresh')).status, 404, 'all or none')
})

t.test(
  'a fork from an earlier turn, of a running, a suspended and a closed parent, and of one that is gone since',
  async (t) => {
    let hangar = await startHangar(t, { agent: SCRIPTED_AGENT })
    await hostedRepo(t, hangar)
    await hangar.api('POST', '/api/sessions', { name: 'parent', repo: 'acme/app', message: WORK })
    await done(hangar, 'parent')
    await hangar.api('POST', '/api/sessions/parent/turns', { message: '! echo second >second.txt' })
    await done(hangar, 'parent')
    const earlier = await hangar.api('POST', '/api/sessions/parent/fork', {
      turn: 1,
      names: ['earlier'],
      message: LOOK,
    })
    t.equal(earlier.status, 201, JSON.stringify(earlier.body))
    t.match((await done(hangar, 'earlier')).body, { outcome: 'exited', turn: 1 })
    const text = (await hangar.api('GET', '/api/sessions/earlier/artifacts/1/look.txt')).bytes.toString()
    t.notMatch(text, 'second', 'nothing of the later turn')
    t.match(text, 'turn 1\nturn 1\n', 'nor of its conversation')

    await hangar.api('POST', '/api/sessions/parent/turns', {
      message: '! echo live >live.txt; touch "$HANGAR_IO/../up"; sleep 30',
    })
    for (;;) {
      const patch = (await hangar.api('GET', '/api/sessions/parent/patch')).bytes.toString()
      if (patch.includes('live.txt')) break
    }
    t.equal((await hangar.api('POST', '/api/sessions/parent/fork', { names: ['of-running'] })).status, 201)
    await hangar.api('POST', '/api/sessions/parent/cancel')
    await done(hangar, 'parent')
    await hangar.api('POST', '/api/sessions/parent/suspend')
    t.equal((await hangar.api('POST', '/api/sessions/parent/fork', { names: ['of-suspended'] })).status, 201)
    await hangar.api('POST', '/api/sessions/parent/close')
    t.equal((await hangar.api('POST', '/api/sessions/parent/fork', { names: ['of-closed'] })).status, 201)
    await hangar.api('POST', '/api/sessions/parent/close', { delete: true })
    hangar = await hangar.restart({ reindex: true })
    t.teardown(() => hangar.close())
    for (const name of ['of-running', 'of-suspended', 'of-closed']) {
      const seen = await look(hangar, name)
      t.match(seen, '== live.txt\nlive\n', `${name} has the newest work`)
      t.match(seen, /^A {2}s\.txt$/m)
    }
    await hangar.api('POST', '/api/sessions/of-closed/fork', { names: ['grandchild'] })
    t.match(await look(hangar, 'grandchild'), '== live.txt')
  },
)

t.test("a later session of its parent's name is not seen by a child's sandbox", async (t) => {
  let hangar = await startHangar(t, { agent: SCRIPTED_AGENT })
  await hostedRepo(t, hangar)
  await hangar.api('POST', '/api/sessions', { name: 'parent', repo: 'acme/app', message: WORK })
  await done(hangar, 'parent')
  const list = (file: string) =>
    `git ls-remote origin >"$HANGAR_IO/out/artifacts/${file}"; touch "$HANGAR_CONVERSATION/${file}"`
  const wait = (file: string) => `while ! test -e "$HANGAR_CONVERSATION/${file}"; do sleep 0.1; done`
  const place = async (file: string) => {
    const { sandbox } = (await hangar.api('GET', '/api/sessions/child')).body
    return join(hangar.dataDir, 'sandboxes', sandbox?.id ?? '', 'home', '.hangar', 'conversation', file)
  }
  const listed = (file: string) => waitUntil(file, async () => existsSync(await place(file)))
  const go = async (file: string) => writeFileSync(await place(file), '')
  const seen = async (turn: number, file: string) =>
    (await hangar.api('GET', `/api/sessions/child/artifacts/${turn}/${file}`)).bytes.toString()
  const checkpoint = 'refs/hangar/sessions/parent/checkpoint'

  const message = `! ${list('before.txt')}; ${wait('one')}; ${list('after.txt')}`
  await hangar.api('POST', '/api/sessions/parent/fork', { names: ['child'], message })
  await listed('before.txt')
  await hangar.api('POST', '/api/sessions/parent/close', { delete: true })
  await hangar.api('POST', '/api/sessions', { name: 'parent', repo: 'acme/app', message: WORK })
  await done(hangar, 'parent')
  await go('one')
  t.equal((await done(hangar, 'child')).body.outcome, 'exited')
  t.match(await seen(1, 'before.txt'), checkpoint, "its own parent's is seen")
  t.notMatch(await seen(1, 'after.txt'), checkpoint, 'by a sandbox that lives on')

  await hangar.api('POST', '/api/sessions/child/turns', {
    message: `! ${list('next.txt')}; ${wait('two')}; ${list('restarted.txt')}`,
  })
  await listed('next.txt')
  hangar = await hangar.restart()
  t.teardown(() => hangar.close())
  await go('two')
  t.equal((await done(hangar, 'child')).body.outcome, 'exited')
  t.notMatch(await seen(2, 'next.txt'), checkpoint, 'by the next turn')
  t.notMatch(await seen(2, 'restarted.txt'), checkpoint, 'after a restart')
})

t.test('a fork asked for again with its key gives the same children, also after a restart', async (t) => {
  let hangar = await startHangar(t, { agent: SCRIPTED_AGENT })
  await hostedRepo(t, hangar)
  await hangar.api('POST', '/api/sessions', { name: 'parent', repo: 'acme/app', message: WORK })
  await done(hangar, 'parent')
  const fork = (key: string, body: object) =>
    hangar.api('POST', '/api/sessions/parent/fork', body, { 'Idempotency-Key': key })
  const names = async (answer: ReturnType<typeof fork>) =>
    (await answer).body.items.map(({ name }: { name: string }) => name)
  const auto = { n: 11 }
  const named = { names: ['b', 'a'], message: '! true' }
  const first = [await names(fork('one', auto)), await names(fork('two', named))]
  hangar = await hangar.restart({ reindex: true })
  t.teardown(() => hangar.close())
  t.strictSame([await names(fork('one', auto)), await names(fork('two', named))], first)
  const other = await fork('one', named)
  t.equal(other.status, 409)
  t.equal(other.body.code, 'idempotency_mismatch')
  t.equal((await hangar.api('GET', '/api/sessions')).body.items.length, 14)
  t.match((await hangar.api('GET', '/api/sessions/a')).body.turns, [{ turn: 1 }], 'the message went out once')
})

async function size(hangar: Hangar): Promise<number> {
  const { out } = await run(
    'sh',
    ['-c', 'find . -type f -name "*" -path "*objects*" -printf "%s\\n" | awk "{ sum += \\$1 } END { print sum }"'],
    {
      cwd: join(hangar.dataDir, 'repos'),
    },
  )
  writeFileSync(join(hangar.dir, 'size'), out)
  return Number(out)
}
