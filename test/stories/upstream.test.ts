/** Repos that follow an upstream: mirrored, worked on, delivered, with a token of a person and of a GitHub App; and all that may go wrong there. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { Log } from '../../domain/ports.ts'
import { GithubPeer, type PeerRepo } from '../peers/github/peer.ts'
import { type Hangar, run, shell, startHangar, temporaryDirectory, waitUntil } from './support.ts'

/** An agent that does what its prompt's first line says, as a shell command. */
const OBEDIENT = 'read -r line; eval "$line"'

interface Story {
  readonly peer: GithubPeer
  readonly repo: PeerRepo
  readonly hangar: Hangar
  /** A checkout whose `main` goes to the upstream's own directory, as somebody else's work. */
  readonly seed: string
  /** The PAT. */
  readonly pat: string
}

async function begin(
  t: Test,
  credential: 'token' | 'app',
  more: { environment?: object; fresh?: string; log?: Log } = {},
): Promise<Story> {
  const dir = temporaryDirectory(t)
  const peer = await GithubPeer.start(t, join(dir, 'github'))
  const repo = peer.addRepo('acme', 'app')
  const seed = join(dir, 'seed')
  await shell(
    dir,
    `git init -q -b main seed && cd seed && echo one >a.txt && git add . && git commit -q -m base && git branch topic &&
     git tag -a v1 -m one && git push -q '${repo.dir}' main topic v1`,
  )
  const pat = peer.tokens.person()
  writeFileSync(join(dir, 'app.pem'), peer.tokens.privateKey, { mode: 0o600 })
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    ...(more.log === undefined ? {} : { log: more.log }),
    settings: {
      HANGAR_UPSTREAM_ALLOW_PRIVATE_ADDRESSES: 'true',
      HANGAR_UPSTREAM_FRESH_SECONDS: more.fresh ?? '0',
      HANGAR_GITHUB_API_URL: peer.apiUrl,
      HANGAR_CREDENTIAL_PAT: pat,
      ...(credential === 'app'
        ? { HANGAR_GITHUB_APP_ID: String(peer.tokens.appId), HANGAR_GITHUB_APP_PRIVATE_KEY_FILE: join(dir, 'app.pem') }
        : {}),
    },
    config: {
      environments: { default: { harness_options: { argv: ['sh', '-c', OBEDIENT] }, ...more.environment } },
    },
  })
  const made = await hangar.api('POST', '/api/repos', {
    slug: 'acme/app',
    upstream: repo.url(),
    credential: credential === 'app' ? 'github-app' : 'env:HANGAR_CREDENTIAL_PAT',
  })
  t.match(made, { status: 201, body: { upstream: repo.url(), default_branch: 'main', upstream_error: null } })
  return { peer, repo, hangar, seed, pat }
}

/** `ref oid` lines of what a token sees. */
const refsOf = async ({ hangar }: Story, pattern = 'refs/*') =>
  (await hangar.git(hangar.dir, ['ls-remote', `${hangar.url}/git/acme/app.git`, pattern])).out
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => line.split('\t').reverse().join(' '))

const tipOf = (dir: string, ref: string) =>
  shell(dir, `git -c safe.directory=* rev-parse -q --verify '${ref}' || echo none`).then((out) => out.trim())

/** Runs one turn to its end, and gives the session. */
async function work({ hangar }: Story, name: string, message: string, more: object = {}) {
  const made = await hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message, ...more })
  if (made.status !== 201) return made
  await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)
  return hangar.api('GET', `/api/sessions/${name}`)
}

const deliver = ({ hangar }: Story, name: string, body: object = {}) =>
  hangar.api('POST', `/api/sessions/${name}/deliver`, body)

const COMMIT = 'echo work >>b.txt; git add -A; git commit -qm work'

for (const credential of ['token', 'app'] as const)
  t.test(`a mirror, a session on it and its delivery, with the credential of ${credential}`, async (t) => {
    const story = await begin(t, credential)
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
    if (credential === 'app') {
      const asked = peer.tokens.minted.map(({ permissions, repositories }) => ({ permissions, repositories }))
      t.same([...new Set(asked.map((one) => JSON.stringify(one)))].sort(), [
        JSON.stringify({ permissions: { contents: 'read' }, repositories: [repo.id] }),
        JSON.stringify({ permissions: { contents: 'write' }, repositories: [repo.id] }),
      ])
      t.equal(asked.length, 2, 'tokens are kept while they are good')
    }
  })

t.test('an upstream that fails gives a named error, and loses nothing', async (t) => {
  const story = await begin(t, 'token')
  const { repo, seed, peer, hangar } = story
  const repoView = async () => (await hangar.api('GET', '/api/repos/acme/app')).body
  const main = await tipOf(seed, 'main')
  await work(story, 'kept', COMMIT)

  await t.test('failing requests: the mirror serves what it has, and a session is told its age', async (t) => {
    const faults = [
      [{ status: 500 }, 'upstream_unreachable'],
      [{ cut: 'before' }, 'upstream_unreachable'],
      [{ status: 429, headers: { 'Retry-After': '60' } }, 'upstream_busy'],
      [{ status: 403 }, 'upstream_denied'],
      [{ status: 401 }, 'upstream_denied'],
    ] as const
    for (const [fault, code] of faults) {
      peer.fail({ on: /info\/refs/, times: 10, ...fault })
      t.match(await refsOf(story, 'refs/heads/main'), [`refs/heads/main ${main}`], `${code}: fetches are served`)
      t.match((await repoView()).upstream_error, { code })
      t.match(await deliver(story, 'kept'), { body: { code } }, `${code}: a delivery says so`)
      peer.heal()
    }
    peer.fail({ on: /info\/refs/, times: 10, status: 500 })
    const { body } = await work(story, 'stale', COMMIT)
    t.match(body.turns[0], { outcome: 'exited', warnings: [/^upstream_unreachable: .*\d+ s ago is served/] })
    peer.heal()
    t.match(await refsOf(story, 'refs/heads/main'), [`refs/heads/main ${main}`])
    t.equal((await repoView()).upstream_error, null)
  })

  await t.test('a push whose answer was lost is known as delivered', async (t) => {
    peer.fail({ on: /^POST .*git-receive-pack$/, cut: 'after' })
    t.match(await deliver(story, 'kept'), { status: 503, body: { code: 'upstream_unreachable' } })
    t.match(await deliver(story, 'kept'), { status: 200, body: { status: 'unchanged' } })
  })

  await t.test('a refresh that is cut half-way moves nothing', async (t) => {
    await shell(
      seed,
      `git switch -q main && echo four >>a.txt && git commit -qam four && git push -q '${repo.dir}' main main:zz`,
    )
    peer.fail({ on: /^POST .*git-upload-pack$/, times: 20, cut: 'before' })
    t.same(await refsOf(story, 'refs/heads/zz'), [])
    t.match(await refsOf(story, 'refs/heads/main'), [`refs/heads/main ${main}`])
    peer.heal()
    t.equal((await refsOf(story, 'refs/heads/zz')).length, 1)
  })

  await t.test('a branch that was forced upstream is followed, and told', async (t) => {
    const old = await tipOf(seed, 'main')
    await work(story, 'before-force', COMMIT)
    await shell(seed, `git commit -q --amend -m rewritten && git push -qf '${repo.dir}' main`)
    const now = await tipOf(seed, 'main')
    t.match(await refsOf(story, 'refs/heads/main'), [`refs/heads/main ${now}`])
    t.match((await repoView()).notices, [new RegExp(`^upstream_rewritten: main was forced from ${old} to ${now}`)])
    const { body } = await hangar.api('GET', '/api/sessions/before-force')
    t.equal(body.base_commit, old)
    t.match((await hangar.api('GET', '/api/sessions/before-force/patch')).bytes.toString(), /\+work/)
  })

  await t.test('a protected branch: the upstream has its say', async (t) => {
    repo.protect('hangar/guarded')
    await work(story, 'guarded', COMMIT)
    const refused = await deliver(story, 'guarded')
    t.match(refused, {
      status: 409,
      body: { code: 'upstream_protected', detail: /GH006: Protected branch update failed/ },
    })
    t.equal(await tipOf(repo.dir, 'refs/heads/hangar/guarded'), 'none')
  })

  await t.test('files in Git LFS are listed, at once', async (t) => {
    const pointer =
      'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n'
    const lfs = `git switch -q -c lfs && mkdir -p art && printf '%s' '${pointer}' >'art/big file.psd' && echo '*.psd filter=lfs diff=lfs merge=lfs -text' >.gitattributes`
    await shell(
      seed,
      `${lfs} && git add . && git commit -qm lfs && git push -q '${repo.dir}' lfs && git switch -q main`,
    )
    const refused = await hangar.api('POST', '/api/sessions', {
      name: 'big',
      repo: 'acme/app',
      ref: 'lfs',
      message: 'true',
    })
    t.match(refused, { status: 422, body: { code: 'lfs_unsupported', detail: /1 file\(s\).*art\/big file\.psd/ } })
    t.equal((await hangar.api('GET', '/api/sessions/big')).status, 404)
    const agents = `printf '${pointer.replaceAll('\n', '\\n')}' >x.psd; echo '*.psd filter=lfs' >.gitattributes; git -c filter.lfs.clean= add -A; git commit -qm lfs`
    await work(story, 'agents-lfs', agents)
    t.match(await deliver(story, 'agents-lfs'), { status: 422, body: { code: 'lfs_unsupported', detail: /x\.psd/ } })
  })

  await t.test('an upstream that was emptied, renamed, deleted, or is down', async (t) => {
    const now = await tipOf(seed, 'main')
    const holds = async (code: string) => {
      t.match(await refsOf(story, 'refs/heads/main'), [`refs/heads/main ${now}`], `${code}: served`)
      t.match((await repoView()).upstream_error, { code })
    }
    const refs = await shell(repo.dir, 'git -c safe.directory=* for-each-ref --format="%(objectname) %(refname)"')
    await shell(
      repo.dir,
      'git -c safe.directory=* for-each-ref --format="delete %(refname)" | git -c safe.directory=* update-ref --stdin',
    )
    await holds('upstream_empty')
    const again = refs
      .trim()
      .split('\n')
      .map((line) => `create ${line.split(' ').reverse().join(' ')}`)
      .join('\n')
    await shell(repo.dir, `git -c safe.directory=* update-ref --stdin <<'X'\n${again}\nX`)
    t.equal((await refsOf(story, 'refs/heads/main')).length, 1)
    repo.rename('renamed')
    await holds('upstream_renamed')
    t.match(await deliver(story, 'stale'), { status: 409, body: { code: 'upstream_renamed' } })
    repo.remove()
    peer.requests.length = 0
    const gone = await hangar.api('POST', '/api/repos', {
      slug: 'acme/none',
      upstream: repo.url(),
      credential: 'env:HANGAR_CREDENTIAL_PAT',
    })
    t.match(gone, { status: 409, body: { code: 'upstream_gone' } })
    t.equal((await hangar.api('GET', '/api/repos/acme/none')).status, 404, 'a repo that cannot be mirrored is not made')
    await peer.stop()
    await holds('upstream_unreachable')
    const { body } = await work(story, 'offline', COMMIT)
    t.match(body.turns[0], { outcome: 'exited' })
    t.match(await deliver(story, 'offline'), { status: 503, body: { code: 'upstream_unreachable' } })
  })
  t.strictSame(peer.violations, [])
})

t.test('tokens of an App that live for seconds are made anew, also in the middle of a push', async (t) => {
  const story = await begin(t, 'app')
  const { peer, repo, hangar } = story
  peer.tokenLifeMs = 6_000
  await work(story, 'short', COMMIT)
  t.match(await deliver(story, 'short'), { status: 200 })
  await new Promise((resolve) => setTimeout(resolve, 6_100))
  t.equal((await refsOf(story, 'refs/heads/main')).length, 1)
  t.equal((await hangar.api('GET', '/api/repos/acme/app')).body.upstream_error, null)

  await hangar.api('POST', '/api/sessions/short/turns', { message: COMMIT })
  await hangar.api('GET', '/api/sessions/short/wait?timeout_seconds=120&turn=2')
  peer.tokenLifeMs = 3_600_000
  const before = peer.tokens.minted.length
  peer.fail({
    on: /service=git-receive-pack/,
    status: 401,
    headers: { 'WWW-Authenticate': 'Basic realm="GitHub"' },
    times: 2,
  })
  t.match(await deliver(story, 'short'), { status: 200, body: { status: 'delivered' } })
  t.equal(peer.tokens.minted.length - before, 2, 'one token, and once another after the 401')
  peer.fail({ on: /info\/refs/, status: 401, headers: { 'WWW-Authenticate': 'Basic realm="GitHub"' }, times: 100 })
  t.match(await deliver(story, 'short'), { status: 502, body: { code: 'upstream_denied' } })
  peer.heal()
  t.equal(
    await tipOf(repo.dir, 'refs/heads/hangar/short'),
    (await hangar.api('GET', '/api/sessions/short')).body.head_commit,
  )

  await t.test('an App that may not write, or not there', async (t) => {
    peer.permissions = { contents: 'read', metadata: 'read' }
    await work(story, 'reader', COMMIT)
    peer.fail({ on: /info\/refs/, times: 2, status: 401, headers: { 'WWW-Authenticate': 'Basic realm="GitHub"' } })
    const denied = await deliver(story, 'reader')
    t.match(denied, { status: 502, body: { code: 'upstream_denied', detail: /permission contents/ } })
    const other = peer.addRepo('acme', 'other')
    peer.fail({ on: /other\/installation/, cut: 'before', times: 3 })
    const body = { slug: 'acme/other', upstream: other.url(), credential: 'github-app' }
    t.match(await hangar.api('POST', '/api/repos', body), { status: 503, body: { code: 'upstream_unreachable' } })
    peer.heal()
    other.rename('elsewhere')
    t.match(await hangar.api('POST', '/api/repos', body), { status: 409, body: { code: 'upstream_renamed' } })
  })
  t.strictSame(peer.violations, [])
})

t.test('forward: on_push', async (t) => {
  const story = await begin(t, 'token', { environment: { forward: 'on_push' } })
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
  t.test(`the credential of ${credential} is nowhere but in the gateway`, async (t) => {
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
    const story = await begin(t, credential, {
      environment: { forward: 'on_push' },
      log: { info: write, warn: write, error: write },
    })
    const { peer, pat, hangar, repo } = story
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
