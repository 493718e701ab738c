/** What the parsers of JSON lines share: how a line is taken, and how a run's signs together say whether it failed. */
import type { HarnessParser, RunExit } from '../../domain/harness.ts'
import type { RunEventBody } from '../../domain/run-event.ts'
import { type Json, jsonObject } from './json.ts'
import type { Tally } from './tally.ts'

export interface JsonLines {
  /** Whether a line says only what other lines say: it is not even parsed. */
  repeats?(line: string): boolean
  /** Whether a line on standard error is none that could say why the program ended. */
  isNoise?(line: string): boolean
  event(event: Json): readonly RunEventBody[]
}

/** A parser's `line`: lines that cannot be read are counted, those on standard error are messages. */
export function readJsonLines(tally: Tally, { repeats, isNoise, event }: JsonLines): HarnessParser['line'] {
  return (stream, line, cut) => {
    if (line.trim() === '') return []
    if (stream === 'err')
      return [isNoise?.(line) === true ? { kind: 'message', role: 'stderr', text: line } : tally.stderr(line)]
    if (repeats?.(line) === true) return []
    const found = cut ? null : jsonObject(line)
    if (found !== null) return event(found)
    tally.unread()
    return []
  }
}

/** What a program itself said of its run's end. */
export interface ToldEnd {
  readonly program: string
  /** What its last event is about, as in `before its turn was complete`. */
  readonly milestone: string
  readonly reached: boolean
  readonly failure: string | null
}

/** Why a run failed, by all its signs; null when it did not, or was stopped. */
export function failureOf(told: ToldEnd, { exitCode, stopped }: RunExit, tally: Tally): string | null {
  if (stopped) return null
  if (told.failure !== null) return told.failure
  const ended = `${told.program} ended with exit status ${exitCode ?? 'unknown'}`
  if (!told.reached) return tally.ended(`${ended} before ${told.milestone}`)
  return exitCode === 0 ? null : `${ended} after ${told.milestone}`
}

/** A message, unless there is nothing in it. */
export function messageEvent(role: 'assistant' | 'reasoning', text: string): RunEventBody[] {
  return text.trim() === '' ? [] : [{ kind: 'message', role, text }]
}
