/** What is shown on GitHub of a branch that was pushed there: one pull request, one comment edited in place, and a check run. Safe to repeat. */
import { errors, HangarError, messageOf } from '../../domain/errors.ts'
import type { Oid } from '../../domain/names.ts'
import { forgeHost, repositoryOf, type Upstream } from '../../domain/upstream.ts'

/** A pushed branch as it is to be shown. */
export interface Shown {
  /** Of branch and pull request, without `refs/heads/`. */
  readonly branch: string
  readonly base: string
  readonly commit: Oid
  readonly title: string
  readonly body: string
  readonly draft: boolean
  /** A line that no other comment has, by which its own is found again; it is part of `comment`. */
  readonly marker: string
  readonly comment: string
  readonly check: {
    readonly externalId: string
    readonly conclusion: 'success' | 'neutral'
    readonly title: string
    readonly summary: string
    readonly detailsUrl: string
  }
}

export interface Published {
  readonly url: string | null
  /** What could not be shown, which is no reason to fail. */
  readonly warnings: readonly string[]
}

export interface Forge {
  /** Whether the upstream is one whose people can be shown anything. */
  knows(upstream: Upstream): boolean
  /** Throws `upstream_*`. */
  publish(upstream: Upstream, shown: Shown): Promise<Published>
}

/** One request of GitHub's API, answered whatever the status; redirects are answers. */
export type ForgeRequest = (
  url: string,
  ask: { readonly method: string; readonly headers: Readonly<Record<string, string>>; readonly body?: string },
) => Promise<Response>

export interface ForgeDeps {
  readonly apiUrl: string
  /** A token for one repository with these permissions. Throws `upstream_*`. */
  token(upstream: Upstream, permissions: Readonly<Record<string, 'read' | 'write'>>): Promise<string>
  readonly request: ForgeRequest
}

interface Pull {
  readonly number: number
  readonly html_url: string
}

const PULLS = { contents: 'read', pull_requests: 'write' } as const
const CHECKS = { checks: 'write' } as const
const CHECK_NAME = 'hangar'
const PAGE = 100
/** Comments are looked through from the oldest, and its own is among the first; of check runs a commit has few. */
const MAX_PAGES = 10

export function createGithubForge(deps: ForgeDeps): Forge {
  const isKnown = ({ url, credential }: Upstream) =>
    credential !== null && new URL(url).host === forgeHost(deps.apiUrl) && repositoryOf(url) !== null

  return {
    knows: isKnown,
    publish: async (upstream, shown) => {
      const repository = repositoryOf(upstream.url)
      if (!isKnown(upstream) || repository === null) return { url: null, warnings: [] }
      const { owner, name } = repository
      const place = `/repos/${owner}/${name}`
      const token = await deps.token(upstream, PULLS)
      const call = caller(token, `${owner}/${name}`)
      const pull = await pullRequest(call, place, owner, shown)
      if (pull === null)
        return {
          url: null,
          warnings: [`${shown.branch} has no commit that ${shown.base} lacks: there is no pull request`],
        }
      await stickyComment(call, place, pull, shown)
      const warning = upstream.credential === 'github-app' ? await checkRun(upstream, place, shown) : null
      return { url: pull.html_url, warnings: warning === null ? [] : [warning] }
    },
  }

  /** The open one of the branch, brought up to date, or a new one; null when there is nothing to merge. */
  async function pullRequest(call: Caller, place: string, owner: string, shown: Shown): Promise<Pull | null> {
    const { branch, base, title, body } = shown
    const open = async (): Promise<Pull | undefined> => {
      const query = new URLSearchParams({ head: `${owner}:${branch}`, state: 'open' })
      return ((await call('GET', `${place}/pulls?${query}`)).body as Pull[])[0]
    }
    const known = await open()
    // Its title may be a person's by now.
    if (known !== undefined) return (await call('PATCH', `${place}/pulls/${known.number}`, { body })).body as Pull
    const create = (draft: boolean) => call('POST', `${place}/pulls`, { title, head: branch, base, body, draft }, [422])
    let made = await create(shown.draft)
    // Private repositories of some plans have no drafts.
    if (made.status === 422 && shown.draft && /draft/i.test(made.text)) made = await create(false)
    if (made.status !== 422) return made.body as Pull
    if (/no commits between/i.test(made.text)) return null
    const other = await open()
    if (other !== undefined) return other
    throw errors.upstreamProtected(`GitHub opens no pull request for ${branch} onto ${base}: ${words(made)}`, {
      reason: words(made),
    })
  }

  async function stickyComment(call: Caller, place: string, pull: Pull, { marker, comment }: Shown): Promise<void> {
    for (let page = 1; page <= MAX_PAGES; page++) {
      const query = `per_page=${PAGE}&page=${page}`
      const { body } = await call('GET', `${place}/issues/${pull.number}/comments?${query}`)
      const comments = body as { id: number; body?: string }[]
      const own = comments.find((entry) => entry.body?.startsWith(marker) === true)
      if (own !== undefined) return void (await call('PATCH', `${place}/issues/comments/${own.id}`, { body: comment }))
      if (comments.length < PAGE) break
    }
    await call('POST', `${place}/issues/${pull.number}/comments`, { body: comment })
  }

  /** The job's on this commit, which an earlier try may have made. Check runs are for Apps only, and their permission is one that an installation need not have: gives a warning then. */
  async function checkRun(upstream: Upstream, place: string, { commit, check }: Shown): Promise<string | null> {
    try {
      const call = caller(await deps.token(upstream, CHECKS), place)
      const known = await knownCheckRun(call, place, commit, check.externalId)
      const shown = {
        name: CHECK_NAME,
        external_id: check.externalId,
        details_url: check.detailsUrl,
        status: 'completed',
        conclusion: check.conclusion,
        output: { title: check.title, summary: check.summary },
      }
      if (known === null) await call('POST', `${place}/check-runs`, { ...shown, head_sha: commit })
      else await call('PATCH', `${place}/check-runs/${known}`, shown)
      return null
    } catch (error) {
      if (error instanceof HangarError && error.code === 'upstream_denied')
        return `there is no check run: ${error.message}`
      throw error
    }
  }

  async function knownCheckRun(call: Caller, place: string, commit: Oid, externalId: string): Promise<number | null> {
    for (let page = 1; page <= MAX_PAGES; page++) {
      const query = `check_name=${CHECK_NAME}&filter=all&per_page=${PAGE}&page=${page}`
      const { body } = await call('GET', `${place}/commits/${commit}/check-runs?${query}`)
      const { check_runs: runs } = body as { check_runs: { id: number; external_id: string | null }[] }
      const own = runs.find(({ external_id }) => external_id === externalId)
      if (own !== undefined) return own.id
      if (runs.length < PAGE) break
    }
    return null
  }

  function caller(token: string, repo: string): Caller {
    return async (method, path, body, expected = []) => {
      let response: Response
      try {
        response = await deps.request(`${deps.apiUrl}${path}`, {
          method,
          headers: {
            Accept: 'application/vnd.github+json',
            Authorization: `Bearer ${token}`,
            'X-GitHub-Api-Version': '2022-11-28',
            'User-Agent': 'hangar',
            ...(body === undefined ? {} : { 'Content-Type': 'application/json' }),
          },
          ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        })
      } catch (cause) {
        throw errors.upstreamUnreachable(`GitHub's API cannot be reached (${messageOf(cause)})`, {}, cause)
      }
      const text = await response.text()
      const answer = { status: response.status, text, body: jsonOf(text) }
      if (response.ok || expected.includes(response.status)) return answer
      throw failureOf(answer, response.headers, repo)
    }
  }
}

interface Answer {
  readonly status: number
  readonly text: string
  readonly body: unknown
}
type Caller = (method: string, path: string, body?: object, expected?: readonly number[]) => Promise<Answer>

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return null
  }
}

/** What the answer says of itself, cut. */
function words({ body, text }: Answer): string {
  const { message, errors: all } = (body ?? {}) as { message?: string; errors?: { message?: string }[] }
  const details = Array.isArray(all) ? all.map((entry) => entry?.message).filter((entry) => entry !== undefined) : []
  return [message ?? text, ...details].join('; ').slice(0, 500)
}

function failureOf(answer: Answer, headers: Headers, repo: string): HangarError {
  const reason = words(answer)
  const { status } = answer
  // The time at which a limit begins anew is in nearly every answer.
  const isLimited = headers.get('retry-after') !== null || headers.get('x-ratelimit-remaining') === '0'
  if (status === 429 || (status === 403 && isLimited))
    return errors.upstreamBusy(`GitHub takes no more requests for ${repo} for now: its rate limit is used up`, {
      reason,
    })
  if (status >= 300 && status < 400)
    return errors.upstreamRenamed(
      `GitHub answers with a redirect for ${repo}: it was renamed or moved; set its new URL as the repo's upstream`,
      { reason },
    )
  if (status === 401 || status === 403)
    return errors.upstreamDenied(
      `GitHub does not allow this to the server's credential for ${repo} (${status}: ${reason}); give it the permissions pull_requests and checks`,
      { reason },
    )
  if (status === 404 || status === 410)
    return errors.upstreamGone(`there is no ${repo} on GitHub, or the server's credential does not see it`, { reason })
  if (status === 422) return errors.upstreamProtected(`GitHub refuses this for ${repo}: ${reason}`, { reason })
  return errors.upstreamUnreachable(`GitHub's API failed for ${repo} (${status}: ${reason})`, { reason })
}
