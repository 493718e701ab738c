/** What the rules over content refuse costs a turn nothing else: the rest is in its checkpoint, and a warning says what, where and why. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { type Hangar, shell, startHangar } from './support.ts'

const VALUE = 'correct-horse/battery+staple'

const AGENT = `
git config user.name agent; git config user.email agent@example.com
case $(cat) in
*mend*)
  git reset -q --soft "$HANGAR_BASE"; git rm -q -r --cached .github 2>/dev/null; rm -rf .github; git add .; git commit -qm mended ;;
*committed-secret*)
  echo fine >fine; git add fine; git commit -qm fine
  printf 'a\\nb\\nkey=%s\\n' "$KEY" >config.ini; git add .; git commit -qm oops
  echo later >later; git add later; git commit -qm later
  echo untracked >untracked ;;
*open-secret*)
  echo more >>kept; printf '%s\\n' "$KEY" >"od d ä"; printf 'x\\n%s\\n' "$KEY" >>README; echo staged >staged; git add staged ;;
*workflow*)
  mkdir -p .github/workflows; echo 'on: push' >.github/workflows/ci.yml; git add .; git commit -qm workflow; echo open >open ;;
*modules*)
  printf '[submodule "x"]\\n\\tpath = x\\n\\turl = -uevil\\n' >.gitmodules; echo work >work ;;
*linked*)
  tree=$( { git ls-tree HEAD; printf '120000 blob %s\\t.gitmodules\\n' "$(git rev-parse HEAD:README)"; } | git mktree)
  git update-ref HEAD "$(git commit-tree -p HEAD -m linked "$tree")"; echo work >work2 ;;
esac
hangar-agent done ok`

async function start(t: Test): Promise<Hangar> {
  return startHangar(t, {
    agent: AGENT,
    settings: { AGENT_KEY: VALUE },
    config: {
      environments: {
        default: {
          harness_options: { argv: ['sh', '-c', AGENT] },
          secrets: { KEY: { from: 'env:AGENT_KEY', phase: 'agent' } },
        },
      },
    },
  })
}

async function turnOf(hangar: Hangar, name: string, message: string, first: boolean) {
  const path = first ? '/api/sessions' : `/api/sessions/${name}/turns`
  const made = await hangar.api('POST', path, first ? { name, repo: 'acme/app', message } : { message })
  if (made.status >= 300) throw new Error(JSON.stringify(made.body))
  for (;;) {
    const { body } = await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=60`)
    if (!body.done) continue
    const { body: session } = await hangar.api('GET', `/api/sessions/${name}`)
    return session.turns.at(-1)
  }
}

t.test('work that rules refuse', async (t) => {
  const hangar = await start(t)
  const work = join(hangar.dir, 'work')
  mkdirSync(work)
  await shell(work, `git init -q -b main; echo r >README; echo k >kept; git add .; git commit -qm base`)
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  const remote = `${hangar.url}/git/acme/app.git`
  const pushed = await hangar.git(work, ['push', '-q', remote, 'main'])
  t.equal(pushed.status, 0, pushed.err)

  /** The files of a checkpoint: tracked and untracked, and the subjects of HEAD's commits. */
  const look = async (name: string) => {
    const dir = join(hangar.dir, `look-${name}-${Math.round(performance.now())}`)
    mkdirSync(dir)
    await shell(dir, 'git init -q')
    const got = await hangar.git(dir, ['fetch', '-q', remote, `refs/hangar/sessions/${name}/checkpoint`])
    t.equal(got.status, 0, got.err)
    const tracked = await shell(dir, 'git ls-tree -r -z --name-only FETCH_HEAD | tr "\\0" "\\n"')
    const untracked = await shell(dir, 'git ls-tree -r -z --name-only FETCH_HEAD^3 | tr "\\0" "\\n"')
    const log = await shell(dir, 'git log --format=%s FETCH_HEAD^1')
    const all = await shell(dir, 'git rev-list --objects --all FETCH_HEAD | cut -c 1-40 | git cat-file --batch')
    t.notMatch(all, VALUE, 'the secret is in no object')
    const lines = (text: string) => text.split('\n').filter(Boolean)
    return { dir, tracked: lines(tracked), untracked: lines(untracked), log: lines(log) }
  }

  await t.test('a committed secret: its commits are carried as changes, without the file', async (t) => {
    const turn = await turnOf(hangar, 'committed', 'committed-secret', true)
    t.equal(turn.outcome, 'exited')
    const warnings = turn.warnings.join('\n')
    t.match(warnings, /left out of the checkpoint: config.ini: commit [0-9a-f]{10}: config.ini:3 holds the secret KEY/)
    t.match(warnings, /commits were left out of the checkpoint, and their changes are carried as uncommitted ones/)
    const { tracked, untracked, log } = await look('committed')
    t.strictSame(tracked, ['README', 'fine', 'kept', 'later'])
    t.strictSame(untracked, ['untracked'])
    t.strictSame(log, ['base'])
    // The session goes on, also in a fresh sandbox.
    t.equal((await hangar.api('POST', '/api/sessions/committed/suspend', {})).status, 200)
    const next = await turnOf(hangar, 'committed', 'mend', false)
    t.notMatch(next.warnings.join(), /left out|not moved/)
    t.strictSame((await look('committed')).log, ['mended', 'base'])
  })

  await t.test('an uncommitted secret: HEAD and all other files are there', async (t) => {
    const turn = await turnOf(hangar, 'open', 'open-secret', true)
    t.match(turn.warnings.join('\n'), /left out of the checkpoint: .*README.*: .*README:3 holds the secret KEY/)
    const { dir, tracked, untracked } = await look('open')
    t.strictSame(tracked, ['README', 'kept', 'staged'])
    t.strictSame(untracked, [])
    t.equal(await shell(dir, 'git cat-file blob FETCH_HEAD:README'), 'r\n', "HEAD's own stands for it")
    t.equal(await shell(dir, 'git cat-file blob FETCH_HEAD:kept'), 'k\nmore\n')
  })

  await t.test('a forbidden path: the checkpoint has it, the branch stays', async (t) => {
    const turn = await turnOf(hangar, 'flow', 'workflow', true)
    t.match(
      turn.warnings.join('\n'),
      /the branch hangar\/flow was not moved: commit [0-9a-f]{10}: .github\/workflows\/ci.yml is a forbidden path \(forbidden_paths\); leave it as it was. Its commits are in the checkpoint/,
    )
    const { tracked, untracked, log } = await look('flow')
    t.strictSame(tracked, ['.github/workflows/ci.yml', 'README', 'kept'])
    t.strictSame(untracked, ['open'])
    t.strictSame(log, ['workflow', 'base'])
    t.equal(turn.head_commit, (await shell(work, 'git rev-parse main')).trim())
    const next = await turnOf(hangar, 'flow', 'mend', false)
    t.strictSame(
      next.warnings.filter((text: string) => !/was rewritten|does not descend/.test(text)),
      [],
    )
    const branch = await hangar.git(work, ['ls-remote', remote, 'refs/heads/hangar/flow'])
    t.match(branch.out, next.head_commit)
    t.not(next.head_commit, turn.head_commit)
  })

  for (const [name, message, kept] of [
    ['modules', 'modules', 'work'],
    ['linked', 'linked', 'work2'],
  ] as const)
    await t.test(`a .gitmodules that git refuses (${message}): all else is kept`, async (t) => {
      const turn = await turnOf(hangar, name, message, true)
      t.match(turn.warnings.join('\n'), /left out of the checkpoint: (.gitmodules: gitmodulesUrl|gitmodulesSymlink): /)
      const { tracked, untracked } = await look(name)
      t.strictSame(tracked, ['README', 'kept'])
      t.strictSame(untracked, [kept])
    })

  await t.test('metrics say so too, and name nobody', async (t) => {
    const answer = await fetch(`${hangar.url}/metrics`)
    t.match(answer.headers.get('content-type'), /^text\/plain; version=0.0.4/)
    const text = await answer.text()
    const value = (start: string) =>
      Number(
        text
          .split('\n')
          .find((line) => line.startsWith(start))
          ?.split(' ')
          .at(-1),
      )
    t.ok(value('hangar_push_refs_total{decision="refused",rule="known_secret"}') >= 2)
    t.ok(value('hangar_push_refs_total{decision="refused",rule="forbidden_path"}') >= 1)
    t.ok(value('hangar_push_refs_total{decision="accepted",rule=""}') >= 6)
    t.ok(value('hangar_turns_total{outcome="exited"}') >= 6)
    t.ok(value('hangar_turn_seconds_count{outcome="exited"}') >= 6)
    t.equal(value('hangar_turns{state="running"}'), 0)
    t.ok(value('hangar_git_requests_total{service="receive-pack",kind="rpc",protocol="0"}') > 6)
    t.ok(value('hangar_git_received_bytes_total{service="receive-pack"}') > 1_000)
    t.ok(value('hangar_git_sent_bytes_total{service="upload-pack"}') > 1_000)
    t.ok(value('hangar_git_processes_total{command="upload-pack"}') >= 6)
    t.ok(value('hangar_cache_requests_total{cache="refs",result="miss"}') > 0)
    t.equal(value('hangar_git_slots{state="waiting"}'), 0)
    t.ok(value('hangar_http_requests_total{surface="api",method="POST",status="201"}') >= 5)
    t.notMatch(text, /acme|committed|hgt_|hgs_/)
  })

  await t.test('hangar audit tells who, what and by which rule', async (t) => {
    await hangar.git(work, ['push', '-q', remote, 'main:refs/hangar/jobs/x'])
    const listed = await hangar.cli(['audit', '--refused', '--repo', 'acme/app'])
    t.equal(listed.status, 0, listed.err)
    t.match(listed.out, /token:\S+\tacme\/app\trefs\/hangar\/jobs\/x\t\S+\trefused\trecords: refs\/hangar\//)
    t.match(
      listed.out,
      /grant:committed-\S+\tacme\/app\trefs\/heads\/hangar\/committed\t\S+\trefused\tknown_secret: commit/,
    )
    t.match(listed.out, /grant:flow-\S+\tacme\/app\trefs\/heads\/hangar\/flow\t\S+\trefused\tforbidden_path: commit/)
    const all = await hangar.api('GET', '/api/audit?limit=1000')
    t.match(
      all.body.items.find(({ ref }: { ref: string }) => ref === 'refs/heads/main'),
      { decision: 'accepted', rule: null, repo: 'acme/app', by: /^token:/ },
    )
    const again = await hangar.restart()
    t.teardown(() => again.close())
    const after = await again.api('GET', '/api/audit?limit=1000')
    t.equal(after.body.items.length, all.body.items.length)
  })
})
