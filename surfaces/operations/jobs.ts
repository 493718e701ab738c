/** The operations on jobs: submit, list, show, follow up, approve, reject, cancel. */
import { createHash } from 'node:crypto'
import { Type } from '@sinclair/typebox'
import { errors } from '../../domain/errors.ts'
import { coversRepo } from '../../domain/grant.ts'
import type { JobRecord } from '../../domain/job.ts'
import { type JobId, parseJobId, parseOid, parseRepoSlug } from '../../domain/names.ts'
import type { IdempotencyMark } from '../../domain/session.ts'
import { messageOfWire } from '../context-wire.ts'
import { jobView } from '../job-view.ts'
import { digestOf } from '../mcp/same-request.ts'
import { ExpectedUpstream, JobRef, JobShape, JobStateShape, listOf, messageFields, TurnShape } from '../shapes.ts'
import { turnView } from '../views.ts'
import { type ArtifactLink, type Call, fitPage, json, type Operation, operation } from './operation.ts'
import { jobFor } from './refs.ts'
import { checkHarness } from './sessions.ts'

const strict = { additionalProperties: false } as const
const PAGE = 50
const DEFAULT_N = 3

const submitJob = operation({
  name: 'submit_job',
  summary: 'Submits a job: an agent does the work, it is verified, and delivered as a branch or a pull request.',
  scope: 'jobs',
  method: 'post',
  path: '/api/jobs',
  cli: 'job submit',
  tool: {
    title: 'Submit a job',
    advice:
      'Hand local work over in context as with new_session. strategy best_of_n makes n attempts in parallel and delivers the best that passes. With an idempotency_key ' +
      'the same submission made again gives the same job. Call wait_for_turn with its id next.',
    example: {
      repo: 'acme/app',
      instructions: 'fix the flaky CSV test',
      verify: 'npm test',
      idempotency_key: 'csv-flake-1',
    },
    effect: 'adds',
    idempotentBy: 'idempotency_key',
    artifacts: artifactsOf,
  },
  input: Type.Object(
    {
      repo: Type.String({ description: "The repo's slug, owner/name." }),
      instructions: Type.String({ description: 'What is to be done.' }),
      ref: Type.Optional(
        Type.String({ description: 'Branch, tag or commit to start from; default: the default branch.' }),
      ),
      environment: Type.Optional(Type.String({ description: 'A configured environment; default: default.' })),
      harness: Type.Optional(Type.String({ description: "Must be the environment's agent program." })),
      strategy: Type.Optional(
        Type.Union([Type.Literal('single'), Type.Literal('best_of_n')], { description: 'Default: single.' }),
      ),
      n: Type.Optional(
        Type.Integer({ minimum: 1, maximum: 16, description: `Attempts of best_of_n; default: ${DEFAULT_N}.` }),
      ),
      verify: Type.Optional(
        Type.String({ description: "A shell command that verifies the work; default: the environment's." }),
      ),
      callback_url: Type.Optional(Type.String({ description: "Where the job's events are posted to." })),
      idempotency_key: Type.Optional(
        Type.String({ minLength: 1, maxLength: 255, description: 'The same key gives the same job.' }),
      ),
      ...messageFields,
    },
    strict,
  ),
  output: JobShape,
  status: 201,
  handle: async (call, input) => {
    const repo = parseRepoSlug(input.repo)
    if (!coversRepo(call.caller, repo))
      throw errors.notFound(`there is no repo ${repo} on this server; add it with: hangar repo add ${repo}`)
    const environment = input.environment ?? 'default'
    checkHarness(call, environment, input.harness)
    const strategy = input.strategy ?? 'single'
    const job = await call.services.jobs.submit({
      ...messageOfWire({ ...input, message: input.instructions }),
      repo,
      ref: input.ref ?? null,
      environment,
      strategy,
      n: input.n ?? (strategy === 'single' ? 1 : DEFAULT_N),
      verify: input.verify ?? null,
      callbackUrl: input.callback_url ?? null,
      source: call.surface,
      requester: call.caller.name,
      needsApproval: false,
      idempotency: markOf(call, input),
    })
    return json(201, await jobView(job, call.services), `/api/jobs/${job.id}`)
  },
})

/** The key in the body says more than the header's; two surfaces give one key one meaning. */
function markOf(call: Call, input: { readonly idempotency_key?: string }): IdempotencyMark | null {
  const { idempotency_key: key } = input
  if (key === undefined) return call.surface === 'rest' ? call.idempotency : null
  const place = createHash('sha256').update(`${call.caller.id}\0submit_job\0${key}`)
  return { key: place.digest('hex'), body: digestOf(input) }
}

const listJobs = operation({
  name: 'list_jobs',
  summary: 'Lists jobs, the newest first.',
  scope: 'read',
  method: 'get',
  path: '/api/jobs',
  cli: 'job list',
  tool: {
    title: 'List jobs',
    advice: 'With state: needs_input, those that wait for an answer.',
    example: { repo: 'acme/app', state: 'running' },
    effect: 'reads',
  },
  input: Type.Object(
    {
      repo: Type.Optional(Type.String({ description: 'Only jobs of this repo, owner/name.' })),
      state: Type.Optional(JobStateShape),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 200, default: PAGE, description: 'Jobs a page.' })),
      cursor: Type.Optional(
        Type.String({ pattern: '^[0-9]{15}/job-[a-z2-7]{10}$', description: 'next_cursor of the page before.' }),
      ),
    },
    strict,
  ),
  output: listOf(JobShape),
  status: 200,
  handle: async (call, input) => {
    const limit = input.limit ?? PAGE
    const wanted = (job: JobRecord) =>
      coversRepo(call.caller, job.repo) &&
      (input.repo === undefined || job.repo.toLowerCase() === input.repo.toLowerCase()) &&
      (input.state === undefined || job.state === input.state)
    const found: { key: string; job: JobRecord }[] = []
    let from = input.cursor
    let more = true
    while (more && found.length < limit) {
      const page = await call.services.index.jobOrder.range({
        reverse: true,
        limit: 200,
        ...(from === undefined ? {} : { from }),
      })
      const fresh = page.filter(([key]) => key !== from)
      for (const [key, id] of fresh) {
        const job = await call.services.jobRecords.find(id as JobId)
        if (job !== null && wanted(job)) found.push({ key, job })
        if (found.length === limit) break
      }
      from = fresh.at(-1)?.[0]
      more = fresh.length > 0
    }
    // One that was removed meanwhile, or whose record cannot be understood, must not hide the others.
    const views = await Promise.all(
      found.map(async ({ key, job }) => ({ key, item: await jobView(job, call.services).catch(() => null) })),
    )
    const shown = fitPage(call.surface, views)
    const full = found.length === limit || shown.length < views.length
    return json(200, {
      items: shown.map(({ item }) => item).filter((item) => item !== null),
      next_cursor: full ? (shown.at(-1)?.key ?? null) : null,
    })
  },
})

const getJob = operation({
  name: 'get_job',
  summary: 'Shows a job: its state and timeline, attempts, verification, delivery and result.',
  scope: 'read',
  method: 'get',
  path: '/api/jobs/{ref}',
  cli: 'job show',
  tool: {
    title: 'Show a job',
    advice: 'Its attempts are sessions: get_session and get_session_patch take their names.',
    example: { ref: 'job-abcdefghij' },
    effect: 'reads',
    artifacts: artifactsOf,
  },
  input: Type.Object({ ref: JobRef }, strict),
  output: JobShape,
  status: 200,
  handle: async (call, { ref }) => json(200, await jobView(await jobFor(call, parseJobId(ref)), call.services)),
})

const followUpJob = operation({
  name: 'follow_up_job',
  summary:
    "Sends a further message to a job: an answer to its question, or what is to be done next; the job's conversation goes on.",
  scope: 'jobs',
  method: 'post',
  path: '/api/jobs/{ref}/follow-up',
  cli: 'job follow-up',
  tool: {
    title: 'Follow up on a job',
    advice:
      'Give message, or option for one of the offered answers. It is verified and delivered again. A budget is the new one of the whole job. Call wait_for_turn next.',
    example: { ref: 'job-abcdefghij', message: 'keep the old column names' },
    effect: 'adds',
  },
  input: Type.Object(
    {
      ref: JobRef,
      message: Type.Optional(Type.String({ description: 'What is to be done next, or the answer.' })),
      option: Type.Optional(Type.Integer({ minimum: 1, description: 'The number of an offered answer, from 1.' })),
      ...messageFields,
    },
    strict,
  ),
  output: TurnShape,
  status: 202,
  handle: async (call, input) => {
    const job = await jobFor(call, parseJobId(input.ref))
    const turn = await call.services.jobs.followUp(job.id, {
      ...messageOfWire({ ...input, message: input.message ?? '' }),
      option: input.option ?? null,
      requester: call.caller.name,
      idempotency: call.idempotency,
    })
    const after = await call.services.jobRecords.get(job.id)
    const session = after.attempts.find(({ attempt }) => after.chosen === null || attempt === after.chosen)?.session
    return json(202, turnView(session ?? (job.id as never), turn), `/api/jobs/${job.id}`)
  },
})

interface Verb {
  /** As in `/api/jobs/{ref}/<verb>` and `hangar job <verb>`. */
  readonly verb: 'approve' | 'cancel'
  readonly summary: string
  readonly title: string
  readonly advice: string
  readonly effect: 'adds' | 'takes away'
}

const verbOn = ({ verb, summary, title, advice, effect }: Verb) =>
  operation({
    name: `${verb}_job`,
    summary,
    scope: 'jobs',
    method: 'post',
    path: `/api/jobs/{ref}/${verb}`,
    cli: `job ${verb}`,
    tool: { title, advice, example: { ref: 'job-abcdefghij' }, effect },
    input: Type.Object({ ref: JobRef }, strict),
    output: JobShape,
    status: 200,
    handle: async (call, { ref }) => {
      const job = await jobFor(call, parseJobId(ref))
      return json(200, await jobView(await call.services.jobs[verb](job.id, call.caller.name), call.services))
    },
  })

const approve = verbOn({
  verb: 'approve',
  summary: 'Lets a job begin that waits for approval.',
  title: 'Approve a job',
  advice: 'list_jobs with state awaiting_approval shows those there are.',
  effect: 'adds',
})

const reject = operation({
  name: 'reject_job',
  summary: 'Turns a job down that waits for approval; it never runs.',
  scope: 'jobs',
  method: 'post',
  path: '/api/jobs/{ref}/reject',
  cli: 'job reject',
  tool: {
    title: 'Reject a job',
    advice: 'The reason is shown to whoever asked for it.',
    example: { ref: 'job-abcdefghij', reason: 'out of scope' },
    effect: 'takes away',
  },
  input: Type.Object(
    { ref: JobRef, reason: Type.Optional(Type.String({ maxLength: 2_000, description: 'Why, for its requester.' })) },
    strict,
  ),
  output: JobShape,
  status: 200,
  handle: async (call, { ref, reason }) => {
    const job = await jobFor(call, parseJobId(ref))
    const rejected = await call.services.jobs.reject(job.id, call.caller.name, reason ?? null)
    return json(200, await jobView(rejected, call.services))
  },
})

const cancel = verbOn({
  verb: 'cancel',
  summary: 'Stops a job and its agents; what they did so far is kept, and a follow-up goes on.',
  title: 'Cancel a job',
  advice: 'Works in every state but an end.',
  effect: 'takes away',
})

const deliver = operation({
  name: 'deliver_job',
  summary: "Delivers a job's work once more whose delivery failed, onto what was delivered last and nothing else.",
  scope: 'jobs',
  method: 'post',
  path: '/api/jobs/{ref}/deliver',
  cli: 'job deliver',
  input: Type.Object({ ref: JobRef, expected: ExpectedUpstream }, strict),
  output: JobShape,
  status: 200,
  handle: async (call, { ref, expected }) => {
    const { id } = await jobFor(call, parseJobId(ref))
    const replaced = expected === undefined ? null : parseOid(expected)
    return json(200, await jobView(await call.services.jobs.deliver(id, call.caller.name, replaced), call.services))
  },
})

export const JOB_OPERATIONS: readonly Operation[] = [
  submitJob,
  listJobs,
  getJob,
  followUpJob,
  approve,
  reject,
  cancel,
  deliver,
]

function artifactsOf(body: unknown): readonly ArtifactLink[] {
  return (body as { result: { artifacts: ArtifactLink[] } | null }).result?.artifacts ?? []
}
