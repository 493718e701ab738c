/** The last steps of a turn: what the agent left in HANGAR_IO, its checkpoint, and one record of it all. */
import { HangarError, messageOf } from '../domain/errors.ts'
import { cutOption, IO, ioDirectory, MAX_QUESTION_OPTIONS } from '../domain/hangar-io.ts'
import { jobOf, type Oid, type RefName, workBranch } from '../domain/names.ts'
import { type RunEvent, totalUsage, type Usage } from '../domain/run-event.ts'
import type { SandboxRef } from '../domain/sandbox.ts'
import type { ArtifactEntry, SessionRecord, TurnOutcome, TurnRecord, Verification } from '../domain/session.ts'
import { knownArtifacts } from '../exchange/artifacts.ts'
import { type Collected, collectIo, textsTar } from '../exchange/io-collect.ts'
import type { ResultOutcome } from '../exchange/result-schema.ts'
import { appendNote, readNote } from '../gateway/git/notes.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import { checkpointSandbox, isUp, readOpened } from './sandbox-helper.ts'
import { eventsFile, putEvent } from './session-events.ts'
import { runKeys, sandboxRef, type TurnAt, type TurnPlace, type TurnServices } from './turn-context.ts'
import { keepConversation } from './turn-conversation.ts'
import { commitWork, lostVerification, verifyCommand, verifyWork } from './turn-verify.ts'

const NOTES = 'refs/notes/hangar' as RefName

/** All that a turn left behind, before it is decided what became of it. */
interface Gathered {
  readonly collected: Collected
  readonly artifacts: readonly ArtifactEntry[]
  readonly result: ResultOutcome
  readonly warnings: readonly string[]
  readonly head: Oid | null
  readonly checkpoint: Oid | null
  /** Whether the sandbox's state was pushed. */
  readonly saved: boolean
  /** Of a job's turn that ended well: why its branch does not hold the work; null: it does, or that is not asked. */
  readonly notOnBranch: string | null
}

const NOTHING: Collected = {
  summary: null,
  resultText: null,
  resultRefused: null,
  question: null,
  questionOptions: [],
  artifacts: [],
  warnings: [],
}

/**
 * Collects, checkpoints and records the turn; done again after a crash it gives the same record, once. A result that is missing or does
 * not fit its schema is given one repair first.
 */
export async function collectTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const { session } = await services.records.get(at.name)
  const turn = await services.records.turn(at.name, at.number)
  const ref = sandboxRef(session)
  const up = ref !== null && (await isUp(at.environment.provider, ref))
  const gathered = up ? await gather(at, ref, session, turn, services) : await gatherNothing(at, turn)
  if (up && isRepairable(turn, gathered) && (await beginRepair(at, gathered, services))) return
  const verification = await verificationOf(at, { session, turn, ref: up ? ref : null }, gathered, services)
  const lost = gathered.saved ? null : await lostWork(at, ref, turn)
  const { notOnBranch } = gathered
  await recordEnd(at, { ...turn, error: lost ?? turn.error, verification, notOnBranch }, gathered, services)
}

/** An agent that has ended well, in a sandbox that went with its work before that was collected. */
async function lostWork(at: TurnAt, ref: SandboxRef | null, turn: TurnRecord): Promise<TurnRecord['error']> {
  // Before a repair or a verification all was collected once.
  if (turn.error !== null || (turn.repair ?? null) !== null || (turn.verification ?? null) !== null) return null
  const found = ref === null ? { state: 'gone', reason: null } : await at.environment.provider.inspect(ref)
  if (found.state !== 'gone') return null
  const why = found.reason ?? 'it is not there any more'
  return {
    code: 'sandbox_lost',
    message: `the agent had ended, and its sandbox went before its work was collected: ${why}; what the agent had pushed by itself is there`,
  }
}

/** What the verification of a job's turn gave; null where there is none. */
async function verificationOf(
  at: TurnAt,
  {
    session,
    turn,
    ref,
  }: { readonly session: SessionRecord; readonly turn: TurnRecord; readonly ref: SandboxRef | null },
  { collected, head, notOnBranch }: Gathered,
  services: TurnServices,
): Promise<Verification | null> {
  const begun = turn.verification ?? null
  if (ref === null) return begun?.passed === null ? lostVerification(begun, services.clock.now()) : begun
  const command = verifyCommand(at, session)
  if (command === null || notOnBranch !== null || outcomeOf(turn, collected) !== 'exited') return begun
  return verifyWork(at, { ref, session, turn }, { command, commit: head }, services)
}

/** An agent that ended well, asked nothing, and handed back no valid result may try once more. */
function isRepairable(turn: TurnRecord, { collected, result }: Gathered): boolean {
  return (
    turn.outputSchema !== null &&
    result.kind === 'invalid' &&
    (turn.repair ?? null) === null &&
    outcomeOf(turn, collected) === 'exited'
  )
}

/** Records what the agent's own run gave and that its result is to be repaired; false when the turn was stopped meanwhile. */
async function beginRepair(at: TurnAt, { collected, artifacts, result }: Gathered, services: TurnServices) {
  const reason = services.redactor.text(result.kind === 'invalid' ? result.reason : '')
  const events = await services.events.ofTurn(at.name, at.number)
  const shown = await services.events.place(at.name, at.number, {
    kind: 'state',
    state: 'repairing',
    text: `the result is being repaired: ${reason}`,
  })
  let begun = false
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    begun = current.stopReason === null
    if (!begun) return null
    const summary = collected.summary ?? lastMessage(events)
    return {
      message: `turn ${at.number} is being repaired`,
      session,
      turns: [
        {
          ...current,
          state: 'repairing',
          summary: summary === null ? null : services.redactor.text(summary),
          artifacts,
          repair: { reason, startedAt: services.clock.now(), failure: null },
        },
      ],
      index: [putEvent(at.name, shown)],
    }
  })
  services.events.wake(at.name)
  return begun
}

/** Ends whatever still runs of a turn that a step failed in, and saves its work, where that is still possible. */
export async function salvageTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const { session } = await services.records.get(at.name)
  const turn = await services.records.turn(at.name, at.number)
  const ref = sandboxRef(session)
  if (ref === null || turn.startedAt === null || !(await isUp(at.environment.provider, ref))) return
  for (const key of Object.values(runKeys(at.number))) await at.environment.provider.stop(ref, key)
  await checkpointSandbox(at, ref, session, turn, services)
}

/** Ends a turn that a step failed in: what there is to keep is kept, the reason is the step's own. */
export async function failTurn(at: TurnPlace, error: unknown, services: TurnServices): Promise<void> {
  const turn = await services.records.turn(at.name, at.number)
  if (turn.state === 'ended') return
  if (turn.stopReason !== null) return recordEnd(at, turn, await gatherNothing(at, turn), services)
  const code = error instanceof HangarError ? error.code : 'internal'
  const failed: TurnRecord = {
    ...turn,
    error: { code, message: services.redactor.text(messageOf(error)).slice(0, 4_000) },
  }
  await recordEnd(at, failed, await gatherNothing(at, turn), services)
}

/** What the record has already, when no sandbox is there to be read. */
async function gatherNothing(at: TurnPlace, { artifacts }: TurnRecord): Promise<Gathered> {
  const [head, checkpoint] = await tips(at)
  return {
    collected: NOTHING,
    artifacts,
    result: { kind: 'none' },
    warnings: [],
    head,
    checkpoint,
    saved: false,
    notOnBranch: null,
  }
}

function tips(at: TurnPlace): Promise<[Oid | null, Oid | null]> {
  return Promise.all([at.repo.refs.read(workBranch(at.name)), at.repo.refs.read(sessionRef(at.name, 'checkpoint'))])
}

async function gather(
  at: TurnAt,
  ref: SandboxRef,
  session: SessionRecord,
  turn: TurnRecord,
  services: TurnServices,
): Promise<Gathered> {
  const warnings: string[] = []
  let isToDeliver = false
  let notCommitted: string | null = null
  // The agent's processes have ended, so both see the same state.
  const io = readIo(at, ref, services).catch((error: unknown): Collected => {
    return { ...NOTHING, warnings: [`HANGAR_IO could not be read: ${messageOf(error)}`] }
  })
  const save = async () => {
    // What a verification leaves behind is not the agent's work.
    if ((turn.verification ?? null) !== null) return null
    if (jobOf(at.name) !== null && outcomeOf(turn, await io) === 'exited') {
      isToDeliver = true
      notCommitted = await commitWork(at, { ref, session, turn }, (await io).summary)
      if (notCommitted !== null) warnings.push(notCommitted)
    }
    return checkpointSandbox(at, ref, session, turn, services).catch((error: unknown) => {
      warnings.push(`no checkpoint could be made: ${services.redactor.text(messageOf(error))}`)
      return null
    })
  }
  const [report, collected, notKept] = await Promise.all([save(), io, keepConversation(at, ref, services)])
  const stored = await services.artifacts.store(at.repo, at.name, at.number, collected.artifacts)
  const result: ResultOutcome =
    collected.resultRefused === null
      ? await services.results.check(turn.outputSchema, collected.resultText, at.slug)
      : { kind: 'invalid', reason: collected.resultRefused }
  const [head, checkpoint] = await tips(at)
  const isOnBranch = notCommitted === null && report !== null && report.head === head
  const refused = notCommitted ?? [...warnings, ...(report?.warnings ?? [])].join('; ')
  return {
    collected,
    artifacts: newestOf([...turn.artifacts, ...stored]),
    result,
    head,
    checkpoint,
    saved: report !== null || (turn.verification ?? null) !== null,
    notOnBranch: isToDeliver && !isOnBranch ? services.redactor.text(refused || 'the branch was not moved') : null,
    warnings: [...warnings, ...(report?.warnings ?? []), ...(notKept === null ? [] : [notKept]), ...collected.warnings],
  }
}

async function readIo(at: TurnAt, ref: SandboxRef, services: TurnServices): Promise<Collected> {
  const { provider } = at.environment
  const known = knownArtifacts(await services.records.turns(at.name))
  const { limits } = services
  // Artifacts of earlier turns stay in place, so the tar may hold more than one turn's worth; what is over is an error, not a hang.
  const maxBytes = 16 * (limits.maxArtifactsBytes + limits.maxResultBytes) + limits.maxAttachmentBytes
  const io = ioDirectory(provider.paths(ref).home, at.name)
  const options = { known, limits, redactor: services.redactor }
  const collect = async () => {
    const tar = await provider.getTar(ref, io, { maxBytes })
    return collectIo(tar, options).finally(() => tar.destroy())
  }
  try {
    return await readOpened(provider, { ref, dir: io }, collect)
  } catch (error) {
    if (!(error instanceof HangarError && error.code === 'limit_passed')) throw error
    // One file too many, or too big, must not cost the texts: they are read by themselves.
    const read = (path: string, bytes: number) =>
      provider.readFile(ref, `${io}/${path}`, { offset: 0, maxBytes: bytes })
    const texts = await collectIo(await textsTar(read, limits), options)
    const warning = `no artifacts were taken: ${messageOf(error)}; remove what is big under out/artifacts`
    return { ...texts, warnings: [warning, ...texts.warnings] }
  }
}

/** An artifact that a repair has changed stands for the one before. */
function newestOf(artifacts: readonly ArtifactEntry[]): ArtifactEntry[] {
  return [...new Map(artifacts.map((artifact) => [artifact.path, artifact])).values()]
}

async function recordEnd(at: TurnPlace, turn: TurnRecord, gathered: Gathered, services: TurnServices): Promise<void> {
  const events = await services.events.ofTurn(at.name, at.number)
  let recorded: TurnRecord | null = null
  await services.records.move(at.name, async ({ session, turn: newest }) => {
    recorded = null
    const current = await newest(at.number)
    if (current.state === 'ended') return null
    const waiting = session.turns > at.number
    // A stop that came while the turn was collected counts: what it asked is not carried on.
    const ended = endedTurn({ ...turn, stopReason: current.stopReason }, gathered, events, services)
    recorded = ended
    const state = { kind: 'state', state: 'ended', text: endSentence(ended) } as const
    const last = await services.events.place(at.name, at.number, state)
    const sealed = await at.repo.refs.read(sessionRef(at.name, 'sealed'))
    if (gathered.head !== null) await noteTurn(at, gathered.head, ended, services)
    return {
      message: `turn ${at.number} ended: ${ended.outcome ?? ''}`,
      session: {
        ...session,
        state: session.state === 'closed' ? 'closed' : waiting ? 'running' : 'idle',
        needsInput: ended.outcome === 'needs_input' ? ended.question : null,
        questionOptions: ended.outcome === 'needs_input' ? ended.questionOptions : [],
      },
      turns: [{ ...ended, conversation: session.conversation, sealed }],
      files: new Map([
        ...ioFiles(at.number, ended),
        [`turns/${at.number}/events.jsonl.gz`, eventsFile([...events, last])],
      ]),
      parents: gathered.checkpoint === null ? [] : [gathered.checkpoint],
      index: [putEvent(at.name, last), { section: 'cursors', key: at.name, value: null }],
    }
  })
  services.events.wake(at.name)
  if (recorded !== null) countTurn(recorded, services)
}

function countTurn({ outcome, startedAt, endedAt }: TurnRecord, { metrics }: TurnServices): void {
  metrics.count('hangar_turns_total', { outcome: outcome ?? '' })
  if (startedAt !== null && endedAt !== null)
    metrics.observe('hangar_turn_seconds', { outcome: outcome ?? '' }, (endedAt - startedAt) / 1_000)
}

function endedTurn(
  turn: TurnRecord,
  gathered: Gathered,
  events: readonly RunEvent[],
  services: TurnServices,
): TurnRecord {
  const { collected, result } = gathered
  const { own, repair } = usagesOf(events)
  const clean = (text: string | null) => (text === null ? null : services.redactor.text(text))
  const outcome = outcomeOf(turn, collected)
  const question = collected.question ?? cleanQuestion(turn, services)
  return {
    ...turn,
    state: 'ended',
    outcome,
    error: errorOf(turn, outcome, services),
    summary: collected.summary ?? turn.summary ?? lastMessage(events),
    result: result.kind === 'valid' ? services.redactor.json(result.value) : null,
    resultError: clean(resultError(turn, outcome, gathered)),
    artifacts: gathered.artifacts,
    warnings: [...new Set([...turn.warnings, ...gathered.warnings].map((warning) => services.redactor.text(warning)))],
    question: outcome === 'needs_input' ? question : null,
    questionOptions: outcome === 'needs_input' ? optionsOf(turn, collected, services) : [],
    usage: own,
    repairUsage: repair,
    // What a verification did to the branch is not the agent's work.
    headCommit: turn.verification?.commit ?? gathered.head,
    checkpoint: gathered.checkpoint,
    endedAt: services.clock.now(),
  }
}

function outcomeOf(turn: TurnRecord, collected: Collected): TurnOutcome {
  if (turn.stopReason !== null) return turn.stopReason
  // A question that was asked counts, however the program took its own end.
  if (turn.error?.code === 'agent_failed' || turn.error === null)
    if (collected.question !== null || (turn.asked ?? null) !== null) return 'needs_input'
  return turn.error === null ? 'exited' : 'failed'
}

/** Why the turn failed or was stopped: of a limit, which one and by how much. */
function errorOf(turn: TurnRecord, outcome: TurnOutcome, services: TurnServices): TurnRecord['error'] {
  if (outcome === 'over_budget' || outcome === 'timed_out')
    return { code: outcome, message: turn.stopDetail ?? `the turn was stopped: ${outcome}` }
  if (outcome === 'needs_input' || turn.error === null) return null
  return { code: turn.error.code, message: services.redactor.text(turn.error.message).slice(0, 4_000) }
}

/** A question by a tool of the program's own, where the agent left none in `out/QUESTION.md`. */
function cleanQuestion(turn: TurnRecord, services: TurnServices): string | null {
  const asked = turn.asked ?? null
  return asked === null ? null : services.redactor.text(asked.text).slice(0, services.limits.maxQuestionBytes)
}

function optionsOf(turn: TurnRecord, collected: Collected, services: TurnServices): readonly string[] {
  if (collected.question !== null) return collected.questionOptions
  return (turn.asked?.options ?? [])
    .slice(0, MAX_QUESTION_OPTIONS)
    .map((option) => cutOption(services.redactor.text(option)))
}

/** Why there is no result, where one was to be expected: not of a turn that was stopped, nor of one that asks first. */
function resultError(turn: TurnRecord, outcome: TurnOutcome, { collected, result }: Gathered): string | null {
  const repair = turn.repair ?? null
  if (
    turn.stopReason !== null ||
    (outcome === 'needs_input' && collected.resultText === null && collected.resultRefused === null)
  )
    return null
  // Without a sandbox nothing was read: what the repair was for still stands.
  if (result.kind === 'none') return repair === null ? null : withFailure(repair.reason, repair.failure)
  return result.kind === 'invalid' ? withFailure(result.reason, repair?.failure ?? null) : null
}

function withFailure(reason: string, failure: string | null): string {
  return failure === null ? reason : `${reason} (the repair: ${failure})`
}

/** What the agent's own run and its repair used, by their events. */
function usagesOf(events: readonly RunEvent[]): { readonly own: Usage | null; readonly repair: Usage | null } {
  const begun = events.findIndex((event) => event.kind === 'state' && event.state === 'repairing')
  const split = begun === -1 ? events.length : begun
  return { own: totalUsage(events.slice(0, split)), repair: totalUsage(events.slice(split)) }
}

function lastMessage(events: readonly RunEvent[]): string | null {
  const last = events.filter((event) => event.kind === 'message' && event.role === 'assistant').at(-1)
  return last?.kind === 'message' ? last.text : null
}

function endSentence(turn: TurnRecord): string {
  return turn.error === null
    ? `turn ${turn.turn} ended: ${turn.outcome ?? ''}`
    : `turn ${turn.turn} ended: ${turn.outcome ?? ''} (${turn.error.message})`
}

/** What is kept of HANGAR_IO in the record: its texts, redacted, without artifacts. */
function ioFiles(number: number, turn: TurnRecord): [string, Buffer][] {
  const files: [string, Buffer][] = []
  if (turn.summary !== null) files.push([`turns/${number}/io/${IO.summary}`, Buffer.from(`${turn.summary}\n`)])
  if (turn.result !== null)
    files.push([`turns/${number}/io/${IO.result}`, Buffer.from(`${JSON.stringify(turn.result, null, 2)}\n`)])
  if (turn.question !== null) files.push([`turns/${number}/io/${IO.question}`, Buffer.from(`${turn.question}\n`)])
  return files
}

/** Adds the turn's line to the note of the commit that it ended at; a line that a crash left there already stays alone. */
async function noteTurn(at: TurnPlace, commit: Oid, turn: TurnRecord, services: TurnServices): Promise<void> {
  const lines = ((await readNote(at.repo, NOTES, commit)) ?? '').split('\n')
  const start = noteLine(at, turn).slice(0, JSON.stringify({ session: at.name, turn: turn.turn }).length - 1)
  if (lines.some((line) => line.startsWith(`${start},`))) return
  await appendNote(at.repo, { ref: NOTES, commit, line: noteLine(at, turn), at: services.clock.now() })
}

/** One JSON line in the note of the commit that the turn ended at; session and turn come first. */
function noteLine(at: TurnPlace, turn: TurnRecord): string {
  return JSON.stringify({
    session: at.name,
    turn: turn.turn,
    outcome: turn.outcome,
    summary: turn.summary,
    result: turn.result,
  })
}
