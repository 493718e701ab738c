/** A bundle handed in: verified in a quarantine, its one tip taken, nothing kept until the hand-over is recorded. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { errors } from '../domain/errors.ts'
import { EMPTY_TREE, type Oid } from '../domain/names.ts'
import { isAncestor, isReachable, mergeBases } from '../gateway/git/ancestry.ts'
import { inspectBundle, type Unbundled, unbundle } from '../gateway/git/bundle.ts'
import { openQuarantine } from '../gateway/git/quarantine.ts'
import type { Repository } from '../gateway/git/repository.ts'
import { projectTips } from './project-refs.ts'
import { refuseChange } from './tree-check.ts'

export interface BundleItem {
  readonly content: Uint8Array
  readonly baseCommit: Oid
}

/** The commits of a bundle, in quarantine. `keep` moves them into the store, `drop` forgets them; one of both must be called. */
export type ReceivedBundle = Unbundled & { readonly baseCommit: Oid }

/**
 * Takes a bundle's commits. `base_commit` must be reachable from the repo's own heads and tags and an ancestor of the one commit that the bundle
 * names; what the commits change from there is judged.
 * Throws `missing_commits` with the ids that the client must include, and `invalid_context` with git's reason.
 */
export async function receiveBundle(repo: Repository, item: BundleItem, maxBytes: number): Promise<ReceivedBundle> {
  const tips = await projectTips(repo)
  const scratch = await mkdtemp(join(tmpdir(), 'hangar-bundle-'))
  try {
    const file = join(scratch, 'in.bundle')
    await writeFile(file, item.content)
    await refuseMissing(repo, file, item.baseCommit)
    await checkBase(repo, item.baseCommit, tips)
    const received = await unbundle(repo, file, await openQuarantine(repo), { visible: tips, maxBytes })
    try {
      await checkCommits(repo, received, item.baseCommit, tips)
    } catch (error) {
      await received.drop()
      throw error
    }
    return { ...received, baseCommit: item.baseCommit }
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

/** All ids that are missing at once, so that the client need not ask for one after another. */
async function refuseMissing(repo: Repository, file: string, base: Oid): Promise<void> {
  const baseMissing = (await repo.objects.info(base)) === null
  const inspected = await inspectBundle(repo, file).catch((error: unknown) => {
    // Of what is no bundle, at least the base can be told.
    if (baseMissing) return { missing: [] }
    throw error
  })
  const missing = [...new Set([...(baseMissing ? [base] : []), ...inspected.missing])]
  if (missing.length === 0) return
  const what = baseMissing
    ? `base_commit ${base} is not on the remote`
    : `the bundle builds on ${missing.length} commit(s) that the server does not have`
  throw errors.missingCommits(
    `${what}; bundle again from a commit that is there (git bundle create FILE HEAD --not COMMIT), push it first, or use --from-local`,
    { missing },
  )
}

async function checkBase(repo: Repository, base: Oid, tips: readonly Oid[]): Promise<void> {
  const found = await repo.objects.info(base)
  if (found?.type !== 'commit' || !(await isReachable(repo, base, tips)))
    throw errors.invalidContext(
      `base_commit ${base} is not reachable from a branch or tag of the repo; choose the commit that the work was begun on: git merge-base HEAD origin/HEAD`,
    )
}

/** The work must be built on its base (else a patch out would undo what others did), and bring nothing hostile. */
async function checkCommits(repo: Repository, bundle: Unbundled, base: Oid, tips: readonly Oid[]): Promise<void> {
  const { commit, tree, env } = bundle
  if (!(await isAncestor(repo, base, commit, env)))
    throw errors.invalidContext(
      `base_commit ${base} is no ancestor of the bundle's commit ${commit}; give the commit that the work was begun on: git merge-base HEAD origin/HEAD`,
    )
  const from = (await repo.objects.readCommit(base))?.tree ?? EMPTY_TREE
  const others = async () => {
    const shared = await mergeBases(repo, commit, tips, env)
    return Promise.all(shared.map(async (oid) => (await repo.objects.readCommit(oid))?.tree ?? EMPTY_TREE))
  }
  const refused = await refuseChange(repo, { from, to: tree, env, others }, 'bundle')
  if (refused !== null) throw errors.invalidContext(`the bundle is not taken: ${refused}`, { reason: refused })
}
