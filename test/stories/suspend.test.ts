/** A suspended session is all in git: its next message finds the working tree, index, branch, conversation and HANGAR_IO as they were. */
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { gitState, type Hangar, sandboxCheckout, shell, startHangar, waitUntil, workTree } from './support.ts'

const OBEDIENT = 'read -r line; eval "$line"'

async function withRepo(hangar: Hangar): Promise<void> {
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(
    hangar.dir,
    'git init -q -b main seed && cd seed && echo one >a.txt && echo two >b.txt && printf "*.o\\n" >.gitignore && git add . && git commit -q -m base',
  )
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
}

const session = async (hangar: Hangar, name: string) => (await hangar.api('GET', `/api/sessions/${name}`)).body
const ended = async (hangar: Hangar, name: string) => {
  await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)
  return (await session(hangar, name)).turns.at(-1)
}
const begin = async (hangar: Hangar, name: string, message: string, more: object = {}) => {
  const { status, body } = await hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message, ...more })
  if (status !== 201) throw new Error(body.detail)
  return ended(hangar, name)
}
const send = async (hangar: Hangar, name: string, message: string, more: object = {}) => {
  await hangar.api('POST', `/api/sessions/${name}/turns`, { message, ...more })
  return ended(hangar, name)
}
const sandboxes = (hangar: Hangar) =>
  readdirSync(join(hangar.dataDir, 'sandboxes')).filter((name) => !name.startsWith('.'))

const STATE = [
  'git config user.name x',
  'echo committed >c.txt && git add c.txt && git commit -q -m work',
  'echo staged >a.txt && git add a.txt && echo unstaged >>a.txt',
  'git rm -q --cached b.txt',
  'printf "\\000\\377" >bin && chmod 755 bin && ln -s a.txt link && mkdir d && echo x >"d/a name"',
  'echo ignored >x.o',
  'echo said >>"$HANGAR_CONVERSATION/log"',
  'mkdir -p "$HANGAR_IO/out/artifacts/report" && echo html >"$HANGAR_IO/out/artifacts/report/index.html"',
].join('; ')

t.test('suspend and resume', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)

  await t.test('all comes back but ignored files and HOME', async (t) => {
    const trace = { kind: 'file', name: 'trace.txt', content: 'a trace' }
    await begin(hangar, 'whole', STATE, { context: [trace] })
    const before = await session(hangar, 'whole')
    const checkout = sandboxCheckout(hangar, before.sandbox.id)
    const tree = workTree(checkout)
    const state = await gitState(checkout)
    delete tree['x.o']
    await shell(join(checkout, '..'), 'echo mine >.profile-of-home')

    const suspended = await hangar.cli(['session', 'suspend', 'whole'])
    t.equal(suspended.status, 0, suspended.err)
    t.match(await session(hangar, 'whole'), { state: 'suspended', sandbox: null })
    t.strictSame(sandboxes(hangar), [], 'the sandbox is gone')
    t.match(await hangar.api('POST', '/api/sessions/whole/suspend', {}), { status: 200 }, 'once more is the same')
    t.match((await hangar.api('GET', '/api/sessions/whole/patch')).bytes.toString(), /unstaged/)

    const again = await send(
      hangar,
      'whole',
      'cat "$HANGAR_CONVERSATION/log" "$HANGAR_IO/in/1/trace.txt"; echo; cat "$HANGAR_IO/out/artifacts/report/index.html"; test ! -e ~/.profile-of-home && test ! -e x.o',
    )
    t.match(again, { outcome: 'exited', warnings: [], artifacts: [] })
    const after = await session(hangar, 'whole')
    t.not(after.sandbox.id, before.sandbox.id)
    const { body } = await hangar.api('GET', '/api/sessions/whole/events?limit=1000')
    const said = body.items.filter(
      (event: { turn: number; kind: string }) => event.turn === 2 && event.kind === 'message',
    )
    t.strictSame(
      said.map((event: { text: string }) => event.text),
      ['said', 'a trace', 'html'],
    )
    t.strictSame(workTree(sandboxCheckout(hangar, after.sandbox.id)), tree)
    t.strictSame(await gitState(sandboxCheckout(hangar, after.sandbox.id)), state)
  })

  await t.test('a question survives it, and a restart, and is answered in a fresh sandbox', async (t) => {
    await begin(
      hangar,
      'asks',
      'echo asked >>"$HANGAR_CONVERSATION/log"; hangar-agent question --option A --option B "Which?"',
    )
    t.match(await hangar.api('POST', '/api/sessions/asks/suspend', {}), {
      body: { state: 'suspended', needs_input: 'Which?' },
    })
    t.match((await hangar.api('GET', '/api/inbox')).body.items, [{ ref: 'asks', question: 'Which?' }])
    const turn = await send(hangar, 'asks', 'cat "$HANGAR_CONVERSATION/log"')
    t.match(turn, { outcome: 'exited', summary: 'asked' })
    t.equal((await session(hangar, 'asks')).needs_input, null)
  })

  await t.test('resume makes it idle; a session at work is not suspended, and says what to do', async (t) => {
    await hangar.api('POST', '/api/sessions/asks/suspend', {})
    t.match(await hangar.cli(['session', 'resume', 'asks']), { status: 0, err: /session asks is idle/ })
    t.match(await session(hangar, 'asks'), { state: 'idle', sandbox: null })
    await hangar.api('POST', '/api/sessions/asks/turns', { message: 'sleep 30' })
    await waitUntil('it runs', async () => (await session(hangar, 'asks')).turns.at(-1).state === 'running')
    const refused = await hangar.cli(['session', 'suspend', 'asks'])
    t.match(refused, { status: 2, err: /is at work; wait for its turn .* or stop it/ })
    await hangar.api('POST', '/api/sessions/asks/close', {})
    t.match(await hangar.cli(['session', 'suspend', 'asks']), { status: 2, err: /is closed/ })
    t.match(await hangar.cli(['session', 'resume', 'asks']), { status: 2, err: /is closed/ })
  })

  await t.test('messages and suspensions at once lose nothing', async (t) => {
    await begin(hangar, 'race', 'echo 1 >>log.txt')
    for (let round = 2; round <= 5; round++) {
      await Promise.all([
        hangar.api('POST', '/api/sessions/race/suspend', {}),
        hangar.api('POST', '/api/sessions/race/turns', { message: `echo ${round} >>log.txt` }),
      ])
      t.match(await ended(hangar, 'race'), { turn: round, outcome: 'exited' })
    }
    const { sandbox } = await session(hangar, 'race')
    t.equal(await shell(sandboxCheckout(hangar, sandbox.id), 'cat log.txt'), '1\n2\n3\n4\n5\n')
  })
})

t.test('an idle session is suspended by itself, after the time that its environment says', async (t) => {
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    config: {
      environments: {
        default: { harness_options: { argv: ['sh', '-c', OBEDIENT] }, idle_suspend_minutes: 0.01 },
        kept: { harness_options: { argv: ['sh', '-c', OBEDIENT] }, idle_suspend_minutes: null },
      },
    },
  })
  await withRepo(hangar)
  await begin(hangar, 'idle', 'echo x >x.txt')
  await begin(hangar, 'kept', 'echo x >x.txt', { environment: 'kept' })
  const { sandbox } = await session(hangar, 'kept')
  await waitUntil('it is suspended', async () => (await session(hangar, 'idle')).state === 'suspended', 1_200)
  t.match(await session(hangar, 'kept'), { state: 'idle' })
  t.ok(existsSync(sandboxCheckout(hangar, sandbox.id)))
  t.match(await send(hangar, 'idle', 'test -e x.txt'), { outcome: 'exited' })
})
