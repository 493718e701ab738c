/**
 * Answers of upload-pack kept as files, for the load that forks and attempts make: many clones of one base. What is asked is looked at on behalf of
 * its caller before anything here is; the key covers all that the answer depends on, so that whoever may ask a question may have its kept answer.
 * One directory in each repository, swept when that is opened: a crash leaves nothing half written, and what is removed with the repo is gone.
 */
import { type FileHandle, mkdir, open, readdir, rm, stat, statfs } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { errors, messageOf } from '../domain/errors.ts'
import { MB } from '../domain/limits.ts'
import type { Log } from '../domain/ports.ts'
import { PACK_CACHE_DIR } from './git/maintenance.ts'
import { killGit, type spawnGit } from './git/process.ts'
import type { Repository } from './git/repository.ts'

export interface PackCache {
  /** The answer that is kept, or on its way, for a key; null when there is none. */
  find(repo: Repository, key: string): Promise<KeptAnswer | null>
  /**
   * Starts git on a file and gives its answer from there; where another did so meanwhile, that one's. `release` is called once the answer needs no
   * process of the caller's. null, and `release` is not called: the answer is too large to be kept, or there is no room.
   */
  keep(repo: Repository, key: string, start: StartGit, release: () => void): Promise<KeptAnswer | null>
  load(): { readonly bytes: number; readonly answers: number }
  /** Ends what runs. */
  close(): Promise<void>
}

/** Starts a git that writes its standard output into the file. */
export type StartGit = (output: string) => ReturnType<typeof spawnGit>

/** One reader's way through an answer, at its own pace. */
export interface KeptAnswer {
  /** null while git writes it. */
  readonly size: number | null
  /** Ends with the answer; throws when git was ended before its time. A chunk's bytes hold until the next is asked for. */
  chunks(): AsyncGenerator<Buffer>
  /** To be called once, also after `chunks` has ended. Without readers a git that still writes is ended. */
  leave(): Promise<void>
}

export interface PackCacheDeps {
  /** 0: nothing is kept. */
  readonly maxBytes: number
  /** How long one git may write. */
  readonly maxMs: number
  readonly log: Log
  /** Hears of each use. */
  readonly onLookup?: (result: 'hit' | 'miss') => void
}

const CHUNK_BYTES = 512 * 1024
/** How long a reader that is as far as git waits before it looks again: at first, and after some looks. */
const FIRST_LOOK_MS = 2
const LATER_LOOK_MS = 32
const GUARD_MS = 250
/** Room on the disk that is never taken. */
const FREE_BYTES = 256 * MB
/** A small answer counts for so much, which bounds the number of answers. */
const LEAST_BYTES = 65_536

interface Entry {
  readonly id: string
  readonly file: string
  /** False when it is not kept after all. */
  ready: Promise<boolean>
  state: 'growing' | 'whole' | 'failed' | 'cut'
  ended: Promise<void>
  /** Of the file. */
  size: number
  /** What it takes of the room; while it grows, what it is thought to come to. */
  charged: number
  readers: number
  stop(): void
}

export function createPackCache({ maxBytes, maxMs, log, onLookup = () => {} }: PackCacheDeps): PackCache {
  /** In the order of their last use. */
  const entries = new Map<string, Entry>()
  const running = new Set<Promise<void>>()
  let held = 0
  let serial = 0

  const isIdle = ({ state, readers }: Entry) => state === 'whole' && readers === 0
  const charge = (entry: Entry, bytes: number) => {
    held += bytes - entry.charged
    entry.charged = bytes
  }

  function forget(entry: Entry): void {
    if (entries.get(entry.id) === entry) entries.delete(entry.id)
    charge(entry, 0)
  }

  /** A reader that has the file open reads on. */
  async function drop(entry: Entry): Promise<void> {
    forget(entry)
    await rm(entry.file, { force: true })
  }

  /** Removes what was not used for longest until all fits, and so much more. What is read or written stays; where that is too much, nothing is removed. */
  async function makeRoom(coming: number, dir: string): Promise<boolean> {
    const idle = [...entries.values()].filter(isIdle)
    const spare = idle.reduce((sum, { charged }) => sum + charged, 0)
    const free = async () => {
      const { bavail, bsize } = await statfs(dir)
      return bavail * bsize - FREE_BYTES
    }
    if (held - spare + coming > maxBytes || (await free()) + spare < coming) return false
    for (const oldest of idle) {
      if (held + coming <= maxBytes && (await free()) >= coming) break
      if (isIdle(oldest)) await drop(oldest)
    }
    return held + coming <= maxBytes
  }

  async function begin(entry: Entry, repo: Repository, start: StartGit, release: () => void): Promise<boolean> {
    const estimate = await objectBytes(repo)
    if (!(await makeRoom(estimate, repo.dir))) return false
    charge(entry, estimate)
    await mkdir(join(repo.dir, PACK_CACHE_DIR), { recursive: true, mode: 0o700 })
    const output = await open(entry.file, 'wx', 0o600)
    entry.ended = write(entry, output, start, release)
    running.add(entry.ended)
    void entry.ended.finally(() => running.delete(entry.ended))
    return true
  }

  async function write(entry: Entry, output: FileHandle, start: StartGit, release: () => void): Promise<void> {
    const child = start(entry.file)
    let stderr = ''
    entry.stop = () => {
      if (entry.state !== 'growing') return
      entry.state = 'cut'
      killGit(child)
    }
    child.stderr.on('data', (chunk: Buffer) => {
      if (stderr.length < 2_000) stderr += chunk.toString('latin1')
    })
    const timer = setTimeout(entry.stop, maxMs)
    // What comes out larger than all that is stored, and than the whole cache, is cut rather than let fill the disk.
    const guard = setInterval(() => {
      output.stat().then(({ size }) => size > maxBytes && entry.stop(), entry.stop)
    }, GUARD_MS)
    const status = await new Promise<number | null>((resolve) => {
      child.once('error', (error) => {
        log.error({ error: messageOf(error) }, 'git could not be started')
        resolve(null)
      })
      child.once('close', resolve)
    })
    clearTimeout(timer)
    clearInterval(guard)
    entry.size = (await output.stat()).size
    await output.close()
    const state = entry.state === 'growing' && status !== null ? (status === 0 ? 'whole' : 'failed') : 'cut'
    // Nobody finds it any more once its readers hear of it.
    if (state !== 'whole') await drop(entry)
    entry.state = state
    release()
    if (state === 'failed') log.warn({ status, stderr: stderr.slice(0, 2_000) }, 'upload-pack failed')
    if (state !== 'whole') return
    charge(entry, Math.max(entry.size, LEAST_BYTES))
    await makeRoom(0, dirname(entry.file)).catch(() => {})
  }

  /** Opened before anything is sent, so that an answer whose file has gone is no answer. */
  async function read(entry: Entry): Promise<KeptAnswer | null> {
    entry.readers++
    const leave = () => {
      entry.readers--
      if (entry.readers === 0) entry.stop()
    }
    const file = (await entry.ready) ? await open(entry.file, 'r').catch(() => null) : null
    if (file === null) {
      leave()
      forget(entry)
      return null
    }
    if (entries.delete(entry.id)) entries.set(entry.id, entry)
    return {
      size: entry.state === 'whole' ? entry.size : null,
      chunks: () => chunksOf(entry, file),
      async leave() {
        leave()
        await file.close()
      },
    }
  }

  function enter(repo: Repository, key: string, start: StartGit, release: () => void): Entry {
    const entry: Entry = {
      id: idOf(repo, key),
      file: join(repo.dir, PACK_CACHE_DIR, `${key.slice(0, 16)}-${++serial}`),
      ready: Promise.resolve(false),
      state: 'growing',
      ended: Promise.resolve(),
      size: 0,
      charged: 0,
      readers: 0,
      stop: () => {},
    }
    entries.set(entry.id, entry)
    entry.ready = begin(entry, repo, start, release).catch((error: unknown) => {
      log.warn({ repo: repo.slug, error: messageOf(error) }, 'an answer could not be kept')
      return false
    })
    return entry
  }

  const known = (repo: Repository, key: string) => {
    const entry = entries.get(idOf(repo, key))
    return entry?.state === 'cut' || entry?.state === 'failed' ? undefined : entry
  }

  return {
    async find(repo, key) {
      const entry = known(repo, key)
      const answer = entry === undefined ? null : await read(entry)
      if (answer !== null) onLookup('hit')
      return answer
    },
    async keep(repo, key, start, release) {
      if (maxBytes === 0) return null
      const there = known(repo, key)
      const answer = await read(there ?? enter(repo, key, start, release))
      onLookup(there !== undefined && answer !== null ? 'hit' : 'miss')
      if (there !== undefined && answer !== null) release()
      return answer
    },
    load: () => ({ bytes: held, answers: entries.size }),
    async close() {
      for (const entry of entries.values()) entry.stop()
      await Promise.all(running)
    },
  }
}

async function* chunksOf(entry: Entry, file: FileHandle): AsyncGenerator<Buffer> {
  // One for all: fresh ones cost more, in collecting them, than the reading does.
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  let waitMs = FIRST_LOOK_MS
  for (let at = 0; ; ) {
    // Asked before the look: what was written before the end is seen after it.
    const { state } = entry
    if (state === 'cut') throw errors.gitFailed('git was ended before its answer was whole')
    const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES, at)
    at += bytesRead
    if (bytesRead > 0) {
      yield chunk.subarray(0, bytesRead)
    } else if (state !== 'growing') return
    // A reader that is as far as git lets it get ahead: fewer and larger pieces cost less.
    if (state !== 'growing' || bytesRead === CHUNK_BYTES) continue
    await Promise.race([entry.ended, sleep(waitMs)])
    waitMs = Math.min(2 * waitMs, LATER_LOOK_MS)
  }
}

/** The repository by its directory: one that was removed and made again has none of its files. */
function idOf({ dir }: Repository, key: string): string {
  return `${key} ${dir}`
}

/** About what the repository's objects take: a clone is seldom larger. */
async function objectBytes({ dir }: Repository): Promise<number> {
  const bytes = async (folder: string, which: RegExp) => {
    const path = join(dir, 'objects', folder)
    const names = (await readdir(path).catch(() => [])).filter((name) => which.test(name))
    const sizes = await Promise.all(names.map((name) => stat(join(path, name)).catch(() => ({ size: 0 }))))
    return sizes.reduce((sum, { size }) => sum + size, 0)
  }
  // Names are evenly spread: one of the 256 directories tells of all.
  return (await bytes('pack', /\.pack$/)) + 256 * (await bytes('17', /^/)) + LEAST_BYTES
}
