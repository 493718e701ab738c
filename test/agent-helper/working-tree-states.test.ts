/** Every state a checkout can be in: carried as one commit, pushed, and restored elsewhere exactly, by hangar-agent and by plain git. */
import { type SpawnSyncReturns, spawnSync } from 'node:child_process'
import {
  cpSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { toolchains } from './toolchains.ts'

const helper = fileURLToPath(new URL('../../../agent-helper/hangar-agent', import.meta.url))
const root = mkdtempSync(join(tmpdir(), 'hangar-states-'))
t.setTimeout(2_000_000)
t.teardown(() => rmSync(root, { recursive: true, force: true }))

/** A user's configuration that changes what careless git commands do. */
const HOSTILE_CONFIG = `[core]
	autocrlf = true
	fileMode = false
	symlinks = false
	quotePath = false
	fsmonitor = /bin/false
	untrackedCache = true
	hooksPath = HOOKS
	excludesFile = EXCLUDES
	whitespace = trailing-space,cr-at-eol
	ignoreStat = true
	safecrlf = true
[diff]
	noprefix = true
	external = /bin/false
	ignoreSubmodules = all
[diff "bad"]
	textconv = /bin/false
[apply]
	whitespace = error
[commit]
	gpgSign = true
[user]
	signingKey = none
[status]
	showUntrackedFiles = no
[index]
	version = 4
[color]
	ui = always
[submodule]
	recurse = true
[user]
	name = n
	email = e@example.org
`
const hooks = join(root, 'hooks')
mkdirSync(hooks)
for (const name of [
  'pre-commit',
  'post-checkout',
  'post-index-change',
  'reference-transaction',
  'pre-push',
  'fsmonitor-watchman',
])
  writeFileSync(join(hooks, name), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
const excludesFile = join(root, 'user-excludes')
writeFileSync(excludesFile, '*.user-ignored\n')
const hostile = HOSTILE_CONFIG.replace('HOOKS', hooks).replace('EXCLUDES', excludesFile)
const home = join(root, 'home')
mkdirSync(home)
writeFileSync(
  join(home, '.gitconfig'),
  '[user]\n\tname = n\n\temail = e@example.org\n[init]\n\tdefaultBranch = main\n[protocol "file"]\n\tallow = always\n',
)
const hostileHome = join(root, 'hostile-home')
mkdirSync(hostileHome)
writeFileSync(join(hostileHome, '.gitconfig'), hostile)

const environment = { PATH: process.env['PATH'] ?? '', HOME: home, GIT_CONFIG_NOSYSTEM: '1', LC_ALL: 'C' }

function run(cwd: string, argv: readonly string[], env: Record<string, string> = {}): SpawnSyncReturns<Buffer> {
  const [program = '', ...args] = argv
  return spawnSync(program, args, { cwd, env: { ...environment, ...env }, timeout: 60_000, maxBuffer: 1 << 26 })
}

function must(cwd: string, argv: readonly string[], env: Record<string, string> = {}): string {
  const result = run(cwd, argv, env)
  if (result.status !== 0) throw new Error(`${argv.join(' ')}: ${result.status}\n${result.stderr}${result.stdout}`)
  return result.stdout.toString('latin1')
}

const sh = (cwd: string, script: string, env: Record<string, string> = {}) => must(cwd, ['bash', '-ec', script], env)

const base = join(root, 'base')
mkdirSync(base)
sh(
  base,
  `git init -q -b main; mkdir -p dir/deep; printf 'one\\ntwo\\nthree\\n' > a; echo b > b; echo c > c; echo moved > old; printf '#!/bin/sh\\n' > tool; chmod +x tool
   printf 'bin\\0\\001\\377' > bin; ln -s a link; echo d > dir/d; echo e > dir/deep/e; : > empty; printf 'x\\r\\ny\\r\\n' > crlf; printf 'no end' > noend
   printf '*.ignored\\nbuild/\\n' > .gitignore; git add -A; git commit -qm base; echo two >> b; git commit -qam second`,
)

/** A fresh repository, to be copied. */
const empty = join(root, 'empty')
mkdirSync(empty)
sh(empty, 'git init -q; git config receive.shallowUpdate true')

interface State {
  readonly name: string
  readonly script: string
  /** Paths that do not travel, each for a reason that a row's warning names. */
  readonly leftOut?: readonly string[]
  readonly warning?: RegExp
  readonly unborn?: true
  /** Left out because it is not on this disk: on another it is. */
  readonly sparse?: true
  /** Why plain `git stash apply --index` cannot be compared. */
  readonly noStash?: string
  readonly from?: 'sub' | 'worktree' | 'shallow'
  /** Whether the index comes back as it was; an unmerged or intent-to-add one cannot. */
  readonly index?: 'other'
}

const STATES: readonly State[] = [
  { name: 'nothing changed', script: ':' },
  { name: 'staged', script: 'echo s >> a; git add a' },
  { name: 'unstaged', script: 'echo u >> a' },
  { name: 'staged, then changed again', script: 'echo s >> a; git add a; echo u >> a' },
  { name: 'staged, then put back on disk', script: 'cp -p a ../keep-a; echo s >> a; git add a; mv ../keep-a a' },
  { name: 'untracked', script: 'echo n > new; mkdir -p n/m; echo o > n/m/o' },
  { name: 'staged as new', script: 'echo n > new; git add new' },
  { name: 'staged as new, deleted on disk', script: 'echo n > new; git add new; rm new' },
  { name: 'deleted, not staged', script: 'rm c dir/d' },
  { name: 'deleted and staged', script: 'git rm -q c dir/deep/e' },
  {
    name: 'removed from the index, kept on disk',
    script: 'git rm -q --cached c',
    noStash: 'git 2.39 sees the file in the way',
  },
  { name: 'renamed', script: 'git mv old renamed' },
  { name: 'renamed by hand, not staged', script: 'mv old renamed; echo x >> renamed' },
  { name: 'mode changed, not staged', script: 'chmod +x a; chmod -x tool' },
  { name: 'mode changed and staged', script: 'chmod +x a; git add a; chmod -x tool' },
  {
    name: 'a link changed, added, left dangling, made a file',
    script: 'ln -sfn b link; ln -s nowhere dangling; rm c; ln -s a c; ln -s dir dirlink',
  },
  { name: 'a link became a file', script: 'rm link; echo plain > link' },
  { name: 'binary', script: "printf 'x\\0\\200\\n' > bin; head -c 70000 /dev/urandom > newbin" },
  { name: 'empty files', script: ': > a; : > newempty; echo full > empty; : > stagedempty; git add stagedempty' },
  {
    name: 'CRLF and mixed line ends',
    script: "printf 'x\\r\\nchanged\\r\\n' > crlf; printf 'm\\r\\nn\\n' > mixed; printf 'q\\r\\n' > st; git add st",
  },
  { name: 'no final newline', script: "printf 'no end now' > noend; printf one > a; printf z > newnoend" },
  { name: 'a name that is no UTF-8', script: "printf x > $'l\\351g\\377'; printf y > $'s\\376'; git add $'s\\376'" },
  {
    name: 'quoted, spaced, tabbed and newline names',
    script: `printf x > 'q"uo te'; printf y > $'tab\\tand\\nnewline'; printf z > 'back\\101slash'; printf w > "apo'strophe"; printf v > $'st\\n"aged\\\\'; git add $'st\\n"aged\\\\'; printf ' ' > ' lead and trail '`,
  },
  {
    name: 'leading dashes, colons, globs and magic',
    script:
      "printf x > ./-rf; printf x > ./--help; printf y > ':(top)a'; printf z > '*'; printf w > '[a]'; printf x > '!bang'; printf x > '#hash'; git add -- ./-rf",
  },
  {
    name: 'non-ASCII names',
    script: "printf x > 'Größe — 1.md'; mkdir 'ü dir'; printf y > 'ü dir/日本'; git add 'ü dir'",
  },
  { name: 'a file became a directory', script: 'rm b; mkdir b; echo in > b/in; echo also > b/also' },
  { name: 'a file became a directory, staged', script: 'rm b; mkdir b; echo in > b/in; git add -A b' },
  { name: 'a directory became a file', script: 'rm -r dir; echo file > dir' },
  { name: 'a directory became a link', script: 'rm -r dir; ln -s a dir; git add -A dir' },
  {
    name: 'nested directories',
    script: 'mkdir -p 1/2/3/4/5; echo x > 1/2/3/4/5/f; echo y > dir/deep/new; mkdir -p only/empty/dirs',
    leftOut: ['only'],
  },
  {
    name: 'ignored files are left alone',
    script: 'echo i > x.ignored; mkdir build; echo o > build/o; echo t > tracked.ignored; git add -f tracked.ignored',
    leftOut: ['x.ignored', 'build'],
  },
  {
    name: 'ignored by info/exclude',
    script: 'echo /secret >> .git/info/exclude; echo s > secret',
    leftOut: ['secret'],
  },
  {
    name: 'an untracked .gitignore',
    script: "mkdir n; echo '*' > n/.gitignore; echo x > n/x; echo '!c' > dir/.gitignore",
    leftOut: ['n'],
  },
  { name: 'detached HEAD', script: 'git checkout -q --detach HEAD^; echo d >> a; echo n > new' },
  {
    name: 'a branch without upstream and unpushed commits',
    script: 'git checkout -q -b feat/x; echo l >> a; git commit -qam local; echo m >> a',
  },
  {
    name: 'unborn, with staged and untracked files',
    script: 'rm -rf .git; git init -q -b trunk; git add a dir tool; echo more >> a',
    unborn: true,
    noStash: 'there is no commit to apply to',
  },
  {
    name: 'unborn and empty',
    script: 'rm -rf .git ./* .gitignore; git init -q -b trunk',
    unborn: true,
    noStash: 'there is no commit to apply to',
  },
  {
    name: 'an orphan branch',
    script: 'git checkout -q --orphan fresh; echo o >> a',
    unborn: true,
    noStash: 'there is no commit to apply to',
  },
  { name: 'a linked worktree', script: 'echo w >> a; git add a; echo x > new', from: 'worktree' },
  { name: 'called in a sub-directory', script: 'echo w >> a; echo s > dir/deep/new; rm c', from: 'sub' },
  { name: 'a shallow clone', script: 'echo w >> a; echo s > new', from: 'shallow', noStash: 'covered by the others' },
  {
    name: 'intent to add',
    script:
      'echo n > new; git add -N new; echo i > forced.ignored; git add -f -N forced.ignored; : > none; git add -N none',
    index: 'other',
  },
  { name: 'assume-unchanged edits', script: 'git update-index --assume-unchanged a b; echo e >> a' },
  {
    name: 'skip-worktree with and without its file',
    script: 'git update-index --skip-worktree a c; echo e >> a; rm c',
    noStash: 'c is not missing there',
    leftOut: ['c'],
    sparse: true,
  },
  {
    name: 'sparse checkout',
    script: 'git sparse-checkout set --cone dir/deep; echo e >> dir/deep/e; echo n > dir/deep/n',
    leftOut: ['dir/d'],
    sparse: true,
    noStash: 'the clone is not sparse',
  },
  {
    name: 'sparse index',
    script:
      'mkdir far; echo f > far/f; git add far; git commit -qm far; git sparse-checkout set --cone --sparse-index dir/deep; echo e >> dir/deep/e',
    leftOut: ['far'],
    sparse: true,
    noStash: 'the clone is not sparse',
  },
  {
    name: 'split index',
    script:
      'git update-index --split-index; echo s >> a; git add a; echo u >> b; git config core.splitIndex true; echo t > new; git add new',
  },
  {
    name: 'index version 4, untracked cache',
    script:
      'git update-index --index-version 4 --untracked-cache; git status -s >/dev/null; echo s >> a; git add a; echo t > new',
  },
  {
    name: 'a racily clean edit of the same size',
    script: "printf 'one\\ntwo\\nthrEE\\n' > a; git add a; printf 'one\\ntwo\\nthree\\n' > a; printf 'C\\n' > c",
  },
  {
    name: 'a merge in conflict',
    script: 'git checkout -q -b o HEAD^; echo other > b; git commit -qam o; git merge -q main || true; echo n > new',
    warning: /a merge is not finished.*: b$/m,
    index: 'other',
  },
  {
    name: 'a merge under way, without conflict',
    script: 'git checkout -q -b o HEAD^; echo other > c; git commit -qam o; git merge -q --no-commit main',
    warning: /a merge is under way/,
  },
  {
    name: 'line ends by .gitattributes',
    script:
      "printf '*.txt text eol=crlf\\n*.sh text eol=lf\\n' > .gitattributes; git add .gitattributes; git commit -qm attr; printf 'w\\r\\n' > w.txt; git add w.txt; printf 'v\\r\\n' > v.txt; echo l > l.sh",
  },
  {
    name: 'pipes are left out',
    script: 'mkfifo pipe; mkfifo x.ignored; echo n > new',
    leftOut: ['pipe', 'x.ignored'],
    warning: /pipes, sockets or devices: pipe$/m,
  },
  {
    name: 'a nested repository is left out',
    script:
      "git init -q n1; (cd n1; echo x > x; git add x; git commit -qm x); mkdir -p 'd d'; cp -r n1 'd d/n2'; echo ok > 'd d/ok'",
    leftOut: ['n1', 'd d/n2'],
    warning: /repositories of their own: d d\/n2\/, n1\/$/m,
  },
  {
    name: 'a clean submodule travels as its commit',
    script:
      'git init -q ../SUB; (cd ../SUB; git commit -q --allow-empty -m s); git submodule --quiet add ../SUB sub; git commit -qm sub; echo n > new',
    leftOut: ['sub'],
    noStash: 'the submodule is not there',
  },
  {
    name: 'a moved submodule stays as recorded',
    script:
      'git init -q ../SUB2; (cd ../SUB2; git commit -q --allow-empty -m s); git submodule --quiet add ../SUB2 sub; git commit -qm sub; (cd sub; git commit -q --allow-empty -m t)',
    leftOut: ['sub'],
    warning: /submodules .*: sub$/m,
    noStash: 'the submodule is not there',
  },
  {
    name: 'LFS files travel as they are',
    script:
      "echo '*.psd filter=lfs -text' > .gitattributes; echo pointer > p.psd; git -c filter.lfs.clean=cat add .; git -c filter.lfs.clean=cat commit -qm lfs; echo raw > q.psd",
    warning: /plain files: q\.psd[\s\S]*pointers: p\.psd/,
  },
]

interface Entry {
  readonly kind: string
  readonly data: string
}

/** Each path (latin1) with what it is. */
function picture(top: string, leftOut: readonly string[] = []): Record<string, Entry> {
  const found: Record<string, Entry> = {}
  const walk = (at: string) => {
    const dir = Buffer.from(at === '' ? top : `${top}/${at}`, 'latin1')
    for (const name of readdirSync(dir, { encoding: 'buffer' }).map((bytes) => bytes.toString('latin1'))) {
      const path = at === '' ? name : `${at}/${name}`
      if (path === '.git' || leftOut.includes(path)) continue
      const full = Buffer.from(`${top}/${path}`, 'latin1')
      const stat = lstatSync(full)
      if (stat.isDirectory()) walk(path)
      else if (stat.isSymbolicLink()) found[path] = { kind: 'link', data: readlinkSync(full, 'latin1') }
      else found[path] = { kind: stat.mode & 0o100 ? 'program' : 'file', data: readFileSync(full, 'latin1') }
    }
  }
  walk('')
  return found
}

/** The repository's own files, but times: nothing of them may change. */
function repositoryFiles(top: string): Record<string, string> {
  const pointer = join(top, '.git')
  if (lstatSync(pointer).isFile()) return repositoryFiles(join(top, '..', 'a'))
  const files: Record<string, string> = {}
  for (const name of readdirSync(pointer, { recursive: true, encoding: 'utf8' }))
    if (lstatSync(join(pointer, name)).isFile()) files[name] = readFileSync(join(pointer, name), 'latin1')
  return files
}

const staged = (top: string) =>
  must(top, ['git', '-c', 'core.fsmonitor=false', '-c', 'index.sparse=false', 'ls-files', '-s', '-z'], {
    GIT_OPTIONAL_LOCKS: '0',
  })

let rows = 0

function checkout(state: State): { top: string; cwd: string } {
  const dir = join(root, `row-${++rows}`)
  const main = join(dir, 'a')
  mkdirSync(dir)
  must(root, ['cp', '-a', base, main])
  let top = main
  if (state.from === 'worktree') {
    top = join(dir, 'linked')
    must(main, ['git', 'worktree', 'add', '-q', '-b', 'linked', top])
  } else if (state.from === 'shallow') {
    top = join(dir, 'shallow')
    must(main, ['git', 'clone', '-q', '--depth', '1', `file://${main}`, top])
  }
  sh(top, `git update-index -q --refresh || true; ${state.script}`)
  return { top, cwd: state.from === 'sub' ? join(top, 'dir', 'deep') : top }
}

function snapshot(cwd: string, objects: string, args: readonly string[] = [], env: Record<string, string> = {}) {
  const result = run(cwd, ['sh', helper, 'snapshot', '--repo', '.', '--objects', objects, ...args], env)
  const lines = result.stdout.toString('latin1').split('\n')
  const value = (key: string) => lines.find((line) => line.startsWith(`${key} `))?.slice(key.length + 1) ?? ''
  return {
    status: result.status,
    err: result.stderr.toString('latin1'),
    text: lines.join('\n'),
    commit: value('commit'),
    head: value('head'),
    lines,
  }
}

/** Pushes the commit as a client does, and restores it in a fresh repository. */
function carry(top: string, objects: string, commit: string): string {
  const there = `${objects}-there`
  cpSync(empty, there, { recursive: true })
  const store = lstatSync(join(top, '.git')).isFile()
    ? join(top, '..', 'a', '.git', 'objects')
    : join(top, '.git', 'objects')
  const env = {
    GIT_OBJECT_DIRECTORY: objects,
    GIT_ALTERNATE_OBJECT_DIRECTORIES: store,
  }
  must(
    top,
    [
      'git',
      '-c',
      'core.hooksPath=/dev/null',
      '-c',
      'core.fsmonitor=false',
      '-c',
      'push.recurseSubmodules=no',
      'push',
      '-q',
      there,
      `${commit}:refs/hangar/incoming/x`,
    ],
    env,
  )
  must(there, ['sh', helper, 'restore', '--repo', '.', '--commit', commit, '--branch', 'hangar/x'])
  return there
}

for (const mood of ['plain', 'surprising'] as const)
  t.test(`states of a checkout, ${mood} configuration`, async (t) => {
    const env = mood === 'plain' ? {} : { HOME: hostileHome }
    // Where HEAD is, and what is left out, no setting touches: those rows are tried once.
    const states = STATES.filter(
      (state) => mood === 'plain' || !(state.from || state.unborn || state.sparse || state.warning),
    )
    for (const state of states) {
      await t.test(state.name, async (t) => {
        const { top, cwd } = checkout(state)
        if (mood === 'surprising') {
          const config = must(top, ['git', 'rev-parse', '--git-common-dir']).trim()
          const file = join(config.startsWith('/') ? '' : top, config, 'config')
          writeFileSync(file, `${readFileSync(file, 'utf8')}${hostile}`)
        }
        const before = { files: repositoryFiles(top), picture: picture(top, state.leftOut), index: staged(top) }
        const objects = `${top}-objects`
        const shot = snapshot(cwd, objects, [], env)
        t.equal(shot.status, 0, shot.err)
        t.same(repositoryFiles(top), before.files, 'the repository is untouched')
        if (state.warning) t.match(shot.text, state.warning)
        else t.notMatch(shot.text, /^warning/m)
        const there = carry(top, objects, shot.commit)
        t.same(picture(there, state.sparse ? state.leftOut : []), before.picture, 'the work tree')
        if (state.index === undefined) t.equal(staged(there), before.index, 'the index')
        const head = run(top, ['git', 'rev-parse', '-q', '--verify', 'HEAD'])
        t.same(run(there, ['git', 'rev-parse', '-q', '--verify', 'HEAD']).stdout, head.stdout, 'HEAD')
        t.equal(must(there, ['git', 'symbolic-ref', 'HEAD']).trim(), 'refs/heads/hangar/x')
        t.equal(shot.lines.includes('unborn'), state.unborn === true)
        if (mood === 'plain' && state.noStash === undefined) {
          const clone = `${objects}-stash`
          cpSync(join(there, '.git'), join(clone, '.git'), { recursive: true })
          rmSync(join(clone, '.git', 'index'))
          must(clone, ['git', 'checkout', '-q', '-f', '--detach', `${shot.commit}^1`])
          must(clone, ['git', 'stash', 'apply', '-q', '--index', shot.commit])
          t.same(picture(clone), before.picture, 'plain git gives the same work tree')
          if (state.index === undefined) t.equal(staged(clone), before.index, 'and the same index')
        }
        rmSync(join(top, '..'), { recursive: true, force: true })
      })
    }
  })

t.test('what cannot be carried is refused on the way in, by name', async (t) => {
  const refusals: readonly (State & { readonly args?: readonly string[]; readonly sentence: RegExp })[] = [
    {
      name: 'an unfinished merge',
      script: 'git checkout -q -b o HEAD^; echo other > b; git commit -qam o; git merge -q main || true',
      sentence: /a merge is not finished: b: finish it/,
    },
    {
      name: 'nested repositories',
      script:
        'for i in 01 02 03 04 05 06 07 08 09 10 11 12; do git init -q n$i; (cd n$i; git commit -q --allow-empty -m x); done',
      sentence: /repositories of their own: n01\/, .*n10\/ and 2 more: move/,
    },
    {
      name: 'too many bytes',
      script: 'mkdir big; head -c 3000000 /dev/zero > big/one; echo x > small',
      args: ['--max-bytes', '1000000'],
      sentence: /too much is untracked \(2 files, 2\.9 MB; .*big\/one \(2\.9 MB\)/,
    },
    {
      name: 'too many files',
      script: 'mkdir many; for i in 1 2 3 4 5 6 7; do echo $i > many/$i; done; echo x > small',
      args: ['--max-files', '5'],
      sentence: /too much is untracked \(8 files.*many\/ \(7 files\)/,
    },
    {
      name: 'a dirty submodule',
      script:
        'git init -q ../SUB3; (cd ../SUB3; echo x > x; git add x; git commit -qm s); git submodule --quiet add ../SUB3 sub; git commit -qm sub; echo y > sub/x',
      sentence: /submodules with changes or at another commit than recorded: sub: commit/,
    },
    {
      name: 'changed LFS files',
      script:
        "echo '*.psd filter=lfs -text' > .gitattributes; git add .; git commit -qm lfs; echo raw > q.psd; echo raw > 's p.psd'; git -c filter.lfs.clean=cat add 's p.psd'",
      sentence: /Git LFS are changed, .*: q\.psd, s p\.psd: commit/,
    },
    {
      name: 'a required filter that cannot run',
      script:
        "git config filter.crypt.clean /no/such/tool; git config filter.crypt.required true; echo 'a filter=crypt' > .gitattributes; echo new >> a",
      sentence: /the filter 'crypt' that a needs cannot run/,
    },
  ]
  for (const state of refusals) {
    await t.test(state.name, async (t) => {
      const { top, cwd } = checkout(state)
      const before = repositoryFiles(top)
      const shot = snapshot(cwd, `${top}-objects`, ['--strict', ...(state.args ?? [])])
      t.equal(shot.status, 5)
      t.match(shot.err, state.sentence)
      t.equal(shot.text, '')
      t.same(repositoryFiles(top), before)
      const out = snapshot(cwd, `${top}-objects`, state.args ?? [])
      t.equal(out.status, 0, out.err)
      t.match(out.text, /^warning /m, 'on the way out it is a warning')
      carry(top, `${top}-objects`, out.commit)
    })
  }
})

t.test('a bare repository and a plain directory are refused with a sentence', async (t) => {
  const bare = join(root, 'bare')
  must(root, ['git', 'init', '-q', '--bare', bare])
  t.match(snapshot(bare, join(root, 'o')).err, /bare repository/)
  const plain = join(root, 'plain')
  mkdirSync(plain)
  const shot = snapshot(plain, join(root, 'o'))
  t.match(shot, { status: 1, err: /not the work tree of a git repository/ })
})

t.test("the user's own excludes are honoured when they are named", async (t) => {
  const { top } = checkout({ name: '', script: 'echo x > x.user-ignored; echo y > y' })
  const shot = snapshot(top, `${top}-objects`, ['--excludes', excludesFile])
  const there = carry(top, `${top}-objects`, shot.commit)
  t.same(picture(there), picture(top, ['x.user-ignored']))
})

t.test('a kept index makes the next snapshot the same commit tree, also with its objects gone', async (t) => {
  const { top } = checkout({ name: '', script: 'echo u >> a; echo n > new; echo m > other; : > nothing' })
  const cache = `${top}-cache`
  const trees = (commit: string, objects: string) =>
    must(top, ['git', 'rev-parse', `${commit}^{tree}`, `${commit}^2^{tree}`, `${commit}^3^{tree}`], {
      GIT_ALTERNATE_OBJECT_DIRECTORIES: objects,
    })
  const args = ['--index-cache', cache]
  const first = snapshot(top, `${top}-o1`, args)
  const warm = snapshot(top, `${top}-o1`, args)
  t.equal(trees(warm.commit, `${top}-o1`), trees(first.commit, `${top}-o1`))
  const elsewhere = snapshot(top, `${top}-o2`, args)
  t.equal(trees(elsewhere.commit, `${top}-o2`), trees(first.commit, `${top}-o1`))
  sh(top, 'rm new; echo changed > other; echo v > a; git add a; echo w >> b')
  const changed = snapshot(top, `${top}-o2`, args)
  const cold = snapshot(top, `${top}-o3`)
  t.equal(trees(changed.commit, `${top}-o2`), trees(cold.commit, `${top}-o3`))
  t.not(trees(changed.commit, `${top}-o2`), trees(first.commit, `${top}-o1`))
})

t.test('the parent of an unborn checkpoint is one fixed commit', async (t) => {
  const { top } = checkout({ name: '', script: 'rm -rf .git; git init -q' })
  const shot = snapshot(top, `${top}-objects`)
  t.equal(shot.head, '4f16da4ccd063e4a1b9518d1152b8e77df2aa266')
  t.equal(
    must(top, ['git', 'rev-parse', `${shot.commit}^1`], { GIT_ALTERNATE_OBJECT_DIRECTORIES: `${top}-objects` }).trim(),
    shot.head,
  )
})

t.test('the script gives the same under every shell and awk there is', async (t) => {
  const script =
    "echo s >> a; git add a; printf x > $'odd\\n\"name\\\\101'; rm c; git rm -q b; mkdir 'n n'; echo u > 'n n/u'; git update-index --assume-unchanged dir/d; echo e >> dir/d; git add -N 'n n/u'; git init -q nested; (cd nested; git commit -q --allow-empty -m x)"
  const { top } = checkout({ name: '', script })
  const results: string[] = []
  for (const { name, path } of toolchains(root)) {
    const objects = `${top}-objects-${name.replaceAll(' ', '-')}`
    const shot = snapshot(top, objects, ['--max-files', '100'], { PATH: path })
    t.equal(shot.status, 0, `${name} ${shot.err}`)
    const tree = must(
      top,
      ['git', 'rev-parse', `${shot.commit}^{tree}`, `${shot.commit}^2^{tree}`, `${shot.commit}^3^{tree}`],
      { GIT_ALTERNATE_OBJECT_DIRECTORIES: objects },
    )
    results.push(`${tree}${shot.text.replace(/^commit .*$/m, '')}`)
  }
  t.equal(new Set(results).size, 1, results.join('\n'))
})
