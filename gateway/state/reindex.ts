/** Builds the index's listings again from the records in git. */
import { gunzipSync } from 'node:zlib'
import { messageOf } from '../../domain/errors.ts'
import type { RefName, RepoSlug, SessionName } from '../../domain/names.ts'
import type { RunEvent } from '../../domain/run-event.ts'
import type { SessionRecord, TurnRecord } from '../../domain/session.ts'
import type { Repositories } from '../git/repositories.ts'
import type { Repository } from '../git/repository.ts'
import type { Ledger } from '../ledger.ts'
import { readTokens } from '../tokens.ts'
import { type Index, type IndexChange, orderKey, runEventKey, turnKey } from './index.ts'
import { reindexJobs } from './reindex-jobs.ts'

export interface ReindexDeps {
  readonly repositories: Repositories
  readonly index: Index
  readonly ledger: Ledger
}

const LOG_REF = /^refs\/hangar\/sessions\/([a-z0-9][a-z0-9-]{0,62})\/log$/
/** Run events of a turn, unpacked. */
const MAX_EVENTS_BYTES = 256 * 1_048_576

/** A repository, or one session of it, that could not be read; what the index had of it stays. */
export interface Unreadable {
  readonly repo: RepoSlug
  readonly session: string | null
  readonly reason: string
}

/**
 * Takes in the sessions whose log has moved since they were indexed (`full`: all of them, and what only the index knew, such as cursors
 * and the live events of unfinished turns, is dropped), forgets those that are gone, and loads the tokens. A session is one
 * batch, so a cut leaves whole sessions. A full one gives the same entries whatever was there before.
 */
export async function reindex(
  deps: ReindexDeps,
  options: { readonly full: boolean },
): Promise<{ sessions: number; unreadable: Unreadable[] }> {
  const { repositories, index, ledger } = deps
  const present = new Set<string>()
  const unreadable: Unreadable[] = []
  let count = 0
  for (const slug of await repositories.list()) {
    const give = (session: string | null) => (error: unknown) => {
      unreadable.push({ repo: slug, session, reason: messageOf(error) })
      return null
    }
    const repo = await repositories.open(slug).catch(give(null))
    if (repo === null) continue
    for (const { name: ref, oid } of (await repo.refs.snapshot()).refs) {
      const name = LOG_REF.exec(ref)?.[1] as SessionName | undefined
      if (name === undefined) continue
      present.add(name)
      if (!options.full && (await index.sessions.get(name))?.logOid === oid) continue
      if (await indexSession(deps, { repo, slug, name, ref, full: options.full }).catch(give(name))) count += 1
    }
  }
  const closed = new Set(unreadable.filter(({ session }) => session === null).map(({ repo }) => repo))
  for (const [name, entry] of await index.sessions.range())
    if (!present.has(name) && !closed.has(entry.repo))
      await index.batch(await dropChanges(index, name, { keepLive: false }))
  await indexTokens(index, await readTokens(repositories.server, ledger))
  await reindexJobs(deps, { full: options.full, unreadable })
  return { sessions: count, unreadable }
}

async function indexTokens(index: Index, tokens: Awaited<ReturnType<typeof readTokens>>): Promise<void> {
  const ids = new Set(tokens.map((token) => token.id))
  const gone = (await index.tokens.range()).filter(([id]) => !ids.has(id))
  await index.batch([
    ...gone.map(([key]): IndexChange => ({ section: 'tokens', key, value: null })),
    ...tokens.map((token): IndexChange => ({ section: 'tokens', key: token.id, value: token })),
  ])
}

interface SessionPlace {
  readonly repo: Repository
  readonly slug: RepoSlug
  readonly name: SessionName
  readonly ref: RefName
  readonly full: boolean
}

async function indexSession({ index, ledger }: ReindexDeps, place: SessionPlace): Promise<boolean> {
  const { repo, slug, name, ref } = place
  const logOid = await repo.refs.read(ref)
  const text = logOid === null ? null : await ledger.readFile(repo, logOid, 'session.json')
  if (logOid === null || text === null) return false
  const session = JSON.parse(text.toString('utf8')) as SessionRecord
  const added: IndexChange[] = [
    { section: 'sessions', key: name, value: { logOid, repo: slug, session } },
    { section: 'order', key: orderKey(session.createdAt, name), value: name },
    ...(session.needsInput === null ? [] : [{ section: 'questions', key: name, value: true } as const]),
  ]
  const recorded = new Set<number>()
  for (let turn = 1; turn <= session.turns; turn += 1) {
    const record = await ledger.readFile(repo, logOid, `turns/${turn}/turn.json`)
    if (record !== null)
      added.push({
        section: 'turns',
        key: turnKey(name, turn),
        value: JSON.parse(record.toString('utf8')) as TurnRecord,
      })
    const events = await ledger.readFile(repo, logOid, `turns/${turn}/events.jsonl.gz`)
    if (events === null) continue
    recorded.add(turn)
    for (const event of parseEvents(events))
      added.push({ section: 'runEvents', key: runEventKey(name, event.seq), value: event })
  }
  const dropped = await dropChanges(index, name, place.full ? { keepLive: false } : { keepLive: true, recorded })
  await index.batch([...dropped, ...added], { durable: true })
  return true
}

function parseEvents(packed: Buffer): RunEvent[] {
  const text = gunzipSync(packed, { maxOutputLength: MAX_EVENTS_BYTES }).toString('utf8')
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as RunEvent)
}

/** `keepLive` keeps the cursor, and the events of turns that git has none of yet: they are of a turn that is still read. */
async function dropChanges(
  index: Index,
  name: string,
  options: { readonly keepLive: false } | { readonly keepLive: true; readonly recorded: ReadonlySet<number> },
): Promise<IndexChange[]> {
  const prefix = `${name}/`
  const before = await index.sessions.get(name)
  const events = await index.runEvents.range({ prefix })
  const changes: IndexChange[] = [
    { section: 'sessions', key: name, value: null },
    { section: 'questions', key: name, value: null },
  ]
  if (!options.keepLive) changes.push({ section: 'cursors', key: name, value: null })
  if (before !== null) changes.push({ section: 'order', key: orderKey(before.session.createdAt, name), value: null })
  for (const [key] of await index.turns.range({ prefix })) changes.push({ section: 'turns', key, value: null })
  for (const [key, event] of events)
    if (!options.keepLive || options.recorded.has(event.turn)) changes.push({ section: 'runEvents', key, value: null })
  return changes
}
