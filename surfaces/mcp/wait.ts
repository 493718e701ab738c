/** Progress while a client waits for a turn: its states, the agent's own progress, else the latest line of its output. */
import type { SessionName } from '../../domain/names.ts'
import type { RunEvent } from '../../domain/run-event.ts'
import type { TurnRecord } from '../../domain/session.ts'
import type { Services } from '../operations/operation.ts'
import type { McpCall } from './features.ts'

export interface Waited {
  readonly name: SessionName
  readonly turn: number
}

export interface ProgressOptions {
  /** Something is said at least this often. */
  readonly beatMs: number
  /** Lines of output are told at most this often, the latest of them. */
  readonly lineMs: number
  /** A client that is not told of progress is answered within this, before it loses patience. */
  readonly silentMs: number
}

export const PROGRESS: ProgressOptions = { beatMs: 9_000, lineMs: 1_000, silentMs: 50_000 }

/** Events looked back through for what the turn is at. */
const LOOK_BACK = 100
const MAX_LINE = 200

/** Does the waiting, and tells of progress until it is over. */
export async function tellingProgress<T>(
  services: Services,
  call: McpCall,
  waited: Waited,
  options: ProgressOptions,
  wait: () => Promise<T>,
): Promise<T> {
  const over = new AbortController()
  const stop = () => over.abort()
  call.signal.addEventListener('abort', stop)
  if (call.signal.aborted) stop()
  // Progress is a courtesy: when it fails the wait goes on.
  const telling = tell(services, call, waited, options, over.signal).catch(() => {})
  try {
    return await wait()
  } finally {
    stop()
    call.signal.removeEventListener('abort', stop)
    await telling
  }
}

async function tell(
  services: Services,
  call: McpCall,
  { name, turn }: Waited,
  options: ProgressOptions,
  over: AbortSignal,
): Promise<void> {
  const { records, events, index, clock, tokens } = services
  const newest = await index.runEvents.range({ prefix: `${name}/`, reverse: true, limit: LOOK_BACK })
  let record = await records.turn(name, turn)
  let agentTells = false
  let latest = `turn ${turn} is ${record.state}`
  let count = 0
  const say = async (message: string) => {
    await call.flowing()
    if (over.aborted || !tokens.isLive(call.caller)) return
    latest = message
    count += 1
    beat.refresh()
    const { progressToken } = call
    if (progressToken === null) return
    await call.notify({ method: 'notifications/progress', params: { progressToken, progress: count, message } })
  }
  const beat = setInterval(() => {
    void (async () => {
      record = await records.turn(name, turn)
      const now = latest
      await say(`still ${record.state}, ${elapsed(record, clock.now())}: ${now}`)
      latest = now
    })().catch(() => {})
  }, options.beatMs)
  let line: string | null = null
  const lines = setInterval(() => {
    if (line === null || agentTells) return
    const message = line
    line = null
    void say(message).catch(() => {})
  }, options.lineMs)
  const take = async (event: RunEvent) => {
    if (event.turn !== turn) return
    if (event.kind === 'state') await say(oneLine(event.text))
    if (event.kind === 'progress') {
      agentTells ||= event.source === 'agent'
      await say(progressText(event))
    }
    if (event.kind === 'message' && event.role !== 'user') line = oneLine(event.text) || line
  }
  try {
    for (const event of lastOfEach(newest.map(([, event]) => event).filter((event) => event.turn === turn)))
      await take(event)
    for await (const event of events.follow(name, newest[0]?.[1].seq ?? 0, over)) {
      if (over.aborted) break
      await take(event)
    }
  } finally {
    clearInterval(beat)
    clearInterval(lines)
  }
}

/** Of what came before the wait, the newest state, progress and line, in order; `events` are the newest first. */
function lastOfEach(events: readonly RunEvent[]): RunEvent[] {
  return (['state', 'progress', 'message'] as const)
    .map((kind) => events.find((event) => event.kind === kind))
    .filter((event) => event !== undefined)
    .sort((a, b) => a.seq - b.seq)
}

function progressText(event: Extract<RunEvent, { kind: 'progress' }>): string {
  return event.pct === undefined ? oneLine(event.message) : `${oneLine(event.message)} (${event.pct}%)`
}

function oneLine(text: string): string {
  const last = text.split('\n').findLast((part) => part.trim() !== '') ?? ''
  return last.trim().slice(0, MAX_LINE)
}

function elapsed(turn: TurnRecord, now: number): string {
  const seconds = Math.max(0, Math.round((now - (turn.startedAt ?? turn.createdAt)) / 1000))
  return seconds < 60 ? `${seconds}s` : `${Math.floor(seconds / 60)}m${seconds % 60}s`
}
