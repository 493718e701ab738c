/** Upstreams that answer slowly or by halves, and many at once: a named error, what was fetched before, and no more work than may be. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { Oid, RefName, RepoSlug } from '../../domain/names.ts'
import type { Upstream, UpstreamConfig } from '../../domain/upstream.ts'
import { createRepositories } from '../../gateway/git/repositories.ts'
import { createCredentials } from '../../gateway/upstream/credentials.ts'
import { createGithubTokens } from '../../gateway/upstream/github.ts'
import { createRemote, type Remote } from '../../gateway/upstream/remote.ts'
import { createUpstreams } from '../../gateway/upstream/upstreams.ts'
import { makeCertificate } from '../peers/certificate.ts'
import { GithubPeer } from '../peers/github/peer.ts'
import { SILENT, shell, temporaryDirectory } from '../stories/support.ts'

async function opened(t: Parameters<typeof temporaryDirectory>[0], repos: Map<RepoSlug, Upstream>, remote?: Remote) {
  const config: UpstreamConfig = {
    repos,
    mayRead: new Map(),
    github: { apiUrl: 'https://api.github.com', app: null, token: null },
    secrets: new Map([['env:HANGAR_CREDENTIAL_PAT', 'a-personal-token']]),
    allowPrivateAddresses: true,
    freshMs: 0,
    authorities: null,
  }
  const credentials = createCredentials(config, null)
  const signer = { publicKeyArmored: '', sign: async () => 'no signature' }
  const repositories = await createRepositories({ dataDir: join(temporaryDirectory(t), 'data'), signer, log: SILENT })
  const meta = new Map<string, unknown>()
  const upstreams = await createUpstreams({
    repositories,
    remote: remote ?? createRemote({ credentials, allowPrivateAddresses: true, caFile: null, listMs: 800 }),
    credentials,
    index: {
      meta: {
        get: async (key: string) => meta.get(key),
        put: async (key: string, value: unknown) => void meta.set(key, value),
        del: async (key: string) => void meta.delete(key),
      },
    } as unknown as Parameters<typeof createUpstreams>[0]['index'],
    events: { append: async () => {} } as unknown as Parameters<typeof createUpstreams>[0]['events'],
    config,
    clock: { now: Date.now },
    log: SILENT,
    mostRefreshes: 3,
  })
  t.teardown(async () => {
    await upstreams.close()
    await repositories.close()
  })
  return { upstreams, repositories }
}

t.test('an upstream that crawls is unreachable in the end, and what is here is served', async (t) => {
  const dir = temporaryDirectory(t)
  const peer = await GithubPeer.start(t, join(dir, 'github'))
  peer.tokens.people.add('a-personal-token')
  const app = peer.addRepo('acme', 'app')
  await shell(
    dir,
    `git init -q -b main seed && cd seed && git commit -q --allow-empty -m one && git push -q '${app.dir}' main`,
  )
  const slug = 'acme/app' as RepoSlug
  const upstream: Upstream = { url: app.url(), credential: 'env:HANGAR_CREDENTIAL_PAT' }
  const { upstreams, repositories } = await opened(t, new Map([[slug, upstream]]))
  t.same(await upstreams.refresh(slug), [])
  const repo = await repositories.open(slug)
  const main = await repo?.refs.read('refs/heads/main' as RefName)
  t.ok(main)
  await shell(join(dir, 'seed'), `git commit -q --allow-empty -m two && git push -q '${app.dir}' main`)
  for (const slow of ['nothing', 'drops', 'half'] as const) {
    peer.fail({ on: /info\/refs/, slow, times: 5 })
    t.match(await upstreams.refresh(slug), [/^upstream_unreachable: .* s ago is served$/], slow)
    t.match((await upstreams.state(slug))?.failure, { code: 'upstream_unreachable' }, slow)
    await t.rejects(
      upstreams.deliver(slug, { branch: 'refs/heads/hangar/none' as RefName }),
      { code: 'no_content' },
      'what has nothing to deliver does not ask',
    )
    t.equal(await repo?.refs.read('refs/heads/main' as RefName), main, `${slow}: no ref moved`)
    peer.heal()
  }
  peer.fail({ on: /^POST .*git-upload-pack/, slow: 'half', times: 5 })
  t.match(await upstreams.refresh(slug), [/^upstream_unreachable/], 'a pack that ends half-way')
  t.equal(await repo?.refs.read('refs/heads/main' as RefName), main)
  peer.heal()
  t.same(await upstreams.refresh(slug), [])
  t.not(await repo?.refs.read('refs/heads/main' as RefName), main)
})

t.test('of many mirrors some are refreshed at once, each once for all that ask', async (t) => {
  let [running, most, listed] = [0, 0, 0]
  const remote: Remote = {
    async list() {
      listed++
      most = Math.max(most, ++running)
      await new Promise((resolve) => setTimeout(resolve, 30))
      running--
      return { head: null, refs: [] }
    },
    fetch: async () => {},
    push: async () => ({ ok: true }),
  }
  const slugs = Array.from({ length: 12 }, (_, at) => `acme/r${at}` as RepoSlug)
  const named = (slug: RepoSlug): Upstream => ({ url: `https://forge.example/${slug}.git`, credential: null })
  const { upstreams } = await opened(t, new Map(slugs.map((slug) => [slug, named(slug)])), remote)
  await Promise.all(slugs.flatMap((slug) => [1, 2, 3, 4].map(() => upstreams.freshen(slug))))
  t.equal(most, 3)
  t.equal(listed, 12)
})

t.test('no other protocol than http is spoken, whatever a record says', async (t) => {
  const dir = temporaryDirectory(t)
  const config = { secrets: new Map(), github: { apiUrl: 'https://api.github.com', app: null, token: null } }
  const credentials = createCredentials(config as unknown as UpstreamConfig, null)
  const remote = createRemote({ credentials, allowPrivateAddresses: true, caFile: null, listMs: 5_000 })
  await shell(dir, 'git init -q there && git -C there commit -q --allow-empty -m x')
  for (const url of [
    `file://localhost${dir}/there`,
    `ext::sh -c 'touch ${dir}/touched'`,
    'ssh://-oProxyCommand=id@127.0.0.1/x',
    'git://127.0.0.1/x',
    `--upload-pack=touch ${dir}/touched`,
  ]) {
    const upstream: Upstream = { url, credential: null }
    await t.rejects(remote.list(upstream, 'read'), url)
    const repo = { dir: join(dir, 'there', '.git') } as Parameters<Remote['fetch']>[0]
    await t.rejects(remote.fetch(repo, upstream, ['a'.repeat(40) as Oid]), url)
  }
  t.equal(await shell(dir, 'ls'), 'there\n')
})

t.test('a certificate of an authority that is not known is told as such, and known by its file', async (t) => {
  const dir = temporaryDirectory(t)
  const certificate = makeCertificate()
  if (certificate === null) throw new Error('openssl is not here')
  const peer = await GithubPeer.start(t, join(dir, 'github'), certificate)
  peer.tokens.people.add('a-personal-token')
  const app = peer.addRepo('acme', 'app')
  await shell(
    dir,
    `git init -q -b main s && cd s && git commit -q --allow-empty -m one && git push -q '${app.dir}' main`,
  )
  writeFileSync(join(dir, 'ca.pem'), certificate.cert)
  const upstream: Upstream = { url: app.url(), credential: 'env:HANGAR_CREDENTIAL_PAT' }
  const config = { secrets: new Map([['env:HANGAR_CREDENTIAL_PAT', 'a-personal-token']]) } as unknown as UpstreamConfig
  const listed = (caFile: string | null) =>
    createRemote({ credentials: createCredentials(config, null), allowPrivateAddresses: true, caFile }).list(
      upstream,
      'read',
    )
  await t.rejects(listed(null), { code: 'upstream_unreachable', message: /upstream\.ca_file/ })
  t.match(await listed(join(dir, 'ca.pem')), { head: 'refs/heads/main' })

  const { appId, privateKey } = peer.tokens
  const tokens = (authorities: readonly string[] | null) =>
    createGithubTokens({ apiUrl: peer.apiUrl, app: { id: appId, privateKey }, clock: { now: Date.now }, authorities })
  const wanted = { owner: 'acme', name: 'app', permissions: { contents: 'read' } } as const
  await t.rejects(tokens(null).token(wanted), { code: 'upstream_unreachable', message: /upstream\.ca_file/ })
  t.match(await tokens([certificate.cert]).token(wanted), /^ghs_/)
  peer.fail({ on: /access_tokens/, status: 302, headers: { Location: `${peer.apiUrl}/elsewhere` } })
  await t.rejects(tokens([certificate.cert]).token(wanted), { code: 'upstream_renamed' }, 'a redirect is not followed')
  t.notOk(peer.requests.some(({ what }) => what.includes('elsewhere')))
  peer.fail({ on: /access_tokens/, status: 999 })
  await t.rejects(
    tokens([certificate.cert]).token(wanted),
    { code: 'upstream_unreachable' },
    'a status that there is not',
  )
})
