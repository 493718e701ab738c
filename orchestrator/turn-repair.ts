/** The one repair of a turn whose structured result is missing or wrong: the agent is started once more in the same conversation. */
import { errors, messageOf } from '../domain/errors.ts'
import type { SandboxRef } from '../domain/sandbox.ts'
import type { SessionRecord, TurnRecord, TurnRepair } from '../domain/session.ts'
import { REPAIR_SCRIPT } from '../exchange/io-prepare.ts'
import { conversationAfter, conversationStart } from './conversation.ts'
import { repairPromptOf } from './prompt.ts'
import { lastWords, turnEnvironment } from './sandbox-helper.ts'
import { putEvent } from './session-events.ts'
import { deadlineOf, runKeys, sandboxRef, type TurnAt, type TurnServices } from './turn-context.ts'
import { type FollowedEnd, followRun } from './turn-follow.ts'
import { startAgent } from './turn-prepare.ts'
import { recordStop } from './turn-stop.ts'

/** Begins or takes up again the repair that the turn's record names, follows it to its end, and moves the turn back to `collecting`. */
export async function repairTurn(at: TurnAt, services: TurnServices): Promise<void> {
  const { session } = await services.records.get(at.name)
  const turn = await services.records.turn(at.name, at.number)
  const { repair } = turn
  if (repair === null) throw errors.internal(`turn ${at.number} is being repaired, but its record does not say why`)
  const failure = await runRepair(at, { session, turn, repair }, services).catch((error: unknown) => {
    if (at.signal.aborted && at.signal.reason === 'closing') throw error
    // The turn's own run has ended well: what a failed repair costs is the result alone.
    return services.redactor.text(messageOf(error)).slice(0, 1_000)
  })
  const shown = await services.events.place(at.name, at.number, {
    kind: 'state',
    state: 'collecting',
    text: failure === null ? 'the repair has ended' : `the repair came to nothing: ${failure}`,
  })
  await services.records.move(at.name, async ({ session, turn }) => ({
    message: `turn ${at.number} is being collected after its repair`,
    session,
    turns: [{ ...(await turn(at.number)), state: 'collecting', repair: { ...repair, failure } }],
    index: [putEvent(at.name, shown)],
  }))
  services.events.wake(at.name)
}

interface Repairing {
  readonly session: SessionRecord
  readonly turn: TurnRecord
  readonly repair: TurnRepair
}

/** Gives the sentence of what went wrong with the run; null when it ended by itself with exit status 0, or a stop is on record. */
async function runRepair(at: TurnAt, { session, turn, repair }: Repairing, services: TurnServices) {
  const ref = sandboxRef(session)
  if (ref === null || (await at.environment.provider.inspect(ref)).state !== 'up')
    throw errors.sandboxLost('its sandbox is gone')
  const { repair: key } = runKeys(at.number)
  const limit = repairLimit(turn, repair, services)
  const start = conversationStart(session, turn)
  if (turn.stopReason === null) {
    const prompt = repairPromptOf(turn, repair.reason)
    // Taken up again after a restart, the run may have written its result already.
    if (!(await hasBegun(at, ref, key))) await writePrompt(at, { ref, session, turn, prompt })
    const timeoutMs = Math.max(1_000, limit.endsAt - services.clock.now())
    await startAgent(at, { session, turn, run: { key, prompt, timeoutMs, conversation: start.conversation } })
  }
  let late = false
  const atDeadline = async () => {
    late = true
    if (limit.reason === 'over_budget')
      await recordStop(
        at,
        { reason: limit.reason, detail: limit.detail(services.clock.now() - (turn.startedAt ?? repair.startedAt)) },
        services,
      )
  }
  const { model } = at.environment
  const followed = await followRun(at, { ref, key, model, ...start, endsAt: limit.endsAt, atDeadline }, services)
  await services.records.move(at.name, async ({ session, turn }) => ({
    message: `the repair of turn ${at.number} has ended`,
    session: { ...session, conversation: conversationAfter(session, at, followed.end) },
    turns: [await turn(at.number)],
  }))
  if ((await services.records.turn(at.name, at.number)).stopReason !== null) return null
  return whatFailed(followed, late, limit.minutes)
}

function whatFailed({ process, end }: FollowedEnd, late: boolean, minutes: number): string | null {
  if (late || (process.state === 'exited' && process.timedOut))
    return `it had not ended after ${Math.round(minutes * 100) / 100} minute(s)`
  return process.state === 'lost' ? `its process vanished: ${process.reason}` : end.failure
}

interface RepairLimit {
  readonly endsAt: number
  readonly reason: 'repair_timeout' | 'over_budget'
  /** The sentence, by the milliseconds since the turn's start. */
  readonly detail: (ranMs: number) => string
  /** Minutes that the repair has in all. */
  readonly minutes: number
}

/** The repair has its own limit, within what is left of the turn's time; only the turn's budget changes how the turn ends. */
function repairLimit(turn: TurnRecord, repair: TurnRepair, services: TurnServices): RepairLimit {
  const deadline = deadlineOf(turn)
  const turnEnds = (turn.startedAt ?? repair.startedAt) + deadline.ms
  const repairEnds = repair.startedAt + services.limits.repairTimeoutMs
  const endsAt = Math.min(turnEnds, repairEnds)
  return {
    endsAt,
    detail: deadline.detail,
    reason: turnEnds <= repairEnds && deadline.reason === 'over_budget' ? 'over_budget' : 'repair_timeout',
    minutes: Math.max(0, endsAt - repair.startedAt) / 60_000,
  }
}

async function hasBegun(at: TurnAt, ref: SandboxRef, key: string): Promise<boolean> {
  const { process } = await at.environment.provider.read(ref, key, { out: 0, err: 0 }, { waitMs: 0, maxBytes: 1 })
  return process.state !== 'unknown'
}

async function writePrompt(
  at: TurnAt,
  { ref, session, turn, prompt }: { ref: SandboxRef; session: SessionRecord; turn: TurnRecord; prompt: string },
): Promise<void> {
  const { provider } = at.environment
  const { exitCode, err } = await provider.exec(ref, ['sh', '-c', REPAIR_SCRIPT], {
    env: turnEnvironment(at, session, turn, provider.paths(ref)),
    stdin: Buffer.from(prompt),
    timeoutMs: 60_000,
    maxOutputBytes: 65_536,
    signal: at.signal,
  })
  if (exitCode !== 0) throw errors.sandboxFailed(`its prompt could not be written: ${lastWords(err)}`)
}
