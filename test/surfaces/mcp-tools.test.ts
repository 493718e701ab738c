/** Tools and resources of MCP: what is listed, what answers hold, how refusals read, and that a token sees no more than is its own. */
import { Ajv2020 } from 'ajv/dist/2020.js'
import t from 'tap'
import { shell, startHangar, waitUntil } from '../stories/support.ts'
import { connect, type Message, OBEDIENT, type RawClient, tokenFor, withRepo } from './mcp-client.ts'

const begin = (client: RawClient, name: string, message: string, more: object = {}) =>
  client.tool('new_session', { name, repo: 'acme/app', message, ...more })

const wait = async (client: RawClient, name: string): Promise<Message> =>
  (await client.tool('wait_for_turn', { ref: name, timeout_seconds: 50 }, { progressToken: 1 })).structuredContent

/** Leaves artifacts of all sorts. */
const MAKER = [
  'mkdir -p d && printf "<p>50%%</p>" >d/c.html && printf "\\211PNG\\000" >p.png && printf "\\000\\001" >b.bin',
  'printf "a,b" >"a,b c.csv" && head -c 600000 /dev/zero | tr "\\0" x >big.txt && head -c 600000 /dev/urandom >big.bin',
  'for f in d/c.html p.png b.bin "a,b c.csv" big.txt big.bin; do hangar-agent artifact "$f" "$f"; done',
  'hangar-agent result \'{"n":3}\'; hangar-agent done made',
].join('; ')

t.test('tools', async (t) => {
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    settings: { HANGAR_EXCHANGE_MAX_PATCH_MB: '0.5' },
    server: { mcp: { silentMs: 300 } },
  })
  const seed = await withRepo(hangar)
  const client = await connect(hangar, hangar.token)
  const { tools } = (await client.request('tools/list')).messages[0].result as { tools: Message[] }

  await t.test('each says what it does by an example that its own schema takes', async (t) => {
    t.strictSame(tools.map(({ name }) => name).sort(), [
      'approve_job',
      'cancel_job',
      'cancel_turn',
      'close_session',
      'follow_up_job',
      'fork_session',
      'get_artifact',
      'get_events',
      'get_job',
      'get_session',
      'get_session_patch',
      'list_artifacts',
      'list_inbox',
      'list_jobs',
      'list_repos',
      'list_sessions',
      'new_session',
      'reject_job',
      'resume_session',
      'send_to_session',
      'submit_job',
      'suspend_session',
      'wait_for_turn',
    ])
    const ajv = new Ajv2020({ strict: false })
    for (const tool of tools) {
      t.match(tool.name, /^[A-Za-z0-9_.-]{1,64}$/)
      const example = new RegExp(`Example: ${tool.name}\\((.*)\\)$`, 's').exec(tool.description)?.[1] ?? 'null'
      t.ok(ajv.validate(tool.inputSchema, JSON.parse(example)), `${tool.name}: ${ajv.errorsText()}`)
      t.equal(tool.inputSchema.additionalProperties, false, tool.name)
      for (const [field, schema] of Object.entries(tool.inputSchema.properties))
        t.match((schema as Message).description ?? 'missing', /^(?!missing)/, `${tool.name}.${field}`)
      t.equal(typeof tool.annotations.readOnlyHint, 'boolean')
    }
    const effects = (name: string) => tools.find((tool) => tool.name === name).annotations
    t.match(effects('wait_for_turn'), { readOnlyHint: true, openWorldHint: false })
    t.match(effects('new_session'), { readOnlyHint: false, destructiveHint: false, idempotentHint: true })
    t.match(effects('send_to_session'), { destructiveHint: false, idempotentHint: false })
    t.match(effects('close_session'), { destructiveHint: true })
  })

  await t.test('an answer is complete as structure, the same as text, and links its artifacts', async (t) => {
    const made = await begin(client, 'maker', MAKER)
    const ajv = new Ajv2020({ strict: false })
    const fits = (name: string, result: Message) => {
      t.ok(
        ajv.validate(tools.find((tool) => tool.name === name).outputSchema, result.structuredContent),
        `${name}: ${ajv.errorsText()}`,
      )
      t.strictSame(JSON.parse(result.content[0].text), result.structuredContent, name)
    }
    fits('new_session', made)
    const waited = await client.tool('wait_for_turn', { ref: 'maker', timeout_seconds: 50 }, { progressToken: 1 })
    fits('wait_for_turn', waited)
    t.match(waited.structuredContent, {
      done: true,
      outcome: 'exited',
      summary: 'made',
      result: { n: 3 },
      hint: /get_session_patch.*maker/,
    })
    t.equal(waited.structuredContent.artifacts.length, 6)
    t.strictSame(
      waited.content.slice(1).map((link: Message) => [link.type, link.uri, link.size]),
      waited.structuredContent.artifacts.map((artifact: Message) => ['resource_link', artifact.uri, artifact.size]),
    )
    t.match(
      waited.content.find((link: Message) => link.name === 'a,b c.csv'),
      { uri: 'hangar://sessions/maker/artifacts/1/a%2Cb%20c.csv', mimeType: 'text/csv' },
    )
    for (const [name, args] of [
      ['get_session', { ref: 'maker' }],
      ['list_sessions', {}],
      ['list_artifacts', { ref: 'maker' }],
      ['get_events', { ref: 'maker' }],
      ['list_repos', {}],
    ] as const)
      fits(name, await client.tool(name, args))
    t.notMatch(waited.structuredContent.hint, /hangar session/, 'no CLI command')
    t.match(
      (await hangar.api('GET', '/api/sessions/maker/wait')).body.hint,
      /hangar session pull maker/,
      'over REST it is one',
    )
  })

  await t.test('an artifact comes as text, image or base64, byte for byte, up to the cap', async (t) => {
    const get = (path: string) => client.tool('get_artifact', { ref: 'maker', turn: 1, path })
    t.strictSame(await get('d/c.html'), { content: [{ type: 'text', text: '<p>50%</p>' }] })
    t.strictSame(await get('a,b c.csv'), { content: [{ type: 'text', text: 'a,b' }] })
    t.strictSame(await get('p.png'), { content: [{ type: 'image', mimeType: 'image/png', data: 'iVBORwA=' }] })
    t.strictSame(await get('b.bin'), {
      content: [
        {
          type: 'resource',
          resource: {
            uri: 'hangar://sessions/maker/artifacts/1/b.bin',
            mimeType: 'application/octet-stream',
            blob: 'AAE=',
          },
        },
      ],
    })
    const large = await get('big.txt')
    t.match(large, { isError: true, content: [{ text: /600000 bytes.*524288/ }] })
    t.match(large.content[0].text, /hangar session artifacts maker --get big\.txt/)
    t.match(large.content[0].text, `${hangar.url}/api/sessions/maker/artifacts/1/big.txt`)
    t.match(large.content[0].text, /code: too_large/)
  })

  await t.test('a patch comes as text that git takes, and past the cap names pull', async (t) => {
    await begin(client, 'patcher', 'printf "b\\r\\n" >"s p.txt"; printf "\\0\\1" >b.bin; rm a.txt; chmod +x b.bin')
    await wait(client, 'patcher')
    const { content } = await client.tool('get_session_patch', { ref: 'patcher' })
    t.equal(content[0].text, (await hangar.api('GET', '/api/sessions/patcher/patch')).bytes.toString())
    const large = await client.tool('get_session_patch', { ref: 'maker', from: 'base' })
    t.match(large, {
      isError: true,
      content: [{ text: /the patch has more than 524288 bytes; .*hangar session pull maker/ }],
    })
  })

  await t.test('refusals are sentences with what a model needs to mend its call', async (t) => {
    const oid = '1'.repeat(40)
    const head = (await shell(seed, 'git rev-parse HEAD')).trim()
    const bundle = { kind: 'bundle', content: 'eHh4' }
    const table: [string, string, unknown, RegExp][] = [
      [
        'a field that is missing',
        'new_session',
        { name: 'x' },
        /must have required property 'repo'[\s\S]*code: invalid_request/,
      ],
      ['a field that is none', 'get_session', { ref: 'maker', colour: 1 }, /colour/],
      ['a wrong type', 'wait_for_turn', { ref: 'maker', timeout_seconds: '5' }, /timeout_seconds: must be number/],
      [
        'a kind that is none',
        'new_session',
        { name: 'x', repo: 'acme/app', message: 'x', context: [{ kind: 'song' }] },
        /context\[0\].kind.*bundle/,
      ],
      [
        'a bundle without its base',
        'new_session',
        { name: 'x', repo: 'acme/app', message: 'x', context: [bundle] },
        /base_commit/,
      ],
      [
        'a base that the server lacks',
        'new_session',
        { name: 'x', repo: 'acme/app', message: 'x', context: [{ ...bundle, base_commit: oid }] },
        new RegExp(`code: missing_commits[\\s\\S]*missing: ${oid}`),
      ],
      [
        'a patch that does not apply',
        'new_session',
        {
          name: 'x',
          repo: 'acme/app',
          message: 'x',
          context: [{ kind: 'patch', name: 'w.patch', content: '--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-zz\n+y\n' }],
        },
        /a\.txt[\s\S]*code: invalid_context\nitem: context\[0\] w\.patch/,
      ],
      [
        'a bundle that is none',
        'new_session',
        { name: 'x', repo: 'acme/app', message: 'x', context: [{ ...bundle, base_commit: head }] },
        /code: invalid_context/,
      ],
      ['a session that is not there', 'wait_for_turn', { ref: 'nobody' }, /there is no session nobody; list_sessions/],
      ['a repo that is not there', 'new_session', { name: 'x', repo: 'acme/none', message: 'x' }, /no repo acme\/none/],
      ['an artifact that is not there', 'get_artifact', { ref: 'maker', turn: 1, path: '../x' }, /list_artifacts/],
      ['nothing to cancel', 'cancel_turn', { ref: 'maker' }, /code: conflict/],
      [
        'a name that is taken',
        'new_session',
        { name: 'maker', repo: 'acme/app', message: 'another' },
        /close_session maker --delete[\s\S]*code: name_taken/,
      ],
      ["a job's name", 'new_session', { name: 'job-a', repo: 'acme/app', message: 'x' }, /belong to jobs/],
      ['an unknown job', 'get_session', { ref: 'job-aaaaaaaaaa' }, /there is no job job-aaaaaaaaaa; list_jobs/],
    ]
    for (const [what, name, args, text] of table) {
      const result = await client.tool(name, args)
      t.equal(result.isError, true, what)
      t.equal(result.structuredContent, undefined, what)
      t.match(result.content, [{ type: 'text', text }], what)
    }
    t.equal(
      (await client.tool('list_sessions', {})).structuredContent.items.some(({ name }: Message) => name === 'x'),
      false,
    )
  })

  await t.test(
    'new_session may be called again, at once or later, in any order of fields: it is the same session',
    async (t) => {
      const more = { context: [{ kind: 'text', content: 'x', name: 'n' }] }
      const results = await Promise.all([begin(client, 'again', 'true', more), begin(client, 'again', 'true', more)])
      await wait(client, 'again')
      results.push(
        await client.tool('new_session', {
          context: [{ name: 'n', content: 'x', kind: 'text' }],
          message: 'true',
          repo: 'acme/app',
          name: 'again',
        }),
      )
      t.strictSame(
        results.map(({ structuredContent }) => [structuredContent?.name, structuredContent?.created_at]),
        results.map(() => ['again', results[0].structuredContent.created_at]),
      )
      t.equal((await hangar.api('GET', '/api/sessions/again')).body.turns.length, 1)
      t.match(await begin(client, 'again', 'false', more), { isError: true, content: [{ text: /name_taken/ }] })
      await client.tool('close_session', { ref: 'again', delete: true })
      t.match(
        await begin(client, 'again', 'true', more),
        { structuredContent: { name: 'again' } },
        'a freed name begins anew',
      )
      t.equal((await wait(client, 'again')).done, true)
    },
  )

  await t.test('arguments that are none, or nested without end, are refused in a sentence', async (t) => {
    const call = async (args: string) => {
      const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"new_session","arguments":${args}}}`
      return (await client.post(body)).messages[0]
    }
    for (const args of ['null', '[]', '"x"'])
      t.match(await call(args), { error: { code: -32602, message: /^the request at params\.arguments: / } })
    const deep = `{"name":"deep","repo":"acme/app","message":"x","output_schema":${'{"a":'.repeat(50_000)}1${'}'.repeat(50_000)}}`
    t.match(await call(deep), {
      result: { isError: true, content: [{ text: /nested deeper than 500 levels\ncode: invalid_request/ }] },
    })
  })

  await t.test('a call that was cancelled can be made again', async (t) => {
    const message = {
      jsonrpc: '2.0',
      id: 5,
      method: 'tools/call',
      params: { name: 'new_session', arguments: { name: 'cut', repo: 'acme/app', message: 'true' } },
    }
    const stream = await client.open(message)
    await client.post({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 5 } })
    await stream.ended
    t.match(await begin(client, 'cut', 'true'), { structuredContent: { name: 'cut' } })
    t.match(await wait(client, 'cut'), { done: true, turn: 1 })
  })

  await t.test('a question comes with its options, and is answered', async (t) => {
    await begin(client, 'asks', 'hangar-agent question --option yes --option no "Really?"')
    t.match(await wait(client, 'asks'), {
      done: true,
      outcome: 'needs_input',
      needs_input: 'Really?',
      question_options: ['yes', 'no'],
      hint: /send_to_session with ref asks and message \(or option/,
    })
    t.match((await client.tool('list_sessions', { needs_input: true })).structuredContent.items, [{ name: 'asks' }])
    t.match(await client.tool('send_to_session', { ref: 'asks', option: 3 }), {
      isError: true,
      content: [{ text: /get_session asks/ }],
    })
    t.match((await client.tool('send_to_session', { ref: 'asks', option: 2 })).structuredContent, {
      turn: 2,
      message: 'no',
    })
    t.match(await wait(client, 'asks'), { turn: 2, outcome: 'failed', hint: /get_events with ref asks/ })
  })

  await t.test('long pages are cut to what a model can read, and go on', async (t) => {
    await begin(
      client,
      'chatty',
      'for i in $(seq 1 300); do echo "line $i $(head -c 400 /dev/zero | tr "\\0" y)"; done',
    )
    await wait(client, 'chatty')
    const seen: number[] = []
    let pages = 0
    for (let since = 0; ; pages++) {
      const { content, structuredContent } = await client.tool('get_events', { ref: 'chatty', since, limit: 1000 })
      t.ok(content[0].text.length < 70_000)
      seen.push(...structuredContent.items.map(({ seq }: Message) => seq))
      if (structuredContent.next_cursor === null) break
      since = Number(structuredContent.next_cursor)
    }
    t.ok(pages > 0)
    t.strictSame(
      seen,
      seen.map((_, at) => at + 1),
      'without gap or repetition',
    )
    t.ok(seen.length >= 300)
  })

  await t.test(
    'a wait without progress token ends soon, whatever it asks for, and says nothing meanwhile',
    async (t) => {
      await begin(client, 'sleeper', 'sleep 600')
      const waited = await client.request('tools/call', {
        name: 'wait_for_turn',
        arguments: { ref: 'sleeper', timeout_seconds: 600 },
      })
      t.equal(waited.messages.length, 1, 'no notification')
      t.match(waited.messages[0].result.structuredContent, {
        done: false,
        outcome: null,
        hint: /call wait_for_turn again with ref sleeper/,
        cursor: Number,
      })
      await client.tool('close_session', { ref: 'sleeper' })
    },
  )
})

t.test('resources', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)
  const client = await connect(hangar, hangar.token)
  await begin(client, 'maker', MAKER)
  await wait(client, 'maker')
  await client.tool('send_to_session', {
    ref: 'maker',
    message: 'echo two >two.txt; hangar-agent artifact two.txt d/two.txt',
  })
  await wait(client, 'maker')
  const read = (uri: string) => client.request('resources/read', { uri })

  await t.test('sessions and their artifacts are listed, the newest first', async (t) => {
    const { resources } = (await client.request('resources/list')).messages[0].result
    t.strictSame(
      resources.map(({ uri }: Message) => uri.replace('hangar://sessions/maker', '')),
      [
        '',
        '/artifacts/2/d/two.txt',
        '/artifacts/1/a%2Cb%20c.csv',
        '/artifacts/1/b.bin',
        '/artifacts/1/big.bin',
        '/artifacts/1/big.txt',
        '/artifacts/1/d/c.html',
        '/artifacts/1/p.png',
      ],
    )
    t.match((await client.request('resources/templates/list')).messages[0].result.resourceTemplates, [
      { uriTemplate: 'hangar://sessions/{name}' },
      { uriTemplate: 'hangar://sessions/{name}/artifacts/{turn}/{+path}' },
    ])
  })

  await t.test('they are read by canonical or sloppy URI, and refused with the code of the reason', async (t) => {
    const at = 'hangar://sessions/maker/artifacts/1'
    t.strictSame((await read(`${at}/d%2Fc.html`)).messages[0].result, {
      contents: [{ uri: `${at}/d/c.html`, mimeType: 'text/html', text: '<p>50%</p>' }],
    })
    t.match((await read(`${at}/a,b c.csv`)).messages[0].result.contents, [{ uri: `${at}/a%2Cb%20c.csv`, text: 'a,b' }])
    t.match((await read(`${at}/b.bin`)).messages[0].result.contents, [
      { mimeType: 'application/octet-stream', blob: 'AAE=' },
    ])
    const state = (await read('hangar://sessions/maker')).messages[0].result.contents[0]
    t.strictSame(JSON.parse(state.text), (await hangar.api('GET', '/api/sessions/maker')).body)
    for (const uri of [
      `${at}/none`,
      'hangar://sessions/maker/artifacts/9/d/c.html',
      'hangar://sessions/nobody',
      'hangar://sessions/nobody/artifacts/1/x',
    ])
      t.match((await read(uri)).messages[0].error, { code: -32002, data: { uri } }, uri)
    for (const uri of [`${at}/../../x`, `${at}/%zz`, `${at}/d/c.html?x=1`, 'file:///etc/passwd', ''])
      t.match((await read(uri)).messages[0].error, { code: -32602, message: /./ }, uri)
    t.match((await read(`${at}/big.bin`)).messages[0].error, {
      message: /600000 bytes.*hangar session artifacts maker --get big\.bin/,
    })
  })

  await t.test('the variables of the templates are completed', async (t) => {
    const complete = async (
      name: string,
      value: string,
      given: object = {},
      uri = 'hangar://sessions/{name}/artifacts/{turn}/{+path}',
    ) =>
      (
        await client.request('completion/complete', {
          ref: { type: 'ref/resource', uri },
          argument: { name, value },
          context: { arguments: given },
        })
      ).messages[0]
    t.match((await complete('name', 'ma')).result.completion, { values: ['maker'], total: 1, hasMore: false })
    t.match((await complete('name', 'z')).result.completion.values, [])
    t.strictSame((await complete('turn', '', { name: 'maker' })).result.completion.values, ['2', '1'])
    t.strictSame((await complete('path', 'd/', { name: 'maker', turn: '1' })).result.completion.values, ['d/c.html'])
    t.strictSame((await complete('path', 'd/', { name: 'maker' })).result.completion.values.sort(), [
      'd/c.html',
      'd/two.txt',
    ])
    t.strictSame((await complete('path', '', {})).result.completion.values, [])
    t.match((await complete('colour', '')).error, { code: -32602 })
    t.match((await complete('name', '', {}, 'file:///{x}')).error, { code: -32602 })
  })

  await t.test('who subscribed to a session is told of its moves, until they unsubscribe', async (t) => {
    const uri = 'hangar://sessions/maker'
    t.match((await client.request('resources/subscribe', { uri: 'hangar://sessions/nobody' })).messages[0].error, {
      code: -32002,
    })
    t.match((await client.request('resources/subscribe', { uri: `${uri}/artifacts/1/b.bin` })).messages[0].error, {
      code: -32602,
    })
    const stream = await client.listen()
    t.match((await client.request('resources/subscribe', { uri })).messages[0], { result: {} })
    await client.request('resources/subscribe', { uri })
    await client.tool('send_to_session', { ref: 'maker', message: 'true' })
    await wait(client, 'maker')
    await waitUntil('it is told', () => stream.messages().length >= 4)
    t.ok(
      stream
        .messages()
        .every((message) => message.method === 'notifications/resources/updated' && message.params.uri === uri),
    )
    t.equal(hangar.server.activity().waiters, 1, 'subscribed once')
    await client.request('resources/unsubscribe', { uri })
    t.equal(hangar.server.activity().waiters, 0)
    stream.drop()
  })

  await t.test('pages of a hundred', async (t) => {
    const many = 'for i in $(seq -w 1 49); do echo $i >f$i; hangar-agent artifact f$i f$i; done'
    for (const name of ['many-1', 'many-2', 'many-3']) await begin(client, name, many)
    for (const name of ['many-1', 'many-2', 'many-3']) t.equal((await wait(client, name)).artifacts.length, 49)
    const seen: string[] = []
    const sizes: number[] = []
    for (let cursor: string | undefined; ; ) {
      const { result } = (await client.request('resources/list', cursor === undefined ? {} : { cursor })).messages[0]
      seen.push(...result.resources.map((resource: Message) => resource.uri))
      sizes.push(result.resources.length)
      cursor = result.nextCursor
      if (cursor === undefined) break
    }
    t.strictSame(sizes, [100, 58])
    t.equal(new Set(seen).size, 158)
    t.equal(seen[0], 'hangar://sessions/many-3')
    t.match((await client.request('resources/list', { cursor: 'nonsense' })).messages[0].error, { code: -32602 })
  })
})

t.test('a token sees and does what its scopes and repos cover, and no more', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT, server: { mcp: { beatMs: 100, lineMs: 50 } } })
  await withRepo(hangar)
  await withRepo(hangar, 'other/app')
  const admin = await connect(hangar, hangar.token)
  for (const [name, repo] of [
    ['mine', 'acme/app'],
    ['theirs', 'other/app'],
  ]) {
    await admin.tool('new_session', { name, repo, message: 'echo x >x.txt; hangar-agent artifact x.txt x.txt' })
    await wait(admin, name ?? '')
  }

  await t.test('read only', async (t) => {
    const { secret } = await tokenFor(hangar, ['read'])
    const reader = await connect(hangar, secret)
    const names = (await reader.request('tools/list')).messages[0].result.tools.map(({ name }: Message) => name)
    t.ok(names.includes('wait_for_turn'))
    t.notOk(
      names.some((name: string) => ['new_session', 'send_to_session', 'cancel_turn', 'close_session'].includes(name)),
    )
    t.match(await begin(reader, 'nope', 'true'), {
      isError: true,
      content: [{ text: /token read has the scopes read; this needs sessions\ncode: forbidden/ }],
    })
    t.match(await reader.tool('get_session', { ref: 'theirs' }), { structuredContent: { name: 'theirs' } })
  })

  await t.test('of one repo', async (t) => {
    const { secret } = await tokenFor(hangar, ['sessions'], ['acme/*'])
    const own = await connect(hangar, secret)
    t.match(
      (await own.tool('list_sessions', {})).structuredContent.items.map(({ name }: Message) => name),
      ['mine'],
    )
    t.match(
      (await own.tool('list_repos', {})).structuredContent.items.map(({ slug }: Message) => slug),
      ['acme/app'],
    )
    for (const [name, args] of [
      ['get_session', { ref: 'theirs' }],
      ['wait_for_turn', { ref: 'theirs' }],
      ['send_to_session', { ref: 'theirs', message: 'x' }],
      ['get_events', { ref: 'theirs' }],
      ['get_session_patch', { ref: 'theirs' }],
      ['list_artifacts', { ref: 'theirs' }],
      ['get_artifact', { ref: 'theirs', turn: 1, path: 'x.txt' }],
      ['cancel_turn', { ref: 'theirs' }],
      ['close_session', { ref: 'theirs' }],
    ] as const)
      t.match(await own.tool(name, args), { isError: true, content: [{ text: /there is no session theirs/ }] }, name)
    t.match(await own.tool('wait_for_turn', { ref: 'theirs' }, { progressToken: 1 }), { isError: true })
    const list = (await own.request('resources/list')).messages[0].result.resources
    t.strictSame(
      list.map(({ uri }: Message) => uri),
      ['hangar://sessions/mine', 'hangar://sessions/mine/artifacts/1/x.txt'],
    )
    for (const uri of ['hangar://sessions/theirs', 'hangar://sessions/theirs/artifacts/1/x.txt'])
      t.match((await own.request('resources/read', { uri })).messages[0].error, { code: -32002 })
    t.match((await own.request('resources/subscribe', { uri: 'hangar://sessions/theirs' })).messages[0].error, {
      code: -32002,
    })
    const complete = async (name: string, given: object) =>
      (
        await own.request('completion/complete', {
          ref: { type: 'ref/resource', uri: 'hangar://sessions/{name}/artifacts/{turn}/{+path}' },
          argument: { name, value: '' },
          context: { arguments: given },
        })
      ).messages[0].result.completion.values
    t.strictSame(await complete('name', {}), ['mine'])
    t.strictSame(await complete('turn', { name: 'theirs' }), [])
    t.strictSame(await complete('path', { name: 'theirs', turn: '1' }), [])
  })

  await t.test('a name that passes to a repo that is not covered is not told of any more', async (t) => {
    const { secret } = await tokenFor(hangar, ['sessions'], ['acme/*'])
    const own = await connect(hangar, secret)
    await begin(own, 'passing', 'true')
    await wait(own, 'passing')
    await own.request('resources/subscribe', { uri: 'hangar://sessions/passing' })
    const stream = await own.listen()
    await own.tool('close_session', { ref: 'passing', delete: true })
    await waitUntil('it is told of the end', () => stream.messages().length > 0)
    await admin.tool('new_session', { name: 'passing', repo: 'other/app', message: 'true' })
    await wait(admin, 'passing')
    const before = stream.messages().length
    await admin.tool('send_to_session', { ref: 'passing', message: 'true' })
    await wait(admin, 'passing')
    await own.request('ping')
    t.equal(stream.messages().length, before)
    stream.drop()
  })

  await t.test('a token that is revoked while it waits and watches hears no more', async (t) => {
    const { id, secret } = await tokenFor(hangar, ['sessions'])
    const own = await connect(hangar, secret)
    await begin(own, 'secret', 'until test -f go; do sleep 0.1; done; echo told')
    await own.request('resources/subscribe', { uri: 'hangar://sessions/secret' })
    const stream = await own.listen()
    const waiting = await own.open({
      jsonrpc: '2.0',
      id: 1,
      method: 'tools/call',
      params: {
        name: 'wait_for_turn',
        arguments: { ref: 'secret', timeout_seconds: 600 },
        _meta: { progressToken: 'p' },
      },
    })
    await waitUntil('it runs', () => /is running/.test(waiting.text()))
    await hangar.api('DELETE', `/api/tokens/${id}`)
    const [heard, told] = [waiting.messages().length, stream.messages().length]
    await admin.tool('cancel_turn', { ref: 'secret' })
    await waiting.ended
    const [last, ...more] = waiting.messages().slice(heard)
    t.strictSame(more, [])
    t.match(last.result, { isError: true, content: [{ text: /revoked/ }] })
    t.equal(stream.messages().length, told)
    t.equal((await own.request('tools/list')).status, 401)
    stream.drop()
  })
})
