import t from 'tap'
import type { Caller, GrantCaller, TokenCaller } from '../../domain/grant.ts'
import { type Oid, type RefName, type RepoSlug, type SessionName, ZERO_OID } from '../../domain/names.ts'
import { linkFault, NO_CONTENT, pathMatcher, policyOf } from '../../refs-policy/content.ts'
import { decideHistory, decideNames } from '../../refs-policy/decide.ts'
import type { RefTable } from '../../refs-policy/ref-update.ts'
import type { HistoryContext } from '../../refs-policy/rules.ts'

const A = 'a'.repeat(40) as Oid
const B = 'b'.repeat(40) as Oid
const grant: GrantCaller = {
  kind: 'grant',
  id: 'sb',
  session: 's1' as SessionName,
  repo: 'acme/app' as RepoSlug,
  parent: null,
  mayRead: [],
}
const guest: Caller = { kind: 'guest', id: 'sb' }
const token = (...scopes: TokenCaller['scopes']): TokenCaller => ({
  kind: 'token',
  id: 't',
  name: 't',
  scopes,
  repos: null,
})
const table: RefTable = {
  head: 'refs/heads/main' as RefName,
  refs: [
    'refs/hangar/incoming/mine',
    'refs/hangar/sessions/s1/log',
    'refs/heads/hangar/s1',
    'refs/heads/main',
    'refs/heads/team/a',
    'refs/tags/v1',
  ].map((name) => ({ name: name as RefName, oid: A })),
}

function decide(caller: Caller, ref: string, old: Oid, next: Oid, mirrored = false): string {
  const [verdict] = decideNames({ caller, commands: [{ ref, old, new: next }], table, mirrored })
  return verdict?.allowed ? 'ok' : (verdict?.reason ?? '')
}

const ONLY_OWN = 'this grant may push only refs/heads/hangar/s1'
const GUEST = "this repo is not the session's: its sandbox may only fetch from it"
const RECORDS = 'refs/hangar/ and refs/notes/hangar are moved by hangar only'
const INCOMING = 'refs/hangar/incoming/ takes one plain name, from a token with the scope sessions or jobs'
const SESSION = 'session branches are moved by their sandbox and by hangar only'
const FOLDER = 'a ref that is a folder of this one, or lies below it, exists; use another name'
const MOVED = 'the ref moved meanwhile; fetch and push again'
const BAD = 'not a ref name that is taken here'
const write = token('repo:write')
const admin = token('admin')

const CASES: readonly [string, Caller, string, Oid, Oid, string][] = [
  ['a grant moves its own branch', grant, 'refs/heads/hangar/s1', A, B, 'ok'],
  ['and creates its checkpoint', grant, 'refs/hangar/sessions/s1/checkpoint', ZERO_OID, B, 'ok'],
  ['but not main', grant, 'refs/heads/main', A, B, ONLY_OWN],
  ['nor a tag', grant, 'refs/tags/v2', ZERO_OID, B, ONLY_OWN],
  ['nor another session', grant, 'refs/heads/hangar/s2', ZERO_OID, B, ONLY_OWN],
  ['nor a name that begins like its own', grant, 'refs/heads/hangar/s1evil', ZERO_OID, B, ONLY_OWN],
  ['nor below its own', grant, 'refs/heads/hangar/s1/x', ZERO_OID, B, ONLY_OWN],
  ['nor its log', grant, 'refs/hangar/sessions/s1/log', A, B, ONLY_OWN],
  [
    'nor a session folder that begins like its own',
    grant,
    'refs/hangar/sessions/s1evil/checkpoint',
    ZERO_OID,
    B,
    ONLY_OWN,
  ],
  ['nor HEAD', grant, 'HEAD', ZERO_OID, B, BAD],
  ['a guest moves nothing', guest, 'refs/heads/hangar/s1', A, B, GUEST],
  ['nor creates', guest, 'refs/heads/hangar/s2', ZERO_OID, B, GUEST],
  ['nor deletes', guest, 'refs/tags/v1', A, ZERO_OID, GUEST],
  ['it deletes nothing', grant, 'refs/heads/hangar/s1', A, ZERO_OID, 'this grant may not delete refs'],
  ['a person creates a branch', write, 'refs/heads/topic', ZERO_OID, B, 'ok'],
  ['moves it', write, 'refs/heads/main', A, B, 'ok'],
  ['deletes it', write, 'refs/heads/team/a', A, ZERO_OID, 'ok'],
  ['but not the default', write, 'refs/heads/main', A, ZERO_OID, 'the default branch may not be deleted'],
  ['creates, moves and deletes tags', write, 'refs/tags/v1', A, ZERO_OID, 'ok'],
  ['and notes', write, 'refs/notes/review', ZERO_OID, B, 'ok'],
  ['but not hangar notes', write, 'refs/notes/hangar', ZERO_OID, B, RECORDS],
  ['nor a session branch', write, 'refs/heads/hangar/s1', A, B, SESSION],
  ['nor the folder of session branches', write, 'refs/heads/hangar', ZERO_OID, B, SESSION],
  ['hangarx is a plain branch', write, 'refs/heads/hangarx', ZERO_OID, B, 'ok'],
  ['admin moves no record', admin, 'refs/hangar/sessions/s1/log', A, B, RECORDS],
  ['admin moves no sealed ref', admin, 'refs/hangar/sessions/s1/sealed', ZERO_OID, B, RECORDS],
  ['refs/hangar itself is a record', admin, 'refs/hangar', ZERO_OID, B, RECORDS],
  ['nor a session branch as admin', admin, 'refs/heads/hangar/s9', ZERO_OID, B, SESSION],
  [
    'upstream is the mirror',
    admin,
    'refs/upstream/heads/x',
    ZERO_OID,
    B,
    'only branches, tags and notes may be pushed',
  ],
  ['no other namespace', admin, 'refs/pull/1/head', ZERO_OID, B, 'only branches, tags and notes may be pushed'],
  ['read is not write', token('read'), 'refs/heads/topic', ZERO_OID, B, 'this token has not the scope repo:write'],
  ['sessions hands in', token('sessions'), 'refs/hangar/incoming/new', ZERO_OID, B, 'ok'],
  [
    'and again, though the old value is not advertised',
    token('sessions'),
    'refs/hangar/incoming/mine',
    ZERO_OID,
    B,
    'ok',
  ],
  ['under one component', token('sessions'), 'refs/hangar/incoming/a/b', ZERO_OID, B, INCOMING],
  ['under a name', token('sessions'), 'refs/hangar/incoming', ZERO_OID, B, INCOMING],
  ['jobs hands in as well', token('jobs'), 'refs/hangar/incoming/new', ZERO_OID, B, 'ok'],
  ['again too', token('jobs'), 'refs/hangar/incoming/mine', ZERO_OID, B, 'ok'],
  ['under one component alone', token('jobs'), 'refs/hangar/incoming/a/b', ZERO_OID, B, INCOMING],
  [
    'takes nothing away',
    token('jobs'),
    'refs/hangar/incoming/mine',
    A,
    ZERO_OID,
    'refs/hangar/incoming/ is cleared by hangar only',
  ],
  ['and moves no branch', token('jobs'), 'refs/heads/topic', ZERO_OID, B, 'this token has not the scope repo:write'],
  ['nor a tag', token('jobs'), 'refs/tags/v2', ZERO_OID, B, 'this token has not the scope repo:write'],
  ['nor a session branch', token('jobs'), 'refs/heads/hangar/s1', A, B, SESSION],
  ['nor the record of a job', token('jobs'), 'refs/hangar/jobs/job-aaaaaaaaaa', ZERO_OID, B, RECORDS],
  ['nor a checkpoint', token('jobs'), 'refs/hangar/sessions/s1/checkpoint', ZERO_OID, B, RECORDS],
  ['read hands nothing in', token('read'), 'refs/hangar/incoming/new', ZERO_OID, B, INCOMING],
  ['write is not sessions', write, 'refs/hangar/incoming/new', ZERO_OID, B, INCOMING],
  [
    'hand-ins are not deleted',
    token('sessions'),
    'refs/hangar/incoming/mine',
    A,
    ZERO_OID,
    'refs/hangar/incoming/ is cleared by hangar only',
  ],
  [
    'sessions moves no branch',
    token('sessions'),
    'refs/heads/topic',
    ZERO_OID,
    B,
    'this token has not the scope repo:write',
  ],
  ['a stale old value', write, 'refs/heads/main', B, A, MOVED],
  ['a create of what is there', write, 'refs/heads/main', ZERO_OID, B, MOVED],
  ['a delete of what is gone', write, 'refs/heads/gone', B, ZERO_OID, MOVED],
  ['zero to zero', write, 'refs/heads/x', ZERO_OID, ZERO_OID, 'neither an old nor a new value was given'],
  ['a file where a folder is', write, 'refs/heads/team', ZERO_OID, B, FOLDER],
  ['a folder where a file is', write, 'refs/heads/main/x', ZERO_OID, B, FOLDER],
  ...[
    'refs/heads/../x',
    'refs/heads/a.lock',
    'refs/heads/a b',
    'refs/heads/a\nb',
    'refs/heads/@{',
    'refs/heads//a',
    '--x',
    'refs/heads/-x',
    `refs/heads/${'x'.repeat(300)}`,
    'refs/heads/',
    'refs/heads/a\0',
  ].map((ref): [string, Caller, string, Oid, Oid, string] => [
    `bad name ${JSON.stringify(ref)}`,
    admin,
    ref,
    ZERO_OID,
    B,
    BAD,
  ]),
  ['bytes that are no UTF-8 are a name', write, 'refs/heads/\xff\xfe', ZERO_OID, B, 'ok'],
]

t.test('names are decided by who asks, place and current value', async (t) => {
  for (const [name, caller, ref, old, next, expected] of CASES) t.equal(decide(caller, ref, old, next), expected, name)
})

t.test("a mirrored repo's own refs are not pushed, but work is handed in", async (t) => {
  t.equal(decide(admin, 'refs/heads/x', ZERO_OID, B, true), 'this repo follows an upstream; push there')
  t.equal(decide(admin, 'refs/hangar/incoming/x', ZERO_OID, B, true), 'ok')
  t.equal(decide(grant, 'refs/heads/hangar/s1', A, B, true), 'ok')
})

t.test('a push that names a ref twice is refused at both', async (t) => {
  const command = { ref: 'refs/heads/x', old: ZERO_OID, new: B }
  const verdicts = decideNames({ caller: write, commands: [command, { ...command, new: A }], table })
  t.strictSame(
    verdicts.map((verdict) => verdict.allowed),
    [false, false],
  )
})

t.test('a mixed push is decided ref by ref, an atomic one as a whole', async (t) => {
  const commands = [
    { ref: 'refs/heads/main', old: A, new: B },
    { ref: 'refs/heads/hangar/s1', old: A, new: B },
  ]
  const allowed = (atomic: boolean) =>
    decideNames({ caller: grant, commands, table, atomic }).map((verdict) => verdict.allowed)
  t.strictSame(allowed(false), [false, true])
  t.strictSame(allowed(true), [false, false])
})

t.test('history is decided by what was found', async (t) => {
  const whole: HistoryContext = {
    type: 'commit',
    complete: true,
    shallow: false,
    rewinds: false,
    content: NO_CONTENT,
    policy: { fastForwardOnly: false, branch: null },
  }
  const cases: readonly [string, string, HistoryContext, string][] = [
    ['whole', 'refs/heads/x', whole, 'ok'],
    ['a tag object on a branch', 'refs/heads/x', { ...whole, type: 'tag' }, 'this ref may name only a commit'],
    ['a tag object on a tag', 'refs/tags/x', { ...whole, type: 'tag' }, 'ok'],
    ['a blob on a tag', 'refs/tags/x', { ...whole, type: 'blob' }, 'ok'],
    ['a blob on a checkpoint', 'refs/hangar/incoming/x', { ...whole, type: 'blob' }, 'this ref may name only a commit'],
    ['not whole', 'refs/heads/x', { ...whole, complete: false, type: null }, 'missing necessary objects'],
    [
      'cut',
      'refs/heads/x',
      { ...whole, type: null, complete: false, shallow: true },
      'shallow update not allowed: run git fetch --unshallow',
    ],
    ['cut, but the rest is known', 'refs/heads/x', { ...whole, shallow: true }, 'ok'],
  ]
  for (const [name, ref, fact, expected] of cases) {
    const update = { ref: ref as RefName, old: ZERO_OID, new: B }
    const [verdict] = decideHistory({ verdicts: [{ allowed: true, update }], facts: new Map([[ref, fact]]) })
    t.equal(verdict?.allowed ? 'ok' : verdict?.reason, expected, name)
  }
})

t.test('what a push brings is decided by what is asked of its ref', async (t) => {
  const branch = { forbiddenPaths: [], maxFileBytes: 1, maxChangedFiles: 3, fastForwardOnly: true }
  const at = (what: string, line: number | null = null) => ({ commit: A, path: 'a/b', line, what })
  const base: HistoryContext = {
    type: 'commit',
    complete: true,
    shallow: false,
    rewinds: false,
    content: NO_CONTENT,
    policy: { fastForwardOnly: true, branch },
  }
  const cases: readonly [string, HistoryContext, string, string][] = [
    ['nothing', base, 'ok', ''],
    [
      'rewritten',
      { ...base, rewinds: true },
      'fast_forward',
      'only fast-forward: merge or rebase onto what is there, and push without force',
    ],
    ['rewritten where it may be', { ...base, rewinds: true, policy: { fastForwardOnly: false, branch } }, 'ok', ''],
    [
      'many files',
      { ...base, content: { ...NO_CONTENT, changedFiles: 4 } },
      'changed_files',
      'more than 3 files are changed (max_changed_files)',
    ],
    ['as many as may', { ...base, content: { ...NO_CONTENT, changedFiles: 3 } }, 'ok', ''],
    [
      'a path',
      { ...base, content: { ...NO_CONTENT, forbiddenPath: at('is a forbidden path') } },
      'forbidden_path',
      'commit aaaaaaaaaa: a/b is a forbidden path (forbidden_paths); leave it as it was',
    ],
    [
      'a large file',
      { ...base, content: { ...NO_CONTENT, largeFile: at('has 2 MB, more than 1') } },
      'large_file',
      'commit aaaaaaaaaa: a/b has 2 MB, more than 1 (max_file_mb); take it out of the commits',
    ],
    [
      'a link',
      { ...base, content: { ...NO_CONTENT, link: at('is a link that leads into .git') } },
      'link',
      'commit aaaaaaaaaa: a/b is a link that leads into .git; such a link may not be pushed',
    ],
    [
      'a secret, before all else',
      { ...base, rewinds: true, content: { ...NO_CONTENT, knownSecret: at('holds the secret NPM_TOKEN', 7) } },
      'known_secret',
      'commit aaaaaaaaaa: a/b:7 holds the secret NPM_TOKEN; take it out of the commits and push again',
    ],
    [
      'the shape of one',
      { ...base, content: { ...NO_CONTENT, likelySecret: at('holds a token of GitHub', 1) } },
      'likely_secret',
      'commit aaaaaaaaaa: a/b:1 holds a token of GitHub; take it out of the commits and push again',
    ],
  ]
  const update = { ref: 'refs/heads/x' as RefName, old: A, new: B }
  for (const [name, fact, rule, sentence] of cases) {
    const [verdict] = decideHistory({ verdicts: [{ allowed: true, update }], facts: new Map([[update.ref, fact]]) })
    t.equal(verdict?.allowed ? 'ok' : verdict?.rule, rule, name)
    if (verdict?.allowed === false) t.equal(verdict.reason, sentence, name)
  }
})

t.test('rules over files are asked of session branches, and forward only where a pattern says so', async (t) => {
  const branch = { forbiddenPaths: ['x'], maxFileBytes: 1, maxChangedFiles: 3, fastForwardOnly: true }
  const settings = { branch, fastForwardOnly: ['main', 'release/*'] }
  t.strictSame(policyOf(grant, 'refs/heads/hangar/s1', settings), { branch, fastForwardOnly: true })
  t.strictSame(policyOf(grant, 'refs/hangar/sessions/s1/checkpoint', settings), {
    branch: null,
    fastForwardOnly: false,
  })
  const forward = (ref: string) => policyOf(write, ref, settings).fastForwardOnly
  t.strictSame(['refs/heads/main', 'refs/heads/release/1', 'refs/tags/main'].map(forward), [true, true, true])
  t.strictSame(['refs/heads/mainx', 'refs/heads/release/1/x', 'refs/notes/main'].map(forward), [false, false, false])
})

t.test('patterns of paths', async (t) => {
  const cases: readonly [string, string, boolean][] = [
    ['.github/workflows/**', '.github/workflows/ci.yml', true],
    ['.github/workflows/**', '.github/workflows/a/b.yml', true],
    ['.github/workflows/**', '.GitHub/Workflows/ci.yml', true],
    ['.github/workflows/**', '.github/workflows', false],
    ['.github/workflows/**', 'x/.github/workflows/ci.yml', false],
    ['.github/workflows/**', 'xgithub/workflows/ci.yml', false],
    ['secrets/', 'secrets/a/b', true],
    ['secrets/', 'secretsx/a', false],
    ['**/*.pem', 'a.pem', true],
    ['**/*.pem', 'x/y/a.pem', true],
    ['**/*.pem', 'x/y/a.pemx', false],
    ['*.pem', 'x/a.pem', false],
    ['a/**/b', 'a/b', true],
    ['a/**/b', 'a/x/y/b', true],
    ['a/**/b', 'ab', false],
    ['a?c', 'abc', true],
    ['a?c', 'a/c', false],
    ['a[b](c)+', 'a[b](c)+', true],
    ['**', 'any/thing', true],
    ['x', 'a\nx', false],
    ['**/x', 'a\nb/x', true],
    ['\u00e4', '\u00c3\u00a4', true],
  ]
  for (const [pattern, path, matches] of cases)
    t.equal(pathMatcher([pattern])(path), matches, `${pattern} ${JSON.stringify(path)}`)
  t.equal(pathMatcher([])('x'), false)
  t.equal(pathMatcher(['a', 'b'])('b'), true)
})

t.test('links that stay in the tree, and those that do not', async (t) => {
  const cases: readonly [string, string, string | null][] = [
    ['a', 'b', null],
    ['a/b', '../c', null],
    ['a/b', '../../c', 'leads outside the repository'],
    ['a', '/etc/passwd', 'leads outside the repository'],
    ['a', '.git/config', 'leads into .git'],
    ['x/a', '../.GIT/hooks', 'leads into .git'],
    ['a', 'b/../../c', 'leads outside the repository'],
    ['a/b', './c/../d', null],
  ]
  for (const [path, target, fault] of cases) t.equal(linkFault(path, target), fault, `${path} -> ${target}`)
})
