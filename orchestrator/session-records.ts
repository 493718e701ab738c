/** The records of sessions and turns: written to the session's log ref by compare-and-swap, then to the index; read back from the index. */
import { EventEmitter } from 'node:events'
import { errors } from '../domain/errors.ts'
import type { Oid, SessionName } from '../domain/names.ts'
import type { Clock } from '../domain/ports.ts'
import type { SessionRecord, TurnRecord } from '../domain/session.ts'
import { checkSessionMove, checkTurnMove } from '../domain/turn-moves.ts'
import type { Repositories } from '../gateway/git/repositories.ts'
import type { RefUpdate, Repository } from '../gateway/git/repository.ts'
import type { Change, Ledger } from '../gateway/ledger.ts'
import { seenMove } from '../gateway/state/event-log.ts'
import { type Index, type IndexChange, orderKey, type SessionEntry, turnKey } from '../gateway/state/index.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'

/** One externally visible move of a session: its new records, and what goes with them into the same commit and transaction. */
export interface SessionMove {
  readonly message: string
  readonly session: SessionRecord
  readonly turns?: readonly TurnRecord[]
  /** Further files, by path in the record's tree (latin1). */
  readonly files?: Change['files']
  readonly parents?: readonly Oid[]
  readonly alsoMove?: readonly RefUpdate[]
  /** Index entries that appear together with the records. */
  readonly index?: readonly IndexChange[]
}

/** What a move is worked out from: the newest records, read from git. */
export interface SessionAt {
  readonly repo: Repository
  readonly session: SessionRecord
  turn(number: number): Promise<TurnRecord>
}

export interface SessionRecords {
  /** Writes the first records of sessions in one repository, all or none. Throws `name_taken` when there is one of any. */
  createAll(repo: Repository, moves: () => Promise<readonly SessionMove[]>): Promise<void>
  /** Works a move out from the newest records and writes it; again when another writer won. `null` leaves all as it is. */
  move(name: SessionName, change: (at: SessionAt) => Promise<SessionMove | null>): Promise<SessionRecord>
  find(name: SessionName): Promise<SessionEntry | null>
  /** The sessions that were made with this Idempotency-Key (its SHA-256), in the order of their names, a number at their end by its size. */
  madeWith(key: string): Promise<SessionRecord[]>
  /** Throws `not_found`. */
  get(name: SessionName): Promise<SessionEntry>
  repository(name: SessionName): Promise<Repository>
  turn(name: SessionName, number: number): Promise<TurnRecord>
  /** All turns, the oldest first. */
  turns(name: SessionName): Promise<TurnRecord[]>
  /** A file of the newest record's tree. */
  file(name: SessionName, path: string): Promise<Buffer | null>
  /** Removes a session's entries from the index, after its refs are gone. */
  forget(name: SessionName, moves: readonly RefUpdate[]): Promise<void>
  /** Calls back after each move of the session; returns its removal. */
  onMove(name: SessionName, listener: () => void): () => void
  /** How many listen. */
  listening(): number
}

export interface SessionRecordsDeps {
  readonly repositories: Repositories
  readonly ledger: Ledger
  readonly index: Index
  readonly clock: Clock
}

export function createSessionRecords({ repositories, ledger, index, clock }: SessionRecordsDeps): SessionRecords {
  const moves = new EventEmitter().setMaxListeners(0)

  const find = (name: SessionName) => index.sessions.get(name)
  const get = async (name: SessionName) => {
    const entry = await find(name)
    if (entry === null) throw errors.notFound(`there is no session ${name}; hangar session list shows those there are`)
    return entry
  }
  const repository = async (name: SessionName) => {
    const { repo } = await get(name)
    const opened = await repositories.open(repo)
    if (opened === null) throw errors.notFound(`the repo ${repo} of session ${name} is not here any more`)
    return opened
  }
  const entriesOf = ({ slug }: Repository, logOid: Oid, move: SessionMove): IndexChange[] => {
    const { session } = move
    if (slug === null) throw errors.internal('a session needs a repo of its own')
    return [
      { section: 'sessions', key: session.name, value: { logOid, repo: slug, session } },
      { section: 'order', key: orderKey(session.createdAt, session.name), value: session.name },
      { section: 'questions', key: session.name, value: session.needsInput === null ? null : true },
      ...(move.turns ?? []).map(
        (turn): IndexChange => ({ section: 'turns', key: turnKey(session.name, turn.turn), value: turn }),
      ),
      ...(move.alsoMove ?? []).map((update) => seenMove(slug, update)),
      ...(move.index ?? []),
    ]
  }
  const publish = async (repo: Repository, written: readonly (readonly [Oid, SessionMove])[]) => {
    await index.batch(written.flatMap(([oid, move]) => entriesOf(repo, oid, move)))
    for (const [, { session }] of written) moves.emit(session.name)
  }

  return {
    find,
    get,
    madeWith: async (key) =>
      (await index.sessions.range())
        .flatMap(([, { session }]) => (session.idempotency?.key === key ? [session] : []))
        .sort((a, b) => a.name.length - b.name.length || (a.name < b.name ? -1 : 1)),
    repository,
    createAll: async (repo, work) => {
      let made: readonly SessionMove[] | null = null
      const first = await work()
      const names = first.map(({ session }) => session.name)
      const refs = names.map((name) => sessionRef(name, 'log'))
      const { changed, oids } = await ledger.appendAll(repo, refs, async (tips) => {
        if (tips.some((tip) => tip !== null)) return null
        made = made === null ? first : await work()
        return made.map(changeOf)
      })
      if (!changed) {
        const taken = names.find((_, place) => oids[place] !== null)
        throw errors.nameTaken(`session ${taken} exists already; choose another name`)
      }
      const written = (made ?? first).flatMap((move, place) => {
        const oid = oids[place] ?? null
        return oid === null ? [] : [[oid, move] as const]
      })
      await publish(repo, written)
    },
    move: async (name, change) => {
      const repo = await repository(name)
      const ref = sessionRef(name, 'log')
      let made: SessionMove | null = null
      let current: SessionRecord | null = null
      const { changed, oid } = await ledger.append(repo, ref, async (tip) => {
        if (tip === null) throw errors.notFound(`there is no session ${name}`)
        const session = await readJson<SessionRecord>(ledger, repo, tip, 'session.json')
        const turn = (number: number) => readJson<TurnRecord>(ledger, repo, tip, `turns/${number}/turn.json`)
        current = session
        const proposed = await change({ repo, session, turn })
        if (proposed === null) return null
        checkSessionMove(session.state, proposed.session.state)
        for (const next of proposed.turns ?? [])
          if (next.turn <= session.turns) checkTurnMove((await turn(next.turn)).state, next.state)
        made = { ...proposed, session: { ...proposed.session, updatedAt: clock.now() } }
        return changeOf(made)
      })
      if (changed && oid !== null && made !== null) {
        await publish(repo, [[oid, made]])
        return (made as SessionMove).session
      }
      if (current === null) throw errors.internal(`the record of ${name} was not read`)
      return current
    },
    turn: async (name, number) => {
      const found = await index.turns.get(turnKey(name, number))
      if (found === null)
        throw errors.notFound(`session ${name} has no turn ${number}; see: hangar session show ${name}`)
      return found
    },
    turns: async (name) => (await index.turns.range({ prefix: `${name}/` })).map(([, turn]) => turn),
    file: async (name, path) => ledger.readFile(await repository(name), sessionRef(name, 'log'), path),
    forget: async (name, gone) => {
      const entry = await find(name)
      const [turns, events] = await Promise.all([
        index.turns.range({ prefix: `${name}/` }),
        index.runEvents.range({ prefix: `${name}/` }),
      ])
      await index.batch([
        { section: 'sessions', key: name, value: null },
        { section: 'cursors', key: name, value: null },
        { section: 'questions', key: name, value: null },
        ...(entry === null ? [] : gone.map((update) => seenMove(entry.repo, update))),
        ...(entry === null
          ? []
          : [{ section: 'order', key: orderKey(entry.session.createdAt, name), value: null } as const]),
        ...turns.map(([key]) => ({ section: 'turns', key, value: null }) as const),
        ...events.map(([key]) => ({ section: 'runEvents', key, value: null }) as const),
      ])
      moves.emit(name)
    },
    onMove: (name, listener) => {
      moves.on(name, listener)
      return () => moves.off(name, listener)
    },
    listening: () => moves.eventNames().reduce((sum, name) => sum + moves.listenerCount(name), 0),
  }
}

function changeOf(move: SessionMove): Change {
  const files = new Map(move.files ?? [])
  files.set('session.json', json(move.session))
  for (const turn of move.turns ?? []) files.set(`turns/${turn.turn}/turn.json`, json(turn))
  return { files, message: move.message, parents: move.parents ?? [], alsoMove: move.alsoMove ?? [] }
}

function json(value: unknown): Buffer {
  return Buffer.from(`${JSON.stringify(value, null, 2)}\n`)
}

async function readJson<T>(ledger: Ledger, repo: Repository, commit: Oid, path: string): Promise<T> {
  const bytes = await ledger.readFile(repo, commit, path)
  if (bytes === null) throw errors.internal(`the record ${commit} has no ${path}`)
  return JSON.parse(bytes.toString('utf8')) as T
}
