/** Who calls: a person's or system's token, or a sandbox's grant, at its own repo or as a guest at another. */
import type { RepoSlug, SessionName } from './names.ts'

export const SCOPES = ['read', 'sessions', 'jobs', 'repo:write', 'admin'] as const
export type Scope = (typeof SCOPES)[number]

/** A token as it is kept: never the secret, only its SHA-256. */
export interface Token {
  readonly id: string
  readonly name: string
  readonly scopes: readonly Scope[]
  /** Repo patterns (`acme/*`, `acme/app`); null is every repo. */
  readonly repos: readonly string[] | null
  /** SHA-256 of the whole `hgt_…` string, in hex. */
  readonly hash: string
  readonly createdAt: number
  readonly expiresAt: number | null
  readonly revokedAt: number | null
}

export interface TokenCaller {
  readonly kind: 'token'
  readonly id: string
  readonly name: string
  readonly scopes: readonly Scope[]
  readonly repos: readonly string[] | null
}

/** A sandbox that shows its grant: one sandbox, one session, one repo. */
export interface GrantCaller {
  readonly kind: 'grant'
  /** The sandbox's id; the grant has no other. */
  readonly id: string
  readonly session: SessionName
  readonly repo: RepoSlug
  /** The session it was forked from, whose checkpoint it may fetch. */
  readonly parent: SessionName | null
  /** Further repos whose branches and tags it may fetch. */
  readonly mayRead: readonly RepoSlug[]
}

/** A sandbox at a repo that is not its own, and that its settings let it read: it fetches the project's branches and tags, and pushes nothing. */
export interface GuestCaller {
  readonly kind: 'guest'
  /** The sandbox's id, as of its grant. */
  readonly id: string
}

export type Caller = TokenCaller | GrantCaller | GuestCaller

/** Whether the scope is covered; `admin` covers all, and every token that acts may read as well. */
export function hasScope(caller: TokenCaller, scope: Scope): boolean {
  return (
    caller.scopes.includes('admin') || caller.scopes.includes(scope) || (scope === 'read' && caller.scopes.length > 0)
  )
}

/** As what the caller comes to the repo; null: it is not there for it. */
export function callerAt(caller: TokenCaller | GrantCaller, slug: RepoSlug): Caller | null {
  if (caller.kind === 'token') return coversRepo(caller, slug) ? caller : null
  if (caller.repo === slug) return caller
  return caller.mayRead.includes(slug) ? { kind: 'guest', id: caller.id } : null
}

/** Whether the token may touch the repo at all: its patterns cover the slug (letters compared whatever the case). */
export function coversRepo(caller: TokenCaller, slug: RepoSlug): boolean {
  if (caller.repos === null) return true
  return caller.repos.some((pattern) => matchesRepoPattern(pattern, slug))
}

/** A pattern is `owner/name` where either part may be `*`. */
export function matchesRepoPattern(pattern: string, slug: RepoSlug): boolean {
  const [patternOwner, patternName] = pattern.toLowerCase().split('/')
  const [owner, name] = slug.toLowerCase().split('/')
  return (patternOwner === '*' || patternOwner === owner) && (patternName === '*' || patternName === name)
}
