/** Notes on commits, as `git notes` reads them: a line appended to a commit's note by compare-and-swap. */
import { setTimeout as sleep } from 'node:timers/promises'
import { errors } from '../../domain/errors.ts'
import { type Oid, type RefName, ZERO_OID } from '../../domain/names.ts'
import type { Repository } from './repository.ts'

const MAX_ATTEMPTS = 100
/** A flat tree is rewritten whole by each note: past so many notes (22 KiB), new ones go one level down. */
const FLAT_UP_TO = 512

/**
 * Appends one line to the note of a commit, with a signed commit on the notes ref. Other notes stay where they are (git reads any
 * mixture of `<40>` and `<2>/<38>`); a note that lies elsewhere than it should is moved. `at` is milliseconds.
 * Throws `busy` when others moved the ref 100 times in a row.
 */
export async function appendNote(
  repo: Repository,
  note: { readonly ref: RefName; readonly commit: Oid; readonly line: string; readonly at: number },
): Promise<void> {
  for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
    const tip = await repo.refs.read(note.ref)
    const tree = tip === null ? null : ((await repo.objects.readCommit(tip))?.tree ?? null)
    const before = tree === null ? null : await findNote(repo, tree, note.commit)
    const text = before === null ? '' : before.text.replace(/\n*$/, '\n')
    const files = new Map<string, Uint8Array | null>(before === null ? [] : [[before.path, null]])
    files.set(await placeOf(repo, tree, note.commit), Buffer.from(`${text}${note.line}\n`, 'utf8'))
    const oid = await repo.objects.commitFiles({
      base: tree,
      files,
      parents: tip === null ? [] : [tip],
      message: `Note on ${note.commit}`,
      at: note.at,
    })
    const result = await repo.refs.transact([{ ref: note.ref, old: tip ?? ZERO_OID, new: oid }])
    if (result.ok) return
    await sleep(Math.random() * Math.min(50, attempt * 5))
  }
  throw errors.busy(`${note.ref} was moved by others ${MAX_ATTEMPTS} times in a row; try again`)
}

/** The note of a commit, or null. */
export async function readNote(repo: Repository, ref: RefName, commit: Oid): Promise<string | null> {
  const tip = await repo.refs.read(ref)
  const data = tip === null ? null : await repo.objects.readCommit(tip)
  return data === null ? null : ((await findNote(repo, data.tree, commit))?.text ?? null)
}

/** Git fans out by two digits a level, more as notes grow. */
async function findNote(repo: Repository, tree: Oid, commit: Oid): Promise<{ path: string; text: string } | null> {
  let path = ''
  let rest: string = commit
  for (let at = tree; ; ) {
    const entries = await repo.objects.readTree(at)
    const file = entries.find(({ name, mode }) => name === rest && mode !== '40000')
    if (file !== undefined) {
      const blob = await repo.objects.read(file.oid)
      return { path: path + rest, text: blob?.body.toString('utf8') ?? '' }
    }
    const below = entries.find(({ name, mode }) => name === rest.slice(0, 2) && mode === '40000')
    if (below === undefined) return null
    path += `${rest.slice(0, 2)}/`
    rest = rest.slice(2)
    at = below.oid
  }
}

async function placeOf(repo: Repository, tree: Oid | null, commit: Oid): Promise<string> {
  const entries = tree === null ? [] : await repo.objects.readTree(tree)
  const fannedOut = entries.length > FLAT_UP_TO || entries.some(({ mode }) => mode === '40000')
  return fannedOut ? `${commit.slice(0, 2)}/${commit.slice(2)}` : commit
}
