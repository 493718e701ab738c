/** Budgets bite while a turn runs, say by how much they were passed, and can be raised; a conversation outlives its sandbox. */
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { readConfig } from '../../domain/config.ts'
import { settled, submit } from './jobs-support.ts'
import { type Hangar, shell, startHangar, temporaryDirectory, waitUntil } from './support.ts'

const OBEDIENT = 'read -r line; eval "$line"'

async function withRepo(hangar: Hangar): Promise<void> {
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(
    hangar.dir,
    'git init -q -b main seed && cd seed && echo one >a.txt && git add . && git commit -q -m base',
  )
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
}

const ended = async (hangar: Hangar, name: string) => {
  await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)
  return (await hangar.api('GET', `/api/sessions/${name}`)).body.turns.at(-1)
}
const begin = async (hangar: Hangar, name: string, message: string, more: object = {}) => {
  await hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message, ...more })
  return ended(hangar, name)
}
const send = async (hangar: Hangar, name: string, message: string, more: object = {}) => {
  await hangar.api('POST', `/api/sessions/${name}/turns`, { message, ...more })
  return ended(hangar, name)
}
const usage = (figures: string) => `echo '{"kind":"usage","scope":"request",${figures}}'`

t.test('budgets', async (t) => {
  const prices = join(temporaryDirectory(t), 'prices.json')
  const price = { input: 1, output: 10, cache_read: 0, cache_write: 2 }
  writeFileSync(prices, JSON.stringify({ date: '2026-11-01', models: { 'model-a': price } }))
  const hangar = await startHangar(t, { agent: OBEDIENT, settings: { HANGAR_PRICES_FILE: prices } })
  await withRepo(hangar)

  await t.test('many tiny calls cannot pass it: the sum counts, the work is kept, more can be given', async (t) => {
    const loop = `echo work >w.txt; i=0; while [ $i -lt 1000 ]; do i=$((i+1)); ${usage('"input":6,"output":4,"cache_read":1000')}; sleep 0.02; done`
    const turn = await begin(hangar, 'tiny', loop, { budget: { max_tokens: 300 } })
    t.match(turn, {
      outcome: 'over_budget',
      error: {
        code: 'over_budget',
        message: /^the budget's max_tokens of 300 tokens was passed: \d+ tokens were used, \d+ tokens over it; go on/,
      },
    })
    const used = turn.usage.input_tokens + turn.usage.output_tokens
    t.ok(used > 300 && used < 2_000, `${used} tokens, of 10000 that it would have used`)
    t.equal(turn.usage.cache_read_tokens, used * 100, 'tokens from the cache are counted apart')
    t.match((await hangar.api('GET', '/api/sessions/tiny/patch')).bytes.toString(), /w\.txt/)
    const next = await send(hangar, 'tiny', usage('"input":900'), { budget: { max_tokens: 1_000 } })
    t.match(next, { outcome: 'exited', usage: { input_tokens: 900 } })
  })

  await t.test('cost as it is reported', async (t) => {
    const turn = await begin(
      hangar,
      'cost',
      `${usage('"input":1,"cost_usd":0.4')}; ${usage('"input":1,"cost_usd":0.4')}; sleep 60`,
      {
        budget: { max_cost_usd: 0.5 },
      },
    )
    t.match(turn, {
      outcome: 'over_budget',
      error: { message: /max_cost_usd of \$0\.5000 was passed: \$0\.8000 were used/ },
    })
    t.match(turn.usage, { cost_usd: 0.8, cost_source: 'reported' })
  })

  await t.test('cost by the table of prices, which a file replaces', async (t) => {
    const figures = '"input":100000,"output":10000,"cache_read":5000,"cache_write":50000,"model":"model-a-2026"'
    const turn = await begin(hangar, 'priced', `${usage(figures)}; sleep 60`, { budget: { max_cost_usd: 0.25 } })
    t.match(turn, { outcome: 'over_budget', error: { message: /\$0\.3000 were used, \$0\.0500 over it/ } })
    t.match(turn.usage, { cost_source: 'priced' })
    const unknown = await begin(hangar, 'unknown', usage('"input":1000000,"model":"model-z"'), {
      budget: { max_cost_usd: 0.01 },
    })
    t.match(unknown, { outcome: 'exited', usage: { cost_usd: null, cost_source: null } })
  })

  await t.test('a figure that comes with its last words counts as well', async (t) => {
    t.match(await begin(hangar, 'last', usage('"output":500'), { budget: { max_tokens: 100 } }), {
      outcome: 'over_budget',
    })
  })

  await t.test('limits and figures under a hundredth of a cent are told', async (t) => {
    const turn = await begin(hangar, 'cheap', `${usage('"input":1,"cost_usd":0.00003')}; sleep 60`, {
      budget: { max_cost_usd: 0.00001 },
    })
    t.match(turn, {
      outcome: 'over_budget',
      error: { message: /max_cost_usd of \$0\.000010 was passed: \$0\.000030 were used, \$0\.000020 over it/ },
    })
  })

  await t.test('figures without end stay numbers', async (t) => {
    const turn = await begin(
      hangar,
      'endless',
      `${usage('"input":1e308,"cost_usd":1e308')}; `.repeat(3).replace(/; $/, ''),
    )
    t.match(turn, { outcome: 'exited', usage: { input_tokens: Number, cost_usd: Number } })
  })

  await t.test('a flood of figures is counted, and not kept line by line', async (t) => {
    const turn = await begin(hangar, 'flood', `yes '{"kind":"usage","scope":"request","input":1}' | head -25000`)
    t.match(turn, { outcome: 'exited', usage: { input_tokens: 25_000 } })
    const { cursor } = (await hangar.api('GET', '/api/sessions/flood/wait?timeout_seconds=1')).body
    t.ok(cursor < 20_100, `${cursor} events`)
  })

  await t.test('minutes, and what a longer one says', async (t) => {
    t.match(await begin(hangar, 'minutes', 'sleep 60', { budget: { max_minutes: 0.03 } }), {
      outcome: 'over_budget',
      error: {
        code: 'over_budget',
        message: /max_minutes of 0\.03 minutes was passed: 0\.\d+ minutes were used, \S+ minutes over it/,
      },
    })
    t.match(await begin(hangar, 'slow', 'sleep 60', { timeout_minutes: 0.03 }), {
      outcome: 'timed_out',
      error: { code: 'timed_out', message: /had not ended after 0\.03 minute/ },
    })
  })
})

t.test('a price that is no number is refused', async (t) => {
  const dir = temporaryDirectory(t)
  const prices = join(dir, 'prices.json')
  const price = '{"input":1,"output":1e999,"cache_read":0,"cache_write":0}'
  writeFileSync(prices, `{"date":"2026-11-01","models":{"model-a":${price}}}`)
  t.throws(() => readConfig({ env: { HANGAR_DATA: dir, HANGAR_PRICES_FILE: prices } }), {
    code: 'config_invalid',
    message: /prices\.json.*model-a\.output: must be <= 1000000/,
  })
})

t.test('a budget of the settings and of the environment; the nearer one counts', async (t) => {
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    settings: { HANGAR_BUDGET_MAX_TOKENS: '50' },
  })
  await withRepo(hangar)
  t.match(await begin(hangar, 'small', usage('"output":60')), { outcome: 'over_budget' })
  t.match(await begin(hangar, 'large', usage('"output":60'), { budget: { max_tokens: 70 } }), { outcome: 'exited' })
  t.match((await hangar.api('GET', '/api/sessions/large')).body.budget, { max_tokens: 70 })
})

t.test("each message that waits gets what is left of its job's budget when it is its turn", async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)
  const go = 'while ! test -e "$HANGAR_CONVERSATION/go"; do sleep 0.1; done'
  const { body: job } = await submit(hangar, {
    instructions: `${usage('"output":100')}; ${go}`,
    budget: { max_tokens: 1000 },
  })
  const followUp = (message: string, more: object = {}) =>
    hangar.api('POST', `/api/jobs/${job.id}/follow-up`, { message, ...more })
  let conversation = ''
  await waitUntil('the agent is at work', async () => {
    const { body } = await hangar.api('GET', `/api/sessions/${job.id}`)
    conversation = join(hangar.dataDir, 'sandboxes', body.sandbox?.id ?? '', 'home', '.hangar', 'conversation')
    return body.turns?.[0]?.state === 'running' && existsSync(conversation)
  })
  t.equal((await followUp(usage('"output":600'))).status, 202)
  t.equal((await followUp(usage('"output":600'))).status, 202)
  t.equal((await followUp('touch never.txt')).status, 202)
  t.equal((await followUp(usage('"output":700'), { budget: { max_tokens: 2100 } })).status, 202)
  t.match(
    (await hangar.api('GET', `/api/jobs/${job.id}`)).body.budget,
    { max_tokens: 2100 },
    'the newest is the whole one',
  )
  writeFileSync(join(conversation, 'go'), '')
  const over = await settled(hangar, job.id)
  const { turns } = (await hangar.api('GET', `/api/sessions/${job.id}`)).body
  t.match(turns.slice(0, 3), [{ outcome: 'exited' }, { outcome: 'exited' }, { outcome: 'over_budget' }])
  t.match(turns[2].error.message, /max_tokens of 300 tokens was passed: 600 tokens were used/)
  t.match(turns[3], { outcome: 'over_budget', started_at: null }, 'with nothing left it does not begin')
  t.match(turns[3].error.message, /of the whole job: the budget's max_tokens of 1000 tokens was passed: 1300 tokens/)
  t.match(turns[4], { outcome: 'exited', usage: { output_tokens: 700 } }, "a larger budget is the whole job's")
  t.equal(over.usage.output_tokens, 2000)
  const refused = await followUp('true', { budget: { max_tokens: 2000 } })
  t.equal(refused.status, 409)
  t.match(refused.body.detail, /has used its whole budget/)
})

t.test('a restart in the middle of a run loses no figure and counts none twice', async (t) => {
  let hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)
  const loop = `${usage('"output":5')}; while ! test -e "$HANGAR_CONVERSATION/go"; do sleep 0.05; done; ${usage('"output":7')}`
  await hangar.api('POST', '/api/sessions', { name: 'lasting', repo: 'acme/app', message: loop })
  await waitUntil('the first figure is there', async () =>
    (await hangar.api('GET', '/api/sessions/lasting/events?limit=100')).bytes.toString().includes('"usage"'),
  )
  hangar = await hangar.restart()
  t.teardown(() => hangar.close())
  const { sandbox } = (await hangar.api('GET', '/api/sessions/lasting')).body
  await shell(join(hangar.dataDir, 'sandboxes', sandbox.id, 'home'), 'touch .hangar/conversation/go')
  t.match(await ended(hangar, 'lasting'), { outcome: 'exited', usage: { output_tokens: 12 } })
})

t.test('the conversation is kept sealed, and comes back in a fresh sandbox', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)
  const conversation = (turn: number) =>
    `cd "$HANGAR_CONVERSATION"; mkdir -p 'a dir'; echo "remember ${turn}" >>'a dir/log'; chmod 755 'a dir/log'; head -c 300000 /dev/urandom >blob-${turn}; ln -sf /etc/passwd link; cat 'a dir/log' | wc -l`
  t.match(await begin(hangar, 'kept', conversation(1)), { outcome: 'exited', summary: '1' })
  t.match(await send(hangar, 'kept', conversation(2)), { summary: '2' })
  const lose = async () => {
    const { sandbox } = (await hangar.api('GET', '/api/sessions/kept')).body
    rmSync(join(hangar.dataDir, 'sandboxes', sandbox.id), { recursive: true, force: true })
  }
  await lose()
  const third = await send(hangar, 'kept', `${conversation(3)}; ls; test -x 'a dir/log' && test ! -e link.old`)
  t.match(third, { outcome: 'exited', warnings: [] })
  const { body } = await hangar.api('GET', '/api/sessions/kept/events?limit=1000')
  const said = body.items.filter(
    (event: { turn: number; kind: string }) => event.turn === 3 && event.kind === 'message',
  )
  t.strictSame(
    said.map((event: { text: string }) => event.text),
    ['3', 'a dir', 'blob-1', 'blob-2', 'blob-3', 'link'],
  )

  const repo = join(hangar.dataDir, 'repos', 'acme', 'app.git')
  const tree = await shell(repo, 'git -c safe.directory=* ls-tree -r -l refs/hangar/sessions/kept/sealed')
  const sizes = tree.split('\n').flatMap((line) => {
    const [, , , size, path] = line.split(/\s+/)
    return path?.startsWith('conversation/') && !path.endsWith('manifest.pgp') ? [Number(size)] : []
  })
  t.equal(sizes.length, 3, 'one segment a turn')
  t.ok(
    sizes.every((size) => size > 300_000 && size < 400_000),
    'each has only what its turn has added',
  )
  const clear = await shell(repo, 'git -c safe.directory=* grep -c remember refs/hangar/sessions/kept/sealed || true')
  t.equal(clear, '', 'nothing of it can be read')

  await lose()
  await shell(repo, 'git -c safe.directory=* update-ref -d refs/hangar/sessions/kept/sealed')
  const lost = await send(hangar, 'kept', 'cat "$HANGAR_PROMPT_FILE"')
  t.match(
    lost.warnings.join(),
    /conversation could not be continued \(nothing of it was kept\); a new one was handed a summary/,
  )
})
