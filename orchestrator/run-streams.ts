/** What a run writes, taken in as events: its two outputs, the agent's progress, and the log that some programs keep beside. */
import { setTimeout as sleep } from 'node:timers/promises'
import { IO, ioDirectory } from '../domain/hangar-io.ts'
import type { AskedQuestion, HarnessEnd, HarnessParser, ParserStart, RunExit } from '../domain/harness.ts'
import { type RunEventBody, sumUsage, type Usage } from '../domain/run-event.ts'
import type { SandboxRef, TurnCursor } from '../domain/sandbox.ts'
import { priceOf } from './budget.ts'
import {
  createLineReader,
  type LineCursor,
  type LineReader,
  type OutputLine,
  START_OF_LINES,
} from './harnesses/lines.ts'
import type { TurnAt, TurnServices } from './turn-context.ts'

/** Bytes of each stream that are read at once. */
export const READ_BYTES = 262_144
const LINE_BYTES = 65_536
/** A log beside the output is looked for once in so many readings. */
const FIND_EVERY = 5
/** How long a file beside the output is waited for while the run goes on. */
const ASIDE_MS = 1_000

/** How far a turn's streams were taken in; kept in the index together with the events they gave. */
interface StreamCursors {
  readonly turn: number
  /** The run whose output `out`, `err`, `side` and `parser` are; the rest goes on through all runs of the turn. */
  readonly run: string
  readonly out: LineCursor
  readonly err: LineCursor
  readonly side: LineCursor
  readonly parser: unknown
  readonly progress: LineCursor
  /** Events that were kept, their bytes as JSON, and the count of those over a cap. */
  readonly kept: number
  readonly keptBytes: number
  readonly dropped: number
  /** Whether the events of the run's end are there as well. */
  readonly ended: boolean
}

export interface RunStreams {
  /** Whether the run's end was taken in before a restart: its figures are among the turn's events then. */
  readonly endedBefore: boolean
  /** Where to read the outputs from. */
  at(): TurnCursor
  /** Takes in new output and whatever else there is; the events are durable when it resolves. */
  take(output: { readonly out: Buffer; readonly err: Buffer }, ended: boolean): Promise<void>
  /** What the run has used so far, with a price where one is known. */
  used(): Usage
  question(): AskedQuestion | null
  conversation(): string | null
  /** Called when all was taken in: what the run came to. */
  end(exit: RunExit): Promise<HarnessEnd>
}

export interface StreamedRun extends Omit<ParserStart, 'saved'> {
  readonly ref: SandboxRef
  readonly key: string
  /** The model that a usage without one is priced by. */
  readonly model: string | null
}

/** Opens the streams of a run where they were left. */
export async function openStreams(at: TurnAt, run: StreamedRun, services: TurnServices): Promise<RunStreams> {
  const { provider, harness } = at.environment
  const saved = await savedCursors(at, run.key, services)
  const readers = {
    out: createLineReader(saved.out, harness.maxLineBytes),
    err: createLineReader(saved.err, LINE_BYTES),
    side: createLineReader(saved.side, harness.maxLineBytes),
    progress: createLineReader(saved.progress, LINE_BYTES),
  }
  const parser = harness.parser({ conversation: run.conversation, before: run.before, saved: saved.parser })
  let { kept, keptBytes, dropped, ended } = saved
  let model = run.model

  const priced = (body: RunEventBody): RunEventBody => {
    if (body.kind !== 'usage') return body
    model = body.model ?? model
    return { ...body, usage: priceOf(body.usage, model, services.prices) }
  }
  const keep = (found: readonly RunEventBody[]): RunEventBody[] => {
    const bodies: RunEventBody[] = []
    for (const body of found) {
      const shown = services.redactEvent(priced(body))
      const bytes = Buffer.byteLength(JSON.stringify(shown))
      const over = kept >= services.limits.maxTurnEvents || keptBytes + bytes > services.limits.maxTurnEventBytes
      // What the run used in all is told whatever else is left out; single requests are counted without being kept.
      if (over && !(body.kind === 'usage' && body.scope === 'turn')) {
        dropped++
        continue
      }
      kept++
      keptBytes += bytes
      bodies.push(shown)
    }
    return bodies
  }
  const cursors = (): StreamCursors => ({
    turn: at.number,
    run: run.key,
    out: readers.out.cursor(),
    err: readers.err.cursor(),
    side: readers.side.cursor(),
    progress: readers.progress.cursor(),
    parser: parser.save(),
    kept,
    keptBytes,
    dropped,
    ended,
  })
  const write = (bodies: readonly RunEventBody[]) =>
    services.events.append(at.name, at.number, bodies, [{ section: 'cursors', key: at.name, value: cursors() }])
  const findSide = sideLogFinder(at, run, parser)
  const readFrom = async (path: string | null, offset: number): Promise<Buffer> => {
    if (path === null) return NOTHING
    return (await provider.readFile(run.ref, path, { offset, maxBytes: READ_BYTES })) ?? NOTHING
  }
  const moreOf = (reader: LineReader, find: (last: boolean) => Promise<string | null>) => {
    const asked = aside((last) => find(last).then((path) => readFrom(path, reader.position())))
    return async (last: boolean): Promise<Buffer> => {
      const wasAsked = asked.isPending()
      const found = (await asked.answer(last)) ?? NOTHING
      // What was asked for before the end may lack what was written last.
      if (!last || !wasAsked) return found
      return Buffer.concat([found, await readFrom(await find(true), reader.position() + found.length)])
    }
  }
  const moreProgress = moreOf(readers.progress, async () => progressPath(at, run.ref))
  const moreSide = moreOf(readers.side, findSide)

  return {
    endedBefore: saved.ended,
    at: () => ({ out: readers.out.position(), err: readers.err.position() }),
    take: async (output, last) => {
      const [progress, side] = await Promise.all([moreProgress(last), moreSide(last)])
      const before = Object.values(readers).map((reader) => reader.cursor().offset)
      const found = [
        ...readers.progress.push(progress, last).flatMap(progressEvent),
        ...readers.side.push(side, last).flatMap((line) => (line.cut ? [] : (parser.side?.(line.text) ?? []))),
        ...readers.err.push(output.err, last).flatMap((line) => parsed(parser, 'err', line)),
        ...readers.out.push(output.out, last).flatMap((line) => parsed(parser, 'out', line)),
      ]
      const moved = Object.values(readers).some((reader, place) => reader.cursor().offset !== before[place])
      if (moved || found.length > 0) await write(keep(found))
    },
    used: () => priceOf(parser.used(), model, services.prices),
    question: () => parser.question(),
    conversation: () => parser.conversation(),
    end: async (exit) => {
      const { end, events } = parser.end(exit)
      if (ended) return end
      ended = true
      const bodies = keep(events)
      await write(dropped === 0 ? bodies : [...bodies, droppedEvent(dropped, services)])
      return end
    },
  }
}

const NOTHING = Buffer.alloc(0)

/**
 * A question to the sandbox whose answer is not waited for while the run goes on: one that stands still, or whose cluster is away, answers nothing,
 * and the run's limits hold all the same. `answer` gives null when it is not there yet, or could not be had; at the end it waits, and throws.
 */
function aside<T>(ask: (last: boolean) => Promise<T>): {
  isPending(): boolean
  answer(last: boolean): Promise<T | null>
} {
  let pending: Promise<T> | null = null
  return {
    isPending: () => pending !== null,
    answer: async (last) => {
      pending ??= ask(last)
      const late = new AbortController()
      try {
        const found = await (last
          ? pending
          : Promise.race([pending, sleep(ASIDE_MS, LATE, { signal: late.signal }).catch(() => LATE)]))
        if (found === LATE) return null
        pending = null
        return found as T
      } catch (error) {
        pending = null
        if (last) throw error
        return null
      } finally {
        late.abort()
      }
    },
  }
}

const LATE = Symbol('late')

/** What the earlier runs of the turn have used, by their events. */
export function usedBefore(events: readonly RunEventBody[]): Usage {
  return sumUsage(events.flatMap((event) => (event.kind === 'usage' && event.scope === 'turn' ? [event.usage] : [])))
}

async function savedCursors(at: TurnAt, run: string, services: TurnServices): Promise<StreamCursors> {
  const saved = (await services.index.cursors.get(at.name)) as StreamCursors | null
  const start = { run, out: START_OF_LINES, err: START_OF_LINES, side: START_OF_LINES, parser: null, ended: false }
  if (saved !== null && saved.turn === at.number) return saved.run === run ? saved : { ...saved, ...start }
  return { ...start, turn: at.number, progress: START_OF_LINES, kept: 0, keptBytes: 0, dropped: 0 }
}

function progressPath(at: TurnAt, ref: SandboxRef): string {
  return `${ioDirectory(at.environment.provider.paths(ref).home, at.name)}/${IO.progress}`
}

/** Where the log beside the output is, once there is one; null where the program keeps none. */
function sideLogFinder(
  at: TurnAt,
  { ref }: StreamedRun,
  parser: HarnessParser,
): (last: boolean) => Promise<string | null> {
  const { provider, harness } = at.environment
  let path: string | null = null
  let asked = 0
  return async (last) => {
    const id = parser.conversation()
    if (path !== null || id === null || harness.sideLog === undefined) return path
    if (asked++ % FIND_EVERY !== 0 && !last) return null
    const { directory, name } = harness.sideLog(id)
    const { out } = await provider.exec(
      ref,
      ['find', `${provider.paths(ref).home}/${directory}`, '-type', 'f', '-name', name],
      { timeoutMs: 30_000, maxOutputBytes: 65_536 },
    )
    path = out.toString('utf8').split('\n')[0] || null
    return path
  }
}

function parsed(parser: HarnessParser, stream: 'out' | 'err', line: OutputLine): readonly RunEventBody[] {
  const bodies = parser.line(stream, line.text, line.cut)
  // The length before is only known to be more than the cap.
  return line.cut ? bodies.map((body) => ({ ...body, truncated: body.truncated ?? line.text.length + 1 })) : bodies
}

function droppedEvent(dropped: number, services: TurnServices): RunEventBody {
  const message = `${dropped} further lines of output were left out: a turn keeps ${services.limits.maxTurnEvents} events and ${services.limits.maxTurnEventBytes} bytes of them`
  return { kind: 'error', scope: 'stream', fatal: false, message }
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
