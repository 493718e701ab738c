/** Waiting for a turn: its end in words, and the exit status that says how it ended. */
import { callJson } from './client.ts'
import type { Context } from './command.ts'
import { EXIT, type ExitStatus } from './failure.ts'
import { followEvents } from './follow.ts'
import { type Output, printable } from './output.ts'
import { createPatience, patienceMs } from './patience.ts'
import { createTimeline } from './timeline.ts'
import type { WireArtifact } from './wire.ts'

/** How long the server is asked to wait at a time, and how much later than that it counts as away. */
const LONGEST_SECONDS = 50
const GRACE_SECONDS = 30

interface Waited {
  readonly done: boolean
  readonly state: string
  readonly turn: number
  readonly outcome: string | null
  readonly summary: string | null
  readonly result: unknown
  readonly result_error: string | null
  readonly artifacts: readonly WireArtifact[]
  readonly needs_input: string | null
  readonly question_options: readonly string[]
  readonly warnings: readonly string[]
  readonly hint: string
}

export interface WaitOptions {
  /** null: the newest. */
  readonly turn: number | null
  /** null: without end. */
  readonly timeoutSeconds: number | null
  /** Show events as they come. */
  readonly live: boolean
}

/** Asks again until the turn has ended; gives the command's exit status. */
export async function waitForEnd(context: Context, name: string, options: WaitOptions): Promise<ExitStatus> {
  const stop = new AbortController()
  const shown =
    options.live && !context.output.json ? showLive(context, name, options.turn, stop.signal) : Promise.resolve()
  try {
    const waited = await ask(context, name, options)
    // The stream of events ends by itself with the turn; a lost one must not hold us.
    const late = setTimeout(() => stop.abort(), 1_000)
    if (!waited.done) stop.abort()
    await shown
    clearTimeout(late)
    return report(context, waited)
  } finally {
    stop.abort()
  }
}

export interface JobWaitOptions {
  /** null: without end. */
  readonly timeoutSeconds: number | null
  /** Sessions of the job whose events are shown as they come. */
  readonly live: readonly string[]
}

/** The same of a job: until it is at an end, or waits for a person. */
export async function waitForJob(
  context: Context,
  id: string,
  { timeoutSeconds, live }: JobWaitOptions,
): Promise<ExitStatus> {
  const stop = new AbortController()
  const shown = context.output.json
    ? []
    : live.map((session) => showLive(context, session, null, stop.signal, live.length === 1 ? '' : `${session}: `))
  try {
    const waited = await ask(context, id, { turn: null, timeoutSeconds, live: live.length > 0, isJob: true })
    return reportJob(context, id, waited)
  } finally {
    stop.abort()
    await Promise.all(shown)
  }
}

function reportJob(context: Context, id: string, waited: Waited): ExitStatus {
  const { output } = context
  const ended = waited.done && waited.state === 'succeeded'
  if (output.json) output.data(`${JSON.stringify(waited, null, 2)}\n`)
  else {
    const colour = ended ? 'green' : JOB_WAITS.includes(waited.state) ? 'yellow' : 'red'
    if (waited.done) output.say(`job ${id}: ${output.colour(waited.state.replace('_', ' '), colour)}`)
    told(output, waited)
  }
  output.say(printable(waited.hint))
  if (!waited.done) return EXIT.timedOut
  if (JOB_WAITS.includes(waited.state)) return EXIT.needsInput
  return ended ? EXIT.done : EXIT.turnFailed
}

const JOB_WAITS: readonly string[] = ['needs_input', 'awaiting_approval']

async function ask(
  context: Context,
  name: string,
  options: WaitOptions & { readonly isJob?: boolean },
): Promise<Waited> {
  const endsAt = options.timeoutSeconds === null ? Number.POSITIVE_INFINITY : Date.now() + options.timeoutSeconds * 1000
  const patience = createPatience({
    met: options.live,
    limitMs: patienceMs(context.env),
    until: endsAt,
    again: `hangar ${options.isJob === true ? 'job' : 'session'} wait ${name}`,
    say: context.output.say,
  })
  let turn = options.turn
  for (;;) {
    const seconds = Math.min(LONGEST_SECONDS, Math.max(0, (endsAt - Date.now()) / 1000))
    const asked = Date.now()
    try {
      const waited = await callJson<Waited>(context.server(), {
        path: `/api/sessions/${encodeURIComponent(name)}/wait`,
        query: { timeout_seconds: seconds, turn: turn ?? undefined },
        timeoutMs: (seconds + GRACE_SECONDS) * 1000,
      })
      patience.answered()
      if (options.isJob !== true) turn = waited.turn
      if (waited.done || Date.now() >= endsAt) return waited
      // A server that is stopping answers at once; it need not be asked in a tight loop.
      if (Date.now() - asked < 500) await new Promise((resolve) => setTimeout(resolve, 500))
    } catch (error) {
      await patience.failed(error)
    }
  }
}

async function showLive(
  context: Context,
  name: string,
  turn: number | null,
  signal: AbortSignal,
  prefix: string | null = null,
): Promise<void> {
  const options = {
    name,
    since: 0,
    signal,
    // The one that asks for the end speaks of a server that is away, and gives up.
    patience: createPatience({ met: true, limitMs: Number.POSITIVE_INFINITY, again: '', say: () => {} }),
    until: (event: { kind: string; turn: number; [field: string]: unknown }) =>
      prefix === null && event.kind === 'state' && event['state'] === 'ended' && event.turn === (turn ?? event.turn),
  }
  const timeline = createTimeline(context.output)
  await followEvents(context.server(), options, (event) => {
    if (turn !== null && event.turn !== turn) return
    for (const line of timeline.event(event)) context.output.say(`${prefix ?? ''}${line}`)
  }).catch(() => {})
  for (const line of timeline.end()) context.output.say(`${prefix ?? ''}${line}`)
}

function report(context: Context, waited: Waited): ExitStatus {
  const { output } = context
  if (output.json) output.data(`${JSON.stringify(waited, null, 2)}\n`)
  else inWords(output, waited)
  output.say(waited.hint)
  if (!waited.done) return EXIT.timedOut
  if (waited.outcome === 'needs_input') return EXIT.needsInput
  return waited.outcome === 'exited' ? EXIT.done : EXIT.turnFailed
}

function inWords(output: Output, waited: Waited): void {
  if (!waited.done) return
  const colour = waited.outcome === 'exited' ? 'green' : waited.outcome === 'needs_input' ? 'yellow' : 'red'
  output.say(`turn ${waited.turn}: ${output.colour((waited.outcome ?? '').replace('_', ' '), colour)}`)
  told(output, waited)
}

function told(output: Output, waited: Waited): void {
  if (!waited.done) return
  for (const warning of waited.warnings) output.say(`warning: ${printable(warning)}`)
  if (waited.result_error !== null) output.say(`no structured result: ${printable(waited.result_error)}`)
  if (waited.summary !== null) output.data(`${printable(waited.summary)}\n`)
  if (waited.result !== null) output.data(`${JSON.stringify(waited.result, null, 2)}\n`)
  for (const artifact of waited.artifacts) output.say(`artifact: ${artifact.path} (${artifact.size} bytes)`)
  if (waited.needs_input === null) return
  output.data(`${printable(waited.needs_input)}\n`)
  for (const [place, option] of waited.question_options.entries()) output.data(`  ${place + 1}. ${printable(option)}\n`)
}
