/** Makes an event fit to be shown: secrets masked, texts clipped. */
import type { Redactor } from '../domain/redact.ts'
import type { RunEventBody } from '../domain/run-event.ts'

/** Characters of a tool's input or output, or of a command, that are kept: it is there to be looked at, the work tree has the rest. */
const MAX_TOOL_CHARACTERS = 4_096

/** The event with each of its texts redacted and cut; messages at `maxBytes` characters, what belongs to tools at 4,096. */
export function showable(body: RunEventBody, redactor: Redactor, maxBytes: number): RunEventBody {
  let longest = 0
  const clean = (text: string, max: number) => {
    if (text.length > max) longest = Math.max(longest, text.length)
    // Not all of a huge text is looked through: what is cut off is not shown either.
    return redactor.text(text.slice(0, 2 * max)).slice(0, max)
  }
  const name = (text: string) => clean(text, 1_000)
  const tool = (text: string) => clean(text, Math.min(maxBytes, MAX_TOOL_CHARACTERS))
  const shown = ((): RunEventBody => {
    switch (body.kind) {
      case 'message':
        return { ...body, text: clean(body.text, maxBytes) }
      case 'tool_call':
        return { ...body, id: name(body.id), name: name(body.name), input: tool(body.input) }
      case 'tool_result':
        return {
          ...body,
          id: name(body.id),
          text: tool(body.text),
          ...(body.name === undefined ? {} : { name: name(body.name) }),
        }
      case 'command':
        return { ...body, id: name(body.id), ...(body.command === undefined ? {} : { command: tool(body.command) }) }
      case 'file_change':
        return {
          ...body,
          id: name(body.id),
          changes: body.changes.slice(0, MAX_CHANGES).map((change) => ({ ...change, path: name(change.path) })),
        }
      case 'error':
      case 'progress':
        return { ...body, message: tool(body.message) }
      case 'usage':
        return body.model === undefined ? body : { ...body, model: name(body.model) }
      case 'state':
        return { ...body, text: clean(body.text, maxBytes) }
      default:
        return body satisfies never
    }
  })()
  const parent = body.parent === undefined ? {} : { parent: name(body.parent) }
  const truncated = body.truncated ?? longest
  return { ...shown, ...parent, ...(truncated === 0 ? {} : { truncated }) }
}

/** Files of one change that are named. */
const MAX_CHANGES = 200
