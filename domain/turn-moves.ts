/** Which moves of a turn and a session are allowed; every record change passes here. */
import { errors } from './errors.ts'
import type { SessionState, TurnState } from './session.ts'

const TURN_MOVES: Readonly<Record<TurnState, readonly TurnState[]>> = {
  queued: ['preparing', 'ended'],
  preparing: ['running', 'collecting', 'ended'],
  running: ['collecting', 'ended'],
  collecting: ['repairing', 'ended'],
  repairing: ['collecting', 'ended'],
  ended: [],
}

const SESSION_MOVES: Readonly<Record<SessionState, readonly SessionState[]>> = {
  creating: ['idle', 'running', 'closed', 'failed'],
  idle: ['running', 'suspended', 'closed', 'failed'],
  running: ['running', 'idle', 'closed', 'failed'],
  suspended: ['running', 'idle', 'closed', 'failed'],
  closed: [],
  failed: ['closed'],
}

/** Throws `conflict` unless the turn may move so. A turn that has not ended may be told something and stay in its state. */
export function checkTurnMove(from: TurnState, to: TurnState): void {
  if (from === to && from !== 'ended') return
  if (!TURN_MOVES[from].includes(to)) throw errors.conflict(`a turn that is ${from} cannot become ${to}`)
}

/** Throws `conflict` unless the session may move so. */
export function checkSessionMove(from: SessionState, to: SessionState): void {
  if (from !== to && !SESSION_MOVES[from].includes(to))
    throw errors.conflict(`a session that is ${from} cannot become ${to}`)
}
