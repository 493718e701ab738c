/** The operations on repos: add, list, show, remove. */
import { setTimeout } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import { errors, type HangarError } from '../../domain/errors.ts'
import { coversRepo } from '../../domain/grant.ts'
import { parseRepoSlug, type RepoSlug } from '../../domain/names.ts'
import { type CredentialName, CredentialShape, parseUpstreamUrl, type Upstream } from '../../domain/upstream.ts'
import type { Repository } from '../../gateway/git/repository.ts'
import { listOf, orNull, RepoShape } from '../shapes.ts'
import { type Call, json, type Operation, operation } from './operation.ts'

const strict = { additionalProperties: false } as const
const FIRST_REFRESH_MS = 30_000
const byName = { owner: Type.String(), name: Type.String() }

const addRepo = operation({
  name: 'add_repo',
  summary:
    'Adds a repo that this server hosts, or one that follows an upstream; people push to a hosted one with a token.',
  scope: 'admin',
  method: 'post',
  path: '/api/repos',
  input: Type.Object(
    {
      slug: Type.String({ description: 'owner/name' }),
      upstream: Type.Optional(
        orNull(
          Type.String({ description: 'The https URL of the repository that it follows; absent: it is hosted here.' }),
        ),
      ),
      credential: Type.Optional(
        orNull(
          Type.String({
            pattern: CredentialShape.pattern ?? '',
            description:
              "The name of the credential for the upstream: `github-app`, `github-token`, or `env:HANGAR_CREDENTIAL_…`, a variable of the server's; absent: none, the upstream is public.",
          }),
        ),
      ),
    },
    strict,
  ),
  output: RepoShape,
  status: 201,
  handle: async (call, input) => {
    const slug = parseRepoSlug(input.slug)
    if ((await call.services.repositories.open(slug)) !== null)
      throw errors.nameTaken(
        `there is a repo ${slug} already; git push to it at ${call.services.publicUrl()}/git/${slug}.git`,
      )
    const upstream = await checkedUpstream(call, input)
    const repo = await call.services.repositories.create(slug, upstream)
    if (upstream !== null) await beginMirror(call, slug, upstream)
    return json(201, await view(call, slug, repo), `/api/repos/${slug}`)
  },
})

const listRepos = operation({
  name: 'list_repos',
  summary: 'Lists the repos that the token covers.',
  scope: 'read',
  method: 'get',
  path: '/api/repos',
  cli: 'repo list',
  tool: {
    title: 'List repos',
    advice: 'repo of new_session is one of their slugs.',
    example: {},
    effect: 'reads',
  },
  input: Type.Object({}, strict),
  output: listOf(RepoShape),
  status: 200,
  handle: async (call) => {
    const slugs = (await call.services.repositories.list()).filter((slug) => coversRepo(call.caller, slug)).sort()
    const items = []
    for (const slug of slugs) {
      // One that cannot be read is the log's matter; it must not hide the others.
      const repo = await call.services.repositories.open(slug).catch(() => null)
      if (repo !== null) items.push(await view(call, slug, repo))
    }
    return json(200, { items, next_cursor: null })
  },
})

const getRepo = operation({
  name: 'get_repo',
  summary: 'Shows a repo.',
  scope: 'read',
  method: 'get',
  path: '/api/repos/{owner}/{name}',
  input: Type.Object(byName, strict),
  output: RepoShape,
  status: 200,
  handle: async (call, { owner, name }) => {
    const { slug, repo } = await known(call, owner, name)
    return json(200, await view(call, slug, repo))
  },
})

const removeRepo = operation({
  name: 'remove_repo',
  summary: 'Removes a repo with all that is in it. Refused while it has sessions.',
  scope: 'admin',
  method: 'delete',
  path: '/api/repos/{owner}/{name}',
  input: Type.Object(byName, strict),
  output: RepoShape,
  status: 200,
  handle: async (call, { owner, name }) => {
    const slug = parseRepoSlug(`${owner}/${name}`)
    if (!coversRepo(call.caller, slug) || !(await call.services.repositories.list()).includes(slug))
      throw unknownRepo(slug)
    const sessions = (await call.services.index.sessions.range()).filter(([, entry]) => entry.repo === slug)
    if (sessions.length > 0)
      throw errors.conflict(
        `${slug} has ${sessions.length} session(s), ${sessions[0]?.[0] ?? ''} among them; remove each first: hangar session close NAME --delete`,
      )
    // A repo whose directory is broken can be removed as well, by its record alone.
    const repo = await call.services.repositories.open(slug).catch(() => null)
    const shown =
      repo === null
        ? { slug, ...(await mirrorView(call, slug)), default_branch: 'main', url: urlOf(call, slug) }
        : await view(call, slug, repo)
    await call.services.upstreams.set(slug, null)
    await call.services.repositories.remove(slug)
    return json(200, shown)
  },
})

export const REPO_OPERATIONS: readonly Operation[] = [addRepo, listRepos, getRepo, removeRepo]

/** What is asked for, found good: its URL, its credential, and that upstream answers. */
async function checkedUpstream(
  call: Call,
  input: { readonly upstream?: string | null; readonly credential?: string | null },
): Promise<Upstream | null> {
  const credential = (input.credential ?? null) as CredentialName | null
  if (input.upstream == null) {
    if (credential === null) return null
    throw errors.invalidRequest('credential: there is no upstream to use it at; give upstream as well')
  }
  const { upstreams, credentials, config } = call.services
  const upstream = { url: parseUpstreamUrl(input.upstream, config.upstreams.allowPrivateAddresses), credential }
  credentials.checkNameable(upstream)
  await upstreams.probe(upstream)
  return upstream
}

/** The first refresh may be long: it goes on when its caller has had enough. */
async function beginMirror({ services: { upstreams } }: Call, slug: RepoSlug, upstream: Upstream): Promise<void> {
  await upstreams.set(slug, upstream)
  const refreshed = upstreams.refresh(slug).catch(() => {})
  await Promise.race([refreshed, setTimeout(FIRST_REFRESH_MS, undefined, { ref: false })])
}

async function mirrorView({ services }: Call, slug: RepoSlug) {
  const state = await services.upstreams.state(slug)
  return {
    upstream: state?.upstream.url ?? null,
    credential: state?.upstream.credential ?? null,
    refreshed_at: state?.refreshedAt == null ? null : new Date(state.refreshedAt).toISOString(),
    upstream_error: state?.failure == null ? null : { code: state.failure.code, message: state.failure.message },
    notices: state?.notices ?? [],
  }
}

async function known(call: Call, owner: string, name: string): Promise<{ slug: RepoSlug; repo: Repository }> {
  const slug = parseRepoSlug(`${owner}/${name}`)
  const repo = coversRepo(call.caller, slug) ? await call.services.repositories.open(slug) : null
  if (repo === null) throw unknownRepo(slug)
  return { slug: repo.slug ?? slug, repo }
}

function unknownRepo(slug: RepoSlug): HangarError {
  return errors.notFound(`there is no repo ${slug} on this server; hangar repo list shows those there are`)
}

function urlOf(call: Call, slug: RepoSlug): string {
  return `${call.services.publicUrl()}/git/${slug}.git`
}

async function view(call: Call, slug: RepoSlug, repo: Repository) {
  const { head } = await repo.refs.snapshot()
  return {
    slug,
    ...(await mirrorView(call, slug)),
    default_branch: head.replace(/^refs\/heads\//, ''),
    url: urlOf(call, slug),
  }
}
