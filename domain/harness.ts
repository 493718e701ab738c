/** The port of an agent program: how a turn of it is started, and what its output says. Interfaces only. */
import type { RunEventBody } from './run-event.ts'

/** What a harness may know of the turn it starts. */
export interface HarnessTurn {
  readonly prompt: string
}

export interface HarnessRun {
  readonly argv: readonly string[]
  readonly stdin: Uint8Array
}

export interface Harness {
  readonly kind: string
  run(turn: HarnessTurn): HarnessRun
  /** The events that one whole line of output says; texts are not yet redacted. */
  parse(stream: 'out' | 'err', line: string): readonly RunEventBody[]
}
