/** Where each thing lives among a repository's refs: MODEL's table in code. */
import { type JobId, type RefName, type SessionName, workBranch } from '../domain/names.ts'

export type SessionRefKind = 'log' | 'checkpoint' | 'context' | 'sealed'

/** One of a session's own refs under `refs/hangar/sessions/`. */
export function sessionRef(session: SessionName, kind: SessionRefKind): RefName {
  return `refs/hangar/sessions/${session}/${kind}` as RefName
}

/** A job's record. */
export function jobRef(id: JobId): RefName {
  return `refs/hangar/jobs/${id}` as RefName
}

/** The two refs that a session's sandbox moves. */
export function sandboxRefs(session: SessionName): readonly RefName[] {
  return [workBranch(session), sessionRef(session, 'checkpoint')]
}

/** What was last seen upstream of one of the project's own branches, or for a session's branch what was delivered last. */
export function upstreamRef(branch: RefName): RefName {
  return branch.replace(/^refs\/heads\//, 'refs/upstream/heads/') as RefName
}

/** What a delivery is about to push, while nobody knows whether it arrived. */
export function deliveringRef(branch: RefName): RefName {
  return branch.replace(/^refs\/heads\//, 'refs/upstream/delivering/') as RefName
}

/** What a ref is, by its name alone. */
export type RefPlace =
  /** The project's own branches, tags and notes. */
  | 'branch'
  | 'tag'
  | 'note'
  /** `refs/heads/hangar` and all below. */
  | 'session_branch'
  /** `refs/hangar/incoming/<name>`, one component. */
  | 'incoming'
  /** `refs/hangar/sessions/<session>/sealed` */
  | 'sealed'
  /** Hangar's other records: the rest of `refs/hangar/`, and `refs/notes/hangar`. */
  | 'record'
  /** `refs/upstream/`: what the mirror fetched. */
  | 'upstream'
  | 'other'

/** The place of a full ref name. Names are compared by segment: `refs/hangarx/a` is not under `refs/hangar`. */
export function placeOf(ref: string): RefPlace {
  if (isAtOrUnder(ref, 'refs/heads/hangar')) return 'session_branch'
  if (ref.startsWith('refs/heads/')) return 'branch'
  if (ref.startsWith('refs/tags/')) return 'tag'
  if (isAtOrUnder(ref, 'refs/hangar')) return hangarPlace(ref)
  if (isAtOrUnder(ref, 'refs/notes/hangar')) return 'record'
  if (ref.startsWith('refs/notes/')) return 'note'
  if (isAtOrUnder(ref, 'refs/upstream')) return 'upstream'
  return 'other'
}

function hangarPlace(ref: string): RefPlace {
  if (isAtOrUnder(ref, 'refs/hangar/incoming')) return 'incoming'
  return /^refs\/hangar\/sessions\/[^/]+\/sealed(?:\/|$)/.test(ref) ? 'sealed' : 'record'
}

/** Whether some caller may move the ref by a push at all; hangar's own records, and its notes on upstreams, move otherwise. */
export function isPushable(ref: string): boolean {
  const place = placeOf(ref)
  return !['record', 'sealed', 'upstream'].includes(place) || /^refs\/hangar\/sessions\/[^/]+\/checkpoint$/.test(ref)
}

/** Whether the ref is `refs/hangar/incoming/<name>` with one name after it. */
export function isIncomingRef(ref: string): boolean {
  return /^refs\/hangar\/incoming\/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$/.test(ref)
}

function isAtOrUnder(ref: string, folder: string): boolean {
  return ref.startsWith(folder) && (ref.length === folder.length || ref[folder.length] === '/')
}
