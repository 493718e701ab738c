/** The first steps of a turn: a sandbox with a grant, the checkout, what was handed in, and HANGAR_IO. */
import { errors } from '../domain/errors.ts'
import { sessionIoDirectory } from '../domain/hangar-io.ts'
import { type Oid, safeRelativePath, workBranch, ZERO_OID } from '../domain/names.ts'
import type { ExecResult, SandboxPaths, SandboxRef } from '../domain/sandbox.ts'
import type { SessionRecord, SessionSandbox, TurnRecord } from '../domain/session.ts'
import { currentCheckpoint } from '../exchange/hand-over.ts'
import type { Attachment } from '../exchange/intake.ts'
import { CLEAR_SCRIPT, inputTar } from '../exchange/io-prepare.ts'
import { applyPatches } from '../exchange/patch-in.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import { promptOf } from './prompt.ts'
import { attachmentPath, checkpointSandbox, lastWords, reportLines, turnEnvironment } from './sandbox-helper.ts'
import { runKey, sandboxRef, type TurnAt, type TurnServices } from './turn-context.ts'

const GRANT_LIFE_MS = 24 * 3_600_000
const SETUP_TIMEOUT_MS = 15 * 60_000
const EXEC_OUTPUT_BYTES = 1_048_576

/** Moves a queued (or half-prepared) turn to `running`; nothing of the agent has been started when this ends. */
export async function prepareTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const { session, turn, secret } = await takeSandbox(at, services)
  const ref = sandboxRef(session)
  if (ref === null) throw errors.internal('a turn that is prepared has a sandbox')
  const { provider } = at.environment
  const paths = secret === null ? provider.paths(ref) : await provider.create(sandboxSpec(at, ref, secret, services))
  const fresh = secret !== null
  const { context, over } = await settleContext(at, { session, turn, ref, fresh }, services)
  const env = turnEnvironment(at, session, turn, paths, services)
  const warnings = await checkOut(at, { ref, turn, context, over, env, fresh })
  await fillIo(at, { ref, turn, env, paths }, services)
  const actual = await at.repo.refs.read(workBranch(at.name))
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    if (current.stopReason !== null) return null
    return {
      message: `turn ${at.number} is running`,
      session: { ...session, sandbox: session.sandbox === null ? null : { ...session.sandbox, ready: true } },
      turns: [
        {
          ...current,
          state: 'running',
          actualCommit: actual,
          startedAt: services.clock.now(),
          contextCommit: context,
          warnings,
        },
      ],
    }
  })
  await services.events.append(at.name, at.number, [
    { kind: 'state', state: 'running', text: `turn ${at.number} is running` },
  ])
}

/**
 * Records that the turn is being prepared, with the session's sandbox. A new sandbox, or one whose grant was lost with the server
 * before it was handed over, gets a new grant (`secret`); a sandbox that lives on keeps its grant, renewed.
 */
async function takeSandbox(
  at: TurnAt,
  services: TurnServices,
): Promise<{ session: SessionRecord; turn: TurnRecord; secret: string | null }> {
  const { provider } = at.environment
  const before = (await services.records.get(at.name)).session
  const beforeTurn = await services.records.turn(at.name, at.number)
  const ref = sandboxRef(before)
  const up =
    ref !== null &&
    before.sandbox?.ready === true &&
    beforeTurn.state === 'queued' &&
    (await provider.inspect(ref)).state === 'up'
  const minted = up ? null : services.grants.mint()
  const expiresAt = services.clock.now() + GRANT_LIFE_MS
  let taken: TurnRecord | null = null
  const session = await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    const sandbox: SessionSandbox =
      minted === null && session.sandbox !== null
        ? { ...session.sandbox, grantExpiresAt: expiresAt }
        : {
            id: session.sandbox?.id ?? services.newSandboxId(at.name),
            provider: provider.kind,
            grantHash: minted?.hash ?? '',
            grantExpiresAt: expiresAt,
            ready: false,
          }
    taken = { ...current, state: 'preparing' }
    return {
      message: `turn ${at.number} is being prepared`,
      // The question is answered by this turn.
      session: { ...session, state: 'running', sandbox, needsInput: null, questionOptions: [] },
      turns: [taken],
    }
  })
  if (before.sandbox !== null && before.sandbox.grantHash !== session.sandbox?.grantHash)
    services.grants.revoke(before.sandbox.grantHash)
  if (session.sandbox !== null)
    services.grants.set(session.sandbox.grantHash, {
      caller: { kind: 'grant', id: session.sandbox.id, session: at.name, repo: at.slug, parent: session.parent },
      expiresAt,
    })
  await services.events.append(at.name, at.number, [
    { kind: 'state', state: 'preparing', text: `turn ${at.number} is being prepared in a ${provider.kind} sandbox` },
  ])
  return { session, turn: taken ?? beforeTurn, secret: minted?.secret ?? null }
}

function sandboxSpec(at: TurnAt, ref: SandboxRef, grant: string, services: TurnServices) {
  const { path, mounts } = at.environment
  return { id: ref.id, session: at.name, repo: at.slug, gatewayUrl: services.gatewayUrl(), grant, path, mounts }
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
  readonly turn: TurnRecord
  readonly context: Oid | null
  readonly over: Oid | null
  readonly env: Readonly<Record<string, string>>
  /** Whether the sandbox has no checkout yet. */
  readonly fresh: boolean
}

/** Makes the checkout, or brings what was handed in for a later turn into it; gives hangar-agent's warnings. */
async function checkOut(at: TurnAt, { ref, turn, context, over, env, fresh }: CheckOut): Promise<string[]> {
  const restore =
    context !== null ? sessionRef(at.name, 'context') : fresh && turn.turn > 1 ? await lastCheckpoint(at) : null
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

async function lastCheckpoint(at: TurnAt): Promise<string | null> {
  const ref = sessionRef(at.name, 'checkpoint')
  return (await at.repo.refs.read(ref)) === null ? null : ref
}

async function fillIo(
  at: TurnAt,
  {
    ref,
    turn,
    env,
    paths,
  }: { ref: SandboxRef; turn: TurnRecord; env: Readonly<Record<string, string>>; paths: SandboxPaths },
  services: TurnServices,
): Promise<void> {
  const { provider } = at.environment
  const cleared: ExecResult = await provider.exec(ref, ['sh', '-c', CLEAR_SCRIPT], {
    env,
    timeoutMs: 60_000,
    maxOutputBytes: EXEC_OUTPUT_BYTES,
    signal: at.signal,
  })
  if (cleared.exitCode !== 0) throw errors.sandboxFailed(`HANGAR_IO could not be prepared: ${lastWords(cleared.err)}`)
  const attachments: Attachment[] = []
  for (const name of turn.attachments) {
    const content = await services.records.file(at.name, attachmentPath(turn.turn, name))
    if (content === null) throw errors.internal(`attachment ${name} of turn ${turn.turn} is not in the record`)
    attachments.push({ name: safeRelativePath(name), content })
  }
  const tar = inputTar({ turn: turn.turn, prompt: promptOf(turn), attachments, outputSchema: turn.outputSchema })
  await provider.putTar(ref, sessionIoDirectory(paths.home, at.name), tar)
}

/** Starts the agent; safe to call again for the same turn. */
export async function startAgent(
  at: TurnAt,
  session: SessionRecord,
  turn: TurnRecord,
  services: TurnServices,
): Promise<void> {
  const ref = sandboxRef(session)
  if (ref === null) throw errors.sandboxLost('the session has no sandbox any more')
  const { provider, harness } = at.environment
  const { argv, stdin } = harness.run({ prompt: promptOf(turn) })
  await provider.start(ref, {
    key: runKey(turn.turn),
    argv,
    env: turnEnvironment(at, session, turn, provider.paths(ref), services),
    stdin,
    timeoutMs: supervisorDeadline(turn),
    graceMs: 10_000,
    maxOutputBytes: 16 * 1_048_576,
  })
}

/** The supervisor's own deadline comes a little after the server's, which knows the reason; it counts when the server is gone. */
function supervisorDeadline(turn: TurnRecord): number {
  const minutes = turn.budget.maxMinutes ?? Number.POSITIVE_INFINITY
  return Math.min(turn.timeoutMs, minutes * 60_000) + 5_000
}
