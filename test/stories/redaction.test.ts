/** A secret that an agent is given never comes back: not in events, texts, results, artifacts, errors, records or the server's log. */
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { readConfig } from '../../domain/config.ts'
import type { Log } from '../../domain/ports.ts'
import { startServer } from '../../surfaces/server.ts'
import { hostedRepo, SCRIPTED_AGENT, settled, submit } from './jobs-support.ts'
import { api, serverEnvironment, shell, startHangar, temporaryDirectory, waitUntil } from './support.ts'

const KEY = 'sk-live/Q7+zz"4f_9Kx&81 tail'
const FILE_SECRET = 'line-one-of-the-key-9f8e7d\nline-two-of-the-key-6c5b4a'

/** Leaks the key in every way there is; the last line fails with it. */
const LEAKY = `
cat >/dev/null
echo "plain $KEY"
printf %s "split $KEY" | head -c 20; sleep 0.3; printf '%s\\n' "$(printf %s "split $KEY" | tail -c +21)"
printf %s "user:$KEY:$PEM" | base64
printf %s "$KEY" | od -An -tx1 | tr -d ' \\n'; echo
echo "to stderr $KEY" >&2
echo '{"kind":"tool_call","id":"1","name":"x","input":'"$(printf %s "$KEY" | sed 's/"/\\\\"/g;s/.*/"&"/')"'}'
printf '%s\\n' "$PEM"
hangar-agent progress --pct 5 "at $KEY"
hangar-agent done "the key is $KEY"
cd "$HOME"; mkdir -p out; printf 'k=%s\\n' "$KEY" >out/log.txt; printf 'k=\\000%s\\n' "$KEY" >out/bin; cp out/log.txt "out/$(printf %s "$PEM" | head -n 1)"
hangar-agent artifact out
printf '{"a":["%s"],"ok":true}' "$(printf %s "$KEY" | sed 's/"/\\\\"/g')" >"$HANGAR_IO/out/result.json"
`

const FORMS = [
  KEY,
  encodeURIComponent(KEY),
  Buffer.from(KEY).toString('hex'),
  JSON.stringify(KEY).slice(1, -1),
  Buffer.from(KEY).toString('base64').slice(0, 24),
  Buffer.from(`u:${KEY}`).toString('base64').slice(4, 28),
  ...FILE_SECRET.split('\n'),
  // Pieces that a chunk or a cut would leave.
  KEY.slice(0, 14),
  KEY.slice(-14),
]

t.test('an agent leaks its secrets in every way, and nothing of them comes back', async (t) => {
  const dir = temporaryDirectory(t)
  const pem = join(dir, 'key.pem')
  writeFileSync(pem, `${FILE_SECRET}\n`)
  const settings = { AGENT_KEY: KEY }
  const env = serverEnvironment(dir, { agent: LEAKY, settings })
  const secrets = { KEY: { from: 'env:AGENT_KEY', phase: 'agent' }, PEM: { from: `file:${pem}` } }
  const argv = ['sh', join(dir, 'agent.sh')]
  writeFileSync(
    join(dir, 'data', 'hangar.config.json'),
    JSON.stringify({ environments: { default: { harness_options: { argv }, secrets } } }),
  )
  const said: string[] = []
  const write = (fields: object, message: string) => said.push(`${JSON.stringify(fields)} ${message}`)
  const log: Log = { info: write, warn: write, error: write }
  const cliFile = join(dir, 'cli.json')
  const server = await startServer({ config: readConfig({ env }), log, cliFile })
  t.teardown(() => server.close())
  const { token } = JSON.parse(readFileSync(cliFile, 'utf8')) as { token: string }
  const call = (method: string, path: string, body?: unknown) => api(server.url, token, { method, path, body })

  await call('POST', '/api/repos', { slug: 'acme/app' })
  const begin = (name: string, more: object = {}) =>
    call('POST', '/api/sessions', { name, repo: 'acme/app', message: 'go', ...more })
  await begin('leaky')
  const wait = await call('GET', '/api/sessions/leaky/wait?timeout_seconds=120')
  t.match(wait.body, { done: true, outcome: 'exited' })

  const session = await call('GET', '/api/sessions/leaky')
  const [turn] = session.body.turns
  t.equal(turn.summary, 'the key is [redacted]')
  t.strictSame(turn.result, { a: ['[redacted]'], ok: true })
  t.strictSame(turn.artifacts.map((artifact: { path: string }) => artifact.path).sort(), ['out/bin', 'out/log.txt'])
  t.match(turn.warnings.join(), /artifact out\/\[redacted\] has a secret in its name/)
  const text = await call('GET', '/api/sessions/leaky/artifacts/1/out/log.txt')
  t.equal(text.bytes.toString(), 'k=[redacted]\n')
  t.equal(turn.artifacts.find((artifact: { path: string }) => artifact.path === 'out/log.txt').size, 13)
  const events = await call('GET', '/api/sessions/leaky/events?limit=1000')
  const shown = events.body.items.map((event: { text?: string; message?: string }) => event.text ?? event.message ?? '')
  t.ok(shown.includes('plain [redacted]'))
  t.ok(shown.includes('split [redacted]'))
  t.ok(shown.includes('at [redacted]'))

  const everything = new Map<string, string>([
    ['session', session.bytes.toString()],
    ['wait', wait.bytes.toString()],
    ['list', (await call('GET', '/api/sessions')).bytes.toString()],
    ['events', events.bytes.toString()],
    ['log of the server', said.join('\n')],
  ])
  for (const [name, content] of await recordFiles(dir)) everything.set(name, content)
  const leaks = [...everything].flatMap(([name, content]) =>
    FORMS.filter((form) => content.includes(form)).map((form) => `${name}: ${form.slice(0, 6)}…`),
  )
  t.strictSame(leaks, [])
  t.ok(everything.size > 20, 'the records were read')
})

t.test('a question and its options are masked before they are cut', async (t) => {
  const dir = temporaryDirectory(t)
  const agent = `cat >/dev/null; hangar-agent question --option "${'x'.repeat(70)} $KEY" --option b "use $KEY?"`
  const env = serverEnvironment(dir, { agent })
  const argv = ['sh', join(dir, 'agent.sh')]
  const file = join(dir, 'data', 'hangar.config.json')
  const secrets = { KEY: { from: 'env:AGENT_KEY' } }
  writeFileSync(file, JSON.stringify({ environments: { default: { harness_options: { argv }, secrets } } }))
  const silent: Log = { info: () => {}, warn: () => {}, error: () => {} }
  const config = readConfig({ env: { ...env, AGENT_KEY: 'q9w8e7r6t5y4u3' } })
  const server = await startServer({ config, log: silent, cliFile: join(dir, 'cli.json') })
  t.teardown(() => server.close())
  const { token } = JSON.parse(readFileSync(join(dir, 'cli.json'), 'utf8')) as { token: string }
  const call = (method: string, path: string, body?: unknown) => api(server.url, token, { method, path, body })
  await call('POST', '/api/repos', { slug: 'acme/app' })
  await call('POST', '/api/sessions', { name: 'asks', repo: 'acme/app', message: 'go' })
  await waitUntil('it asks', async () => (await call('GET', '/api/sessions/asks')).body.needs_input !== null)
  const { body } = await call('GET', '/api/sessions/asks')
  t.equal(body.needs_input, 'use [redacted]?')
  t.strictSame(body.question_options, [`${'x'.repeat(70)} [redacted`, 'b'])
})

t.test('a secret that cannot be had stops the start, and its value is in no sentence', async (t) => {
  const dir = temporaryDirectory(t)
  const env = serverEnvironment(dir, { agent: 'true' })
  const file = join(dir, 'data', 'hangar.config.json')
  const reading = (from: string, more: Record<string, string> = {}) => {
    writeFileSync(file, JSON.stringify({ environments: { default: { secrets: { KEY: { from } } } } }))
    return () => readConfig({ env: { ...env, ...more } })
  }
  t.throws(reading('env:NOT_THERE'), /environments\.default\.secrets\.KEY \(from env:NOT_THERE\): it is not set/)
  t.throws(reading('env:SHORT', { SHORT: 'abc12' }), /fewer than 6 characters/)
  t.throws(reading('file:/nonexistent/key'), /the file cannot be read/)
  t.throws(reading('vault:x'), /secrets\.KEY\.from/)
})

/** All that the store has on its disk and git can show: every blob of every ref, unzipped where it is. */
async function recordFiles(dir: string): Promise<[string, string][]> {
  const files: [string, string][] = []
  for (const repo of repositories(join(dir, 'data'))) {
    const list = await shell(repo, 'git -c safe.directory=* cat-file --batch-check --batch-all-objects')
    for (const line of list.trim().split('\n')) {
      const [oid = '', type = ''] = line.split(' ')
      if (type !== 'blob' && type !== 'commit') continue
      const out = join(dir, 'blob')
      await shell(repo, `git -c safe.directory=* cat-file ${type} ${oid} >${out}`)
      const bytes = readFileSync(out)
      const content = bytes[0] === 0x1f && bytes[1] === 0x8b ? gunzipSync(bytes) : bytes
      files.push([`${type} ${oid}`, content.toString('utf8')])
    }
  }
  return files
}

function repositories(dir: string): string[] {
  return readdirSync(dir, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.git') && !path.includes('sandboxes') && statSync(join(dir, path)).isDirectory())
    .map((path) => join(dir, path))
}

t.test('what a verification prints is masked before its end is cut off, each stream by itself', async (t) => {
  const hangar = await startHangar(t, { agent: SCRIPTED_AGENT })
  await hostedRepo(t, hangar)
  const random = 'Ab3'.repeat(14)
  const commands = [
    `printf 'hgs_'; printf %s ${random}; head -c ${16_384 - random.length} /dev/zero | tr '\\0' .`,
    `printf hgs_${random.slice(0, 10)} >&2; sleep 1.5; echo tick; printf '%s\\n' ${random.slice(10)} >&2`,
  ]
  for (const verify of commands) {
    const { body } = await submit(hangar, { instructions: '! true', verify })
    const { verification } = await settled(hangar, body.id)
    t.equal(verification.passed, true, verification.log_tail)
    t.match(verification.log_tail, /^(?:\[redacted\])?\.+$|^tick\n\[redacted\]\n$/)
    t.notMatch(verification.log_tail, random.slice(10))
  }
})
