import type { Scope, Token, TokenCaller } from '../domain/grant.ts'
import type { Clock, Random } from '../domain/ports.ts'
import type { Repository } from './git/repository.ts'
import type { Ledger } from './ledger.ts'
import type { Index } from './state/index.ts'

export interface Tokens {
  /** `secret` is shown this once; only its SHA-256 is kept. */
  create(input: {
    name: string
    scopes: readonly Scope[]
    repos: readonly string[] | null
    expiresAt: number | null
  }): Promise<{ token: Token; secret: string }>
  list(): Promise<Token[]>
  /** Throws `not_found`. */
  revoke(id: string): Promise<Token>
  /** null for an unknown, revoked or expired secret. */
  authenticate(secret: string): TokenCaller | null
}

export function createTokens(_deps: {
  server: Repository
  ledger: Ledger
  index: Index
  clock: Clock
  random: Random
}): Promise<Tokens> {
  throw new Error('not built')
}
