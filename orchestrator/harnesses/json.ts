/** Fields of JSON that a program printed: each is read as what it should be, or as nothing; no shape is trusted. */

export type Json = Readonly<Record<string, unknown>>

/** Longer lines are not read: they were seen up to 425 kB. */
export const MAX_JSON_LINE_BYTES = 16 * 1_048_576

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

/** A count; what is no finite number of zero or more counts as zero. */
export function count(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) && value > 0 ? value : 0
}

/** A tool's input as one text. */
export function shown(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value) ?? '')
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
