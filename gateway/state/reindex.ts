import type { Repositories } from '../git/repositories.ts'
import type { Ledger } from '../ledger.ts'
import type { Index } from './index.ts'

export function reindex(
  _deps: { repositories: Repositories; index: Index; ledger: Ledger },
  _options: { full: boolean },
): Promise<{ sessions: number }> {
  throw new Error('not built')
}
