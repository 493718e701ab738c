/** An environment's set-up runs once per content; later sandboxes get what it made, and nothing else of the sandbox that made it. */
import { readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { type Hangar, shell, startHangar } from './support.ts'

const OBEDIENT = 'read -r line; eval "$line"'
const SETUP = [
  'echo "set up" >>ran',
  'echo "$SETUP_TOKEN" | head -c 5 >token-seen',
  'mkdir -p node_modules/pkg "$HOME/.cache" && echo module >node_modules/pkg/index.js',
  'echo "with a\nnewline" >"node_modules/odd name"',
  'echo cached >"$HOME/.cache/thing"',
  'test -z "$AGENT_TOKEN"',
].join('; ')

async function start(t: Parameters<typeof startHangar>[0], setup = SETUP): Promise<Hangar> {
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    settings: { THE_SETUP_TOKEN: 'npm_abcdefghijkl', THE_AGENT_TOKEN: 'sk-abcdefghijkl' },
    config: {
      environments: {
        default: {
          harness_options: { argv: ['sh', '-c', OBEDIENT] },
          setup,
          secrets: {
            SETUP_TOKEN: { from: 'env:THE_SETUP_TOKEN', phase: 'setup' },
            AGENT_TOKEN: { from: 'env:THE_AGENT_TOKEN', phase: 'agent' },
          },
        },
      },
    },
  })
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(
    hangar.dir,
    'git init -q -b main seed && cd seed && printf "node_modules\\nran\\ntoken-seen\\n" >.gitignore && echo 1 >package-lock.json && git add . && git commit -q -m base',
  )
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
  return hangar
}

const ended = async (hangar: Hangar, name: string) => {
  await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)
  return (await hangar.api('GET', `/api/sessions/${name}`)).body.turns.at(-1)
}
const begin = async (hangar: Hangar, name: string, message: string) => {
  await hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message })
  return ended(hangar, name)
}
const said = async (hangar: Hangar, name: string) =>
  (await hangar.api('GET', `/api/sessions/${name}/events?limit=1000`)).body.items.flatMap(
    (event: { kind: string; text: string }) => (event.kind === 'state' ? [event.text] : []),
  )

t.test('once per content', async (t) => {
  const hangar = await start(t)
  const CHECK =
    'cat ran; cat node_modules/pkg/index.js "$HOME/.cache/thing"; test -f "node_modules/odd name"; test -z "$SETUP_TOKEN" && test "$(cat token-seen)" = npm_a'
  t.match(
    await begin(hangar, 'first', `${CHECK}; echo mine >node_modules/mine; echo x >"$HANGAR_CONVERSATION/secret"`),
    {
      outcome: 'exited',
      error: null,
    },
  )
  t.ok((await said(hangar, 'first')).includes('the set-up runs'))
  t.match(
    await begin(hangar, 'second', `${CHECK} && test ! -e node_modules/mine && test ! -e "$HANGAR_CONVERSATION/secret"`),
    {
      outcome: 'exited',
      error: null,
    },
  )
  t.ok((await said(hangar, 'second')).includes('the set-up is put back as it was made before'))
  const { body } = await hangar.api('GET', '/api/sessions/second/events?limit=1000')
  const lines = body.items
    .filter((event: { kind: string }) => event.kind === 'message')
    .map((event: { text: string }) => event.text)
  t.equal(lines[0], 'set up', 'it ran once')
  t.not(lines[1], 'set up')
  t.equal(readdirSync(join(hangar.dataDir, 'setups')).length, 1)

  await hangar.api('POST', '/api/sessions/first/suspend', {})
  await hangar.api('POST', '/api/sessions/first/turns', {
    message: `${CHECK} && test -e "$HANGAR_CONVERSATION/secret"`,
  })
  t.match(await ended(hangar, 'first'), { outcome: 'exited' }, 'a resumed session has it again, and its conversation')

  await hangar.api('POST', '/api/sessions', {
    name: 'third',
    repo: 'acme/app',
    message: 'true',
    context: [
      {
        kind: 'patch',
        content:
          'diff --git a/package-lock.json b/package-lock.json\n--- a/package-lock.json\n+++ b/package-lock.json\n@@ -1 +1 @@\n-1\n+2\n',
      },
    ],
  })
  await ended(hangar, 'third')
  t.ok((await said(hangar, 'third')).includes('the set-up runs'), 'another lock file is other content')
  rmSync(join(hangar.dataDir, 'setups'), { recursive: true })
  await hangar.api('POST', '/api/sessions', {
    name: 'planter',
    repo: 'acme/app',
    message: 'true',
    context: [{ kind: 'patch', content: '--- /dev/null\n+++ b/planted\n@@ -0,0 +1 @@\n+x\n' }],
  })
  t.match(await ended(hangar, 'planter'), { outcome: 'exited' })
  await hangar.api('POST', '/api/sessions/planter/suspend', {})
  await hangar.api('POST', '/api/sessions/planter/turns', { message: 'true' })
  await ended(hangar, 'planter')
  const planter = (await said(hangar, 'planter')).filter((text: string) => text.startsWith('the set-up'))
  t.strictSame(planter, ['the set-up runs', 'the set-up is put back as it was made before'], 'for its own sandboxes')
  await begin(hangar, 'fourth', 'true')
  t.ok(
    (await said(hangar, 'fourth')).includes('the set-up runs'),
    'the cache may be deleted, and nobody gets what was made of what another has handed in',
  )
})

t.test('a set-up that fails fails the turn with its last words, without its secrets, and is tried again', async (t) => {
  const hangar = await start(t, 'echo "no network for $SETUP_TOKEN" >&2; exit 4')
  const turn = await begin(hangar, 'failing', 'true')
  t.match(turn, {
    outcome: 'failed',
    error: { code: 'sandbox_failed', message: /set-up ended with exit status 4: no network for \[redacted\]/ },
  })
  await hangar.api('POST', '/api/sessions/failing/turns', { message: 'true' })
  t.match(await ended(hangar, 'failing'), { outcome: 'failed', error: { message: /exit status 4/ } })
})

t.test("a repo's own environment says what is done inside its sandboxes, and nothing else", async (t) => {
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    config: {
      environments: { default: { harness_options: { argv: ['sh', '-c', OBEDIENT] }, env: { BOTH: 'server' } } },
    },
  })
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  const seed = join(hangar.dir, 'seed')
  const push = async (file: unknown) => {
    await shell(hangar.dir, 'git init -q -b main seed 2>/dev/null; mkdir -p seed/.hangar')
    writeFileSync(join(seed, '.hangar', 'environment.json'), typeof file === 'string' ? file : JSON.stringify(file))
    await shell(seed, 'printf "ran\n" >.gitignore; git add . && git commit -q -m environment')
    await hangar.git(seed, ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
  }
  await push({ setup: 'echo "$ONE" >ran', env: { ONE: 'repo', BOTH: 'repo' } })
  const turn = await begin(hangar, 'own', 'cat ran; test "$BOTH" = server && test "$ONE" = repo')
  t.match(turn, { outcome: 'exited', summary: 'repo', warnings: [] })
  await push({ setup: 'true', mounts: ['/'] })
  t.match((await begin(hangar, 'greedy', 'test ! -e ran')).warnings, [
    /^\.hangar\/environment\.json of the repo was left out: it: must NOT have additional properties \(mounts\)/,
  ])
  await push({ env: { A: 'a\0b' } })
  t.match((await begin(hangar, 'nul', 'true')).warnings, [/left out: it at \.env\.A: .*without NUL/])
  await push({ env: { 'A=B': 'x' } })
  t.match((await begin(hangar, 'sign', 'true')).warnings, [/left out: it at \.env: .*A=B/])
  await push('{ not JSON')
  t.match((await begin(hangar, 'broken', 'true')).warnings, [/environment\.json of the repo was left out/])
})
