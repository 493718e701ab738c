/** What a push brings, looked at while it is in quarantine: secrets, and for a sandbox's branch its paths, sizes and links. */
import type { BranchSettings } from '../domain/environment.ts'
import { MB } from '../domain/limits.ts'
import { type Oid, type RefName, ZERO_OID } from '../domain/names.ts'
import type { SecretFound, SecretSearch } from '../domain/secret-search.ts'
import {
  type ContentFacts,
  type ContentPolicy,
  type Finding,
  linkFault,
  NO_CONTENT,
  pathMatcher,
} from '../refs-policy/content.ts'
import { placeOf } from '../refs-policy/ref-names.ts'
import type { RefUpdate } from '../refs-policy/ref-update.ts'
import { shown } from '../refs-policy/rules.ts'
import { type CommitChange, commitChanges } from './git/commit-changes.ts'
import { type Ingested, NOTHING_SENT, type ObjectFault } from './git/ingest.ts'
import { type ObjectHit, type ObjectScan, type ScanOptions, scanObjects, scanQuarantine } from './git/object-scan.ts'
import { git, runGit } from './git/process.ts'
import type { Quarantine } from './git/quarantine.ts'
import type { Repository } from './git/repository.ts'
import type { Reachable } from './reachable.ts'
import type { View } from './view.ts'

/** An update with what is asked of it. */
export interface AskedUpdate {
  readonly update: RefUpdate
  readonly policy: ContentPolicy
}

export interface ContentInput {
  readonly repo: Repository
  readonly view: View
  readonly updates: readonly AskedUpdate[]
  readonly taken: Ingested
  readonly quarantine: Quarantine
  readonly signal: AbortSignal
}

/** Objects that were looked through once, whatever history says of them meanwhile. */
export interface ContentLook {
  /** What came of it for those of the updates whose history is whole. */
  of(whole: readonly AskedUpdate[]): Promise<PushContent>
}

export interface PushContent {
  facts(ref: RefName): ContentFacts
  /** Objects that no ref may bring, for whoever can leave them out. */
  readonly faults: readonly ObjectFault[]
}

const MOST_LINKS = 10_000
/** Secrets that are traced to commit, path and line. */
const MOST_TRACED = 20
const NOWHERE: readonly ObjectHit[] = []

export function createPushContent(deps: { readonly reachable: Reachable; readonly search: SecretSearch }) {
  return async (input: ContentInput): Promise<ContentLook> => {
    const { repo, quarantine, signal } = input
    const branch = input.updates.find(({ policy }) => policy.branch !== null)
    const options: ScanOptions = {
      gitDir: repo.dir,
      env: quarantine.env,
      search: deps.search,
      largeBytes: branch?.policy.branch?.maxFileBytes ?? Number.POSITIVE_INFINITY,
      signal,
    }
    const scan = input.taken === NOTHING_SENT ? EMPTY : await scanQuarantine(quarantine, options)
    return { of: (whole) => contentOf({ ...input, updates: whole }, { deps, scan, options }) }
  }
}

async function contentOf(
  input: ContentInput,
  { deps, scan, options }: Pick<BranchInput, 'deps' | 'scan' | 'options'>,
): Promise<PushContent> {
  const branch = input.updates.find(({ policy }) => policy.branch !== null)
  const settings = branch?.policy.branch ?? null
  const news = input.updates.map(({ update }) => update.new)
  const known = await trace(input, news, ofKind(scan.hits, 'known'), options)
  const faults = known.map(({ oid, finding }): ObjectFault => ({ oid, why: shown(finding) }))
  const own =
    branch === undefined || settings === null
      ? NO_CONTENT
      : await branchContent({ deps, input, options, scan, settings, branch: branch.update })
  const knownSecret = known[0]?.finding ?? null
  return {
    faults,
    facts: (ref) => ({ ...(ref === branch?.update.ref ? own : NO_CONTENT), knownSecret }),
  }
}

const EMPTY: ObjectScan = { hits: [], large: [] }

interface BranchInput {
  readonly deps: { readonly reachable: Reachable }
  readonly input: ContentInput
  readonly options: ScanOptions
  readonly scan: ObjectScan
  readonly settings: BranchSettings
  readonly branch: RefUpdate
}

/**
 * The commits that a sandbox's branch would newly bring into view of branches. What a checkpoint brought before counts as new: of checkpoints no
 * such rule is asked.
 */
async function branchContent(of: BranchInput): Promise<ContentFacts> {
  const { input, settings, branch, scan, options } = of
  const forbids = pathMatcher(settings.forbiddenPaths)
  const forbidden: CommitChange[] = []
  const links: CommitChange[] = []
  const stored = new Set<Oid>()
  let changedFiles = 0
  await commitChanges(range(input, [branch.new]), (change) => {
    changedFiles++
    if (forbids(change.path) && forbidden.length < 1_000) forbidden.push(change)
    if (change.mode === '120000' && links.length <= MOST_LINKS) links.push(change)
    if (/^1[02]/.test(change.mode) && !(input.taken.ok && input.taken.has(change.oid))) stored.add(change.oid)
    return changedFiles <= settings.maxChangedFiles
  })
  const facts = { ...NO_CONTENT, changedFiles }
  if (changedFiles > settings.maxChangedFiles) return facts
  const before = stored.size === 0 ? EMPTY : await scanObjects(stored, options)
  const large = [...scan.large, ...before.large]
  return {
    ...facts,
    forbiddenPath: await firstForbidden(input, forbidden),
    largeFile: large.length === 0 ? null : await firstLarge(input, branch, large, settings.maxFileBytes),
    link: await firstLink(input, links),
    likelySecret: await firstLikely(of, [...ofKind(scan.hits, 'likely'), ...before.hits]),
  }
}

/** Commits that branches and tags do not have yet, nor what people handed in. */
function range({ repo, view, quarantine, signal }: ContentInput, from: readonly Oid[]) {
  const clean = view.refs.filter(({ name }) => isCleanPlace(name)).map(({ oid }) => oid)
  return { gitDir: repo.dir, env: quarantine.env, from, not: new Set(clean), signal }
}

function isCleanPlace(name: RefName): boolean {
  return ['branch', 'tag', 'session_branch'].includes(placeOf(name)) || CONTEXT.test(name)
}
const CONTEXT = /^refs\/hangar\/sessions\/[^/]+\/context$/

/** What a person handed in as uncommitted work may be committed as it is. */
async function firstForbidden(input: ContentInput, changes: readonly CommitChange[]): Promise<Finding | null> {
  const context = input.view.refs.find(({ name }) => CONTEXT.test(name))?.oid
  for (const change of changes) {
    const handed = context === undefined ? false : await isIn(input, [context, `${context}^2`, `${context}^3`], change)
    if (!handed) return { commit: change.commit, path: change.path, line: null, what: 'is a forbidden path' }
  }
  return null
}

async function isIn({ repo }: ContentInput, trees: readonly string[], { path, oid }: CommitChange): Promise<boolean> {
  for (const tree of trees) if (((await repo.objects.info(`${tree}:${path}`))?.oid ?? ZERO_OID) === oid) return true
  return false
}

async function firstLarge(
  input: ContentInput,
  branch: RefUpdate,
  large: ObjectScan['large'],
  most: number,
): Promise<Finding | null> {
  const sizes = new Map(large.map(({ oid, size }) => [oid, size]))
  let first: Finding | null = null
  await commitChanges({ ...range(input, [branch.new]), objects: [...sizes.keys()].slice(0, MOST_TRACED) }, (change) => {
    const size = sizes.get(change.oid)
    if (size === undefined) return true
    const what = `has ${megabytes(size)} MB, more than ${megabytes(most)}`
    first = { commit: change.commit, path: change.path, line: null, what }
    return false
  })
  return first
}

function megabytes(bytes: number): string {
  return String(Math.round((bytes / MB) * 10) / 10)
}

async function firstLink(input: ContentInput, links: readonly CommitChange[]): Promise<Finding | null> {
  if (links.length === 0) return null
  if (links.length > MOST_LINKS)
    return { commit: null, path: null, line: null, what: `is one of more than ${MOST_LINKS} links` }
  const targets = await readLinks(input, new Set(links.map(({ oid }) => oid)))
  for (const { commit, path, oid } of links) {
    const target = targets.get(oid)
    const fault = target === undefined ? 'is longer than a link can be' : linkFault(path, target)
    if (fault !== null) return { commit, path, line: null, what: `is a link that ${fault}` }
  }
  return null
}

/** Linux's PATH_MAX; a longer link cannot be made. */
const LONGEST_LINK = 4_095

async function readLinks({ repo, quarantine, signal }: ContentInput, oids: ReadonlySet<Oid>) {
  const run = { gitDir: repo.dir, env: quarantine.env, signal }
  const input = Buffer.from([...oids, ''].join('\n'))
  const sizes = await git({ ...run, args: ['cat-file', '--buffer', '--batch-check'], input })
  const short = sizes
    .toString('latin1')
    .split('\n')
    .map((line) => line.split(' '))
    .filter(([, type, size]) => type === 'blob' && Number(size) <= LONGEST_LINK)
  const args = ['cat-file', '--buffer', '--batch']
  const out = await git({ ...run, args, input: Buffer.from(short.map(([oid]) => `${oid}\n`).join('')) })
  const targets = new Map<string, string>()
  for (let at = 0; at < out.length; ) {
    const end = out.indexOf(10, at)
    const [oid = '', , size = '0'] = out.toString('latin1', at, end).split(' ')
    targets.set(oid, out.toString('latin1', end + 1, end + 1 + Number(size)))
    at = end + Number(size) + 2
  }
  return targets
}

/** Not what the project has already, moved or copied. */
async function firstLikely(of: BranchInput, hits: readonly ObjectHit[]): Promise<Finding | null> {
  if (hits.length === 0) return null
  const { repo, view, signal } = of.input
  const project = new Set(view.refs.filter(({ name }) => isCleanPlace(name)).map(({ oid }) => oid))
  const kept = await of.deps.reachable.unreachable(
    repo,
    hits.map(({ oid }) => oid),
    project,
    signal,
  )
  const fresh = hits.filter(({ oid }) => kept.has(oid))
  const [first] = await trace(of.input, [of.branch.new], fresh, of.options, { onlyFound: true })
  return first?.finding ?? null
}

function ofKind(hits: readonly ObjectHit[], kind: SecretFound['kind']): readonly ObjectHit[] {
  if (hits.length === 0) return NOWHERE
  return hits
    .map((hit) => ({ ...hit, found: hit.found.filter((one) => one.kind === kind) }))
    .filter(({ found }) => found.length > 0)
}

/**
 * The commit, path and line of each hit, in their order. A file whose version before held the same is none; what no new commit names is one without a
 * path, unless `onlyFound`.
 */
async function trace(
  input: ContentInput,
  from: readonly Oid[],
  hits: readonly ObjectHit[],
  options: ScanOptions,
  { onlyFound = false } = {},
): Promise<{ oid: Oid; finding: Finding }[]> {
  const some = hits.slice(0, MOST_TRACED)
  if (some.length === 0) return []
  const places = new Map<Oid, CommitChange>()
  await commitChanges({ ...range(input, from), objects: some.map(({ oid }) => oid) }, (change) => {
    // The oldest commit comes last.
    if (some.some(({ oid }) => oid === change.oid)) places.set(change.oid, change)
    return true
  })
  const traced: { oid: Oid; finding: Finding }[] = []
  for (const { oid, type, found } of some) {
    const place = places.get(oid)
    const [first] = found
    if (first === undefined) continue
    if (place === undefined) {
      if (onlyFound && type !== 'commit') continue
      const what = type === 'blob' ? `holds ${first.what}` : `holds ${first.what} in its message`
      traced.push({ oid, finding: { commit: type === 'blob' ? null : oid, path: null, line: null, what } })
      continue
    }
    if (await hadItBefore(place, first, options)) continue
    const line = await lineAt(input, oid, first.offset)
    const { commit, path } = place
    traced.push({ oid, finding: { commit, path, line, what: `holds ${first.what}` } })
  }
  return traced
}

async function hadItBefore({ old }: CommitChange, { what, kind }: SecretFound, options: ScanOptions): Promise<boolean> {
  if (old === ZERO_OID) return false
  const before = await scanObjects([old], options)
  return before.hits.some(({ found }) => found.some((one) => one.what === what && one.kind === kind))
}

async function lineAt({ repo, quarantine }: ContentInput, oid: Oid, offset: number): Promise<number | null> {
  const args = ['cat-file', 'blob', oid]
  const run = await runGit({ gitDir: repo.dir, env: quarantine.env, args }).catch(() => null)
  if (run === null || run.exitCode !== 0) return null
  let line = 1
  for (let at = run.stdout.indexOf(10); at !== -1 && at < offset; at = run.stdout.indexOf(10, at + 1)) line++
  return line
}
