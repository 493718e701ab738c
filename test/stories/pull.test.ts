/**
 * `pull` never overwrites a local branch that has commits of its own without `--force`, never touches the current branch without
 * `--checkout`, never overwrites untracked files (ignored ones included), works when the branch is checked out already, and can be repeated.
 */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { type Ran, run, sandboxCheckout, shell, startHangar, waitUntil, workTree } from './support.ts'
import { baseScript } from './working-states.ts'

/** Does what the script that it is given says. */
const AGENT = `
cat >/dev/null
make=$HANGAR_IO/in/$HANGAR_TURN/make.sh
if [ -f "$make" ]; then exec sh -e "$make"; fi
`
/** Commits, staged and unstaged changes, new files in new directories, a file that became a directory and the other way round. */
const WORK = `
echo agent >>a; git commit -q -a -m "the agent's commit"; echo staged >>b; git add b; echo unstaged >>crlf; rm c; mkdir c; echo in >c/in
rm -r dir; echo file >dir; echo new >new; mkdir -p n/m; echo deep >n/m/deep; chmod +x tool n/m/deep; ln -s a new-link; : >x.log; git add x.log
`

t.setTimeout(2_000_000)
const hangar = await startHangar(t, { agent: AGENT })
const base = join(hangar.dir, 'base')
mkdirSync(base)
await shell(base, baseScript([]))
const url = `${hangar.url}/git/acme/app.git`
await must(hangar.cli(['repo', 'add', 'acme/app']))
await must(hangar.git(base, ['push', '-q', url, 'main']))
await begin('work', WORK)
await ended('work')
const work = await whole(await sandboxOf('work'))
const tip = (await hangar.api('GET', '/api/sessions/work')).body.head_commit as string

t.test('without --checkout only the branch comes', async (t) => {
  const { top, pull } = await clone('plain')
  await shell(top, 'echo mine >>a; git add a; echo more >>b; echo n >new')
  const before = await everything(top)
  const first = await pull('work')
  t.equal(first.status, 0, first.err)
  t.match(first.err, /hangar\/work is at .*\n.*--checkout/)
  t.equal(await at(top, 'hangar/work'), tip)
  t.strictSame(await everything(top), before, 'nothing else moved')
  const second = await pull('work')
  t.equal(second.status, 0, second.err)
  t.match(second.err, /up to date/)
  t.strictSame(await everything(top), before)
  const checkpoint = await at(top, 'refs/hangar/sessions/work/checkpoint')
  const nothing = await hangar.api('GET', `/api/sessions/work/pull?have=${tip}&have=${checkpoint}`)
  t.equal(nothing.status, 204, 'nothing is new')

  await shell(
    top,
    'git reset -q --hard; git clean -q -f -d; git switch -q --detach refs/hangar/sessions/work/checkpoint^1',
  )
  await shell(top, 'git stash apply -q --index refs/hangar/sessions/work/checkpoint')
  t.strictSame(await whole(top), work, 'plain git stash applies what was pulled')
})

t.test('with --checkout the whole state comes, as often as one likes', async (t) => {
  for (const where of [
    'top',
    'sub-directory',
    'linked worktree',
    'detached HEAD',
    'unborn HEAD',
    'another branch name',
  ] as const)
    await t.test(where, async (t) => {
      const { top } = await clone(where.replaceAll(' ', '-'))
      let cwd = top
      const own = where === 'another branch name' ? 'mine/work' : 'hangar/work'
      const options = where === 'another branch name' ? ['--branch', own] : []
      let checkout = top
      if (where === 'sub-directory') {
        await shell(top, 'mkdir kept; echo i >kept/file.ignored')
        cwd = join(top, 'kept')
      }
      if (where === 'linked worktree') {
        await shell(top, 'git worktree add -q -b linked ../linked')
        checkout = cwd = join(top, '..', 'linked')
      }
      if (where === 'detached HEAD') await shell(top, 'git switch -q --detach HEAD~1')
      if (where === 'unborn HEAD') await shell(top, 'git switch -q --orphan nothing')
      for (const _time of [1, 2, 3]) {
        const pulled = await hangar.cli(['session', 'pull', 'work', '--checkout', ...options], { cwd })
        t.equal(pulled.status, 0, pulled.err)
        t.strictSame(await whole(checkout), work)
        t.equal((await shell(checkout, 'git branch --show-current')).trim(), own)
      }
      if (where === 'sub-directory') t.ok(existsSync(join(top, 'kept/file.ignored')), 'ignored files stay')
      if (where === 'linked worktree')
        t.equal((await shell(top, 'git status --porcelain; git branch --show-current')).trim(), 'main')
      t.equal(
        (await shell(top, 'git for-each-ref refs/hangar/sessions/work/pulling')).trim(),
        '',
        'nothing is under way',
      )
    })
})

t.test('a local branch with commits of its own is not overwritten', async (t) => {
  for (const options of [[], ['--checkout']])
    await t.test(`pull ${options.join(' ')}`, async (t) => {
      const { top, pull } = await clone(`own${options.length}`)
      await shell(
        top,
        'git switch -q -c hangar/work; echo own >>a; git commit -q -a -m "my own commit"; git switch -q main',
      )
      const before = await everything(top)
      const own = await at(top, 'hangar/work')
      const refused = await pull('work', ...options)
      t.equal(refused.status, 5)
      t.match(refused.err, /commits that session work does not have:\n[0-9a-f]+ my own commit/)
      t.match(refused.err, /--branch NAME.*--force/)
      t.strictSame(await everything(top), before)
      t.equal(await at(top, 'hangar/work'), own)
      const beside = await pull('work', '--branch', 'beside')
      t.equal(beside.status, 0, beside.err)
      t.equal(await at(top, 'beside'), tip)
      t.equal(await at(top, 'hangar/work'), own)
      const forced = await pull('work', '--force', ...options)
      t.equal(forced.status, 0, forced.err)
      t.equal(await at(top, 'hangar/work'), tip)
      if (options.length > 0) t.strictSame(await whole(top), work)
    })
})

t.test('the current branch moves with --checkout only', async (t) => {
  const { top, pull } = await clone('current')
  await shell(top, 'git switch -q -c hangar/work')
  const before = await everything(top)
  const refused = await pull('work')
  t.equal(refused.status, 5)
  t.match(refused.err, /your current branch.*--checkout/s)
  t.strictSame(await everything(top), before)
  const moved = await pull('work', '--checkout')
  t.equal(moved.status, 0, moved.err)
  t.strictSame(await whole(top), work)
  await shell(top, 'echo mine >>a')
  const again = await pull('work')
  t.equal(again.status, 0, 'up to date: there is nothing to refuse')
  t.match(again.err, /up to date/)
})

t.test('a branch that another worktree has checked out', async (t) => {
  const { top, pull } = await clone('elsewhere')
  await shell(top, 'git worktree add -q -b hangar/work ../other')
  const before = await everything(top)
  for (const options of [[], ['--checkout'], ['--force']]) {
    const refused = await pull('work', ...options)
    t.equal(refused.status, 5, options.join())
    t.match(refused.err, /hangar\/work is checked out in .*\/other; pull there, or .*--branch NAME/)
  }
  t.strictSame(await everything(top), before)
  const there = await hangar.cli(['session', 'pull', 'work', '--checkout'], { cwd: join(top, '..', 'other') })
  t.equal(there.status, 0, there.err)
  const here = await pull('work')
  t.equal(here.status, 0, here.err)
  t.match(here.err, /up to date/)
  t.equal((await pull('work', '--checkout', '--branch', 'here')).status, 0)
})

const IN_THE_WAY: readonly { readonly what: string; readonly make: string; readonly names: RegExp }[] = [
  { what: 'an untracked file', make: 'echo mine >new', names: /: new\n/ },
  { what: 'an ignored file', make: 'echo new >.git/info/exclude; echo mine >new', names: /: new\n/ },
  {
    what: 'an ignored file by .gitignore',
    make: 'git config core.excludesFile .git/x; echo "*.log" >.git/x; echo mine >x.log',
    names: /: x\.log\n/,
  },
  { what: 'a directory where a file comes', make: 'mkdir new; echo mine >new/mine', names: /: new\/mine\n/ },
  {
    what: 'an ignored directory where a file comes',
    make: 'echo "new/" >.git/info/exclude; mkdir new; echo mine >new/mine',
    names: /: new\/mine\n/,
  },
  { what: 'a file where a directory comes', make: 'echo mine >n', names: /: n\n/ },
  { what: 'an ignored file where a directory comes', make: 'echo n >.git/info/exclude; echo mine >n', names: /: n\n/ },
  { what: 'a symbolic link in the place of a directory', make: 'mkdir ../outside; ln -s ../outside n', names: /: n\n/ },
  { what: 'a symbolic link to a directory of the work tree', make: 'mkdir -p o; ln -s o n', names: /: n\n/ },
  {
    what: 'a file inside a tracked directory that becomes a file',
    make: 'echo mine >dir/mine.ignored',
    names: /: dir\/mine\.ignored\n/,
  },
  { what: 'a symbolic link where a file comes', make: 'ln -s nowhere new', names: /: new\n/ },
  { what: 'another mode', make: 'mkdir -p n/m; echo deep >n/m/deep', names: /: n\/m\/deep\n/ },
  { what: 'a repository of its own where a file comes', make: 'git init -q new', names: /: new\/\.git\// },
  { what: 'a pipe', make: 'mkfifo new', names: /: new\n/ },
]
t.test('untracked and ignored files are never overwritten', async (t) => {
  for (const [place, { what, make, names }] of IN_THE_WAY.entries())
    await t.test(what, async (t) => {
      const { top, pull } = await clone(`way-${place}`)
      await shell(top, make)
      const before = await everything(top)
      for (const options of [['--checkout'], ['--checkout', '--force']]) {
        const refused = await pull('work', ...options)
        t.equal(refused.status, 5)
        t.match(refused.err, names)
        t.match(refused.err, /git stash -u/)
        t.strictSame(await everything(top), before, 'nothing was changed at all')
        t.equal((await shell(top, 'git for-each-ref refs/heads/hangar refs/hangar')).trim(), '')
      }
    })
  await t.test('those with the very same content are no obstacle, and the others stay', async (t) => {
    const { top, pull } = await clone('same')
    await shell(
      top,
      'echo new >new; mkdir -p n/m; echo deep >n/m/deep; chmod +x n/m/deep; ln -s a new-link; echo mine >n/mine; echo i >i.ignored; mkdir build; echo o >build/o',
    )
    const pulled = await pull('work', '--checkout')
    t.equal(pulled.status, 0, pulled.err)
    t.equal(readFileSync(join(top, 'n/mine'), 'utf8'), 'mine\n')
    t.equal(readFileSync(join(top, 'i.ignored'), 'utf8'), 'i\n')
    t.equal(readFileSync(join(top, 'build/o'), 'utf8'), 'o\n')
    await shell(top, 'rm n/mine')
    t.strictSame(await whole(top), work)
  })
})

t.test('uncommitted changes are replaced only where the session was given them', async (t) => {
  const { top, pull } = await clone('given')
  await shell(top, 'echo given >>a; git add a; rm c; echo given >given; echo mine >mine')
  await begin('given', 'rm given mine; echo agent >>b; git commit -q -m "only a"', top)
  await ended('given')
  await shell(top, 'echo changed >mine; echo later >later')
  const pulled = await pull('given', '--checkout')
  t.equal(pulled.status, 0, pulled.err)
  t.notOk(existsSync(join(top, 'given')), 'what the session was given and removed is gone')
  t.equal(readFileSync(join(top, 'mine'), 'utf8'), 'changed\n', 'what was changed since is not')
  await shell(top, 'rm mine later')
  t.strictSame(await whole(top), await whole(await sandboxOf('given')))

  for (const [what, make] of [
    ['changed', 'echo own >>noend'],
    ['staged', 'echo own >>noend; git add noend'],
    ['deleted', 'rm noend'],
    ['made executable', 'chmod +x noend'],
    ['staged as removed only', 'git rm -q --cached noend'],
  ] as const) {
    const other = await clone(`uncommitted-${what.replaceAll(' ', '-')}`)
    await shell(other.top, make)
    const before = await everything(other.top)
    const refused = await other.pull('given', '--checkout')
    t.equal(refused.status, 5, what)
    t.match(
      refused.err,
      /uncommitted changes are not what session given was given.*: noend\.\ncommit them, or .*git stash -u/,
      what,
    )
    t.strictSame(await everything(other.top), before, what)
    t.equal((await other.pull('given')).status, 0, 'the branch alone comes all the same')
  }
})

t.test('turn after turn, also when the agent rewrites its commits', async (t) => {
  const { top, pull } = await clone('turns')
  await begin('turns', 'echo 1 >>a; git commit -q -a -m one')
  await ended('turns')
  t.equal((await pull('turns')).status, 0)
  await next('turns', 2, 'echo 2 >>a; git commit -q -a --amend -m "one, amended"; echo loose >loose')
  const amended = await pull('turns')
  t.equal(amended.status, 0, `nothing local is lost: ${amended.err}`)
  t.equal((await shell(top, 'git log -1 --format=%s hangar/turns')).trim(), 'one, amended')
  const first = await pull('turns', '--checkout')
  t.equal(first.status, 0, first.err)
  await next('turns', 3, 'rm loose; git reset -q --hard HEAD~1; echo 3 >>b; git commit -q -a -m three; echo 4 >>b')
  t.equal((await pull('turns')).status, 5, 'the current branch stays')
  const second = await pull('turns', '--checkout')
  t.equal(second.status, 0, second.err)
  t.strictSame(await whole(top), await whole(await sandboxOf('turns')))
  await shell(top, 'git commit -q -a -m mine')
  await next('turns', 4, 'git commit -q -a -m four; echo 5 >>b')
  for (const options of [['--checkout'], []]) {
    const refused = await pull('turns', ...options)
    t.equal(refused.status, 5)
  }
  t.equal((await pull('turns', '--checkout', '--force')).status, 0)
  t.strictSame(await whole(top), await whole(await sandboxOf('turns')))
})

t.test('a later message brings local work along when it goes on from the session', async (t) => {
  const { top, pull } = await clone('later')
  await begin('later', 'echo 1 >>a; git commit -q -a -m one')
  await ended('later')
  const astray = await hangar.cli(['session', 'send', 'later', 'go on', '--from-local'], { cwd: top })
  t.equal(astray.status, 2)
  t.match(
    astray.err,
    /does not continue the session's branch .*; pull the session's work, rebase on it, and hand over again/,
  )
  t.equal((await pull('later', '--checkout')).status, 0)
  await shell(top, 'echo 2 >>a; git commit -q -a -m two; echo s >>b; git add b; echo u >u')
  const sent = await hangar.cli(['session', 'send', 'later', 'go on', '--from-local'], { cwd: top })
  t.equal(sent.status, 0, sent.err)
  t.equal((await ended('later')).outcome, 'exited')
  t.strictSame(await whole(await sandboxOf('later')), await whole(top))
  const dirty = await hangar.cli(['session', 'send', 'later', 'again', '--from-local'], { cwd: top })
  t.equal(dirty.status, 2)
  t.match(dirty.err, /session has uncommitted changes.*; ask the agent to commit first/)
  t.equal((await hangar.api('GET', '/api/sessions/later')).body.turns.length, 2)
})

const CUTS: readonly { readonly what: string; readonly when: string; readonly after?: string }[] = [
  { what: 'before the first file', when: '"read-tree -m -u") kill -9 $PPID; exit 9;;' },
  { what: 'after the last file', when: '"read-tree -m -u") "$real" "$@"; kill -9 $PPID; exit 9;;' },
  {
    what: 'among the files',
    when: '"read-tree -m -u") "$real" "$@"; kill -9 $PPID; exit 9;;',
    after: 'git checkout -q HEAD -- a; rm new; echo given >given',
  },
  { what: 'before HEAD', when: '"symbolic-ref -m "*) kill -9 $PPID; exit 9;;' },
  {
    what: 'before the index',
    when: '"read-tree --reset "*) if [ -z "$GIT_INDEX_FILE" ]; then kill -9 $PPID; exit 9; fi; exec "$real" "$@";;',
  },
  {
    what: 'at the very end',
    when: '"update-ref -m hangar: pull") case $4 in --stdin) kill -9 $PPID; exit 9;; esac; exec "$real" "$@";;',
  },
]
t.test('a pull that was killed is done by the next one', async (t) => {
  const real = (await shell(hangar.dir, 'command -v git')).trim()
  const given = await clone('killed')
  await shell(given.top, 'echo given >>b; git add b; echo given >given; echo kept >kept')
  await begin('killed', `git reset -q --hard; rm given kept; ${WORK}`, given.top)
  await ended('killed')
  const sandbox = await whole(await sandboxOf('killed'))
  for (const [place, { what, when, after }] of CUTS.entries())
    for (const from of ['what was given', 'a clean clone'] as const)
      await t.test(`killed ${what}, from ${from}`, async (t) => {
        const clean = from === 'a clean clone'
        const { top, pull } = await clone(`cut-${place}${clean ? '-clean' : ''}`)
        if (clean) await shell(top, 'echo own >own')
        else
          await shell(join(top, '..'), `rm -rf app; cp -R ../killed/app .; cd app; echo changed >kept; echo own >own`)
        const bin = join(top, '..', 'bin')
        mkdirSync(bin)
        writeFileSync(
          join(bin, 'git'),
          `#!/bin/sh\nreal='${real}'\ncase "$1 $2 $3" in ${when} esac\nexec "$real" "$@"\n`,
          { mode: 0o755 },
        )
        const cut = await hangar.cli(['session', 'pull', 'killed', '--checkout'], {
          cwd: top,
          env: { PATH: `${bin}:${process.env['PATH']}` },
        })
        t.equal(cut.status, null, 'it was killed')
        if (after !== undefined) await shell(top, clean ? after.replace(/;[^;]*$/, '') : after)
        const again = await pull('killed', '--checkout')
        t.equal(again.status, 0, again.err)
        t.equal(readFileSync(join(top, 'own'), 'utf8'), 'own\n')
        if (!clean) t.equal(readFileSync(join(top, 'kept'), 'utf8'), 'changed\n')
        await shell(top, 'rm -f own kept')
        t.strictSame(await whole(top), sandbox)
      })
  await t.test('what was changed after the kill is not lost', async (t) => {
    const { top, pull } = await clone('changed-since')
    const bin = join(top, '..', 'bin')
    mkdirSync(bin)
    writeFileSync(
      join(bin, 'git'),
      `#!/bin/sh\nreal='${real}'\ncase "$1 $2 $3" in ${CUTS[1]?.when} esac\nexec "$real" "$@"\n`,
      { mode: 0o755 },
    )
    await hangar.cli(['session', 'pull', 'killed', '--checkout'], {
      cwd: top,
      env: { PATH: `${bin}:${process.env['PATH']}` },
    })
    await shell(top, 'echo precious >>a')
    const before = await everything(top)
    const refused = await pull('killed', '--checkout')
    t.equal(refused.status, 5)
    t.match(refused.err, /a\b/)
    t.strictSame(await everything(top), before)
  })
})

t.test('a checkout that is in the middle of something', async (t) => {
  for (const [what, make, names] of [
    [
      'a merge',
      'git switch -q -c side; echo 1 >>a; git commit -q -a -m 1; git switch -q main; echo 2 >>a; git commit -q -a -m 2; git merge -q side || true',
      /MERGE_HEAD/,
    ],
    [
      'a rebase',
      'git switch -q -c side; echo 1 >>a; git commit -q -a -m 1; git switch -q main; echo 2 >>a; git commit -q -a -m 2; git rebase -q side 2>/dev/null || true',
      /rebase-merge/,
    ],
    ['another git', ': >.git/index.lock', /index\.lock/],
  ] as const)
    await t.test(what, async (t) => {
      const { top, pull } = await clone(what.replaceAll(' ', '-'))
      await shell(top, make)
      const before = await everything(top)
      const refused = await pull('work', '--checkout')
      t.equal(refused.status, 5)
      t.match(refused.err, names)
      t.strictSame(await everything(top), before)
      const branch = await pull('work')
      t.equal(branch.status, 0, branch.err)
      t.strictSame(await everything(top), before)
    })
})

t.test('unusual checkouts', async (t) => {
  await t.test('a sparse one stays sparse', async (t) => {
    const { top, pull } = await clone('sparse')
    await shell(top, "git sparse-checkout set --no-cone '/*' '!/spaced dir'")
    for (const _time of [1, 2]) {
      const pulled = await pull('work', '--checkout')
      t.equal(pulled.status, 0, pulled.err)
      const { 'spaced dir/s p': _absent, ...files } = work.files
      const now = await whole(top)
      t.strictSame(now, { ...work, files })
    }
  })
  await t.test('a shallow one', async (t) => {
    await shell(hangar.dir, 'mkdir shallow; git clone -q --depth 1 "file://$PWD/base" shallow/app')
    const top = join(hangar.dir, 'shallow', 'app')
    const pulled = await hangar.cli(['session', 'pull', 'work', '--checkout'], { cwd: top })
    t.equal(pulled.status, 0, pulled.err)
    t.strictSame(await whole(top), work)
  })
  await t.test(
    "one with git's CRLF line ends: its own files are no obstacle, the session's come as they are",
    async (t) => {
      await shell(
        hangar.dir,
        'mkdir windows; git -c core.autocrlf=true clone -q base windows/app; git -C windows/app config core.autocrlf true',
      )
      const top = join(hangar.dir, 'windows', 'app')
      t.match(readFileSync(join(top, 'a'), 'latin1'), /\r\n/)
      const pulled = await hangar.cli(['session', 'pull', 'work', '--checkout'], { cwd: top })
      t.equal(pulled.status, 0, pulled.err)
      const now = await whole(top)
      t.equal(now.index, work.index)
      t.equal(now.head, work.head)
      for (const path of ['a', 'b', 'crlf', 'new', 'n/m/deep', 'dir', 'c/in'])
        t.equal(now.files[path], work.files[path], path)
      t.equal((await hangar.cli(['session', 'pull', 'work', '--checkout'], { cwd: top })).status, 0, 'and again')
    },
  )
})

t.test('sessions with little in them', async (t) => {
  await t.test('unborn', async (t) => {
    await must(hangar.cli(['repo', 'add', 'acme/empty']))
    const made = await hangar.api('POST', '/api/sessions', {
      name: 'unborn',
      repo: 'acme/empty',
      message: 'go',
      context: [{ kind: 'file', name: 'make.sh', content: 'echo s >s; git add s; echo u >u' }],
    })
    t.equal(made.status, 201)
    await ended('unborn')
    const sandbox = await whole(await sandboxOf('unborn'))
    t.equal(sandbox.head, 'unborn')
    mkdirSync(join(hangar.dir, 'fresh'))
    await shell(join(hangar.dir, 'fresh'), 'git init -q -b main app')
    const top = join(hangar.dir, 'fresh', 'app')
    const without = await hangar.cli(['session', 'pull', 'unborn'], { cwd: top })
    t.equal(without.status, 0, without.err)
    t.match(without.err, /no commits yet/)
    for (const _time of [1, 2]) {
      const pulled = await hangar.cli(['session', 'pull', 'unborn', '--checkout'], { cwd: top })
      t.equal(pulled.status, 0, pulled.err)
      t.strictSame(await whole(top), sandbox)
      t.equal((await shell(top, 'git symbolic-ref HEAD')).trim(), 'refs/heads/hangar/unborn')
    }
  })
  await t.test('at work: its first turn has not ended, then its second', async (t) => {
    const { top, pull } = await clone('at-work')
    await begin('at-work', 'sleep 600')
    await waitUntil('the agent runs', async () => (await turnState('at-work')) === 'running')
    const early = await pull('at-work', '--checkout')
    t.equal(early.status, 2)
    t.match(early.err, /no checkpoint yet; wait for its turn to end: hangar session wait at-work/)
    t.equal((await pull('at-work')).status, 0, 'its branch is there')
    await must(hangar.cli(['session', 'cancel', 'at-work']))
    await ended('at-work')
    const { body } = await hangar.api('GET', '/api/sessions/at-work')
    const sent = await hangar.api('POST', '/api/sessions/at-work/turns', {
      message: 'go',
      context: [
        {
          kind: 'file',
          name: 'make.sh',
          content: 'echo 1 >>a; git commit -q -a -m one; git push -q origin HEAD; sleep 600',
        },
      ],
    })
    t.equal(sent.status, 202)
    await waitUntil('the agent has pushed', async () => {
      const refs = await hangar.git(base, ['ls-remote', url, 'refs/heads/hangar/at-work'])
      return refs.status === 0 && refs.out !== '' && !refs.out.startsWith(body.head_commit as string)
    })
    const during = await pull('at-work', '--checkout')
    t.equal(during.status, 0, during.err)
    t.equal((await shell(top, 'git status --porcelain')).trim(), '', 'the last checkpoint as a whole, not half of it')
    await must(hangar.cli(['session', 'cancel', 'at-work']))
    await ended('at-work')
    const after = await pull('at-work', '--checkout')
    t.equal(after.status, 0, after.err)
    t.strictSame(await whole(top), await whole(await sandboxOf('at-work')))
  })
  await t.test('unknown', async (t) => {
    const { pull } = await clone('unknown')
    const refused = await pull('nobody-knows-it')
    t.equal(refused.status, 2)
    t.match(refused.err, /^hangar: .*nobody-knows-it/)
  })
})

t.test('branch names that git or the checkout cannot take', async (t) => {
  const { top, pull } = await clone('names')
  const bad = await pull('work', '--branch', 'a..b')
  t.equal(bad.status, 2)
  t.match(bad.err, /no branch name/)
  await shell(top, 'git branch hangar')
  for (const options of [[], ['--checkout']]) {
    const before = await everything(top)
    const blocked = await pull('work', ...options)
    t.equal(blocked.status, 5)
    t.match(blocked.err, /--branch NAME/)
    t.strictSame(await everything(top), before)
  }
  t.equal((await pull('work', '--checkout', '--branch', 'work')).status, 0)
})

t.test('outside of a work tree', async (t) => {
  await shell(hangar.dir, 'git init -q --bare bare.git; mkdir none')
  for (const cwd of ['bare.git', 'none']) {
    const refused = await hangar.cli(['session', 'pull', 'work'], { cwd: join(hangar.dir, cwd) })
    t.equal(refused.status, 2)
    t.match(refused.err, /is not in a git checkout/)
  }
})

// --- the parts ------------------------------------------------------------------------------------------------------------

interface Whole {
  readonly files: Record<string, string>
  readonly index: string
  readonly head: string
}

async function clone(
  name: string,
): Promise<{ top: string; pull: (session: string, ...options: string[]) => Promise<Ran> }> {
  await shell(
    hangar.dir,
    `mkdir '${name}' && git clone -q base '${name}/app' && git -C '${name}/app' remote set-url origin ${url}`,
  )
  const top = join(hangar.dir, name, 'app')
  return { top, pull: (session, ...options) => hangar.cli(['session', 'pull', session, ...options], { cwd: top }) }
}

/** Starts a session whose agent runs a script; with a checkout, that is handed over. */
async function begin(name: string, make: string, checkout?: string): Promise<void> {
  const script = join(hangar.dir, `${name}.make`, 'make.sh')
  mkdirSync(join(hangar.dir, `${name}.make`))
  writeFileSync(script, `${make}\n`)
  const where = checkout === undefined ? ['--repo', 'acme/app'] : ['--from-local']
  const cwd = checkout ?? hangar.dir
  await must(hangar.cli(['session', 'new', name, 'go', ...where, '--file', script], { cwd }))
}

async function next(name: string, turn: number, make: string): Promise<void> {
  const context = [{ kind: 'file', name: 'make.sh', content: make }]
  const { status, body } = await hangar.api('POST', `/api/sessions/${name}/turns`, { message: 'go on', context })
  if (status !== 202 || body.turn !== turn)
    throw new Error(`turn ${turn} of ${name}: ${status} ${JSON.stringify(body)}`)
  const { outcome } = await ended(name)
  if (outcome !== 'exited') throw new Error(`turn ${turn} of ${name} ended ${outcome}`)
}

async function ended(name: string): Promise<{ outcome: string }> {
  const { body } = await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=300`)
  if (body.done !== true) throw new Error(`waited too long for ${name}`)
  if (body.outcome === 'failed') throw new Error(`the turn of ${name}: ${JSON.stringify(body)}`)
  return body as { outcome: string }
}

async function turnState(name: string): Promise<string> {
  return (await hangar.api('GET', `/api/sessions/${name}`)).body.turns.at(-1).state as string
}

async function sandboxOf(name: string): Promise<string> {
  const { body } = await hangar.api('GET', `/api/sessions/${name}`)
  return sandboxCheckout(hangar, body.sandbox.id as string)
}

/** Without ignored files. */
async function whole(top: string): Promise<Whole> {
  const git = 'git -c safe.directory=*'
  const said = await shell(
    top,
    `${git} rev-parse -q --verify HEAD || echo unborn; ${git} ls-files -o -i -z --exclude-standard; echo; ${git} ls-files -s -z`,
  )
  const [head = '', ignored = '', ...index] = said.split('\n')
  const files = workTree(top)
  for (const path of ignored.split('\0')) delete files[path]
  return { files, index: index.join('\n'), head }
}

/** Files, index bytes, HEAD and branches: but for those below `hangar/`, which pull is to move. */
async function everything(top: string): Promise<unknown> {
  const gitDir = (await shell(top, 'git rev-parse --absolute-git-dir')).trim()
  return {
    files: workTree(top),
    index: createHash('sha256')
      .update(readFileSync(join(gitDir, 'index')))
      .digest('hex'),
    head: readFileSync(join(gitDir, 'HEAD'), 'utf8'),
    refs: await shell(top, "git for-each-ref --format='%(refname) %(objectname)' | grep -v '^refs/.*hangar/' || true"),
  }
}

async function at(top: string, revision: string): Promise<string> {
  return (await run('git', ['rev-parse', revision], { cwd: top })).out.trim()
}

async function must(running: Promise<Ran>): Promise<Ran> {
  const ran = await running
  if (ran.status !== 0) throw new Error(`ended with ${ran.status}\n${ran.out}${ran.err}`)
  return ran
}
