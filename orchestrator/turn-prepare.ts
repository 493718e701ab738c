/** The first steps of a turn: a sandbox with a grant, the checkout, what was handed in, and HANGAR_IO. */
import { errors } from '../domain/errors.ts'
import { conversationDirectory, IO, sessionIoDirectory } from '../domain/hangar-io.ts'
import { type Oid, parseOid, safeRelativePath, workBranch, ZERO_OID } from '../domain/names.ts'
import type { ExecResult, SandboxPaths, SandboxRef } from '../domain/sandbox.ts'
import type { SessionRecord, SessionSandbox, TurnRecord } from '../domain/session.ts'
import { currentCheckpoint } from '../exchange/hand-over.ts'
import type { Attachment } from '../exchange/intake.ts'
import { CLEAR_SCRIPT, inputTar } from '../exchange/io-prepare.ts'
import { applyPatches } from '../exchange/patch-in.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import { promptOf } from './prompt.ts'
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
  const context = await settleContext(at, session, turn, services)
  const env = turnEnvironment(at, session, turn, paths, services)
  const warnings = await checkOut(at, { ref, turn, context, env, fresh: secret !== null })
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

/**
 * The checkpoint that the turn restores before it begins. Patches of a later message were tried when they came; by now another turn may
 * have changed the tree, so they are applied on what is there now. Throws `invalid_context` with git's reason.
 */
async function settleContext(
  at: TurnAt,
  session: SessionRecord,
  turn: TurnRecord,
  services: TurnServices,
): Promise<Oid | null> {
  const patches = turn.turn === 1 || turn.requestedCommit !== null ? [] : await patchesOf(at, turn, services)
  if (patches.length === 0) return turn.contextCommit
  const branch = await at.repo.refs.read(workBranch(at.name))
  const checkpoint = await at.repo.refs.read(sessionRef(at.name, 'checkpoint'))
  const base = await currentCheckpoint(at.repo, { base: session.baseCommit, branch, checkpoint })
  const outcome = await applyPatches(at.repo, base, patches, services.clock.now())
  if (!outcome.ok)
    throw errors.invalidContext(
      `the handed-in patch does not apply on the session's working tree as it is now: ${outcome.reason}`,
      {
        reason: outcome.reason,
      },
    )
  const ref = sessionRef(at.name, 'context')
  const moved = await at.repo.refs.transact([
    { ref, old: (await at.repo.refs.read(ref)) ?? ZERO_OID, new: outcome.checkpoint },
  ])
  if (!moved.ok) throw errors.conflict(`${ref} could not be moved: ${moved.reason}`)
  return outcome.checkpoint
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
  readonly env: Readonly<Record<string, string>>
  /** Whether the sandbox has no checkout yet. */
  readonly fresh: boolean
}

/** Makes the checkout, or brings what was handed in for a later turn into it; gives hangar-agent's warnings. */
async function checkOut(at: TurnAt, { ref, turn, context, env, fresh }: CheckOut): Promise<string[]> {
  const restore =
    context !== null ? sessionRef(at.name, 'context') : fresh && turn.turn > 1 ? await lastCheckpoint(at) : null
  if (!fresh && restore === null) return []
  const start = await at.repo.refs.read(workBranch(at.name))
  const argv = fresh
    ? ['hangar-agent', 'setup', '--start', start ?? 'unborn', ...(restore === null ? [] : ['--context', restore])]
    : ['hangar-agent', 'apply', '--context', restore ?? '']
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

/** The variables of INTERFACE.md for everything that runs in the sandbox for this turn; the environment's own come first. Never a credential. */
export function turnEnvironment(
  at: TurnAt,
  session: SessionRecord,
  turn: TurnRecord,
  paths: SandboxPaths,
  services: TurnServices,
): Record<string, string> {
  const io = sessionIoDirectory(paths.home, at.name)
  const author = { name: 'hangar agent', email: `${at.name}@hangar.invalid` }
  return {
    GIT_AUTHOR_NAME: author.name,
    GIT_AUTHOR_EMAIL: author.email,
    GIT_COMMITTER_NAME: author.name,
    GIT_COMMITTER_EMAIL: author.email,
    ...at.environment.env,
    HANGAR_IO: io,
    HANGAR_SESSION: at.name,
    HANGAR_TURN: String(turn.turn),
    HANGAR_REPO: at.slug,
    HANGAR_BRANCH: `hangar/${at.name}`,
    HANGAR_BASE: session.baseCommit ?? '',
    HANGAR_GATEWAY: services.gatewayUrl(),
    HANGAR_PROMPT_FILE: `${io}/${IO.prompt}`,
    HANGAR_CONVERSATION: conversationDirectory(paths.home),
    ...(turn.outputSchema === null ? {} : { HANGAR_OUTPUT_SCHEMA: `${io}/${IO.schema}` }),
  }
}

/** Where a turn's record keeps an attachment: paths in trees are bytes held as latin1. */
export function attachmentPath(turn: number, name: string): string {
  return `turns/${turn}/in/${Buffer.from(name, 'utf8').toString('latin1')}`
}

/** What hangar-agent prints for the orchestrator: `<word> <value>` lines. */
export interface HelperReport {
  readonly head: Oid | null
  readonly commit: Oid | null
  readonly warnings: string[]
}

export function reportLines(out: Buffer): HelperReport {
  const values = new Map<string, string>()
  const warnings: string[] = []
  for (const line of out.toString('utf8').split('\n')) {
    const [word = '', ...rest] = line.split(' ')
    if (word === 'warning') warnings.push(rest.join(' ').slice(0, 1_000))
    else values.set(word, rest.join(' '))
  }
  const oid = (word: string) => {
    const text = values.get(word)
    return text === undefined || text === '' ? null : parseOid(text)
  }
  return { head: oid('head'), commit: oid('commit'), warnings: warnings.slice(0, 100) }
}

/** The end of what a helper said on stderr, for an error's sentence. */
export function lastWords(err: Buffer): string {
  return err.toString('utf8').trim().split('\n').slice(-5).join('; ').slice(-1_000)
}
