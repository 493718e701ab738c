/** The project's own branches and tags, and what a person's `ref` means in them. */
import { errors } from '../domain/errors.ts'
import { isOid, type Oid, type RefName } from '../domain/names.ts'
import { isReachable } from '../gateway/git/ancestry.ts'
import type { Repository } from '../gateway/git/repository.ts'
import { placeOf } from '../refs-policy/ref-names.ts'

/** The commits at the tips of the project's own branches and tags; those of its default branch first. */
export async function projectTips(repo: Repository): Promise<Oid[]> {
  const { refs, head } = await repo.refs.snapshot()
  const own = refs.filter((ref) => isProjectRef(ref.name))
  own.sort((a, b) => Number(b.name === head) - Number(a.name === head))
  return own.map((ref) => ref.oid)
}

/** The default branch's commit; null when the repo has no branch at all. */
export async function defaultHead(repo: Repository): Promise<Oid | null> {
  const { refs, head } = await repo.refs.snapshot()
  const own = refs.filter((ref) => ref.name.startsWith('refs/heads/') && isProjectRef(ref.name))
  return (own.find((ref) => ref.name === head) ?? own[0])?.oid ?? null
}

/** The project's own branches by name, as text, the default one first. */
export async function projectBranches(repo: Repository): Promise<string[]> {
  const { refs, head } = await repo.refs.snapshot()
  const own = refs.map((ref) => ref.name).filter((name) => name.startsWith('refs/heads/') && isProjectRef(name))
  own.sort((a, b) => Number(b === head) - Number(a === head))
  return own.map((name) => Buffer.from(name.replace('refs/heads/', ''), 'latin1').toString('utf8'))
}

/** What a `ref` names: a branch, a tag, a full ref name of either, or a commit that is reachable from one. Throws `not_found`. */
export async function resolveProjectRef(repo: Repository, ref: string): Promise<Oid> {
  const bytes = Buffer.from(ref, 'utf8').toString('latin1')
  for (const name of [bytes, `refs/heads/${bytes}`, `refs/tags/${bytes}`] as RefName[]) {
    const oid = isProjectRef(name) ? await repo.refs.read(name) : null
    if (oid !== null) return peel(repo, oid, ref)
  }
  if (
    isOid(ref) &&
    (await repo.objects.info(ref))?.type === 'commit' &&
    (await isReachable(repo, ref, await projectTips(repo)))
  )
    return ref
  throw errors.notFound(
    `ref ${JSON.stringify(ref)} is no branch, tag or commit of this repo; push it first, or hand it over with --from-local`,
  )
}

async function peel(repo: Repository, oid: Oid, ref: string): Promise<Oid> {
  const commit = await repo.objects.info(`${oid}^{commit}`)
  if (commit === null) throw errors.notFound(`ref ${JSON.stringify(ref)} does not point at a commit`)
  return commit.oid
}

function isProjectRef(name: string): boolean {
  const place = placeOf(name)
  return place === 'branch' || place === 'tag'
}
