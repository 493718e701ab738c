/** Grants of sandboxes, by hash, in memory: the record of a grant is the `sandbox` field of its session's record. */
import type { GrantCaller } from '../domain/grant.ts'
import type { SessionName } from '../domain/names.ts'
import type { Clock, Random } from '../domain/ports.ts'
import { hashSecret, newSecret } from './tokens.ts'

export interface Grants {
  /** A new secret and what is kept of it; it opens nothing until it is set. */
  mint(): { secret: string; hash: string }
  /** Sets or renews, for as long as `expiresAt` is from now: a clock that is set later ends no grant early. A sandbox has one grant: an earlier one of the same id ends. */
  set(hash: string, grant: { caller: GrantCaller; expiresAt: number }): void
  revoke(hash: string): void
  /** Takes the session's refs from the grants of those forked from it. */
  clearParent(parent: SessionName): void
  authenticate(secret: string): GrantCaller | null
  /** Whether the sandbox's grant still holds; asked again right before refs move. */
  isLive(caller: Pick<GrantCaller, 'id'>): boolean
}

/** An empty table; whoever owns the sessions fills it at start. */
export function createGrants(deps: {
  readonly clock: Clock
  /** Milliseconds by a clock that nobody sets. */
  elapsed(): number
  readonly random: Random
}): Grants {
  const byHash = new Map<string, { caller: GrantCaller; until: number }>()
  const hashOf = new Map<string, string>()
  const live = (hash: string | undefined) => {
    const grant = hash === undefined ? undefined : byHash.get(hash)
    return grant !== undefined && grant.until > deps.elapsed() ? grant.caller : null
  }
  return {
    mint() {
      const secret = newSecret('hgs_', deps.random)
      return { secret, hash: hashSecret(secret) }
    },
    set(hash, { caller, expiresAt }) {
      const before = hashOf.get(caller.id)
      if (before !== undefined && before !== hash) byHash.delete(before)
      byHash.set(hash, { caller, until: deps.elapsed() + (expiresAt - deps.clock.now()) })
      hashOf.set(caller.id, hash)
    },
    revoke(hash) {
      const grant = byHash.get(hash)
      byHash.delete(hash)
      if (grant !== undefined && hashOf.get(grant.caller.id) === hash) hashOf.delete(grant.caller.id)
    },
    clearParent(parent) {
      for (const [hash, grant] of byHash)
        if (grant.caller.parent === parent) byHash.set(hash, { ...grant, caller: { ...grant.caller, parent: null } })
    },
    authenticate: (secret) => (secret.startsWith('hgs_') ? live(hashSecret(secret)) : null),
    isLive: (caller) => live(hashOf.get(caller.id)) !== null,
  }
}
