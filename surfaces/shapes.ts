/** The wire's objects as JSON Schemas: what requests may say and what answers hold. Names are INTERFACE.md's. */
import { type TSchema, Type } from '@sinclair/typebox'
import { ATTACHMENT_KINDS } from '../domain/context-item.ts'
import { SCOPES } from '../domain/grant.ts'
import { JOB_STATES } from '../domain/job.ts'

const strict = { additionalProperties: false } as const
export const orNull = <S extends TSchema>(schema: S) => Type.Union([schema, Type.Null()])
const oneOf = <T extends string>(values: readonly T[], options = {}) =>
  Type.Union(
    values.map((value) => Type.Literal(value)),
    options,
  )

const Commit = Type.String({ description: 'A commit id, 40 hex digits.' })
const Time = Type.String({ description: 'ISO 8601, UTC.' })
export const SessionRef = Type.String({
  description: "The session's name: 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit.",
  pattern: '^[a-z0-9][a-z0-9-]{0,62}$',
})

export const BudgetShape = Type.Object(
  {
    max_minutes: Type.Optional(orNull(Type.Number({ exclusiveMinimum: 0 }))),
    max_tokens: Type.Optional(orNull(Type.Number({ exclusiveMinimum: 0 }))),
    max_cost_usd: Type.Optional(orNull(Type.Number({ exclusiveMinimum: 0 }))),
  },
  { ...strict, description: 'Limits; absent ones come from the session, the environment, the settings.' },
)

export const SessionStateShape = oneOf(['creating', 'idle', 'running', 'suspended', 'closed', 'failed'] as const, {
  description: "The session's state.",
})

const Encoding = Type.Optional(Type.Literal('base64', { description: 'How content is encoded; absent: as text.' }))
const Name = Type.Optional(
  Type.String({ description: 'A safe relative path; made up when absent, numbered when taken.' }),
)

export const ContextShape = Type.Array(
  Type.Union([
    Type.Object(
      { kind: Type.Optional(oneOf(ATTACHMENT_KINDS)), name: Name, content: Type.String(), encoding: Encoding },
      strict,
    ),
    Type.Object({ kind: Type.Literal('url'), url: Type.String() }, strict),
    Type.Object({ kind: Type.Literal('patch'), name: Name, content: Type.String(), encoding: Encoding }, strict),
    Type.Object(
      {
        kind: Type.Literal('bundle'),
        name: Name,
        content: Type.String({ description: 'base64' }),
        encoding: Encoding,
        base_commit: Type.String(),
      },
      strict,
    ),
    Type.Object({ kind: Type.Literal('checkpoint'), commit: Type.String() }, strict),
  ]),
  {
    maxItems: 200,
    description: 'What is handed in beside the message: files, patches, a bundle or a pushed checkpoint.',
  },
)

export const messageFields = {
  context: Type.Optional(ContextShape),
  output_schema: Type.Optional(
    Type.Union([Type.Object({}, { additionalProperties: true }), Type.Boolean(), Type.Null()], {
      description: 'A JSON Schema (2020-12 or draft-07) that the structured result must fit.',
    }),
  ),
  budget: Type.Optional(BudgetShape),
  timeout_minutes: Type.Optional(
    Type.Number({ exclusiveMinimum: 0, maximum: 10_080, description: 'Minutes that the turn may run.' }),
  ),
}

export const ArtifactShape = Type.Object({
  path: Type.String(),
  turn: Type.Integer(),
  uri: Type.String({ description: 'hangar://sessions/<name>/artifacts/<turn>/<path>' }),
  size: Type.Integer({ description: 'Bytes.' }),
  content_type: Type.String(),
  sha256: Type.String(),
})

const UsageShape = Type.Object({
  input_tokens: Type.Integer(),
  output_tokens: Type.Integer(),
  cache_read_tokens: Type.Integer(),
  cache_write_tokens: Type.Integer(),
  cost_usd: orNull(Type.Number()),
  cost_source: orNull(oneOf(['reported', 'priced'] as const)),
})

const OUTCOMES = ['exited', 'failed', 'needs_input', 'over_budget', 'timed_out', 'cancelled'] as const

export const TurnShape = Type.Object({
  turn: Type.Integer(),
  message: Type.String(),
  state: oneOf(['queued', 'preparing', 'running', 'collecting', 'repairing', 'ended'] as const),
  outcome: orNull(oneOf(OUTCOMES)),
  error: orNull(Type.Object({ code: Type.String(), message: Type.String() })),
  summary: orNull(Type.String()),
  result: Type.Unknown(),
  result_error: orNull(Type.String()),
  artifacts: Type.Array(ArtifactShape),
  warnings: Type.Array(Type.String()),
  question: orNull(Type.String()),
  question_options: Type.Array(Type.String()),
  usage: orNull(UsageShape),
  repair_usage: orNull(UsageShape),
  requested_commit: orNull(Commit),
  actual_commit: orNull(Commit),
  head_commit: orNull(Commit),
  checkpoint: orNull(Commit),
  context_commit: orNull(Commit),
  created_at: Time,
  started_at: orNull(Time),
  ended_at: orNull(Time),
})

export const SessionShape = Type.Object({
  name: Type.String(),
  repo: Type.String(),
  branch: Type.String({ description: 'hangar/<name>' }),
  base_commit: orNull(Commit),
  head_commit: orNull(Commit),
  state: SessionStateShape,
  needs_input: orNull(Type.String({ description: 'The question that waits for a person.' })),
  question_options: Type.Array(Type.String()),
  harness: Type.String(),
  environment: Type.String(),
  parent: orNull(Type.String()),
  budget: BudgetShape,
  usage: UsageShape,
  checkpoint: orNull(Type.Object({ commit: Commit, turn: Type.Integer(), created_at: Time })),
  sandbox: orNull(Type.Object({ id: Type.String(), provider: Type.String(), state: Type.String() })),
  turns: Type.Array(TurnShape),
  created_at: Time,
  updated_at: Time,
})

export const WaitShape = Type.Object({
  done: Type.Boolean(),
  state: Type.String({ description: "The session's state, or the job's." }),
  turn: Type.Integer(),
  outcome: orNull(oneOf(OUTCOMES)),
  summary: orNull(Type.String()),
  result: Type.Unknown(),
  result_error: orNull(Type.String()),
  artifacts: Type.Array(ArtifactShape),
  needs_input: orNull(Type.String()),
  question_options: Type.Array(Type.String()),
  warnings: Type.Array(Type.String()),
  progress: orNull(Type.Object({ message: Type.String(), pct: orNull(Type.Number()) })),
  cursor: Type.Integer({ description: "The newest event's seq." }),
  hint: Type.String({ description: 'What to do next.' }),
})

/** Of a delivery by hand. */
export const ExpectedUpstream = Type.Optional(
  Type.String({
    pattern: '^[0-9a-f]{40}$',
    description:
      'Replace this commit, when the branch was moved upstream by others; forty zeros: the branch that was deleted there.',
  }),
)

export const JobRef = Type.String({
  description: "The job's id: job- and 10 of a-z and 2-7.",
  pattern: '^job-[a-z2-7]{10}$',
})

export const JobStateShape = oneOf(JOB_STATES, { description: "The job's state." })

const VerificationShape = Type.Object({
  command: Type.String(),
  passed: orNull(Type.Boolean({ description: 'null while it runs.' })),
  exit_code: orNull(Type.Integer()),
  seconds: orNull(Type.Number()),
  log_tail: Type.String({ description: 'The end of what it printed.' }),
})

const AttemptShape = Type.Object({
  attempt: Type.Integer(),
  session: Type.String(),
  state: Type.String({
    description: 'The state of its newest turn; verifying while that is verified, gone without a session.',
  }),
  outcome: orNull(oneOf(OUTCOMES)),
  verification: orNull(VerificationShape),
  diff: orNull(Type.Object({ files: Type.Integer(), insertions: Type.Integer(), deletions: Type.Integer() })),
  rank: orNull(Type.Integer({ description: '1 is the best.' })),
  reason: orNull(Type.String({ description: 'Why it has that rank.' })),
  branch: Type.String(),
})

export const JobShape = Type.Object({
  id: Type.String(),
  repo: Type.String(),
  state: JobStateShape,
  state_reason: orNull(Type.String()),
  instructions: Type.String(),
  requester: orNull(Type.String()),
  source: Type.String({ description: 'Where it came from: rest, mcp, or a trigger.' }),
  session: orNull(Type.String({ description: 'Whose work counts; null while several attempts are at work.' })),
  environment: Type.String(),
  strategy: oneOf(['single', 'best_of_n'] as const),
  n: Type.Integer(),
  attempts: Type.Array(AttemptShape),
  verification: orNull(VerificationShape),
  delivery: orNull(
    Type.Object({
      branch: Type.String(),
      commit: Commit,
      pushed: Type.Boolean({ description: 'Whether it went to an upstream.' }),
      pull_request_url: orNull(Type.String()),
    }),
  ),
  result: orNull(
    Type.Object({
      summary: orNull(Type.String()),
      data: Type.Unknown(),
      error: orNull(Type.String()),
      artifacts: Type.Array(ArtifactShape),
    }),
  ),
  needs_input: orNull(Type.String({ description: 'The question that waits for a person.' })),
  question_options: Type.Array(Type.String()),
  warnings: Type.Array(Type.String()),
  usage: UsageShape,
  budget: BudgetShape,
  timeline: Type.Array(Type.Object({ at: Time, state: JobStateShape, text: Type.String() })),
  created_at: Time,
  updated_at: Time,
})

export const InboxItemShape = Type.Object({
  kind: oneOf(['question', 'approval'] as const),
  ref: Type.String({ description: 'The session or job.' }),
  repo: Type.String(),
  turn: Type.Integer(),
  question: Type.String(),
  question_options: Type.Array(Type.String()),
  since: Type.String({ description: 'Since when it waits: ISO 8601, UTC.' }),
  requester: orNull(Type.String({ description: "The name of the token that sent the turn's message." })),
})

export const EventShape = Type.Object(
  { seq: Type.Integer(), ts: Time, turn: Type.Integer(), kind: Type.String() },
  { additionalProperties: true, description: 'A run event; its further fields go by its kind.' },
)

export const DeliveryShape = Type.Object({
  status: oneOf(['delivered', 'unchanged'] as const, { description: '`unchanged`: upstream had it already.' }),
  branch: Type.String(),
  commit: Commit,
  upstream: Type.String(),
})

export const RepoShape = Type.Object({
  slug: Type.String(),
  upstream: orNull(Type.String({ description: 'The URL that it follows; null: it is hosted here.' })),
  credential: orNull(Type.String({ description: "The name of the upstream's credential." })),
  refreshed_at: orNull(Time),
  upstream_error: orNull(
    Type.Object(
      { code: Type.String(), message: Type.String() },
      { description: 'Why it could not be refreshed last.' },
    ),
  ),
  notices: Type.Array(Type.String(), {
    description: 'What was out of the ordinary when something last moved upstream.',
  }),
  default_branch: Type.String(),
  url: Type.String({ description: 'The git URL.' }),
})

export const TokenShape = Type.Object({
  id: Type.String(),
  name: Type.String(),
  scopes: Type.Array(oneOf(SCOPES)),
  repos: orNull(Type.Array(Type.String())),
  created_at: Time,
  expires_at: orNull(Time),
  revoked_at: orNull(Time),
})

export const listOf = (items: TSchema) =>
  Type.Object({
    items: Type.Array(items),
    next_cursor: orNull(Type.String({ description: 'Give it as cursor for the next page.' })),
  })
