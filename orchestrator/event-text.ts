/** Makes an event fit to be shown: secrets masked, texts clipped. */
import type { Redactor } from '../domain/redact.ts'
import type { RunEventBody } from '../domain/run-event.ts'

/** The event with each of its texts redacted and cut at `maxBytes` characters. */
export function showable(body: RunEventBody, redactor: Redactor, maxBytes: number): RunEventBody {
  const clean = (text: string) => redactor.text(text).slice(0, maxBytes)
  switch (body.kind) {
    case 'message': {
      const text = clean(body.text)
      return text.length < body.text.length && body.text.length > maxBytes
        ? { ...body, text, truncated: body.truncated ?? body.text.length }
        : { ...body, text }
    }
    case 'tool_call':
      return { ...body, id: clean(body.id), name: clean(body.name), input: clean(body.input) }
    case 'tool_result':
      return {
        ...body,
        id: clean(body.id),
        text: clean(body.text),
        ...(body.name === undefined ? {} : { name: clean(body.name) }),
      }
    case 'command':
      return {
        ...body,
        id: clean(body.id),
        ...(body.command === undefined ? {} : { command: clean(body.command) }),
      }
    case 'file_change':
      return {
        ...body,
        id: clean(body.id),
        changes: body.changes.map((change) => ({ ...change, path: clean(change.path) })),
      }
    case 'error':
    case 'progress':
      return { ...body, message: clean(body.message) }
    case 'usage':
      return body.model === undefined ? body : { ...body, model: clean(body.model) }
    case 'state':
      return { ...body, text: clean(body.text) }
    default:
      return body satisfies never
  }
}
