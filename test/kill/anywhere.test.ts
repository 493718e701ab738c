/**
 * A session's whole life with the server killed (-9) at one point after another, each followed by a restart: every turn is recorded once, no
 * commit, question or artifact is lost, no agent runs twice, no process is left. `npm run test:kill` kills at 200 and more points; here a few.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { cpSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { freePort } from '../stories/served.ts'
import {
  type ApiAnswer,
  api,
  MAIN,
  serverEnvironment,
  shell,
  temporaryDirectory,
  waitUntil,
} from '../stories/support.ts'

const POINTS = Number(process.env['HANGAR_KILLS'] ?? 8)
const HOOK = fileURLToPath(new URL('../../../test/kill/at-operation.mjs', import.meta.url))

/** Turn 1 works and asks; turn 2 answers with a result that its repair mends. Every run leaves a mark in the conversation. */
const AGENT = `
prompt=$(cat)
echo run >>"$HANGAR_CONVERSATION/runs"
echo "line one of $(wc -l <"$HANGAR_CONVERSATION/runs")"
case $prompt in
  'Your work is done'*) hangar-agent result '{"ok":true}'; exit 0;;
  ask*) test -f patched.txt || exit 9
        test -f "$HANGAR_IO/in/1/note.txt" || exit 8
        echo committed >work.txt; git add work.txt; git commit -q -m work
        echo staged >s.txt; git add s.txt; echo loose >l.txt
        hangar-agent artifact l.txt; hangar-agent progress asking
        hangar-agent question --option yes --option no "Go on?";;
  *)    test "$(cat l.txt)" = loose || exit 7
        git diff --cached --name-only | grep -qx s.txt || exit 6
        echo more >>l.txt; hangar-agent artifact l.txt; hangar-agent done "all done";;
esac
`

const PATCH = `diff --git a/patched.txt b/patched.txt
new file mode 100644
--- /dev/null
+++ b/patched.txt
@@ -0,0 +1 @@
+patched
`

interface Server {
  readonly url: string
  readonly token: string
  readonly child: ChildProcess
  readonly ended: Promise<void>
}

/** Resolves when it serves, or has ended before. */
async function serve(dir: string, env: Readonly<Record<string, string>>, at: number): Promise<Server> {
  const hook = at < 0 ? [] : ['--import', HOOK]
  const child = spawn(process.execPath, [...hook, MAIN, 'serve'], {
    env: { ...env, HANGAR_LOG: 'error', HANGAR_KILL_AT: String(at), HANGAR_KILL_COUNT: join(dir, 'count') },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr.on('data', (chunk: Buffer) => {
    said += chunk.toString('utf8')
  })
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  const isOver = () => child.exitCode !== null || child.signalCode !== null
  await waitUntil('the server answers', () => /hangar serves (\S+),/.test(said) || isOver())
  const url = /hangar serves (\S+),/.exec(said)?.[1] ?? `http://${env['HANGAR_LISTEN']}`
  let token = ''
  try {
    token = (JSON.parse(readFileSync(join(dir, 'config', 'hangar', 'cli.json'), 'utf8')) as { token: string }).token
  } catch {
    // It ended before its first start was done.
  }
  return { url, token, child, ended }
}

interface Life {
  readonly operations: number
  readonly killed: boolean
  /** Milliseconds from the start of the server after the kill until it answered. */
  readonly recoveryMs: number
}

/** A store with a repo, to be copied: what is before a session's life is not killed. */
async function prepared(t: Test): Promise<{ dir: string; env: Record<string, string> }> {
  const dir = temporaryDirectory(t)
  const env = serverEnvironment(dir, { agent: AGENT, settings: { HANGAR_LISTEN: `127.0.0.1:${await freePort()}` } })
  const server = await serve(dir, env, -1)
  await api(server.url, server.token, { method: 'POST', path: '/api/repos', body: { slug: 'acme/app' } })
  await shell(dir, 'git init -q -b main seed && cd seed && echo one >a.txt && git add . && git commit -q -m base')
  await shell(
    join(dir, 'seed'),
    `git -c http.${server.url}/.extraHeader='Authorization: Bearer ${server.token}' push -q ${server.url}/git/acme/app.git main`,
  )
  server.child.kill('SIGTERM')
  await server.ended
  return { dir, env }
}

/** One life, with a kill at the given operation; every call is made again with its key until it is answered. */
async function live(t: Test, from: { dir: string; env: Record<string, string> }, at: number): Promise<Life> {
  const dir = temporaryDirectory(t)
  for (const name of ['data', 'config', 'home', 'agent.sh'])
    cpSync(join(from.dir, name), join(dir, name), { recursive: true })
  const port = await freePort()
  const env: Record<string, string> = {}
  for (const [key, value] of Object.entries(from.env)) env[key] = value.replaceAll(from.dir, dir)
  env['HANGAR_LISTEN'] = `127.0.0.1:${port}`
  await shell(dir, `sed -i 's#${from.dir}#${dir}#g' data/hangar.config.json config/hangar/cli.json`)
  mkdirSync(join(dir, 'data', 'sandboxes'), { recursive: true })

  let server = await serve(dir, env, at)
  let recoveryMs = 0
  let killed = false
  t.teardown(() => void server.child.kill('SIGKILL'))
  const isOver = () => server.child.exitCode !== null || server.child.signalCode !== null
  const call = async (method: string, path: string, body?: unknown): Promise<ApiAnswer> => {
    const headers = { 'Idempotency-Key': randomBytes(8).toString('hex') }
    for (let attempt = 0; attempt < 20; attempt++) {
      if (isOver()) {
        killed = true
        const start = performance.now()
        server = await serve(dir, env, -1)
        recoveryMs = performance.now() - start
      }
      try {
        return await api(`http://127.0.0.1:${port}`, server.token, {
          method,
          path,
          body,
          ...(method === 'POST' ? { headers } : {}),
        })
      } catch {
        // The connection broke: it was killed, which the next look finds.
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
    }
    throw new Error(`no answer to ${method} ${path}`)
  }
  const ended = async (turn: number) => {
    for (let round = 0; round < 10; round++)
      if ((await call('GET', `/api/sessions/s/wait?timeout_seconds=15&turn=${turn}`)).body.done === true) return
    t.fail(`kill at ${at}: turn ${turn} did not end`)
  }

  const context = [
    { kind: 'patch', content: PATCH },
    { kind: 'file', name: 'note.txt', content: 'note' },
  ]
  const made = await call('POST', '/api/sessions', { name: 's', repo: 'acme/app', message: 'ask', context })
  t.equal(made.status, 201, `kill at ${at}: ${JSON.stringify(made.body).slice(0, 300)}`)
  await ended(1)
  const asked = (await call('GET', '/api/sessions/s')).body
  t.match(asked, { needs_input: 'Go on?', question_options: ['yes', 'no'] }, `kill at ${at}: the question is there`)
  const schema = { type: 'object', required: ['ok'], properties: { ok: { const: true } } }
  const answered = await call('POST', '/api/sessions/s/turns', { message: '', option: 1, output_schema: schema })
  t.equal(answered.status, 202, `kill at ${at}: ${JSON.stringify(answered.body).slice(0, 300)}`)
  await ended(2)

  const { body: session } = await call('GET', '/api/sessions/s')
  const what = `kill at ${at}: `
  t.equal(session.turns.length, 2, `${what}two turns`)
  t.match(session.turns[0], { outcome: 'needs_input', error: null, warnings: [] }, `${what}turn 1`)
  t.match(
    session.turns[1],
    { outcome: 'exited', error: null, summary: 'all done', result: { ok: true }, warnings: [] },
    `${what}turn 2`,
  )
  const artifacts = session.turns.map((turn: { artifacts: { path: string }[] }) =>
    turn.artifacts.map(({ path }) => path),
  )
  t.strictSame(artifacts, [['l.txt'], ['l.txt']], `${what}artifacts`)
  t.equal((await call('GET', '/api/sessions/s/artifacts/1/l.txt')).bytes.toString(), 'loose\n', `${what}artifact`)
  t.equal((await call('GET', '/api/sessions/s/artifacts/2/l.txt')).bytes.toString(), 'loose\nmore\n', `${what}artifact`)
  const { items } = (await call('GET', '/api/sessions/s/events?limit=1000')).body
  const lines = items
    .filter((event: { kind: string; text?: string }) => event.kind === 'message')
    .map((event: { text: string }) => event.text)
  t.strictSame(
    lines,
    ['line one of 1', 'line one of 2', 'line one of 3'],
    `${what}each agent ran once, each line is told once`,
  )
  const numbers = items.map((event: { seq: number }) => event.seq)
  t.ok(
    numbers.every((seq: number, place: number) => place === 0 || seq > numbers[place - 1]),
    `${what}events in order`,
  )
  const bundle = await call('GET', '/api/sessions/s/pull')
  t.equal(bundle.status, 200, `${what}pull`)
  const repo = join(dir, 'data', 'repos', 'acme', 'app.git')
  const record = await shell(repo, 'git -c safe.directory=* log --first-parent --format=%s refs/hangar/sessions/s/log')
  t.equal(record.match(/^turn 1 ended/gm)?.length, 1, `${what}one record of turn 1's end`)
  t.equal(record.match(/^turn 2 ended/gm)?.length, 1, `${what}one record of turn 2's end`)
  const notes = await shell(repo, 'git -c safe.directory=* log --notes=hangar --format=%N hangar/s')
  t.equal(notes.match(/"session":"s","turn":1/g)?.length, 1, `${what}one note of turn 1`)
  t.equal(notes.match(/"session":"s","turn":2/g)?.length, 1, `${what}one note of turn 2`)
  t.equal((await call('POST', '/api/sessions/s/close', {})).status, 200, `${what}close`)
  t.equal(await shell(repo, 'git -c safe.directory=* fsck --no-dangling --no-progress 2>&1 || true'), '', `${what}fsck`)
  server.child.kill('SIGTERM')
  await server.ended
  const left = await shell(dir, `pgrep -f '[${dir[0]}]${dir.slice(1)}/data/sandboxes' || true`)
  t.equal(left, '', `${what}no process is left`)
  let operations = 0
  try {
    operations = Number(readFileSync(join(dir, 'count'), 'utf8'))
  } catch {
    // It was killed before its tenth operation.
  }
  return { operations, killed, recoveryMs }
}

t.test(`killed at ${POINTS} points of a session's life`, { timeout: 3_600_000 }, async (t) => {
  const from = await prepared(t)
  const { operations } = await live(t, from, 0)
  t.comment(`a life has about ${operations} operations`)
  t.ok(operations > 100, 'the hook counts')
  const random = randomBytes(4).readUInt32BE() % operations
  const points = Array.from(
    { length: POINTS },
    (_, place) => 1 + ((random + Math.floor((place * operations) / POINTS)) % operations),
  )
  let kills = 0
  let longest = 0
  for (const at of points) {
    const { killed, recoveryMs } = await live(t, from, at)
    if (killed) kills++
    longest = Math.max(longest, recoveryMs)
  }
  t.comment(`${kills} of ${POINTS} lives were cut; the longest start after a kill took ${Math.round(longest)} ms`)
  t.ok(kills > POINTS / 2, `${kills} kills`)
})
