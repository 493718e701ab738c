/** What a `pull --checkout` is about to do, kept under a ref until it is done: the next one then knows which files are its own. */
import { type Checkout, gitIn, revParse, sessionRefs, stateTrees } from './checkout.ts'
import { keepSnapshot, type Snapshot } from './snapshot.ts'
import { listTree, type TreeFiles, treeWith } from './tree-files.ts'

const EMPTY_TREE = '4b825dc642cb6eb9a060e54bf8d69288fbee4904'
const IDENTITY = {
  GIT_AUTHOR_NAME: 'hangar',
  GIT_AUTHOR_EMAIL: 'hangar@localhost',
  GIT_COMMITTER_NAME: 'hangar',
  GIT_COMMITTER_EMAIL: 'hangar@localhost',
}

/** A commit of the files that may be replaced; its parents are the state before, whole, and the checkpoint that is wanted. */
export async function beginCheckout(
  checkout: Checkout,
  snapshot: Snapshot,
  { session, from, target }: { readonly session: string; readonly from: string; readonly target: string },
): Promise<void> {
  const commit = await gitIn(checkout, {
    args: ['commit-tree', from, '-p', snapshot.commit, '-p', target, '-m', 'hangar: pull --checkout begins'],
    env: { ...snapshot.env, ...IDENTITY },
  })
  await keepSnapshot(
    checkout,
    { objects: snapshot.objects, commit: commit.toString('latin1').trim() },
    sessionRefs(session).pulling,
  )
}

/**
 * The tree of the files on the disk that a checkout which was cut off has written, or was about to replace. Null when there was none, or
 * when something was changed since.
 */
export async function leftByCheckout(checkout: Checkout, snapshot: Snapshot, session: string): Promise<string | null> {
  const begun = await revParse(checkout, sessionRefs(session).pulling)
  if (begun === null) return null
  const [before, target] = await Promise.all([stateTrees(checkout, `${begun}^1`), stateTrees(checkout, `${begun}^2`)])
  if (before === null || target === null) return null
  if (snapshot.index !== before.index && snapshot.index !== target.index) return null
  const files = async (...trees: string[]): Promise<TreeFiles> =>
    new Map((await Promise.all(trees.map((tree) => listTree(checkout, snapshot.env, tree)))).flatMap((one) => [...one]))
  const [present, replaced, written, kept] = await Promise.all([
    files(snapshot.tracked, snapshot.untracked),
    files(`${begun}^{tree}`),
    files(target.tracked, target.untracked),
    files(before.tracked, before.untracked),
  ])
  const own = new Map<string, string>()
  for (const [path, entry] of present) {
    if (replaced.get(path) === entry || written.get(path) === entry) own.set(path, entry)
    else if (kept.get(path) !== entry) return null
  }
  return treeWith(checkout, snapshot.env, EMPTY_TREE, own)
}
