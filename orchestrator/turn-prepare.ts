/** The first steps of a turn: a sandbox with a grant, the checkout, what was handed in, and HANGAR_IO. */
import { errors } from '../domain/errors.ts'
import { attachmentFolder, ioDirectory } from '../domain/hangar-io.ts'
import type { ConversationStart } from '../domain/harness.ts'
import { type Oid, safeRelativePath, workBranch, ZERO_OID } from '../domain/names.ts'
import type { Budget } from '../domain/run-event.ts'
import type { SandboxPaths, SandboxRef, SandboxSpec } from '../domain/sandbox.ts'
import type { SessionRecord, SessionSandbox, TurnRecord } from '../domain/session.ts'
import { currentCheckpoint } from '../exchange/hand-over.ts'
import type { Attachment } from '../exchange/intake.ts'
import { earlierTar, FILL_SCRIPT, inputTar } from '../exchange/io-prepare.ts'
import { applyPatches } from '../exchange/patch-in.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import { turnBudget } from './job-attempts.ts'
import { promptOf } from './prompt.ts'
import { setGrant } from './sandbox-grant.ts'
import { attachmentPath, checkpointSandbox, isUp, lastWords, reportLines, turnEnvironment } from './sandbox-helper.ts'
import { putEvent } from './session-events.ts'
import { setUp } from './setup.ts'
import { deadlineOf, sandboxRef, type TurnAt, type TurnServices } from './turn-context.ts'
import { restoreConversation } from './turn-conversation.ts'
import { recordStop } from './turn-stop.ts'

const GRANT_LIFE_MS = 24 * 3_600_000
const SETUP_TIMEOUT_MS = 15 * 60_000
const EXEC_OUTPUT_BYTES = 1_048_576

/** Moves a queued (or half-prepared) turn to `running`; nothing of the agent has been started when this ends. */
export async function prepareTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const budget = await turnBudget(at.name, await services.records.turn(at.name, at.number), services)
  if (typeof budget === 'string') return recordStop(at, { reason: 'over_budget', detail: budget }, services)
  const { session, turn, ref, paths, fresh } = await takeSandbox(at, budget, services)
  const { context, over } = await settleContext(at, { session, turn, ref, fresh }, services)
  const env = turnEnvironment(at, session, turn, paths)
  // Two places in the sandbox that do not meet; neither goes on alone when the other has failed.
  const done = await Promise.allSettled([
    checkOut(at, { ref, context, over, env, fresh }),
    (async () => {
      if (fresh) await restoreIo(at, { ref, turn, paths }, services)
      await fillIo(at, { ref, turn, env }, services)
    })(),
  ])
  for (const part of done) if (part.status === 'rejected') throw part.reason
  const isProjects = turn.turn === 1 && context === null && turn.requestedCommit === null
  if (fresh) await setUp(at, { ref, env, isProjects }, services)
  // Not before the set-up: what that made is kept for other sessions as well.
  const lost = fresh ? await restoreConversation(at, { ref, session }, services) : null
  const warnings = [...at.environment.warnings, ...(done[0].status === 'fulfilled' ? done[0].value : [])]
  if (lost !== null)
    warnings.push(
      `the agent's conversation could not be continued (${lost}); a new one was handed a summary of the turns so far`,
    )
  const shown = await services.events.place(at.name, at.number, {
    kind: 'state',
    state: 'running',
    text: `turn ${at.number} is running`,
  })
  const actual = await at.repo.refs.read(workBranch(at.name))
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    if (current.stopReason !== null) return null
    return {
      message: `turn ${at.number} is running`,
      session: {
        ...session,
        sandbox: session.sandbox === null ? null : { ...session.sandbox, ready: true },
        conversation: lost === null ? (session.conversation ?? null) : null,
      },
      turns: [
        {
          ...current,
          state: 'running',
          actualCommit: actual,
          startedAt: services.clock.now(),
          contextCommit: context,
          warnings: [...current.warnings, ...warnings],
          handedOff: lost !== null,
        },
      ],
      index: [putEvent(at.name, shown)],
    }
  })
  services.events.wake(at.name)
}

interface Taken {
  readonly session: SessionRecord
  readonly turn: TurnRecord
  readonly ref: SandboxRef
  readonly paths: SandboxPaths
  /** Whether the sandbox has no checkout yet. */
  readonly fresh: boolean
}

/**
 * Records that the turn is being prepared, with the session's sandbox, which is made meanwhile: one that no record names after a crash
 * is an orphan that the next start removes. A new sandbox, or one whose grant was lost with the server before it was handed over, gets a new
 * grant; a sandbox that lives on keeps its grant, renewed.
 */
async function takeSandbox(at: TurnAt, budget: Budget, services: TurnServices): Promise<Taken> {
  const { provider } = at.environment
  const before = (await services.records.get(at.name)).session
  const beforeTurn = { ...(await services.records.turn(at.name, at.number)), budget }
  const live = sandboxRef(before)
  const up =
    live !== null && before.sandbox?.ready === true && beforeTurn.state === 'queued' && (await isUp(provider, live))
  const minted = up ? null : services.grants.mint()
  // A turn may run for days, and pushes its checkpoint after its end.
  const expiresAt = services.clock.now() + Math.max(GRANT_LIFE_MS, deadlineOf(beforeTurn).ms + 3_600_000)
  const ref = live ?? { provider: provider.kind, id: services.newSandboxId(at.name) }
  const made = minted === null ? null : provider.create(sandboxSpec(at, ref, minted.secret, services))
  made?.catch(() => {})
  const shown = await services.events.place(at.name, at.number, {
    kind: 'state',
    state: 'preparing',
    text: `turn ${at.number} is being prepared in a ${provider.kind} sandbox`,
  })
  let taken: TurnRecord | null = null
  const move = services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    const sandbox: SessionSandbox =
      minted === null && session.sandbox !== null
        ? { ...session.sandbox, grantExpiresAt: expiresAt }
        : {
            id: ref.id,
            provider: provider.kind,
            grantHash: minted?.hash ?? '',
            grantExpiresAt: expiresAt,
            ready: false,
          }
    taken = { ...current, state: 'preparing', budget }
    return {
      message: `turn ${at.number} is being prepared`,
      // The question is answered by this turn.
      session: { ...session, state: 'running', sandbox, needsInput: null, questionOptions: [] },
      turns: [taken],
      index: [putEvent(at.name, shown)],
    }
  })
  const session = await move.catch(async (error: unknown) => {
    if (before.sandbox === null) await made?.then(() => provider.destroy(ref)).catch(() => {})
    throw error
  })
  services.events.wake(at.name)
  if (before.sandbox !== null && before.sandbox.grantHash !== session.sandbox?.grantHash)
    services.grants.revoke(before.sandbox.grantHash)
  await setGrant({ session, repo: at.slug }, { ...services, find: services.records.find })
  const paths = made === null ? provider.paths(ref) : await made
  return { session, turn: taken ?? beforeTurn, ref, paths, fresh: made !== null }
}

function sandboxSpec(at: TurnAt, ref: SandboxRef, grant: string, services: TurnServices): SandboxSpec {
  const { path, mounts, gatewayUrl, image, limits, egress } = at.environment
  const own = { id: ref.id, session: at.name, repo: at.slug, grant, labels: {} }
  const mirrors = [at.slug, ...services.mayRead(at.slug)].flatMap((repo) => {
    const upstream = services.upstreams.of(repo)
    return upstream === null ? [] : [{ repo, url: upstream.url }]
  })
  return { ...own, mirrors, path, mounts, gatewayUrl, image, limits, egress }
}

interface Settled {
  /** The checkpoint that the turn restores before it begins. */
  readonly context: Oid | null
  /** The checkpoint that it was made from, which the live checkout is at. */
  readonly over: Oid | null
}

/**
 * Patches of a later message were tried when they came; by now another turn may have changed the tree, so they are applied on what is
 * there now, the sandbox's present state where it is up. Throws `invalid_context` with git's reason.
 */
async function settleContext(
  at: TurnAt,
  { session, turn, ref, fresh }: { session: SessionRecord; turn: TurnRecord; ref: SandboxRef; fresh: boolean },
  services: TurnServices,
): Promise<Settled> {
  const patches = turn.turn === 1 || turn.requestedCommit !== null ? [] : await patchesOf(at, turn, services)
  if (patches.length === 0) return { context: turn.contextCommit, over: null }
  if (!fresh) await checkpointSandbox(at, ref, session, turn, services)
  const branch = await at.repo.refs.read(workBranch(at.name))
  const checkpoint = await at.repo.refs.read(sessionRef(at.name, 'checkpoint'))
  const base = await currentCheckpoint(at.repo, { base: session.baseCommit, branch, checkpoint })
  const outcome = await applyPatches(at.repo, base, patches, services.clock.now())
  if (!outcome.ok) {
    const { reason } = outcome
    throw errors.invalidContext(
      `the handed-in patch does not apply on the session's working tree as it is now: ${reason}`,
      { reason },
    )
  }
  const context = sessionRef(at.name, 'context')
  const old = (await at.repo.refs.read(context)) ?? ZERO_OID
  const moved = await at.repo.refs.transact([{ ref: context, old, new: outcome.checkpoint }])
  if (!moved.ok) throw errors.conflict(`${context} could not be moved: ${moved.reason}`)
  return { context: outcome.checkpoint, over: fresh ? null : checkpoint }
}

async function patchesOf(at: TurnAt, turn: TurnRecord, services: TurnServices): Promise<Buffer[]> {
  const patches: Buffer[] = []
  for (let place = 0; place < turn.patches; place++) {
    const bytes = await services.records.file(at.name, `turns/${turn.turn}/patches/${place}.patch`)
    if (bytes === null) throw errors.internal(`patch ${place} of turn ${turn.turn} is not in the record`)
    patches.push(bytes)
  }
  return patches
}

interface CheckOut {
  readonly ref: SandboxRef
  readonly context: Oid | null
  readonly over: Oid | null
  readonly env: Readonly<Record<string, string>>
  /** Whether the sandbox has no checkout yet. */
  readonly fresh: boolean
}

/** Makes the checkout, or brings what was handed in for a later turn into it; gives hangar-agent's warnings. */
async function checkOut(at: TurnAt, { ref, context, over, env, fresh }: CheckOut): Promise<string[]> {
  const restore = context !== null ? sessionRef(at.name, 'context') : fresh ? await lastCheckpoint(at) : null
  if (!fresh && restore === null) return []
  const start = await at.repo.refs.read(workBranch(at.name))
  const argv = fresh
    ? ['hangar-agent', 'setup', '--start', start ?? 'unborn', ...(restore === null ? [] : ['--context', restore])]
    : ['hangar-agent', 'apply', '--context', restore ?? '', ...(over === null ? [] : ['--over', over])]
  const { exitCode, out, err } = await at.environment.provider.exec(ref, argv, {
    env,
    timeoutMs: SETUP_TIMEOUT_MS,
    maxOutputBytes: EXEC_OUTPUT_BYTES,
    signal: at.signal,
  })
  if (exitCode !== 0)
    throw errors.sandboxFailed(`the checkout could not be made: ${lastWords(err)}`, { reason: lastWords(err) })
  return reportLines(out).warnings
}

/** What a fresh sandbox begins with: the last checkpoint, or what a message handed in whose turn never ran. */
async function lastCheckpoint(at: TurnAt): Promise<string | null> {
  for (const ref of [sessionRef(at.name, 'checkpoint'), sessionRef(at.name, 'context')])
    if ((await at.repo.refs.read(ref)) !== null) return ref
  return null
}

/** Puts back what earlier turns left in HANGAR_IO, into a sandbox that has none of it. */
async function restoreIo(
  at: TurnAt,
  { ref, turn, paths }: { ref: SandboxRef; turn: TurnRecord; paths: SandboxPaths },
  services: TurnServices,
): Promise<void> {
  const earlier = (await services.records.turns(at.name)).filter((other) => other.turn < turn.turn)
  const attachments = await Promise.all(
    earlier.flatMap((other) =>
      other.attachments.map(async (name) => ({
        path: `${attachmentFolder(at.name, other.turn)}${name}`,
        content: (await services.records.file(at.name, attachmentPath(other.turn, name))) ?? Buffer.alloc(0),
      })),
    ),
  )
  const newest = new Map(earlier.flatMap((other) => other.artifacts.map((entry) => [entry.path, entry] as const)))
  const artifacts = []
  for (const entry of newest.values())
    artifacts.push({ path: entry.path, content: await services.artifacts.read(at.repo, at.name, entry) })
  const tar = earlierTar({ attachments, artifacts })
  if (tar !== null) await at.environment.provider.putTar(ref, ioDirectory(paths.home, at.name), tar)
}

/** Clears HANGAR_IO and puts the turn's input there, in one command: each start of a sandbox's namespaces costs. */
async function fillIo(
  at: TurnAt,
  { ref, turn, env }: { ref: SandboxRef; turn: TurnRecord; env: Readonly<Record<string, string>> },
  services: TurnServices,
): Promise<void> {
  const attachments: Attachment[] = []
  for (const name of turn.attachments) {
    const content = await services.records.file(at.name, attachmentPath(turn.turn, name))
    if (content === null) throw errors.internal(`attachment ${name} of turn ${turn.turn} is not in the record`)
    attachments.push({ name: safeRelativePath(name), content })
  }
  const stdin = inputTar({
    turn: turn.turn,
    prompt: promptOf(turn, at.name),
    folder: attachmentFolder(at.name, turn.turn),
    attachments,
    outputSchema: turn.outputSchema,
  })
  const { exitCode, err } = await at.environment.provider.exec(ref, ['sh', '-c', FILL_SCRIPT], {
    env,
    stdin,
    timeoutMs: 10 * 60_000,
    maxOutputBytes: EXEC_OUTPUT_BYTES,
    signal: at.signal,
  })
  if (exitCode !== 0) throw errors.sandboxFailed(`HANGAR_IO could not be prepared: ${lastWords(err)}`)
}

/** One run of the agent in a turn. */
export interface AgentRun {
  readonly key: string
  readonly prompt: string
  readonly timeoutMs: number
  readonly conversation: ConversationStart
}

/** Starts the agent; safe to call again for the same run. */
export async function startAgent(
  at: TurnAt,
  { session, turn, run }: { session: SessionRecord; turn: TurnRecord; run: AgentRun },
): Promise<void> {
  const ref = sandboxRef(session)
  if (ref === null) throw errors.sandboxLost('the session has no sandbox any more')
  const { provider, harness, secrets } = at.environment
  const { home, repo } = provider.paths(ref)
  const { argv, env, stdin } = harness.run({ prompt: run.prompt, conversation: run.conversation, home, repo })
  await provider.start(ref, {
    key: run.key,
    argv,
    env: { ...env, ...secrets, ...turnEnvironment(at, session, turn, provider.paths(ref)) },
    stdin,
    // The supervisor's own deadline comes a little after the server's, which knows the reason; it counts when the server is gone.
    timeoutMs: run.timeoutMs + 5_000,
    graceMs: 10_000,
    maxOutputBytes: 16 * 1_048_576,
  })
}
