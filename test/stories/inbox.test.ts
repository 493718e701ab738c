/** Questions that wait for a person: the inbox lists them, oldest first, whoever may see them; the CLI shows and answers them. */
import { join } from 'node:path'
import t from 'tap'
import { type Hangar, MAIN, run, shell, startHangar } from './support.ts'

const OBEDIENT = 'read -r line; eval "$line"'
const ASK = 'hangar-agent question --option "Keep them" --option "Rename them" "Keep the names?"'

const hangar = await startHangar(t, { agent: OBEDIENT })
for (const slug of ['acme/app', 'acme/other']) {
  await hangar.api('POST', '/api/repos', { slug })
  await shell(
    hangar.dir,
    'rm -rf seed; git init -q -b main seed; cd seed; echo one >a.txt; git add .; git commit -q -m b',
  )
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/${slug}.git`, 'main'])
}
const ask = async (at: Hangar, name: string, message: string, repo = 'acme/app') => {
  await at.api('POST', '/api/sessions', { name, repo, message })
  await at.api('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)
}
const refs = (answer: { body: { items: { ref: string }[] } }) => answer.body.items.map((item) => item.ref)

t.test('an empty inbox says so, and is no failure', async (t) => {
  t.strictSame((await hangar.api('GET', '/api/inbox')).body, { items: [], next_cursor: null })
  const empty = await hangar.cli(['inbox'])
  t.match(empty, { status: 0, out: '', err: /nothing waits for an answer/ })
})

t.test('what waits is listed, the oldest question first', async (t) => {
  await ask(hangar, 'silent', 'true')
  await ask(hangar, 'zulu', ASK)
  await ask(hangar, 'alpha', 'hangar-agent ask "Which port?"', 'acme/other')
  const { body } = await hangar.api('GET', '/api/inbox')
  t.match(body.items, [
    {
      kind: 'question',
      ref: 'zulu',
      repo: 'acme/app',
      turn: 1,
      question: 'Keep the names?',
      question_options: ['Keep them', 'Rename them'],
      since: /^\d{4}-/,
      requester: /./,
    },
    { ref: 'alpha', repo: 'acme/other', question_options: [] },
  ])
  t.equal(body.next_cursor, null)
  const first = await hangar.api('GET', '/api/inbox?limit=1')
  t.strictSame(refs(first), ['zulu'])
  t.strictSame(refs(await hangar.api('GET', `/api/inbox?cursor=${first.body.next_cursor}`)), ['alpha'])
})

t.test('the requester is the token that sent the message which led to the question', async (t) => {
  const made = await hangar.api('POST', '/api/tokens', {
    name: 'a colleague',
    scopes: ['sessions'],
    repos: ['acme/other'],
  })
  const own = { HANGAR_TOKEN: made.body.token as string }
  const sent = await hangar.cli(['session', 'send', 'alpha', 'hangar-agent ask "And the host?"', '-w'], { env: own })
  t.equal(sent.status, 3, sent.err)
  const listed = JSON.parse((await hangar.cli(['inbox', '--json'], { env: own })).out)
  t.match(listed.items, [{ ref: 'alpha', turn: 2, question: 'And the host?', requester: 'a colleague' }])
  t.equal(listed.items.length, 1, 'and nothing of repos that the token does not cover')
  t.strictSame(refs(await hangar.api('GET', '/api/inbox')), ['zulu', 'alpha'])
})

t.test('the CLI shows a question with its answers wherever its session is shown', async (t) => {
  const piped = await hangar.cli(['inbox'])
  t.match(piped.out, /^zulu\tacme\/app\t1\t\S+\t[^\t]+\tKeep the names\?\tKeep them\tRename them\nalpha\t/)
  const seen = await run('script', ['-qec', `${process.execPath} ${MAIN} inbox`, '/dev/null'], {
    env: { ...process.env, XDG_CONFIG_HOME: join(hangar.dir, 'config'), NO_COLOR: '1' } as Record<string, string>,
  })
  t.match(seen.out, /zulu on acme\/app waits for \d+[sm] \(turn 1, asked for by .+\)/)
  t.match(seen.out, / {2}1\. Keep them\r?\n {2}2\. Rename them/)
  t.match(seen.out, /answer with: hangar session send zulu --option 1…2, or "…"/)
  const shown = await hangar.cli(['session', 'show', 'zulu'])
  t.match(shown.out, /it asks: Keep the names\?\n {2}1\. Keep them\n/)
  t.match(shown.err, /answer with: hangar session send zulu/)
  t.match((await hangar.cli(['session', 'list'])).out, /zulu\tacme\/app\tneeds input\t.*asks: Keep the names\?/)
  const silent = await hangar.cli(['session', 'send', 'zulu'])
  t.match(silent, {
    status: 2,
    err: /zulu asks: Keep the names\?\n {2}1\. Keep them\n {2}2\. Rename them\nanswer with: .*or --option N/,
  })
})

t.test(
  'an answer, a new question, closing: the inbox follows, also after a restart with an index built anew',
  async (t) => {
    t.equal((await hangar.cli(['session', 'send', 'zulu', '--option', '3'])).status, 2)
    const answered = await hangar.cli(['session', 'send', 'alpha', ASK, '-w'])
    t.match(answered, { status: 3, out: /Keep the names\?\n {2}1\. Keep them/ })
    t.strictSame(refs(await hangar.api('GET', '/api/inbox')), ['zulu', 'alpha'])
    await hangar.cli(['session', 'send', 'zulu', 'true', '-w'])
    t.strictSame(refs(await hangar.api('GET', '/api/inbox')), ['alpha'])
    await ask(hangar, 'third', ASK)
    const before = (await hangar.api('GET', '/api/inbox')).body
    const again = await hangar.restart({ reindex: true })
    t.teardown(() => again.close())
    t.strictSame((await again.api('GET', '/api/inbox')).body, before)
    await again.api('POST', '/api/sessions/third/close', {})
    await again.api('POST', '/api/sessions/alpha/close', { delete: true })
    t.strictSame((await again.api('GET', '/api/inbox')).body.items, [])
  },
)
