/** The last steps of a turn: what the agent left in HANGAR_IO, its checkpoint, and one record of it all. */
import type { Readable } from 'node:stream'
import { HangarError, messageOf } from '../domain/errors.ts'
import { IO, sessionIoDirectory } from '../domain/hangar-io.ts'
import { type Oid, type RefName, workBranch } from '../domain/names.ts'
import type { RunEvent } from '../domain/run-event.ts'
import type { SandboxRef } from '../domain/sandbox.ts'
import type { ArtifactEntry, SessionRecord, TurnOutcome, TurnRecord } from '../domain/session.ts'
import { knownArtifacts } from '../exchange/artifacts.ts'
import { type Collected, collectIo } from '../exchange/io-collect.ts'
import type { ResultOutcome } from '../exchange/result-schema.ts'
import { appendNote, readNote } from '../gateway/git/notes.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import { checkpointSandbox } from './sandbox-helper.ts'
import { eventsFile, putEvent } from './session-events.ts'
import { runKey, sandboxRef, type TurnAt, type TurnPlace, type TurnServices } from './turn-context.ts'

const NOTES = 'refs/notes/hangar' as RefName

/** All that a turn left behind, before it is decided what became of it. */
interface Gathered {
  readonly collected: Collected
  readonly artifacts: readonly ArtifactEntry[]
  readonly result: ResultOutcome
  readonly warnings: readonly string[]
  readonly head: Oid | null
  readonly checkpoint: Oid | null
}

const NOTHING: Collected = {
  summary: null,
  resultText: null,
  question: null,
  questionOptions: [],
  artifacts: [],
  warnings: [],
}

/** Collects, checkpoints and records the turn; done again after a crash it gives the same record, once. */
export async function collectTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const { session } = await services.records.get(at.name)
  const turn = await services.records.turn(at.name, at.number)
  const ref = sandboxRef(session)
  const up = ref !== null && (await at.environment.provider.inspect(ref)).state === 'up'
  const gathered = up ? await gather(at, ref, session, turn, services) : await gatherNothing(at)
  await recordEnd(at, turn, gathered, services)
}

/** Ends whatever still runs of a turn that a step failed in, and saves its work, where that is still possible. */
export async function salvageTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const { session } = await services.records.get(at.name)
  const turn = await services.records.turn(at.name, at.number)
  const ref = sandboxRef(session)
  if (ref === null || turn.startedAt === null || (await at.environment.provider.inspect(ref)).state !== 'up') return
  await at.environment.provider.stop(ref, runKey(at.number))
  await checkpointSandbox(at, ref, session, turn, services)
}

/** Ends a turn that a step failed in: what there is to keep is kept, the reason is the step's own. */
export async function failTurn(at: TurnPlace, error: unknown, services: TurnServices): Promise<void> {
  const turn = await services.records.turn(at.name, at.number)
  if (turn.state === 'ended') return
  if (turn.stopReason !== null) return recordEnd(at, turn, await gatherNothing(at), services)
  const code = error instanceof HangarError ? error.code : 'internal'
  const failed: TurnRecord = {
    ...turn,
    error: { code, message: services.redactor.text(messageOf(error)).slice(0, 4_000) },
  }
  await recordEnd(at, failed, await gatherNothing(at), services)
}

async function gatherNothing(at: TurnPlace): Promise<Gathered> {
  const [head, checkpoint] = await tips(at)
  return { collected: NOTHING, artifacts: [], result: { kind: 'none' }, warnings: [], head, checkpoint }
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
  // The agent's processes have ended, so both see the same state.
  const [report, collected] = await Promise.all([
    checkpointSandbox(at, ref, session, turn, services).catch((error: unknown) => {
      warnings.push(`no checkpoint could be made: ${services.redactor.text(messageOf(error))}`)
      return null
    }),
    readIo(at, ref, services).catch((error: unknown): Collected => {
      return { ...NOTHING, warnings: [`HANGAR_IO could not be read: ${messageOf(error)}`] }
    }),
  ])
  const artifacts = await services.artifacts.store(at.repo, at.name, at.number, collected.artifacts)
  const result = await services.results.check(turn.outputSchema, collected.resultText)
  const [head, checkpoint] = await tips(at)
  return {
    collected,
    artifacts,
    result,
    head,
    checkpoint,
    warnings: [...warnings, ...(report?.warnings ?? []), ...collected.warnings],
  }
}

async function readIo(at: TurnAt, ref: SandboxRef, services: TurnServices): Promise<Collected> {
  const { provider } = at.environment
  const known = knownArtifacts((await services.records.turns(at.name)).filter((turn) => turn.turn !== at.number))
  const { limits } = services
  // Artifacts of earlier turns stay in place, so the tar may hold more than one turn's worth; what is over is an error, not a hang.
  const maxBytes = 16 * (limits.maxArtifactsBytes + limits.maxResultBytes) + limits.maxAttachmentBytes
  const tar: Readable = await provider.getTar(ref, sessionIoDirectory(provider.paths(ref).home, at.name), { maxBytes })
  try {
    return await collectIo(tar, known, limits)
  } finally {
    tar.destroy()
  }
}

async function recordEnd(at: TurnPlace, turn: TurnRecord, gathered: Gathered, services: TurnServices): Promise<void> {
  const events = await services.events.ofTurn(at.name, at.number)
  await services.records.move(at.name, async ({ session, turn: newest }) => {
    const current = await newest(at.number)
    if (current.state === 'ended') return null
    const waiting = session.turns > at.number
    // A stop that came while the turn was collected counts: what it asked is not carried on.
    const ended = endedTurn({ ...turn, stopReason: current.stopReason }, gathered, lastMessage(events), services)
    const state = { kind: 'state', state: 'ended', text: endSentence(ended) } as const
    const last = await services.events.place(at.name, at.number, state)
    if (gathered.head !== null) await noteTurn(at, gathered.head, ended, services)
    return {
      message: `turn ${at.number} ended: ${ended.outcome ?? ''}`,
      session: {
        ...session,
        state: session.state === 'closed' ? 'closed' : waiting ? 'running' : 'idle',
        needsInput: ended.outcome === 'needs_input' ? ended.question : null,
        questionOptions: ended.outcome === 'needs_input' ? ended.questionOptions : [],
      },
      turns: [ended],
      files: new Map([
        ...ioFiles(at.number, ended),
        [`turns/${at.number}/events.jsonl.gz`, eventsFile([...events, last])],
      ]),
      parents: gathered.checkpoint === null ? [] : [gathered.checkpoint],
      index: [putEvent(at.name, last), { section: 'cursors', key: at.name, value: null }],
    }
  })
  services.events.wake(at.name)
}

function endedTurn(turn: TurnRecord, gathered: Gathered, message: string | null, services: TurnServices): TurnRecord {
  const { collected, result } = gathered
  const clean = (text: string | null) => (text === null ? null : services.redactor.text(text))
  const outcome = outcomeOf(turn, collected)
  const failure =
    outcome === 'failed'
      ? (turn.error ?? {
          code: 'agent_failed',
          message: `the agent ended with exit status ${turn.exitCode ?? 'unknown'}`,
        })
      : turn.error
  return {
    ...turn,
    state: 'ended',
    outcome,
    error: failure,
    summary: clean(collected.summary ?? message),
    result: result.kind === 'valid' ? redactJson(result.value, services) : null,
    resultError: result.kind === 'invalid' && turn.stopReason === null ? clean(result.reason) : null,
    artifacts: gathered.artifacts,
    warnings: [...turn.warnings, ...gathered.warnings].map((warning) => services.redactor.text(warning)),
    question: outcome === 'needs_input' ? clean(collected.question) : null,
    questionOptions:
      outcome === 'needs_input' ? collected.questionOptions.map((option) => services.redactor.text(option)) : [],
    headCommit: gathered.head,
    checkpoint: gathered.checkpoint,
    endedAt: services.clock.now(),
  }
}

function outcomeOf(turn: TurnRecord, collected: Collected): TurnOutcome {
  if (turn.stopReason !== null) return turn.stopReason
  if (turn.error !== null) return 'failed'
  if (collected.question !== null) return 'needs_input'
  return turn.exitCode === 0 ? 'exited' : 'failed'
}

function redactJson(value: unknown, services: TurnServices): unknown {
  const text = JSON.stringify(value)
  const clean = services.redactor.text(text)
  return clean === text ? value : (JSON.parse(clean) as unknown)
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
