/** The operation that lists what waits for a person, the oldest first. */
import { Type } from '@sinclair/typebox'
import { coversRepo } from '../../domain/grant.ts'
import { jobOf, type SessionName } from '../../domain/names.ts'
import { orderKey } from '../../gateway/state/index.ts'
import { chosenSession } from '../../orchestrator/job-attempts.ts'
import { InboxItemShape, listOf } from '../shapes.ts'
import { approvalView, inboxView } from '../views.ts'
import { type Call, fitPage, json, type Operation, operation } from './operation.ts'

const PAGE = 50

const listInbox = operation({
  name: 'list_inbox',
  summary: 'Lists the questions and approvals that wait for a person, the oldest first.',
  scope: 'read',
  cli: 'inbox',
  tool: {
    title: 'List waiting questions',
    advice:
      'Of all sessions and jobs that the token covers. A person answers, or you do with send_to_session or follow_up_job when you know the answer; approvals are approve_job and reject_job.',
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
    const questions = await Promise.all(names.map((name) => questionOf(call, name)))
    const waiting = [...questions.filter((item) => item !== null), ...(await approvals(call))]
      .filter(({ key }) => input.cursor === undefined || key > input.cursor)
      .sort((a, b) => (a.key < b.key ? -1 : 1))
    const page = fitPage(call.surface, waiting.slice(0, limit))
    return json(200, {
      items: page.map(({ item }) => item),
      next_cursor: waiting.length > page.length ? (page.at(-1)?.key ?? null) : null,
    })
  },
})

export const INBOX_OPERATIONS: readonly Operation[] = [listInbox]

interface Waiting {
  /** By which they are ordered: since when, and what. */
  readonly key: string
  readonly item: ReturnType<typeof inboxView> | ReturnType<typeof approvalView>
}

/** Null when it was answered meanwhile, is not for this caller, or was asked by an attempt whose work does not count. */
async function questionOf(call: Call, name: SessionName): Promise<Waiting | null> {
  const { records, jobRecords } = call.services
  const entry = await records.find(name)
  if (entry === null || entry.session.needsInput === null || !coversRepo(call.caller, entry.repo)) return null
  const owner = jobOf(name)
  const job = owner === null ? null : await jobRecords.find(owner.id)
  if (owner !== null && (job?.state !== 'needs_input' || chosenSession(job) !== name)) return null
  // Messages that were queued behind the question come after the turn that asked.
  for (let number = entry.session.turns; number >= 1; number--) {
    const turn = await records.turn(name, number).catch(() => null)
    if (turn === null) return null
    if (turn.state === 'ended' && turn.question !== null)
      return { key: orderKey(turn.endedAt ?? 0, name), item: inboxView(owner?.id ?? name, entry.session, turn) }
  }
  return null
}

async function approvals(call: Call): Promise<Waiting[]> {
  const jobs = (await call.services.jobRecords.all()).filter(
    ({ state, repo }) => state === 'awaiting_approval' && coversRepo(call.caller, repo),
  )
  return jobs.map((job) => ({ key: orderKey(job.updatedAt, job.id), item: approvalView(job) }))
}
