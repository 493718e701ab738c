/** Sessions over REST: queueing, cancelling, time-outs, questions, results, refusals, idempotency, closing. */
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { type ApiAnswer, api, type Hangar, shell, startHangar, waitUntil } from './support.ts'

/** An agent that does what its prompt's first line says, as a shell command. */
const OBEDIENT = 'read -r line; eval "$line"'

async function withRepo(hangar: Hangar): Promise<void> {
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(
    hangar.dir,
    'git init -q -b main seed && cd seed && echo one >a.txt && git add . && git commit -q -m base',
  )
  const pushed = await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
  if (pushed.status !== 0) throw new Error(pushed.err)
}

const begin = (hangar: Hangar, name: string, message: string, more: object = {}): Promise<ApiAnswer> =>
  hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message, ...more })

const waitFor = async (hangar: Hangar, name: string, turn?: number) =>
  (
    await hangar.api(
      'GET',
      `/api/sessions/${name}/wait?timeout_seconds=120${turn === undefined ? '' : `&turn=${turn}`}`,
    )
  ).body

t.test('one session and its turns', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)

  await t.test('two messages at once: the second waits its turn', async (t) => {
    const made = await begin(hangar, 'queue', 'sleep 1; echo first >>a.txt')
    t.equal(made.status, 201)
    t.equal(made.headers.get('location'), '/api/sessions/queue')
    const [second, third] = await Promise.all([
      hangar.api('POST', '/api/sessions/queue/turns', { message: 'echo second >>a.txt' }),
      hangar.api('POST', '/api/sessions/queue/turns', { message: 'echo third >>a.txt' }),
    ])
    t.equal(second.status, 202)
    t.strictSame([second.body.turn, third.body.turn].sort(), [2, 3], 'two writers of one record: none is lost')
    t.equal(second.body.state, 'queued')
    t.match(await waitFor(hangar, 'queue', 3), { done: true, outcome: 'exited' })
    const { body } = await hangar.api('GET', '/api/sessions/queue')
    t.strictSame(
      body.turns.map((turn: { turn: number; outcome: string }) => [turn.turn, turn.outcome]),
      [
        [1, 'exited'],
        [2, 'exited'],
        [3, 'exited'],
      ],
    )
    const patch = (await hangar.api('GET', '/api/sessions/queue/patch')).bytes.toString()
    t.match(patch, /\+first\n/)
    t.match(patch, /\+second\n/)
  })

  await t.test('at most ten messages wait', async (t) => {
    await begin(hangar, 'full', 'sleep 30')
    for (let at = 0; at < 10; at++)
      t.equal((await hangar.api('POST', '/api/sessions/full/turns', { message: 'true' })).status, 202)
    const refused = await hangar.api('POST', '/api/sessions/full/turns', { message: 'true' })
    t.match(refused, { status: 409, body: { code: 'queue_full' } })
    t.equal((await hangar.api('POST', '/api/sessions/full/close', {})).status, 200)
    const { body } = await hangar.api('GET', '/api/sessions/full')
    t.equal(body.state, 'closed')
    t.ok(body.turns.every((turn: { outcome: string }) => turn.outcome === 'cancelled'))
  })

  await t.test('cancel ends the whole process tree and keeps the work so far', async (t) => {
    await begin(hangar, 'cancelled', `echo kept >kept.txt; (trap '' TERM; setsid sleep 4242) & sleep 4242`)
    await waitUntil(
      'the agent runs',
      async () => (await hangar.api('GET', '/api/sessions/cancelled')).body.turns[0].state === 'running',
    )
    await waitUntil('its child runs', async () => (await shell(hangar.dir, 'pgrep -f "sleep 424[2]" || true')) !== '')
    t.equal((await hangar.api('POST', '/api/sessions/cancelled/cancel', {})).status, 200)
    t.match(await waitFor(hangar, 'cancelled'), { done: true, outcome: 'cancelled' })
    t.equal(await shell(hangar.dir, 'pgrep -f "sleep 424[2]" || true'), '', 'no process is left')
    t.match((await hangar.api('GET', '/api/sessions/cancelled/patch')).bytes.toString(), /kept\.txt/)
    t.match(await hangar.api('POST', '/api/sessions/cancelled/cancel', {}), { status: 409, body: { code: 'conflict' } })
    await hangar.api('POST', '/api/sessions/cancelled/turns', { message: 'test -f kept.txt' })
    t.match(await waitFor(hangar, 'cancelled'), { outcome: 'exited' }, 'the session goes on')
  })

  await t.test('a time-out ends a turn, whatever the agent does about it', async (t) => {
    await begin(hangar, 'slow', "trap '' TERM; echo x >x.txt; while :; do sleep 1; done", { timeout_minutes: 0.05 })
    t.match(await waitFor(hangar, 'slow'), { done: true, outcome: 'timed_out' })
    t.match((await hangar.api('GET', '/api/sessions/slow/patch')).bytes.toString(), /x\.txt/)
  })

  await t.test('a failing agent is a failed turn, with its exit status', async (t) => {
    await begin(hangar, 'failing', 'echo to-stderr >&2; exit 7')
    t.match(await waitFor(hangar, 'failing'), { outcome: 'failed' })
    const { body } = await hangar.api('GET', '/api/sessions/failing')
    t.match(body.turns[0].error, { code: 'agent_failed', message: /exit status 7/ })
  })

  await t.test('a question waits for its answer, which may be one of those offered', async (t) => {
    await begin(hangar, 'asks', 'hangar-agent question --option "Keep them" --option "Rename them" "Keep the names?"')
    t.match(await waitFor(hangar, 'asks'), {
      outcome: 'needs_input',
      needs_input: 'Keep the names?',
      question_options: ['Keep them', 'Rename them'],
    })
    t.match((await hangar.api('GET', '/api/sessions?needs_input=true')).body.items, [
      { name: 'asks', state: 'idle', needs_input: 'Keep the names?' },
    ])
    t.match(await hangar.api('POST', '/api/sessions/asks/turns', { option: 3 }), { status: 400 })
    const answered = await hangar.api('POST', '/api/sessions/asks/turns', { option: 2, message: '' })
    t.match(answered, { status: 202, body: { message: 'Rename them' } })
    await waitFor(hangar, 'asks')
    t.match((await hangar.api('GET', '/api/sessions/asks')).body, { needs_input: null, question_options: [] })
  })

  await t.test('a structured result is checked against its schema', async (t) => {
    const schema = { type: 'object', properties: { count: { type: 'integer' } }, required: ['count'] }
    await begin(hangar, 'valid', `hangar-agent result '{"count": 1}'`, { output_schema: schema })
    t.match(await waitFor(hangar, 'valid'), { result: { count: 1 }, result_error: null })
    await begin(hangar, 'invalid', `hangar-agent result '{"count": "one"}'`, { output_schema: schema })
    t.match(await waitFor(hangar, 'invalid'), {
      outcome: 'exited',
      result: null,
      result_error: /count must be integer/,
    })
    await begin(hangar, 'missing', 'true', { output_schema: schema })
    t.match(await waitFor(hangar, 'missing'), { result: null, result_error: /missing/ })
    t.match(await begin(hangar, 'no-schema', 'true', { output_schema: { type: 'no such type' } }), {
      status: 400,
      body: { code: 'invalid_request' },
    })
  })

  await t.test('the same Idempotency-Key and body get the same answer, also at once', async (t) => {
    const headers = { 'Idempotency-Key': 'key-1' }
    const body = { name: 'once', repo: 'acme/app', message: 'true' }
    const answers = await Promise.all([1, 2, 3].map(() => hangar.api('POST', '/api/sessions', body, headers)))
    t.strictSame(
      answers.map((answer) => answer.status),
      [201, 201, 201],
    )
    const restarted = await hangar.api('POST', '/api/sessions', { ...body, message: 'false' }, headers)
    t.match(restarted, { status: 409, body: { code: 'idempotency_mismatch' } })
    await waitFor(hangar, 'once')
    const turns = await Promise.all(
      [1, 2].map(() =>
        hangar.api('POST', '/api/sessions/once/turns', { message: 'true' }, { 'Idempotency-Key': 'key-2' }),
      ),
    )
    t.strictSame(
      turns.map((answer) => answer.body.turn),
      [2, 2],
    )
    t.equal((await hangar.api('GET', '/api/sessions/once')).body.turns.length, 2)
  })

  await t.test('close keeps the work, --delete frees the name', async (t) => {
    await begin(hangar, 'closing', 'echo z >z.txt')
    await waitFor(hangar, 'closing')
    const { body: before } = await hangar.api('GET', '/api/sessions/closing')
    t.ok(existsSync(join(hangar.dataDir, 'sandboxes', before.sandbox.id)))
    const closed = await hangar.api('POST', '/api/sessions/closing/close', {})
    t.match(closed.body, { state: 'closed', sandbox: null })
    t.notOk(existsSync(join(hangar.dataDir, 'sandboxes', before.sandbox.id)), 'the sandbox is gone')
    t.match(await hangar.api('POST', '/api/sessions/closing/turns', { message: 'true' }), { status: 409 })
    t.match((await hangar.api('GET', '/api/sessions/closing/patch')).bytes.toString(), /z\.txt/)
    t.match(await begin(hangar, 'closing', 'true'), { status: 409, body: { code: 'name_taken' } })
    t.equal((await hangar.api('POST', '/api/sessions/closing/close', { delete: true })).status, 200)
    t.equal((await hangar.api('GET', '/api/sessions/closing')).status, 404)
    const refs = (await hangar.git(hangar.dir, ['ls-remote', `${hangar.url}/git/acme/app.git`])).out
    t.notMatch(refs, /closing/)
    t.equal((await begin(hangar, 'closing', 'true')).status, 201)
    await waitFor(hangar, 'closing')
  })
})

t.test('bad input is refused where it is handed in, and nothing half-made is left', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT, settings: { HANGAR_EXCHANGE_MAX_PATCH_MB: '0.001' } })
  await withRepo(hangar)
  const refs = async () => (await hangar.git(hangar.dir, ['ls-remote', `${hangar.url}/git/acme/app.git`])).out
  const before = await refs()
  const oid = 'a'.repeat(40)
  const patch = (content: string, name?: string) => ({
    kind: 'patch',
    content,
    ...(name === undefined ? {} : { name }),
  })
  const symlinkPatch =
    'diff --git a/l b/l\nnew file mode 120000\nindex 0000000..1111111\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n'
  const table: [string, object, object][] = [
    ['a name that is none', { name: 'No Such Name' }, { status: 400 }],
    ['a job name', { name: 'job-x' }, { status: 400, body: { code: 'invalid_name' } }],
    [
      'an unknown repo',
      { repo: 'acme/none' },
      { status: 404, body: { code: 'not_found', detail: /hangar repo add acme\/none/ } },
    ],
    ['an unknown field', { colour: 'red' }, { status: 400, body: { detail: /colour/ } }],
    ['an unknown environment', { environment: 'mars' }, { status: 404, body: { detail: /default/ } }],
    ['another harness', { harness: 'claude' }, { status: 422, body: { code: 'harness_unusable' } }],
    ['an unknown ref', { ref: 'no-such-branch' }, { status: 404, body: { detail: /no-such-branch/ } }],
    ['an empty message', { message: '  ' }, { status: 400 }],
    ['a kind that is none', { context: [{ kind: 'song', content: '' }] }, { status: 400 }],
    [
      'bad base64',
      { context: [{ content: '%%%', encoding: 'base64', name: 'x' }] },
      { status: 422, body: { item_index: 0, item_name: 'x', reason: /base64/ } },
    ],
    [
      'a path that leaves',
      { context: [{ content: '' }, { content: '', name: '../x' }] },
      { status: 422, body: { item_index: 1, item_name: '../x' } },
    ],
    [
      'too many attachments',
      { context: Array.from({ length: 51 }, () => ({ content: '' })) },
      { status: 413, body: { item_index: 50 } },
    ],
    [
      'too large attachments',
      { context: [{ content: 'x'.repeat(3_000_000) }] },
      { status: 413, body: { item_index: 0 } },
    ],
    [
      'a url that is none',
      { context: [{ kind: 'url', url: 'file:///etc/passwd' }] },
      { status: 422, body: { item_index: 0 } },
    ],
    [
      'a patch that does not apply',
      { context: [patch('--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-two\n+three\n', 'fix.patch')] },
      { status: 422, body: { item_index: 0, item_name: 'fix.patch', reason: /patch (failed|does not apply)/ } },
    ],
    ['a patch that is none', { context: [patch('hello')] }, { status: 422, body: { item_index: 0, reason: /./ } }],
    [
      'a patch with a link out of the tree',
      { context: [patch(symlinkPatch)] },
      { status: 422, body: { item_index: 0, reason: /symbolic link/ } },
    ],
    ['a patch over the cap', { context: [patch('x'.repeat(2_000))] }, { status: 413, body: { item_index: 0 } }],
    [
      'a bundle that is none',
      { context: [{ kind: 'bundle', content: 'eHh4', base_commit: before.slice(0, 40) }] },
      { status: 422, body: { item_index: 0, reason: /./ } },
    ],
    [
      'a bundle from an unknown base',
      { context: [{ kind: 'bundle', content: 'eHh4', base_commit: oid }] },
      { status: 422, body: { code: 'missing_commits', missing: [oid], item_index: 0 } },
    ],
    [
      'two bundles',
      { context: [1, 2].map(() => ({ kind: 'bundle', content: 'eHh4', base_commit: oid })) },
      { status: 422, body: { item_index: 1 } },
    ],
    [
      'a checkpoint that was not pushed',
      { context: [{ kind: 'checkpoint', commit: oid }] },
      { status: 422, body: { item_index: 0, reason: /incoming/ } },
    ],
    [
      'a checkpoint that is no commit id',
      { context: [{ kind: 'checkpoint', commit: 'HEAD' }] },
      { status: 422, body: { item_index: 0 } },
    ],
  ]
  for (const [what, input, expected] of table) {
    const answer = await begin(hangar, 'refused', 'true', input)
    t.match({ status: answer.status, body: answer.body }, expected, what)
    t.equal(answer.headers.get('content-type'), 'application/problem+json', what)
  }
  t.equal(await refs(), before, 'no ref')
  t.equal((await hangar.api('GET', '/api/sessions')).body.items.length, 0, 'no session')
  t.strictSame(
    existsSync(join(hangar.dataDir, 'sandboxes'))
      ? readdirSync(join(hangar.dataDir, 'sandboxes')).filter((name) => name.startsWith('refused'))
      : [],
    [],
    'no directory',
  )
  t.equal((await begin(hangar, 'refused', 'true')).status, 201, 'the name is still free')
  await waitFor(hangar, 'refused')
})

t.test('bundles and patches of clients that cannot push', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)
  const local = join(hangar.dir, 'seed')
  const base = (await shell(local, 'git rev-parse main')).trim()
  await shell(
    local,
    'git switch -q -c work && echo two >>a.txt && git commit -q -am "not pushed" && git bundle create -q ../w.bundle HEAD --not main && echo three >>a.txt && printf "\\0\\1" >b.bin && git add -N b.bin && git diff --binary HEAD >../w.patch',
  )
  const base64 = async (file: string) => (await shell(hangar.dir, `base64 -w0 ${file}`)).trim()
  const context = [
    { kind: 'bundle', content: await base64('w.bundle'), base_commit: base },
    { kind: 'patch', content: await base64('w.patch'), encoding: 'base64' },
  ]
  const made = await begin(hangar, 'bundled', 'git log -1 --format=%s; git status --short', { context })
  t.equal(made.status, 201, made.bytes.toString())
  t.equal(made.body.base_commit, base)
  t.match(await waitFor(hangar, 'bundled'), { outcome: 'exited', summary: /b\.bin|a\.txt/ })
  const { body } = await hangar.api('GET', '/api/sessions/bundled/events')
  const lines = body.items
    .filter((event: { kind: string }) => event.kind === 'message')
    .map((event: { text: string }) => event.text)
  t.strictSame(
    lines,
    ['not pushed', ' M a.txt', '?? b.bin'],
    'commits as commits, the patch on top as uncommitted changes',
  )

  const second = await hangar.api('POST', '/api/sessions/bundled/turns', {
    message: 'cat a.txt',
    context: [{ kind: 'patch', content: '--- a/a.txt\n+++ b/a.txt\n@@ -2,2 +2,3 @@\n two\n three\n+four\n' }],
  })
  t.equal(second.status, 202, second.bytes.toString())
  t.match(
    await waitFor(hangar, 'bundled'),
    { outcome: 'exited', summary: 'four' },
    "a patch on a later message goes on the session's working tree",
  )
  const dirty = await hangar.api('POST', '/api/sessions/bundled/turns', { message: 'true', context: [context[0]] })
  t.match(dirty, { status: 409, body: { detail: /uncommitted changes/ } })
})

t.test('who may do what', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)
  const token = async (scopes: string[], repos?: string[]) =>
    (await hangar.api('POST', '/api/tokens', { name: scopes.join(), scopes, ...(repos ? { repos } : {}) })).body
  const reader = await token(['read'])
  const other = await token(['read', 'sessions'], ['else/*'])
  await begin(hangar, 'mine', 'true')
  await waitFor(hangar, 'mine')
  const as = (secret: string | null, method: string, path: string, body?: unknown) =>
    api(hangar.url, secret, { method, path, body })
  t.match(await as(null, 'GET', '/api/sessions'), { status: 401, body: { code: 'unauthenticated' } })
  t.match(await as('hgt_wrong', 'GET', '/api/sessions'), { status: 401 })
  t.match(await as(reader.token, 'POST', '/api/sessions', { name: 'x', repo: 'acme/app', message: 'true' }), {
    status: 403,
    body: { code: 'forbidden', detail: /needs sessions/ },
  })
  t.match(await as(reader.token, 'GET', '/api/tokens'), { status: 403 })
  t.match(await as(other.token, 'GET', '/api/sessions/mine'), { status: 404 }, 'what is not for you is not there')
  t.match(await as(other.token, 'POST', '/api/sessions', { name: 'x', repo: 'acme/app', message: 'true' }), {
    status: 404,
  })
  t.strictSame((await as(other.token, 'GET', '/api/sessions')).body.items, [])
  t.strictSame((await as(other.token, 'GET', '/api/repos')).body.items, [])
  t.equal((await as(reader.token, 'GET', '/api/sessions/mine')).status, 200)
  t.equal((await hangar.api('DELETE', `/api/tokens/${reader.id}`)).status, 200)
  t.equal((await as(reader.token, 'GET', '/api/sessions/mine')).status, 401, 'revoked at once')
  t.notMatch(JSON.stringify((await hangar.api('GET', '/api/tokens')).body), /hgt_/, 'a secret is shown once')
  t.match(await hangar.api('GET', '/api/none'), { status: 404, body: { detail: /openapi/ } })
  t.match(await hangar.api('POST', '/api/sessions', '{"broken'), { status: 400, body: { detail: /not JSON/ } })
  t.match((await hangar.api('GET', '/openapi.json')).body, {
    openapi: '3.1.0',
    paths: { '/api/sessions/{ref}/turns': { post: { operationId: 'send_to_session' } } },
  })
})

t.test('fifty sessions at once all finish', { timeout: 900_000 }, async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT })
  await withRepo(hangar)
  const names = Array.from({ length: 50 }, (_, at) => `s-${at}`)
  const made = await Promise.all(
    names.map((name) => begin(hangar, name, `echo ${name} >own.txt; git add own.txt; git commit -q -m ${name}`)),
  )
  t.ok(made.every((answer) => answer.status === 201))
  const ended = await Promise.all(
    names.map((name) => hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=270`)),
  )
  t.strictSame(
    ended.map((answer) => answer.body.outcome),
    names.map(() => 'exited'),
  )
  const refs = (await hangar.git(hangar.dir, ['ls-remote', `${hangar.url}/git/acme/app.git`, 'refs/heads/hangar/*']))
    .out
  t.equal(refs.trim().split('\n').length, 50)
})
