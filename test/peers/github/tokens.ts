/** Who asks: an App by its signature, an installation by a token that was minted here, a person by a token of theirs. */
import { createPublicKey, createVerify, generateKeyPairSync, randomBytes } from 'node:crypto'

export type Permission = 'read' | 'write'
export type Permissions = Readonly<Record<string, Permission>>

export interface Minted {
  readonly token: string
  readonly expiresAt: number
  /** Full names; null: all. */
  readonly repositories: readonly number[] | null
  readonly permissions: Permissions
}

/** Who a secret stands for; `none`: it is unknown or has expired. */
export type Identity =
  | { readonly kind: 'none' }
  | { readonly kind: 'person' }
  | { readonly kind: 'installation'; readonly minted: Minted }

export class Tokens {
  readonly appId = 4711
  readonly privateKey: string
  readonly #publicKey: string
  readonly minted: Minted[] = []
  /** Tokens of people. */
  readonly people = new Set<string>()

  constructor() {
    const { privateKey, publicKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
    this.privateKey = privateKey.export({ type: 'pkcs1', format: 'pem' }) as string
    this.#publicKey = publicKey.export({ type: 'spki', format: 'pem' }) as string
  }

  /** As long and as dotted as GitHub's newest. */
  mint(input: Omit<Minted, 'token'>): Minted {
    const part = (bytes: number) => randomBytes(bytes).toString('base64url')
    const minted = { ...input, token: `ghs_${this.appId}_${part(30)}.${part(260)}.${part(64)}` }
    this.minted.push(minted)
    return minted
  }

  person(): string {
    const token = `github_pat_${randomBytes(41).toString('hex')}`
    this.people.add(token)
    return token
  }

  identify(secret: string): Identity {
    if (this.people.has(secret)) return { kind: 'person' }
    const minted = this.minted.find(({ token }) => token === secret)
    return minted === undefined || minted.expiresAt <= Date.now() ? { kind: 'none' } : { kind: 'installation', minted }
  }

  /** What is wrong with an App's JWT; null: nothing. Source: GitHub's docs, "Generating a JSON Web Token". */
  jwtFault(jwt: string): string | null {
    const [header = '', payload = '', signature = ''] = jwt.split('.')
    const read = (part: string) =>
      JSON.parse(Buffer.from(part, 'base64url').toString() || '{}') as Record<string, unknown>
    if (read(header)['alg'] !== 'RS256') return 'the algorithm is not RS256'
    const verify = createVerify('RSA-SHA256').update(`${header}.${payload}`)
    if (!verify.verify(createPublicKey(this.#publicKey), Buffer.from(signature, 'base64url')))
      return 'A JSON web token could not be decoded'
    const { iss, iat, exp } = read(payload)
    const now = Date.now() / 1000
    if (String(iss) !== String(this.appId)) return 'Integration not found'
    if (typeof exp !== 'number' || exp <= now || exp > now + 600)
      return "'Expiration time' claim ('exp') is too far in the future"
    return typeof iat === 'number' && iat <= now + 60
      ? null
      : "'Issued at' claim ('iat') must be an Integer representing the time"
  }
}
