/** After the agent of a job's turn: what it left uncommitted is committed, and a command in its sandbox verifies the work. */
import { messageOf } from '../domain/errors.ts'
import { subjectOf } from '../domain/harmless.ts'
import { jobOf, type Oid } from '../domain/names.ts'
import type { Redactor } from '../domain/redact.ts'
import { createRedactedTail } from '../domain/redacted-tail.ts'
import type { SandboxRef, TurnProcess } from '../domain/sandbox.ts'
import type { SessionRecord, TurnRecord, Verification } from '../domain/session.ts'
import { lastWords, turnEnvironment } from './sandbox-helper.ts'
import { putEvent } from './session-events.ts'
import { deadlineOf, runKeys, type TurnAt, type TurnServices } from './turn-context.ts'

const MAX_SUBJECT = 72
const COMMIT_TIMEOUT_MS = 15 * 60_000
const GRACE_MS = 10_000
const WAIT_MS = 1_000
const READ_BYTES = 262_144
const MAX_OUTPUT_BYTES = 16 * 1_048_576
/** Of what a verification printed, its end is kept. */
const LOG_TAIL_BYTES = 16_384

/** A turn of a job, up to now, and the sandbox that it ran in. */
export interface AgentsWork {
  readonly ref: SandboxRef
  readonly session: SessionRecord
  readonly turn: TurnRecord
}

/**
 * A branch is what a job delivers, so what its agent left uncommitted (ignored files apart) becomes one commit on it. Hooks do not run, and
 * a merge that is not finished stays as it is. Its subject is from the agent's summary. Gives a warning where that could not be done; nothing is lost then, the checkpoint has it.
 */
export async function commitWork(
  at: TurnAt,
  { ref, session, turn }: AgentsWork,
  summary: string | null,
): Promise<string | null> {
  const { provider } = at.environment
  const env = turnEnvironment(at, session, turn, provider.paths(ref))
  const warning = (why: string) =>
    `what was left uncommitted is in the checkpoint and not on the branch, since it could not be committed: ${why}`
  try {
    const options = { env, timeoutMs: COMMIT_TIMEOUT_MS, maxOutputBytes: 65_536, signal: at.signal }
    const subject = subjectOf(summary ?? '', MAX_SUBJECT) ?? `The work of ${jobOf(at.name)?.id}, turn ${at.number}`
    const { exitCode, err } = await provider.exec(ref, ['sh', '-c', COMMIT_SCRIPT, 'sh', subject], options)
    return exitCode === 0 ? null : warning(lastWords(err))
  } catch (error) {
    if (at.signal.aborted) throw error
    return warning(messageOf(error))
  }
}

const COMMIT_SCRIPT = `set -e
g() { git -c core.hooksPath=/dev/null -c commit.gpgSign=false -c core.fsmonitor=false -c advice.addEmbeddedRepo=false "$@"; }
if [ -n "$(g ls-files --unmerged)" ] || [ -e "$(g rev-parse --git-path MERGE_HEAD)" ]; then echo 'a merge is not finished' >&2; exit 3; fi
g add --all .
if g diff --cached --quiet --no-ext-diff; then exit 0; fi
printf '%s\\n\\nHangar-Job: %s\\n' "$1" "$HANGAR_JOB" | g commit --quiet --no-verify --file -
`

/** The command that verifies the work of the session's turns; null: none does. */
export function verifyCommand(at: TurnAt, session: SessionRecord): string | null {
  return jobOf(at.name) === null ? null : (session.verify ?? at.environment.verify)
}

/**
 * Runs the command once for the turn, also over restarts of the server, and records what came of it. It has the turn's own variables without
 * the agent's secrets, and as long as the turn. Gives null when the turn was stopped meanwhile.
 */
export async function verifyWork(
  at: TurnAt,
  work: AgentsWork,
  { command, commit }: { readonly command: string; readonly commit: Oid | null },
  services: TurnServices,
): Promise<Verification | null> {
  const begun = work.turn.verification ?? (await begin(at, { command, commit }, services))
  if (begun === null || begun.passed !== null) return begun
  const { provider } = at.environment
  const key = runKeys(at.number).verify
  await provider.start(work.ref, {
    key,
    argv: ['sh', '-c', command],
    env: turnEnvironment(at, work.session, work.turn, provider.paths(work.ref)),
    stdin: new Uint8Array(),
    timeoutMs: deadlineOf(work.turn).ms,
    graceMs: GRACE_MS,
    maxOutputBytes: MAX_OUTPUT_BYTES,
  })
  const { process, tail } = await follow(at, { ref: work.ref, key, redactor: services.redactor })
  const ended: Verification = {
    ...begun,
    passed: process.state === 'exited' && process.exitCode === 0 && !process.timedOut,
    exitCode: process.state === 'exited' && !process.timedOut ? process.exitCode : null,
    seconds: Math.round((services.clock.now() - begun.startedAt) / 100) / 10,
    logTail: tail + note(process, work.turn),
  }
  return record(at, ended, services)
}

/** Of one that a lost sandbox cut off. */
export function lostVerification(begun: Verification, now: number): Verification {
  return {
    ...begun,
    passed: false,
    seconds: Math.round((now - begun.startedAt) / 1_000),
    logTail: 'the sandbox was lost while the verification ran',
  }
}

async function begin(
  at: TurnAt,
  { command, commit }: { readonly command: string; readonly commit: Oid | null },
  services: TurnServices,
): Promise<Verification | null> {
  const shown = services.redactor.text(command)
  const startedAt = services.clock.now()
  const unknown = { passed: null, exitCode: null, seconds: null, logTail: '' }
  return record(at, { command: shown, commit, startedAt, ...unknown }, services)
}

/** Writes it on the turn; null, and nothing written, when the turn is being stopped. */
async function record(at: TurnAt, verification: Verification, services: TurnServices): Promise<Verification | null> {
  const { passed, exitCode, command } = verification
  const id = `verify-${at.number}`
  const shown = await services.events.place(
    at.name,
    at.number,
    passed === null
      ? { kind: 'command', id, phase: 'start', command }
      : { kind: 'command', id, phase: 'end', exitCode },
  )
  let written = false
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    written = current.stopReason === null && current.state !== 'ended'
    if (!written) return null
    const how = passed === null ? 'is being verified' : passed ? 'passed its verification' : 'failed its verification'
    return {
      message: `turn ${at.number} ${how}`,
      session,
      turns: [{ ...current, verification }],
      index: [putEvent(at.name, shown)],
    }
  })
  services.events.wake(at.name)
  return written ? verification : null
}

type Ended = Extract<TurnProcess, { state: 'exited' | 'lost' | 'unknown' }>

async function follow(
  at: TurnAt,
  { ref, key, redactor }: { readonly ref: SandboxRef; readonly key: string; readonly redactor: Redactor },
): Promise<{ process: Ended; tail: string }> {
  const { provider } = at.environment
  let cursor = { out: 0, err: 0 }
  const tail = createRedactedTail(redactor, LOG_TAIL_BYTES)
  for (;;) {
    // The server closes: the command runs on, and is found again at the next start.
    if (at.signal.aborted && at.signal.reason === 'closing') at.signal.throwIfAborted()
    if (at.signal.aborted) await provider.stop(ref, key)
    const output = await provider.read(ref, key, cursor, { waitMs: WAIT_MS, maxBytes: READ_BYTES })
    cursor = output.next
    tail.push(output)
    const { process } = output
    if (process.state !== 'running' && output.out.length < READ_BYTES && output.err.length < READ_BYTES)
      return { process, tail: tail.end() }
  }
}

function note(process: Ended, turn: TurnRecord): string {
  if (process.state !== 'exited') return '\n(the verification was lost before it ended)'
  if (process.timedOut) return `\n(stopped after ${Math.round(deadlineOf(turn).ms / 60_000)} minute(s))`
  return process.oom === true ? '\n(the sandbox ran out of memory)' : ''
}
