/** Sandboxes of this store that no session has: a crash, or an end that went wrong, has left them. */
import { messageOf } from '../domain/errors.ts'
import type { Clock, Log } from '../domain/ports.ts'
import type { ListedSandbox, Provider } from '../domain/sandbox.ts'
import type { Index } from '../gateway/state/index.ts'

export interface OrphanDeps {
  readonly providers: readonly Provider[]
  readonly index: Index
  readonly clock: Clock
  readonly log: Log
}

/** Destroys those that are older than this. One that is being made may be in no record yet: only at a start is no age needed. */
export async function destroyOrphans(deps: OrphanDeps, olderThanMs: number): Promise<void> {
  for (const provider of deps.providers) {
    // Listed before the records are read: what is made in between is not among them.
    const found = await listed(provider, deps)
    if (found === null) continue
    const known = new Set((await deps.index.sessions.range()).map(([, { session }]) => session.sandbox?.id))
    for (const { id, createdAt } of found) {
      if (known.has(id) || createdAt > deps.clock.now() - olderThanMs) continue
      try {
        await provider.destroy({ provider: provider.kind, id })
        deps.log.info({ sandbox: id, provider: provider.kind }, 'a sandbox that no session had was removed')
      } catch (error) {
        warn(deps, id, error)
      }
    }
    await provider.tidy?.().catch((error: unknown) => warn(deps, provider.kind, error))
  }
}

/** A provider whose engine is down keeps the server from nothing: its orphans wait for the next round. */
async function listed(provider: Provider, deps: OrphanDeps): Promise<readonly ListedSandbox[] | null> {
  return provider.list().catch((error: unknown) => {
    warn(deps, provider.kind, error)
    return null
  })
}

function warn({ log }: OrphanDeps, what: string, error: unknown): void {
  log.warn(
    { what, error: messageOf(error) },
    'a sandbox that no session has could not be removed; the next round tries again',
  )
}
