/** Credentials of upstreams: from their names to what git is given, for one repository and one purpose. */
import { errors } from '../../domain/errors.ts'
import { forgeHost, NAMEABLE, repositoryOf, type Upstream, type UpstreamConfig } from '../../domain/upstream.ts'

export type Access = 'read' | 'write'

export interface Credential {
  readonly username: string
  readonly password: string
  /** Where it can be had anew after the upstream took it no more; null: it is what it is. */
  readonly renew: (() => Promise<Credential>) | null
}

/** Tokens of a GitHub App's installation, for one repository with the permissions asked for. */
export interface AppTokens {
  /** `renew`: not from the cache. Throws `upstream_*`. */
  token(ask: {
    readonly owner: string
    readonly name: string
    readonly permissions: Readonly<Record<string, 'read' | 'write'>>
    readonly renew?: boolean
  }): Promise<string>
}

export interface Credentials {
  /** null: the upstream is asked without one. Throws `upstream_denied` for what is not configured, and what minting throws. */
  for(upstream: Upstream, access: Access): Promise<Credential | null>
  /** A bearer for GitHub's API, for this repository: an App's with these permissions, else the upstream's own token. Throws `upstream_*`. */
  bearer(upstream: Upstream, permissions: Readonly<Record<string, 'read' | 'write'>>): Promise<string>
  /** Throws `invalid_request` when this credential can not be used at this upstream. */
  check(upstream: Upstream): void
  /** Throws `forbidden` when a person may not name it: what the server's environment holds is not theirs to send somewhere. */
  checkNameable(upstream: Upstream): void
}

/** What GitHub wants as the user name beside a token; other forges take any. */
const TOKEN_USER = 'x-access-token'

export function createCredentials(config: UpstreamConfig, app: AppTokens | null): Credentials {
  const { github, secrets } = config
  const check = ({ url, credential }: Upstream): void => {
    const refuse = (why: string) => errors.invalidRequest(`credential ${credential ?? ''} is not taken: ${why}`)
    if (credential === null) return
    if (credential === 'github-app' || credential === 'github-token') {
      const host = forgeHost(github.apiUrl)
      if (new URL(url).host !== host) throw refuse(`it is for ${host} (github.api_url), and the upstream is elsewhere`)
      if (repositoryOf(url) === null) throw refuse('the upstream is no https://HOST/OWNER/NAME.git')
      if (credential === 'github-app' && app === null) throw refuse('set github.app_id and github.app_private_key_file')
      if (credential === 'github-token' && github.token === null) throw refuse('set github.token in the config file')
      return
    }
    if (!secrets.has(credential)) throw refuse("it is not set in the server's environment or config file")
  }

  const appCredential = async (upstream: Upstream, access: Access, renew: boolean): Promise<Credential> => {
    const repository = repositoryOf(upstream.url)
    if (app === null || repository === null) throw errors.internal('an App token was asked for without an App')
    const password = await app.token({ ...repository, permissions: { contents: access }, renew })
    return { username: TOKEN_USER, password, renew: renew ? null : () => appCredential(upstream, access, true) }
  }

  return {
    check,
    checkNameable: ({ credential }) => {
      if (credential === null || !/^(env|file):/.test(credential) || NAMEABLE.test(credential)) return
      throw errors.forbidden(
        `credential ${credential}: over REST only github-app, github-token and env:HANGAR_CREDENTIAL_… can be named; name others in the config file, under repos`,
      )
    },
    bearer: async (upstream, permissions) => {
      const repository = repositoryOf(upstream.url)
      if (upstream.credential === 'github-app' && app !== null && repository !== null)
        return app.token({ ...repository, permissions })
      return (await createFor(upstream, 'write'))?.password ?? ''
    },
    for: createFor,
  }

  async function createFor(upstream: Upstream, access: Access): Promise<Credential | null> {
    if (upstream.credential === null) return null
    try {
      check(upstream)
    } catch (cause) {
      throw errors.upstreamDenied(cause instanceof Error ? cause.message : String(cause), {}, cause)
    }
    if (upstream.credential === 'github-app') return appCredential(upstream, access, false)
    const secret = upstream.credential === 'github-token' ? github.token : secrets.get(upstream.credential)
    return secretCredential(secret ?? '')
  }
}

/** `user:password`, or a token alone. */
function secretCredential(secret: string): Credential {
  const colon = secret.indexOf(':')
  return colon === -1
    ? { username: TOKEN_USER, password: secret, renew: null }
    : { username: secret.slice(0, colon), password: secret.slice(colon + 1), renew: null }
}
