/** The operations on sessions: begin, send, list, show, wait, control. */
import { Type } from '@sinclair/typebox'
import { errors, HangarError } from '../../domain/errors.ts'
import { coversRepo } from '../../domain/grant.ts'
import {
  isJobId,
  parseNewSessionName,
  parseOid,
  parseRepoSlug,
  type SessionName,
  workBranch,
} from '../../domain/names.ts'
import type { SessionEntry } from '../../gateway/state/index.ts'
import { waitForJob } from '../../orchestrator/job-waiting.ts'
import { waitForTurn } from '../../orchestrator/waiting.ts'
import { messageOfWire } from '../context-wire.ts'
import { waitedJobView } from '../job-view.ts'
import {
  DeliveryShape,
  ExpectedUpstream,
  listOf,
  messageFields,
  SessionRef,
  SessionShape,
  SessionStateShape,
  TurnShape,
  WaitShape,
} from '../shapes.ts'
import { sessionView, turnView, waitView } from '../views.ts'
import {
  type ArtifactLink,
  type Call,
  fitPage,
  json,
  type Operation,
  operation,
  type Services,
  sessionFor,
} from './operation.ts'
import { jobFor, ownSession, sessionMeant } from './refs.ts'

const strict = { additionalProperties: false } as const
const PAGE = 50

const newSession = operation({
  name: 'new_session',
  summary: 'Begins a session: an agent works on a repo, from a message and what is handed in with it.',
  scope: 'sessions',
  method: 'post',
  path: '/api/sessions',
  cli: 'session new',
  tool: {
    title: 'Begin a session',
    advice:
      'Hand half-finished work over in context: commits that the server lacks as one bundle (git bundle create - HEAD --not BASE, base64) with base_commit, ' +
      'uncommitted changes as a patch (git diff --binary HEAD), anything else as files. The agent starts at once: call wait_for_turn next. ' +
      'The same call made again gives the same session.',
    example: {
      name: 'csv-fix',
      repo: 'acme/app',
      message: 'finish this and add tests',
      context: [{ kind: 'file', name: 'trace.txt', content: 'Error: …' }],
      output_schema: { type: 'object', properties: { tests_added: { type: 'integer' } } },
    },
    effect: 'adds',
    idempotentBy: 'name',
    artifacts: artifactsOfTurns,
  },
  input: Type.Object(
    {
      name: SessionRef,
      repo: Type.String({ description: "The repo's slug, owner/name." }),
      ref: Type.Optional(
        Type.String({ description: 'Branch, tag or commit to start from; default: the default branch.' }),
      ),
      message: Type.String({ description: 'What is to be done.' }),
      environment: Type.Optional(Type.String({ description: 'A configured environment; default: default.' })),
      harness: Type.Optional(Type.String({ description: "Must be the environment's agent program." })),
      ...messageFields,
    },
    strict,
  ),
  output: SessionShape,
  status: 201,
  handle: async (call, input) => {
    const name = parseNewSessionName(input.name)
    const repo = parseRepoSlug(input.repo)
    if (!coversRepo(call.caller, repo))
      throw errors.notFound(`there is no repo ${repo} on this server; add it with: hangar repo add ${repo}`)
    const environment = input.environment ?? 'default'
    checkHarness(call, environment, input.harness)
    const session = await call.services.sessions.create({
      name,
      repo,
      ref: input.ref ?? null,
      environment,
      ...messageOfWire(input),
      requester: call.caller.name,
      idempotency: call.idempotency,
    })
    return json(201, await view(call, session.name), `/api/sessions/${session.name}`)
  },
})

const sendToSession = operation({
  name: 'send_to_session',
  summary: 'Sends a message to a session: the next turn, or the answer to its question.',
  scope: 'sessions',
  method: 'post',
  path: '/api/sessions/{ref}/turns',
  cli: 'session send',
  tool: {
    title: 'Send a message',
    advice:
      'Give message, or option for one of the offered answers. While a turn runs, the message waits its turn. Call wait_for_turn next.',
    example: { ref: 'csv-fix', message: 'keep the old column names' },
    effect: 'adds',
  },
  input: Type.Object(
    {
      ref: SessionRef,
      message: Type.Optional(Type.String({ description: 'What is to be done next, or the answer.' })),
      option: Type.Optional(Type.Integer({ minimum: 1, description: 'The number of an offered answer, from 1.' })),
      ...messageFields,
    },
    strict,
  ),
  output: TurnShape,
  status: 202,
  handle: async (call, input) => {
    const name = await ownSession(call, input.ref)
    const turn = await call.services.sessions.send(name, {
      ...messageOfWire({ ...input, message: input.message ?? '' }),
      option: input.option ?? null,
      requester: call.caller.name,
      idempotency: call.idempotency,
    })
    return json(202, turnView(name, turn), `/api/sessions/${name}`)
  },
})

const listSessions = operation({
  name: 'list_sessions',
  summary: 'Lists sessions, the newest first.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions',
  cli: 'session list',
  tool: {
    title: 'List sessions',
    advice: 'With needs_input: true, those that wait for an answer.',
    example: { repo: 'acme/app', needs_input: true },
    effect: 'reads',
  },
  input: Type.Object(
    {
      repo: Type.Optional(Type.String({ description: 'Only sessions of this repo, owner/name.' })),
      state: Type.Optional(SessionStateShape),
      needs_input: Type.Optional(Type.Boolean({ description: 'Only sessions that wait for an answer.' })),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 200, default: PAGE, description: 'Sessions a page.' })),
      cursor: Type.Optional(
        Type.String({ pattern: '^[0-9]{15}/[a-z0-9-]{1,63}$', description: 'next_cursor of the page before.' }),
      ),
    },
    strict,
  ),
  output: listOf(SessionShape),
  status: 200,
  handle: async (call, input) => {
    const limit = input.limit ?? PAGE
    const wanted = ({ session, repo }: SessionEntry) =>
      coversRepo(call.caller, repo) &&
      (input.repo === undefined || repo.toLowerCase() === input.repo.toLowerCase()) &&
      (input.state === undefined || session.state === input.state) &&
      (input.needs_input === undefined || (session.needsInput !== null) === input.needs_input)
    const found: { key: string; name: SessionName }[] = []
    let from = input.cursor
    let more = true
    while (more && found.length < limit) {
      const page = await call.services.index.order.range({
        reverse: true,
        limit: 200,
        ...(from === undefined ? {} : { from }),
      })
      const fresh = page.filter(([key]) => key !== from)
      for (const [key, name] of fresh) {
        const entry = await call.services.records.find(name as SessionName)
        if (entry !== null && wanted(entry)) found.push({ key, name: name as SessionName })
        if (found.length === limit) break
      }
      from = fresh.at(-1)?.[0]
      more = fresh.length > 0
    }
    // One that was removed meanwhile, or whose repo cannot be read, must not hide the others.
    const views = await Promise.all(
      found.map(async ({ key, name }) => ({ key, item: await view(call, name).catch(() => null) })),
    )
    const shown = fitPage(call.surface, views)
    const full = found.length === limit || shown.length < views.length
    return json(200, {
      items: shown.map(({ item }) => item).filter((item) => item !== null),
      next_cursor: full ? (shown.at(-1)?.key ?? null) : null,
    })
  },
})

const getSession = operation({
  name: 'get_session',
  summary: 'Shows a session with all its turns.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}',
  cli: 'session show',
  tool: {
    title: 'Show a session',
    advice: 'Its state is also the resource hangar://sessions/<name>, which can be subscribed to.',
    example: { ref: 'csv-fix' },
    effect: 'reads',
    artifacts: artifactsOfTurns,
  },
  input: Type.Object({ ref: SessionRef }, strict),
  output: SessionShape,
  status: 200,
  handle: async (call, { ref }) => {
    return json(200, await view(call, await sessionMeant(call, ref)))
  },
})

export const waitForEnd = operation({
  name: 'wait_for_turn',
  summary:
    'Waits until a turn of a session has ended, or a job is at an end or waits for a person, or the time is over.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}/wait',
  cli: 'session wait',
  tool: {
    title: 'Wait for a turn',
    advice:
      'done: false means that it still runs: call it again. done: true gives outcome, summary, result (fits output_schema), artifacts, and the question when outcome is ' +
      'needs_input (answer with send_to_session). hint says which tool to call next. Progress is told meanwhile to clients that ask for it; to others it answers within 50 seconds. ' +
      'Cancelling the wait does not stop the turn (cancel_turn does).',
    example: { ref: 'csv-fix', timeout_seconds: 600 },
    effect: 'reads',
    waits: true,
    artifacts: (body) => (body as { artifacts: ArtifactLink[] }).artifacts,
  },
  input: Type.Object(
    {
      ref: SessionRef,
      timeout_seconds: Type.Optional(
        Type.Number({ minimum: 0, maximum: 600, default: 50, description: 'How long to wait at most.' }),
      ),
      turn: Type.Optional(Type.Integer({ minimum: 1, description: 'Default: the newest turn.' })),
    },
    strict,
  ),
  output: WaitShape,
  status: 200,
  handle: async (call, input) => {
    const timeoutMs = (input.timeout_seconds ?? 50) * 1000
    if (isJobId(input.ref) && input.turn === undefined) {
      const { id } = await jobFor(call, input.ref)
      const services = { ...call.services, jobs: call.services.jobRecords }
      return json(200, waitedJobView(await waitForJob(services, id, { timeoutMs, signal: call.signal }), call.surface))
    }
    const name = await sessionMeant(call, input.ref)
    const options = { turn: input.turn ?? null, timeoutMs, signal: call.signal }
    return json(200, waitView(await waitForTurn(call.services, name, options), call.surface))
  },
})

interface Verb {
  /** As in `/api/sessions/{ref}/<verb>` and `hangar session <verb>`. */
  readonly verb: 'cancel' | 'suspend' | 'resume'
  readonly name: string
  readonly summary: string
  readonly title: string
  readonly advice: string
  readonly effect: 'adds' | 'takes away'
  act(services: Services, name: SessionName): Promise<unknown>
}

/** An operation that does one thing to a session, needs no more than its name, and shows it afterwards. */
const verbOn = ({ verb, name, summary, title, advice, effect, act }: Verb) =>
  operation({
    name,
    summary,
    scope: 'sessions',
    method: 'post',
    path: `/api/sessions/{ref}/${verb}`,
    cli: `session ${verb}`,
    tool: { title, advice, example: { ref: 'csv-fix' }, effect },
    input: Type.Object({ ref: SessionRef }, strict),
    output: SessionShape,
    status: 200,
    handle: async (call, { ref }) => {
      const session = await ownSession(call, ref)
      await act(call.services, session)
      return json(200, await view(call, session))
    },
  })

const cancel = verbOn({
  verb: 'cancel',
  name: 'cancel_turn',
  summary: 'Stops the turn that runs; what it did so far is kept.',
  title: 'Stop a turn',
  advice: 'The session stays, and takes further messages.',
  effect: 'takes away',
  act: ({ control }, name) => control.cancel(name),
})

const suspend = verbOn({
  verb: 'suspend',
  name: 'suspend_session',
  summary: 'Ends the sandbox of an idle session; all that it held is in git, and the next message makes a fresh one.',
  title: 'Suspend a session',
  advice: 'Idle sessions are suspended by themselves after a while; this does it at once.',
  effect: 'adds',
  act: ({ suspension }, name) => suspension.suspend(name),
})

const resume = verbOn({
  verb: 'resume',
  name: 'resume_session',
  summary: 'Makes a suspended session idle again; its sandbox is made when the next message needs it.',
  title: 'Resume a session',
  advice: 'Not needed before send_to_session, which resumes by itself.',
  effect: 'adds',
  act: ({ suspension }, name) => suspension.resume(name),
})

const deliver = operation({
  name: 'deliver_session',
  summary:
    "Pushes a session's branch to the upstream of its repo, onto what was delivered there last and nothing else.",
  scope: 'sessions',
  method: 'post',
  path: '/api/sessions/{ref}/deliver',
  cli: 'session deliver',
  input: Type.Object(
    {
      ref: SessionRef,
      expected: ExpectedUpstream,
    },
    strict,
  ),
  output: DeliveryShape,
  status: 200,
  handle: async (call, input) => {
    const name = await ownSession(call, input.ref)
    const { repo } = await sessionFor(call, name)
    const expected = input.expected === undefined ? {} : { expected: parseOid(input.expected) }
    const { status, oid, ref, code, reason } = await call.services.delivery.deliver(name, expected)
    if (code !== null) throw new HangarError(code, reason ?? '')
    const branch = ref.replace('refs/heads/', '')
    return json(200, { status, branch, commit: oid, upstream: call.services.upstreams.of(repo)?.url ?? null })
  },
})

const close = operation({
  name: 'close_session',
  summary: 'Ends a session: its sandbox goes, its work stays; with delete its refs go as well and its name is free.',
  scope: 'sessions',
  method: 'post',
  path: '/api/sessions/{ref}/close',
  cli: 'session close',
  tool: {
    title: 'Close a session',
    advice: 'Fetch the work first when delete is given.',
    example: { ref: 'csv-fix' },
    effect: 'takes away',
  },
  input: Type.Object(
    {
      ref: SessionRef,
      delete: Type.Optional(Type.Boolean({ description: 'Remove its branch and records as well, and free its name.' })),
    },
    strict,
  ),
  output: SessionShape,
  status: 200,
  handle: async (call, input) => {
    const name = await ownSession(call, input.ref)
    await call.services.control.close(name)
    const closed = await view(call, name)
    if (input.delete === true) await call.services.control.remove(name)
    return json(200, closed)
  },
})

const fork = operation({
  name: 'fork_session',
  summary:
    'Makes n sessions that begin where this one is: its commits, index, uncommitted and untracked files, and its conversation.',
  scope: 'sessions',
  method: 'post',
  path: '/api/sessions/{ref}/fork',
  cli: 'session fork',
  tool: {
    title: 'Fork a session',
    advice:
      'To try several ways from one point. With message each child begins at once; without, send each its own with send_to_session.',
    example: { ref: 'csv-fix', n: 2, names: ['csv-fix-a', 'csv-fix-b'] },
    effect: 'adds',
  },
  input: Type.Object(
    {
      ref: SessionRef,
      n: Type.Optional(
        Type.Integer({ minimum: 1, maximum: 16, description: 'How many; default: one, or one for each name.' }),
      ),
      names: Type.Optional(
        Type.Array(SessionRef, { minItems: 1, maxItems: 16, description: 'Their names; default: NAME-fork-1 and on.' }),
      ),
      turn: Type.Optional(
        Type.Integer({ minimum: 1, description: 'As the session was at the end of this turn; default: as it is now.' }),
      ),
      message: Type.Optional(Type.String({ description: 'The first message of each; default: they wait for one.' })),
    },
    strict,
  ),
  output: listOf(SessionShape),
  status: 201,
  handle: async (call, input) => {
    const parent = await sessionMeant(call, input.ref)
    const names = input.names?.map(parseNewSessionName) ?? null
    const children = await call.services.sessions.fork(parent, {
      n: input.n ?? names?.length ?? 1,
      names,
      turn: input.turn ?? null,
      message:
        input.message === undefined
          ? null
          : {
              ...messageOfWire({ message: input.message }),
              requester: call.caller.name,
              idempotency: call.idempotency,
            },
      idempotency: call.idempotency,
    })
    const items = await Promise.all(children.map(({ name }) => view(call, name)))
    return json(201, { items, next_cursor: null }, `/api/sessions/${children[0]?.name ?? ''}`)
  },
})

export const SESSION_OPERATIONS: readonly Operation[] = [
  newSession,
  listSessions,
  getSession,
  sendToSession,
  waitForEnd,
  cancel,
  suspend,
  resume,
  fork,
  deliver,
  close,
]

function artifactsOfTurns(body: unknown): readonly ArtifactLink[] {
  return (body as { turns: { artifacts: ArtifactLink[] }[] }).turns.flatMap((turn) => turn.artifacts)
}

async function view(call: Call, name: SessionName) {
  const { records } = call.services
  const [{ session }, turns, repo] = await Promise.all([
    records.get(name),
    records.turns(name),
    records.repository(name),
  ])
  return sessionView(session, turns, await repo.refs.read(workBranch(name)))
}

/** Throws `harness_unusable` where the environment runs another program than the one that is asked for. */
export function checkHarness(call: Call, environment: string, harness: string | undefined): void {
  const configured = call.services.config.environments.get(environment)
  if (harness !== undefined && configured !== undefined && configured.harness !== harness)
    throw errors.harnessUnusable(
      `environment ${environment} runs the harness ${configured.harness}, not ${harness}; leave the harness out, or choose another environment`,
    )
}
