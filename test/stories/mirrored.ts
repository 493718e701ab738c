/** What the stories of upstreams share: a stand-in for GitHub with a repo, and a server that mirrors it with a PAT or a GitHub App. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import type { Log } from '../../domain/ports.ts'
import { makeCertificate } from '../peers/certificate.ts'
import { GithubPeer, type PeerRepo } from '../peers/github/peer.ts'
import { type ApiAnswer, type Hangar, shell, startHangar, temporaryDirectory } from './support.ts'

/** An agent that does what its prompt's first line says, as a shell command. */
const OBEDIENT = 'read -r line; eval "$line"'

export interface Mirrored {
  readonly peer: GithubPeer
  readonly repo: PeerRepo
  readonly hangar: Hangar
  /** A checkout whose `main` goes to the upstream's own directory, as somebody else's work. */
  readonly seed: string
  /** The PAT. */
  readonly pat: string
}

export interface MirroredOptions {
  readonly environment?: object
  readonly fresh?: string
  readonly log?: Log
  /** Over https, with a certificate of its own. */
  readonly tls?: boolean
}

export async function startMirrored(
  t: Test,
  credential: 'token' | 'app',
  options: MirroredOptions = {},
): Promise<Mirrored> {
  const dir = temporaryDirectory(t)
  const certificate = options.tls === true ? makeCertificate() : null
  const peer = await GithubPeer.start(t, join(dir, 'github'), certificate)
  const repo = peer.addRepo('acme', 'app')
  const seed = join(dir, 'seed')
  await shell(
    dir,
    `git init -q -b main seed && cd seed && echo one >a.txt && git add . && git commit -q -m base && git branch topic &&
     git tag -a v1 -m one && git push -q '${repo.dir}' main topic v1`,
  )
  const pat = peer.tokens.person()
  writeFileSync(join(dir, 'app.pem'), peer.tokens.privateKey, { mode: 0o600 })
  if (certificate !== null) writeFileSync(join(dir, 'ca.pem'), certificate.cert)
  const hangar = await startHangar(t, {
    agent: OBEDIENT,
    ...(options.log === undefined ? {} : { log: options.log }),
    settings: {
      HANGAR_UPSTREAM_ALLOW_PRIVATE_ADDRESSES: 'true',
      HANGAR_UPSTREAM_FRESH_SECONDS: options.fresh ?? '0',
      ...(certificate === null ? {} : { HANGAR_UPSTREAM_CA_FILE: join(dir, 'ca.pem') }),
      HANGAR_GITHUB_API_URL: peer.apiUrl,
      HANGAR_CREDENTIAL_PAT: pat,
      ...(credential === 'app'
        ? { HANGAR_GITHUB_APP_ID: String(peer.tokens.appId), HANGAR_GITHUB_APP_PRIVATE_KEY_FILE: join(dir, 'app.pem') }
        : {}),
    },
    config: {
      environments: { default: { harness_options: { argv: ['sh', '-c', OBEDIENT] }, ...options.environment } },
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
export const refsOf = async ({ hangar }: Mirrored, pattern = 'refs/*') =>
  (await hangar.git(hangar.dir, ['ls-remote', `${hangar.url}/git/acme/app.git`, pattern])).out
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => line.split('\t').reverse().join(' '))

/** The oid of a ref of a repository on this disk; `none` where it is not. */
export const tipOf = (dir: string, ref: string) =>
  shell(dir, `git -c safe.directory=* rev-parse -q --verify '${ref}' || echo none`).then((out) => out.trim())

/** Runs one turn to its end, and gives the session. */
export async function work(
  { hangar }: Pick<Mirrored, 'hangar'>,
  name: string,
  message: string,
  more: object = {},
): Promise<ApiAnswer> {
  const made = await hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message, ...more })
  if (made.status !== 201) return made
  await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)
  return hangar.api('GET', `/api/sessions/${name}`)
}

export const deliver = ({ hangar }: Pick<Mirrored, 'hangar'>, name: string, body: object = {}) =>
  hangar.api('POST', `/api/sessions/${name}/deliver`, body)

/** What an agent does that has one commit to show. */
export const COMMIT = 'echo work >>b.txt; git add -A; git commit -qm work'
