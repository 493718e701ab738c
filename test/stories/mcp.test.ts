/** Someone drives hangar from an MCP client, the official one: hands half-finished work over, waits, answers, takes it back; the server dies meanwhile. */
import { spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import {
  type CallToolResult,
  CallToolResultSchema,
  type Progress,
  ResourceUpdatedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js'
import t, { type Test } from 'tap'
import { conversationDirectory } from '../../domain/hangar-io.ts'
import {
  api,
  MAIN,
  run,
  sandboxCheckout,
  serverEnvironment,
  shell,
  startHangar,
  temporaryDirectory,
  waitUntil,
  workTree,
} from './support.ts'

const AGENT = `
set -e
if [ "$HANGAR_TURN" = 2 ]; then
  grep -q '^Rename them$'
  git mv work.txt renamed.txt
  hangar-agent done "Renamed."
  exit
fi
cat >/dev/null
test "$(cat "$HANGAR_IO/in/1/trace.txt")" = "Error: line 3"
test "$(git log -1 --format=%s)" = "not pushed anywhere"
test "$(cat draft.txt)" = "half a thought"
echo "reading the trace"
until test -f "$HANGAR_CONVERSATION/go"; do sleep 0.1; done
hangar-agent progress --pct 50 "half way"
echo done >>work.txt
git commit -q -am "the agent's commit"
printf 'loose\\r\\n' >"loose end.txt"
printf '<p>87%%</p>' >coverage.html
hangar-agent artifact coverage.html
rm coverage.html
hangar-agent result '{"tests_added": 3}'
hangar-agent question --option "Keep them" --option "Rename them" "Keep the names?"
`

const SCHEMA = { type: 'object', required: ['tests_added'], properties: { tests_added: { type: 'integer' } } }

/** The official client; what is told of progress is collected. */
async function official(t: Test, url: string, token: string) {
  const transport = new StreamableHTTPClientTransport(new URL(`${url}/mcp`), {
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
    reconnectionOptions: {
      initialReconnectionDelay: 50,
      maxReconnectionDelay: 200,
      reconnectionDelayGrowFactor: 1,
      maxRetries: 100,
    },
  })
  const client = new Client({ name: 'story', version: '1' }, { capabilities: {} })
  client.onerror = () => {}
  // Its types have optional fields where the interface, read exactly, has none.
  await client.connect(transport as Parameters<Client['connect']>[0])
  t.teardown(() => client.close())
  const tool = async (name: string, args: Record<string, unknown>, onprogress?: (progress: Progress) => void) =>
    (await client.callTool(
      { name, arguments: args },
      CallToolResultSchema,
      onprogress === undefined ? {} : { onprogress, resetTimeoutOnProgress: true, timeout: 120_000 },
    )) as CallToolResult
  return { client, transport, tool }
}

const textOf = (result: CallToolResult): string => {
  const [first] = result.content
  return first?.type === 'text' ? first.text : ''
}

t.test('the round trip, by the official client', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT, server: { mcp: { lineMs: 50 } } })
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  const clone = join(hangar.dir, 'app')
  await shell(
    hangar.dir,
    `git init -q -b main app && cd app && printf 'one\\n' >work.txt && printf 'gone\\n' >gone.txt && git add . && git commit -q -m base`,
  )
  t.equal((await hangar.git(clone, ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])).status, 0)
  await shell(
    clone,
    `git switch -q -c feature && printf 'two\\n' >>work.txt && git commit -q -am 'not pushed anywhere'
     printf 'half a thought\\n' >draft.txt && printf '\\001\\000' >data.bin && rm gone.txt && git add -N draft.txt data.bin
     git bundle create -q ../work.bundle HEAD --not main && git diff --binary HEAD >../work.patch`,
  )
  const base = (await shell(clone, 'git rev-parse main')).trim()
  const base64 = (file: string) => readFileSync(join(hangar.dir, file)).toString('base64')
  const { client, tool } = await official(t, hangar.url, hangar.token)
  const begin = {
    name: 'csv-fix',
    repo: 'acme/app',
    message: 'finish this and add tests',
    context: [
      { kind: 'bundle', content: base64('work.bundle'), base_commit: base },
      { kind: 'patch', content: base64('work.patch'), encoding: 'base64' },
      { kind: 'file', name: 'trace.txt', content: 'Error: line 3' },
    ],
    output_schema: SCHEMA,
  }

  await t.test('the server says who it is and what to do', async (t) => {
    t.match(client.getServerVersion(), { name: 'hangar', version: /^\d/ })
    t.match(client.getInstructions(), /new_session[\s\S]*wait_for_turn/)
    t.ok((await client.listTools()).tools.length >= 12)
  })

  await t.test('work is handed over, and progress is told until the agent asks', async (t) => {
    const updates: string[] = []
    const made = await tool('new_session', begin)
    t.match(made.structuredContent, { name: 'csv-fix', state: 'running' }, textOf(made))
    client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => void updates.push(params.uri))
    await client.subscribeResource({ uri: 'hangar://sessions/csv-fix' })
    const told: Progress[] = []
    const waiting = tool(
      'wait_for_turn',
      { ref: 'csv-fix', timeout_seconds: 600 },
      (progress) => void told.push(progress),
    )
    await waitUntil('its output is told', () => told.some(({ message }) => message === 'reading the trace'))
    const { body } = await hangar.api('GET', '/api/sessions/csv-fix')
    writeFileSync(join(conversationDirectory(join(sandboxCheckout(hangar, body.sandbox.id), '..')), 'go'), '')
    const waited = await waiting
    t.match(waited.structuredContent, {
      done: true,
      turn: 1,
      outcome: 'needs_input',
      needs_input: 'Keep the names?',
      question_options: ['Keep them', 'Rename them'],
      hint: /send_to_session/,
    })
    t.ok(told.some(({ message }) => message === 'half way (50%)'))
    t.ok(told.some(({ message }) => message?.includes('is running')))
    t.strictSame(
      told.map(({ progress }) => progress),
      told.map((_, at) => at + 1),
      'it rises',
    )
    await waitUntil('moves of the session are told', () => updates.includes('hangar://sessions/csv-fix'))
  })

  await t.test('the question is answered, and the session goes on', async (t) => {
    t.match((await tool('send_to_session', { ref: 'csv-fix', option: 2 })).structuredContent, {
      turn: 2,
      message: 'Rename them',
    })
    t.match((await tool('wait_for_turn', { ref: 'csv-fix', timeout_seconds: 50 }, () => {})).structuredContent, {
      done: true,
      turn: 2,
      outcome: 'exited',
      summary: 'Renamed.',
    })
    t.match((await tool('wait_for_turn', { ref: 'csv-fix', turn: 1 })).structuredContent, {
      result: { tests_added: 3 },
      result_error: null,
      artifacts: [{ path: 'coverage.html', turn: 1, uri: 'hangar://sessions/csv-fix/artifacts/1/coverage.html' }],
    })
  })

  await t.test('artifacts come by tool, by link, by list and by completion', async (t) => {
    const waited = await tool('wait_for_turn', { ref: 'csv-fix', turn: 1 })
    const link = waited.content.find((block) => block.type === 'resource_link')
    t.equal(textOf(await tool('get_artifact', { ref: 'csv-fix', turn: 1, path: 'coverage.html' })), '<p>87%</p>')
    t.match((await client.readResource({ uri: link?.uri ?? '' })).contents, [
      { mimeType: 'text/html', text: '<p>87%</p>' },
    ])
    t.match((await client.listResources()).resources, [{ name: 'csv-fix' }, { name: 'coverage.html', uri: link?.uri }])
    const [, template] = (await client.listResourceTemplates()).resourceTemplates
    const completed = await client.complete({
      ref: { type: 'ref/resource', uri: template?.uriTemplate ?? '' },
      argument: { name: 'path', value: 'cov' },
      context: { arguments: { name: 'csv-fix', turn: '1' } },
    })
    t.strictSame(completed.completion.values, ['coverage.html'])
  })

  await t.test("the patch makes a fresh clone the same as the agent's", async (t) => {
    writeFileSync(join(hangar.dir, 'out.patch'), textOf(await tool('get_session_patch', { ref: 'csv-fix' })))
    await shell(
      hangar.dir,
      `git clone -q app fresh && cd fresh && git checkout -q --detach ${base} && git apply ../out.patch`,
    )
    const { body } = await hangar.api('GET', '/api/sessions/csv-fix')
    t.strictSame(workTree(join(hangar.dir, 'fresh')), workTree(sandboxCheckout(hangar, body.sandbox.id)))
    t.ok('loose end.txt' in workTree(join(hangar.dir, 'fresh')))
  })

  await t.test('the same call again is the same session; what is wrong is said so that it can be mended', async (t) => {
    t.match((await tool('new_session', begin)).structuredContent, {
      name: 'csv-fix',
      turns: [{ turn: 1 }, { turn: 2 }],
    })
    const taken = await tool('new_session', { ...begin, message: 'something else' })
    t.equal(taken.isError, true)
    t.match(textOf(taken), /a session csv-fix exists/)
    const missing = 'd'.repeat(40)
    const refused = await tool('new_session', {
      ...begin,
      name: 'other',
      context: [{ kind: 'bundle', content: base64('work.bundle'), base_commit: missing }],
    })
    t.match(textOf(refused), new RegExp(`code: missing_commits[\\s\\S]*${missing}`))
    await t.rejects(client.callTool({ name: 'pull_session', arguments: {} }), { code: -32602 })
    await t.rejects(client.readResource({ uri: 'hangar://sessions/csv-fix/artifacts/1/none' }), { code: -32002 })
  })

  await t.test("a client's time-out ends its wait, and nothing else", async (t) => {
    await tool('new_session', { ...begin, name: 'slow' })
    await t.rejects(
      client.callTool(
        { name: 'wait_for_turn', arguments: { ref: 'slow', timeout_seconds: 600 } },
        CallToolResultSchema,
        {
          timeout: 500,
          onprogress: () => {},
        },
      ),
      { code: -32001 },
    )
    await waitUntil('nothing waits', () => hangar.server.activity().mcp.requests === 0)
    t.match((await tool('get_session', { ref: 'slow' })).structuredContent, { state: 'running' })
    await tool('close_session', { ref: 'slow', delete: true })
  })
})

t.test('the server is killed with -9; the client goes on with the session that it had', async (t) => {
  const dir = temporaryDirectory(t)
  const env = serverEnvironment(dir, { agent: 'read -r line; eval "$line"' })
  let { url, kill } = await serve(t, env)
  const { token } = JSON.parse(readFileSync(join(dir, 'config', 'hangar', 'cli.json'), 'utf8')) as { token: string }
  await api(url, token, { method: 'POST', path: '/api/repos', body: { slug: 'acme/app' } })
  await shell(dir, 'git init -q -b main seed && cd seed && echo one >a.txt && git add . && git commit -q -m base')
  await run(
    'git',
    ['-c', `http.${url}/.extraHeader=Authorization: Bearer ${token}`, 'push', '-q', `${url}/git/acme/app.git`, 'main'],
    {
      cwd: join(dir, 'seed'),
    },
  )
  const { client, transport, tool } = await official(t, url, token)
  const updates: string[] = []
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => void updates.push(params.uri))
  const begin = { name: 'survivor', repo: 'acme/app', message: 'sleep 2; hangar-agent done survived' }
  await tool('new_session', begin)
  await client.subscribeResource({ uri: 'hangar://sessions/survivor' })
  const { sessionId } = transport
  await kill()
  await t.rejects(tool('list_sessions', {}), 'nobody answers')
  ;({ url, kill } = await serve(t, { ...env, HANGAR_LISTEN: new URL(url).host }))
  t.match((await tool('new_session', begin)).structuredContent, { name: 'survivor' }, 'a retry is the same session')
  const waited = await tool('wait_for_turn', { ref: 'survivor', timeout_seconds: 50 }, () => {})
  t.match(waited.structuredContent, { done: true, outcome: 'exited', summary: 'survived' })
  t.equal(transport.sessionId, sessionId)
  await waitUntil(
    'the client listens again',
    async () => {
      await tool('send_to_session', { ref: 'survivor', message: 'true' })
      await tool('wait_for_turn', { ref: 'survivor', timeout_seconds: 50 })
      return updates.length > 0
    },
    10,
  )
  await api(url, token, { method: 'POST', path: '/api/sessions/survivor/close', body: {} })
})

/** `hangar serve` as its own process. */
async function serve(t: Test, env: Record<string, string>): Promise<{ url: string; kill: () => Promise<void> }> {
  const child = spawn(process.execPath, [MAIN, 'serve'], {
    env: { ...env, HANGAR_LOG: 'warn' },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  child.stderr?.on('data', (chunk: Buffer) => {
    said += chunk.toString()
  })
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  const kill = async () => {
    child.kill('SIGKILL')
    await ended
  }
  t.teardown(kill)
  await waitUntil('the server answers', () => /hangar serves (\S+),/.test(said) || child.exitCode !== null)
  const url = /hangar serves (\S+),/.exec(said)?.[1]
  if (url === undefined) throw new Error(said)
  return { url, kill }
}
