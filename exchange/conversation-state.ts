/** An agent's conversation at rest: the files that hold it, sealed in segments, of which each has only what a turn has added. */
import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import { extract, pack } from 'tar-stream'
import { errors } from '../domain/errors.ts'
import type { SessionName } from '../domain/names.ts'
import type { Repository } from '../gateway/git/repository.ts'
import type { Ledger } from '../gateway/ledger.ts'
import type { Sealer } from '../gateway/state/seal.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'

/** A file of the conversation; `path` is relative to the home directory. */
export interface StateFile {
  readonly path: string
  readonly mode: number
  readonly content: Buffer
}

export interface ConversationStore {
  /** Keeps the files as they are now; what is there already is not stored again. Safe to repeat. */
  keep(repo: Repository, session: SessionName, files: readonly StateFile[]): Promise<void>
  /** The files as they were kept last, as a tar; null when none are. Throws `store_unusable` when a segment is missing or does not fit. */
  restore(repo: Repository, session: SessionName): Promise<Readable | null>
}

interface Part {
  readonly segment: number
  readonly offset: number
  readonly size: number
}

interface Entry {
  readonly path: string
  readonly mode: number
  readonly size: number
  readonly sha256: string
  readonly parts: readonly Part[]
}

interface Manifest {
  /** The number of the next segment. */
  readonly next: number
  readonly files: readonly Entry[]
}

const MANIFEST = 'conversation/manifest.pgp'
const segmentPath = (segment: number) => `conversation/${segment}.pgp`

export function createConversationStore({ ledger, sealer }: { ledger: Ledger; sealer: Sealer }): ConversationStore {
  const read = async (repo: Repository, session: SessionName, path: string): Promise<Buffer | null> => {
    const sealed = await ledger.readFile(repo, sessionRef(session, 'sealed'), path)
    return sealed === null ? null : Buffer.from(await sealer.open(sealed))
  }
  const manifestOf = async (repo: Repository, session: SessionName): Promise<Manifest> => {
    const bytes = await read(repo, session, MANIFEST)
    return bytes === null ? { next: 1, files: [] } : (JSON.parse(bytes.toString('utf8')) as Manifest)
  }

  return {
    keep: async (repo, session, files) => {
      const before = await manifestOf(repo, session)
      const known = new Map(before.files.map((entry) => [entry.path, entry]))
      const added: Buffer[] = []
      let offset = 0
      const entries = files.map((file): Entry => {
        const { parts, rest } = grownFrom(known.get(file.path), file.content)
        const part = { segment: before.next, offset, size: rest.length }
        added.push(rest)
        offset += rest.length
        return {
          path: file.path,
          mode: file.mode,
          size: file.content.length,
          sha256: sha256(file.content),
          parts: rest.length === 0 ? parts : [...parts, part],
        }
      })
      if (JSON.stringify(entries) === JSON.stringify(before.files)) return
      const after: Manifest = { next: offset === 0 ? before.next : before.next + 1, files: entries }
      const changes = new Map<string, Uint8Array | null>()
      if (offset > 0) changes.set(segmentPath(before.next), await sealer.seal(Buffer.concat(added)))
      for (const segment of segmentsOf(before))
        if (!segmentsOf(after).has(segment)) changes.set(segmentPath(segment), null)
      changes.set(MANIFEST, await sealer.seal(Buffer.from(JSON.stringify(after))))
      await ledger.append(repo, sessionRef(session, 'sealed'), async () => ({
        files: changes,
        message: `the agent's conversation: ${entries.length} file(s), ${offset} new byte(s)`,
      }))
    },
    restore: async (repo, session) => {
      const { files } = await manifestOf(repo, session)
      if (files.length === 0) return null
      const segments = new Map<number, Buffer>()
      const tar = pack()
      for (const entry of files) {
        for (const { segment } of entry.parts)
          if (!segments.has(segment)) {
            const bytes = await read(repo, session, segmentPath(segment))
            if (bytes === null)
              throw errors.storeUnusable(`segment ${segment} of the conversation of ${session} is missing`)
            segments.set(segment, bytes)
          }
        const content = Buffer.concat(
          entry.parts.map(({ segment, offset, size }) =>
            (segments.get(segment) ?? Buffer.alloc(0)).subarray(offset, offset + size),
          ),
        )
        if (sha256(content) !== entry.sha256)
          throw errors.storeUnusable(`the conversation of ${session} does not fit together: ${entry.path}`)
        tar.entry({ name: entry.path, mode: entry.mode }, content)
      }
      tar.finalize()
      return Readable.from(tar as AsyncIterable<Uint8Array>)
    },
  }
}

/** What is kept of a file already, and the bytes that are new: a transcript grows at its end. */
function grownFrom(before: Entry | undefined, content: Buffer): { parts: readonly Part[]; rest: Buffer } {
  if (
    before !== undefined &&
    content.length >= before.size &&
    sha256(content.subarray(0, before.size)) === before.sha256
  )
    return { parts: before.parts, rest: content.subarray(before.size) }
  return { parts: [], rest: content }
}

function segmentsOf({ files }: Manifest): Set<number> {
  return new Set(files.flatMap((file) => file.parts.map((part) => part.segment)))
}

function sha256(content: Uint8Array): string {
  return createHash('sha256').update(content).digest('hex')
}

/**
 * The regular files in a tar of the directory `under` (relative to the home directory), without those in `notKept`; links and other things
 * are left out. Past `maxBytes` in all, or `maxFiles`, nothing is given: half a conversation is none.
 */
export async function stateFiles(
  tar: Readable,
  {
    under,
    notKept,
    maxFiles,
    maxBytes,
  }: {
    readonly under: string
    readonly notKept: readonly string[]
    readonly maxFiles: number
    readonly maxBytes: number
  },
): Promise<StateFile[]> {
  const files: StateFile[] = []
  const untar = extract()
  tar.on('error', (error) => untar.destroy(error))
  tar.pipe(untar)
  let bytes = 0
  for await (const entry of untar) {
    const inner = entry.header.name.replace(/^(?:\.\/)+/, '')
    const path = `${under}/${inner}`
    const wanted =
      entry.header.type === 'file' &&
      !inner.split('/').includes('..') &&
      !notKept.some((skipped) => path === skipped || path.startsWith(`${skipped}/`))
    if (wanted) {
      bytes += entry.header.size ?? 0
      if (files.length === maxFiles)
        throw errors.limitPassed(`the agent's conversation has more than ${maxFiles} files`)
      if (bytes > maxBytes) throw errors.limitPassed(`the agent's conversation has more than ${maxBytes} bytes`)
      const chunks: Buffer[] = []
      for await (const chunk of entry as AsyncIterable<Buffer>) chunks.push(chunk)
      files.push({ path, mode: (entry.header.mode ?? 0o600) & 0o777, content: Buffer.concat(chunks) })
    }
    entry.resume()
  }
  return files.sort((a, b) => (a.path < b.path ? -1 : 1))
}
