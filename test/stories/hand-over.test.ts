/** A developer hands half-finished work over and gets it back: by CLI, by patch, and by plain git. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { gitState, run, sandboxCheckout, shell, startHangar, workTree } from './support.ts'

const AGENT = `
set -e
cat >"$HANGAR_CONVERSATION/prompt"
hangar-agent progress --pct 50 "half way"
echo "plain line of output"
test "$(cat "$HANGAR_IO/in/$HANGAR_TURN/text.txt")" = "a wish"
echo done >>work.txt
git add work.txt
git commit -q -m "the agent's commit"
echo loose >loose.txt
hangar-agent artifact loose.txt report/loose.txt
hangar-agent result '{"tests_added": 3}'
hangar-agent done "All of it."
git push -q origin HEAD:"$HANGAR_BRANCH"
if git push origin HEAD:main 2>push.err; then exit 9; fi
grep -F '! [remote rejected] HEAD -> main (this grant may push only refs/heads/hangar/csv-fix' push.err >&2
rm push.err
`

t.test('half-finished work goes to an agent and comes home', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT })
  const clone = join(hangar.dir, 'app')
  await shell(
    hangar.dir,
    `git init -q -b main app && cd app && printf 'one\\n' >work.txt && printf 'gone\\n' >gone.txt && git add . && git commit -q -m base
     git update-ref refs/remotes/origin/main HEAD
     git switch -q -c feature && printf 'two\\n' >>work.txt && git commit -q -am 'not pushed anywhere'
     printf 'staged\\n' >staged.txt && git add staged.txt && printf 'three\\n' >>work.txt && rm gone.txt
     printf '\\001\\000' >data.bin && printf '#!/bin/sh\\n' >run.sh && chmod +x run.sh && ln -s work.txt link`,
  )
  const handed = workTree(clone)

  await t.test('a repo that the server does not know is named, and hosted when asked for', async (t) => {
    const refused = await hangar.cli(['session', 'new', 'csv-fix', 'go', '--from-local'], { cwd: clone })
    t.equal(refused.status, 2)
    t.match(refused.err, /does not know this checkout/)
    t.match(refused.err, /--create-repo/)
    t.equal((await hangar.api('GET', '/api/sessions')).body.items.length, 0, 'nothing half-made is left')
  })

  const made = await hangar.cli(
    ['session', 'new', 'csv-fix', 'finish this', '--from-local', '--create-repo', '--text', 'a wish', '-w'],
    { cwd: clone },
  )
  t.equal(made.status, 0, made.err)
  t.match(made.err, /half way/, 'progress is shown as it comes')
  t.match(made.err, /turn 1: exited/)
  t.match(made.out, /All of it\./)

  const { body: session } = await hangar.api('GET', '/api/sessions/csv-fix')
  const [turn] = session.turns
  const sandbox = sandboxCheckout(hangar, session.sandbox.id)

  await t.test('the session says what came of it', async (t) => {
    t.match(session, { name: 'csv-fix', repo: 'local/app', branch: 'hangar/csv-fix', state: 'idle', needs_input: null })
    t.match(turn, {
      turn: 1,
      outcome: 'exited',
      summary: 'All of it.',
      result: { tests_added: 3 },
      result_error: null,
      error: null,
    })
    t.strictSame(turn.warnings, [])
    t.strictSame(
      turn.artifacts.map((artifact: { path: string; uri: string }) => [artifact.path, artifact.uri]),
      [['report/loose.txt', 'hangar://sessions/csv-fix/artifacts/1/report/loose.txt']],
    )
    t.equal(
      session.base_commit,
      (await shell(clone, 'git rev-parse main')).trim(),
      'the base is what the server and the checkout share',
    )
    t.equal(turn.requested_commit, (await shell(clone, 'git rev-parse feature')).trim())
    t.equal(turn.actual_commit, turn.requested_commit)
    t.equal(turn.head_commit, session.head_commit)
  })

  await t.test('the events are in order, and in git after the turn', async (t) => {
    const { body } = await hangar.api('GET', '/api/sessions/csv-fix/events')
    const seqs = body.items.map((event: { seq: number }) => event.seq)
    t.strictSame(
      seqs,
      seqs.map((_: number, at: number) => at + 1),
      'seq rises by one',
    )
    t.ok(
      body.items.some(
        (event: { kind: string; text: string }) => event.kind === 'message' && event.text === 'plain line of output',
      ),
    )
    t.ok(
      body.items.some((event: { text?: string }) =>
        event.text?.includes('this grant may push only refs/heads/hangar/csv-fix'),
      ),
      'git told the agent why main is not for it',
    )
    const kept = await hangar.git(clone, [
      'ls-remote',
      `${hangar.url}/git/local/app.git`,
      'refs/hangar/sessions/csv-fix/log',
    ])
    t.match(kept.out, /refs\/hangar\/sessions\/csv-fix\/log/)
    await shell(clone, 'git init -q --bare ../mirror.git')
    await hangar.git(join(hangar.dir, 'mirror.git'), [
      'fetch',
      '-q',
      `${hangar.url}/git/local/app.git`,
      '+refs/hangar/*:refs/hangar/*',
      'refs/notes/hangar:refs/notes/hangar',
    ])
    const log = await shell(
      join(hangar.dir, 'mirror.git'),
      'git show refs/hangar/sessions/csv-fix/log:turns/1/events.jsonl.gz | gzip -dc',
    )
    t.equal(log.trim().split('\n').length, body.items.length)
    const note = JSON.parse(
      await shell(join(hangar.dir, 'mirror.git'), `git notes --ref=hangar show ${turn.head_commit}`),
    ) as unknown
    t.match(note, { session: 'csv-fix', turn: 1, outcome: 'exited', summary: 'All of it.', result: { tests_added: 3 } })
  })

  await t.test("hangar's commits are signed by the key it serves", async (t) => {
    if ((await run('gpg', ['--version'])).status !== 0) {
      t.pass('gpg is not installed: verify-commit was not tried')
      return
    }
    const key = (await hangar.api('GET', '/.well-known/hangar-key.asc')).bytes
    writeFileSync(join(hangar.dir, 'key.asc'), key)
    await shell(hangar.dir, 'mkdir -m 700 gpg && gpg --homedir gpg --batch -q --import key.asc')
    const verified = await run(
      'git',
      ['verify-commit', '--raw', 'refs/hangar/sessions/csv-fix/log', 'refs/notes/hangar'],
      {
        cwd: join(hangar.dir, 'mirror.git'),
        env: { PATH: process.env['PATH'] ?? '', GNUPGHOME: join(hangar.dir, 'gpg'), GIT_CONFIG_GLOBAL: '/dev/null' },
      },
    )
    t.equal(verified.status, 0, verified.err)
    await run('gpgconf', ['--homedir', join(hangar.dir, 'gpg'), '--kill', 'all'])
  })

  await t.test('the patch on the base gives the working tree of the sandbox', async (t) => {
    const patch = await hangar.cli(['session', 'patch', 'csv-fix'])
    writeFileSync(join(hangar.dir, 'whole.patch'), patch.bytes)
    await shell(
      hangar.dir,
      'git clone -q app fresh && cd fresh && git checkout -q --detach origin/main && git apply ../whole.patch',
    )
    t.strictSame(workTree(join(hangar.dir, 'fresh')), workTree(sandbox))
    const own = await hangar.cli(['session', 'patch', 'csv-fix', '--from', 'handover'])
    t.notMatch(own.out, /staged\.txt|data\.bin/, 'from=handover leaves out what was handed over')
    t.match(own.out, /loose\.txt/)
  })

  await t.test('artifacts are sealed at rest and come back through REST and CLI', async (t) => {
    t.equal((await hangar.cli(['session', 'artifacts', 'csv-fix', '--get', 'report/loose.txt'])).out, 'loose\n')
    const got = await hangar.api('GET', '/api/sessions/csv-fix/artifacts/1/report/loose.txt')
    t.equal(got.status, 200)
    t.match(got.headers.get('content-disposition'), /^attachment; filename="loose\.txt"/)
    t.equal(got.headers.get('x-content-type-options'), 'nosniff')
    const all = await hangar.cli(['session', 'artifacts', 'csv-fix', '--all', join(hangar.dir, 'out')])
    t.equal(all.status, 0)
    t.equal(readFileSync(join(hangar.dir, 'out', 'report', 'loose.txt'), 'utf8'), 'loose\n')
    const sealed = await shell(
      join(hangar.dataDir, 'repos', 'local', 'app.git'),
      'git -c safe.directory=* cat-file blob refs/hangar/sessions/csv-fix/sealed:artifacts/1/report/loose.txt.pgp | grep -ac loose || true',
    )
    t.equal(sealed.trim(), '0', 'no plain text in the store')
  })

  await t.test('plain git takes commits and uncommitted changes without the CLI', async (t) => {
    await shell(hangar.dir, 'git clone -q --no-local app plain')
    const plain = join(hangar.dir, 'plain')
    const url = `${hangar.url}/git/local/app.git`
    t.equal((await hangar.git(plain, ['fetch', '-q', url, 'hangar/csv-fix'])).status, 0)
    t.equal((await shell(plain, 'git log -1 --format=%s FETCH_HEAD')).trim(), "the agent's commit")
    t.equal((await hangar.git(plain, ['fetch', '-q', url, 'refs/hangar/sessions/csv-fix/checkpoint'])).status, 0)
    await shell(plain, 'git switch -q --detach FETCH_HEAD^1 && git stash apply -q --index FETCH_HEAD')
    t.strictSame(workTree(plain), workTree(sandbox))
    t.strictSame(await gitState(plain), await gitState(sandbox))
  })

  await t.test('pull fetches the branch, and --checkout makes the clone the same as the sandbox', async (t) => {
    t.strictSame(workTree(clone), handed, 'so far nothing local was touched')
    const pulled = await hangar.cli(['session', 'pull', 'csv-fix'], { cwd: clone })
    t.equal(pulled.status, 0, pulled.err)
    t.equal((await shell(clone, 'git branch --show-current')).trim(), 'feature')
    t.strictSame(workTree(clone), handed)
    for (const _time of [1, 2]) {
      const out = await hangar.cli(['session', 'pull', 'csv-fix', '--checkout'], { cwd: clone })
      t.equal(out.status, 0, out.err)
      t.equal((await shell(clone, 'git branch --show-current')).trim(), 'hangar/csv-fix')
      t.strictSame(workTree(clone), workTree(sandbox))
      t.strictSame(await gitState(clone), await gitState(sandbox))
    }
  })
})
