/** What a repo follows: the address of its upstream, and the name of the credential that is used there. */
import { readFileSync } from 'node:fs'
import { type Static, Type } from '@sinclair/typebox'
import { secretValue } from './environment.ts'
import { errors, messageOf } from './errors.ts'
import { parseRepoSlug, type RepoSlug } from './names.ts'
import { strict } from './setting-shapes.ts'

/**
 * The name of a credential: the configured GitHub App, the configured GitHub token, or a secret of the server's environment or files.
 * Only names are kept in git; what they stand for is read when the server starts.
 */
export type CredentialName = 'github-app' | 'github-token' | `env:${string}` | `file:${string}`

export interface Upstream {
  /** `https://host/path`, without a trailing slash, user or query. */
  readonly url: string
  /** null: a public upstream, fetched without one. */
  readonly credential: CredentialName | null
}

export const CredentialShape = Type.String({
  pattern: '^(github-app|github-token|env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\\0]*)$',
  description: '`github-app`, `github-token`, `env:NAME` or `file:/PATH`.',
})

/** The config file's `repos`. */
export const ReposShape = Type.Record(
  Type.String(),
  Type.Object(
    {
      upstream: Type.Optional(Type.String({ minLength: 1 })),
      credential: Type.Optional(CredentialShape),
      may_read: Type.Optional(Type.Array(Type.String())),
    },
    strict,
  ),
  strict,
)

/** `github.token`, which is no plain setting. */
export const GithubTokenShape = Type.Object(
  { from: Type.String({ pattern: '^(env|file):.+$', description: '`env:NAME` or `file:PATH`.' }) },
  strict,
)

/** Variables that an admin may name over REST: what else is in the server's environment is nobody's to send anywhere. */
export const NAMEABLE = /^env:HANGAR_CREDENTIAL_[A-Za-z0-9_]+$/

export interface GithubConfig {
  /** Without a trailing slash; of GitHub Enterprise Server `https://HOST/api/v3`. */
  readonly apiUrl: string
  readonly app: { readonly id: number; readonly privateKey: string } | null
  readonly token: string | null
}

export interface UpstreamConfig {
  /** Repos of the config file; null: hosted here. */
  readonly repos: ReadonlyMap<RepoSlug, Upstream | null>
  /** Further repos that sandboxes of a repo's sessions may read. */
  readonly mayRead: ReadonlyMap<RepoSlug, readonly RepoSlug[]>
  readonly github: GithubConfig
  /** What `env:` and `file:` names stand for. */
  readonly secrets: ReadonlyMap<string, string>
  readonly allowPrivateAddresses: boolean
  /** A fetch is answered without asking upstream when that was asked less than this ago. */
  readonly freshMs: number
  /** Certificate authorities beside the well-known ones, as PEM; null: none. */
  readonly authorities: string | null
}

export interface UpstreamSources {
  readonly repos: Static<typeof ReposShape>
  readonly github: {
    readonly apiUrl: string
    readonly appId: number | null
    readonly appPrivateKeyFile: string | null
    readonly token: Static<typeof GithubTokenShape> | undefined
  }
  readonly allowPrivateAddresses: boolean
  readonly freshSeconds: number
  readonly caFile: string | null
  readonly env: Readonly<Record<string, string | undefined>>
}

/** Reads what settings and config file say of upstreams, with every secret that they name. Throws `config_invalid`. */
export function upstreamConfigOf(sources: UpstreamSources): UpstreamConfig {
  const { env, allowPrivateAddresses } = sources
  const secrets = new Map<string, string>()
  for (const name of Object.keys(env)) {
    const credential = `env:${name}`
    if (NAMEABLE.test(credential) && env[name] !== '') secrets.set(credential, secretValue(name, credential, env))
  }
  const repos = new Map<RepoSlug, Upstream | null>()
  const mayRead = new Map<RepoSlug, readonly RepoSlug[]>()
  for (const [name, { upstream, credential = null, may_read = [] }] of Object.entries(sources.repos)) {
    const setting = `repos.${name}`
    const slug = configured(setting, () => parseRepoSlug(name))
    repos.set(slug, followed(setting, upstream, credential))
    mayRead.set(
      slug,
      configured(`${setting}.may_read`, () => may_read.map(parseRepoSlug)),
    )
    if (credential !== null && /^(env|file):/.test(credential))
      secrets.set(credential, secretValue(`${setting}.credential`, credential, env))
  }
  function followed(setting: string, upstream: string | undefined, credential: string | null): Upstream | null {
    if (upstream !== undefined)
      return {
        url: configured(`${setting}.upstream`, () => parseUpstreamUrl(upstream, allowPrivateAddresses)),
        credential: credential as CredentialName | null,
      }
    if (credential === null) return null
    throw errors.configInvalid(
      `${setting}.credential: there is no upstream to use it at; add "upstream", or take it out`,
    )
  }
  return {
    repos,
    mayRead,
    github: githubOf(sources),
    secrets,
    allowPrivateAddresses,
    freshMs: sources.freshSeconds * 1000,
    authorities: sources.caFile === null ? null : authoritiesOf(sources.caFile),
  }
}

function authoritiesOf(file: string): string {
  const refuse = (why: string, cause?: unknown) => errors.configInvalid(`upstream.ca_file=${file}: ${why}`, {}, cause)
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (cause) {
    throw refuse(`it cannot be read: ${messageOf(cause)}`, cause)
  }
  if (!text.includes('-----BEGIN CERTIFICATE-----')) throw refuse('it holds no certificate in PEM form')
  return text
}

/** Every secret value of it, to be masked wherever it may show. */
export function upstreamSecrets({ github, secrets }: UpstreamConfig): string[] {
  return [...secrets.values(), github.token, github.app?.privateKey].filter((value) => value != null)
}

function githubOf({ github, env }: UpstreamSources): GithubConfig {
  const { appId, appPrivateKeyFile } = github
  if ((appId === null) !== (appPrivateKeyFile === null))
    throw errors.configInvalid('github.app_id and github.app_private_key_file go together; set both, or neither')
  return {
    apiUrl: github.apiUrl.replace(/\/+$/, ''),
    app:
      appId === null || appPrivateKeyFile === null
        ? null
        : {
            id: appId,
            privateKey: secretValue('github.app_private_key_file', `file:${appPrivateKeyFile}`, env),
          },
    token: github.token === undefined ? null : secretValue('github.token', github.token.from, env),
  }
}

function configured<T>(setting: string, read: () => T): T {
  try {
    return read()
  } catch (cause) {
    throw errors.configInvalid(`${setting}: ${cause instanceof Error ? cause.message : String(cause)}`, {}, cause)
  }
}

/**
 * An upstream's URL as it is kept. Only https, and plain http of this host's loopback where private addresses are allowed; no user, password,
 * query or fragment. Throws `invalid_request`; the sentence holds nothing of a URL with a password in it.
 */
export function parseUpstreamUrl(text: string, allowPrivateAddresses: boolean): string {
  const refuse = (why: string) => errors.invalidRequest(`the upstream's URL is not taken: ${why}`)
  let url: URL
  try {
    url = new URL(text)
  } catch {
    throw refuse('write it as https://host/owner/name.git (of ssh and scp forms, the https one)')
  }
  if (url.username !== '' || url.password !== '')
    throw refuse('it holds a user or password; take them out, and name a credential beside it')
  if (url.protocol !== 'https:' && !(url.protocol === 'http:' && allowPrivateAddresses && isLoopbackName(url.hostname)))
    throw refuse('only https is spoken')
  if (url.search !== '' || url.hash !== '') throw refuse('it has a query or a fragment')
  const path = url.pathname.replace(/\/+$/, '')
  if (path === '' || /[\x00-\x20\x7f\\]/.test(path)) throw refuse('it has no path to a repository')
  return `${url.protocol}//${url.host}${path}`
}

/** `owner/name` of an upstream on a forge; null when the path has another shape. */
export function repositoryOf(url: string): { readonly owner: string; readonly name: string } | null {
  const found = /^\/([^/]+)\/([^/]+?)(?:\.git)?$/.exec(new URL(url).pathname)
  return found === null ? null : { owner: found[1] ?? '', name: found[2] ?? '' }
}

function isLoopbackName(host: string): boolean {
  return host === 'localhost' || host === '[::1]' || /^127\.\d+\.\d+\.\d+$/.test(host)
}

/** Where repositories are, by where the API is: api.github.com is github.com's, any other host its own. */
export function forgeHost(apiUrl: string): string {
  return new URL(apiUrl).host.replace(/^api\.github\.com$/, 'github.com').replace(/^api\.(.+\.ghe\.com)$/, '$1')
}
