/** Agents that close, remove or replace what they are given: what they did is kept, the next turn works, and their sandboxes go. */
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { shell, startHangar, waitUntil } from './support.ts'

/** Of 200 letters. */
const LONG = 'x'.repeat(200)
/** By name; each hands back a summary and an artifact as well. */
const ATTACKS: Readonly<Record<string, string>> = {
  'no-home': 'cd /; rm -rf "$HOME"/* "$HOME"/.[!.]*',
  'no-checkout': 'rm -rf "$HOME/repo"',
  'checkout-leads-nowhere': 'cd /; rm -rf "$HOME/repo"; ln -s /nowhere "$HOME/repo"',
  'closed-home': 'chmod 000 "$HOME/repo" "$HOME/.hangar" "$HOME"',
  'closed-io':
    'mkdir "$HANGAR_CONVERSATION/a"; echo x >"$HANGAR_CONVERSATION/a/b"; find "$HANGAR_IO" "$HANGAR_CONVERSATION" -depth -exec chmod 000 {} +',
  'closed-artifact':
    'rm -rf "$HANGAR_CONVERSATION"; echo x >"$HANGAR_CONVERSATION"; cd "$HANGAR_IO/out"; chmod 000 artifacts/note; mkdir x; echo x >x/y; chmod 000 x',
  // A shell's own cd cannot go there.
  deep: `python3 -c "import os; [(os.mkdir(name), os.chdir(name)) for name in ['${LONG}'] * 40]; open('bottom', 'w').close()"`,
  'closed-git': 'echo two >b.txt; git add b.txt; git commit -q -m two; chmod -R 000 .git',
  'closed-directory':
    'mkdir -p closed/in; echo kept >closed/in/file; git add -A; git commit -q -m closed; echo more >>closed/in/file; echo new >closed/in/new; chmod 000 closed',
}

t.test('hostile agents', { timeout: 300_000 }, async (t) => {
  const hangar = await startHangar(t, { agent: 'read -r line; eval "$line"' })
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(hangar.dir, 'git init -q -b main seed; cd seed; echo one >a.txt; git add .; git commit -q -m base')
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
  const send = (name: string, message: string) => hangar.api('POST', `/api/sessions/${name}/turns`, { message })
  const ended = async (name: string, turn: number) => {
    const { body } = await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=100&turn=${turn}`)
    t.equal(body.done, true, `${name}: turn ${turn} ends`)
    return (await hangar.api('GET', `/api/sessions/${name}`)).body.turns[turn - 1]
  }
  for (const [name, attack] of Object.entries(ATTACKS)) {
    const message = `echo note >/tmp/note; hangar-agent artifact /tmp/note; hangar-agent done "did it"; ${attack}; true`
    const made = await hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message })
    t.equal(made.status, 201, JSON.stringify(made.body))
  }
  for (const name of Object.keys(ATTACKS)) {
    const turn = await ended(name, 1)
    const kept = name !== 'no-home'
    t.match(turn, { outcome: 'exited', summary: kept ? 'did it' : null, checkpoint: /^[0-9a-f]{40}$/ }, name)
    const artifacts = turn.artifacts.map(({ path }: { path: string }) => path)
    t.strictSame(artifacts, kept ? ['note'] : [], name)
    t.notMatch(turn.warnings.join('; '), kept ? /could not be|no checkpoint/ : /no checkpoint/, name)
    await send(name, 'hangar-agent done "$(pwd)"')
  }
  for (const name of Object.keys(ATTACKS))
    t.match(await ended(name, 2), { outcome: 'exited', summary: '/home/agent/repo' }, name)
  const repo = join(hangar.dataDir, 'repos', 'acme', 'app.git')
  const inside = (revision: string) =>
    shell(repo, `git -c safe.directory=* show refs/hangar/sessions/closed-directory/checkpoint${revision}`)
  t.equal(await inside(':closed/in/file'), 'kept\nmore\n', 'what lies in a closed directory is in git')
  t.equal(await inside('^3:closed/in/new'), 'new\n')
  const two = 'git -c safe.directory=* show hangar/closed-git:b.txt'
  t.equal(await shell(repo, two), 'two\n', 'and what was committed in a repository that was closed then')
  for (const name of Object.keys(ATTACKS)) {
    const suspended = await hangar.api('POST', `/api/sessions/${name}/suspend`, {})
    t.equal(suspended.status, 200, `${name}: ${JSON.stringify(suspended.body).slice(0, 300)}`)
  }
  await send('no-home', 'hangar-agent done "$(git log --format=%s)"')
  const base = (await shell(join(hangar.dir, 'seed'), 'git rev-parse HEAD')).trim()
  t.match(await ended('no-home', 3), { outcome: 'exited', head_commit: base }, 'its history is that of the gateway')
  for (const name of Object.keys(ATTACKS)) {
    t.equal((await hangar.api('POST', `/api/sessions/${name}/close`, { delete: true })).status, 200, name)
  }
  const left = () => readdirSync(join(hangar.dataDir, 'sandboxes'))
  await waitUntil('all sandboxes are gone', () => left().length === 0)
})

t.test("a repo's own variables reach nothing on the host", { timeout: 120_000 }, async (t) => {
  const hangar = await startHangar(t, { agent: 'cat >/dev/null; hangar-agent done "$PATH $LD_PRELOAD $IFS_LIKE"' })
  const evil = join(hangar.dir, 'evil')
  mkdirSync(evil)
  for (const name of [
    'sh',
    'bwrap',
    'setpriv',
    'prlimit',
    'setsid',
    'sed',
    'cat',
    'dd',
    'date',
    'mkfifo',
    'rm',
    'mv',
    'env',
  ]) {
    writeFileSync(join(evil, name), `#!/bin/sh\necho ${name} >>${evil}/ran\nPATH=/usr/bin:/bin exec ${name} "$@"\n`)
    chmodSync(join(evil, name), 0o755)
  }
  chmodSync(hangar.dir, 0o711)
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  const env = {
    PATH: `${evil}:/run/hangar/bin:/usr/bin:/bin`,
    LD_PRELOAD: '/nowhere/evil.so',
    IFS_LIKE: 'a b\nc',
    IFS: '/',
  }
  const file = JSON.stringify({ env })
  await shell(
    hangar.dir,
    `git init -q -b main seed; cd seed; mkdir .hangar; printf %s '${file}' >.hangar/environment.json; git add .; git commit -q -m base`,
  )
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
  await hangar.api('POST', '/api/sessions', { name: 's', repo: 'acme/app', message: 'go' })
  await hangar.api('GET', '/api/sessions/s/wait?timeout_seconds=60')
  const [turn] = (await hangar.api('GET', '/api/sessions/s')).body.turns
  t.match(turn, { outcome: 'exited', summary: `${env.PATH} /nowhere/evil.so a b\nc` }, 'inside they hold')
  const ran = existsSync(join(evil, 'ran')) ? readFileSync(join(evil, 'ran'), 'utf8') : ''
  t.equal(ran, '', 'and outside not')
})
