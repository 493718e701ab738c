/** A structured result that is missing or wrong gets exactly one repair, in the same conversation and within its limits. */
import { join } from 'node:path'
import t from 'tap'
import { type Hangar, shell, startHangar, waitUntil } from './support.ts'

/**
 * An agent that keeps a conversation: its runs are counted there, the message's lines are shell commands, and `$FIRST` and `$AGAIN` of
 * the message say what the first run and the repair do.
 */
const AGENT = `
prompt=$(cat)
echo run >>"$HANGAR_CONVERSATION/runs"
printf '%s\\n' "$prompt" >>"$HANGAR_CONVERSATION/prompts"
case $prompt in
  'Your work is done'*) eval "$(cat "$HANGAR_CONVERSATION/again")";;
  *) printf '%s\\n' "$prompt" | sed -n 's/^AGAIN //p' >"$HANGAR_CONVERSATION/again"
     eval "$(printf '%s\\n' "$prompt" | sed -n 's/^FIRST //p')";;
esac`

const SCHEMA = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object',
  properties: { tests_added: { type: 'integer', minimum: 1 } },
  required: ['tests_added'],
}

async function withRepo(hangar: Hangar): Promise<void> {
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(
    hangar.dir,
    'git init -q -b main seed && cd seed && echo one >a.txt && git add . && git commit -q -m base',
  )
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
}

const begin = (hangar: Hangar, name: string, first: string, again: string, more: object = {}) =>
  hangar.api('POST', '/api/sessions', {
    name,
    repo: 'acme/app',
    message: `FIRST ${first}\nAGAIN ${again}`,
    output_schema: SCHEMA,
    ...more,
  })

const ended = async (hangar: Hangar, name: string) => {
  for (;;) {
    const { body } = await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)
    if (body.done) break
  }
  return (await hangar.api('GET', `/api/sessions/${name}`)).body.turns.at(-1)
}

const conversation = async (hangar: Hangar, name: string, file: string) => {
  const { sandbox } = (await hangar.api('GET', `/api/sessions/${name}`)).body
  return shell(join(hangar.dataDir, 'sandboxes', sandbox.id, 'home'), `cat .hangar/conversation/${file}`)
}

const isRepairing = (hangar: Hangar, name: string) => async () =>
  (await hangar.api('GET', `/api/sessions/${name}`)).body.turns.at(-1).state === 'repairing'

const USAGE = `echo '{"kind":"usage","scope":"turn","input":10,"output":2,"cost_usd":0.5}'`
const USAGE_AGAIN = `echo '{"kind":"usage","scope":"request","input":3}'; echo '{"kind":"usage","output":4}'`

t.test('the one repair', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT, settings: { HANGAR_EXCHANGE_REPAIR_TIMEOUT_MINUTES: '0.2' } })
  await withRepo(hangar)

  await t.test('a missing result is asked for once more, told what was wrong', async (t) => {
    await begin(
      hangar,
      'missing',
      `${USAGE}; echo two >b.txt; echo kept >k; echo old >c; hangar-agent artifact k; hangar-agent artifact c; echo "did the work"`,
      `${USAGE_AGAIN}; echo new >c; hangar-agent artifact c; hangar-agent result '{"tests_added": 3}'; echo "wrote the result"`,
    )
    const turn = await ended(hangar, 'missing')
    t.match(turn, { outcome: 'exited', result: { tests_added: 3 }, result_error: null, summary: 'did the work' })
    t.match(turn.usage, { input_tokens: 10, output_tokens: 2, cost_usd: 0.5, cost_source: 'reported' })
    t.match(turn.repair_usage, { input_tokens: 3, output_tokens: 4, cost_usd: null })
    t.match((await hangar.api('GET', '/api/sessions/missing')).body.usage, { input_tokens: 13, output_tokens: 6 })
    t.equal(await conversation(hangar, 'missing', 'runs'), 'run\nrun\n', 'in the same conversation')
    t.match(await conversation(hangar, 'missing', 'prompts'), /Your work is done[\s\S]*out\/result\.json is missing/)
    const { body } = await hangar.api('GET', '/api/sessions/missing/events?limit=1000')
    const states = body.items.filter((event: { kind: string }) => event.kind === 'state')
    t.strictSame(
      states.map((event: { state: string }) => event.state),
      ['preparing', 'running', 'collecting', 'repairing', 'collecting', 'ended'],
    )
    t.strictSame(turn.artifacts.map((artifact: { path: string }) => artifact.path).sort(), ['c', 'k'])
    t.equal((await hangar.api('GET', '/api/sessions/missing/artifacts/1/c')).bytes.toString(), 'new\n')
    t.equal((await hangar.api('GET', '/api/sessions/missing/artifacts/1/k')).bytes.toString(), 'kept\n')
    t.match((await hangar.api('GET', '/api/sessions/missing/patch')).bytes.toString(), /b\/b\.txt/)
  })

  await t.test('a wrong result after the repair is an error on a turn that ended well', async (t) => {
    await begin(
      hangar,
      'wrong',
      `hangar-agent result '{"tests_added": "three"}'`,
      `hangar-agent result '{"tests_added": 0}'`,
    )
    const turn = await ended(hangar, 'wrong')
    t.match(turn, { outcome: 'exited', result: null, result_error: /\/tests_added must be >= 1/ })
    t.equal(await conversation(hangar, 'wrong', 'runs'), 'run\nrun\n', 'there is no third attempt')
    t.match(await conversation(hangar, 'wrong', 'prompts'), /\/tests_added must be integer/)
  })

  await t.test('a result that is no JSON at all is repaired as well', async (t) => {
    await begin(
      hangar,
      'text',
      `echo 'tests: 3' >$HANGAR_IO/out/result.json`,
      `hangar-agent result '{"tests_added":1}'`,
    )
    t.match(await ended(hangar, 'text'), { outcome: 'exited', result: { tests_added: 1 }, result_error: null })
    t.match(await conversation(hangar, 'text', 'prompts'), /not JSON/)
  })

  await t.test('a result that is too large, or not UTF-8, is told as that', async (t) => {
    await begin(
      hangar,
      'large',
      `head -c 1100000 /dev/zero | tr '\\0' 1 >$HANGAR_IO/out/result.json`,
      `printf '{"tests_added":1,"a":"\\377"}' >$HANGAR_IO/out/result.json`,
    )
    t.match(await ended(hangar, 'large'), {
      outcome: 'exited',
      result: null,
      result_error: 'out/result.json is not UTF-8',
    })
    t.match(await conversation(hangar, 'large', 'prompts'), /has 1100000 bytes, more than the 1048576 that are taken/)
  })

  await t.test('where no schema was given nothing is repaired', async (t) => {
    await begin(hangar, 'free', 'echo "tests: 3" >$HANGAR_IO/out/result.json', 'true', { output_schema: undefined })
    t.match(await ended(hangar, 'free'), { outcome: 'exited', result_error: /not JSON/, repair_usage: null })
    t.equal(await conversation(hangar, 'free', 'runs'), 'run\n')
  })

  await t.test('a repair that crashes costs the result alone', async (t) => {
    await begin(hangar, 'crashing', 'echo work >b.txt', 'exit 9')
    t.match(await ended(hangar, 'crashing'), {
      outcome: 'exited',
      result_error: /is missing \(the repair: the agent ended with exit status 9\)/,
    })
  })

  await t.test('a repair that hangs is ended at its limit, with all it started', async (t) => {
    await begin(hangar, 'hanging', 'echo work >b.txt', `trap '' TERM; sleep 4343 & sleep 4343`)
    t.match(await ended(hangar, 'hanging'), {
      outcome: 'exited',
      result_error: /is missing \(the repair: it had not ended after 0\.2 minute/,
    })
    t.equal(await shell(hangar.dir, 'pgrep -f "sleep 434[3]" || true'), '')
  })

  await t.test("the turn's budget holds for its repair too", async (t) => {
    await begin(hangar, 'budget', 'echo work >b.txt', 'sleep 4444', { budget: { max_minutes: 0.1 } })
    t.match(await ended(hangar, 'budget'), { outcome: 'over_budget', result: null, result_error: null })
  })

  await t.test('a turn can be cancelled while it is repaired', async (t) => {
    await begin(hangar, 'stopped', 'echo work >b.txt; hangar-agent artifact b.txt', 'sleep 4545')
    await waitUntil('the repair runs', isRepairing(hangar, 'stopped'))
    t.match(await hangar.api('POST', '/api/sessions/stopped/cancel', {}), { status: 200 })
    const turn = await ended(hangar, 'stopped')
    t.match(turn, { outcome: 'cancelled', result: null, result_error: null })
    t.equal(turn.artifacts.length, 1, 'what was handed back before is kept')
    t.equal(await shell(hangar.dir, 'pgrep -f "sleep 454[5]" || true'), '')
  })

  await t.test('a failed turn and one that asks are not repaired', async (t) => {
    await begin(hangar, 'failed', 'exit 3', 'true')
    t.match(await ended(hangar, 'failed'), { outcome: 'failed', repair_usage: null })
    t.equal(await conversation(hangar, 'failed', 'runs'), 'run\n')
    await begin(hangar, 'asking', 'hangar-agent ask "Which tests?"', 'true')
    t.match(await ended(hangar, 'asking'), { outcome: 'needs_input', result_error: null })
    t.equal(await conversation(hangar, 'asking', 'runs'), 'run\n')
  })

  await t.test('a question that the repair asks is a question', async (t) => {
    await begin(hangar, 'asks-late', 'true', 'hangar-agent ask "How do I count them?"')
    t.match(await ended(hangar, 'asks-late'), { outcome: 'needs_input', question: 'How do I count them?' })
  })
})

t.test('a file that is too big for all caps costs no text', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT, settings: { HANGAR_EXCHANGE_MAX_ARTIFACTS_MB: '1' } })
  await withRepo(hangar)
  const first = `truncate -s 60M $HANGAR_IO/out/artifacts/core; hangar-agent result '{"tests_added":1}'; hangar-agent done "all is well"`
  await begin(hangar, 'big', first, 'true')
  t.match(await ended(hangar, 'big'), {
    outcome: 'exited',
    summary: 'all is well',
    result: { tests_added: 1 },
    warnings: [/^no artifacts were taken: .* bigger than \d+ bytes/],
  })
  t.equal(await conversation(hangar, 'big', 'runs'), 'run\n')
})

t.test('a restarted server takes the repair up again, once', async (t) => {
  let hangar = await startHangar(t, { agent: AGENT })
  await withRepo(hangar)
  const wait = 'while ! test -e "$HANGAR_CONVERSATION/go"; do sleep 0.1; done'
  await begin(hangar, 'lasting', 'echo "the work"', `echo again; ${wait}; hangar-agent result '{"tests_added":2}'`)
  await waitUntil('the repair runs', isRepairing(hangar, 'lasting'))
  await waitUntil('the agent runs again', async () => (await conversation(hangar, 'lasting', 'runs')) === 'run\nrun\n')
  hangar = await hangar.restart()
  t.teardown(() => hangar.close())
  t.equal(await isRepairing(hangar, 'lasting')(), true)
  await shell(
    join(hangar.dataDir, 'sandboxes', (await hangar.api('GET', '/api/sessions/lasting')).body.sandbox.id, 'home'),
    'touch .hangar/conversation/go',
  )
  t.match(await ended(hangar, 'lasting'), { outcome: 'exited', result: { tests_added: 2 }, summary: 'the work' })
  t.equal(await conversation(hangar, 'lasting', 'runs'), 'run\nrun\n')
  const { body } = await hangar.api('GET', '/api/sessions/lasting/events?limit=1000')
  const said = body.items.filter((event: { kind: string }) => event.kind === 'message')
  t.strictSame(
    said.map((event: { text: string }) => event.text),
    ['the work', 'again'],
    'each line once',
  )
})

t.test('a turn can be cancelled and a session closed at any moment of its end', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT })
  await withRepo(hangar)
  await begin(hangar, 'early', 'true', 'true', { output_schema: undefined })
  await waitUntil('it is collected', async () => {
    const { body } = await hangar.api('GET', '/api/sessions/early')
    return ['collecting', 'ended'].includes(body.turns[0].state)
  })
  const { status, body } = await hangar.api('POST', '/api/sessions/early/close', {})
  t.equal(status, 200, body.detail)
  t.equal(body.state, 'closed')
})
