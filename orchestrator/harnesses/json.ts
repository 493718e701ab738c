/** Fields of JSON that a program printed: each is read as what it should be, or as nothing; no shape is trusted. */

export type Json = Readonly<Record<string, unknown>>

/** Longer lines are not read: they were seen up to 425 kB. */
export const MAX_JSON_LINE_BYTES = 16 * 1_048_576

const MAX_REMEMBERED = 200
const MAX_REASON = 20_000
const MAX_COUNT = 1e15

const NOTHING: Json = {}

/** A line as a JSON object; null when it is none. */
export function jsonObject(line: string): Json | null {
  try {
    const value: unknown = JSON.parse(line)
    return isObject(value) ? value : null
  } catch {
    return null
  }
}

export function object(value: unknown): Json {
  return isObject(value) ? value : NOTHING
}

export function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : []
}

export function text(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/** A text that a parser remembers, as the id of a call: cut, so that what it saves stays small. */
export function remembered(value: unknown): string {
  return text(value).slice(0, MAX_REMEMBERED)
}

/** The reason that a program gives for its failure, or its question: cut at some more than is shown of it. */
export function reason(said: string): string {
  return said.slice(0, MAX_REASON)
}

/** The id of a conversation, by which a later run goes on; '' when it is none that could be an argument. */
export function conversationId(value: unknown): string {
  const id = text(value)
  return /^[A-Za-z0-9][\w.:-]{0,199}$/.test(id) ? id : ''
}

/** A count; what is no finite number of zero or more counts as zero. Capped, so that a sum of them stays a number. */
export function count(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) && value > 0 ? Math.min(value, MAX_COUNT) : 0
}

/** A tool's input as one text. */
export function shown(value: unknown): string {
  if (typeof value === 'string') return value
  try {
    return JSON.stringify(value) ?? ''
  } catch {
    // It is read without recursion, but not written.
    return '(nested too deeply to be shown)'
  }
}

/** The texts of a list of content blocks, or the text itself. */
export function contentText(value: unknown): string {
  if (typeof value === 'string') return value
  return list(value)
    .map((block) => text(object(block)['text']))
    .filter((part) => part !== '')
    .join('\n')
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
