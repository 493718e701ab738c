/** A bundle handed in: verified in a quarantine, its one tip taken, nothing kept until the hand-over is recorded. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { errors } from '../domain/errors.ts'
import type { Oid } from '../domain/names.ts'
import { isReachable } from '../gateway/git/ancestry.ts'
import { inspectBundle, type Unbundled, unbundle } from '../gateway/git/bundle.ts'
import { openQuarantine } from '../gateway/git/quarantine.ts'
import type { Repository } from '../gateway/git/repository.ts'
import { projectTips } from './project-refs.ts'

export interface BundleItem {
  readonly content: Uint8Array
  readonly baseCommit: Oid
}

/** The commits of a bundle, in quarantine. `keep` moves them into the store, `drop` forgets them; one of both must be called. */
export type ReceivedBundle = Unbundled & { readonly baseCommit: Oid }

/**
 * Takes a bundle's commits. `base_commit` must be reachable from the repo's own heads and tags, and the bundle must name one commit only.
 * Throws `missing_commits` with the ids that the client must include, and `invalid_context` with git's reason.
 */
export async function receiveBundle(repo: Repository, item: BundleItem, maxBytes: number): Promise<ReceivedBundle> {
  const tips = await projectTips(repo)
  await checkBase(repo, item.baseCommit, tips)
  const scratch = await mkdtemp(join(tmpdir(), 'hangar-bundle-'))
  try {
    const file = join(scratch, 'in.bundle')
    await writeFile(file, item.content)
    const { heads, missing } = await inspectBundle(repo, file)
    if (missing.length > 0)
      throw errors.missingCommits(
        `the bundle builds on ${missing.length} commit(s) that the server does not have; bundle again from a commit that is on the remote`,
        { missing },
      )
    const commits = new Set(heads.map((head) => head.oid))
    const [tip] = commits
    if (tip === undefined || commits.size > 1)
      throw errors.invalidContext(
        `the bundle names ${commits.size} different commits; make it from one: git bundle create F HEAD --not --remotes`,
      )
    const received = await unbundle(repo, file, await openQuarantine(repo), { tip, visible: tips, maxBytes })
    return { ...received, baseCommit: item.baseCommit }
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

async function checkBase(repo: Repository, base: Oid, tips: readonly Oid[]): Promise<void> {
  const found = await repo.objects.info(base)
  if (found === null)
    throw errors.missingCommits(`base_commit ${base} is not on the remote; choose one that is, or push it first`, {
      missing: [base],
    })
  if (found.type !== 'commit' || !(await isReachable(repo, base, tips)))
    throw errors.invalidContext(`base_commit ${base} is not reachable from a branch or tag of the repo`)
}
