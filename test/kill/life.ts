/** A session's whole life over a server that may be killed at one of its operations, and what must hold of it afterwards. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { cpSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
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

const HOOK = fileURLToPath(new URL('../../../test/kill/at-operation.mjs', import.meta.url))

/** Turn 1 works and asks; turn 2 answers with a result that its repair mends. Of a job, attempt 3 has the smallest difference and attempt 1 is bad. Every run leaves a mark in the conversation. */
export const AGENT = `
prompt=$(cat)
echo run >>"$HANGAR_CONVERSATION/runs"
if [ -n "$HANGAR_JOB" ]; then
  case $HANGAR_ATTEMPT in 1) echo bad >x.txt;; 2) seq 9 >x.txt; echo good >>x.txt;; *) echo good >x.txt;; esac
  hangar-agent done "attempt $HANGAR_ATTEMPT, run $(($(wc -l <"$HANGAR_CONVERSATION/runs")))"
  exit 0
fi
echo "line one of $(wc -l <"$HANGAR_CONVERSATION/runs")"
case $prompt in
  'Your work is done'*) hangar-agent result '{"ok":true}'; exit 0;;
  # Also in the prompt of a new conversation, which tells what was before.
  *slow*) i=0; while [ $i -lt 15 ]; do echo "tick $i"; i=$((i+1)); sleep 0.1; done
        echo "$i" >>ticks.txt; git add ticks.txt; git commit -q -m ticks; hangar-agent done slow;;
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

/** Where the sandboxes of a life are. */
export interface Place {
  /** Settings of the file beside the default environment's agent, for a server in this directory on this port. */
  config(dir: string, port: number): Readonly<Record<string, unknown>>
  /** Called for each life, in its own directory, before its server starts. */
  open(t: Test, dir: string): Promise<void>
  /** What is left when all is closed, to be nothing. */
  left(dir: string): Promise<string>
}

export interface Server {
  readonly url: string
  readonly token: string
  readonly child: ChildProcess
  readonly ended: Promise<void>
}

/** `hangar serve`, to be killed at an operation (-1: at none). Resolves when it serves, or has ended before. */
export async function serve(dir: string, env: Readonly<Record<string, string>>, at: number): Promise<Server> {
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

export interface Life {
  readonly operations: number
  readonly killed: boolean
  /** Milliseconds from the start of the server after the kill until it answered. */
  readonly recoveryMs: number
}

/** A served store in the middle of a life. */
export interface OpenLife {
  readonly repo: string
  call(method: string, path: string, body?: unknown): Promise<ApiAnswer>
  /** Resolves when the turn of session `s` has ended. */
  ended(turn: number): Promise<void>
  /** Kills the server; the next call starts it again. */
  kill(): Promise<void>
  /** Stops it and looks whether anything is left. */
  close(): Promise<Life>
}

/** Sandboxes of this host. */
export const local: Place = {
  config: () => ({}),
  open: async () => {},
  left: (dir) => shell(dir, `pgrep -f '[${dir[0]}]${dir.slice(1)}/data/sandboxes' || true`),
}

/** A store with a repo, to be copied: what is before a session's life is not killed. */
export async function prepared(t: Test): Promise<{ dir: string; env: Record<string, string> }> {
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

/** A copy of the prepared store, served; every call is made again with its key until it is answered. */
export async function openLife(
  t: Test,
  { from, at, place }: { readonly from: { dir: string }; readonly at: number; readonly place: Place },
): Promise<OpenLife> {
  const dir = temporaryDirectory(t)
  for (const name of ['data', 'config', 'home', 'agent.sh'])
    cpSync(join(from.dir, name), join(dir, name), { recursive: true })
  const port = await freePort()
  const env = serverEnvironment(dir, {
    agent: AGENT,
    settings: { HANGAR_LISTEN: `127.0.0.1:${port}` },
    config: place.config(dir, port),
  })
  mkdirSync(join(dir, 'data', 'sandboxes'), { recursive: true })
  await place.open(t, dir)

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
  return {
    repo: join(dir, 'data', 'repos', 'acme', 'app.git'),
    call,
    ended: async (turn) => {
      for (let round = 0; round < 10; round++)
        if ((await call('GET', `/api/sessions/s/wait?timeout_seconds=15&turn=${turn}`)).body.done === true) return
      t.fail(`kill at ${at}: turn ${turn} did not end`)
    },
    kill: async () => {
      server.child.kill('SIGKILL')
      await server.ended
    },
    close: async () => {
      server.child.kill('SIGTERM')
      await server.ended
      // A helper that the server had begun (the checkpoint of an attempt that is done with) ends by itself; what stays is a stray.
      await waitUntil('nothing is left', async () => (await place.left(dir)) === '', 200).catch(() => {})
      t.equal(await place.left(dir), '', `kill at ${at}: nothing is left`)
      let operations = 0
      try {
        operations = Number(readFileSync(join(dir, 'count'), 'utf8'))
      } catch {
        // It was killed before its tenth operation.
      }
      return { operations, killed, recoveryMs }
    },
  }
}

/** One life of two turns, with a kill at the given operation; all that must hold is looked at. */
export async function live(
  t: Test,
  at: { readonly from: { dir: string }; readonly at: number; readonly place: Place; readonly name?: string },
): Promise<Life> {
  const { call, ended, repo, close } = await openLife(t, at)
  const what = `kill at ${at.at}${at.name === undefined ? '' : ` (${at.name})`}: `
  const context = [
    { kind: 'patch', content: PATCH },
    { kind: 'file', name: 'note.txt', content: 'note' },
  ]
  const made = await call('POST', '/api/sessions', { name: 's', repo: 'acme/app', message: 'ask', context })
  t.equal(made.status, 201, `${what}${JSON.stringify(made.body).slice(0, 300)}`)
  await ended(1)
  const asked = (await call('GET', '/api/sessions/s')).body
  t.match(asked, { needs_input: 'Go on?', question_options: ['yes', 'no'] }, `${what}the question is there`)
  const schema = { type: 'object', required: ['ok'], properties: { ok: { const: true } } }
  const answered = await call('POST', '/api/sessions/s/turns', { message: '', option: 1, output_schema: schema })
  t.equal(answered.status, 202, `${what}${JSON.stringify(answered.body).slice(0, 300)}`)
  await ended(2)

  const { body: session } = await call('GET', '/api/sessions/s')
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
  const record = await shell(repo, 'git -c safe.directory=* log --first-parent --format=%s refs/hangar/sessions/s/log')
  t.equal(record.match(/^turn 1 ended/gm)?.length, 1, `${what}one record of turn 1's end`)
  t.equal(record.match(/^turn 2 ended/gm)?.length, 1, `${what}one record of turn 2's end`)
  const notes = await shell(repo, 'git -c safe.directory=* log --notes=hangar --format=%N hangar/s')
  t.equal(notes.match(/"session":"s","turn":1/g)?.length, 1, `${what}one note of turn 1`)
  t.equal(notes.match(/"session":"s","turn":2/g)?.length, 1, `${what}one note of turn 2`)
  t.equal((await call('POST', '/api/sessions/s/close', {})).status, 200, `${what}close`)
  t.equal(await shell(repo, 'git -c safe.directory=* fsck --no-dangling --no-progress 2>&1 || true'), '', `${what}fsck`)
  return close()
}
