/** A running turn followed to its end: output and progress become events as they come, limits are kept, the end is recorded. */
import { setTimeout as sleep } from 'node:timers/promises'
import { errors, messageOf } from '../domain/errors.ts'
import { IO, sessionIoDirectory } from '../domain/hangar-io.ts'
import type { RunEventBody } from '../domain/run-event.ts'
import type { SandboxRef, TurnProcess } from '../domain/sandbox.ts'
import { type LineCursor, type OutputLine, START_OF_LINES, splitLines } from './harnesses/lines.ts'
import { promptOf } from './prompt.ts'
import { putEvent } from './session-events.ts'
import { deadlineOf, runKeys, sandboxRef, type TurnAt, type TurnServices } from './turn-context.ts'
import { startAgent } from './turn-prepare.ts'

const READ_BYTES = 262_144
const LINE_BYTES = 65_536
const WAIT_MS = 400

/** How far a turn's streams were taken in; kept in the index together with the events they gave. */
interface StreamCursors {
  readonly turn: number
  /** The run whose output `out` and `err` are; the rest goes on through all runs of the turn. */
  readonly run: string
  readonly out: LineCursor
  readonly err: LineCursor
  readonly progress: LineCursor
  /** Events that were kept, their bytes as JSON, and the count of those over a cap. */
  readonly kept: number
  readonly keptBytes: number
  readonly dropped: number
}

/** Starts the agent where it is not running yet, follows it, and moves the turn to `collecting`. */
export async function followTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const { session } = await services.records.get(at.name)
  const ref = sandboxRef(session)
  if (ref === null) throw errors.sandboxLost('the session has no sandbox any more')
  const turn = await services.records.turn(at.name, at.number)
  const key = runKeys(at.number).main
  const deadline = deadlineOf(turn)
  const run = { key, prompt: promptOf(turn), timeoutMs: deadline.ms }
  if (turn.stopReason === null) await startAgent(at, { session, turn, run }, services)
  const endsAt = (turn.startedAt ?? services.clock.now()) + deadline.ms
  const atDeadline = () => recordStop(at, deadline.reason, services)
  const end = await followRun(at, { ref, key, endsAt, atDeadline }, services)
  const shown = await services.events.place(at.name, at.number, {
    kind: 'state',
    state: 'collecting',
    text: end.state === 'exited' ? `the agent ended with exit status ${end.exitCode}` : `the agent was lost`,
  })
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    const stopReason =
      current.stopReason ?? (end.state === 'exited' && end.timedOut ? deadlineOf(current).reason : null)
    return {
      message: `turn ${at.number} is being collected`,
      session,
      turns: [
        {
          ...current,
          state: 'collecting',
          stopReason,
          exitCode: end.state === 'exited' ? end.exitCode : null,
          error:
            end.state === 'lost'
              ? { code: 'sandbox_lost', message: `the agent's process vanished: ${end.reason}` }
              : null,
        },
      ],
      index: [putEvent(at.name, shown)],
    }
  })
  services.events.wake(at.name)
}

type RunEnd = Extract<TurnProcess, { state: 'exited' | 'lost' }>

/** A run to follow, which ends at `endsAt` at the latest (epoch milliseconds). */
export interface FollowedRun {
  readonly ref: SandboxRef
  readonly key: string
  readonly endsAt: number
  /** Called before the run is stopped at its deadline, so that a restart knows why. */
  atDeadline(): Promise<void>
}

/** Follows a run to its end: its output and the agent's progress become events, cancelling and the deadline stop it. */
export async function followRun(
  at: TurnAt,
  { ref, key, endsAt, atDeadline }: FollowedRun,
  services: TurnServices,
): Promise<RunEnd> {
  const { provider } = at.environment
  let cursors = await savedCursors(at, key, services)
  let stopping: Promise<void> | null = null
  const stop = () => {
    stopping ??= provider.stop(ref, key).catch((error: unknown) => {
      services.log.warn(
        { session: at.name, turn: at.number, error: messageOf(error) },
        'a turn could not be stopped; trying again',
      )
      stopping = null
    })
  }
  for (;;) {
    // The server closes: the agent runs on, and is found again at the next start.
    if (at.signal.aborted && at.signal.reason === 'closing') at.signal.throwIfAborted()
    if (at.signal.aborted) stop()
    else if (services.clock.now() > endsAt) {
      if (stopping === null) await atDeadline()
      stop()
    }
    const output = await provider.read(
      ref,
      key,
      { out: cursors.out.offset, err: cursors.err.offset },
      {
        waitMs: stopping === null ? WAIT_MS : 100,
        maxBytes: READ_BYTES,
        ...(at.signal.aborted ? {} : { signal: at.signal }),
      },
    )
    const ended = isEnd(output.process) && output.out.length < READ_BYTES && output.err.length < READ_BYTES
    const progress =
      (await provider.readFile(ref, progressPath(at, ref), {
        offset: cursors.progress.offset,
        maxBytes: READ_BYTES,
      })) ?? Buffer.alloc(0)
    cursors = await takeEvents(at, cursors, { out: output.out, err: output.err, progress }, ended, services)
    if (ended && isEnd(output.process)) {
      if (cursors.dropped > 0) await tellDropped(at, cursors.dropped, services)
      return output.process
    }
    if (output.process.state === 'unknown') {
      if (stopping !== null || (await services.records.turn(at.name, at.number)).stopReason !== null)
        return { state: 'lost', reason: 'it was stopped before it began' }
      throw errors.sandboxLost('the record of the run is gone from the sandbox')
    }
    if (at.signal.aborted) await sleep(50)
  }
}

function isEnd(process: TurnProcess): process is RunEnd {
  return process.state === 'exited' || process.state === 'lost'
}

function progressPath(at: TurnAt, ref: SandboxRef): string {
  return `${sessionIoDirectory(at.environment.provider.paths(ref).home, at.name)}/${IO.progress}`
}

/** Writes down why a turn is about to be stopped; a reason that is there already stays. */
export async function recordStop(
  at: TurnAt,
  reason: 'timed_out' | 'over_budget',
  services: TurnServices,
): Promise<void> {
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    if (current.stopReason !== null) return null
    return {
      message: `turn ${at.number} is being stopped: ${reason}`,
      session,
      turns: [{ ...current, stopReason: reason }],
    }
  })
}

async function savedCursors(at: TurnAt, run: string, services: TurnServices): Promise<StreamCursors> {
  const saved = (await services.index.cursors.get(at.name)) as StreamCursors | null
  if (saved !== null && saved.turn === at.number)
    return saved.run === run ? saved : { ...saved, run, out: START_OF_LINES, err: START_OF_LINES }
  return {
    turn: at.number,
    run,
    out: START_OF_LINES,
    err: START_OF_LINES,
    progress: START_OF_LINES,
    kept: 0,
    keptBytes: 0,
    dropped: 0,
  }
}

interface Chunks {
  readonly out: Buffer
  readonly err: Buffer
  readonly progress: Buffer
}

/** Turns new bytes into events, which become durable together with the cursors that skip those bytes. */
async function takeEvents(
  at: TurnAt,
  cursors: StreamCursors,
  chunks: Chunks,
  ended: boolean,
  services: TurnServices,
): Promise<StreamCursors> {
  const options = { maxBytes: LINE_BYTES, ended }
  const progress = splitLines(cursors.progress, chunks.progress, options)
  const err = splitLines(cursors.err, chunks.err, options)
  const out = splitLines(cursors.out, chunks.out, options)
  const found = [
    ...progress.lines.flatMap(progressEvent),
    ...err.lines.flatMap((line) => parsed(at, 'err', line)),
    ...out.lines.flatMap((line) => parsed(at, 'out', line)),
  ]
  const bodies: RunEventBody[] = []
  let { kept, keptBytes } = cursors
  for (const body of found) {
    const shown = services.redactEvent(body)
    const bytes = Buffer.byteLength(JSON.stringify(shown))
    if (kept >= services.limits.maxTurnEvents || keptBytes + bytes > services.limits.maxTurnEventBytes) continue
    kept++
    keptBytes += bytes
    bodies.push(shown)
  }
  const next: StreamCursors = {
    turn: at.number,
    run: cursors.run,
    out: out.cursor,
    err: err.cursor,
    progress: progress.cursor,
    kept,
    keptBytes,
    dropped: cursors.dropped + found.length - bodies.length,
  }
  const moved = [out, err, progress].some(
    ({ cursor }, place) => cursor.offset !== [cursors.out, cursors.err, cursors.progress][place]?.offset,
  )
  if (moved)
    await services.events.append(at.name, at.number, bodies, [{ section: 'cursors', key: at.name, value: next }])
  return next
}

async function tellDropped(at: TurnAt, dropped: number, services: TurnServices): Promise<void> {
  const message = `${dropped} further lines of output were left out: a turn keeps ${services.limits.maxTurnEvents} events and ${services.limits.maxTurnEventBytes} bytes of them`
  await services.events.append(at.name, at.number, [{ kind: 'error', scope: 'stream', fatal: false, message }])
}

function parsed(at: TurnAt, stream: 'out' | 'err', line: OutputLine): readonly RunEventBody[] {
  const bodies = at.environment.harness.parse(stream, line.text)
  const { truncated } = line
  return truncated === null ? bodies : bodies.map((body) => (body.kind === 'message' ? { ...body, truncated } : body))
}

/** A line of progress.jsonl; what is no JSON object with a message counts as the message itself. */
function progressEvent(line: OutputLine): RunEventBody[] {
  if (line.text.trim() === '') return []
  try {
    const { message, pct } = JSON.parse(line.text) as { message?: unknown; pct?: unknown }
    if (typeof message !== 'string') return []
    const share = typeof pct === 'number' && pct >= 0 && pct <= 100 ? { pct } : {}
    return [{ kind: 'progress', message, source: 'agent', ...share }]
  } catch {
    return [{ kind: 'progress', message: line.text, source: 'agent' }]
  }
}
