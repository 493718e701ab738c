/** A running turn followed to its end: what it writes becomes events as it comes, limits are kept, the end is recorded. */
import { setTimeout as sleep } from 'node:timers/promises'
import { errors, messageOf } from '../domain/errors.ts'
import type { AskedQuestion, HarnessEnd } from '../domain/harness.ts'
import { NO_USAGE, sumUsage } from '../domain/run-event.ts'
import type { SandboxRef, TurnProcess } from '../domain/sandbox.ts'
import type { TurnRecord } from '../domain/session.ts'
import { passedLimit, passedSentence } from './budget.ts'
import { conversationAfter, conversationStart, turnsBefore } from './conversation.ts'
import { handOffPromptOf, promptOf } from './prompt.ts'
import { openStreams, READ_BYTES, type RunStreams, type StreamedRun, usedBefore } from './run-streams.ts'
import { putEvent } from './session-events.ts'
import { deadlineOf, runKeys, sandboxRef, type TurnAt, type TurnServices } from './turn-context.ts'
import { startAgent } from './turn-prepare.ts'
import { recordStop } from './turn-stop.ts'

const WAIT_MS = 400

/**
 * Starts the agent where it is not running yet, follows it, and moves the turn to `collecting`. A conversation that the program refuses to
 * go on with is given up: the turn is run once more in a new one, which is handed a summary.
 */
export async function followTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const { session } = await services.records.get(at.name)
  const ref = sandboxRef(session)
  if (ref === null) throw errors.sandboxLost('the session has no sandbox any more')
  const turn = await services.records.turn(at.name, at.number)
  const start = conversationStart(session, turn)
  const key = turn.handedOff ? runKeys(at.number).handedOff : runKeys(at.number).main
  const deadline = deadlineOf(turn)
  if (turn.stopReason === null) {
    const prompt = turn.handedOff
      ? handOffPromptOf(turn, await turnsBefore(services.records, session, at.number), at.name)
      : promptOf(turn, at.name)
    const run = { key, prompt, timeoutMs: deadline.ms, conversation: start.conversation }
    await startAgent(at, { session, turn, run })
  }
  const endsAt = (turn.startedAt ?? services.clock.now()) + deadline.ms
  const atDeadline = () =>
    recordStop(at, { reason: deadline.reason, detail: deadline.detail(ranMs(turn, services)) }, services)
  const { model } = at.environment
  const followed = await followRun(at, { ref, key, model, ...start, endsAt, atDeadline }, services)
  if (followed.end.conversationLost && !turn.handedOff) return handOff(at, followed.end, services)
  await recordRun(at, ref, followed, services)
}

/** A run's process, what its program says of it, and the question that it asked by a tool of its own. */
export interface FollowedEnd {
  readonly process: RunEnd
  readonly end: HarnessEnd
  readonly question: AskedQuestion | null
}

async function recordRun(
  at: TurnAt,
  ref: SandboxRef,
  { process, end, question }: FollowedEnd,
  services: TurnServices,
): Promise<void> {
  // Of a sandbox that is gone the conversation is kept as it was before the turn, and so are its counters.
  const isKept = process.state === 'exited' || (await at.environment.provider.inspect(ref)).state === 'up'
  const shown = await services.events.place(at.name, at.number, {
    kind: 'state',
    state: 'collecting',
    text:
      process.state === 'exited'
        ? `the agent ended with exit status ${process.exitCode}${process.oom === true ? ', out of memory' : ''}${process.diskFull === true ? ', its disk full' : ''}`
        : `the agent was lost`,
  })
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    const deadline = deadlineOf(current)
    const timedOut = process.state === 'exited' && process.timedOut
    return {
      message: `turn ${at.number} is being collected`,
      session: isKept ? { ...session, conversation: conversationAfter(session, at, end) } : session,
      turns: [
        {
          ...current,
          state: 'collecting',
          stopReason: current.stopReason ?? (timedOut ? deadline.reason : null),
          stopDetail: current.stopDetail ?? (timedOut ? deadline.detail(ranMs(current, services)) : null),
          exitCode: process.state === 'exited' ? process.exitCode : null,
          asked: question,
          warnings: [...current.warnings, ...shortages(process)],
          error: failureOf(process, end, question),
        },
      ],
      index: [putEvent(at.name, shown)],
    }
  })
  services.events.wake(at.name)
}

function ranMs(turn: TurnRecord, { clock }: TurnServices): number {
  return clock.now() - (turn.startedAt ?? clock.now())
}

function failureOf(process: RunEnd, end: HarnessEnd, question: AskedQuestion | null): TurnRecord['error'] {
  if (process.state === 'lost')
    return { code: 'sandbox_lost', message: `the agent's process vanished: ${process.reason}` }
  if (end.failure === null || question !== null) return null
  return { code: 'agent_failed', message: [end.failure, ...shortages(process)].join('; ') }
}

/** Notes, never an outcome: the process that was ended may have been one of many, and the exit status 0. */
const OUT_OF_MEMORY =
  "the sandbox ran out of memory and the kernel ended a process in it; give it more by the environment's limits.memory_mb"
const OUT_OF_DISK =
  "the sandbox's disk was full: what the agent wrote then is missing, its output too; remove files in the sandbox, or give it more room"

function shortages(process: RunEnd): string[] {
  if (process.state !== 'exited') return []
  return [...(process.oom === true ? [OUT_OF_MEMORY] : []), ...(process.diskFull === true ? [OUT_OF_DISK] : [])]
}

/** The turn stays running: its next run begins a new conversation. */
async function handOff(at: TurnAt, end: HarnessEnd, services: TurnServices): Promise<void> {
  const warning = `the agent's conversation could not be continued (${end.failure ?? 'it is not there any more'}); a new one was handed a summary of the turns so far`
  const shown = await services.events.place(at.name, at.number, { kind: 'state', state: 'running', text: warning })
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    return {
      message: `turn ${at.number} goes on in a new conversation`,
      session: { ...session, conversation: null },
      turns: [{ ...current, handedOff: true, warnings: [...current.warnings, services.redactor.text(warning)] }],
      index: [putEvent(at.name, shown)],
    }
  })
  services.events.wake(at.name)
}

type RunEnd = Extract<TurnProcess, { state: 'exited' | 'lost' }>

/** A run to follow, which ends at `endsAt` at the latest (epoch milliseconds). */
export interface FollowedRun extends StreamedRun {
  readonly endsAt: number
  /** Called before the run is stopped at its deadline, so that a restart knows why. */
  atDeadline(): Promise<void>
}

/** Follows a run to its end; cancelling, the deadline, a spent budget and a question of the program's own stop it. */
export async function followRun(at: TurnAt, run: FollowedRun, services: TurnServices): Promise<FollowedEnd> {
  const { provider } = at.environment
  const { ref, key } = run
  // Measured from here on: a clock that is set forward or back ends no run early or late.
  const begun = services.elapsed()
  const lastsMs = run.endsAt - services.clock.now()
  const watch = watchSandbox(at, ref, services)
  const streams = await openStreams(at, run, services)
  const { budget } = await services.records.turn(at.name, at.number)
  const earlier = streams.endedBefore ? NO_USAGE : usedBefore(await services.events.ofTurn(at.name, at.number))
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
  const keepLimits = async () => {
    const passed = passedLimit(budget, sumUsage([earlier, streams.used()]))
    if (passed !== null && stopping === null) {
      // At once: each moment costs. After a crash in between, the figures that were told say the same again.
      stop()
      await recordStop(at, { reason: 'over_budget', detail: passedSentence(passed) }, services)
    }
    if (streams.question() !== null) stop()
    if (at.signal.aborted) stop()
    else if (services.elapsed() - begun > lastsMs) {
      if (stopping === null) await run.atDeadline()
      stop()
    }
  }
  for (;;) {
    // The server closes: the agent runs on, and is found again at the next start.
    if (at.signal.aborted && at.signal.reason === 'closing') at.signal.throwIfAborted()
    await keepLimits()
    const output = await provider.read(ref, key, streams.at(), {
      waitMs: stopping === null ? WAIT_MS : 100,
      maxBytes: READ_BYTES,
      ...(at.signal.aborted ? {} : { signal: at.signal }),
    })
    const { process } = output
    const ended = isEnd(process) && output.out.length < READ_BYTES && output.err.length < READ_BYTES
    await streams.take(output, ended)
    const gone = ended ? null : await watch()
    if (gone !== null) return lostWith(gone, streams)
    if (ended && isEnd(process)) {
      // What it told with its last words counts as well.
      await keepLimits()
      const stopped = stopping !== null || (await services.records.turn(at.name, at.number)).stopReason !== null
      const exitCode = process.state === 'exited' ? process.exitCode : null
      return { process, end: await streams.end({ exitCode, stopped }), question: streams.question() }
    }
    if (process.state === 'unknown') return neverBegan(at, streams.conversation(), stopping !== null, services)
    if (at.signal.aborted) await sleep(50)
  }
}

/**
 * Looks from time to time whether the sandbox is there, whatever its run says: gives why not. One that stands still, or cannot be looked at, ends
 * no turn, for it may go on: it is told of once, and the turn's record keeps a warning.
 */
function watchSandbox(at: TurnAt, ref: SandboxRef, services: TurnServices): () => Promise<string | null> {
  let asked = services.elapsed()
  let told = false
  return async () => {
    if (services.elapsed() - asked < services.limits.sandboxLookMs) return null
    const found = await at.environment.provider
      .inspect(ref)
      .catch((error: unknown) => ({ state: 'unseen', reason: messageOf(error) }) as const)
    asked = services.elapsed()
    if (found.state === 'gone') return found.reason ?? 'it is not there any more'
    if (found.state === 'up') told = false
    else if (!told) {
      told = true
      await tellStill(at, { state: found.state, reason: found.reason }, services)
    }
    return null
  }
}

async function tellStill(
  at: TurnAt,
  { state, reason }: { readonly state: 'paused' | 'unseen'; readonly reason: string | null },
  services: TurnServices,
): Promise<void> {
  const what = state === 'paused' ? 'the sandbox stands still' : 'the sandbox cannot be looked at'
  const message = services.redactor.text(`${what}${reason === null ? '' : `: ${reason}`}; the time of the turn goes on`)
  await services.events.append(at.name, at.number, [{ kind: 'error', scope: 'harness', fatal: false, message }])
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    if (current.warnings.includes(message)) return null
    return {
      message: `turn ${at.number}: ${what}`,
      session,
      turns: [{ ...current, warnings: [...current.warnings, message] }],
    }
  })
}

async function lostWith(reason: string, streams: RunStreams): Promise<FollowedEnd> {
  const end = await streams.end({ exitCode: null, stopped: true })
  return { process: { state: 'lost', reason: `its sandbox is gone: ${reason}` }, end, question: null }
}

async function neverBegan(
  at: TurnAt,
  conversation: string | null,
  stopped: boolean,
  services: TurnServices,
): Promise<FollowedEnd> {
  if (!stopped && (await services.records.turn(at.name, at.number)).stopReason === null)
    throw errors.sandboxLost('the record of the run is gone from the sandbox')
  const { session } = await services.records.get(at.name)
  const cumulative = session.conversation?.cumulative ?? NO_USAGE
  return {
    process: { state: 'lost', reason: 'it was stopped before it began' },
    end: { failure: null, conversationLost: false, conversation, cumulative },
    question: null,
  }
}

function isEnd(process: TurnProcess): process is RunEnd {
  return process.state === 'exited' || process.state === 'lost'
}
