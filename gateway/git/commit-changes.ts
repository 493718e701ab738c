/** What commits change, entry by entry, as `git log --raw` tells it while it runs. */
import { errors } from '../../domain/errors.ts'
import { type Oid, ZERO_OID } from '../../domain/names.ts'
import { gitLines, revisions } from './lines.ts'

export interface CommitChange {
  readonly commit: Oid
  /** Six octal digits; `000000`: deleted. */
  readonly mode: string
  /** ZERO_OID: deleted. */
  readonly oid: Oid
  /** As it was in the (first) parent; ZERO_OID: it was not there. */
  readonly old: Oid
  /** Bytes as latin1. */
  readonly path: string
}

/**
 * Gives each change of the commits from `from` to `not`, newest commit first; of a merge only what is like in none of its parents.
 * `take` ends it by answering false. Throws `git_failed`.
 */
export async function commitChanges(
  run: {
    readonly gitDir: string
    readonly env: Readonly<Record<string, string>>
    readonly from: Iterable<Oid>
    readonly not: Iterable<Oid>
    /** Only changes that bring or remove one of these objects. */
    readonly objects?: readonly Oid[]
    readonly signal: AbortSignal
  },
  take: (change: CommitChange) => boolean,
): Promise<void> {
  let commit = '' as Oid
  let entry: Pick<CommitChange, 'mode' | 'oid' | 'old'> | null = null
  const { exitCode, stderr } = await gitLines(
    {
      gitDir: run.gitDir,
      env: run.env,
      args: [
        'log',
        '-z',
        '--raw',
        '-r',
        '-c',
        '--root',
        '--no-renames',
        '--no-abbrev',
        '--no-show-signature',
        '--format=commit %H',
        ...(run.objects ?? []).map((oid) => `--find-object=${oid}`),
        '--stdin',
      ],
      input: revisions(run.from, run.not),
      separator: '\0',
      signal: run.signal,
    },
    (field) => {
      if (entry !== null) {
        const change = { ...entry, commit, path: field }
        entry = null
        return take(change)
      }
      const text = field.replace(/^\n/, '')
      if (text.startsWith('commit ')) commit = text.slice(7, 47) as Oid
      else if (text.startsWith(':')) entry = entryOf(text)
      return true
    },
  )
  if (exitCode !== 0 && exitCode !== null)
    throw errors.gitFailed(`git log ended with ${exitCode}`, { reason: stderr.trim() })
}

/** `:old new old-oid new-oid S`; a merge has a colon, an old mode and an old oid for each parent. */
function entryOf(text: string): Pick<CommitChange, 'mode' | 'oid' | 'old'> {
  const parents = /^:+/.exec(text)?.[0].length ?? 1
  const fields = text.slice(parents).split(' ')
  return {
    mode: fields[parents] ?? '000000',
    old: (fields[parents + 1] ?? ZERO_OID) as Oid,
    oid: (fields[2 * parents + 1] ?? ZERO_OID) as Oid,
  }
}
