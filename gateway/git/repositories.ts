/** The store on disk: the server's own hangar.git, and the projects' repositories by slug, opened when asked for. */
import { randomBytes } from 'node:crypto'
import { access, appendFile, chmod, mkdir, readdir, readFile, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { errors } from '../../domain/errors.ts'
import { isRepoSlug, type RefName, type RepoSlug, ZERO_OID } from '../../domain/names.ts'
import type { Clock, Log } from '../../domain/ports.ts'
import type { Upstream } from '../../domain/upstream.ts'
import { createLedger } from '../ledger.ts'
import type { Signer } from '../state/sign.ts'
import { type Epoch, raiseEpoch } from './epoch.ts'
import { PACK_CACHE_DIR } from './maintenance.ts'
import { syncPath } from './object-writer.ts'
import { createObjectStore } from './objects.ts'
import { git } from './process.ts'
import { sweepQuarantines } from './quarantine.ts'
import { createRefStore, type RefStoreDeps, sweepStaleLocks } from './refs.ts'
import type { Repository } from './repository.ts'
import { lockStore } from './store-lock.ts'

export type { Repository } from './repository.ts'

export interface Repositories {
  /** hangar.git */
  readonly server: Repository
  /** null when it was never added. Cached; children of idle repos are ended. Throws `store_unusable` when its directory is missing or of a kind that is not taken. */
  open(slug: RepoSlug): Promise<Repository | null>
  /** Idempotent; what an existing repo follows stays. Throws `name_taken` when a slug differs only in case. */
  create(slug: RepoSlug, upstream?: Upstream | null): Promise<Repository>
  /** What the repo follows, as its record says. */
  upstream(slug: RepoSlug): Promise<Upstream | null>
  /** Sets what an existing repo follows. */
  follow(slug: RepoSlug, upstream: Upstream | null): Promise<void>
  remove(slug: RepoSlug): Promise<void>
  list(): Promise<RepoSlug[]>
  close(): Promise<void>
}

export interface RepositoriesDeps {
  readonly dataDir: string
  readonly signer: Signer
  readonly log: Log
  readonly clock?: Clock
  /** So many repositories keep their table of refs and their children (default 64); the rest sleep until asked. */
  readonly maxAwake?: number
  /** Called once when another server has taken the store over; nothing is written from then on. */
  onLost?(): void
}

/** What the store looks like; a server refuses one of a later version. */
const FORMAT_VERSION = 1
const FORMAT_REF = 'refs/hangar/meta/format' as RefName
const REPOS_PREFIX = 'refs/hangar/repos/'
const RECORD_FILE = 'repo.json'
const MAX_AWAKE = 64

interface Opened {
  readonly repo: Repository
  rest(): void
  close(): Promise<void>
}

/** Opens the store in the data directory, making what is not there. Throws `store_unusable` with what to do. */
export async function createRepositories(deps: RepositoriesDeps): Promise<Repositories> {
  await mkdir(deps.dataDir, { recursive: true, mode: 0o711 })
  await chmod(deps.dataDir, 0o711)
  const unlock = await lockStore(deps.dataDir)
  try {
    return await openStore(deps, unlock)
  } catch (error) {
    await unlock()
    throw error
  }
}

/** Points HEAD at a branch, for the first push of a default branch that is not main. */
export async function setHead(repo: Pick<Repository, 'dir'>, branch: RefName): Promise<void> {
  await git({ gitDir: repo.dir, args: ['symbolic-ref', 'HEAD', branch], timeoutMs: 30_000 })
}

async function openStore(deps: RepositoriesDeps, unlock: () => Promise<void>): Promise<Repositories> {
  const reposDir = join(deps.dataDir, 'repos')
  const clock = deps.clock ?? { now: () => Date.now() }
  const ledger = createLedger({ clock })
  for (const name of ['repos', 'keys', 'index']) await makePrivate(join(deps.dataDir, name))
  await sweepUnfinished(reposDir)
  const serverDir = join(deps.dataDir, 'hangar.git')
  if (!(await exists(serverDir))) await initBare(serverDir, reposDir)
  await chmod(serverDir, 0o700)
  let epoch: Epoch | null = null
  const mayWrite = async () => epoch?.check()
  const server = await openRepository({ ...deps, mayWrite }, null, serverDir)
  try {
    await checkFormat(server.repo)
    epoch = await raiseEpoch(server.repo, clock.now(), () => deps.onLost?.())
  } catch (error) {
    await server.close()
    throw error
  }

  /** In the order of their last use. */
  const opened = new Map<RepoSlug, Promise<Opened>>()
  /** Creating and removing are one at a time, so that a name is looked for and taken without another in between. */
  let changes: Promise<unknown> = Promise.resolve()
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const done = changes.then(work)
    changes = done.catch(() => {})
    return done
  }
  const dirOf = (slug: RepoSlug) => join(reposDir, `${slug}.git`)
  const recordRef = (slug: RepoSlug) => `${REPOS_PREFIX}${slug}` as RefName

  async function list(): Promise<RepoSlug[]> {
    const { refs } = await server.repo.refs.snapshot()
    return refs
      .filter(({ name }) => name.startsWith(REPOS_PREFIX))
      .map(({ name }) => name.slice(REPOS_PREFIX.length))
      .filter(isRepoSlug)
  }

  function wake(slug: RepoSlug): Promise<Opened> {
    const found = opened.get(slug) ?? openRepository({ ...deps, mayWrite }, slug, dirOf(slug))
    opened.delete(slug)
    opened.set(slug, found)
    found.catch(() => opened.delete(slug))
    const sleeping = [...opened.values()].at(-1 - (deps.maxAwake ?? MAX_AWAKE))
    if (sleeping !== undefined) sleeping.then((old) => old.rest()).catch(() => {})
    return found
  }

  async function upstream(slug: RepoSlug): Promise<Upstream | null> {
    const text = await ledger.readFile(server.repo, recordRef(slug), RECORD_FILE)
    return text === null ? null : upstreamOf(text)
  }

  async function follow(slug: RepoSlug, next: Upstream | null): Promise<void> {
    await ledger.append(server.repo, recordRef(slug), async (tip) => {
      const text = tip === null ? null : await ledger.readFile(server.repo, tip, RECORD_FILE)
      if (text === null || JSON.stringify(upstreamOf(text)) === JSON.stringify(next)) return null
      const record = { ...(JSON.parse(text.toString('utf8')) as object), upstream: next }
      return { files: new Map([[RECORD_FILE, json(record)]]), message: `Set what ${slug} follows` }
    })
  }

  async function create(slug: RepoSlug, upstream: Upstream | null = null): Promise<Repository> {
    const twin = (await list()).find((other) => other.toLowerCase() === slug.toLowerCase())
    if (twin === slug) return (await wake(slug)).repo
    if (twin !== undefined) throw errors.nameTaken(`repo ${slug}: ${twin} is there already, and case does not count`)
    // A directory without a record is what a crash right here left, or what an operator restored: it is taken as it is.
    if (!(await exists(dirOf(slug)))) await initBare(dirOf(slug), reposDir)
    const record = { slug, upstream, created_at: new Date(clock.now()).toISOString() }
    await ledger.append(server.repo, recordRef(slug), async (tip) =>
      tip === null ? { files: new Map([[RECORD_FILE, json(record)]]), message: `Add repo ${slug}` } : null,
    )
    return (await wake(slug)).repo
  }

  /** The directory goes first: a record without one is told to the operator, the other way round would come back at the next create. */
  async function remove(slug: RepoSlug): Promise<void> {
    const found = opened.get(slug)
    opened.delete(slug)
    await found?.then((old) => old.close()).catch(() => {})
    const gone = join(reposDir, `.gone-${randomBytes(6).toString('hex')}`)
    await rename(dirOf(slug), gone).catch(ignoreAbsent)
    const tip = await server.repo.refs.read(recordRef(slug))
    if (tip !== null) await server.repo.refs.transact([{ ref: recordRef(slug), old: tip, new: ZERO_OID }])
    await rm(gone, { recursive: true, force: true })
  }

  return {
    server: server.repo,
    async open(slug) {
      if ((await server.repo.refs.read(recordRef(slug))) === null) return null
      return (await wake(slug)).repo
    },
    create: (slug, upstream) => inTurn(() => create(slug, upstream)),
    upstream,
    follow: (slug, upstream) => inTurn(() => follow(slug, upstream)),
    remove: (slug) => inTurn(() => remove(slug)),
    list,
    async close() {
      await changes
      const all = await Promise.allSettled(opened.values())
      for (const one of all) if (one.status === 'fulfilled') await one.value.close()
      await server.close()
      await unlock()
    },
  }
}

async function openRepository(
  deps: RepositoriesDeps & Pick<RefStoreDeps, 'mayWrite'>,
  slug: RepoSlug | null,
  dir: string,
): Promise<Opened> {
  await checkKind(slug, dir)
  await sweepRepository(dir)
  const objects = createObjectStore({ gitDir: dir, signer: deps.signer })
  const refs = createRefStore({
    gitDir: dir,
    log: deps.log,
    ...(deps.mayWrite === undefined ? {} : { mayWrite: deps.mayWrite }),
  })
  return {
    repo: { slug, dir, objects, refs },
    rest() {
      objects.rest()
      refs.rest()
    },
    async close() {
      await refs.close()
      await objects.close()
    },
  }
}

/** Made under another name and renamed, so that a repository is there whole or not at all. */
async function initBare(dir: string, root: string): Promise<void> {
  await mkdir(dirname(dir), { recursive: true, mode: 0o700 })
  const temporary = join(root, `.new-${randomBytes(6).toString('hex')}`)
  const args = ['init', '--bare', '--quiet', '--template=', '--initial-branch=main', '--object-format=sha1', temporary]
  await git({ args, timeoutMs: 60_000 })
  await appendFile(join(temporary, 'config'), REPOSITORY_CONFIG)
  await syncPath(join(temporary, 'config'))
  await rename(temporary, dir)
  await syncPath(dirname(dir))
}

/** For a git that somebody else runs in it; hangar's own are given theirs (`process.ts`). */
const REPOSITORY_CONFIG = `[gc]
\tauto = 0
[maintenance]
\tauto = false
[core]
\tlogAllRefUpdates = false
\tfsync = committed
[receive]
\tautogc = false
[transfer]
\tfsckObjects = true
`

async function checkKind(slug: RepoSlug | null, dir: string): Promise<void> {
  const name = slug ?? 'hangar.git'
  const config = await readFile(join(dir, 'config'), 'utf8').catch(() => {
    throw errors.storeUnusable(
      `the directory of ${name} is missing or unreadable; restore it from a backup, or remove the repo`,
    )
  })
  if (/^\s*objectformat\s*=\s*"?sha256/im.test(config))
    throw errors.storeUnusable(`${name} is a SHA-256 repository; hangar takes SHA-1 ones only`)
  if (/^\s*refstorage\s*=\s*"?reftable/im.test(config))
    throw errors.storeUnusable(`${name} keeps its refs as reftable; migrate it to the files format`)
}

async function checkFormat(server: Repository): Promise<void> {
  const oid = await server.refs.read(FORMAT_REF)
  if (oid === null) {
    const blob = await server.objects.writeBlob(json({ version: FORMAT_VERSION }))
    await server.refs.transact([{ ref: FORMAT_REF, old: ZERO_OID, new: blob }])
    return
  }
  const version = parseVersion((await server.objects.read(oid))?.body)
  if (version === null)
    throw errors.storeUnusable(`${FORMAT_REF} of hangar.git cannot be read; restore it from a backup`)
  if (version > FORMAT_VERSION)
    throw errors.storeUnusable(
      `this store has format ${version} and this hangar knows ${FORMAT_VERSION}; install a newer hangar`,
    )
}

function parseVersion(body: Buffer | undefined): number | null {
  try {
    const { version } = JSON.parse(body?.toString('utf8') ?? '') as { version?: unknown }
    return typeof version === 'number' ? version : null
  } catch {
    return null
  }
}

/** Leftovers of a crash: repositories half made or half removed. */
async function sweepUnfinished(reposDir: string): Promise<void> {
  for (const name of await readdir(reposDir))
    if (/^\.(new|gone)-/.test(name)) await rm(join(reposDir, name), { recursive: true, force: true })
}

/** Leftovers of a crash in one repository: quarantines, halves of packs, kept answers, locks. Only one server writes here, and it has just opened it. */
async function sweepRepository(dir: string): Promise<void> {
  const objects = join(dir, 'objects')
  await sweepQuarantines(objects)
  for (const name of await readdir(join(objects, 'pack')).catch(() => []))
    if (name.startsWith('tmp_')) await rm(join(objects, 'pack', name), { force: true })
  await rm(join(dir, PACK_CACHE_DIR), { recursive: true, force: true })
  await sweepStaleLocks(dir)
}

function upstreamOf(record: Buffer): Upstream | null {
  const { upstream } = JSON.parse(record.toString('utf8')) as { upstream?: Partial<Upstream> | null }
  return upstream?.url === undefined ? null : { url: upstream.url, credential: upstream.credential ?? null }
}

async function makePrivate(dir: string): Promise<void> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  await chmod(dir, 0o700)
}

async function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  )
}

function ignoreAbsent(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error
}

function json(value: unknown): Buffer {
  return Buffer.from(`${JSON.stringify(value)}\n`)
}
