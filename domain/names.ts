/** The identifiers of hangar, as branded strings, with the one parser of each. */
import { errors } from './errors.ts'

declare const brand: unique symbol
type Brand<T extends string> = string & { readonly [brand]: T }

/** A session's name: `[a-z0-9][a-z0-9-]{0,62}`; one path component, so that branches of sessions never nest. */
export type SessionName = Brand<'SessionName'>
/** A job's id: `job-` and 10 base32 characters; its session has the same name, its attempts `<id>-<k>`. */
export type JobId = Brand<'JobId'>
/** A repo's slug, `owner/name`. */
export type RepoSlug = Brand<'RepoSlug'>
/** A full SHA-1 object id: 40 lower-case hex digits. */
export type Oid = Brand<'Oid'>
/** A full ref name. Git's refs are bytes: the string holds one byte a character (latin1), so nothing is lost. */
export type RefName = Brand<'RefName'>
/** A path that stays inside the directory it is joined to: relative, `/`-separated, no `.` or `..` or empty part. */
export type SafePath = Brand<'SafePath'>

export const ZERO_OID = '0'.repeat(40) as Oid
/** The empty tree, which git knows in every repository. */
export const EMPTY_TREE = '4b825dc642cb6eb9a060e54bf8d69288fbee4904' as Oid

const SESSION = /^[a-z0-9][a-z0-9-]{0,62}$/
const JOB = /^job-[a-z2-7]{10}$/
const SLUG_PART = /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/

/** Parses the name of a session, of a job too. Throws `invalid_name`. */
export function parseSessionName(text: string): SessionName {
  if (!SESSION.test(text))
    throw errors.invalidName(
      `session name ${JSON.stringify(text.slice(0, 80))}: use 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit`,
    )
  return text as SessionName
}

/** Parses a name that somebody gives to a session: those that begin with `job-` belong to jobs. Throws `invalid_name`. */
export function parseNewSessionName(text: string): SessionName {
  if (text.startsWith('job-'))
    throw errors.invalidName(`session name ${text}: names beginning with job- belong to jobs; choose another name`)
  return parseSessionName(text)
}

/** Parses a job's id. Throws `invalid_name`. */
export function parseJobId(text: string): JobId {
  if (!isJobId(text))
    throw errors.invalidName(
      `job ${JSON.stringify(text.slice(0, 80))}: an id is job- and 10 of a-z and 2-7, as hangar job list shows it`,
    )
  return text
}

/** Whether the text is a job's id. */
export function isJobId(text: string): text is JobId {
  return JOB.test(text)
}

const BASE32 = 'abcdefghijklmnopqrstuvwxyz234567'

/** The id of 10 base32 characters that 7 or more bytes give. */
export function jobIdOf(bytes: Uint8Array): JobId {
  let bits = 0n
  for (const byte of bytes.subarray(0, 7)) bits = (bits << 8n) | BigInt(byte)
  let text = ''
  for (let at = 0; at < 10; at++) text += BASE32[Number((bits >> BigInt(5 * at)) & 31n)]
  return `job-${text}` as JobId
}

/** The job that a session works for, by its name, and which attempt of several it is (null: the only one); null where it works for none. */
export function jobOf(session: SessionName): { readonly id: JobId; readonly attempt: number | null } | null {
  const [, id, attempt] = /^(job-[a-z2-7]{10})(?:-(\d+))?$/.exec(session) ?? []
  if (id === undefined) return null
  return { id: id as JobId, attempt: attempt === undefined ? null : Number(attempt) }
}

/** The session in which the attempts of a job are judged, and the job that it is for. */
export function judgeSession(id: JobId): SessionName {
  return `${id}-judge` as unknown as SessionName
}

/** The job whose attempts are judged in the session; null where that is not what it is for. */
export function judgedJob(session: SessionName): JobId | null {
  return (/^(job-[a-z2-7]{10})-judge$/.exec(session)?.[1] as JobId | undefined) ?? null
}

/** The session of a job's only attempt (`attempt` null), or of one of several. */
export function jobSession(id: JobId, attempt: number | null): SessionName {
  return (attempt === null ? id : `${id}-${attempt}`) as unknown as SessionName
}

/** Parses a slug `owner/name` of letters, digits, `-`, `_` and single inner dots. Throws `invalid_name`. */
export function parseRepoSlug(text: string): RepoSlug {
  if (!isRepoSlug(text))
    throw errors.invalidName(
      `repo ${JSON.stringify(text.slice(0, 120))}: use owner/name of letters, digits, -, _ and single inner dots`,
    )
  return text
}

/** Whether the text is a slug; each part has at most 100 characters, and no part ends in `.git` or `.lock`. */
export function isRepoSlug(text: string): text is RepoSlug {
  const parts = text.split('/')
  return (
    parts.length === 2 &&
    parts.every((part) => part.length <= 100 && SLUG_PART.test(part) && !/\.(git|lock)$/i.test(part))
  )
}

/** Whether the text is a full object id. */
export function isOid(text: string): text is Oid {
  return /^[0-9a-f]{40}$/.test(text)
}

/** Parses a full object id. Throws `invalid_name`. */
export function parseOid(text: string): Oid {
  if (!isOid(text))
    throw errors.invalidName(`${JSON.stringify(text.slice(0, 80))} is not a full commit id (40 hex digits)`)
  return text
}

/**
 * Whether git takes the name as a full ref name (`refs/…`), and hangar as well: git-check-ref-format's rules, at most 300 bytes,
 * and no component that begins with `-`. The text holds bytes as latin1.
 */
export function isRefName(text: string): text is RefName {
  if (
    text.length > 300 ||
    !text.startsWith('refs/') ||
    text.endsWith('.') ||
    text.includes('@{') ||
    text.includes('..')
  )
    return false
  if (/[\x00-\x20\x7f~^:?*[\\]/.test(text)) return false
  return text
    .split('/')
    .every((part) => part !== '' && !part.startsWith('.') && !part.startsWith('-') && !part.endsWith('.lock'))
}

/** What HFS+ ignores in a name. */
const HFS_IGNORED = /[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]/g

/**
 * Whether some file system reads the name as `.git`: in any case, with code points that HFS+ ignores, as NTFS's short name, with the dots and spaces
 * that Windows drops, as a stream of it. Source: git's is_hfs_dotgit and is_ntfs_dotgit.
 */
export function isDotGit(name: string): boolean {
  return /^(?:\.git|git~\d+)[ .]*(?:[:\\].*)?$/is.test(name.replace(HFS_IGNORED, ''))
}

/**
 * Parses a relative path that cannot leave its directory: no absolute path, no empty, `.` or `..` part, no NUL, no backslash, no part
 * that any file system reads as `.git`, at most 1,000 bytes in all and 255 a part. Throws `invalid_name`.
 */
export function safeRelativePath(text: string): SafePath {
  const refuse = (why: string) => errors.invalidName(`path ${JSON.stringify(text.slice(0, 120))}: ${why}`)
  if (/\p{Surrogate}/u.test(text)) throw refuse('it is no valid Unicode')
  if (text === '' || Buffer.byteLength(text) > 1000) throw refuse('use 1 to 1,000 bytes')
  if (text.startsWith('/')) throw refuse('use a relative path')
  if (/[\x00-\x1f\x7f\\]/.test(text)) throw refuse('control characters and backslashes are not taken')
  for (const part of text.split('/')) {
    if (part === '' || part === '.' || part === '..') throw refuse('empty, . and .. parts are not taken')
    if (Buffer.byteLength(part) > 255) throw refuse('a part has more than 255 bytes')
    if (isDotGit(part)) throw refuse('.git is not taken')
  }
  return text as SafePath
}

/** The session's work branch. */
export function workBranch(session: SessionName): RefName {
  return `refs/heads/hangar/${session}` as RefName
}
