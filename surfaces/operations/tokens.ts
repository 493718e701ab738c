/** The operations on tokens: create (its secret is shown once), list, revoke. */
import { Type } from '@sinclair/typebox'
import { errors } from '../../domain/errors.ts'
import { SCOPES } from '../../domain/grant.ts'
import { listOf, orNull, TokenShape } from '../shapes.ts'
import { tokenView } from '../views.ts'
import { json, type Operation, operation } from './operation.ts'

const strict = { additionalProperties: false } as const

const createToken = operation({
  name: 'create_token',
  summary: 'Creates a token. The answer holds its secret, which is shown this once.',
  scope: 'admin',
  method: 'post',
  path: '/api/tokens',
  input: Type.Object(
    {
      name: Type.String({ minLength: 1, maxLength: 100 }),
      scopes: Type.Array(Type.Union(SCOPES.map((scope) => Type.Literal(scope))), { minItems: 1, uniqueItems: true }),
      repos: Type.Optional(
        orNull(
          Type.Array(Type.String({ pattern: '^(\\*|[A-Za-z0-9_.-]+)/(\\*|[A-Za-z0-9_.-]+)$' }), {
            minItems: 1,
            maxItems: 100,
            description: 'Repo patterns such as acme/*; absent: every repo.',
          }),
        ),
      ),
      expires_at: Type.Optional(orNull(Type.String({ description: 'ISO 8601; absent: never.' }))),
    },
    strict,
  ),
  output: Type.Intersect([TokenShape, Type.Object({ token: Type.String({ description: 'hgt_…' }) })]),
  status: 201,
  handle: async (call, input) => {
    const expiresAt = input.expires_at == null ? null : Date.parse(input.expires_at)
    if (expiresAt !== null && !(expiresAt > call.services.clock.now()))
      throw errors.invalidRequest(`expires_at ${JSON.stringify(input.expires_at)}: give an ISO 8601 time in the future`)
    const { token, secret } = await call.services.tokens.create({
      name: input.name,
      scopes: input.scopes,
      repos: input.repos ?? null,
      expiresAt,
    })
    return json(201, { ...tokenView(token), token: secret })
  },
})

const listTokens = operation({
  name: 'list_tokens',
  summary: 'Lists tokens, without their secrets.',
  scope: 'admin',
  method: 'get',
  path: '/api/tokens',
  input: Type.Object({}, strict),
  output: listOf(TokenShape),
  status: 200,
  handle: async (call) => json(200, { items: (await call.services.tokens.list()).map(tokenView), next_cursor: null }),
})

const revokeToken = operation({
  name: 'revoke_token',
  summary: 'Revokes a token at once.',
  scope: 'admin',
  method: 'delete',
  path: '/api/tokens/{id}',
  input: Type.Object({ id: Type.String({ pattern: '^[A-Za-z0-9_-]{1,100}$' }) }, strict),
  output: TokenShape,
  status: 200,
  handle: async (call, { id }) => json(200, tokenView(await call.services.tokens.revoke(id))),
})

export const TOKEN_OPERATIONS: readonly Operation[] = [createToken, listTokens, revokeToken]
