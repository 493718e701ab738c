/** Tokens of a GitHub App's installations: each for one repository with the least permissions, kept until shortly before it ends. */
import { App } from '@octokit/app'
import { errors, HangarError, messageOf } from '../../domain/errors.ts'
import type { Clock } from '../../domain/ports.ts'
import type { GithubConfig } from '../../domain/upstream.ts'
import { createApiClient } from './api-client.ts'
import type { AppTokens } from './credentials.ts'

export interface GithubTokensDeps {
  readonly apiUrl: string
  readonly app: NonNullable<GithubConfig['app']>
  readonly clock: Clock
  /** The certificate authorities to hold the API against, as PEM; null: node's own. */
  readonly authorities: readonly string[] | null
}

interface Minted {
  readonly token: string
  /** From here on it is not handed out any more. */
  readonly staleAt: number
}

/** A push may take a while: a token with less left is minted anew (of one that lives for seconds, when half of that is over). */
const MARGIN_MS = 10 * 60_000
const SILENT = { debug() {}, info() {}, warn() {}, error() {} }

export function createGithubTokens({ apiUrl, app, clock, authorities }: GithubTokensDeps): AppTokens {
  const { octokit } = new App({ appId: app.id, privateKey: app.privateKey, log: SILENT })
  const kept = new Map<string, Minted>()
  const minting = new Map<string, Promise<Minted>>()
  const installations = new Map<string, number>()
  const options = { baseUrl: apiUrl, request: { fetch: createApiClient(authorities) } }

  async function installationOf(owner: string, repo: string): Promise<number> {
    const known = installations.get(`${owner}/${repo}`)
    if (known !== undefined) return known
    const { data, status } = await octokit.request('GET /repos/{owner}/{repo}/installation', {
      owner,
      repo,
      ...options,
    })
    if ((status as number) !== 200) throw renamed(owner, repo)
    installations.set(`${owner}/${repo}`, data.id)
    return data.id
  }

  async function mint(owner: string, repo: string, permissions: Readonly<Record<string, string>>): Promise<Minted> {
    const askedAt = clock.now()
    const { data, status } = await octokit.request('POST /app/installations/{installation_id}/access_tokens', {
      installation_id: await installationOf(owner, repo),
      repositories: [repo],
      permissions,
      ...options,
    })
    if ((status as number) !== 201) throw renamed(owner, repo)
    const life = Math.max(0, Date.parse(data.expires_at) - askedAt)
    return { token: data.token, staleAt: askedAt + life - Math.min(MARGIN_MS, life / 2) }
  }

  return {
    async token({ owner, name, permissions, renew = false }) {
      const key = `${owner}/${name} ${JSON.stringify(permissions)}`
      const good = kept.get(key)
      if (good !== undefined && !renew && good.staleAt > clock.now()) return good.token
      // Those that ask at once share one; what is being minted right now is new enough for everybody.
      const minted = minting.get(key) ?? mint(owner, name, permissions)
      minting.set(key, minted)
      try {
        const fresh = await minted
        kept.set(key, fresh)
        return fresh.token
      } catch (error) {
        installations.delete(`${owner}/${name}`)
        throw failureOf(error, `${owner}/${name}`)
      } finally {
        if (minting.get(key) === minted) minting.delete(key)
      }
    },
  }
}

function renamed(owner: string, repo: string): HangarError {
  return errors.upstreamRenamed(
    `GitHub answers with a redirect for ${owner}/${repo}: it was renamed or moved; set its new URL as the repo's upstream`,
  )
}

/** Without the request, which holds the App's signature. */
function failureOf(error: unknown, repo: string): HangarError {
  if (error instanceof HangarError) return error
  const { status, response } = error as { status?: number; response?: { headers?: Record<string, string | undefined> } }
  const reason = messageOf(error).slice(0, 500)
  const headers = response?.headers ?? {}
  if (
    status === 429 ||
    (status === 403 && (headers['retry-after'] !== undefined || headers['x-ratelimit-remaining'] === '0'))
  )
    return errors.upstreamBusy(`GitHub gives no token for ${repo} for now: its rate limit is used up`, { reason })
  switch (status) {
    case 401:
      return errors.upstreamDenied('GitHub does not take the App: check github.app_id and its private key', { reason })
    case 403:
    case 422:
      return errors.upstreamDenied(
        `GitHub gives the App no token for ${repo}: grant its installation the permission contents, and this repository`,
        { reason },
      )
    case 404:
      return errors.upstreamGone(
        `the GitHub App is not installed on ${repo}, or there is no such repository; install it there`,
        { reason },
      )
    default:
      return errors.upstreamUnreachable(
        `GitHub's API gives no token for ${repo} (${reason})${/certificate/.test(reason) ? '; name the authority of its certificate in upstream.ca_file' : ''}`,
        { reason },
      )
  }
}
