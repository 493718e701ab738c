/** Turns are cancelled, sessions closed and deleted here; sandboxes and grants go with them. */
import { errors } from '../domain/errors.ts'
import { type SessionName, workBranch, ZERO_OID } from '../domain/names.ts'
import type { Clock } from '../domain/ports.ts'
import type { Provider } from '../domain/sandbox.ts'
import type { SessionRecord, TurnRecord } from '../domain/session.ts'
import type { RefUpdate } from '../gateway/git/repository.ts'
import type { Grants } from '../gateway/grants.ts'
import { deliveringRef, type SessionRefKind, sessionRef, upstreamRef } from '../refs-policy/ref-names.ts'
import type { NameClaims } from './name-claims.ts'
import type { SessionEvents } from './session-events.ts'
import type { SessionAt, SessionRecords } from './session-records.ts'
import { sandboxRef } from './turn-context.ts'
import type { TurnRunner } from './turn-runner.ts'

export interface SessionControl {
  /** Stops the turn that is being worked on; those that wait behind it go on. Throws `conflict` when none is. */
  cancel(name: SessionName): Promise<SessionRecord>
  /** The same for another reason, which the turn's record keeps. */
  stop(name: SessionName, why: StopCause): Promise<SessionRecord>
  /** Stops every turn up to this number, those that wait as well. Safe to repeat. */
  stopAll(name: SessionName, upTo: number): Promise<void>
  /** Ends all turns, destroys the sandbox, revokes its grant. Its refs stay. Safe to repeat. */
  close(name: SessionName): Promise<SessionRecord>
  /** Closes, then removes the session's refs and frees its name. */
  remove(name: SessionName): Promise<void>
}

/** Why a turn is stopped from outside, and by how much a limit was passed. */
export interface StopCause {
  readonly reason: NonNullable<TurnRecord['stopReason']>
  readonly detail: string | null
}

export interface SessionControlDeps {
  readonly records: SessionRecords
  readonly claims: NameClaims
  readonly runner: TurnRunner
  readonly grants: Grants
  readonly events: SessionEvents
  provider(kind: string): Provider
  readonly clock: Clock
}

const CANCELLED: StopCause = { reason: 'cancelled', detail: null }
const OWN_REFS: readonly SessionRefKind[] = ['context', 'checkpoint', 'sealed', 'log']

export function createSessionControl(deps: SessionControlDeps): SessionControl {
  const { records, runner, clock } = deps

  const close = async (name: SessionName): Promise<SessionRecord> => {
    await records.move(name, async (at) => {
      const unended = await unendedTurns(at)
      if (at.session.state === 'closed' && unended.every((turn) => turn.stopReason !== null)) return null
      return {
        message: 'the session is closed',
        session: { ...at.session, state: 'closed', needsInput: null, questionOptions: [] },
        turns: unended.map((turn) => stopped(turn, CANCELLED, clock.now())),
      }
    })
    // After a crash nothing may work on the session yet: what has not ended is taken up to be ended.
    runner.kick(name)
    runner.interrupt(name)
    await runner.settled(name)
    await destroySandbox(name)
    return (await records.get(name)).session
  }

  const destroySandbox = async (name: SessionName): Promise<void> => {
    const { session } = await records.get(name)
    const ref = sandboxRef(session)
    if (session.sandbox === null || ref === null) return
    deps.grants.revoke(session.sandbox.grantHash)
    await deps.provider(ref.provider).destroy(ref)
    await records.move(name, async ({ session }) => ({
      message: 'the sandbox is gone',
      session: { ...session, sandbox: null },
    }))
  }

  const stop = async (name: SessionName, why: StopCause): Promise<SessionRecord> => {
    const session = await records.move(name, async (at) => {
      const [current] = await unendedTurns(at)
      if (current === undefined)
        throw errors.conflict(`session ${name} has no turn to cancel; see: hangar session show ${name}`)
      if (current.stopReason !== null) return null
      const ended = stopped(current, why, clock.now())
      const idle = ended.state === 'ended' && at.session.turns === ended.turn
      return {
        message: `turn ${current.turn} is being stopped: ${why.reason}`,
        session: idle ? { ...at.session, state: 'idle' } : at.session,
        turns: [ended],
      }
    })
    runner.interrupt(name)
    return session
  }

  const stopAll = async (name: SessionName, upTo: number): Promise<void> => {
    await records.move(name, async (at) => {
      const unended = await unendedTurns(at)
      const wanted = unended.filter((turn) => turn.turn <= upTo && turn.stopReason === null)
      if (wanted.length === 0) return null
      const ended = wanted.map((turn) => stopped(turn, CANCELLED, clock.now()))
      const isIdle = ended.length === unended.length && ended.every((turn) => turn.state === 'ended')
      return {
        message: 'its turns are being stopped: cancelled',
        session: isIdle ? { ...at.session, state: 'idle' } : at.session,
        turns: ended,
      }
    })
    runner.interrupt(name)
  }

  return {
    close,
    stopAll,
    cancel: (name) => stop(name, CANCELLED),
    stop,
    remove: async (name) => {
      await close(name)
      const repo = await records.repository(name)
      const moves: RefUpdate[] = []
      const branch = workBranch(name)
      const delivered = [upstreamRef(branch), deliveringRef(branch)]
      for (const ref of [branch, ...delivered, ...OWN_REFS.map((kind) => sessionRef(name, kind))]) {
        const old = await repo.refs.read(ref)
        if (old !== null) moves.push({ ref, old, new: ZERO_OID })
      }
      const gone = await repo.refs.transact(moves)
      if (!gone.ok) throw errors.conflict(`session ${name} could not be removed: ${gone.reason}; try again`)
      await records.forget(name, moves)
      deps.events.forget(name)
      deps.grants.clearParent(name)
      // Last: from here on the name may be another session's.
      await deps.claims.release(name)
    },
  }
}

/** The turns that have not ended, the oldest first. */
async function unendedTurns({ session, turn }: SessionAt): Promise<TurnRecord[]> {
  const found: TurnRecord[] = []
  for (let number = session.turns; number >= 1; number--) {
    const record = await turn(number)
    if (record.state === 'ended') break
    found.unshift(record)
  }
  return found
}

/** A turn that waits ends at once; one that is worked on is told why its end will come. */
function stopped(turn: TurnRecord, { reason, detail }: StopCause, now: number): TurnRecord {
  const why = { stopReason: turn.stopReason ?? reason, stopDetail: turn.stopDetail ?? detail }
  if (turn.state !== 'queued') return { ...turn, ...why }
  return { ...turn, ...why, state: 'ended', outcome: why.stopReason, endedAt: now }
}
