/** The server is killed with -9, at any moment of a turn: after a restart the turn goes on, or ends with its true outcome, once. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { freePort, serve } from './served.ts'
import { api, MAIN, run, serverEnvironment, shell, temporaryDirectory, waitUntil } from './support.ts'

const AGENT = `
read -r line
hangar-agent progress "counting"
for i in 1 2 3 4 5 6 7 8; do echo "line $i"; sleep 0.2; done
echo "$line" >>work.txt
git add work.txt && git commit -q -m "turn $HANGAR_TURN"
echo loose >loose.txt
hangar-agent artifact loose.txt
hangar-agent result '{"turn": '"$HANGAR_TURN"'}'
hangar-agent done "did turn $HANGAR_TURN"
echo "ran" >>"$HANGAR_CONVERSATION/runs-$HANGAR_TURN"
cp "$HANGAR_CONVERSATION/runs-$HANGAR_TURN" "$HANGAR_IO/out/artifacts/runs.txt"
`

t.test('kill -9 loses nothing and does nothing twice', { timeout: 900_000 }, async (story) => {
  const t = story
  const dir = temporaryDirectory(t)
  const env = serverEnvironment(dir, { agent: AGENT, settings: { HANGAR_LISTEN: `127.0.0.1:${await freePort()}` } })
  let served = await serve(story, dir, env)
  const call = (method: string, path: string, body?: unknown) => api(served.url, served.token, { method, path, body })
  await call('POST', '/api/repos', { slug: 'acme/app' })
  await shell(dir, 'git init -q -b main seed && cd seed && echo one >work.txt && git add . && git commit -q -m base')
  await run(
    'git',
    [
      '-c',
      `http.${served.url}/.extraHeader=Authorization: Bearer ${served.token}`,
      'push',
      '-q',
      `${served.url}/git/acme/app.git`,
      'main',
    ],
    { cwd: join(dir, 'seed') },
  )
  await call('POST', '/api/sessions', { name: 'killed', repo: 'acme/app', message: 'message 1' })

  // Each delay falls into another step: preparing, starting, running, collecting, recording, between turns.
  const delays = [20, 150, 300, 500, 800, 1200, 1700, 2200, 2600, 3000, 3300, 3600]
  let acknowledged = 1
  for (const delay of delays) {
    await new Promise((resolve) => setTimeout(resolve, delay))
    await served.kill()
    served = await serve(story, dir, env)
    const sent = await call('POST', '/api/sessions/killed/turns', { message: `message ${acknowledged + 1}` })
    if (sent.status === 202) acknowledged++
    else t.match(sent.body, { code: 'queue_full' })
  }
  for (let turn = 1; turn <= acknowledged; turn++) {
    await waitUntil(
      `turn ${turn} ended`,
      async () => (await call('GET', `/api/sessions/killed/wait?timeout_seconds=20&turn=${turn}`)).body.done === true,
      20,
    )
  }
  const { body: session } = await call('GET', '/api/sessions/killed')
  t.equal(session.turns.length, acknowledged, 'every acknowledged message has its turn')
  for (const turn of session.turns) {
    t.match(
      turn,
      { state: 'ended', outcome: 'exited', result: { turn: turn.turn }, summary: `did turn ${turn.turn}`, error: null },
      `turn ${turn.turn}: ${JSON.stringify(turn.warnings)}`,
    )
    const runs = await call('GET', `/api/sessions/killed/artifacts/${turn.turn}/runs.txt`)
    if (runs.status === 200) t.equal(runs.bytes.toString(), 'ran\n', `turn ${turn.turn} ran once`)
  }
  const events = (await call('GET', '/api/sessions/killed/events?limit=1000')).body.items as {
    seq: number
    turn: number
    kind: string
    text?: string
  }[]
  t.strictSame(
    events.map((event) => event.seq),
    [...new Set(events.map((event) => event.seq))].sort((a, b) => a - b),
    'events are in order, none twice',
  )
  for (const turn of session.turns) {
    const lines = events
      .filter((event) => event.turn === turn.turn && event.kind === 'message')
      .map((event) => event.text)
    t.strictSame(
      lines,
      ['line 1', 'line 2', 'line 3', 'line 4', 'line 5', 'line 6', 'line 7', 'line 8'],
      `turn ${turn.turn} has each line once`,
    )
  }

  await t.test('--reindex rebuilds the index from git, and nothing differs', async (t) => {
    const paths = [
      '/api/sessions',
      '/api/sessions/killed',
      '/api/sessions/killed/events?limit=1000',
      '/api/sessions/killed/artifacts',
      '/api/repos',
      '/api/tokens',
    ]
    const before = await Promise.all(paths.map((path) => call('GET', path)))
    await served.kill()
    served = await serve(story, dir, env, ['--reindex'])
    for (const [at, path] of paths.entries()) t.strictSame((await call('GET', path)).body, before[at]?.body, path)
    await served.kill()
    await shell(dir, 'rm -rf data/index')
    served = await serve(story, dir, env)
    for (const [at, path] of paths.entries())
      t.strictSame((await call('GET', path)).body, before[at]?.body, `${path}, with the index deleted`)
  })

  await t.test('git finds nothing wrong with the store', async (t) => {
    for (const repo of ['repos/acme/app.git', 'hangar.git']) {
      const fsck = await run('git', ['-c', 'safe.directory=*', 'fsck', '--strict', '--no-dangling'], {
        cwd: join(dir, 'data', repo),
      })
      t.equal(fsck.status, 0, fsck.err)
    }
  })

  await t.test('a second server on the same data refuses to start', async (t) => {
    const second = await run(process.execPath, [MAIN, 'serve'], { env: { ...env, HANGAR_LISTEN: '127.0.0.1:0' } })
    t.equal(second.status, 4)
    t.match(second.err, /another hangar server \(pid \d+\)/)
  })

  await t.test('a wrong setting stops the start with its name, its value and what is accepted', async (t) => {
    const wrong = await run(process.execPath, [MAIN, 'serve'], { env: { ...env, HANGAR_QUEUE_MAX_RUNNING: 'many' } })
    t.equal(wrong.status, 4)
    t.match(wrong.err, /HANGAR_QUEUE_MAX_RUNNING="many"/)
    writeFileSync(join(dir, 'bad.json'), '{"lisen": "x"}')
    t.match((await run(process.execPath, [MAIN, 'serve', '--config', join(dir, 'bad.json')], { env })).err, /lisen/)
  })
  await call('POST', '/api/sessions/killed/close', {})
  await served.kill()
})
