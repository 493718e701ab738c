/** Git bundles: made for who fetches without a remote, and taken in through a quarantine. */
import { createReadStream } from 'node:fs'
import { open } from 'node:fs/promises'
import { PassThrough, type Readable } from 'node:stream'
import { errors } from '../../domain/errors.ts'
import { isOid, isRefName, type Oid, type RefName } from '../../domain/names.ts'
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
  /** The commit that the intake names; it must be in the bundle or here. Without it the bundle must have one tip. */
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
    await indexPack(repo, { file, offset: header.size, maxBytes: options.maxBytes }, quarantine)
    const commit = options.tip ?? onlyTip(header.heads)
    await checkConnected(repo, commit, options.visible, quarantine)
    return { commit, keep: () => quarantine.migrate(), drop: () => quarantine.drop() }
  } catch (error) {
    await quarantine.drop()
    throw error
  }
}

async function indexPack(
  repo: Repository,
  pack: { file: string; offset: number; maxBytes: number },
  quarantine: Quarantine,
): Promise<void> {
  const result = await runGit({
    gitDir: repo.dir,
    args: ['index-pack', '--stdin', '--fix-thin', '--strict', `--max-input-size=${pack.maxBytes}`],
    env: quarantine.env,
    input: createReadStream(pack.file, { start: pack.offset }),
    timeoutMs: TIME_MS,
  })
  if (result.exitCode !== 0)
    throw errors.invalidContext("the bundle's pack is not taken by git", {
      reason: result.stderr.trim().slice(0, 2_000),
    })
}

/** A pack may lack objects that its commits need; the store would then be broken for everybody. */
async function checkConnected(
  repo: Repository,
  commit: Oid,
  visible: readonly Oid[] | undefined,
  quarantine: Quarantine,
): Promise<void> {
  const type = await runGit({
    gitDir: repo.dir,
    args: ['cat-file', '-t', commit],
    env: quarantine.env,
    timeoutMs: 30_000,
  })
  if (type.stdout.toString('latin1').trim() !== 'commit')
    throw errors.missingCommits(`${commit} is no commit of the bundle, nor is it here`, { missing: [commit] })
  const tips = visible ?? (await repo.refs.snapshot()).refs.map(({ oid }) => oid)
  const result = await runGit({
    gitDir: repo.dir,
    args: ['rev-list', '--objects', '--stdin', '--quiet', '--ignore-missing'],
    env: quarantine.env,
    input: Buffer.from([commit, ...new Set(tips.map((oid) => `^${oid}`)), ''].join('\n')),
    timeoutMs: TIME_MS,
  })
  if (result.exitCode !== 0)
    throw errors.invalidContext('the bundle does not hold all that its commits need', {
      reason: result.stderr.trim().slice(0, 2_000),
    })
}

function onlyTip(heads: BundleHeads['heads']): Oid {
  const tips = new Set(heads.map(({ oid }) => oid))
  const [tip] = tips
  if (tip === undefined || tips.size > 1)
    throw errors.invalidContext(`the bundle has ${tips.size} tips; say which one is meant, or bundle one branch`)
  return tip
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
  if (version !== '# v2 git bundle' && version !== '# v3 git bundle')
    throw errors.invalidContext('this is no git bundle')
  const heads: { ref: string; oid: Oid }[] = []
  const prerequisites: Oid[] = []
  for (const line of lines) {
    const oid = line.startsWith('-') ? line.slice(1, 41) : line.slice(0, 40)
    const ref = line.slice(41)
    if (line === '@object-format=sha1') continue
    if (line.startsWith('@'))
      throw errors.invalidContext(`the bundle asks for ${line.slice(1, 60)}, which is not taken`)
    if (!isOid(oid)) throw errors.invalidContext("the bundle's header is malformed")
    if (line.startsWith('-')) prerequisites.push(oid)
    else if (ref === 'HEAD' || isRefName(ref)) heads.push({ ref, oid })
    else throw errors.invalidContext(`the bundle names ${JSON.stringify(ref.slice(0, 80))}, which is no ref name`)
  }
  if (heads.length === 0) throw errors.invalidContext('the bundle has no refs')
  return { heads, prerequisites, size: Buffer.byteLength(text, 'latin1') }
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
  throw errors.invalidContext('this is no git bundle')
}
