/** Which conversation a run begins or goes on with, and what is known of it afterwards. */
import { createHash } from 'node:crypto'
import type { ConversationStart, HarnessEnd } from '../domain/harness.ts'
import { NO_USAGE, type Usage } from '../domain/run-event.ts'
import type { SessionConversation, SessionRecord, TurnRecord } from '../domain/session.ts'
import { parentOf } from './sandbox-grant.ts'
import type { SessionRecords } from './session-records.ts'
import { runKeys, type TurnAt } from './turn-context.ts'

/** The conversation of the turn's next run, and what it has used so far. The same turn gives the same one, also after a restart. */
export function conversationStart(
  session: SessionRecord,
  turn: TurnRecord,
): { readonly conversation: ConversationStart; readonly before: Usage } {
  const known = session.conversation ?? null
  const key = turn.handedOff ? runKeys(turn.turn).handedOff : runKeys(turn.turn).main
  const id = uuidOf(`${session.name}\0${session.createdAt}\0${key}`)
  if (known === null) return { conversation: { kind: 'new', id }, before: NO_USAGE }
  const conversation: ConversationStart = known.isParents
    ? { kind: 'fork', parent: known.id, id }
    : { kind: 'resume', id: known.id }
  return { conversation, before: known.cumulative }
}

/** What the session's record says of its conversation after a run. */
export function conversationAfter(
  session: SessionRecord,
  at: TurnAt,
  { conversation, cumulative }: HarnessEnd,
): SessionConversation | null {
  if (conversation === null) return session.conversation ?? null
  return { harness: at.environment.harness.kind, id: conversation, cumulative, isParents: false }
}

/** What an agent is told of that does not know its conversation: the turns before this one, those of the sessions that it was forked from first. */
export async function turnsBefore(
  records: SessionRecords,
  session: SessionRecord,
  number: number,
): Promise<TurnRecord[]> {
  const own = (await records.turns(session.name)).filter(({ turn }) => turn < number)
  const before: TurnRecord[] = []
  let at = session
  for (;;) {
    const parent = await parentOf(at, records.find)
    if (parent === null) break
    const last = at.parentTurn ?? 0
    before.unshift(...(await records.turns(parent.name)).filter(({ turn }) => turn <= last))
    at = parent
  }
  return [...before, ...own]
}

/** A UUID (version 8: of our own making) from a text. */
function uuidOf(text: string): string {
  const hex = createHash('sha256').update(text).digest('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}
