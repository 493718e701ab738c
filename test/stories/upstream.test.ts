/** Repos that follow an upstream: mirrored, worked on, delivered, with a token of a person and of a GitHub App. What may go wrong: upstream-failures. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { COMMIT, deliver, refsOf, startMirrored, tipOf, work } from './mirrored.ts'
import { run, shell, temporaryDirectory, waitUntil } from './support.ts'

for (const credential of ['token', 'app'] as const)
  t.test(`a mirror, a session on it and its delivery, with the credential of ${credential}`, async (t) => {
    const story = await startMirrored(t, credential)
    const { repo, seed, peer, hangar } = story
    t.match(await refsOf(story, 'refs/heads/*'), [/^refs\/heads\/main /, /^refs\/heads\/topic /])

    await t.test(
      'a fetch sees what is upstream now: moved, new and deleted refs, and the default branch',
      async (t) => {
        await shell(seed, 'echo two >>a.txt && git commit -qam two && git tag v2')
        await shell(
          seed,
          `git push -q '${repo.dir}' :topic && git push -q '${repo.dir}' main v2 topic:refs/heads/topic/nested main:trunk`,
        )
        await shell(repo.dir, 'git -c safe.directory=* symbolic-ref HEAD refs/heads/trunk')
        const main = await tipOf(seed, 'main')
        t.same(
          (await refsOf(story, 'refs/heads/*')).map((line) => line.split(' ')[0]),
          ['refs/heads/main', 'refs/heads/topic/nested', 'refs/heads/trunk'],
        )
        t.match(await refsOf(story, 'refs/tags/v2'), [/ [0-9a-f]{40}$/])
        t.match((await hangar.api('GET', '/api/repos/acme/app')).body, {
          default_branch: 'trunk',
          upstream_error: null,
        })
        await shell(repo.dir, 'git -c safe.directory=* symbolic-ref HEAD refs/heads/main')
        t.same(await refsOf(story, 'HEAD'), [`HEAD ${main}`])
      },
    )

    await t.test('people push upstream, not here', async (t) => {
      const pushed = await hangar.git(seed, ['push', `${hangar.url}/git/acme/app.git`, 'main:refs/heads/other'])
      t.match(pushed.err, /follows an upstream; push there/)
    })

    await t.test(
      'a session begins on what is upstream at that moment, and delivery moves its branch alone',
      async (t) => {
        await shell(seed, `echo three >>a.txt && git commit -qam three && git push -q '${repo.dir}' main`)
        const before = await shell(repo.dir, 'git -c safe.directory=* for-each-ref')
        const { body } = await work(story, 'csv', COMMIT)
        t.equal(body.base_commit, await tipOf(seed, 'main'))
        t.same(body.turns[0].warnings, [])
        const delivered = await deliver(story, 'csv')
        t.match(delivered, {
          status: 200,
          body: { status: 'delivered', branch: 'hangar/csv', commit: body.head_commit },
        })
        t.equal(await tipOf(repo.dir, 'refs/heads/hangar/csv'), body.head_commit)
        const after = await shell(repo.dir, 'git -c safe.directory=* for-each-ref')
        t.equal(after.replace(/^.*refs\/heads\/hangar\/csv\n/m, ''), before, 'nothing else moved there')
        t.match((await deliver(story, 'csv')).body, { status: 'unchanged', commit: body.head_commit })
        const again = await hangar.cli(['session', 'deliver', 'csv'])
        t.match(again, { status: 0, err: /hangar\/csv is at .* \(it was already\)/ })
      },
    )

    // Whose credential it is makes no difference to the rest.
    t.strictSame(peer.violations, [])
    if (credential === 'token') return
    await t.test('an amended branch replaces what was delivered last; what others pushed there stays', async (t) => {
      await hangar.api('POST', '/api/sessions/csv/turns', { message: 'git commit -q --amend -m amended' })
      await hangar.api('GET', '/api/sessions/csv/wait?timeout_seconds=120&turn=2')
      t.match(await deliver(story, 'csv'), { status: 200, body: { status: 'delivered' } })
      await shell(
        seed,
        `git fetch -q '${repo.dir}' hangar/csv && git switch -q --detach FETCH_HEAD && echo x >review.txt`,
      )
      await shell(seed, `git add . && git commit -qm review && git push -q '${repo.dir}' HEAD:hangar/csv`)
      const theirs = await tipOf(seed, 'HEAD')
      await hangar.api('POST', '/api/sessions/csv/turns', { message: COMMIT })
      await hangar.api('GET', '/api/sessions/csv/wait?timeout_seconds=120&turn=3')
      const lost = await deliver(story, 'csv')
      t.match(lost, { status: 409, body: { code: 'upstream_moved', detail: new RegExp(`--expected ${theirs}`) } })
      t.equal(await tipOf(repo.dir, 'refs/heads/hangar/csv'), theirs, 'nothing was overwritten')
      t.match(await deliver(story, 'csv', { expected: theirs }), { status: 200, body: { status: 'delivered' } })
      await shell(repo.dir, 'git -c safe.directory=* update-ref -d refs/heads/hangar/csv')
      await hangar.api('POST', '/api/sessions/csv/turns', { message: COMMIT })
      await hangar.api('GET', '/api/sessions/csv/wait?timeout_seconds=120&turn=4')
      t.match(await deliver(story, 'csv'), { status: 409, body: { code: 'upstream_moved', detail: /not there/ } })
      t.match(await deliver(story, 'csv', { expected: '0'.repeat(40) }), { status: 200 })
      const events = (await hangar.api('GET', '/api/sessions/csv/events?limit=500')).body.items as { state?: string }[]
      t.same(events.filter(({ state }) => state === 'delivery_failed').length, 2)
    })

    await t.test('a name that is free again does not take what another session delivered', async (t) => {
      const theirs = await tipOf(repo.dir, 'refs/heads/hangar/csv')
      await hangar.api('POST', '/api/sessions/csv/close', { delete: true })
      t.same(await refsOf(story, 'refs/upstream/heads/hangar/*'), [])
      await work(story, 'csv', COMMIT)
      t.match(await deliver(story, 'csv'), { status: 409, body: { code: 'upstream_moved' } })
      t.equal(await tipOf(repo.dir, 'refs/heads/hangar/csv'), theirs)
    })

    t.strictSame(peer.violations, [])
    const asked = peer.tokens.minted.map(({ permissions, repositories }) => ({ permissions, repositories }))
    t.same([...new Set(asked.map((one) => JSON.stringify(one)))].sort(), [
      JSON.stringify({ permissions: { contents: 'read' }, repositories: [repo.id] }),
      JSON.stringify({ permissions: { contents: 'write' }, repositories: [repo.id] }),
    ])
    t.equal(asked.length, 2, 'tokens are kept while they are good')
  })

t.test('forward: on_push', async (t) => {
  const story = await startMirrored(t, 'token', { environment: { forward: 'on_push' } })
  const { repo, peer, hangar } = story
  const arrives = (name: string, oid: string) =>
    waitUntil(`${name} is upstream`, async () => (await tipOf(repo.dir, `refs/heads/hangar/${name}`)) === oid)
  const states = async (name: string) =>
    (
      (await hangar.api('GET', `/api/sessions/${name}/events?limit=500`)).body.items as {
        state?: string
        text?: string
      }[]
    ).filter(({ state }) => /^deliver/.test(state ?? ''))

  const { body } = await work(story, 'pushed', COMMIT)
  await arrives('pushed', body.head_commit)
  await waitUntil('it is told', async () => (await states('pushed')).length === 1)
  t.match(await states('pushed'), [{ state: 'delivered', text: new RegExp(body.head_commit) }])

  await t.test('an upstream that is away gets it later; the session is told once', async (t) => {
    peer.fail({ on: /service=git-receive-pack/, times: 2, status: 502 })
    const { body } = await work(story, 'later', COMMIT)
    t.equal(body.turns[0].outcome, 'exited', 'the turn does not wait for it')
    await arrives('later', body.head_commit)
    await waitUntil('it is told', async () => (await states('later')).length === 2)
    t.match(await states('later'), [
      { state: 'delivery_failed', text: /upstream_unreachable.*tried again/ },
      { state: 'delivered' },
    ])
  })

  await t.test('a refusal is told, and not tried again before the next push', async (t) => {
    repo.protect('hangar/guarded')
    await work(story, 'guarded', COMMIT)
    await waitUntil('it is told', async () => (await states('guarded')).length === 1)
    t.match(await states('guarded'), [{ state: 'delivery_failed', text: /upstream_protected.*GH006/ }])
  })

  await t.test('what was pushed before the server ended is forwarded by the next one', async (t) => {
    peer.fail({ on: /info\/refs\?service=git-receive-pack/, times: 1_000, status: 502 })
    const { body } = await work(story, 'ended', COMMIT)
    await waitUntil('it failed once', async () => (await states('ended')).length === 1)
    await hangar.close()
    peer.heal()
    const again = await hangar.restart()
    t.teardown(() => again.close())
    await arrives('ended', body.head_commit)
    t.equal(await tipOf(repo.dir, 'refs/heads/hangar/ended'), body.head_commit)
  })
  t.strictSame(peer.violations, [])
})

for (const credential of ['token', 'app'] as const)
  t.test(`over TLS, the credential of ${credential} is nowhere but in the gateway`, async (t) => {
    const dir = temporaryDirectory(t)
    const seen = join(dir, 'seen')
    // Every git that the server runs leaves its arguments and environment.
    await shell(
      dir,
      `mkdir bin && real=$(command -v git) && printf '#!/bin/sh\\n{ printf "%%s\\\\n" "$*"; env; } >>%s\\nexec %s "$@"\\n' '${seen}' "$real" >bin/git && chmod 755 bin/git`,
    )
    const path = process.env['PATH'] ?? ''
    process.env['PATH'] = `${join(dir, 'bin')}:${path}`
    t.teardown(() => {
      process.env['PATH'] = path
    })
    const logged: string[] = []
    const write = (fields: object, message: string) => void logged.push(JSON.stringify(fields) + message)
    const story = await startMirrored(t, credential, {
      tls: true,
      environment: { forward: 'on_push' },
      log: { info: write, warn: write, error: write },
    })
    const { peer, pat, hangar, repo } = story
    peer.tokenLifeMs = 4_000
    const processes = watchProcesses()
    const LOOK =
      '(env; cat /proc/*/environ /proc/*/cmdline; git config --list --show-origin; git remote -v; git -c protocol.version=2 ls-remote; cat ~/.gitconfig; ls -laR ~ /tmp) >look.txt 2>&1; git add -A; git commit -qm look'
    const { body } = await work(story, 'looks', LOOK)
    t.equal(body.turns[0].outcome, 'exited')
    await waitUntil(
      'it is upstream',
      async () => (await tipOf(repo.dir, 'refs/heads/hangar/looks')) === body.head_commit,
    )
    peer.fail({ on: /info\/refs/, times: 3, status: 401, headers: { 'WWW-Authenticate': 'Basic realm="GitHub"' } })
    const told = [
      await deliver(story, 'looks'),
      await hangar.api('GET', '/api/repos/acme/app'),
      await hangar.api('GET', '/openapi.json'),
    ]
    peer.fail({ on: /access_tokens|info\/refs/, times: 4, status: 500 })
    told.push(await deliver(story, 'looks'), await hangar.api('GET', '/api/sessions/looks/events?limit=500'))
    peer.heal()

    const secrets = credential === 'token' ? [pat] : peer.tokens.minted.map(({ token }) => token)
    t.ok(
      secrets.length > 0 && peer.requests.some(({ as }) => as === (credential === 'token' ? 'person' : 'installation')),
    )
    const forms = secrets.flatMap((secret) => [secret, Buffer.from(`x-access-token:${secret}`).toString('base64')])
    const clean = (what: string, text: string) =>
      t.same(
        forms.filter((form) => text.includes(form)),
        [],
        what,
      )
    clean('arguments and environment of git', readFileSync(seen, 'latin1'))
    t.match(readFileSync(seen, 'latin1'), /push --porcelain/, 'which were looked at')
    clean('arguments and environment of all processes', processes.stop())
    clean('the log', logged.join('\n'))
    clean('answers', told.map(({ bytes }) => bytes.toString('latin1')).join('\n'))
    clean(
      'what the agent found',
      await shell(repo.dir, 'git -c safe.directory=* show refs/heads/hangar/looks:look.txt'),
    )
    const objects =
      "for d in $(find . -name '*.git' -type d); do git -c safe.directory=* --git-dir=$d cat-file --batch --batch-all-objects; done"
    clean(
      'every object of the store',
      (await run('sh', ['-c', objects], { cwd: hangar.dataDir })).bytes.toString('latin1'),
    )
    clean('every file of the data directory', filesUnder(hangar.dataDir))
    t.match(repo.url(), /^https:/)
    t.strictSame(peer.violations, [])
  })

/** Collects arguments and environments of all processes there are, until it is stopped. */
function watchProcesses(): { stop(): string } {
  const found = new Set<string>()
  const timer = setInterval(() => {
    for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name) && name !== String(process.pid)))
      for (const file of ['cmdline', 'environ'])
        try {
          found.add(readFileSync(`/proc/${pid}/${file}`, 'latin1'))
        } catch {
          // It has ended, or is another user's.
        }
  }, 25)
  return {
    stop: () => {
      clearInterval(timer)
      return [...found].join('\n')
    },
  }
}

function filesUnder(dir: string): string {
  const names = readdirSync(dir, { recursive: true, withFileTypes: true })
  return names
    .filter((entry) => entry.isFile())
    .map((entry) => readFileSync(join(entry.parentPath, entry.name), 'latin1'))
    .join('\n')
}
