/** The operations on sessions: begin, send, list, show, wait, control. */
import { Type } from '@sinclair/typebox'
import { errors } from '../../domain/errors.ts'
import { coversRepo } from '../../domain/grant.ts'
import { parseRepoSlug, parseSessionName, type SessionName, workBranch } from '../../domain/names.ts'
import type { SessionEntry } from '../../gateway/state/index.ts'
import { waitForTurn } from '../../orchestrator/waiting.ts'
import { messageOfWire } from '../context-wire.ts'
import { listOf, messageFields, SessionRef, SessionShape, TurnShape, WaitShape } from '../shapes.ts'
import { sessionView, turnView, waitView } from '../views.ts'
import { type Call, json, type Operation, operation, sessionFor } from './operation.ts'

const strict = { additionalProperties: false } as const
const PAGE = 50

const newSession = operation({
  name: 'new_session',
  summary: 'Begins a session: an agent works on a repo, from a message and what is handed in with it.',
  scope: 'sessions',
  method: 'post',
  path: '/api/sessions',
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
    const name = parseSessionName(input.name)
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
  input: Type.Object(
    {
      ref: SessionRef,
      message: Type.Optional(Type.String()),
      option: Type.Optional(Type.Integer({ minimum: 1, description: 'The number of an offered answer, from 1.' })),
      ...messageFields,
    },
    strict,
  ),
  output: TurnShape,
  status: 202,
  handle: async (call, input) => {
    const name = parseSessionName(input.ref)
    await sessionFor(call, name)
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
  input: Type.Object(
    {
      repo: Type.Optional(Type.String()),
      state: Type.Optional(Type.String()),
      needs_input: Type.Optional(Type.Boolean({ description: 'Only sessions that wait for an answer.' })),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 200, default: PAGE })),
      cursor: Type.Optional(Type.String({ pattern: '^[0-9]{15}/[a-z0-9-]{1,63}$' })),
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
    const items = (await Promise.all(found.map(({ name }) => view(call, name).catch(() => null)))).filter(
      (item) => item !== null,
    )
    return json(200, { items, next_cursor: found.length === limit ? (found.at(-1)?.key ?? null) : null })
  },
})

const getSession = operation({
  name: 'get_session',
  summary: 'Shows a session with all its turns.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}',
  input: Type.Object({ ref: SessionRef }, strict),
  output: SessionShape,
  status: 200,
  handle: async (call, { ref }) => {
    const name = parseSessionName(ref)
    await sessionFor(call, name)
    return json(200, await view(call, name))
  },
})

const wait = operation({
  name: 'wait_for_turn',
  summary: 'Waits until a turn has ended, or the time is over.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}/wait',
  input: Type.Object(
    {
      ref: SessionRef,
      timeout_seconds: Type.Optional(Type.Number({ minimum: 0, maximum: 600, default: 50 })),
      turn: Type.Optional(Type.Integer({ minimum: 1, description: 'Default: the newest turn.' })),
    },
    strict,
  ),
  output: WaitShape,
  status: 200,
  handle: async (call, input) => {
    const name = parseSessionName(input.ref)
    await sessionFor(call, name)
    const options = { turn: input.turn ?? null, timeoutMs: (input.timeout_seconds ?? 50) * 1000, signal: call.signal }
    return json(200, waitView(await waitForTurn(call.services, name, options)))
  },
})

const cancel = operation({
  name: 'cancel_turn',
  summary: 'Stops the turn that runs; what it did so far is kept.',
  scope: 'sessions',
  method: 'post',
  path: '/api/sessions/{ref}/cancel',
  input: Type.Object({ ref: SessionRef }, strict),
  output: SessionShape,
  status: 200,
  handle: async (call, { ref }) => {
    const name = parseSessionName(ref)
    await sessionFor(call, name)
    await call.services.control.cancel(name)
    return json(200, await view(call, name))
  },
})

const close = operation({
  name: 'close_session',
  summary: 'Ends a session: its sandbox goes, its work stays; with delete its refs go as well and its name is free.',
  scope: 'sessions',
  method: 'post',
  path: '/api/sessions/{ref}/close',
  input: Type.Object({ ref: SessionRef, delete: Type.Optional(Type.Boolean()) }, strict),
  output: SessionShape,
  status: 200,
  handle: async (call, input) => {
    const name = parseSessionName(input.ref)
    await sessionFor(call, name)
    await call.services.control.close(name)
    const closed = await view(call, name)
    if (input.delete === true) await call.services.control.remove(name)
    return json(200, closed)
  },
})

export const SESSION_OPERATIONS: readonly Operation[] = [
  newSession,
  listSessions,
  getSession,
  sendToSession,
  wait,
  cancel,
  close,
]

async function view(call: Call, name: SessionName) {
  const { records } = call.services
  const [{ session }, turns, repo] = await Promise.all([
    records.get(name),
    records.turns(name),
    records.repository(name),
  ])
  return sessionView(session, turns, await repo.refs.read(workBranch(name)))
}

function checkHarness(call: Call, environment: string, harness: string | undefined): void {
  const configured = call.services.config.environments.get(environment)
  if (harness !== undefined && configured !== undefined && configured.harness !== harness)
    throw errors.harnessUnusable(
      `environment ${environment} runs the harness ${configured.harness}, not ${harness}; leave the harness out, or choose another environment`,
    )
}
