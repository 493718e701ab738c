/** HANGAR_IO: the directory through which hangar and an agent hand each other files. */
import { jobOf, type SessionName } from './names.ts'

/** Paths under `$HANGAR_IO`. */
export const IO = {
  /** The turn's attachments, in `in/<turn>/<name>`. */
  in: 'in',
  out: 'out',
  result: 'out/result.json',
  question: 'out/QUESTION.md',
  questionOptions: 'out/QUESTION.json',
  progress: 'out/progress.jsonl',
  artifacts: 'out/artifacts',
  summary: 'RESULT.md',
  /** The turn's prompt (`$HANGAR_PROMPT_FILE`) and schema (`$HANGAR_OUTPUT_SCHEMA`), beside `in/` and `out/`. */
  prompt: 'PROMPT.md',
  schema: 'output-schema.json',
} as const

/** At most this many answers to pick from. */
export const MAX_QUESTION_OPTIONS = 5
/** Characters of one answer. */
const MAX_OPTION_CHARACTERS = 80

/** An answer as it is offered: cut, after it was redacted. */
export function cutOption(option: string): string {
  return [...option].slice(0, MAX_OPTION_CHARACTERS).join('')
}

/** A session's HANGAR_IO, under the sandbox's home; attempts of a job have its job's. */
export function ioDirectory(home: string, session: SessionName): string {
  const job = jobOf(session)
  return job === null ? `${home}/.hangar/sessions/${session}` : `${home}/.hangar/jobs/${job.id}`
}

/** Where a turn's attachments lie under `$HANGAR_IO`, with a slash at its end: of a job's first turn, in the directory itself. */
export function attachmentFolder(session: SessionName, turn: number): string {
  return turn === 1 && jobOf(session) !== null ? '' : `${IO.in}/${turn}/`
}

/** Names at the top of `$HANGAR_IO` that hangar needs itself. */
export const RESERVED_NAMES: readonly string[] = ['in', 'out', IO.summary, IO.prompt, IO.schema]

/** Where the harness keeps its conversation (`$HANGAR_CONVERSATION`), under the sandbox's home. */
export function conversationDirectory(home: string): string {
  return `${home}/.hangar/conversation`
}
