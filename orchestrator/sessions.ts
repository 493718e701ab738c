/** Sessions are begun and messages sent here: everything is checked and recorded before the caller hears yes. */
import type { ContextItem } from '../domain/context-item.ts'
import type { JobSettings } from '../domain/environment.ts'
import { errors } from '../domain/errors.ts'
import { RESERVED_NAMES } from '../domain/hangar-io.ts'
import type { Limits } from '../domain/limits.ts'
import {
  jobOf,
  type Oid,
  type RefName,
  type RepoSlug,
  type SessionName,
  workBranch,
  ZERO_OID,
} from '../domain/names.ts'
import type { Clock } from '../domain/ports.ts'
import type { Budget } from '../domain/run-event.ts'
import type { SessionRecord, TurnRecord } from '../domain/session.ts'
import { type HandOver, handOverLater, handOverNew } from '../exchange/hand-over.ts'
import { dropIntake, type Intake, takeIn } from '../exchange/intake.ts'
import type { ResultChecker } from '../exchange/result-schema.ts'
import type { Repositories } from '../gateway/git/repositories.ts'
import type { RefUpdate, Repository } from '../gateway/git/repository.ts'
import type { Upstreams } from '../gateway/upstream/upstreams.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import { overlay } from './budget.ts'
import { isSameRequest, type Message } from './message.ts'
import { type NameClaims, releaseUnmade } from './name-claims.ts'
import { attachmentPath } from './sandbox-helper.ts'
import { createSessionFork, type SessionFork } from './session-fork.ts'
import type { SessionMove, SessionRecords } from './session-records.ts'
import type { TurnRunner } from './turn-runner.ts'

/** Where a session works, and with what. */
export interface NewWork extends Message {
  readonly repo: RepoSlug
  readonly ref: string | null
  readonly environment: string
}

export interface NewSession extends NewWork {
  readonly name: SessionName
}

export interface Sessions extends SessionFork {
  /** Throws what is wrong with any part of it; then nothing of it is left. */
  create(input: NewSession): Promise<SessionRecord>
  /**
   * Creates a job's sessions from one hand-over, all or none; their first turns wait until `release`. `verify` is the job's own command.
   */
  createHeld(work: NewWork & { readonly verify: string | null }, names: readonly SessionName[]): Promise<void>
  /** Lets the first turn of such a session run. Safe to repeat. */
  release(name: SessionName): Promise<void>
  /** Queues a message; `option` picks an answer to the session's question (from 1). */
  send(name: SessionName, input: Message & { readonly option: number | null }): Promise<TurnRecord>
}

/** Defaults that an environment gives its turns, or the reason why it cannot be used. */
export interface EnvironmentDefaults {
  readonly harness: string
  readonly timeoutMs: number
  readonly budget: Budget
  readonly jobs: JobSettings
}

export interface SessionsDeps {
  readonly repositories: Repositories
  readonly records: SessionRecords
  readonly claims: NameClaims
  readonly runner: TurnRunner
  readonly results: ResultChecker
  readonly upstreams: Pick<Upstreams, 'refresh' | 'refuseLfs'>
  /** Throws `harness_unusable` or `not_found` with the next thing to do. */
  environmentDefaults(name: string): EnvironmentDefaults
  /** Bytes of untracked files that a hand-over to a session of this environment may bring. */
  maxUntrackedBytes(environment: string): number
  readonly limits: Limits
  /** Throws `disk_full` while the disk has no room for new sessions; a message may be what makes room in an old one. */
  checkRoom(): void
  readonly clock: Clock
}

export function createSessions(deps: SessionsDeps): Sessions {
  const { records, runner, limits, clock } = deps

  const openRepo = async (slug: RepoSlug): Promise<Repository> => {
    const repo = await deps.repositories.open(slug)
    if (repo === null)
      throw errors.notFound(`there is no repo ${slug} on this server; add it with: hangar repo add ${slug}`)
    return repo
  }
  const checkMessage = async (input: Message, repo: RepoSlug): Promise<void> => {
    if (input.message.trim() === '') throw errors.invalidRequest('message: say what is to be done')
    if (Buffer.byteLength(input.message) > limits.maxMessageBytes)
      throw errors.tooLarge(`a message may have ${limits.maxMessageBytes} bytes; attach long texts with --file`)
    if (input.outputSchema === null) return
    const refused = await deps.results.refuseSchema(input.outputSchema, repo)
    if (refused !== null) throw errors.invalidRequest(refused)
  }

  const limitsOf = (environment: string): Limits => ({
    ...limits,
    maxUntrackedBytes: deps.maxUntrackedBytes(environment),
  })

  /** Makes the sessions of one hand-over, all or none. */
  const begin = async (
    repo: Repository,
    work: NewWork & Pick<SessionRecord, 'verify'>,
    names: readonly SessionName[],
  ): Promise<void> => {
    deps.checkRoom()
    const defaults = deps.environmentDefaults(work.environment)
    await checkMessage(work, work.repo)
    if (names.some((name) => jobOf(name) !== null)) checkNames(work.context)
    const warnings = await deps.upstreams.refresh(work.repo)
    const intake = await takeIn(repo, work.context, limitsOf(work.environment))
    const claimed: SessionName[] = []
    try {
      const handOver = await handOverNew(repo, intake, work.ref, clock.now())
      await deps.upstreams.refuseLfs(repo, handOver.start)
      for (const name of names) {
        if (!(await deps.claims.claim(name, work.repo))) throw nameTaken(name)
        claimed.push(name)
      }
      await records.createAll(repo, () =>
        Promise.all(
          names.map((name) => firstMove(repo, { ...work, name, warnings }, defaults, intake, handOver, clock.now())),
        ),
      )
    } catch (error) {
      await releaseUnmade(deps.claims, repo, claimed)
      throw error
    } finally {
      await dropIntake(intake)
    }
  }

  /** The first turn of a fork, with what comes beside its message; its parent's work is what it begins with. */
  const firstTurn = async (message: Message, session: SessionRecord, context: Oid): Promise<TurnRecord> => {
    const defaults = deps.environmentDefaults(session.environment)
    await checkMessage(message, session.repo)
    const handOver = { base: session.baseCommit, start: null, context, requested: null }
    const given = { ...defaults, budget: overlay(defaults.budget, session.budget) }
    return newTurn(1, { ...message, warnings: [] }, given, NOTHING_TAKEN_IN, handOver, clock.now())
  }
  const forks = createSessionFork({ ...deps, firstTurn })

  return {
    fork: forks.fork,

    create: async (input) => {
      const repo = await openRepo(input.repo)
      const existing = await records.find(input.name)
      if (existing !== null) {
        if (isSameRequest((await records.turn(input.name, 1)).idempotency, input.idempotency)) return existing.session
        throw nameTaken(input.name)
      }
      await begin(repo, input, [input.name])
      runner.kick(input.name)
      return (await records.get(input.name)).session
    },

    createHeld: async (work, names) => begin(await openRepo(work.repo), work, names),

    release: async (name) => {
      await records.move(name, async ({ session }) =>
        session.state === 'creating' ? { message: 'its job begins', session: { ...session, state: 'running' } } : null,
      )
      runner.kick(name)
    },

    send: async (name, input) => {
      const { session } = await records.get(name)
      const earlier = (await records.turns(name)).find((turn) => isSameRequest(turn.idempotency, input.idempotency))
      if (earlier !== undefined) return earlier
      const text = answerOf(session, input)
      await checkMessage({ ...input, message: text }, session.repo)
      const repo = await records.repository(name)
      // What is on the remote need not be handed in.
      const warnings = input.context.length === 0 ? [] : await deps.upstreams.refresh(session.repo)
      const intake = await takeIn(repo, input.context, limitsOf(session.environment))
      let queued: TurnRecord | null = null
      try {
        await records.move(name, async ({ session, turn }) => {
          await checkQueue(session, turn, intake, limits)
          const defaults = deps.environmentDefaults(session.environment)
          const tips = {
            base: session.baseCommit,
            branch: await repo.refs.read(workBranch(name)),
            checkpoint: await repo.refs.read(sessionRef(name, 'checkpoint')),
          }
          const handOver = await handOverLater(repo, tips, intake, clock.now())
          queued = newTurn(
            session.turns + 1,
            { ...input, message: text, warnings },
            { ...defaults, budget: overlay(defaults.budget, session.budget) },
            intake,
            handOver,
            clock.now(),
          )
          // A fork's first turn begins with its parent's work.
          if (session.turns === 0 && handOver === null) queued = { ...queued, contextCommit: tips.checkpoint }
          return {
            message: `turn ${queued.turn} is queued`,
            session: {
              ...session,
              state: 'running',
              turns: queued.turn,
              baseCommit: handOver === null ? session.baseCommit : handOver.base,
            },
            turns: [queued],
            files: handedFiles(queued.turn, intake),
            parents: handOver?.context ? [handOver.context] : [],
            alsoMove: await movesOf(repo, name, intake, handOver),
          }
        })
      } finally {
        await dropIntake(intake)
      }
      if (queued === null) throw errors.internal('the turn was not queued')
      runner.kick(name)
      return queued
    },
  }
}

const NOTHING_TAKEN_IN: Intake = { attachments: [], urls: [], patches: [], brought: null }

function nameTaken(name: SessionName) {
  return errors.nameTaken(
    `a session ${name} exists on this server; choose another name, or free it with: hangar session close ${name} --delete`,
  )
}

/** What is handed in with a job lies at the top of HANGAR_IO, where hangar has names of its own. */
function checkNames(context: readonly ContextItem[]): void {
  for (const [index, item] of context.entries()) {
    const name = 'name' in item ? item.name : null
    const first = name?.split('/')[0]?.toLowerCase()
    if (name === null || !RESERVED_NAMES.some((reserved) => reserved.toLowerCase() === first)) continue
    const reason = `${JSON.stringify(name)} is a name of hangar's own in a job's directory; choose another one`
    throw errors.invalidContext(`context[${index}]: ${reason}`, { itemIndex: index, itemName: name, reason })
  }
}

/** What the turn has to say of how it began. */
interface Warned {
  readonly warnings: readonly string[]
}

async function firstMove(
  repo: Repository,
  input: NewSession & Warned & Pick<SessionRecord, 'verify'>,
  defaults: EnvironmentDefaults,
  intake: Intake,
  handOver: HandOver,
  now: number,
): Promise<SessionMove> {
  if (repo.slug === null) throw errors.internal('a session needs a repo of its own')
  const turn = newTurn(1, input, defaults, intake, handOver, now)
  return {
    message: `session ${input.name} begins, turn 1 is queued`,
    session: {
      name: input.name,
      repo: repo.slug,
      state: jobOf(input.name) === null ? 'running' : 'creating',
      baseCommit: handOver.base,
      harness: defaults.harness,
      environment: input.environment,
      parent: null,
      verify: input.verify ?? null,
      conversation: null,
      budget: overlay(defaults.budget, input.budget),
      sandbox: null,
      needsInput: null,
      questionOptions: [],
      turns: 1,
      createdAt: now,
      updatedAt: now,
    },
    turns: [turn],
    files: handedFiles(1, intake),
    parents: handOver.context === null ? [] : [handOver.context],
    alsoMove: await movesOf(repo, input.name, intake, handOver),
  }
}

function newTurn(
  number: number,
  input: Message & Warned,
  defaults: EnvironmentDefaults,
  intake: Intake,
  handOver: HandOver | null,
  now: number,
): TurnRecord {
  return {
    turn: number,
    message: input.message,
    requester: input.requester,
    state: 'queued',
    outcome: null,
    error: null,
    summary: null,
    result: null,
    resultError: null,
    artifacts: [],
    warnings: input.warnings,
    question: null,
    questionOptions: [],
    usage: null,
    repairUsage: null,
    repair: null,
    verification: null,
    requestedCommit: handOver?.requested ?? null,
    actualCommit: null,
    headCommit: null,
    checkpoint: null,
    contextCommit: handOver?.context ?? null,
    attachments: intake.attachments.map((attachment) => attachment.name),
    urls: intake.urls,
    patches: intake.patches.length,
    outputSchema: input.outputSchema,
    timeoutMs: input.timeoutMs ?? defaults.timeoutMs,
    ownBudget: input.budget,
    budget: overlay(defaults.budget, input.budget),
    stopReason: null,
    stopDetail: null,
    handedOff: false,
    asked: null,
    exitCode: null,
    idempotency: input.idempotency,
    createdAt: now,
    startedAt: null,
    endedAt: null,
  }
}

function handedFiles(turn: number, intake: Intake): Map<string, Uint8Array> {
  const files = new Map<string, Uint8Array>()
  for (const { name, content } of intake.attachments) files.set(attachmentPath(turn, name), content)
  for (const [place, { content }] of intake.patches.entries())
    files.set(`turns/${turn}/patches/${place}.patch`, content)
  return files
}

/** The refs that move together with the record: branch and context forward, what was pushed as incoming away. */
async function movesOf(
  repo: Repository,
  name: SessionName,
  intake: Intake,
  handOver: HandOver | null,
): Promise<RefUpdate[]> {
  const wanted = new Map<RefName, Oid | null>()
  if (handOver?.start) wanted.set(workBranch(name), handOver.start)
  if (handOver?.context) wanted.set(sessionRef(name, 'context'), handOver.context)
  if (intake.brought?.kind === 'checkpoint') for (const ref of intake.brought.incoming) wanted.set(ref, null)
  const moves: RefUpdate[] = []
  for (const [ref, oid] of wanted) {
    const old = (await repo.refs.read(ref)) ?? ZERO_OID
    const next = oid ?? ZERO_OID
    if (old !== next) moves.push({ ref, old, new: next })
  }
  return moves
}

/** Throws when the session takes no message now: closed, too many waiting, or commits handed to a session at work. */
async function checkQueue(
  session: SessionRecord,
  turn: (number: number) => Promise<TurnRecord>,
  intake: Intake,
  limits: Limits,
): Promise<void> {
  if (session.state === 'closed' || session.state === 'failed')
    throw errors.conflict(`session ${session.name} is ${session.state}; start another with: hangar session new`)
  let waiting = 0
  for (let number = session.turns; number >= 1 && (await turn(number)).state !== 'ended'; number--) waiting++
  if (waiting > limits.maxQueuedTurns)
    throw errors.queueFull(
      `session ${session.name} has ${limits.maxQueuedTurns} messages waiting; wait for a turn to end: hangar session wait ${session.name}`,
    )
  if (intake.brought !== null && waiting > 0)
    throw errors.conflict(
      `session ${session.name} is at work; commits can be handed to it when its turn has ended: hangar session wait ${session.name}`,
    )
}

/** The message itself, or the text of the answer that `option` picks. */
function answerOf(session: SessionRecord, { message, option }: { message: string; option: number | null }): string {
  if (option === null) return message
  const answer = session.questionOptions[option - 1]
  if (answer === undefined)
    throw errors.invalidRequest(
      `option ${option}: the session offers ${session.questionOptions.length} answer(s); see: hangar session show ${session.name}`,
    )
  return message.trim() === '' ? answer : `${answer}\n\n${message}`
}
