import type { RefName, RepoSlug } from '../../domain/names.ts'
import type { Clock, Log } from '../../domain/ports.ts'
import type { Signer } from '../state/sign.ts'
import type { Repository } from './repository.ts'

export type { Repository } from './repository.ts'

export interface Repositories {
  /** hangar.git */
  readonly server: Repository
  /** null when it was never added. Cached; children of idle repos are ended. */
  open(slug: RepoSlug): Promise<Repository | null>
  /** Idempotent. Throws `name_taken` when a slug differs only in case. */
  create(slug: RepoSlug): Promise<Repository>
  remove(slug: RepoSlug): Promise<void>
  list(): Promise<RepoSlug[]>
  close(): Promise<void>
}

export interface RepositoriesDeps {
  readonly dataDir: string
  readonly signer: Signer
  readonly log: Log
  readonly clock?: Clock
}

export function createRepositories(_deps: RepositoriesDeps): Promise<Repositories> {
  throw new Error('not built')
}

export function setHead(_repo: Repository, _branch: RefName): Promise<void> {
  throw new Error('not built')
}
