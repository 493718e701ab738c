/** Failures as a new user meets them: each command prints what, why and the next thing to try, and ends with the documented status. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import { join } from 'node:path'
import t from 'tap'
import { run, shell, startHangar, waitUntil } from './support.ts'

t.setTimeout(900_000)
const hangar = await startHangar(t, {
  agent: 'read -r line; eval "$line"',
  settings: { HANGAR_EXCHANGE_MAX_PATCH_MB: '0.01' },
})
const { dir } = hangar
const seed = join(dir, 'seed')
const other = join(dir, 'other')
await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
await hangar.api('POST', '/api/repos', { slug: 'acme/empty' })
const remote = `${hangar.url}/git/acme/app.git`
await shell(
  dir,
  `mkdir none; git init -q -b main seed; cd seed; echo one >a.txt; echo secret.txt >.gitignore; git add .; git commit -q -m base; git remote add origin ${remote}
   git init -q -b main ../unknown; cd ../unknown; echo x >x; git add .; git commit -q -m x`,
)
await hangar.git(seed, ['push', '-q', remote, 'main'])
await shell(
  dir,
  `git clone -q seed other; git clone -q seed dirty; git clone -q seed inway; git clone -q seed own; git clone -q seed conflict
   for c in other dirty inway own conflict; do git -C $c remote set-url origin ${remote}; done
   cd other; echo two >>a.txt; git commit -q -a -m two; echo three >>a.txt; git commit -q -a -m three; git bundle create -q ../missing.bundle HEAD~1..HEAD
   git rev-parse HEAD~1 >../missing.base; git rev-parse HEAD~2 >../main.base; git bundle create -q ../good.bundle HEAD~2..HEAD; git diff HEAD~1 HEAD >../late.patch
   cd ../dirty; echo mine >>a.txt
   cd ../inway; echo mine >new.txt
   cd ../own; git switch -q -c hangar/work; echo own >own.txt; git add .; git commit -q -m "my own commit"; git switch -q main
   cd ../conflict; git switch -q -c x; echo x >a.txt; git commit -q -a -m x; git switch -q main; echo y >a.txt; git commit -q -a -m y; git merge x >&2 || true
   cd ..; mkdir a-directory; echo '{' >bad.json; echo '{"type":"no such"}' >no.schema; echo hello >notes.txt; head -c 3000000 /dev/zero >big.bin
   head -c 20000 /dev/urandom | base64 >big.patch; for i in $(seq 51); do : >many-$i; done`,
)
const missingBase = (await shell(dir, 'cat missing.base')).trim()
const mainBase = (await shell(dir, 'cat main.base')).trim()

const token = async (name: string, body: object) => (await hangar.api('POST', '/api/tokens', { name, ...body })).body
const reader = await token('reader', { scopes: ['read'] })
const elsewhere = await token('elsewhere', { scopes: ['sessions'], repos: ['other/*'] })
const expired = await token('expired', { scopes: ['admin'], expires_at: new Date(Date.now() + 1_000).toISOString() })
const revoked = await token('revoked', { scopes: ['admin'] })
await hangar.api('DELETE', `/api/tokens/${revoked.id}`)
const as = (secret: string) => ({ env: { HANGAR_TOKEN: secret } })
await waitUntil('a token expires', async () => (await hangar.cli(['repo', 'list'], as(expired.token))).status === 4)

const begin = async (name: string, message: string) => {
  await hangar.cli(['session', 'new', name, message, '--repo', 'acme/app', '-w'])
}
await begin('work', 'echo new >new.txt; echo agent >>a.txt; git commit -q -a -m agent; echo more >>a.txt')
await begin('asks', 'hangar-agent question --option A --option B "Which one?"')
await begin('failed', 'exit 7')
await begin('closed', 'true')
await hangar.cli(['session', 'close', 'closed'])
await hangar.cli(['session', 'new', 'full', 'sleep 600', '--repo', 'acme/app'])
for (let at = 0; at < 10; at++) await hangar.api('POST', '/api/sessions/full/turns', { message: 'true' })
await hangar.cli(['session', 'new', 'busy', 'sleep 600', '--repo', 'acme/app'])
const stranger = createServer((_req, res) => res.end('<html>hello</html>')).listen(0, '127.0.0.1')
await once(stranger, 'listening')
t.teardown(() => stranger.close())
const strange = `http://127.0.0.1:${(stranger.address() as { port: number }).port}`

interface Options {
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  readonly input?: string
}
const NEW = ['session', 'new', 'fresh']
const IN = ['--repo', 'acme/app']

/** What is tried, the exit status, what is said, and how it is run. */
const TABLE: [string, string[], number, RegExp, Options?][] = [
  // The server and the token.
  [
    'no server',
    ['session', 'list'],
    4,
    /no answer from http:\/\/127\.0\.0\.1:1: .*hangar serve/,
    { env: { HANGAR_URL: 'http://127.0.0.1:1' } },
  ],
  [
    'no token',
    ['session', 'list'],
    4,
    /no token: .*hangar serve.*HANGAR_TOKEN/,
    { env: { XDG_CONFIG_HOME: '/nonexistent' } },
  ],
  ['a URL that is none', ['session', 'list'], 2, /HANGAR_URL=nowhere .*http/, { env: { HANGAR_URL: 'nowhere' } }],
  ['another server', ['session', 'list'], 4, /not as hangar does.*HANGAR_URL/, { env: { HANGAR_URL: strange } }],
  [
    'a wrong token',
    ['session', 'list'],
    4,
    /does not take this token.*hangar token create.*HANGAR_TOKEN/,
    as('hgt_wrong'),
  ],
  ['an expired token', ['inbox'], 4, /does not take this token.*HANGAR_TOKEN/, as(expired.token)],
  ['a revoked token', ['repo', 'list'], 4, /does not take this token.*HANGAR_TOKEN/, as(revoked.token)],
  [
    'a scope that is missing',
    [...NEW, 'x', ...IN],
    4,
    /token reader has the scopes read; this needs sessions; .*hangar token create/,
    as(reader.token),
  ],
  [
    'a scope that is missing, by git',
    [...NEW, 'x', '--from-local'],
    4,
    /needs sessions|the scope sessions/,
    { cwd: seed, ...as(reader.token) },
  ],
  ['a repo that the token does not cover', [...NEW, 'x', ...IN], 2, /no repo acme\/app/, as(elsewhere.token)],
  [
    'a session that the token does not cover',
    ['session', 'show', 'work'],
    2,
    /no session work; hangar session list/,
    as(elsewhere.token),
  ],
  // Usage.
  ['an unknown command', ['sesion', 'list'], 2, /unknown command/],
  ['an unknown option', ['session', 'list', '--colour'], 2, /unknown option/],
  ['a missing argument', ['session', 'show'], 2, /missing required argument/],
  ['a number that is none', ['session', 'wait', 'work', '--timeout', 'soon'], 2, /--timeout.*soon.*number above 0/],
  // Beginning a session.
  ['an unknown repo', [...NEW, 'x', '--repo', 'acme/none'], 2, /no repo acme\/none .*hangar repo add acme\/none/],
  ['no checkout and no repo', [...NEW, 'x'], 2, /not in a git checkout.*--repo/, { cwd: join(dir, 'none') }],
  [
    'a checkout that the server does not know',
    [...NEW, 'x'],
    2,
    /no remote of this checkout .*--repo.*--from-local/,
    { cwd: join(dir, 'unknown') },
  ],
  [
    'the same, handed over',
    [...NEW, 'x', '--from-local'],
    2,
    /does not know this checkout .*--create-repo.*--repo/,
    { cwd: join(dir, 'unknown') },
  ],
  ['--create-repo alone', [...NEW, 'x', '--create-repo', ...IN], 2, /--create-repo goes with --from-local/],
  [
    'an unmerged index',
    [...NEW, 'x', '--from-local'],
    5,
    /cannot be handed over.*\n.*merge is not finished: a\.txt: .*git merge --abort/,
    { cwd: join(dir, 'conflict') },
  ],
  ['a bad name', ['session', 'new', 'No Such', 'x', ...IN], 2, /\.name: .*1 to 63 of a-z, 0-9 and -/],
  ['a name of jobs', ['session', 'new', 'job-x', 'x', ...IN], 2, /job- belong to jobs/],
  [
    'a name that is taken',
    ['session', 'new', 'work', 'x', ...IN],
    2,
    /a session work exists.*hangar session close work --delete/,
  ],
  ['a repo name that is none', [...NEW, 'x', '--repo', 'app'], 2, /repo "app": use owner\/name/],
  ['an unknown ref', [...NEW, 'x', ...IN, '--ref', 'nope'], 2, /nope/],
  ['an unknown environment', [...NEW, 'x', ...IN, '--env', 'mars'], 2, /environment.*mars.*default/],
  ['another harness', [...NEW, 'x', ...IN, '--harness', 'claude'], 2, /harness command, not claude/],
  ['an empty message', [...NEW, '', ...IN], 2, /message: say what/],
  ['an empty message from stdin', [...NEW, '-', ...IN], 2, /message: say what/],
  [
    'a message beyond the cap',
    [...NEW, '-', ...IN],
    2,
    /a message may have \d+ bytes; .*--file/,
    { input: 'x'.repeat(300_000) },
  ],
  // What is handed in.
  [
    'a file that is not there',
    [...NEW, 'x', ...IN, '--file', 'nope.txt'],
    2,
    /--file nope\.txt .*no such file/,
    { cwd: dir },
  ],
  [
    'a directory as a file',
    [...NEW, 'x', ...IN, '--file', 'a-directory'],
    2,
    /a-directory is a directory.*--from-local/,
    { cwd: dir },
  ],
  ['stdin twice', [...NEW, '-', ...IN, '--file', '-'], 2, /message \(-\) or a file \(--file -\), not both/],
  [
    'a file beyond the cap',
    [...NEW, 'x', ...IN, '--file', 'big.bin'],
    2,
    /file "big\.bin".*2097152 bytes/,
    { cwd: dir },
  ],
  [
    'too many files',
    [...NEW, 'x', ...IN, ...Array.from({ length: 51 }, (_, at) => ['--file', `many-${at + 1}`]).flat()],
    2,
    /at most 50 attachments/,
    { cwd: dir },
  ],
  ['a URL that is none to name', [...NEW, 'x', ...IN, '--url', 'javascript:1'], 2, /not an http or https URL/],
  [
    'a schema that is not JSON',
    [...NEW, 'x', ...IN, '--schema', 'bad.json'],
    2,
    /--schema bad\.json is not JSON/,
    { cwd: dir },
  ],
  ['a schema that is none', [...NEW, 'x', ...IN, '--schema', 'no.schema'], 2, /schema/, { cwd: dir }],
  [
    'a patch that does not apply',
    [...NEW, 'x', ...IN, '--patch', 'late.patch'],
    2,
    /patch "late\.patch".*\n?.*a\.txt/,
    { cwd: dir },
  ],
  [
    'a patch that is none',
    [...NEW, 'x', ...IN, '--patch', 'notes.txt'],
    2,
    /patch "notes\.txt".*\n.*--from-local/,
    { cwd: dir },
  ],
  [
    'a patch beyond the cap',
    [...NEW, 'x', ...IN, '--patch', 'big.patch'],
    2,
    /a patch may have [\d.]+ bytes.*--from-local/,
    { cwd: dir },
  ],
  [
    'a bundle without a base',
    [...NEW, 'x', ...IN, '--bundle', 'good.bundle'],
    2,
    /--bundle needs --base COMMIT/,
    { cwd: dir },
  ],
  ['a base without a bundle', [...NEW, 'x', ...IN, '--base', mainBase], 2, /--base goes with --bundle/],
  [
    'a bundle that is none',
    [...NEW, 'x', ...IN, '--bundle', 'notes.txt', '--base', mainBase],
    2,
    /bundle "notes\.txt"/,
    { cwd: dir },
  ],
  [
    'a bundle with missing commits',
    [...NEW, 'x', ...IN, '--bundle', 'missing.bundle', '--base', missingBase],
    2,
    new RegExp(`bundle "missing\\.bundle"[^]*missing: ${missingBase}`),
    { cwd: dir },
  ],
  [
    'a bundle and the checkout',
    [...NEW, 'x', '--from-local', '--bundle', 'x', '--base', mainBase],
    2,
    /not both/,
    { cwd: seed },
  ],
  // Sending.
  ['no message', ['session', 'send', 'work'], 2, /no message was given.*hangar session send work/],
  [
    'no message to a question',
    ['session', 'send', 'asks'],
    2,
    /asks asks: Which one\?\n {2}1\. A\n {2}2\. B\nanswer with: hangar session send asks .*--option N/,
  ],
  [
    'an answer that is not offered',
    ['session', 'send', 'asks', '--option', '3'],
    2,
    /option 3: .*2 answer.*hangar session show asks/,
  ],
  [
    'an answer where nothing is asked',
    ['session', 'send', 'work', '--option', '1'],
    2,
    /option 1: .*hangar session show work/,
  ],
  ['an unknown session', ['session', 'send', 'nobody', 'x'], 2, /no session nobody; hangar session list/],
  ['a closed session', ['session', 'send', 'closed', 'x'], 2, /closed is closed; .*hangar session new/],
  ['a full queue', ['session', 'send', 'full', 'x'], 2, /10 messages waiting.*hangar session wait full/],
  [
    'commits for a session at work',
    ['session', 'send', 'busy', 'x', '--bundle', 'good.bundle', '--base', mainBase],
    2,
    /busy is at work.*hangar session wait busy/,
    { cwd: dir },
  ],
  ['nothing to cancel', ['session', 'cancel', 'work'], 2, /no turn to cancel; see: hangar session show work/],
  // Waiting.
  ['a question', ['session', 'wait', 'asks'], 3, /hangar session send asks/],
  ['a failed turn', ['session', 'wait', 'failed'], 1, /hangar session events failed/],
  ['long enough', ['session', 'wait', 'busy', '--timeout', '0.2'], 124, /hangar session wait busy/],
  ['an unknown session to wait for', ['session', 'wait', 'nobody'], 2, /no session nobody/],
  ['an unknown turn', ['session', 'wait', 'work', '--turn', '9'], 2, /no turn 9; see: hangar session show work/],
  // What comes back.
  [
    'an artifact that is not there',
    ['session', 'artifacts', 'work', '--get', 'x.txt'],
    2,
    /no artifact x\.txt.*hangar session artifacts work/,
  ],
  [
    'an artifact of a turn',
    ['session', 'artifacts', 'work', '--get', 'x.txt', '--turn', '1'],
    2,
    /no artifact x\.txt up to turn 1/,
  ],
  ['one and all', ['session', 'artifacts', 'work', '--get', 'x', '--all', 'y'], 2, /one of the two/],
  [
    'a patch of an unknown turn',
    ['session', 'patch', 'work', '--turn', '9'],
    2,
    /no turn 9; see: hangar session show work/,
  ],
  ['events of an unknown session', ['session', 'events', 'nobody'], 2, /no session nobody/],
  ['the same, followed', ['session', 'events', 'nobody', '-f'], 2, /no session nobody/],
  ['pull outside of a checkout', ['session', 'pull', 'work'], 2, /not in a git checkout/, { cwd: join(dir, 'none') }],
  [
    'pull over own commits',
    ['session', 'pull', 'work'],
    5,
    /my own commit\n.*--branch NAME.*--force/,
    { cwd: join(dir, 'own') },
  ],
  [
    'pull over uncommitted changes',
    ['session', 'pull', 'work', '--checkout'],
    5,
    /uncommitted changes.*a\.txt\.\n.*git stash/,
    { cwd: join(dir, 'dirty') },
  ],
  [
    'pull over untracked files',
    ['session', 'pull', 'work', '--checkout'],
    5,
    /in the way.*new\.txt\n.*git stash -u/,
    { cwd: join(dir, 'inway') },
  ],
  ['pull into no branch name', ['session', 'pull', 'work', '--branch', 'a..b'], 2, /no branch name/, { cwd: other }],
  ['a state that is none', ['session', 'list', '--state', 'zz'], 2, /state: must be one of creating, idle, running/],
  // Repos and tokens.
  ['a slug that is none', ['repo', 'add', 'app'], 2, /owner\/name/],
  ['a repo that is there', ['repo', 'add', 'acme/app'], 2, /repo acme\/app already; git push/],
  ['removal without a yes', ['repo', 'remove', 'acme/app'], 2, /--yes/],
  [
    'removal with sessions',
    ['repo', 'remove', 'acme/app', '--yes'],
    2,
    /has \d+ session.*hangar session close NAME --delete/,
  ],
  ['removal of what is not there', ['repo', 'remove', 'acme/none', '--yes'], 2, /no repo acme\/none.*hangar repo list/],
  [
    'a scope that is none',
    ['token', 'create', 'x', '--scope', 'all'],
    2,
    /scopes\[0\]: must be one of read, sessions, jobs/,
  ],
  [
    'a time that is none',
    ['token', 'create', 'x', '--scope', 'read', '--expires', 'soon'],
    2,
    /expires_at "soon".*ISO 8601/,
  ],
  ['a token that is not there', ['token', 'revoke', 'nope'], 2, /no token "nope"; hangar token list/],
]

for (const [name, args, status, says, options] of TABLE)
  t.test(`${name}: hangar ${args.slice(0, 6).join(' ').slice(0, 60)}`, async (t) => {
    const ran = await hangar.cli(args, { cwd: dir, ...options })
    t.equal(ran.status, status)
    t.match(ran.err, says)
    t.notMatch(ran.err, /\n {4}at |undefined|\[object/, 'no stack, no hole')
    t.match(ran.err, /^\S.*\S\n$/s)
    if (process.env['SHOW_FAILURES']) t.comment(`${ran.status} ${ran.err}`)
  })

t.test('afterwards nothing was begun', async (t) => {
  t.equal((await hangar.api('GET', '/api/sessions/fresh')).status, 404)
  const incoming = await run(
    'git',
    ['-c', 'safe.directory=*', 'for-each-ref', 'refs/hangar/incoming/', 'refs/hangar/sessions/fresh/'],
    {
      cwd: join(hangar.dataDir, 'repos', 'acme', 'app.git'),
    },
  )
  t.match(incoming, { status: 0, out: '' })
  for (const name of ['full', 'busy']) await hangar.api('POST', `/api/sessions/${name}/close`, {})
})
