import type { Clock } from '../../domain/ports.ts'

export interface Signer {
  /** For `gpg --import`. */
  readonly publicKeyArmored: string
  /** An armored detached signature. */
  sign(payload: string): Promise<string>
}

export function createSigner(_deps: { keyFile: string; clock: Clock }): Promise<Signer> {
  throw new Error('not built')
}
