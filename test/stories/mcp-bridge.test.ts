/**
 * `hangar mcp`, driven by the official client over stdio in a real checkout: everything passes both ways, the checkout is handed over and
 * taken back exactly, and a server that is away, killed or new is borne.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import {
  type CallToolResult,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js'
import t, { type Test } from 'tap'
import { readLines } from '../../surfaces/mcp/json-lines.ts'
import { freePort, type Served, serve } from './served.ts'
import {
  api,
  gitState,
  MAIN,
  run,
  sandboxCheckout,
  serverEnvironment,
  shell,
  temporaryDirectory,
  waitUntil,
  workTree,
} from './support.ts'

t.setTimeout(900_000)
/** Does what its prompt's first line says. */
const AGENT = 'read -r line; eval "$line"'
const CHANGES = `
echo committed >>a.txt; git commit -q -a -m "not pushed"
echo staged >>b.txt; git add b.txt; echo unstaged >>b.txt; rm c.txt; mkdir -p new/dir; echo untracked >new/dir/file; chmod +x new/dir/file; ln -s a.txt link
echo ignored >x.log`

interface Place {
  readonly dir: string
  readonly env: Record<string, string>
  readonly top: string
  readonly dataDir: string
}

/** A directory with the settings of a server that is not started yet. */
async function place(t: Test): Promise<Place> {
  const dir = temporaryDirectory(t)
  const env = serverEnvironment(dir, { agent: AGENT, settings: { HANGAR_LISTEN: `127.0.0.1:${await freePort()}` } })
  return { dir, env, top: join(dir, 'app'), dataDir: join(dir, 'data') }
}

/** A repo on the server, and a checkout of it with commits that were not pushed and changes of every kind. */
async function withCheckout({ dir, top }: Place, served: Served): Promise<void> {
  await api(served.url, served.token, { method: 'POST', path: '/api/repos', body: { slug: 'acme/app' } })
  const remote = `${served.url}/git/acme/app.git`
  await shell(
    dir,
    `git init -q -b main app; cd app; for f in a b c; do echo one >$f.txt; done; echo '*.log' >.gitignore; git add .; git commit -q -m base; git remote add origin ${remote}`,
  )
  const header = `http.${served.url}/.extraHeader=Authorization: Bearer ${served.token}`
  const pushed = await run('git', ['-c', header, 'push', '-q', remote, 'main'], { cwd: top })
  if (pushed.status !== 0) throw new Error(pushed.err)
  await shell(top, CHANGES)
}

interface Connected {
  readonly client: Client
  /** What the bridge said on stderr. */
  said(): string
  call(name: string, args: Record<string, unknown>, options?: object): Promise<Answer>
}

interface Answer {
  readonly failed: boolean
  readonly text: string
  // biome-ignore lint/suspicious/noExplicitAny: answers are looked into by tests only
  readonly data: any
  readonly result: CallToolResult
}

async function connect(t: Test, { env, top, dir }: Place, cwd = top): Promise<Connected> {
  mkdirSync(cwd, { recursive: true })
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [MAIN, 'mcp'],
    env,
    cwd,
    stderr: 'pipe',
  })
  let said = ''
  transport.stderr?.on('data', (chunk: Buffer) => {
    said += chunk.toString()
  })
  const client = new Client({ name: 'a client', version: '1' })
  client.onerror = (error) => t.comment(`${dir}: ${error.message}`)
  await client.connect(transport)
  t.teardown(() => client.close())
  const call = async (name: string, args: Record<string, unknown>, options?: object): Promise<Answer> => {
    const result = (await client.callTool({ name, arguments: args }, undefined, options)) as CallToolResult
    const [first] = result.content
    const text = first?.type === 'text' ? first.text : ''
    return { failed: result.isError === true, text, data: result.structuredContent, result }
  }
  return { client, said: () => said, call }
}

/** Without ignored files. */
async function whole(top: string): Promise<object> {
  const files = workTree(top)
  for (const path of Object.keys(files)) if (path.endsWith('.log')) delete files[path]
  return { files, ...(await gitState(top)) }
}

t.test('with a server that runs', async (story) => {
  const where = await place(story)
  const served = await serve(story, where.dir, where.env)
  await withCheckout(where, served)
  const { top, dir } = where
  const bridge = await connect(story, where)
  const { client, call } = bridge

  await story.test('the tools are those of the server, with what only this machine can do', async (t) => {
    const { tools } = await client.listTools()
    const tool = (name: string) => tools.find((one) => one.name === name)
    t.match(tool('new_session')?.inputSchema.properties, {
      from_local: { type: 'boolean' },
      checkout: {},
      create_repo: {},
      context: {},
    })
    t.notOk(tool('new_session')?.inputSchema.required?.includes('repo'))
    t.match(tool('send_to_session')?.inputSchema.properties, { from_local: { type: 'boolean' }, checkout: {} })
    t.match(tool('pull_session'), { inputSchema: { required: ['name'] }, description: /hangar\/<name>/ })
    t.ok(tools.every((one) => tools.filter(({ name }) => name === one.name).length === 1))
    t.match(client.getInstructions(), /wait_for_turn[\s\S]*from_local/)
    t.equal(client.getServerVersion()?.name, 'hangar')
    t.match((await call('list_repos', {})).data.items, [{ slug: 'acme/app' }])
  })

  await story.test('from_local hands the checkout over, and pull_session takes the whole state back', async (t) => {
    const before = await whole(top)
    const message =
      'hangar-agent progress --pct 50 half; sleep 1; grep -q unstaged b.txt && test -x new/dir/file && test ! -e c.txt && ' +
      'echo agent >>a.txt && git commit -q -a -m agent && git rm -q --cached a.txt && echo more >more.txt && hangar-agent artifact more.txt "dir/more file.txt" && hangar-agent done "all was there"'
    const made = await call('new_session', { name: 'handed', message, from_local: true })
    t.notOk(made.failed, made.text)
    t.match(made.data, { name: 'handed', repo: 'acme/app', turns: [{ turn: 1 }] })
    t.strictSame(await whole(top), before, 'the checkout is as it was')

    const heard: string[] = []
    const waited = await call(
      'wait_for_turn',
      { ref: 'handed', timeout_seconds: 120 },
      {
        onprogress: ({ message }: { message?: string }) => heard.push(message ?? ''),
        timeout: 130_000,
        resetTimeoutOnProgress: true,
      },
    )
    t.match(waited.data, {
      done: true,
      outcome: 'exited',
      summary: 'all was there',
      artifacts: [{ path: 'dir/more file.txt' }],
    })
    t.match(heard.join('\n'), /half/, 'progress came through')
    t.match(
      JSON.stringify((await call('get_artifact', { ref: 'handed', turn: 1, path: 'dir/more file.txt' })).result),
      /more\\n/,
    )
    const patch = (await call('get_session_patch', { ref: 'handed' })).text
    for (const line of ['+committed', '+unstaged', '+agent', '+untracked', '-one']) t.match(patch, line)

    const sandbox = async () => {
      const { body } = await api(served.url, served.token, { method: 'GET', path: '/api/sessions/handed' })
      return sandboxCheckout(where, body.sandbox.id as string)
    }
    const fetched = await call('pull_session', { name: 'handed' })
    t.match(fetched.data, {
      branch: 'hangar/handed',
      moved: true,
      checked_out: false,
      text: /pull_session with checkout: true/,
    })
    t.strictSame(await whole(top), before, 'only the branch came')
    const pulled = await call('pull_session', { name: 'handed', checkout: true })
    t.notOk(pulled.failed, pulled.text)
    t.match(pulled.data, { branch: 'hangar/handed', checked_out: true, head_commit: /^[0-9a-f]{40}$/ })
    t.strictSame(await whole(top), await whole(await sandbox()), 'the tree is exact')
    t.equal(readFileSync(join(top, 'x.log'), 'utf8'), 'ignored\n')

    const sent = await call('send_to_session', {
      ref: 'handed',
      message: 'git status --porcelain >status.txt',
      from_local: true,
    })
    t.match(
      sent,
      { failed: true, text: /wait|clean|uncommitted/ },
      'the session is not clean: said by the server, and passed on',
    )
  })

  await story.test('what cannot be handed over or taken is a sentence for the model', async (t) => {
    await shell(
      dir,
      'git init -q -b main unknown; cd unknown; echo x >x; git add .; git commit -q -m x; mkdir ../nowhere; git clone -q -b main ../app ../fresh',
    )
    const begin = (more: object) => call('new_session', { name: 'local', message: 'cat x', from_local: true, ...more })
    t.match(await begin({ checkout: join(dir, 'unknown') }), {
      failed: true,
      text: /does not know this checkout .*create_repo: true.*repo/,
    })
    t.match(await begin({ checkout: join(dir, 'nowhere') }), { failed: true, text: /not in a git checkout/ })
    t.match(await begin({ checkout: join(dir, 'gone') }), {
      failed: true,
      text: /\/gone is not there; name the directory/,
    })
    t.match(await begin({ checkout: 'relative' }), { failed: true, text: /absolute path/ })
    t.match(await begin({ from_local: 'yes' }), { failed: true, text: /from_local: give true or false/ })
    t.match(await begin({ from_local: false, checkout: '/x' }), { failed: true, text: /go with from_local: true/ })
    t.match(
      await begin({ message: undefined, repo: 'acme/app' }),
      { failed: true, text: /message/ },
      "the server's own refusal",
    )
    t.match(await begin({ name: 'handed' }), { failed: true, text: /a session handed exists/ })
    const hosted = await begin({ checkout: join(dir, 'unknown'), create_repo: true })
    t.match(hosted, { failed: false, data: { repo: 'local/unknown' } })
    t.match((await call('wait_for_turn', { ref: 'local' })).data, { done: true, outcome: 'exited' })
    t.match(await call('pull_session', { name: 'nobody' }), { failed: true, text: /no session nobody/ })
    t.match(await call('pull_session', { name: '../x' }), { failed: true, text: /name: / })
    t.match(await call('pull_session', { name: 'handed', what: 1 }), { failed: true, text: /what: pull_session takes/ })
    await shell(join(dir, 'fresh'), 'echo mine >>b.txt')
    const refused = await call('pull_session', { name: 'handed', checkout: true, directory: join(dir, 'fresh') })
    t.match(refused, { failed: true, text: /uncommitted changes .*b\.txt/ })
    t.match((await call('pull_session', { name: 'handed', directory: join(dir, 'fresh') })).data, { moved: true })
  })

  await story.test('a later message hands over what was done in the checkout meanwhile', async (t) => {
    const checkout = join(dir, 'later')
    await shell(dir, 'git clone -q -b main app later')
    await shell(checkout, `git remote set-url origin ${served.url}/git/acme/app.git`)
    const begun = await call('new_session', { name: 'later', message: 'true', from_local: true, checkout })
    t.notOk(begun.failed, begun.text)
    t.match((await call('wait_for_turn', { ref: 'later' })).data, { outcome: 'exited' })
    await shell(checkout, 'echo meanwhile >>b.txt; git commit -q -a -m meanwhile; echo loose >loose.txt')
    const sent = await call('send_to_session', {
      ref: 'later',
      message: 'test -f loose.txt && git log -1 --format=%s',
      from_local: true,
      checkout,
    })
    t.match(sent, { failed: false, data: { turn: 2 } })
    t.match((await call('wait_for_turn', { ref: 'later' })).data, { outcome: 'exited', summary: 'meanwhile' })
    const both = { ref: 'later', message: 'true', from_local: true, create_repo: true, checkout }
    t.match(await call('send_to_session', both), { failed: true, text: /create_repo/ })
  })

  await story.test('resources, completion, updates of what is subscribed to, and questions pass', async (t) => {
    const { resources } = await client.listResources()
    const artifact = resources.find(({ uri }) => uri.includes('more%20file'))
    t.match((await client.readResource({ uri: artifact?.uri ?? '' })).contents, [{ text: 'more\n' }])
    const { resourceTemplates } = await client.listResourceTemplates()
    const [template] = resourceTemplates
    const completed = await client.complete({
      ref: { type: 'ref/resource', uri: template?.uriTemplate ?? '' },
      argument: { name: 'name', value: 'han' },
    })
    t.match(completed.completion.values, ['handed'])
    const updates: string[] = []
    client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => void updates.push(params.uri))
    await client.subscribeResource({ uri: 'hangar://sessions/handed' })
    await call('send_to_session', { ref: 'handed', message: 'hangar-agent question --option A --option B "Which?"' })
    t.match((await call('wait_for_turn', { ref: 'handed' })).data, {
      needs_input: 'Which?',
      question_options: ['A', 'B'],
    })
    await waitUntil('the update came', () => updates.includes('hangar://sessions/handed'))
    t.match((await call('list_inbox', {})).data.items, [{ ref: 'handed', question: 'Which?' }])
    await t.rejects(
      client.readResource({ uri: 'hangar://sessions/nobody' }),
      { code: -32002 },
      "errors keep the server's code",
    )
    await t.rejects(client.callTool({ name: 'no_such_tool' }), { code: -32602 })
  })

  await story.test('a cancelled wait ends, and the turn goes on', async (t) => {
    await call('new_session', { name: 'slow', repo: 'acme/app', message: 'sleep 3; hangar-agent done slept' })
    const abort = new AbortController()
    const waiting = call('wait_for_turn', { ref: 'slow', timeout_seconds: 100 }, { signal: abort.signal })
    setTimeout(() => abort.abort('enough'), 300)
    await t.rejects(waiting)
    t.match((await call('wait_for_turn', { ref: 'slow', timeout_seconds: 60 })).data, { done: true, summary: 'slept' })
  })

  await story.test('large messages pass, or are refused with the cap', async (t) => {
    const file = { kind: 'file', name: 'big.bin', content: 'x'.repeat(5 * 1_048_576) }
    const refused = await call('new_session', { name: 'big', repo: 'acme/app', message: 'true', context: [file] })
    t.match(refused, { failed: true, text: /big\.bin.*2097152 bytes/ })
    const line = 'y'.repeat(1_000)
    const lines = 5_000
    const patch = `diff --git a/big.txt b/big.txt\nnew file mode 100644\n--- /dev/null\n+++ b/big.txt\n@@ -0,0 +1,${lines} @@\n${`+${line}\n`.repeat(lines)}`
    const taken = await call('new_session', {
      name: 'big',
      repo: 'acme/app',
      message: 'wc -c big.txt',
      context: [{ kind: 'patch', content: patch }],
    })
    t.notOk(taken.failed, taken.text)
    t.match((await call('wait_for_turn', { ref: 'big' })).data, { done: true, outcome: 'exited', summary: /5005000/ })
  })

  story.notMatch(bridge.said(), served.token)
})

t.test('while the server is away, killed, or new', async (story) => {
  const where = await place(story)
  const { client, call, said } = await connect(story, where)
  let changed = 0
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => {
    changed += 1
  })
  const names = async () => (await client.listTools()).tools.map(({ name }) => name)

  await story.test('the tools are shown, and each call says what to do', async (t) => {
    t.match(client.getServerVersion(), { name: 'hangar' })
    t.match(client.getInstructions(), /wait_for_turn/)
    const shown = await names()
    for (const name of ['new_session', 'wait_for_turn', 'pull_session']) t.ok(shown.includes(name), name)
    t.match(await call('list_sessions', {}), { failed: true, text: /hangar serve/ })
    t.match(await call('new_session', { name: 'x', message: 'x', from_local: true }), {
      failed: true,
      text: /hangar serve/,
    })
    t.match(await call('pull_session', { name: 'x' }), { failed: true, text: /./ })
    await t.rejects(client.listResources(), /hangar serve/)
    await client.ping()
  })

  let served = await serve(story, where.dir, where.env)
  await withCheckout(where, served)

  await story.test('it connects by itself, and says that the lists have changed', async (t) => {
    await waitUntil('the client was told', () => changed > 0, 1_000)
    t.ok((await names()).includes('pull_session'))
    t.match((await call('list_repos', {})).data.items, [{ slug: 'acme/app' }])
  })

  await story.test('a server that is killed and started again', async (t) => {
    const updates: string[] = []
    client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => void updates.push(params.uri))
    t.notOk(
      (await call('new_session', { name: 'long', message: 'sleep 4; hangar-agent done slept', from_local: true }))
        .failed,
    )
    await client.subscribeResource({ uri: 'hangar://sessions/long' })
    const cut = call('wait_for_turn', { ref: 'long', timeout_seconds: 100 })
    await new Promise((resolve) => setTimeout(resolve, 500))
    await served.kill()
    t.match(await cut, { failed: true, text: /does not answer .*hangar serve.*Turns go on/ })
    t.match(await call('list_repos', {}), { failed: true, text: /ECONNREFUSED.*hangar serve/ })
    served = await serve(story, where.dir, where.env)
    t.match((await call('wait_for_turn', { ref: 'long', timeout_seconds: 60 })).data, { done: true, summary: 'slept' })

    await served.kill()
    rmSync(join(where.dataDir, 'index'), { recursive: true })
    served = await serve(story, where.dir, where.env)
    t.match(
      (await call('get_session', { ref: 'long' })).data,
      { name: 'long' },
      'in a new MCP session, where the old one is gone',
    )
    await waitUntil('it listens again', () => said().split('connected to the server').length > 2, 1_000)
    updates.length = 0
    await call('send_to_session', { ref: 'long', message: 'true' })
    await waitUntil('what was subscribed to is heard of again', () => updates.includes('hangar://sessions/long'), 1_000)
  })

  await story.test('a token that is revoked, and another in its place', async (t) => {
    const file = join(where.dir, 'config', 'hangar', 'cli.json')
    t.ok(readdirSync(join(where.dir, 'config', 'hangar')).length > 0)
    const made = await api(served.url, served.token, {
      method: 'POST',
      path: '/api/tokens',
      body: { name: 'short', scopes: ['sessions'] },
    })
    const other = await connect(t, { ...where, env: { ...where.env, HANGAR_TOKEN: made.body.token as string } })
    t.notOk((await other.call('list_sessions', {})).failed)
    await api(served.url, served.token, { method: 'DELETE', path: `/api/tokens/${made.body.id}` })
    t.match(await other.call('list_sessions', {}), { failed: true, text: /does not take the token.*HANGAR_TOKEN/ })
    t.notMatch(other.said(), made.body.token as string)
    t.ok(readFileSync(file, 'utf8'))
  })
  story.notMatch(said(), served.token)
})

t.test('lines are read however they are cut', async (t) => {
  const read = async (chunks: readonly (string | Buffer)[], maxBytes = 100) => {
    const lines: unknown[] = []
    for await (const line of readLines(Readable.from(chunks.map((chunk) => Buffer.from(chunk))), maxBytes))
      lines.push(line.kind === 'message' ? line.message.id : line.code)
    return lines
  }
  const text = Buffer.from('{"jsonrpc":"2.0","id":"ü","method":"m"}\r\n\n{"jsonrpc":"2.0","id":2,"result":{}}\nrest')
  for (let at = 0; at < text.length; at++)
    t.strictSame(await read([text.subarray(0, at), text.subarray(at)]), ['ü', 2], `cut at ${at}`)
  t.strictSame(await read([...text].map((byte) => Buffer.from([byte]))), ['ü', 2])
  const long = `{"jsonrpc":"2.0","id":1,"method":"${'x'.repeat(200)}"}\n`
  t.strictSame(await read([long, text]), [-32600, 'ü', 2], 'too long a line is refused, and those after it are read')
  t.strictSame(await read([...`${long}${text.toString()}`]), [-32600, 'ü', 2])
  for (const bad of [
    '1',
    '"x"',
    'null',
    '[{}]',
    '{}',
    '{"jsonrpc":"2.0"}',
    '{"jsonrpc":"2.0","id":{},"method":"m"}',
    '{"jsonrpc":"2.0","method":"m","params":[]}',
  ])
    t.strictSame(await read([`${bad}\n`]), [-32600], bad)
})

t.test('line by line', async (story) => {
  const where = await place(story)
  const served = await serve(story, where.dir, where.env)
  await withCheckout(where, served)
  const initialize = {
    jsonrpc: '2.0',
    id: 0,
    method: 'initialize',
    params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
  }

  await story.test('ids of every kind, garbage, and nothing but JSON-RPC on stdout', async (t) => {
    const raw = start(t, where)
    raw.send(initialize)
    t.match(await raw.answer(0), { result: { protocolVersion: '2025-06-18' } })
    raw.send({ jsonrpc: '2.0', method: 'notifications/initialized' })
    raw.write('this is no JSON\n[]\n\n{"jsonrpc":"1.0","id":3}\n')
    t.match(await raw.answer(null, 3), { error: { code: -32600 } })
    t.strictSame(
      raw
        .messages()
        .filter(({ id }) => id === null)
        .map(({ error }) => error?.code),
      [-32700, -32600, -32600],
    )
    const ask = (id: string | number) =>
      raw.send({ jsonrpc: '2.0', id, method: 'tools/call', params: { name: 'list_repos', arguments: {} } })
    for (const id of [0, '0', 'a string', -1]) {
      ask(id)
      t.match(
        await raw.answer(id, id === 0 ? 2 : 1),
        { result: { structuredContent: { items: [{}] } } },
        JSON.stringify(id),
      )
    }
    await api(served.url, served.token, {
      method: 'POST',
      path: '/api/sessions',
      body: { name: 'waits', repo: 'acme/app', message: 'sleep 5' },
    })
    const wait = {
      jsonrpc: '2.0',
      id: 0,
      method: 'tools/call',
      params: { name: 'wait_for_turn', arguments: { ref: 'waits' }, _meta: { progressToken: 0 } },
    }
    raw.send(wait)
    await waitUntil('progress with the token 0 comes', () =>
      raw.messages().some(({ params }) => params?.['progressToken'] === 0),
    )
    raw.send({ ...wait })
    t.match(await raw.answer(0, 3), { error: { code: -32600, message: /still running/ } })
    raw.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 0 } })
    raw.send({ jsonrpc: '2.0', id: 'after', method: 'ping' })
    await raw.answer('after')
    await waitUntil('the id is free again', async () => {
      raw.send({ jsonrpc: '2.0', id: 0, method: 'ping' })
      await new Promise((resolve) => setTimeout(resolve, 100))
      return (
        raw.messages().filter((one) => one.id === 0 && one.result !== undefined && Object.keys(one.result).length === 0)
          .length > 0
      )
    })
    t.notOk(
      raw.messages().some((one) => one.id === 0 && one.error?.code === -32800),
      'a cancelled request has no answer',
    )
    t.equal(await raw.close(), 0)
    t.ok(raw.clean(), 'every line of stdout is a message')
  })

  await story.test('it ends when its input ends, whatever is under way', async (t) => {
    for (const how of ['stdin', 'SIGTERM'] as const) {
      const raw = start(t, where)
      raw.send(initialize)
      await raw.answer(0)
      raw.send({ jsonrpc: '2.0', method: 'notifications/initialized' })
      raw.send({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name: 'wait_for_turn', arguments: { ref: 'waits' } },
      })
      const name = `late-${how.toLowerCase()}`
      raw.send({
        jsonrpc: '2.0',
        id: 2,
        method: 'tools/call',
        params: { name: 'new_session', arguments: { name, message: 'true', from_local: true } },
      })
      t.equal(await raw.close(how), 0, how)
      t.equal(raw.said().includes(served.token), false)
    }
    const idle = start(t, where)
    t.equal(await idle.close(), 0, 'also before it began')
  })
})

t.test('it ends at once although the server it pushes to hangs, and leaves no git', async (t) => {
  const where = await place(t)
  await shell(where.dir, 'git init -q -b main app; cd app; echo one >a.txt; git add .; git commit -q -m base')
  let pushed = false
  const hanging = createServer((req, res) => {
    if (req.url === '/mcp') res.writeHead(503).end()
    else if (req.url?.startsWith('/api/repos') === true)
      res.end(JSON.stringify({ items: [{ slug: 'local/app', url: 'http://nowhere/x.git', upstream: null }] }))
    else pushed = true
  }).listen(0, '127.0.0.1')
  await once(hanging, 'listening')
  t.teardown(() => {
    hanging.closeAllConnections()
    hanging.close()
  })
  const url = `http://127.0.0.1:${(hanging.address() as { port: number }).port}`
  const raw = start(t, { ...where, env: { ...where.env, HANGAR_URL: url, HANGAR_TOKEN: 'hgt_x' } })
  raw.send({ jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-06-18' } })
  await raw.answer(1)
  const call = { name: 'new_session', arguments: { name: 'hangs', message: 'true', from_local: true } }
  raw.send({ jsonrpc: '2.0', id: 2, method: 'tools/call', params: call })
  await waitUntil('git asks the server', () => pushed)
  t.equal(await raw.close(), 0)
  t.equal((await run('pgrep', ['-f', `${url}/git/`])).out, '')
})

interface RawMessage {
  readonly id?: string | number | null
  readonly method?: string
  readonly params?: Record<string, unknown>
  readonly result?: Record<string, unknown>
  readonly error?: { readonly code: number; readonly message: string }
}

interface Raw {
  send(message: object): void
  write(text: string): void
  messages(): readonly RawMessage[]
  /** The n-th answer with the id. */
  answer(id: string | number | null, nth?: number): Promise<RawMessage>
  clean(): boolean
  said(): string
  close(how?: 'stdin' | 'SIGTERM'): Promise<number | null>
}

/** The bridge as a bare process. */
function start(t: Test, { env, top }: Place): Raw {
  const child: ChildProcess = spawn(process.execPath, [MAIN, 'mcp'], { cwd: top, env, stdio: ['pipe', 'pipe', 'pipe'] })
  let out = ''
  let err = ''
  child.stdout?.on('data', (chunk: Buffer) => {
    out += chunk.toString()
  })
  child.stderr?.on('data', (chunk: Buffer) => {
    err += chunk.toString()
  })
  const ended = new Promise<number | null>((resolve) => child.once('close', (status) => resolve(status)))
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
  })
  const lines = () => out.split('\n').filter((line) => line !== '')
  const messages = () => lines().map((line) => JSON.parse(line) as RawMessage)
  return {
    send: (message) => void child.stdin?.write(`${JSON.stringify(message)}\n`),
    write: (text) => void child.stdin?.write(text),
    messages,
    answer: async (id, nth = 1) => {
      const found = () => messages().filter((one) => one.method === undefined && one.id === id)
      await waitUntil(
        `answer ${nth} to ${JSON.stringify(id)}`,
        () => out.endsWith('\n') && found().length >= nth,
        1_000,
      )
      return found()[nth - 1] as RawMessage
    },
    clean: () => messages().every((one) => (one as { jsonrpc?: string }).jsonrpc === '2.0'),
    said: () => err,
    close: async (how = 'stdin') => {
      if (how === 'stdin') child.stdin?.end()
      else child.kill(how)
      return ended
    },
  }
}
