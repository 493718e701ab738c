/** Takes a pack off a stream into a quarantine: checked object by object, each link followed, in bounded memory. */
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { inflateSync } from 'node:zlib'
import { messageOf } from '../../domain/errors.ts'
import { isOid, type Oid } from '../../domain/names.ts'
import { runGit } from './process.ts'
import type { Quarantine } from './quarantine.ts'

/** What a pack held. */
export type Ingested =
  | {
      readonly ok: true
      /** Whether the object is in the quarantine itself. */
      has(oid: Oid): boolean
      /**
       * Those of the objects that the pack did not hold. Slower and exact: git writes no loose object that the store has already, so that an object
       * may have been sent and yet not be in the quarantine.
       */
      notSent(oids: ReadonlySet<Oid>): Promise<ReadonlySet<Oid>>
    }
  | {
      readonly ok: false
      readonly reason: string
      readonly missing: boolean
      /** Objects that git's own check refused, with its words. */
      readonly faults?: readonly ObjectFault[]
    }

/** An object that may not enter, and why. */
export interface ObjectFault {
  readonly oid: Oid
  readonly why: string
}

/** Packs with fewer objects become loose objects, so that small pushes do not leave a pack each. Source: git's transfer.unpackLimit. */
const LOOSE_OBJECTS = 100
/** Larger packs stay packs, however few objects they hold. */
const LOOSE_PACK_BYTES = 1_048_576
const LOOSE_INFLATED_BYTES = 16 * 1_048_576

/** Faults of old commits that real projects have in their history; all else that fsck finds refuses the push, `.git` and `..` entries among it. */
export const TOLERATED = [
  'badTimezone',
  'missingSpaceBeforeDate',
  'zeroPaddedFilemode',
  'missingSpaceBeforeEmail',
  'missingNameBeforeEmail',
  'badName',
  'missingTaggerEntry',
  'badTagName',
]
/** git's own check of each object that comes in. */
export const STRICT = `--strict=${TOLERATED.map((id) => `${id}=ignore`).join(',')}`

/** Blobs above are streamed, not held; deltas are kept in at most 64 MiB. */
const CONFIG = { 'core.bigFileThreshold': '32m', 'core.deltaBaseCacheLimit': '64m' }

/**
 * Ingests the pack. A delta whose base is not in the pack itself is refused (`no-thin` is advertised): its content could be copied out of an object
 * that the pusher may not see. A fault of the pack is a value with git's words; errors of the stream are thrown.
 */
export async function ingestPack(
  repoDir: string,
  quarantine: Quarantine,
  pack: AsyncIterable<Buffer>,
  signal: AbortSignal,
  maxObjects: number = Number.POSITIVE_INFINITY,
): Promise<Ingested> {
  const source = pack[Symbol.asyncIterator]()
  const head = await readUpTo(source, LOOSE_PACK_BYTES)
  if (head.bytes.length < 12 || head.bytes.toString('latin1', 0, 4) !== 'PACK')
    return { ok: false, reason: 'the push holds no pack', missing: false }
  const objects = head.bytes.readUInt32BE(8)
  if (objects === 0 && head.ended) return NOTHING_SENT
  if (objects > maxObjects) {
    const reason = `the push holds ${objects} objects, more than the ${maxObjects} that are taken; push it in parts`
    return { ok: false, reason, missing: false }
  }
  const small = objects < LOOSE_OBJECTS && head.ended && mayUnpack(head.bytes)
  const args = small ? ['unpack-objects', '-q', STRICT] : ['index-pack', '--stdin', STRICT]
  let broken: unknown
  async function* input(): AsyncGenerator<Buffer> {
    yield head.bytes
    try {
      for (let next = head.ended ? null : await source.next(); next && !next.done; next = await source.next())
        yield next.value
    } catch (cause) {
      broken = cause
      throw cause
    }
  }
  const run = await runGit({
    gitDir: repoDir,
    args,
    env: quarantine.env,
    config: CONFIG,
    input: head.ended ? head.bytes : Readable.from(input(), { objectMode: true }),
    signal,
    maxOutputBytes: 65_536,
  })
  if (broken !== undefined) throw broken
  if (run.exitCode !== 0) return refusal(run.stderr.replaceAll(repoDir, '.'))
  const has = await contents(quarantine.dir)
  if (!small) return { ok: true, has, notSent: async (oids) => new Set([...oids].filter((oid) => !has(oid))) }
  return { ok: true, has, notSent: (oids) => notInPack(quarantine.dir, head.bytes, oids) }
}

/** A push without objects. */
export const NOTHING_SENT: Ingested = { ok: true, has: () => false, notSent: async (oids) => oids }

/** git's reason, first line, with what is told about absent objects made the same for all. */
function refusal(stderr: string): Ingested {
  const missing =
    /did not receive expected object|object of unexpected type|unresolved delta|missing blob|missing tree|Failed to traverse/i.test(
      stderr,
    )
  if (missing) return { ok: false, reason: 'missing necessary objects', missing }
  const line = stderr.split('\n').find((text) => /^(?:fatal|error): /.test(text)) ?? 'the pack is not taken'
  const faults = [...stderr.matchAll(/object ([0-9a-f]{40}): (\w+: .*)/g)].map(
    ([, oid, why]): ObjectFault => ({ oid: oid as Oid, why: why ?? '' }),
  )
  return { ok: false, reason: line.replace(/^(?:fatal|error): /, '').slice(0, 160), missing, faults }
}

async function readUpTo(source: AsyncIterator<Buffer>, most: number): Promise<{ bytes: Buffer; ended: boolean }> {
  const chunks: Buffer[] = []
  let size = 0
  while (size <= most) {
    const next = await source.next()
    if (next.done) return { bytes: Buffer.concat(chunks), ended: true }
    chunks.push(next.value)
    size += next.value.length
  }
  return { bytes: Buffer.concat(chunks), ended: false }
}

const REF_DELTA = 7

/**
 * Whether the pack may go to `unpack-objects`, which would find the base of a delta anywhere in the store: it holds no delta by id, and is no bomb.
 * Clients that write such deltas inside a pack lose nothing: `index-pack` takes them.
 */
function mayUnpack(pack: Buffer): boolean {
  let at = 12
  let inflated = 0
  try {
    for (let left = pack.readUInt32BE(8); left > 0; left--) {
      const type = ((pack[at] ?? 0) >> 4) & 7
      while ((pack[at++] ?? 0) & 0x80);
      if (type === REF_DELTA) return false
      if (type === 6) while ((pack[at++] ?? 0) & 0x80);
      const { buffer, engine } = inflateSync(pack.subarray(at), {
        info: true,
        maxOutputLength: LOOSE_INFLATED_BYTES - inflated,
      } as object) as unknown as { buffer: Buffer; engine: { bytesWritten: number } }
      at += engine.bytesWritten
      inflated += buffer.length + 1
    }
  } catch (cause) {
    // Broken or large: index-pack says which, and streams.
    void messageOf(cause)
    return false
  }
  return at <= pack.length - 20
}

/** Indexes the small pack beside what was unpacked of it; the folder is none that is migrated. */
async function notInPack(dir: string, pack: Buffer, oids: ReadonlySet<Oid>): Promise<ReadonlySet<Oid>> {
  const [file, index] = [join(dir, 'sent.pack'), join(dir, 'sent.idx')]
  await writeFile(file, pack)
  const run = await runGit({ cwd: dir, args: ['index-pack', '-o', index, file], env: { GIT_DIR: dir } })
  if (run.exitCode !== 0) return oids
  const sent = await readFile(index)
  return new Set([...oids].filter((oid) => !isInIndex(sent, oid)))
}

/** Which objects the quarantine itself holds, without the store behind it. */
export async function contents(dir: string): Promise<(oid: Oid) => boolean> {
  const folders = (await readdir(dir)).filter((name) => /^[0-9a-f]{2}$/.test(name))
  const objects = folders.map(async (folder) => (await readdir(join(dir, folder))).map((name) => folder + name))
  const loose = new Set((await Promise.all(objects)).flat())
  const names = await readdir(join(dir, 'pack'))
  const indexes = await Promise.all(
    names.filter((name) => name.endsWith('.idx')).map((name) => readFile(join(dir, 'pack', name))),
  )
  return (oid) => isOid(oid) && (loose.has(oid) || indexes.some((index) => isInIndex(index, oid)))
}

/** Looks an id up in a pack index of version 2: 8 bytes, a fan-out of 256 counts, then the ids in order. */
function isInIndex(index: Buffer, oid: Oid): boolean {
  const bytes = Buffer.from(oid, 'hex')
  const first = bytes[0] ?? 0
  const ids = 8 + 256 * 4
  let low = first === 0 ? 0 : index.readUInt32BE(8 + (first - 1) * 4)
  let high = index.readUInt32BE(8 + first * 4)
  while (low < high) {
    const middle = (low + high) >>> 1
    const order = index.compare(bytes, 0, 20, ids + middle * 20, ids + middle * 20 + 20)
    if (order === 0) return true
    if (order < 0) low = middle + 1
    else high = middle
  }
  return false
}
