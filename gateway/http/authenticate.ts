/** Who makes a request: the secret of its Authorization header, turned into a caller. */
import type { IncomingMessage } from 'node:http'
import { errors } from '../../domain/errors.ts'
import type { GrantCaller, TokenCaller } from '../../domain/grant.ts'

/** The caller of a request. Throws `unauthenticated` when no secret was given, or it is unknown, revoked or expired. */
export function authenticateRequest(
  req: IncomingMessage,
  authenticate: (secret: string) => TokenCaller | GrantCaller | null,
): TokenCaller | GrantCaller {
  const secret = secretOf(req.headers.authorization ?? '')
  const caller = secret === null ? null : authenticate(secret)
  if (caller === null) throw errors.unauthenticated('give a token or a grant as the password, with any user name')
  return caller
}

/** The password of Basic, whatever the user name, or the token of Bearer; null for anything else. */
function secretOf(header: string): string | null {
  const found = /^(basic|bearer) +([A-Za-z0-9+/=._~-]{1,1000})$/i.exec(header)
  const [scheme = '', value = ''] = found?.slice(1) ?? []
  if (scheme.toLowerCase() === 'bearer') return value
  if (scheme === '') return null
  const pair = Buffer.from(value, 'base64').toString('latin1')
  const colon = pair.indexOf(':')
  return colon === -1 ? null : pair.slice(colon + 1)
}
