/** What pushes bring, judged in quarantine: real pushes, and the sentence that the client shows. */
import { mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { createSecretSearch } from '../../domain/secret-search.ts'
import { type GitServer, gitServerOf } from './git-server.ts'

const VALUE = 'correct-horse/battery+staple'
const GITHUB = `ghp_${'a1B2'.repeat(9)}`
/** Two of hangar's own shape: one that opens something, and an example. */
const LIVE = `hgs_${'c3D4'.repeat(10)}xyz`
const EXAMPLE = `hgs_${'e5F6'.repeat(10)}xyz`
const BRANCH = 'HEAD:refs/heads/hangar/csv-fix'
const CHECKPOINT = 'HEAD:refs/hangar/sessions/csv-fix/checkpoint'

async function start(t: Test, branch = {}): Promise<GitServer & { box: string }> {
  const s = await gitServerOf(t, {
    deps: {
      search: createSecretSearch([{ name: 'NPM_TOKEN', value: VALUE }], (secret) => secret === LIVE),
      settings: {
        fastForwardOnly: ['main'],
        branchOf: async () => ({
          forbiddenPaths: ['.github/workflows/**'],
          maxFileBytes: 40_000,
          maxChangedFiles: 50,
          fastForwardOnly: false,
          ...branch,
        }),
      },
    },
  })
  const work = await s.work('work')
  put(work, { 'a.txt': 'one\n', '.github/workflows/ci.yml': 'on: push\n', 'old.txt': `x\n${GITHUB}\n` })
  await commit(s, work, 'project')
  await s.git(work, 'push', '-q', 'origin', 'main')
  const box = join(work, '..', 'box')
  const cloned = await s.git(work, 'clone', '-q', s.as('hgs_fix'), box)
  if (cloned.code !== 0) throw new Error(cloned.err)
  return { ...s, box }
}

function put(dir: string, files: Readonly<Record<string, string | Buffer>>): void {
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(dir, path)), { recursive: true })
    writeFileSync(join(dir, path), content)
  }
}

async function commit(s: GitServer, dir: string, message: string): Promise<string> {
  await s.git(dir, 'add', '-A')
  await s.git(dir, 'commit', '-q', '-m', message)
  return (await s.git(dir, 'rev-parse', 'HEAD')).out.trim()
}

/** The push is refused, says so, and leaves nothing of the commit. */
async function refused(t: Test, s: GitServer, cwd: string, spec: string, sentence: RegExp): Promise<string> {
  const oid = (await s.git(cwd, 'rev-parse', 'HEAD')).out.trim()
  const pushed = await s.git(cwd, 'push', '-f', 'origin', spec)
  t.not(pushed.code, 0, spec)
  t.match(pushed.err, sentence)
  t.equal((await s.git(s.repo.dir, 'cat-file', '-e', oid)).code, 1, 'no object stays')
  t.strictSame(
    readdirSync(join(s.repo.dir, 'objects')).filter((name) => name.startsWith('incoming-')),
    [],
  )
  return pushed.err
}

async function taken(t: Test, s: GitServer, cwd: string, spec: string, what: string): Promise<void> {
  const pushed = await s.git(cwd, 'push', '-f', 'origin', spec)
  t.equal(pushed.code, 0, `${what}: ${pushed.err}`)
}

t.test('a secret of the server enters no store: commit, path and line are told', async (t) => {
  const s = await start(t)
  put(s.box, { 'src/config.ts': `// one\n// two\nconst token = '${VALUE}'\n` })
  const first = (await commit(s, s.box, 'oops')).slice(0, 10)
  const sentence = new RegExp(`\\(commit ${first}: src/config.ts:3 holds the secret NPM_TOKEN; take it out`)
  const blob = (await s.git(s.box, 'rev-parse', 'HEAD:src/config.ts')).out.trim()
  const said = await refused(t, s, s.box, BRANCH, sentence)
  t.match(said, `remote: hangar: keep out ${blob} commit ${first}: src/config.ts:3 holds the secret NPM_TOKEN`)
  t.notMatch(said, VALUE)
  await refused(t, s, s.box, CHECKPOINT, sentence)
  // Removed again, it is in the history all the same.
  put(s.box, { 'src/config.ts': '// one\n' })
  await commit(s, s.box, 'gone')
  await refused(t, s, s.box, BRANCH, sentence)
  // Encoded, and in a person's push.
  await s.git(s.box, 'reset', '-q', '--hard', 'origin/main')
  put(s.box, { e: `a\n${Buffer.from(`user:${VALUE}`).toString('base64')}\n` })
  await commit(s, s.box, 'encoded')
  await s.git(s.box, 'remote', 'set-url', 'origin', s.as('hgt_write'))
  await refused(t, s, s.box, 'HEAD:refs/heads/topic', /: e:2 holds the secret NPM_TOKEN/)
  await s.git(s.box, 'remote', 'set-url', 'origin', s.as('hgt_sessions'))
  await refused(t, s, s.box, 'HEAD:refs/hangar/incoming/x', /: e:2 holds the secret NPM_TOKEN/)
  // In a message.
  await s.git(s.box, 'reset', '-q', '--hard', 'origin/main')
  await s.git(s.box, 'commit', '-q', '--allow-empty', '-m', `use ${VALUE}`)
  await refused(
    t,
    s,
    s.box,
    'HEAD:refs/hangar/incoming/x',
    /\(commit [0-9a-f]{10} holds the secret NPM_TOKEN in its message/,
  )
})

t.test('it is found in large pushes, in binary files, across chunks, and in merges', async (t) => {
  const s = await start(t, { maxFileBytes: 100_000_000, maxChangedFiles: 5_000 })
  const big = Buffer.alloc(9_000_000, 'abcdefg\n')
  for (const at of [65_530, 4_194_300, 8_999_000]) {
    const bytes = Buffer.from(big)
    bytes.write(VALUE, at)
    bytes[3] = 0
    put(s.box, {
      'data/big.bin': bytes,
      ...Object.fromEntries(Array.from({ length: 200 }, (_, n) => [`many/${n}`, `${at} ${n}`])),
    })
    await commit(s, s.box, 'big')
    const sentence = new RegExp(`data/big.bin:${bytes.subarray(0, at).filter((byte) => byte === 10).length + 1} holds`)
    await refused(t, s, s.box, BRANCH, sentence)
    await s.git(s.box, 'reset', '-q', '--hard', 'origin/main')
  }
  await s.git(s.box, 'checkout', '-q', '-b', 'side')
  put(s.box, { 'a.txt': 'side\n' })
  await commit(s, s.box, 'side')
  await s.git(s.box, 'checkout', '-q', '--detach', 'origin/main')
  put(s.box, { 'a.txt': 'other\n' })
  await commit(s, s.box, 'other')
  await s.git(s.box, 'merge', '-q', 'side')
  put(s.box, { 'a.txt': `merged\n${VALUE}\n` })
  await commit(s, s.box, 'merge')
  await refused(t, s, s.box, BRANCH, /a.txt:2 holds the secret NPM_TOKEN/)
})

t.test('of a mixed push nothing comes in when it brings a secret', async (t) => {
  const s = await start(t)
  put(s.box, { x: 'fine\n' })
  const good = await commit(s, s.box, 'good')
  put(s.box, { y: VALUE })
  await commit(s, s.box, 'bad')
  await refused(t, s, s.box, `HEAD:refs/heads/hangar/csv-fix`, /y:1 holds/)
  const both = await s.git(s.box, 'push', 'origin', `${good}:refs/heads/hangar/csv-fix`, CHECKPOINT)
  t.equal(both.err.match(/y:1 holds the secret NPM_TOKEN; take/g)?.length, 2, both.err)
  t.equal(await s.ref('refs/heads/hangar/csv-fix'), null)
})

t.test("a sandbox's branch keeps to its environment, and its checkpoint is taken all the same", async (t) => {
  const s = await start(t)
  const cases: readonly [string, () => void, RegExp][] = [
    [
      'a forbidden path',
      () => put(s.box, { '.github/workflows/evil.yml': 'x' }),
      /commit [0-9a-f]{10}: .github\/workflows\/evil.yml is a forbidden path \(forbidden_paths\); leave it as it was/,
    ],
    ['one that goes away', () => rmSync(join(s.box, '.github/workflows/ci.yml')), /ci.yml is a forbidden path/],
    [
      'a large file',
      () => put(s.box, { large: Buffer.alloc(50_000, 1) }),
      /large has 0 MB, more than 0 \(max_file_mb\)/,
    ],
    [
      'a link out of the tree',
      () => symlinkSync('../../etc/passwd', join(s.box, 'out')),
      /out is a link that leads outside the repository; such a link may not be pushed/,
    ],
    ['a link into .git', () => symlinkSync('.git/config', join(s.box, 'in')), /in is a link that leads into .git/],
    [
      'the shape of a secret',
      () => put(s.box, { 'test/fixture': `\n\n${GITHUB.replace('a', 'b')}\n` }),
      /test\/fixture:3 holds a token of GitHub; take it out/,
    ],
    [
      'too many files',
      () => put(s.box, Object.fromEntries(Array.from({ length: 51 }, (_, n) => [`many/${n}`, `${n}`]))),
      /more than 50 files are changed \(max_changed_files\)/,
    ],
  ]
  for (const [name, change, sentence] of cases) {
    await s.git(s.box, 'reset', '-q', '--hard', 'origin/main')
    await s.git(s.box, 'clean', '-qfdx')
    change()
    await commit(s, s.box, name)
    await refused(t, s, s.box, BRANCH, sentence)
    await taken(t, s, s.box, CHECKPOINT, name)
    // What came in by a checkpoint is no way round.
    const again = await s.git(s.box, 'push', '-f', 'origin', BRANCH)
    t.match(again.err, sentence, `${name}, by its id`)
    const followed = await s.git(s.box, 'commit', '-q', '--allow-empty', '-m', 'on top')
    t.equal(followed.code, 0)
    t.match((await s.git(s.box, 'push', '-f', 'origin', BRANCH)).err, sentence, `${name}, below another commit`)
  }
})

t.test('what the project has already is not judged, nor what people push', async (t) => {
  const s = await start(t)
  await s.git(s.box, 'mv', 'old.txt', 'moved.txt')
  await commit(s, s.box, 'moved')
  await taken(t, s, s.box, BRANCH, 'moved')
  put(s.box, { 'moved.txt': `changed\n${GITHUB}\n` })
  await commit(s, s.box, 'changed')
  await taken(t, s, s.box, BRANCH, 'a line beside it changed')
  put(s.box, { '.github/workflows/ci.yml': 'on: pull_request\n', shape: GITHUB })
  symlinkSync('/etc', join(s.box, 'etc'))
  await commit(s, s.box, 'a person does')
  await taken(t, s, s.box, `+HEAD:refs/hangar/sessions/csv-fix/checkpoint`, 'kept')
  await s.git(s.box, 'remote', 'set-url', 'origin', s.as('hgt_write'))
  await taken(t, s, s.box, 'HEAD:refs/heads/topic', 'by a person')
  // And merged into the session it is the project's.
  await s.git(s.box, 'remote', 'set-url', 'origin', s.as('hgs_fix'))
  put(s.box, { more: 'x' })
  await commit(s, s.box, 'on top')
  await taken(t, s, s.box, BRANCH, 'what came from a branch')
})

t.test('what a person handed in uncommitted may be committed as it is', async (t) => {
  const s = await start(t)
  put(s.box, { '.github/workflows/ci.yml': 'on: pull_request\n' })
  const context = await commit(s, s.box, 'as a checkpoint has it')
  await s.git(s.repo.dir, 'fetch', '-q', s.box, `HEAD:refs/hangar/sessions/csv-fix/context`)
  await s.git(s.box, 'reset', '-q', '--soft', 'origin/main')
  const own = await commit(s, s.box, 'the agent commits it')
  t.not(own, context)
  await taken(t, s, s.box, BRANCH, 'handed in')
  put(s.box, { '.github/workflows/ci.yml': 'on: other\n' })
  await commit(s, s.box, 'and then changes it')
  await refused(t, s, s.box, BRANCH, /ci.yml is a forbidden path/)
})

t.test('forward only, where it is asked for', async (t) => {
  const s = await start(t, { fastForwardOnly: true })
  put(s.box, { x: '1' })
  await commit(s, s.box, 'one')
  await taken(t, s, s.box, BRANCH, 'new')
  await s.git(s.box, 'commit', '-q', '--amend', '-m', 'rewritten')
  await refused(
    t,
    s,
    s.box,
    BRANCH,
    /\(only fast-forward: merge or rebase onto what is there, and push without force\)/,
  )
  await taken(t, s, s.box, CHECKPOINT, 'a checkpoint is always a new one')
  const work = join(s.box, '..', 'work')
  await s.git(work, 'commit', '-q', '--amend', '-m', 'rewritten')
  await refused(t, s, work, '+HEAD:refs/heads/main', /only fast-forward/)
  await taken(t, s, work, '+HEAD:refs/heads/other', 'where it is not asked')
})

t.test('a push of more objects than the cap is refused before they are read', async (t) => {
  const s = await gitServerOf(t, { limits: { maxPushObjects: 10 } })
  const work = await s.work('work')
  await taken(t, s, work, 'HEAD:refs/heads/main', 'few')
  put(work, Object.fromEntries(Array.from({ length: 20 }, (_, n) => [`many/${n}`, `${n}`])))
  await commit(s, work, 'many')
  await refused(t, s, work, 'HEAD:refs/heads/main', /the push holds 23 objects, more than the 10 that are taken/)
})

t.test("what has the shape of hangar's own tokens is a secret of the server where it opens something", async (t) => {
  const s = await start(t)
  put(s.box, { 'example.txt': `${EXAMPLE}\n` })
  await commit(s, s.box, 'an example')
  await refused(t, s, s.box, BRANCH, /example\.txt:1 holds a grant of hangar/)
  await taken(t, s, s.box, CHECKPOINT, 'an example is no secret')
  put(s.box, { 'example.txt': `${EXAMPLE}\n${LIVE}\n` })
  await commit(s, s.box, 'a live one')
  await refused(t, s, s.box, CHECKPOINT, /example\.txt:\d holds a grant of hangar/)
})
