/** Repos that follow an upstream: mirrored, worked on, delivered, with a token of a person and of a GitHub App; and all that may go wrong there. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { GithubPeer, type PeerRepo } from '../peers/github/peer.ts'
import { type Hangar, shell, startHangar, temporaryDirectory } from './support.ts'

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
  more: { environment?: object; fresh?: string } = {},
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

for (const credential of ['token', 'app'] as const)
  t.test(`a mirror, with the credential of ${credential}`, async (t) => {
    const story = await begin(t, credential)
    const { repo, seed, peer } = story
    t.match(await refsOf(story, 'refs/heads/*'), [/^refs\/heads\/main /, /^refs\/heads\/topic /])
    await shell(
      seed,
      `echo two >>a.txt && git commit -qam two && git push -q '${repo.dir}' main :topic && git tag v2 && git push -q '${repo.dir}' v2`,
    )
    const main = await tipOf(seed, 'main')
    t.same(await refsOf(story, 'refs/heads/*'), [`refs/heads/main ${main}`], 'a fetch sees what is upstream now')
    t.equal((await refsOf(story, 'refs/tags/v2')).length, 1)
    t.strictSame(peer.violations, [])
  })
