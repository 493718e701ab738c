/** The start of a server on a store: what a crash left half-done is finished, taken up again, or removed. */
import { messageOf } from '../domain/errors.ts'
import type { RepoSlug, SessionName } from '../domain/names.ts'
import type { Clock, Log } from '../domain/ports.ts'
import type { Provider } from '../domain/sandbox.ts'
import type { Repositories } from '../gateway/git/repositories.ts'
import type { Grants } from '../gateway/grants.ts'
import type { Index, SessionEntry } from '../gateway/state/index.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import type { NameClaims } from './name-claims.ts'
import { destroyOrphans } from './orphans.ts'
import { setGrant } from './sandbox-grant.ts'
import type { SessionControl } from './session-control.ts'
import type { TurnRunner } from './turn-runner.ts'

export interface RecoveryDeps {
  readonly repositories: Repositories
  readonly index: Index
  readonly claims: NameClaims
  readonly grants: Grants
  readonly control: SessionControl
  readonly runner: TurnRunner
  readonly providers: readonly Provider[]
  /** Whether every record could be read: else a sandbox without a session may be that of an unreadable one. */
  readonly complete: boolean
  readonly clock: Clock
  readonly log: Log
}

/** To be called first: sandboxes that live on push and fetch again from then on. */
export async function restoreGrants({
  index,
  grants,
  mayRead,
}: {
  readonly index: Index
  readonly grants: Grants
  readonly mayRead: (repo: RepoSlug) => readonly RepoSlug[]
}): Promise<void> {
  for (const [, entry] of await index.sessions.range())
    await setGrant(entry, { grants, mayRead, find: index.sessions.get })
}

/** To be called once, when the index agrees with git, sandboxes reach the gateway, and before other requests are served. */
export async function recover(deps: RecoveryDeps): Promise<void> {
  const sessions = (await deps.index.sessions.range()).map(([, entry]) => entry)
  await mendClaims(sessions, deps)
  if (deps.complete) await destroyOrphans(deps, 0)
  for (const name of await inOrder(sessions, deps)) deps.runner.kick(name)
  for (const { session } of sessions) {
    // Not awaited: a turn of it may still have to be collected.
    if (session.state === 'closed' && session.sandbox !== null)
      deps.control.close(session.name).catch((error: unknown) => warn(deps, session.name, error))
  }
}

/** The sessions that have something to do: first those whose agent runs and has its place already, then as their messages came. */
async function inOrder(sessions: readonly SessionEntry[], { index }: RecoveryDeps): Promise<SessionName[]> {
  const waiting: { readonly name: SessionName; readonly isBegun: boolean; readonly at: number }[] = []
  for (const { session } of sessions) {
    if (session.state !== 'running') continue
    const turns = (await index.turns.range({ prefix: `${session.name}/` })).map(([, turn]) => turn)
    const next = turns.find((turn) => turn.state !== 'ended')
    waiting.push({
      name: session.name,
      isBegun: next !== undefined && next.state !== 'queued',
      at: next?.createdAt ?? 0,
    })
  }
  return waiting.sort((a, b) => Number(b.isBegun) - Number(a.isBegun) || a.at - b.at).map(({ name }) => name)
}

/** A claim without a record is freed (a crash between the two); a record without a claim, as after a restore, is claimed. */
async function mendClaims(sessions: readonly SessionEntry[], deps: RecoveryDeps): Promise<void> {
  const recorded = new Set<SessionName>(sessions.map((entry) => entry.session.name))
  const claimed = await deps.claims.list()
  for (const { name, repo } of claimed) {
    if (recorded.has(name)) continue
    try {
      const opened = repo === null ? null : await deps.repositories.open(repo)
      if (opened !== null && (await opened.refs.read(sessionRef(name, 'log'))) !== null) continue
    } catch (error) {
      warn(deps, name, error)
      continue
    }
    deps.log.warn({ session: name }, 'a name was claimed but no session recorded; it is free again')
    await deps.claims.release(name)
  }
  const names = new Set(claimed.map((claim) => claim.name))
  for (const { session, repo } of sessions) if (!names.has(session.name)) await deps.claims.claim(session.name, repo)
}

function warn(deps: RecoveryDeps, what: string, error: unknown): void {
  deps.log.warn(
    { what, error: messageOf(error) },
    'something a crash left could not be cleared away; the next start tries again',
  )
}
