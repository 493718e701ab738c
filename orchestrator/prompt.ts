/** What an agent is told: the message, what came with it, and how to hand things back. */
import { attachmentFolder, IO } from '../domain/hangar-io.ts'
import type { SessionName } from '../domain/names.ts'
import type { TurnRecord } from '../domain/session.ts'
import { schemaText } from '../exchange/io-prepare.ts'

/** The prompt of a turn, in Markdown. */
export function promptOf(turn: TurnRecord, session: SessionName): string {
  return [
    turn.message.trim(),
    section('Attached', attached(turn, session)),
    section('Handing things back', HANDING_BACK),
    turn.outputSchema === null ? '' : section('Structured result', resultText(turn.outputSchema)),
  ]
    .filter((part) => part !== '')
    .join('\n\n')
    .concat('\n')
}

const MAX_HANDED_CHARACTERS = 40_000
const MAX_PART_CHARACTERS = 4_000

/** The prompt of a turn whose agent does not know what was said before: the turns before it in short, the newest whole, then its own. */
export function handOffPromptOf(turn: TurnRecord, turnsBefore: readonly TurnRecord[], session: SessionName): string {
  const parts: string[] = []
  let left = MAX_HANDED_CHARACTERS
  for (const before of [...turnsBefore].reverse()) {
    const part = [
      `### Turn ${before.turn}`,
      before.message.trim().slice(0, MAX_PART_CHARACTERS),
      `It ended: ${before.outcome ?? before.state}.`,
      before.summary === null ? '' : before.summary.slice(0, MAX_PART_CHARACTERS),
      before.question === null ? '' : `You asked: ${before.question.slice(0, MAX_PART_CHARACTERS)}`,
    ]
      .filter((line) => line !== '')
      .join('\n\n')
    if (part.length > left) break
    left -= part.length
    parts.unshift(part)
  }
  const before = `You go on with work that another conversation began; the working tree is as it was left. What was said and done so far:

${parts.join('\n\n')}`
  return `${section('So far', before)}\n\n${section('Now', promptOf(turn, session))}`
}

/** The prompt of a repair: the same conversation, only the result. */
export function repairPromptOf(turn: TurnRecord, reason: string): string {
  return `Your work is done and kept, but the structured result that was asked for is missing or wrong:

${reason}

Hand back a result that fits the JSON Schema below (also in $HANGAR_OUTPUT_SCHEMA), with hangar-agent result '<json>' (or - for stdin, @file). Change nothing
else, and end. There is no further attempt.

\`\`\`json
${JSON.stringify(turn.outputSchema, null, 2)}
\`\`\`
`
}

const HANDING_BACK = `You work in a checkout of the repository. Commit what is finished; what you leave uncommitted is kept as well. Push only to the
branch in $HANGAR_BRANCH, or not at all: hangar collects your commits and your uncommitted changes when you end.

The command hangar-agent hands everything else back:
- hangar-agent progress [--pct N] "running the tests"      tells the people who wait what you are doing
- hangar-agent artifact PATH [NAME]                        hands back a file or directory
- hangar-agent done "summary"                              says what you did, for the people who asked
- hangar-agent ask "Keep the old column names?"            asks for a decision; then end your turn and wait for the answer
- hangar-agent question --option "Keep them" --option "Rename them" "Keep the old column names?"    the same, with answers to pick from
- hangar-agent result '<json>' (or - for stdin, @file)     hands back a structured result
- hangar-agent checkpoint                                  saves your work so far (done for you at the end)
They write plain files under $HANGAR_IO, which you may write yourself: ${IO.summary}, ${IO.result}, ${IO.question}, ${IO.progress}, ${IO.artifacts}/.`

function attached(turn: TurnRecord, session: SessionName): string {
  const files = turn.attachments.map((name) => `- $HANGAR_IO/${attachmentFolder(session, turn.turn)}${name}`)
  const urls = turn.urls.map((url) => `- ${url}`)
  return [...files, ...urls].join('\n')
}

function resultText(schema: unknown): string {
  return `Before you end, hand back a result that fits this JSON Schema (also in $HANGAR_OUTPUT_SCHEMA) with hangar-agent result:

\`\`\`json
${schemaText(schema)}
\`\`\``
}

function section(title: string, text: string): string {
  return text === '' ? '' : `## ${title}\n\n${text}`
}
