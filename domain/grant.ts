/** Who calls: a person's or system's token, or a sandbox's grant. */
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
}

export type Caller = TokenCaller | GrantCaller

/** Whether the scope is covered; `admin` covers all, and every token that acts may read as well. */
export function hasScope(caller: TokenCaller, scope: Scope): boolean {
  return (
    caller.scopes.includes('admin') || caller.scopes.includes(scope) || (scope === 'read' && caller.scopes.length > 0)
  )
}

/** Whether the caller may touch the repo at all: its patterns cover the slug (letters compared whatever the case). */
export function coversRepo(caller: Caller, slug: RepoSlug): boolean {
  if (caller.kind === 'grant') return caller.repo === slug
  if (caller.repos === null) return true
  return caller.repos.some((pattern) => matchesRepoPattern(pattern, slug))
}

/** A pattern is `owner/name` where either part may be `*`. */
export function matchesRepoPattern(pattern: string, slug: RepoSlug): boolean {
  const [patternOwner, patternName] = pattern.toLowerCase().split('/')
  const [owner, name] = slug.toLowerCase().split('/')
  return (patternOwner === '*' || patternOwner === owner) && (patternName === '*' || patternName === name)
}
