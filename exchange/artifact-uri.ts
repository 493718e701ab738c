/** The addresses of sessions and artifacts, `hangar://` URIs and REST paths: written in one place, and read by one strict parser. */
import { errors, type HangarError } from '../domain/errors.ts'
import { parseSessionName, type SafePath, type SessionName, safeRelativePath } from '../domain/names.ts'

/** What a `hangar://` URI names. */
export type HangarUri =
  | { readonly kind: 'session'; readonly name: SessionName }
  | { readonly kind: 'artifact'; readonly name: SessionName; readonly turn: number; readonly path: SafePath }

const PREFIX = 'hangar://sessions/'

/** `hangar://sessions/<name>`: a session's state. */
export function sessionUri(name: SessionName): string {
  return `${PREFIX}${name}`
}

/** `hangar://sessions/<name>/artifacts/<turn>/<path>`, each segment of the path percent-encoded. */
export function artifactUri(name: SessionName, turn: number, path: string): string {
  return `${PREFIX}${name}/artifacts/${turn}/${encodePath(path)}`
}

/** The REST path that an artifact is downloaded from. */
export function artifactRestPath(name: string, turn: number, path: string): string {
  return `/api/sessions/${encodeURIComponent(name)}/artifacts/${turn}/${encodePath(path)}`
}

/** The URI in its one canonical spelling. */
export function uriOf(uri: HangarUri): string {
  return uri.kind === 'session' ? sessionUri(uri.name) : artifactUri(uri.name, uri.turn, uri.path)
}

/**
 * Parses a `hangar://` URI. Each segment is decoded exactly once, so a `/` in an artifact's name may come as `%2F` (some clients encode the
 * path as a whole), and a literal `%2F` is written `%252F`. Throws `invalid_name` on a query, a fragment, dot segments, empty segments,
 * backslashes, control characters and broken encoding.
 */
export function parseHangarUri(text: string): HangarUri {
  if (text.length > MAX_LENGTH) throw refuse(text, `it has more than ${MAX_LENGTH} characters`)
  if (!text.startsWith(PREFIX)) throw refuse(text, `it does not begin with ${PREFIX}`)
  if (/[?#]/.test(text)) throw refuse(text, 'it has a query or a fragment')
  const [name = '', folder, turn = '', ...path] = text.slice(PREFIX.length).split('/')
  if (folder === undefined) return { kind: 'session', name: parseSessionName(name) }
  if (folder !== 'artifacts' || path.length === 0)
    throw refuse(text, 'only artifacts/<turn>/<path> follows the session there')
  if (!/^[1-9][0-9]{0,5}$/.test(turn)) throw refuse(text, 'the turn is a number from 1')
  const decoded = path.map((segment) => decode(segment, text)).join('/')
  return { kind: 'artifact', name: parseSessionName(name), turn: Number(turn), path: safeRelativePath(decoded) }
}

/** A path has at most 1,000 bytes, each at most three characters when encoded. */
const MAX_LENGTH = 3_200

function encodePath(path: string): string {
  return path
    .split('/')
    .map((segment) =>
      encodeURIComponent(segment).replace(
        /[!'()*]/g,
        (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
      ),
    )
    .join('/')
}

function decode(segment: string, whole: string): string {
  try {
    return decodeURIComponent(segment)
  } catch {
    throw refuse(whole, 'it is not percent-encoded UTF-8')
  }
}

function refuse(text: string, why: string): HangarError {
  return errors.invalidName(
    `${JSON.stringify(text.slice(0, 200))} is no address of hangar: ${why}; use hangar://sessions/<name> or hangar://sessions/<name>/artifacts/<turn>/<path>`,
  )
}
