/** Reads whole objects as a stream, in bounded memory, looking for secrets and for what is large. */
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { inflate } from 'node:zlib'
import { errors } from '../../domain/errors.ts'
import { DEFAULT_LIMITS } from '../../domain/limits.ts'
import { isOid, type Oid } from '../../domain/names.ts'
import type { SecretFound, SecretSearch } from '../../domain/secret-search.ts'
import { gitLines } from './lines.ts'
import { killGit, spawnGit } from './process.ts'
import type { Quarantine } from './quarantine.ts'

export interface ObjectHit {
  readonly oid: Oid
  readonly type: string
  readonly found: readonly SecretFound[]
}

export interface ObjectScan {
  /** The first hundred objects with secrets in them. */
  readonly hits: readonly ObjectHit[]
  /** Blobs of more bytes than was asked, the first hundred. */
  readonly large: readonly { readonly oid: Oid; readonly size: number }[]
}

export interface ScanOptions {
  readonly gitDir: string
  readonly env: Readonly<Record<string, string>>
  readonly search: SecretSearch
  /** Blobs of more are told of. */
  readonly largeBytes: number
  readonly signal: AbortSignal
}

const MOST_TOLD = 100
const inflated = promisify(inflate)

/** Looks through all blobs, commits and tags that a quarantine itself holds. Loose objects are read here: no process is started for a small push. */
export async function scanQuarantine(quarantine: Quarantine, options: ScanOptions): Promise<ObjectScan> {
  const packs = (await readdir(join(quarantine.dir, 'pack'))).filter((name) => name.endsWith('.pack'))
  if (packs.length > 0) return scanPacked(quarantine, options)
  const scan = createScan(options)
  for (const folder of (await readdir(quarantine.dir)).filter((name) => /^[0-9a-f]{2}$/.test(name)))
    for (const name of await readdir(join(quarantine.dir, folder))) {
      const bytes = (await inflated(await readFile(join(quarantine.dir, folder, name)))) as Buffer
      const body = bytes.indexOf(0) + 1
      const [type = '', size = '0'] = bytes.toString('latin1', 0, body - 1).split(' ')
      if (type === 'tree') continue
      const object = scan.begin({ oid: (folder + name) as Oid, type, size: Number(size) })
      object.add(bytes.subarray(body))
      object.end()
    }
  return scan
}

/** The objects of the pack alone, without the store behind it. */
async function scanPacked({ dir }: Quarantine, options: ScanOptions): Promise<ObjectScan> {
  const reader = startReader({ ...options, env: { GIT_OBJECT_DIRECTORY: dir } })
  const listed = gitLines(
    {
      gitDir: options.gitDir,
      env: { GIT_OBJECT_DIRECTORY: dir },
      args: ['cat-file', '--batch-all-objects', '--buffer', '--unordered', '--batch-check=%(objectname) %(objecttype)'],
      input: '',
      signal: options.signal,
    },
    (line) => {
      if (!line.endsWith(' tree')) reader.ask(line.slice(0, 40) as Oid)
      return true
    },
  )
  const failed = await listed.then(
    ({ exitCode }) => (exitCode === 0 ? null : errors.gitFailed('git could not list what was pushed')),
    (error: unknown) => error,
  )
  if (failed !== null) reader.stop()
  const scan = await reader.end()
  if (failed !== null) throw failed
  return scan
}

/** Looks through the given objects. */
export async function scanObjects(oids: Iterable<Oid>, options: ScanOptions): Promise<ObjectScan> {
  const reader = startReader(options)
  for (const oid of oids) reader.ask(oid)
  return reader.end()
}

interface Reader {
  ask(oid: Oid): void
  stop(): void
  end(): Promise<ObjectScan>
}

/** One `git cat-file --batch`, asked while it answers. */
function startReader(options: ScanOptions): Reader {
  const child = spawnGit({
    gitDir: options.gitDir,
    env: options.env,
    args: ['cat-file', '--batch', '--buffer'],
    config: { 'core.bigFileThreshold': '32m' },
  })
  const scan = createScan(options)
  const stop = () => killGit(child)
  const timer = setTimeout(stop, DEFAULT_LIMITS.gitTimeoutMs)
  options.signal.addEventListener('abort', stop)
  if (options.signal.aborted) stop()
  child.stdin.on('error', () => {})
  child.stderr.resume()
  const parser = createBatchParser(scan)
  child.stdout.on('data', parser.add)
  const ended = new Promise<number>((resolve, reject) => {
    child.once('error', (cause) => reject(errors.gitFailed('git could not be started', {}, cause)))
    child.once('close', (code) => resolve(code ?? 143))
  }).finally(() => {
    clearTimeout(timer)
    options.signal.removeEventListener('abort', stop)
  })
  ended.catch(() => {})
  return {
    ask: (oid) => void child.stdin.write(`${oid}\n`),
    stop,
    async end() {
      child.stdin.end()
      if ((await ended) !== 0 || !parser.isDone()) throw errors.gitFailed('git could not read what was pushed')
      return scan
    },
  }
}

interface ObjectHead {
  readonly oid: Oid
  readonly type: string
  readonly size: number
}

interface Scan extends ObjectScan {
  begin(head: ObjectHead): { add(chunk: Buffer): void; end(): void }
}

function createScan({ search, largeBytes }: ScanOptions): Scan {
  const hits: ObjectHit[] = []
  const large: { oid: Oid; size: number }[] = []
  return {
    hits,
    large,
    begin({ oid, type, size }) {
      if (type === 'blob' && size > largeBytes && large.length < MOST_TOLD) large.push({ oid, size })
      const looking = search.begin()
      return {
        add: looking.add,
        end() {
          const found = looking.end()
          if (found.length > 0 && hits.length < MOST_TOLD) hits.push({ oid, type, found })
        },
      }
    },
  }
}

/** Takes `git cat-file --batch`'s answers apart: `<oid> <type> <size>`, a newline, the bytes, a newline. */
function createBatchParser(scan: Scan): { add(chunk: Buffer): void; isDone(): boolean } {
  let head = ''
  let left = -1
  let object: ReturnType<Scan['begin']> | null = null
  return {
    add(chunk) {
      for (let at = 0; at < chunk.length; ) {
        if (object === null) {
          const end = chunk.indexOf(10, at)
          head += chunk.toString('latin1', at, end === -1 ? chunk.length : end)
          if (end === -1) return
          at = end + 1
          const [oid = '', type = '', size = ''] = head.split(' ')
          head = ''
          // What is missing is told of by the walk of history.
          if (!isOid(oid) || size === '') continue
          left = Number(size)
          object = scan.begin({ oid, type, size: left })
        }
        const taken = Math.min(left, chunk.length - at)
        if (taken > 0) object.add(chunk.subarray(at, at + taken))
        at += taken
        left -= taken
        if (left > 0 || at >= chunk.length) continue
        // The newline after the bytes.
        at++
        object.end()
        object = null
      }
    },
    isDone: () => object === null && head === '',
  }
}
