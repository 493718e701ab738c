/** One fetch: what it asks for is looked at on behalf of its caller, then git's own upload-pack answers. */
import { createHash } from 'node:crypto'
import type { Oid } from '../domain/names.ts'
import { currentOid, lowerBound, type RefEntry, type RefTable } from '../refs-policy/ref-update.ts'
import { spawnGit } from './git/process.ts'
import type { Repository } from './git/repository.ts'
import type { Reachable } from './reachable.ts'
import type { View } from './view.ts'
import type { FetchRequest } from './wire/upload-pack.ts'

export type CheckedFetch =
  | { readonly ok: true; readonly input: Buffer }
  /** The sentence for the client's `ERR` line. */
  | { readonly ok: false; readonly sentence: string }

/**
 * Refuses a fetch of what the caller does not see, whatever the protocol: hiding a ref does not hide its objects from git. Absent and hidden objects
 * get the same sentence. Shallow lines that name hidden commits are left out: with `deepen` git would send their parents. Where the client says that
 * it has what may be hidden, no delta builds on that: which bytes it takes from there would tell whether a guess at it is right.
 */
export async function checkFetch(
  reachable: Reachable,
  repo: Repository,
  view: View,
  request: FetchRequest,
  signal: AbortSignal,
): Promise<CheckedFetch> {
  if (view.seesAll) return { ok: true, input: request.write(new Set()) }
  const wants = new Set(request.wants)
  const named = view.tipsAmong(wants)
  const [hidden] = await beyondTips(request.wants.filter((oid) => !named.has(oid)))
  if (hidden !== undefined) return { ok: false, sentence: `upload-pack: not our ref ${hidden}` }
  const excluded = request.excluded.find((name) => !isSeenRef(view, name))
  if (excluded !== undefined) return { ok: false, sentence: 'upload-pack: git upload-pack: deepen-not is not a ref' }
  const existing: Oid[] = []
  for (const oid of request.shallows) if ((await repo.objects.info(oid)) !== null) existing.push(oid)
  const haves = request.haves()
  const selfContained = view.tipsAmong(haves).size < haves.size
  return { ok: true, input: request.write(await beyondTips(existing), { selfContained }) }

  /** All tips of a person are as many as there are sessions: asked for only where it takes them. */
  async function beyondTips(oids: readonly Oid[]): Promise<ReadonlySet<Oid>> {
    return oids.length === 0 ? NONE : reachable.unreachable(repo, oids, view.tips, signal)
  }
}

/** The same at a glance, of a client that has nothing: what can be told without git, and without waiting. null: it takes a longer look. */
export function checkAtOnce(view: View, request: FetchRequest): CheckedFetch | null {
  if (!request.fromNothing) return null
  const wants = new Set(request.wants)
  const seen = view.seesAll || (request.shallows.length === 0 && view.tipsAmong(wants).size === wants.size)
  return seen && request.excluded.length === 0 ? { ok: true, input: request.write(NONE) } : null
}
const NONE: ReadonlySet<Oid> = new Set()

/**
 * The key of an answer that may be kept: of a clone, whole, shallow or filtered, and of a lazy fetch. It covers the request as git is given it and,
 * where they matter, the tags; the caller is not in it, since what it may ask was decided before. null: the answer depends on more.
 */
export function packKey(view: View, request: FetchRequest, protocol: 0 | 1 | 2, input: Buffer): string | null {
  if (!request.fromNothing || request.excluded.length > 0) return null
  const hash = createHash('sha256').update(`${protocol}\n`)
  if (request.includeTag) hash.update(tagsOf(view.table))
  return hash.update(input).digest('hex')
}

const tagDigests = new WeakMap<readonly RefEntry[], string>()

/** All tags and their values; every reader of a repository sees them. */
function tagsOf(table: RefTable): string {
  const { refs } = table
  const known = tagDigests.get(refs)
  if (known !== undefined) return known
  const hash = createHash('sha256')
  for (let at = lowerBound(table, 'refs/tags/'); refs[at]?.name.startsWith('refs/tags/'); at++)
    hash.update(`${refs[at]?.oid} ${refs[at]?.name}\n`)
  const digest = hash.digest('hex')
  tagDigests.set(refs, digest)
  return digest
}

/** Whether git would find the short name first at a ref that the caller sees. Source: gitrevisions, the order of refs. */
function isSeenRef(view: View, name: string): boolean {
  if (name === 'HEAD') return currentOid({ head: view.table.head, refs: view.refs }, view.table.head) !== null
  const full = ['', 'refs/', 'refs/tags/', 'refs/heads/'].map((prefix) => prefix + name)
  const first = full.find((ref) => currentOid(view.table, ref) !== null)
  return first !== undefined && currentOid({ head: view.table.head, refs: view.refs }, first) !== null
}

/** Wants were looked at already, so git takes any; filters that read a blob on the caller's behalf stay off. */
const CONFIG = {
  'uploadpack.allowFilter': 'true',
  'uploadpack.allowAnySHA1InWant': 'true',
  'uploadpackfilter.allow': 'false',
  'uploadpackfilter.blob:none.allow': 'true',
  'uploadpackfilter.blob:limit.allow': 'true',
  'uploadpackfilter.tree.allow': 'true',
  'uploadpackfilter.object:type.allow': 'true',
  'uploadpackfilter.combine.allow': 'true',
}

/** Starts git's upload-pack on the request, in a process group of its own; with `output`, a file, it answers there. */
export function startUploadPack(
  repo: Repository,
  protocol: 0 | 1 | 2,
  input: Buffer,
  output?: string,
): ReturnType<typeof spawnGit> {
  const child = spawnGit({
    cwd: repo.dir,
    args: ['upload-pack', '--stateless-rpc', '--strict', '.'],
    env: protocol === 0 ? {} : { GIT_PROTOCOL: `version=${protocol}` },
    config: CONFIG,
    ...(output === undefined ? {} : { output }),
  })
  child.stdin.on('error', () => {})
  child.stdin.end(input)
  return child
}
