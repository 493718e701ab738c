/** What may go wrong with an upstream: it fails, moves, refuses, or takes a token no more. Each has a name, and nothing is lost. */
import t from 'tap'
import { COMMIT, deliver, refsOf, startMirrored, tipOf, work } from './mirrored.ts'
import { shell } from './support.ts'

t.test('an upstream that fails gives a named error, and loses nothing', async (t) => {
  const story = await startMirrored(t, 'token')
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
    t.match(await deliver(story, 'kept'), { status: 200, body: { status: 'delivered' } })
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
  const story = await startMirrored(t, 'app')
  const { peer, repo, hangar } = story
  peer.tokenLifeMs = 3_000
  await work(story, 'short', COMMIT)
  t.match(await deliver(story, 'short'), { status: 200 })
  await new Promise((resolve) => setTimeout(resolve, 3_100))
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
