/**
 * node-git-server's `Git`, with its request handling replaced: it keeps the mapping of names to directories, and nothing of it meets the network.
 * Why `handle` is replaced whole: test/gateway/node-git-server.test.ts shows what the original lets through.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Git } from 'node-git-server'
import { errors } from '../../domain/errors.ts'
import type { RepoSlug } from '../../domain/names.ts'
import type { Repositories, Repository } from '../git/repositories.ts'

/** A path that never exists: what a name that is not open maps to. */
const NOWHERE = '/nonexistent/hangar'

export interface HangarGitDeps {
  readonly repositories: Pick<Repositories, 'open'>
  readonly serve: (req: IncomingMessage, res: ServerResponse) => void
}

export class HangarGit extends Git {
  readonly #deps: HangarGitDeps
  readonly #dirs: Map<string, string>

  constructor(deps: HangarGitDeps) {
    const dirs = new Map<string, string>()
    // A function, so that the parent never joins a caller's text to a root; and no repository is made by asking for it.
    super((slug) => dirs.get(slug ?? '') ?? NOWHERE, { autoCreate: false })
    this.#deps = deps
    this.#dirs = dirs
  }

  /** The repository of a slug; null when it was never added, or its directory is gone from the disk. */
  async open(slug: RepoSlug): Promise<Repository | null> {
    const repository = await this.#deps.repositories.open(slug)
    if (repository === null) this.#dirs.delete(slug)
    else this.#dirs.set(slug, repository.dir)
    return this.exists(slug) ? repository : null
  }

  /** Serves a request by hangar's own code. The parent's `handle` is not called. */
  override handle(req: IncomingMessage, res: ServerResponse): void {
    this.#deps.serve(req, res)
  }

  /** Repositories are made by `Repositories.create` only. */
  override create(_repo: string, callback?: (error?: Error) => void): void {
    callback?.(errors.forbidden('repositories are made by an operation, not by git'))
  }
}
