import type { GrantCaller } from '../domain/grant.ts'
import type { Clock, Random } from '../domain/ports.ts'

export interface Grants {
  mint(): { secret: string; hash: string }
  set(hash: string, grant: { caller: GrantCaller; expiresAt: number }): void
  revoke(hash: string): void
  authenticate(secret: string): GrantCaller | null
  isLive(caller: GrantCaller): boolean
}

export function createGrants(_deps: { clock: Clock; random: Random }): Grants {
  throw new Error('not built')
}
