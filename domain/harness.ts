/** The port of an agent program: how a run of it is started, what its output says, and what its end means. Interfaces only. */
import type { RunEventBody, Usage } from './run-event.ts'

export const HARNESS_KINDS = ['command', 'claude', 'codex', 'pi', 'antigravity'] as const
export type HarnessKind = (typeof HARNESS_KINDS)[number]

/** The conversation that a run begins or goes on with; ids are the program's own, or ours where it lets us choose. */
export type ConversationStart =
  | { readonly kind: 'new'; readonly id: string }
  | { readonly kind: 'resume'; readonly id: string }
  | { readonly kind: 'fork'; readonly parent: string; readonly id: string }

/** What a harness may know of the run it starts. */
export interface HarnessInput {
  readonly prompt: string
  readonly conversation: ConversationStart
  /** The sandbox's home directory and the checkout in it, as seen from inside. */
  readonly home: string
  readonly repo: string
}

export interface HarnessRun {
  readonly argv: readonly string[]
  readonly env: Readonly<Record<string, string>>
  /** Written to standard input, which is then closed. */
  readonly stdin: Uint8Array
}

/** How the run's process ended. */
export interface RunExit {
  /** null when it was ended by a signal that left no status, or vanished. */
  readonly exitCode: number | null
  /** Whether hangar stopped it. */
  readonly stopped: boolean
}

export interface AskedQuestion {
  readonly text: string
  readonly options: readonly string[]
}

/** What a run came to by all its signs: its last event, its exit status, and whether it was stopped. */
export interface HarnessEnd {
  /** Why it failed, in a sentence; null when it ended well (or was stopped, whose reason is known elsewhere). */
  readonly failure: string | null
  /** Whether it failed because the conversation that it was to go on with is not there any more. */
  readonly conversationLost: boolean
  /** The conversation's id, by which a later run goes on; null when there is none. */
  readonly conversation: string | null
  /** What the conversation has used in all, for programs whose counters go on; else what this run has used. */
  readonly cumulative: Usage
}

/** Reads the output of one run, line by line; what it says is not trusted. */
export interface HarnessParser {
  /** The events of one line; `cut` says that it was longer than `maxLineBytes`. Texts are neither redacted nor clipped. */
  line(stream: 'out' | 'err', text: string, cut: boolean): readonly RunEventBody[]
  /** Small JSON from which another parser goes on after a restart. */
  save(): unknown
  /** The events of a line of the log beside the output; absent where there is none. */
  side?(text: string): readonly RunEventBody[]
  /** What this run has used by what it has said so far. */
  used(): Usage
  /** A question that the program itself put to a person; nobody is there, so the run is to be stopped. */
  question(): AskedQuestion | null
  /** The id of the conversation, once it is known. */
  conversation(): string | null
  /** Called once, after the last line. The events tell what was counted, and the run's usage with scope `turn`. */
  end(exit: RunExit): { readonly end: HarnessEnd; readonly events: readonly RunEventBody[] }
}

export interface ParserStart {
  readonly conversation: ConversationStart
  /** What the conversation had used before this run. */
  readonly before: Usage
  /** What `save` gave, when a run is taken up again; else null. */
  readonly saved: unknown
}

export interface Harness {
  readonly kind: HarnessKind
  /** Whether a conversation can be forked by the program itself; else a summary of the turns is handed to a new one. */
  readonly forks: boolean
  /** Bytes of a line of standard output that are read at most. */
  readonly maxLineBytes: number
  /** Files and directories under the home directory that hold conversations, kept from turn to turn; never credentials. */
  readonly state: readonly string[]
  /** Files under those that are not kept: credentials, caches. */
  readonly notKept: readonly string[]
  /** A log under the home directory that tells more than the output does, by a pattern of its file's name. */
  sideLog?(conversation: string): { readonly directory: string; readonly name: string }
  run(input: HarnessInput): HarnessRun
  parser(start: ParserStart): HarnessParser
}
