/** What a session's sandbox may fetch and push, by the session's record: set when it is made, when it is used again, and after a restart. */
import type { RepoSlug, SessionName } from '../domain/names.ts'
import type { SessionRecord } from '../domain/session.ts'
import type { Grants } from '../gateway/grants.ts'
import type { SessionEntry } from '../gateway/state/index.ts'

export interface SandboxGrantDeps {
  readonly grants: Pick<Grants, 'set'>
  find(name: SessionName): Promise<SessionEntry | null>
  mayRead(repo: RepoSlug): readonly RepoSlug[]
}

/** The session that this one was forked from; null where that is gone, whoever has its name by now. */
export async function parentOf(session: SessionRecord, find: SandboxGrantDeps['find']): Promise<SessionRecord | null> {
  const entry = session.parent === null ? null : await find(session.parent)
  if (entry === null || entry.session.createdAt !== session.parentCreatedAt || entry.repo !== session.repo) return null
  return entry.session
}

/** Sets or renews the grant of the session's sandbox, where it has one. */
export async function setGrant(
  { session, repo }: Pick<SessionEntry, 'session' | 'repo'>,
  { grants, find, mayRead }: SandboxGrantDeps,
): Promise<void> {
  const { sandbox, name } = session
  if (sandbox === null) return
  const set = (parent: SessionName | null) =>
    grants.set(sandbox.grantHash, {
      caller: { kind: 'grant', id: sandbox.id, session: name, repo, parent, mayRead: mayRead(repo) },
      expiresAt: sandbox.grantExpiresAt,
    })
  const parent = await parentOf(session, find)
  set(parent?.name ?? null)
  // A parent that was removed between the look and the grant was cleared from live grants too early for this one.
  if (parent !== null && (await parentOf(session, find)) === null) set(null)
}
