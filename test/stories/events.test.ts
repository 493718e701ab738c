/** What happens in a turn is seen as it happens: over server-sent events, resumable, and by the CLI with its exit statuses. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { type Hangar, MAIN, run, shell, startHangar, waitUntil } from './support.ts'

const OBEDIENT = 'read -r line; eval "$line"'

async function hosted(hangar: Hangar): Promise<string> {
  const seed = join(hangar.dir, 'app')
  await hangar.api('POST', '/api/repos', { slug: 'local/app' })
  await shell(hangar.dir, 'git init -q -b main app && cd app && echo one >a.txt && git add . && git commit -q -m base')
  await hangar.git(seed, ['push', '-q', `${hangar.url}/git/local/app.git`, 'main'])
  return seed
}

interface Seen {
  readonly id: number
  readonly text: string
}

/** Reads server-sent events until `enough` of them have come, then goes away. */
async function listen(
  hangar: Hangar,
  name: string,
  enough: (seen: readonly Seen[]) => boolean,
  lastId?: number,
): Promise<Seen[]> {
  const stop = new AbortController()
  const response = await fetch(`${hangar.url}/api/sessions/${name}/events`, {
    headers: {
      Authorization: `Bearer ${hangar.token}`,
      Accept: 'text/event-stream',
      ...(lastId === undefined ? {} : { 'Last-Event-ID': String(lastId) }),
    },
    signal: stop.signal,
  })
  const seen: Seen[] = []
  let buffer = ''
  for await (const chunk of response.body ?? []) {
    buffer += Buffer.from(chunk as Uint8Array).toString('utf8')
    const blocks = buffer.split('\n\n')
    buffer = blocks.pop() ?? ''
    for (const block of blocks) {
      const id = /^id: (\d+)$/m.exec(block)?.[1]
      const data = /^data: (.*)$/m.exec(block)?.[1]
      if (id === undefined || data === undefined) continue
      const { text, message } = JSON.parse(data) as { text?: string; message?: string }
      seen.push({ id: Number(id), text: text ?? message ?? '' })
    }
    if (enough(seen) || seen.length > 1_000) break
  }
  stop.abort()
  return seen
}

t.test('events come live, and go on where a client left off', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await hosted(hangar)
  const script =
    'echo early; hangar-agent progress --pct 30 "on the way"; while [ ! -f go ]; do sleep 0.1; done; echo late; echo "token hgs_0123456789abcdefghijABCDEFGHIJ0123456789abc"'
  await hangar.api('POST', '/api/sessions', { name: 'live', repo: 'local/app', message: script })
  const first = await listen(
    hangar,
    'live',
    (seen) => seen.some(({ text }) => text === 'early') && seen.some(({ text }) => text === 'on the way'),
  )
  const { body: running } = await hangar.api('GET', '/api/sessions/live')
  t.equal(running.turns[0].state, 'running', 'they came while the agent still ran')
  t.match((await hangar.api('GET', '/api/sessions/live/wait?timeout_seconds=0')).body, {
    done: false,
    progress: { message: 'on the way', pct: 30 },
    outcome: null,
  })

  const patch = await hangar.api('GET', '/api/sessions/live/patch')
  t.equal(patch.status, 200, 'the patch of a running turn is taken live')
  writeFileSync(join(hangar.dataDir, 'sandboxes', running.sandbox.id, 'home', 'repo', 'go'), '')
  const second = await listen(
    hangar,
    'live',
    (seen) => seen.some(({ text }) => text.startsWith('turn 1 ended')),
    first.at(-1)?.id,
  )
  t.strictSame(
    [...first, ...second].map(({ id }) => id),
    [...first, ...second].map((_, at) => at + 1),
    'none is lost and none comes twice',
  )
  t.ok(second.some(({ text }) => text === 'late'))
  t.ok(
    second.some(({ text }) => text === 'token [redacted]'),
    'what looks like a credential is masked',
  )
  t.match((await hangar.api('GET', '/api/sessions/live/patch')).bytes.toString(), /diff --git a\/go b\/go/)

  await t.test('a flood of lines is cut, and the turn says so', async (t) => {
    await hangar.api('POST', '/api/sessions', {
      name: 'flood',
      repo: 'local/app',
      message: 'yes | head -n 300000; echo the end >&2; hangar-agent done "flooded"',
    })
    t.match((await hangar.api('GET', '/api/sessions/flood/wait?timeout_seconds=120')).body, {
      outcome: 'exited',
      summary: 'flooded',
    })
    const { body } = await hangar.api('GET', '/api/sessions/flood/events?since=19000&limit=1000')
    t.ok(body.items.length < 1_010 && body.items.length > 900)
    t.ok(
      (await hangar.api('GET', '/api/sessions/flood/events?since=19990&limit=1000')).body.items.some(
        (event: { message?: string }) => /further lines? .*left out/.test(event.message ?? ''),
      ),
      'how many were left out is said',
    )
  })

  await t.test('of a later session of the name nothing is skipped, whatever the client saw before', async (t) => {
    const whole = 'seq 200; echo over'
    const within = <T>(work: Promise<T>) => Promise.race([work, sleep(15_000, null, { ref: false })])
    await hangar.api('POST', '/api/sessions', { name: 'twice', repo: 'local/app', message: whole })
    await hangar.api('GET', '/api/sessions/twice/wait?timeout_seconds=60')
    const last = (await listen(hangar, 'twice', (seen) => seen.length > 200)).at(-1)?.id
    const open = listen(hangar, 'twice', () => false, last)
    await hangar.api('POST', '/api/sessions/twice/close', { delete: true })
    t.ok(await within(open), 'the stream of the session that is gone ends')
    const message = 'echo anew; while [ ! -f go ]; do sleep 0.1; done'
    await hangar.api('POST', '/api/sessions', { name: 'twice', repo: 'local/app', message })
    const anew = await within(listen(hangar, 'twice', (seen) => seen.some(({ text }) => text === 'anew'), last))
    t.match(anew, [{ id: 1 }, { id: 2 }], 'its events come from the first on')
    const { items } = (await hangar.api('GET', `/api/sessions/twice/events?since=${last}`)).body
    t.match(items, [{ seq: 1 }], 'also to a client that asks page by page')
    const newest = items.at(-1).seq
    t.match((await hangar.api('GET', `/api/sessions/twice/events?since=${newest}`)).body, { items: [] })
    await hangar.api('POST', '/api/sessions/twice/close', { delete: true })
  })

  await t.test('clients that go away leave nothing behind', async (t) => {
    const connections = Array.from({ length: 30 }, () => listen(hangar, 'live', (seen) => seen.length >= 2))
    t.ok((await Promise.all(connections)).every((seen) => seen.length >= 2))
    const { body } = await hangar.api('GET', '/api/sessions/live')
    t.equal(body.state, 'idle')
  })
})

t.test('the CLI says how a turn ended by its exit status', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  const cwd = await hosted(hangar)
  const session = (name: string, message: string, ...more: string[]) =>
    hangar.cli(['session', 'new', name, message, '--repo', 'local/app', ...more], { cwd })
  t.equal((await session('fine', 'hangar-agent done "all done"', '-w')).status, 0)
  const failed = await session('fails', 'exit 3', '-w')
  t.equal(failed.status, 1)
  t.match(failed.err, /turn 1: failed/)
  const asks = await session('asks', 'hangar-agent question --option Aye --option Nay "Shall I?"', '-w')
  t.equal(asks.status, 3)
  t.match(asks.out, /Shall I\?\n {2}1\. Aye\n {2}2\. Nay/)
  t.match(asks.err, /hangar session send asks/)
  const answered = await hangar.cli(['session', 'send', 'asks', '--option', '1', '-w'], { cwd })
  t.equal(answered.status, 1, 'the answer reached the agent, which took it for a command')

  await session('long', 'sleep 60')
  const waited = await hangar.cli(['session', 'wait', 'long', '--timeout', '1'], { cwd })
  t.equal(waited.status, 124)
  t.match(waited.err, /wait again/)
  t.equal((await hangar.cli(['session', 'cancel', 'long'], { cwd })).status, 0)
  t.equal((await hangar.cli(['session', 'wait', 'long'], { cwd })).status, 1)
  t.match(
    (await hangar.cli(['session', 'list'], { cwd })).out,
    /^long\tlocal\/app\tidle\t1\tcancelled\t/m,
    'tab-separated in a pipe',
  )
  t.match(JSON.parse((await hangar.cli(['session', 'list', '--json', '--limit', '2'], { cwd })).out), {
    items: [{ name: 'long' }, { name: 'asks' }],
    next_cursor: /./,
  })
  t.equal(
    (await hangar.cli(['session', 'list', '--limit', '1', '--state', 'idle'], { cwd })).out.trim().split('\n').length,
    1,
  )
  t.match((await hangar.cli(['session', 'show', 'fine'], { cwd })).out, /all done/)
  t.match((await hangar.cli(['session', 'events', 'fails'], { cwd })).out, /exit status 3/)
  t.equal((await hangar.cli(['session', 'close', 'fine', '--delete'], { cwd })).status, 0)

  const refusals: [string[], number, RegExp][] = [
    [['session', 'show', 'nothing'], 2, /there is no session nothing; hangar session list/],
    [['session', 'new', 'Bad Name', 'x', '--repo', 'local/app'], 2, /session|name|ref/i],
    [['session', 'new', 'x', 'y', '--repo', 'no/repo'], 2, /hangar repo add no\/repo/],
    [['session', 'new', 'x', 'y', '--repo', 'local/app', '--file', '/nowhere'], 2, /\/nowhere cannot be read/],
    [['session', 'new', 'x'], 2, /missing required argument 'message'/],
    [['session', 'frobnicate'], 2, /./],
    [['session', 'send', 'asks'], 2, /no message was given/],
    [['repo', 'add', 'local/app'], 2, /already/],
    [['repo', 'remove', 'local/app'], 2, /--yes/],
    [['token', 'create', 'x', '--scope', 'everything'], 2, /scopes/],
    [['token', 'revoke', 'nothing'], 2, /no token/],
  ]
  for (const [args, status, said] of refusals) {
    const ran = await hangar.cli(args, { cwd })
    t.equal(ran.status, status, args.join(' '))
    t.match(ran.err, said, args.join(' '))
    t.equal(ran.out, '', `${args.join(' ')}: nothing on standard output`)
  }
  t.equal((await hangar.cli(['repo', 'list'], { cwd, env: { HANGAR_TOKEN: 'hgt_wrong' } })).status, 4)
  const unreachable = await hangar.cli(['repo', 'list'], { cwd, env: { HANGAR_URL: 'http://127.0.0.1:9' } })
  t.equal(unreachable.status, 4)
  t.match(unreachable.err, /hangar serve/)
  t.match((await hangar.cli(['doctor'], { cwd })).out, /^ok\tgit\t/m)

  const token = (
    await hangar.cli(['token', 'create', 'reader', '--scope', 'read', '--repo', 'local/*'], { cwd })
  ).out.trim()
  t.match(token, /^hgt_[A-Za-z0-9]{43}$/)
  t.equal((await hangar.cli(['session', 'list'], { cwd, env: { HANGAR_TOKEN: token } })).status, 0)
  t.equal((await hangar.cli(['session', 'cancel', 'long'], { cwd, env: { HANGAR_TOKEN: token } })).status, 4)
})

t.test('a server whose agent is not set says what to set', async (t) => {
  const hangar = await startHangar(t, {
    agent: '',
    config: { environments: { default: {}, gone: { harness_options: { argv: ['no-such-agent'] } } } },
  })
  await hosted(hangar)
  const unset = await hangar.cli(['session', 'new', 'x', 'y', '--repo', 'local/app'])
  t.equal(unset.status, 2)
  t.match(unset.err, /harness_options\.argv/)
  const missing = await hangar.cli(['session', 'new', 'x', 'y', '--repo', 'local/app', '--env', 'gone'])
  t.match(missing.err, /no-such-agent .*is not installed/)
})

t.test('the server stops at TERM, and its data can be used again at once', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await hosted(hangar)
  await hangar.api('POST', '/api/sessions', { name: 'across', repo: 'local/app', message: 'sleep 2; echo survived' })
  await waitUntil(
    'the agent runs',
    async () => (await hangar.api('GET', '/api/sessions/across')).body.turns[0].state === 'running',
  )
  const again = await hangar.restart()
  t.teardown(() => again.close())
  t.match(
    (await again.api('GET', '/api/sessions/across/wait?timeout_seconds=60')).body,
    { outcome: 'exited', summary: 'survived' },
    'the agent went on meanwhile',
  )
  const help = await run(process.execPath, [MAIN, '--help'])
  t.equal(help.status, 0)
  t.match(help.out, /session/)
})
