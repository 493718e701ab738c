/** Sessions are forked: children that begin with the very work and conversation that their parent had, each on a branch of its own. */
import { errors } from '../domain/errors.ts'
import { jobOf, type Oid, parseNewSessionName, type SessionName, workBranch, ZERO_OID } from '../domain/names.ts'
import type { Clock } from '../domain/ports.ts'
import type { IdempotencyMark, SessionConversation, SessionRecord, TurnRecord } from '../domain/session.ts'
import { UNBORN_ROOT } from '../exchange/checkpoint.ts'
import type { RefUpdate, Repository } from '../gateway/git/repository.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import { isSameRequest, type Message } from './message.ts'
import { type NameClaims, releaseUnmade } from './name-claims.ts'
import type { SessionMove, SessionRecords } from './session-records.ts'
import type { TurnRunner } from './turn-runner.ts'

export interface ForkAsk {
  /** How many children, 1 to 16. */
  readonly n: number
  /** Their names; null: made from the parent's. */
  readonly names: readonly SessionName[] | null
  /** As the parent was at the end of this turn; null: as it is now. */
  readonly turn: number | null
  /** The first message of each child; null: they wait for one. */
  readonly message: Message | null
  readonly idempotency: IdempotencyMark | null
}

export interface SessionFork {
  /** All or none of the children; asked for again with the same key, the ones that were made. Of a parent at work, the work is as it is now and the conversation as it was after its last turn. */
  fork(parent: SessionName, ask: ForkAsk): Promise<SessionRecord[]>
}

export interface SessionForkDeps {
  readonly records: SessionRecords
  readonly claims: NameClaims
  readonly runner: Pick<TurnRunner, 'kick' | 'refresh'>
  /** The record of a first turn, from what is checked and taken in; throws what is wrong with the message. */
  firstTurn(message: Message, session: SessionRecord, context: Oid): Promise<TurnRecord>
  checkRoom(): void
  readonly clock: Clock
}

/** What children begin with. */
interface Origin {
  readonly checkpoint: Oid
  readonly head: Oid | null
  readonly conversation: SessionConversation | null
  readonly sealed: Oid | null
  /** The newest turn that counts. */
  readonly turn: number
}

const MAX_CHILDREN = 16

export function createSessionFork(deps: SessionForkDeps): SessionFork {
  const { records, claims, runner } = deps

  const originOf = async (parent: SessionRecord, repo: Repository, number: number | null): Promise<Origin> => {
    const turns = await records.turns(parent.name)
    const asked = number === null ? null : turns.find(({ turn }) => turn === number)
    if (asked === undefined)
      throw errors.notFound(`session ${parent.name} has no turn ${number}; see: hangar session show ${parent.name}`)
    if (asked !== null && asked.checkpoint === null)
      throw errors.noContent(
        `turn ${asked.turn} of ${parent.name} ${asked.state === 'ended' ? 'left no checkpoint' : 'has not ended'}; fork from another turn, or from the session as it is now`,
      )
    if (asked === null) await runner.refresh(parent.name)
    const tip = async (kind: 'checkpoint' | 'context' | 'sealed') => repo.refs.read(sessionRef(parent.name, kind))
    const checkpoint = asked?.checkpoint ?? (await tip('checkpoint')) ?? (await tip('context'))
    if (checkpoint === null)
      throw errors.noContent(
        `session ${parent.name} has no work to fork yet; wait for its turn: hangar session wait ${parent.name}`,
      )
    const commit = await repo.objects.readCommit(checkpoint)
    const head = commit?.parents[0] ?? null
    const ended = turns.findLast(({ state }) => state === 'ended')
    return {
      checkpoint,
      head: head === UNBORN_ROOT ? null : head,
      conversation: (asked === null ? parent.conversation : asked.conversation) ?? null,
      sealed: asked === null ? await tip('sealed') : (asked.sealed ?? null),
      turn: asked?.turn ?? ended?.turn ?? 0,
    }
  }

  const move = async (
    repo: Repository,
    parent: SessionRecord,
    name: SessionName,
    origin: Origin,
    { message, idempotency }: ForkAsk,
  ): Promise<SessionMove> => {
    const now = deps.clock.now()
    const { conversation, checkpoint } = origin
    const session: SessionRecord = {
      ...parent,
      name,
      state: message === null ? 'idle' : 'running',
      parent: parent.name,
      parentTurn: origin.turn,
      parentCreatedAt: parent.createdAt,
      idempotency,
      verify: null,
      conversation: conversation === null ? null : { ...conversation, isParents: true },
      sandbox: null,
      needsInput: null,
      questionOptions: [],
      turns: message === null ? 0 : 1,
      createdAt: now,
      updatedAt: now,
    }
    return {
      message: `forked from ${parent.name} after turn ${origin.turn}`,
      session,
      turns: message === null ? [] : [await deps.firstTurn(message, session, checkpoint)],
      parents: [checkpoint],
      alsoMove: await newRefs(repo, name, origin),
    }
  }

  return {
    fork: async (parentName, ask) => {
      const { session: parent } = await records.get(parentName)
      const earlier = await madeBefore(ask)
      if (earlier.length > 0) return earlier
      if (parent.state === 'creating')
        throw errors.conflict(`session ${parentName} has not begun; fork it when its first turn runs`)
      if (ask.n < 1 || ask.n > MAX_CHILDREN)
        throw errors.invalidRequest(`n: a session is forked into 1 to ${MAX_CHILDREN}, not ${ask.n}`)
      if (ask.names !== null && (ask.names.length !== ask.n || new Set(ask.names).size !== ask.n))
        throw errors.invalidRequest(`names: give ${ask.n} different one(s), or none`)
      deps.checkRoom()
      const repo = await records.repository(parentName)
      const origin = await originOf(parent, repo, ask.turn)
      const names: SessionName[] = []
      try {
        for (let at = 0; at < ask.n; at++) names.push(await claimed(ask.names?.[at] ?? null, parent))
        await records.createAll(repo, () => Promise.all(names.map((name) => move(repo, parent, name, origin, ask))))
      } catch (error) {
        await releaseUnmade(claims, repo, names)
        throw error
      }
      if (ask.message !== null) for (const name of names) runner.kick(name)
      return Promise.all(names.map(async (name) => (await records.get(name)).session))
    },
  }

  /** The children that an earlier request with the key made, in the order that it asked for. */
  async function madeBefore({ names, idempotency }: ForkAsk): Promise<SessionRecord[]> {
    if (idempotency === null) return []
    const made = (await records.madeWith(idempotency.key)).filter((session) =>
      isSameRequest(session.idempotency, idempotency),
    )
    return names === null ? made : names.flatMap((name) => made.filter((session) => session.name === name))
  }

  /** The name, now taken; where none is given, the first that is free. */
  async function claimed(name: SessionName | null, parent: SessionRecord): Promise<SessionName> {
    if (name !== null) {
      if (await claims.claim(name, parent.repo)) return name
      throw errors.nameTaken(`a session ${name} exists on this server; choose another name`)
    }
    for (let count = 1; ; count++) {
      const free = forkName(parent.name, count)
      if ((await records.find(free)) === null && (await claims.claim(free, parent.repo))) return free
    }
  }
}

/** `csv-fix-fork-1`; of a job's session `fork-of-job-…-1`, since names that begin with `job-` are jobs' own. */
function forkName(parent: SessionName, count: number): SessionName {
  const stem =
    jobOf(parent) === null && !parent.startsWith('job-')
      ? `${parent.slice(0, 50)}-fork`
      : `fork-of-${parent.slice(0, 45)}`
  return parseNewSessionName(`${stem}-${count}`)
}

async function newRefs(repo: Repository, name: SessionName, origin: Origin): Promise<RefUpdate[]> {
  const wanted = [
    [workBranch(name), origin.head],
    [sessionRef(name, 'checkpoint'), origin.checkpoint],
    [sessionRef(name, 'context'), origin.checkpoint],
    [sessionRef(name, 'sealed'), origin.sealed],
  ] as const
  const updates: RefUpdate[] = []
  for (const [ref, oid] of wanted)
    if (oid !== null) updates.push({ ref, old: (await repo.refs.read(ref)) ?? ZERO_OID, new: oid })
  return updates
}
