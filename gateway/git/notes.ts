import type { Oid, RefName } from '../../domain/names.ts'
import type { Repository } from './repository.ts'

/** Appends one line to the note of a commit. `at` is milliseconds. */
export function appendNote(
  _repo: Repository,
  _note: { ref: RefName; commit: Oid; line: string; at: number },
): Promise<void> {
  throw new Error('not built')
}
/** The note of a commit, or null. */
export function readNote(_repo: Repository, _ref: RefName, _commit: Oid): Promise<string | null> {
  throw new Error('not built')
}
