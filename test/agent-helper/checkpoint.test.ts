/** A sandbox's checkout: set up from a gateway, checkpointed whatever happens to its .git, set up again elsewhere. */
import { spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const helper = fileURLToPath(new URL('../../../agent-helper/hangar-agent', import.meta.url))
const root = mkdtempSync(join(tmpdir(), 'hangar-checkpoint-'))
t.setTimeout(2_000_000)
t.teardown(() => rmSync(root, { recursive: true, force: true }))
const store = join(root, 'git', 'acme', 'app.git')
mkdirSync(store, { recursive: true })

function sh(cwd: string, script: string, env: Record<string, string> = {}): string {
  const result = spawnSync('bash', ['-ec', script], {
    cwd,
    env: { PATH: process.env['PATH'] ?? '', HOME: root, GIT_CONFIG_NOSYSTEM: '1', ...ident, ...env },
  })
  if (result.status !== 0) throw new Error(`${script}: ${result.stderr}${result.stdout}`)
  return result.stdout.toString()
}
const ident = {
  GIT_AUTHOR_NAME: 'a',
  GIT_AUTHOR_EMAIL: 'a@example.org',
  GIT_COMMITTER_NAME: 'a',
  GIT_COMMITTER_EMAIL: 'a@example.org',
}

sh(
  root,
  `git init -q --bare -b main ${store}; git init -q -b main seed; cd seed; mkdir d; echo a > a; echo b > d/b; echo '*.log' > .gitignore; git add .; git commit -qm one; git tag v1
   echo more >> a; git commit -qam two; git push -q ${store} main v1`,
)
const tip = sh(store, 'git rev-parse main').trim()
let boxes = 0

/** A home of its own with a checkout, as a sandbox has it. */
function sandbox(session: string) {
  const home = join(root, `box-${++boxes}`)
  const repo = join(home, 'repo')
  mkdirSync(repo, { recursive: true })
  const env = {
    PATH: process.env['PATH'] ?? '',
    HOME: home,
    HANGAR_GATEWAY: `file://${root}`,
    HANGAR_REPO: 'acme/app',
    HANGAR_BRANCH: `hangar/${session}`,
    HANGAR_SESSION: session,
    ...ident,
  }
  const agent = (...args: string[]) => {
    const result = spawnSync('sh', [helper, ...args], { cwd: repo, env })
    return { status: result.status, out: result.stdout.toString(), err: result.stderr.toString() }
  }
  return { home, repo, agent, sh: (script: string) => sh(repo, script, { HOME: home }) }
}

const context = (session: string) => `refs/hangar/sessions/${session}/context`
const listing = (dir: string) =>
  sh(
    dir,
    'find . -path ./.git -prune -o ! -type d -print0 | sort -z | xargs -0 -I{} sh -c \'printf "%s " "{}"; if [ -h "{}" ]; then readlink "{}"; else stat -c %a "{}"; cat "{}"; fi\'',
  )

/** Gives the session's checkpoint to a new sandbox and says what it has there. */
function resumed(session: string) {
  sh(store, `git update-ref ${context(session)} refs/hangar/sessions/${session}/checkpoint`)
  const box = sandbox(session)
  const done = box.agent('setup', '--context', context(session))
  if (done.status !== 0) throw new Error(done.err)
  return box
}

t.test('a checkout is set up from a commit, with the project as its remote', async (t) => {
  const box = sandbox('start')
  const done = box.agent('setup', '--start', tip)
  t.match(done, { status: 0, out: `head ${tip}\n` })
  t.equal(
    box
      .sh('git symbolic-ref --short HEAD; git status --porcelain; git rev-parse origin/main v1^0 | wc -l; cat a')
      .trim(),
    'hangar/start\n2\na\nmore',
  )
  t.equal(box.sh('git config branch.hangar/start.merge').trim(), 'refs/heads/hangar/start')
  box.sh('echo mine > mine; git fsck')
  t.match(box.agent('setup', '--start', tip), { status: 0, out: `head ${tip}\n` })
  t.equal(box.sh('cat mine').trim(), 'mine', 'a finished set-up is not done again')
  rmSync(join(box.home, '.hangar', 'ready'))
  box.sh('mkdir -p x/y; chmod 000 x')
  t.match(box.agent('setup', '--start', tip), { status: 0 })
  t.equal(box.sh('ls -A').trim().split('\n').sort().join(' '), '.git .gitignore a d', 'one that was cut off is')
  t.match(sandbox('nowhere').agent('setup', '--start', '1'.repeat(40)), { status: 1, err: /start 1+ is not at/ })
})

t.test('a checkpoint brings everything to another sandbox: branch, index, files', async (t) => {
  const box = sandbox('full')
  box.agent('setup', '--start', tip)
  box.sh(
    "echo c >> a; git commit -qam work; echo s >> a; git add a; echo u >> a; rm d/b; echo n > 'new file'; ln -s a link; echo x > x.log; git checkout -q -b other",
  )
  const before = box.sh('find .git -type f ! -name "*.lock" -exec cksum {} + | sort')
  const done = box.agent('checkpoint')
  t.match(done, { status: 0, err: '' })
  t.equal(
    box.sh('find .git -type f ! -name "*.lock" -exec cksum {} + | sort'),
    before,
    "the agent's repository is untouched",
  )
  t.equal(
    sh(store, 'git rev-parse hangar/full').trim(),
    box.sh('git rev-parse HEAD').trim(),
    'whatever branch it is on',
  )
  t.equal(sh(store, 'git rev-parse refs/hangar/sessions/full/checkpoint').trim(), /commit (\w+)/.exec(done.out)?.[1])
  const there = resumed('full')
  box.sh('rm x.log')
  t.equal(listing(there.repo), listing(box.repo))
  t.equal(there.sh('git ls-files -s; git rev-parse HEAD'), box.sh('git ls-files -s; git rev-parse HEAD'))
  t.equal(there.sh('git symbolic-ref HEAD').trim(), 'refs/heads/hangar/full')
  const again = there.agent('checkpoint')
  t.notMatch(again.out, /warning/)
  there.sh('git commit -q --amend -am amended')
  t.match(there.agent('checkpoint').out, /warning HEAD does not descend from the last state of hangar\/full/)
  t.equal(sh(store, 'git rev-parse hangar/full').trim(), there.sh('git rev-parse HEAD').trim())
})

t.test('an unborn session, and one whose repository is empty', async (t) => {
  const box = sandbox('unborn')
  t.match(box.agent('setup', '--start', 'unborn').out, /^unborn$/m)
  box.sh('echo first > first; git add first; echo second > second')
  t.match(box.agent('checkpoint').out, /^unborn$/m)
  t.notOk(sh(store, 'git for-each-ref refs/heads/hangar/unborn'))
  const there = resumed('unborn')
  t.equal(
    there.sh('git ls-files; git status --porcelain; git rev-parse -q --verify HEAD || echo none').trim(),
    'first\nA  first\n?? second\nnone',
  )
  there.sh('git commit -qm now')
  t.match(there.agent('checkpoint'), { status: 0 })
  t.equal(sh(store, 'git rev-parse hangar/unborn').trim(), there.sh('git rev-parse HEAD').trim())
})

t.test('a later hand-over is applied to a clean checkout, and only then', async (t) => {
  const box = sandbox('later')
  box.agent('setup', '--start', tip)
  box.agent('checkpoint')
  const other = resumed('later')
  other.sh('echo l >> a; git commit -qam later; echo w > d/b; echo n > n')
  other.agent('checkpoint')
  sh(store, `git update-ref ${context('later')} refs/hangar/sessions/later/checkpoint`)
  box.sh('echo dirty > dirty')
  t.match(box.agent('apply', '--context', context('later')), { status: 1, err: /changes of its own: dirty/ })
  box.sh('rm dirty; echo ignored > x.log')
  t.match(box.agent('apply', '--context', context('later')), { status: 0, err: '' })
  t.equal(box.sh('git status --porcelain; git log -1 --format=%s').trim(), 'M d/b\n?? n\nlater')
  box.sh('git reset -q --hard; rm n; echo own >> a; git commit -qam own')
  t.match(box.agent('apply', '--context', context('later')), { status: 1, err: /does not continue from/ })
})

/** What an agent may do to its repository; after each the files must come back. */
const DAMAGE: readonly { readonly name: string; readonly script: string; readonly warning?: RegExp }[] = [
  {
    name: '.git is deleted',
    script: 'rm -rf .git',
    warning: /cannot be read: its files are carried on top of the last known HEAD/,
  },
  { name: '.git is made anew', script: 'rm -rf .git; git init -q', warning: /last known HEAD/ },
  { name: 'the index is garbage', script: 'echo garbage > .git/index', warning: /index cannot be read/ },
  { name: 'the index is gone', script: 'rm .git/index', warning: /index cannot be read/ },
  { name: 'the index is locked', script: ': > .git/index.lock; : > .git/HEAD.lock' },
  { name: 'the config is garbage', script: 'echo "[[[" > .git/config' },
  { name: 'the config moves the work tree', script: 'git config core.worktree /etc; git config core.bare true' },
  {
    name: 'hooks that fail',
    script:
      'mkdir -p .git/hooks; for h in pre-push reference-transaction post-index-change; do printf "#!/bin/sh\\nexit 1\\n" > .git/hooks/$h; chmod +x .git/hooks/$h; done',
  },
  {
    name: 'filters and fsmonitor that fail',
    script:
      'git config filter.x.clean false; git config filter.x.required true; echo "* filter=x" > .git/info/attributes; git config core.fsmonitor /bin/false',
  },
  { name: 'alternates that lead nowhere', script: 'echo /no/where > .git/objects/info/alternates' },
  { name: 'HEAD is garbage', script: 'echo garbage > .git/HEAD', warning: /last known HEAD/ },
  { name: 'HEAD is detached', script: 'git checkout -q --detach' },
  { name: 'refs are gone', script: 'rm -rf .git/refs .git/packed-refs', warning: /last known HEAD/ },
  {
    name: 'packed refs are garbage',
    script: 'echo "not refs" > .git/packed-refs; git pack-refs --all || true; rm -rf .git/refs/heads',
    warning: /last known HEAD/,
  },
  { name: 'all objects are gone', script: 'rm -rf .git/objects/*', warning: /last known HEAD|$/ },
  {
    name: 'objects are overwritten',
    script: 'chmod -R u+w .git/objects; find .git/objects -type f -exec sh -c "echo junk > \\$1" sh {} \\;',
    warning: /last known HEAD|$/,
  },
  { name: '.git is a file that points elsewhere', script: 'mv .git ../moved; echo "gitdir: ../moved" > .git' },
  { name: '.git is a file of garbage', script: 'rm -rf .git; echo garbage > .git', warning: /last known HEAD/ },
  {
    name: 'a merge in conflict',
    script:
      'git checkout -q -f -b o HEAD; git stash -q -u || true; echo x > a; git commit -qam x; git checkout -q -b p HEAD^; echo y > a; git commit -qam y; git merge -q o || true',
    warning: /a merge is not finished/,
  },
  { name: 'the checkout was made shallow', script: 'git fetch -q --depth 1 origin main' },
  {
    name: "hangar's own repository is gone as well",
    script: 'rm -rf .git "$HOME/.hangar/git"',
    warning: /last known HEAD/,
  },
]

t.test('nothing that is done to .git loses the files', async (t) => {
  for (const [at, { name, script, warning }] of DAMAGE.entries()) {
    const session = `damage-${at}`
    const box = sandbox(session)
    box.agent('setup', '--start', tip)
    box.sh('echo c >> a; git commit -qam work')
    t.match(box.agent('checkpoint'), { status: 0 })
    box.sh(`echo e >> a; echo n > new; chmod +x d/b; ${script}`)
    const done = box.agent('checkpoint', '--max-files', '1000')
    t.equal(done.status, 0, `${name} ${done.err}`)
    if (warning !== undefined) t.match(done.out, warning, name)
    else t.notMatch(done.out, /warning/, name)
    const there = resumed(session)
    t.equal(listing(there.repo), listing(box.repo).replace(/^\.\/\.git .*\n(garbage|gitdir.*)\n/m, ''), name)
    t.match(there.sh('git log --format=%s'), /work\ntwo\none/, name)
    there.sh('git fsck --connectivity-only')
  }
})

t.test('a push that is refused says why, and changes nothing', async (t) => {
  const box = sandbox('refused')
  box.agent('setup', '--start', tip)
  sh(
    store,
    'mkdir -p hooks; printf "#!/bin/sh\\necho no such push here >&2; exit 1\\n" > hooks/pre-receive; chmod +x hooks/pre-receive',
  )
  t.match(box.agent('checkpoint'), { status: 1, err: /no such push here[\s\S]*could not be pushed/ })
  t.notOk(sh(store, 'git for-each-ref refs/heads/hangar/refused'))
  rmSync(join(store, 'hooks', 'pre-receive'))
  t.match(box.agent('checkpoint'), { status: 0 })
  chmodSync(store, 0o755)
})
