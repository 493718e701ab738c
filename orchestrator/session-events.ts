/** The run events of sessions: one rising sequence a session, durable before it is shown, followed live. */
import { EventEmitter } from 'node:events'
import { gzipSync } from 'node:zlib'
import type { SessionName } from '../domain/names.ts'
import type { Clock } from '../domain/ports.ts'
import {
  addTold,
  NOTHING_TOLD,
  type RunEvent,
  type RunEventBody,
  type ToldUsage,
  type Usage,
  usageOf,
} from '../domain/run-event.ts'
import { type Index, type IndexChange, runEventKey } from '../gateway/state/index.ts'

export interface SessionEvents {
  /** Appends events of a turn, together with further index changes (the cursor they were read with), in one batch. */
  append(name: SessionName, turn: number, bodies: readonly RunEventBody[], also?: readonly IndexChange[]): Promise<void>
  /** Gives an event its place without showing it yet: for one that appears with a record. */
  place(name: SessionName, turn: number, body: RunEventBody): Promise<RunEvent>
  /** Events after `since`, at most `limit`, in order; all of them where `since` is beyond the newest: it is of an earlier session of the name. */
  read(name: SessionName, since: number, limit: number): Promise<RunEvent[]>
  /** The events of one turn that are in the index. */
  ofTurn(name: SessionName, turn: number): Promise<RunEvent[]>
  /** What the turn has told of its usage so far, by the events that came since this was last asked: cheap to ask again and again. */
  usageOf(name: SessionName, turn: number): Promise<Usage | null>
  /** The same without end; ends when the signal aborts, or the session is forgotten. */
  follow(name: SessionName, since: number, signal: AbortSignal): AsyncIterable<RunEvent>
  /** Wakes followers after events were put into the index by another hand. */
  wake(name: SessionName): void
  /** How many follow. */
  listening(): number
  /** The name is free again: who takes it begins to count anew. */
  forget(name: SessionName): void
}

const PAGE = 500
const FORGOTTEN = Symbol('forgotten')

export function createSessionEvents({ index, clock }: { index: Index; clock: Clock }): SessionEvents {
  const wakes = new EventEmitter().setMaxListeners(0)
  const next = new Map<SessionName, Promise<{ seq: number }>>()

  /** How far the events of a session's turn were read for what they told. */
  const told = new Map<SessionName, { readonly turn: number; readonly seq: number; readonly usage: ToldUsage }>()

  // The counter of a session is read once from its newest event; only this process hands numbers out.
  const take = async (name: SessionName, count: number): Promise<number> => {
    let counter = next.get(name)
    if (counter === undefined) {
      counter = newestOf(name).then((seq) => ({ seq }))
      next.set(name, counter)
    }
    const current = await counter
    const first = current.seq + 1
    current.seq += count
    return first
  }
  const newestOf = async (name: SessionName) => {
    const [newest] = await index.runEvents.range({ prefix: `${name}/`, reverse: true, limit: 1 })
    return newest?.[1].seq ?? 0
  }
  const pageAfter = async (name: SessionName, since: number, limit: number) =>
    (await index.runEvents.range({ prefix: `${name}/`, from: runEventKey(name, since + 1), limit })).map(
      ([, event]) => event,
    )

  const ofTurn = async (name: SessionName, turn: number): Promise<RunEvent[]> => {
    const found: RunEvent[] = []
    let from: string | undefined
    for (;;) {
      const page = await index.runEvents.range({
        prefix: `${name}/`,
        reverse: true,
        limit: PAGE,
        ...(from === undefined ? {} : { from }),
      })
      for (const [, event] of page) {
        if (event.turn < turn) return found.reverse()
        if (event.turn === turn) found.push(event)
      }
      const last = page.at(-1)?.[1]
      if (page.length < PAGE || last === undefined || last.seq <= 1) return found.reverse()
      from = runEventKey(name, last.seq - 1)
    }
  }
  const since = async (name: SessionName, seq: number): Promise<RunEvent[]> => {
    const found: RunEvent[] = []
    for (;;) {
      const page = await pageAfter(name, found.at(-1)?.seq ?? seq, PAGE)
      found.push(...page)
      if (page.length < PAGE) return found
    }
  }

  /** Where to read on. */
  const placeOf = async (name: SessionName, since: number) => ((await newestOf(name)) < since ? 0 : since)

  return {
    read: async (name, since, limit) => pageAfter(name, await placeOf(name, since), limit),
    ofTurn,
    usageOf: async (name, turn) => {
      const known = told.get(name)
      const before = known?.turn === turn ? known : null
      const fresh =
        before === null
          ? await ofTurn(name, turn)
          : (await since(name, before.seq)).filter((event) => event.turn === turn)
      const usage = addTold(before?.usage ?? NOTHING_TOLD, fresh)
      told.set(name, { turn, seq: fresh.at(-1)?.seq ?? before?.seq ?? 0, usage })
      return usageOf(usage)
    },
    append: async (name, turn, bodies, also = []) => {
      if (bodies.length === 0 && also.length === 0) return
      const first = bodies.length === 0 ? 0 : await take(name, bodies.length)
      const at = clock.now()
      const events = bodies.map((body, offset): RunEvent => ({ ...body, seq: first + offset, at, turn }))
      await index.batch([...events.map((event) => putEvent(name, event)), ...also])
      if (events.length > 0) wakes.emit(name)
    },
    place: async (name, turn, body) => ({ ...body, seq: await take(name, 1), at: clock.now(), turn }),
    async *follow(name, since, signal) {
      let woken = true
      let isForgotten = false
      let wake = () => {}
      const listener = (what?: unknown) => {
        isForgotten ||= what === FORGOTTEN
        woken = true
        wake()
      }
      wakes.on(name, listener)
      signal.addEventListener('abort', listener)
      try {
        let cursor = await placeOf(name, since)
        while (!signal.aborted && !isForgotten) {
          woken = false
          const events = await pageAfter(name, cursor, PAGE)
          for (const event of events) {
            yield event
            cursor = event.seq
          }
          if (events.length > 0 || woken || signal.aborted) continue
          await new Promise<void>((resolve) => {
            wake = resolve
            if (woken) resolve()
          })
        }
      } finally {
        wakes.off(name, listener)
        signal.removeEventListener('abort', listener)
      }
    },
    listening: () => wakes.eventNames().reduce((sum, name) => sum + wakes.listenerCount(name), 0),
    wake: (name) => {
      wakes.emit(name)
    },
    forget: (name) => {
      next.delete(name)
      told.delete(name)
      wakes.emit(name, FORGOTTEN)
    },
  }
}

/** The index change that shows an event. */
export function putEvent(name: SessionName, event: RunEvent): IndexChange {
  return { section: 'runEvents', key: runEventKey(name, event.seq), value: event }
}

/** `events.jsonl.gz`, as a turn's record keeps it. The same events give the same bytes. */
export function eventsFile(events: readonly RunEvent[]): Buffer {
  return gzipSync(events.map((event) => `${JSON.stringify(event)}\n`).join(''))
}
