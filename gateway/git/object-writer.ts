/** Writes loose objects: isomorphic-git names, wraps and deflates them, a file system given to it puts them on the disk atomically. */
import { createHash, randomBytes } from 'node:crypto'
import { type FileHandle, mkdir, open, rename, rm, utimes } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { deflateSync, deflate as zlibDeflate } from 'node:zlib'
import * as git from 'isomorphic-git'
import type { Oid } from '../../domain/names.ts'
import type { GitObject } from './repository.ts'

export interface CommitInput {
  readonly tree: Oid
  readonly parents: readonly Oid[]
  readonly message: string
  /** Milliseconds. */
  readonly at: number
}

export interface ObjectWriter {
  write(type: GitObject['type'], body: Uint8Array): Promise<Oid>
  commit(input: CommitInput): Promise<Oid>
}

/** A writer into one git directory. A write that resolved is on the disk; one that was cut leaves at most a `tmp_obj_*`, which git prunes. */
export function createObjectWriter(deps: {
  readonly gitDir: string
  readonly sign: (payload: string) => Promise<string>
}): ObjectWriter {
  const common = { fs: writeOnlyFs({ seesObjects: true }), dir: deps.gitDir, gitdir: deps.gitDir }
  // It would read each parent that it sees, from packs as well, and has no need to.
  const blind = { ...common, fs: writeOnlyFs({ seesObjects: false }) }
  return {
    async write(type, body) {
      const oid = objectId(type, body)
      // Deflated here: isomorphic-git does it through a web stream, which costs a small object more than all the rest.
      const object = await deflated(type, body)
      return (await git.writeObject({ ...common, type: type as 'blob', format: 'deflated', object, oid })) as Oid
    },
    async commit({ tree, parents, message, at }) {
      const person = { name: 'hangar', email: 'hangar@localhost', timestamp: Math.floor(at / 1000), timezoneOffset: 0 }
      return (await git.commit({
        ...blind,
        // It looks the ref up first; `noUpdateBranch` and the file system both keep it from moving anything.
        ref: 'refs/hangar/none',
        noUpdateBranch: true,
        tree,
        parent: [...parents],
        message,
        author: person,
        committer: person,
        signingKey: 'server',
        onSign: async ({ payload }) => ({ signature: await deps.sign(payload) }),
      })) as Oid
    },
  }
}

const deflate = promisify(zlibDeflate)
const DEFLATE_AT_ONCE_BYTES = 16_384

function deflated(type: GitObject['type'], body: Uint8Array): Buffer | Promise<Buffer> {
  const whole = Buffer.concat([Buffer.from(`${type} ${body.length}\0`), body])
  return whole.length <= DEFLATE_AT_ONCE_BYTES ? deflateSync(whole) : deflate(whole)
}

/** The id that an object has, as git computes it. */
export function objectId(type: GitObject['type'], body: Uint8Array): Oid {
  return createHash('sha1').update(`${type} ${body.length}\0`).update(body).digest('hex') as Oid
}

/**
 * isomorphic-git's view of the disk: nothing but loose objects can be seen or written, so it reads no pack (it would load it whole),
 * no ref, no index and no config, and moves no ref.
 */
function writeOnlyFs({ seesObjects }: { seesObjects: boolean }): git.PromiseFsClient {
  const absent = (path: string) => Object.assign(new Error(`ENOENT: ${path}`), { code: 'ENOENT' })
  const refuse = async (path: string) => {
    throw absent(path)
  }
  return {
    promises: {
      readFile: refuse,
      writeFile: (path: string, data: Uint8Array) => {
        if (!OBJECT.test(path)) throw new Error(`isomorphic-git may write objects only, not ${path}`)
        return writeAtomically(path, data)
      },
      // It asks whether the object is there. Touching it keeps it from a prune of old objects, as git's own writers do.
      stat: async (path: string) => {
        if (!seesObjects || !OBJECT.test(path)) throw absent(path)
        const now = new Date()
        await utimes(path, now, now)
        return {}
      },
      lstat: refuse,
      readlink: refuse,
      readdir: async () => [],
      mkdir: async () => {},
      rmdir: async () => {},
      unlink: async () => {},
      symlink: async () => {},
    },
  }
}

const OBJECT = /\/objects\/[0-9a-f]{2}\/[0-9a-f]{38}$/

/**
 * The bytes are on the disk before the name is; the ref that needs the object comes later, and its own fsync orders the rename
 * (git's `core.fsync=committed` promises no more). A new fan-out directory is synced, being the rarer and the greater loss.
 */
async function writeAtomically(path: string, data: Uint8Array): Promise<void> {
  const dir = dirname(path)
  const temporary = join(dir, `tmp_obj_${randomBytes(8).toString('hex')}`)
  const handle = await open(temporary, 'wx', 0o444).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error
    await mkdir(dir, { recursive: true })
    await syncPath(dirname(dir))
    return open(temporary, 'wx', 0o444)
  })
  try {
    await writeSynced(handle, data)
    await rename(temporary, path)
  } catch (error) {
    await rm(temporary, { force: true })
    throw error
  }
}

async function writeSynced(handle: FileHandle, data: Uint8Array): Promise<void> {
  try {
    await handle.writeFile(data)
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/** Puts a directory's entries on the disk. */
export async function syncPath(path: string): Promise<void> {
  const handle = await open(path, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
