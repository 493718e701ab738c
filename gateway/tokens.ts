/** Tokens of people and systems: records in hangar.git that hold only a SHA-256, looked up in memory. */
import { createHash } from 'node:crypto'
import { errors } from '../domain/errors.ts'
import type { Scope, Token, TokenCaller } from '../domain/grant.ts'
import type { RefName } from '../domain/names.ts'
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
  /** Oldest first, revoked and expired ones too. */
  list(): Promise<Token[]>
  /** Throws `not_found`. */
  revoke(id: string): Promise<Token>
  /** null for an unknown, revoked or expired secret. */
  authenticate(secret: string): TokenCaller | null
  /** Whether the token that authenticated is still neither revoked nor expired. */
  isLive(caller: Pick<TokenCaller, 'id'>): boolean
}

export interface TokensDeps {
  /** hangar.git */
  readonly server: Repository
  readonly ledger: Ledger
  readonly index: Index
  readonly clock: Clock
  readonly random: Random
}

export const TOKENS_PREFIX = 'refs/hangar/tokens/'
export const TOKEN_FILE = 'token.json'

/** Loads all tokens. A token is good for use once `create` resolves, and no more once `revoke` does. */
export async function createTokens(deps: TokensDeps): Promise<Tokens> {
  const { server, ledger, index, clock, random } = deps
  const byId = new Map<string, Token>()
  const byHash = new Map<string, string>()
  const keep = async (token: Token) => {
    byId.set(token.id, token)
    byHash.set(token.hash, token.id)
    await index.tokens.put(token.id, token)
  }
  for (const token of await readTokens(server, ledger)) await keep(token)
  const live = (token: Token | undefined): token is Token =>
    token !== undefined && token.revokedAt === null && (token.expiresAt === null || token.expiresAt > clock.now())

  return {
    async create({ name, scopes, repos, expiresAt }) {
      const secret = newSecret('hgt_', random)
      const id = [...random.bytes(10)].map((byte) => BASE32[byte % 32]).join('')
      const createdAt = clock.now()
      const token: Token = { id, name, scopes, repos, hash: hashSecret(secret), createdAt, expiresAt, revokedAt: null }
      await ledger.append(server, refOf(id), async (tip) => {
        if (tip !== null) throw errors.internal('a token id was drawn twice')
        return { files: fileOf(token), message: `Create token ${id}` }
      })
      await keep(token)
      return { token, secret }
    },
    list: async () => [...byId.values()].sort((a, b) => a.createdAt - b.createdAt || (a.id < b.id ? -1 : 1)),
    async revoke(id) {
      const known = byId.get(id)
      if (known === undefined)
        throw errors.notFound(
          `there is no token ${JSON.stringify(id.slice(0, 40))}; hangar token list shows those there are`,
        )
      if (known.revokedAt !== null) return known
      const token = { ...known, revokedAt: clock.now() }
      await ledger.append(server, refOf(id), async () => ({ files: fileOf(token), message: `Revoke token ${id}` }))
      await keep(token)
      return token
    },
    authenticate(secret) {
      if (!secret.startsWith('hgt_')) return null
      const token = byId.get(byHash.get(hashSecret(secret)) ?? '')
      if (!live(token)) return null
      return { kind: 'token', id: token.id, name: token.name, scopes: token.scopes, repos: token.repos }
    },
    isLive: (caller) => live(byId.get(caller.id)),
  }
}

/** All tokens as hangar.git records them. */
export async function readTokens(server: Repository, ledger: Ledger): Promise<Token[]> {
  const { refs } = await server.refs.snapshot()
  const tokens: Token[] = []
  for (const { name } of refs.filter((ref) => ref.name.startsWith(TOKENS_PREFIX))) {
    const text = await ledger.readFile(server, name, TOKEN_FILE)
    if (text !== null) tokens.push(JSON.parse(text.toString('utf8')) as Token)
  }
  return tokens
}

/** 32 random bytes in base62, 43 characters, behind a prefix that secret scanners can know. */
export function newSecret(prefix: 'hgt_' | 'hgs_', random: Random): string {
  let number = BigInt(`0x${Buffer.from(random.bytes(32)).toString('hex')}`)
  let digits = ''
  for (; number > 0n; number /= 62n) digits = BASE62[Number(number % 62n)] + digits
  return prefix + digits.padStart(43, '0')
}

/** SHA-256 of the whole secret in hex. It has 256 random bits, so neither salt nor a slow hash would add anything. */
export function hashSecret(secret: string): string {
  return createHash('sha256').update(secret).digest('hex')
}

const BASE32 = 'abcdefghijklmnopqrstuvwxyz234567'
const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

function refOf(id: string): RefName {
  return `${TOKENS_PREFIX}${id}` as RefName
}

function fileOf(token: Token): ReadonlyMap<string, Uint8Array> {
  return new Map([[TOKEN_FILE, Buffer.from(`${JSON.stringify(token)}\n`)]])
}
