/** The operation on the audit trail of pushes: read it. */
import { Type } from '@sinclair/typebox'
import type { AuditEntry } from '../../gateway/audit.ts'
import { listOf, orNull } from '../shapes.ts'
import { json, type Operation, operation } from './operation.ts'

const Decision = Type.Union([Type.Literal('accepted'), Type.Literal('refused')])

const EntryShape = Type.Object({
  at: Type.String({ description: 'ISO 8601, UTC.' }),
  by: Type.String({
    description: '`token:<id>`, `grant:<sandbox>`, or `unknown`: a move that was found when the server started.',
  }),
  repo: Type.String(),
  ref: Type.String(),
  old: Type.String({ description: 'As the client gave it; zeros: there was none.' }),
  new: Type.String({ description: 'Zeros: to be deleted.' }),
  decision: Decision,
  rule: orNull(Type.String({ description: 'The id of the rule that refused.' })),
  reason: orNull(Type.String({ description: 'The sentence that the client was shown.' })),
  forced: Type.Boolean({ description: 'History was rewritten.' }),
  times: Type.Integer({ description: 'Of a flood of refusals only the last is told, with how many there were.' }),
})

const listAudit = operation({
  name: 'list_audit',
  summary: 'Lists decisions on pushes, newest first: who asked for which move of which ref, and what became of it.',
  scope: 'admin',
  method: 'get',
  path: '/api/audit',
  cli: 'audit',
  input: Type.Object(
    {
      repo: Type.Optional(Type.String({ description: 'Only of this repo.' })),
      ref: Type.Optional(Type.String({ description: 'Only of this ref, by its full name.' })),
      by: Type.Optional(Type.String({ description: 'Only of this token or grant, as `by` names it.' })),
      decision: Type.Optional(Decision),
      rule: Type.Optional(Type.String({ description: 'Only what this rule refused.' })),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1_000, description: 'Default 100.' })),
      cursor: Type.Optional(
        Type.String({
          pattern: '^[0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9]{2}/[0-9.-]+\\.jsonl:[0-9]+$',
          description: '`next_cursor` of the page before.',
        }),
      ),
    },
    { additionalProperties: false },
  ),
  output: listOf(EntryShape),
  status: 200,
  handle: async (call, { limit = 100, cursor = null, ...filter }) => {
    const { entries, next } = await call.services.audit.list(filter, { limit, before: cursor })
    return json(200, { items: entries.map(entryView), next_cursor: next })
  },
})

function entryView(entry: AuditEntry) {
  return { ...entry, at: new Date(entry.at).toISOString() }
}

export const AUDIT_OPERATIONS: readonly Operation[] = [listAudit]
