/** Git bundles: made for who fetches without a remote, and taken in through a quarantine. */
import { createReadStream } from 'node:fs'
import { open } from 'node:fs/promises'
import { PassThrough, type Readable } from 'node:stream'
import { errors } from '../../domain/errors.ts'
import { DEFAULT_LIMITS } from '../../domain/limits.ts'
import { isOid, isRefName, type Oid, type RefName } from '../../domain/names.ts'
import { contents, STRICT } from './ingest.ts'
import { git, killGit, runGit, spawnGit } from './process.ts'
import type { Quarantine } from './quarantine.ts'
import type { Repository } from './repository.ts'

export interface BundleHeads {
  readonly heads: readonly { readonly ref: string; readonly oid: Oid }[]
  /** Prerequisites that the repository lacks. */
  readonly missing: readonly Oid[]
}

/** Objects of a bundle in quarantine: kept for good, or forgotten. */
export interface Unbundled {
  readonly commit: Oid
  readonly tree: Oid
  /** For every git that is to see the objects before they are kept. */
  readonly env: Readonly<Record<string, string>>
  keep(): Promise<void>
  drop(): Promise<void>
}

const MAX_HEADER_BYTES = 4 * 1_048_576
const TIME_MS = 10 * 60_000

/**
 * Streams a bundle of exactly these refs, without what `have` reaches (ids that are no commits here do not count); null when there is
 * nothing new. A ref that is not there throws `not_found`; git's failure later is an error of the stream.
 * The header is written here, since `git bundle create` leaves out a ref whose commit the other side has already.
 * Source: git's gitformat-bundle.
 */
export async function createBundle(
  repo: Repository,
  ask: { readonly refs: readonly RefName[]; readonly have: readonly Oid[] },
): Promise<Readable | null> {
  const heads: { ref: RefName; oid: Oid }[] = []
  for (const ref of ask.refs) {
    const oid = await repo.refs.read(ref)
    if (oid === null) throw errors.notFound(`${ref} is not there`)
    heads.push({ ref, oid })
  }
  const have: Oid[] = []
  for (const oid of ask.have) if ((await repo.objects.info(oid))?.type === 'commit') have.push(oid)
  const revs = Buffer.from([...heads.map(({ oid }) => oid), ...have.map((oid) => `^${oid}`), ''].join('\n'))
  const list = await git({
    gitDir: repo.dir,
    args: ['rev-list', '--boundary', '--stdin'],
    input: revs,
    timeoutMs: TIME_MS,
  })
  const commits = list
    .toString('latin1')
    .split('\n')
    .filter((line) => line !== '')
  if (!commits.some((line) => !line.startsWith('-'))) return null
  const atHand = heads.map(({ oid }) => oid).filter((oid) => have.includes(oid))
  const prerequisites = new Set([
    ...commits.filter((line) => line.startsWith('-')).map((line) => line.slice(1)),
    ...atHand,
  ])
  const header = [
    '# v2 git bundle',
    ...[...prerequisites].map((oid) => `-${oid} `),
    ...heads.map(({ oid, ref }) => `${oid} ${ref}`),
    '\n',
  ].join('\n')
  return streamPack(repo, Buffer.from(header, 'latin1'), revs)
}

function streamPack(repo: Repository, header: Buffer, revs: Buffer): Readable {
  const args = ['pack-objects', '--stdout', '--revs', '--thin', '--delta-base-offset', '--quiet']
  const child = spawnGit({ gitDir: repo.dir, args })
  const out = new PassThrough()
  let stderr = ''
  const timer = setTimeout(() => killGit(child), TIME_MS)
  child.stderr.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString('utf8')).slice(0, 2_000)
  })
  child.stdin.on('error', () => {})
  child.once('error', (error) => out.destroy(error))
  child.once('close', (code) => {
    clearTimeout(timer)
    if (code === 0) out.end()
    else out.destroy(errors.gitFailed('git pack-objects failed; the bundle is cut', { reason: stderr.trim() }))
  })
  out.once('close', () => killGit(child))
  out.write(header)
  child.stdout.pipe(out, { end: false })
  child.stdin.end(revs)
  return out
}

/**
 * What a bundle says of itself: the refs it carries, and which of its prerequisites are not here. Reads the header only, at most 4 MiB.
 * Throws `invalid_context` when the file is no bundle of a kind that is taken.
 */
export async function inspectBundle(repo: Repository, file: string): Promise<BundleHeads> {
  const header = await readHeader(file)
  const missing: Oid[] = []
  for (const oid of header.prerequisites) if ((await repo.objects.info(oid))?.type !== 'commit') missing.push(oid)
  return { heads: header.heads, missing }
}

export interface UnbundleOptions {
  /** The commit or tag of one that is meant; it must be in the bundle or here. Without it all refs of the bundle must lead to one commit. */
  readonly tip?: Oid
  /** Tips that its history may build on; default: all refs. */
  readonly visible?: readonly Oid[]
  readonly maxBytes: number
}

/**
 * Unpacks a bundle into the quarantine, checking each object (fsck) and that everything from its tip on is in it or reachable from
 * `visible`. The quarantine is dropped when this throws: `missing_commits`, or `invalid_context` with git's own words.
 */
export async function unbundle(
  repo: Repository,
  file: string,
  quarantine: Quarantine,
  options: UnbundleOptions,
): Promise<Unbundled> {
  try {
    const header = await readHeader(file)
    const { missing } = await inspectBundle(repo, file)
    if (missing.length > 0)
      throw errors.missingCommits('the bundle builds on commits that are not here; bundle again from an older base', {
        missing,
      })
    await countObjects(file, header.size)
    await indexPack(repo, { file, offset: header.size, maxBytes: options.maxBytes }, quarantine)
    const { commit, tree } = await tipOf(repo, options.tip ? [{ ref: '', oid: options.tip }] : header.heads, quarantine)
    await checkConnected(repo, commit, options.visible, quarantine)
    await refuseHidden(repo, commit, quarantine)
    return { commit, tree, env: quarantine.env, keep: () => quarantine.migrate(), drop: () => quarantine.drop() }
  } catch (error) {
    await quarantine.drop()
    throw error
  }
}

/** The pack's own count, before git makes room for so many. */
async function countObjects(file: string, offset: number): Promise<void> {
  const handle = await open(file, 'r')
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(12), 0, 12, offset)
    const objects = bytesRead === 12 ? buffer.readUInt32BE(8) : 0
    if (objects > DEFAULT_LIMITS.maxBundleObjects)
      throw errors.invalidContext(
        `the bundle holds ${objects} objects, more than the ${DEFAULT_LIMITS.maxBundleObjects} that are taken; push it instead (--from-local)`,
      )
  } finally {
    await handle.close()
  }
}

/** Small packs of outsiders can grow without bounds: deltas are kept in at most 64 MiB, large blobs are streamed, and the store is mapped in pieces. */
const CAREFUL = {
  'core.bigFileThreshold': '32m',
  'core.deltaBaseCacheLimit': '64m',
  'core.packedGitWindowSize': '32m',
  'core.packedGitLimit': '256m',
  'pack.threads': '2',
}

async function indexPack(
  repo: Repository,
  pack: { file: string; offset: number; maxBytes: number },
  quarantine: Quarantine,
): Promise<void> {
  const result = await runGit({
    gitDir: repo.dir,
    args: ['index-pack', '--stdin', '--fix-thin', STRICT, `--max-input-size=${pack.maxBytes}`],
    env: quarantine.env,
    config: CAREFUL,
    input: createReadStream(pack.file, { start: pack.offset }),
    timeoutMs: DEFAULT_LIMITS.handedTimeoutMs,
    maxMemoryBytes: DEFAULT_LIMITS.handedMemoryBytes,
  })
  if (result.exitCode !== 0) throw notTaken(result.stderr)
}

function notTaken(stderr: string): Error {
  const reason = stderr.trim().slice(0, 2_000)
  if (/did not receive expected object|unresolved delta/.test(reason)) return notWhole(reason)
  if (/out of memory|over limit|cannot allocate/i.test(reason))
    return errors.invalidContext(
      'the bundle holds objects that unpack to more than is taken in memory; push the work instead (--from-local)',
      { reason },
    )
  const first = reason.split('\n').find((line) => /^(?:fatal|error): /.test(line)) ?? 'it ended without a word'
  return errors.invalidContext(
    `the bundle's pack is not taken by git (${first.replace(/^(?:fatal|error): /, '')}); make it again with: git bundle create FILE HEAD --not --remotes`,
    { reason: reason === '' ? first : reason },
  )
}

/** The one commit that the refs lead to, annotated tags followed. */
async function tipOf(repo: Repository, heads: BundleHeads['heads'], quarantine: Quarantine) {
  const out = await git({
    gitDir: repo.dir,
    args: ['cat-file', '--batch-check=%(objectname) %(objecttype)'],
    env: quarantine.env,
    input: Buffer.from(heads.map(({ oid }) => `${oid}^{commit}\n${oid}^{tree}\n`).join('')),
    timeoutMs: 30_000,
  })
  const found = out.toString('latin1').split('\n')
  const tips = new Map<string, string>()
  for (const [place, { oid }] of heads.entries()) {
    const [commit = '', type] = (found[place * 2] ?? '').split(' ')
    if (type !== 'commit')
      throw errors.missingCommits(`${oid} is no commit of the bundle, nor is it here`, { missing: [oid] })
    tips.set(commit, (found[place * 2 + 1] ?? '').split(' ')[0] ?? '')
  }
  const [tip] = tips
  if (tip === undefined || tips.size > 1)
    throw errors.invalidContext(
      `the bundle has ${tips.size} tips (${namesOf(heads)}), and one is taken; make it from one: git bundle create FILE HEAD --not --remotes`,
    )
  return { commit: tip[0] as Oid, tree: tip[1] as Oid }
}

function namesOf(heads: BundleHeads['heads']): string {
  const names = heads.slice(0, 5).map(({ ref }) => Buffer.from(ref, 'latin1').toString('utf8'))
  return `${names.join(', ')}${heads.length > 5 ? ', …' : ''}`
}

/** A pack may lack objects that its commits need; the store would then be broken for everybody. */
async function checkConnected(
  repo: Repository,
  commit: Oid,
  visible: readonly Oid[] | undefined,
  quarantine: Quarantine,
): Promise<void> {
  const tips = visible ?? (await repo.refs.snapshot()).refs.map(({ oid }) => oid)
  const result = await runGit({
    gitDir: repo.dir,
    args: ['rev-list', '--objects', '--stdin', '--quiet', '--ignore-missing'],
    env: quarantine.env,
    config: CAREFUL,
    input: Buffer.from([commit, ...new Set(tips.map((oid) => `^${oid}`)), ''].join('\n')),
    timeoutMs: DEFAULT_LIMITS.handedTimeoutMs,
    maxMemoryBytes: DEFAULT_LIMITS.handedMemoryBytes,
  })
  if (result.exitCode !== 0) throw notWhole(result.stderr.trim())
}

/** Commits that are only under refs that no reader sees would come to light by being named: they count as not there. */
async function refuseHidden(repo: Repository, commit: Oid, quarantine: Quarantine): Promise<void> {
  const { refs } = await repo.refs.snapshot()
  const shown = refs.filter(({ name }) => !/^refs\/hangar\/(?:incoming\/|sessions\/[^/]+\/sealed$)/.test(name))
  const listed = await git({
    gitDir: repo.dir,
    args: ['rev-list', '--stdin'],
    env: quarantine.env,
    config: CAREFUL,
    input: Buffer.from([commit, ...new Set(shown.map(({ oid }) => `^${oid}`)), ''].join('\n')),
    timeoutMs: DEFAULT_LIMITS.handedTimeoutMs,
  })
  const has = await contents(quarantine.dir)
  const hidden = listed
    .toString('latin1')
    .split('\n')
    .filter((oid) => isOid(oid) && !has(oid))
  if (hidden.length > 0)
    throw errors.missingCommits(
      `the bundle builds on ${hidden.length} commit(s) that the server does not have; bundle again from a commit that is on the remote`,
      { missing: hidden.slice(0, 1_000) },
    )
}

function notWhole(reason: string): Error {
  return errors.invalidContext(
    'the bundle does not hold all that its commits need (one of a shallow clone does not); run git fetch --unshallow and bundle again, or use --from-local',
    { reason: reason.slice(0, 2_000) },
  )
}

interface Header extends Omit<BundleHeads, 'missing'> {
  readonly prerequisites: readonly Oid[]
  /** Bytes before the pack. */
  readonly size: number
}

async function readHeader(file: string): Promise<Header> {
  const text = await readUpToBlankLine(file)
  const lines = text.split('\n').slice(0, -2)
  const version = lines.shift()
  if (version !== '# v2 git bundle' && version !== '# v3 git bundle') throw noBundle()
  if (lines.length > DEFAULT_LIMITS.maxBundleRefs)
    throw errors.invalidContext(
      `the bundle names ${lines.length} refs and prerequisites, more than the ${DEFAULT_LIMITS.maxBundleRefs} that are taken; make it from one commit: git bundle create FILE HEAD --not --remotes`,
    )
  const heads: { ref: string; oid: Oid }[] = []
  const prerequisites: Oid[] = []
  for (const line of lines) {
    const oid = line.startsWith('-') ? line.slice(1, 41) : line.slice(0, 40)
    const ref = line.slice(41)
    if (line === '@object-format=sha1') continue
    if (/^(?:@object-format=|-?[0-9a-f]{64}(?: |$))/.test(line))
      throw errors.invalidContext(
        'the bundle is of a repository with other object ids than sha1; hangar takes sha1 only',
      )
    if (line.startsWith('@'))
      throw errors.invalidContext(
        `the bundle asks for ${line.slice(1, 60)}, which is not taken; make it without: git bundle create FILE HEAD --not --remotes`,
      )
    if (!isOid(oid)) throw errors.invalidContext("the bundle's header is malformed; make the bundle again")
    if (line.startsWith('-')) prerequisites.push(oid)
    else if (ref === 'HEAD' || isRefName(ref)) heads.push({ ref, oid })
    else throw errors.invalidContext(`the bundle names ${JSON.stringify(ref.slice(0, 80))}, which is no ref name`)
  }
  if (heads.length === 0)
    throw errors.invalidContext(
      'the bundle has no refs; make it from a commit: git bundle create FILE HEAD --not --remotes',
    )
  return { heads, prerequisites, size: Buffer.byteLength(text, 'latin1') }
}

function noBundle(): Error {
  return errors.invalidContext('this is no git bundle; make one with: git bundle create FILE HEAD --not --remotes')
}

async function readUpToBlankLine(file: string): Promise<string> {
  const handle = await open(file, 'r')
  try {
    let text = ''
    const buffer = Buffer.alloc(65_536)
    while (text.length < MAX_HEADER_BYTES) {
      const { bytesRead } = await handle.read(buffer, 0, buffer.length, null)
      text += buffer.toString('latin1', 0, bytesRead)
      const end = text.indexOf('\n\n')
      if (end >= 0) return text.slice(0, end + 2)
      if (bytesRead === 0 || !text.startsWith('# v'.slice(0, text.length))) break
    }
  } finally {
    await handle.close()
  }
  throw noBundle()
}
