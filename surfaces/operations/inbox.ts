/** The operation that lists what waits for a person, the oldest first. */
import { Type } from '@sinclair/typebox'
import { coversRepo } from '../../domain/grant.ts'
import type { SessionName } from '../../domain/names.ts'
import type { SessionRecord, TurnRecord } from '../../domain/session.ts'
import { orderKey } from '../../gateway/state/index.ts'
import { InboxItemShape, listOf } from '../shapes.ts'
import { inboxView } from '../views.ts'
import { type Call, fitPage, json, type Operation, operation } from './operation.ts'

const PAGE = 50

const listInbox = operation({
  name: 'list_inbox',
  summary: 'Lists the questions that wait for a person, the oldest first.',
  scope: 'read',
  cli: 'inbox',
  tool: {
    title: 'List waiting questions',
    advice:
      'Of all sessions that the token covers. A person answers, or you do with send_to_session when you know the answer.',
    example: {},
    effect: 'reads',
  },
  method: 'get',
  path: '/api/inbox',
  input: Type.Object(
    {
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 200, default: PAGE, description: 'At most so many.' })),
      cursor: Type.Optional(
        Type.String({ pattern: '^[0-9]{15}/[a-z0-9-]{1,63}$', description: 'next_cursor of the page before.' }),
      ),
    },
    { additionalProperties: false },
  ),
  output: listOf(InboxItemShape),
  status: 200,
  handle: async (call, input) => {
    const limit = input.limit ?? PAGE
    const names = (await call.services.index.questions.range()).map(([name]) => name as SessionName)
    const waiting = (await Promise.all(names.map((name) => questionOf(call, name))))
      .filter((question) => question !== null)
      .map((question) => ({ ...question, key: orderKey(question.turn.endedAt ?? 0, question.session.name) }))
      .filter(({ key }) => input.cursor === undefined || key > input.cursor)
      .sort((a, b) => (a.key < b.key ? -1 : 1))
    const page = fitPage(call.surface, waiting.slice(0, limit))
    return json(200, {
      items: page.map(({ session, turn }) => inboxView(session, turn)),
      next_cursor: waiting.length > page.length ? (page.at(-1)?.key ?? null) : null,
    })
  },
})

export const INBOX_OPERATIONS: readonly Operation[] = [listInbox]

interface Question {
  readonly session: SessionRecord
  readonly turn: TurnRecord
}

/** The session and the turn that asked; null when it was answered meanwhile, or is not for this caller. */
async function questionOf(call: Call, name: SessionName): Promise<Question | null> {
  const { records } = call.services
  const entry = await records.find(name)
  if (entry === null || entry.session.needsInput === null || !coversRepo(call.caller, entry.repo)) return null
  // Messages that were queued behind the question come after the turn that asked.
  for (let number = entry.session.turns; number >= 1; number--) {
    const turn = await records.turn(name, number).catch(() => null)
    if (turn === null) return null
    if (turn.state === 'ended' && turn.question !== null) return { session: entry.session, turn }
  }
  return null
}
