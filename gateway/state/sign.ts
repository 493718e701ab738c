/** The server's signature on every commit it makes; `git verify-commit` accepts it once the public key is imported in gpg. */
import * as openpgp from 'openpgp'
import type { Clock } from '../../domain/ports.ts'
import { loadOrMakeKey } from './key-file.ts'

export interface Signer {
  /** For `gpg --import`. */
  readonly publicKeyArmored: string
  /** An armored detached signature. */
  sign(payload: string): Promise<string>
}

/**
 * Reads the key, or makes it at the first start. `ed25519Legacy` is what gpg 2.2 reads; it refuses openpgp's newer `curve25519`
 * with "Invalid public key algorithm".
 */
export async function createSigner(deps: { keyFile: string; clock: Clock }): Promise<Signer> {
  const armored = await loadOrMakeKey(deps.keyFile, async () => {
    const made = await openpgp.generateKey({
      type: 'ecc',
      curve: 'ed25519Legacy',
      userIDs: [{ name: 'hangar', email: 'hangar@localhost' }],
      date: new Date(deps.clock.now()),
      format: 'armored',
    })
    return made.privateKey
  })
  const key = await openpgp.readPrivateKey({ armoredKey: armored })
  return {
    publicKeyArmored: key.toPublic().armor(),
    async sign(payload) {
      const message = await openpgp.createMessage({ text: payload })
      // A clock behind the key's birth (a restored backup) must not stop the ledger: sign as of the birth.
      const date = new Date(Math.max(deps.clock.now(), key.getCreationTime().getTime()))
      return openpgp.sign({ message, signingKeys: key, detached: true, date })
    },
  }
}
