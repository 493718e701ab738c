/** Who sends a request, by its bearer token, and whether the token's scopes cover what is asked. */
import type { IncomingMessage } from 'node:http'
import { errors } from '../domain/errors.ts'
import { hasScope, type Scope, type TokenCaller } from '../domain/grant.ts'

/** The token's owner. Throws `unauthenticated` when there is no token, or none that is live. */
export function callerOf(req: IncomingMessage, authenticate: (secret: string) => TokenCaller | null): TokenCaller {
  const [, scheme = '', secret = ''] = /^(\S+) +(\S+) *$/.exec(req.headers.authorization ?? '') ?? []
  const caller = scheme.toLowerCase() === 'bearer' ? authenticate(secret) : null
  if (caller === null)
    throw errors.unauthenticated(
      'give a valid token as Authorization: Bearer hgt_… (hangar token create makes one; HANGAR_TOKEN gives it to the CLI)',
    )
  return caller
}

/** Throws `forbidden` when the token's scopes do not cover the one that is needed. */
export function checkScope(caller: TokenCaller, scope: Scope): void {
  if (!hasScope(caller, scope))
    throw errors.forbidden(`token ${caller.name} has the scopes ${caller.scopes.join(', ')}; this needs ${scope}`)
}
