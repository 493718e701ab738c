/** The objects of one repository: read by id or revision, trees edited, commits made. */
import { errors } from '../../domain/errors.ts'
import { EMPTY_TREE, type Oid } from '../../domain/names.ts'
import type { Signer } from '../state/sign.ts'
import { CatFile } from './cat-file.ts'
import { createObjectWriter, objectId } from './object-writer.ts'
import type { CommitData, ObjectStore, TreeEdit, TreeEntry } from './repository.ts'

const DEFAULT_MAX_BYTES = 64 * 1_048_576
/** Trees are immutable, so those read or written lately are kept, parsed: up to so many entries in all. */
const CACHED_ENTRIES = 50_000

/** The object store of a repository, with `rest()` to end its child and drop its cache until the next use. */
export function createObjectStore(deps: {
  readonly gitDir: string
  readonly signer: Pick<Signer, 'sign'>
}): ObjectStore & { rest(): void } {
  const reader = new CatFile(deps.gitDir)
  const writer = createObjectWriter({ gitDir: deps.gitDir, sign: (payload) => deps.signer.sign(payload) })
  const trees = new TreeCache()

  async function read(name: string, maxBytes = DEFAULT_MAX_BYTES) {
    const info = await reader.info(name)
    if (info === null) return null
    if (info.size > maxBytes)
      throw errors.limitPassed(
        `object ${info.oid} has ${info.size} bytes, more than the ${maxBytes} that are read here`,
      )
    return reader.contents(info.oid)
  }

  async function entriesOf(oid: Oid): Promise<readonly TreeEntry[]> {
    if (oid === EMPTY_TREE) return []
    const cached = trees.get(oid)
    if (cached !== null) return cached
    const object = await read(oid)
    if (object === null || object.type !== 'tree') throw errors.notFound(`there is no tree ${oid} in this repository`)
    return trees.put(oid, parseTree(object.body))
  }

  /** Gives the id at once; the write goes on beside its siblings and is awaited with them, where its failure counts. */
  function startWrite(type: 'blob' | 'tree', body: Uint8Array, writes: Promise<unknown>[]): Oid {
    const write = writer.write(type, body)
    write.catch(() => {})
    writes.push(write)
    return objectId(type, body)
  }

  function startTree(entries: readonly TreeEntry[], writes: Promise<unknown>[]): Oid {
    const sorted = [...entries].sort(byGitOrder)
    const body = formatTree(sorted)
    const oid = startWrite('tree', body, writes)
    trees.put(oid, sorted)
    return oid
  }

  async function edit(base: Oid | null, edits: ReadonlyMap<string, TreeEdit>, writes: Promise<unknown>[]) {
    const before = base === null ? [] : await entriesOf(base)
    const entries = new Map(before.map((entry) => [entry.name, entry]))
    for (const [name, { self, below }] of groupByFirstPart(edits)) {
      if (self !== undefined) putEntry(entries, name, self)
      if (below.size === 0) continue
      const child = entries.get(name)
      const childBase = child?.mode === '40000' ? child.oid : null
      // Removing below what is no directory changes nothing.
      if (childBase === null && [...below.values()].every((value) => value === null)) continue
      putEntry(entries, name, { oid: await edit(childBase, below, writes), mode: '40000' })
    }
    if (entries.size === 0) return EMPTY_TREE
    if (base !== null && sameEntries(before, entries)) return base
    return startTree([...entries.values()], writes)
  }

  async function editBase(base: Oid | null, edits: ReadonlyMap<string, TreeEdit>, writes: Promise<unknown>[]) {
    const oid = await edit(base, edits, writes)
    if (oid === EMPTY_TREE) startWrite('tree', Buffer.alloc(0), writes)
    return oid
  }

  return {
    read,
    info: (name) => reader.info(name),
    readTree: async (oid) => [...(await entriesOf(oid))],
    async readCommit(oid) {
      const object = await read(oid)
      return object?.type === 'commit' ? parseCommit(object.body) : null
    },
    writeBlob: (body) => writer.write('blob', body),
    async writeTree(entries) {
      const writes: Promise<unknown>[] = []
      const oid = startTree(entries, writes)
      await Promise.all(writes)
      return oid
    },
    async editTree(base, edits) {
      const writes: Promise<unknown>[] = []
      try {
        return await editBase(base, edits, writes)
      } finally {
        await Promise.all(writes)
      }
    },
    async commitFiles({ base, files, ...commit }) {
      const writes: Promise<unknown>[] = []
      try {
        const edits = new Map<string, TreeEdit>()
        for (const [path, value] of files)
          edits.set(
            path,
            value instanceof Uint8Array ? { oid: startWrite('blob', value, writes), mode: '100644' } : value,
          )
        return await writer.commit({ ...commit, tree: await editBase(base, edits, writes) })
      } finally {
        await Promise.all(writes)
      }
    },
    writeCommit: (input) => writer.commit(input),
    rest() {
      reader.rest()
      trees.clear()
    },
    close: async () => reader.close(),
  }
}

function putEntry(entries: Map<string, TreeEntry>, name: string, edit: TreeEdit): void {
  if (edit === null || (edit.mode === '40000' && edit.oid === EMPTY_TREE)) entries.delete(name)
  else entries.set(name, { name, mode: edit.mode, oid: edit.oid })
}

function sameEntries(before: readonly TreeEntry[], after: ReadonlyMap<string, TreeEntry>): boolean {
  return (
    before.length === after.size &&
    before.every((entry) => {
      const now = after.get(entry.name)
      return now !== undefined && now.oid === entry.oid && now.mode === entry.mode
    })
  )
}

interface Group {
  self?: TreeEdit
  readonly below: Map<string, TreeEdit>
}

function groupByFirstPart(edits: ReadonlyMap<string, TreeEdit>): Map<string, Group> {
  const grouped = new Map<string, Group>()
  for (const [path, edit] of edits) {
    const slash = path.indexOf('/')
    const name = slash < 0 ? path : path.slice(0, slash)
    if (name === '' || name === '.' || name === '..' || name.includes('\0') || /^\.git$/i.test(name))
      throw errors.invalidName(`${JSON.stringify(path.slice(0, 120))} is no path that a tree may hold`)
    const group: Group = grouped.get(name) ?? { below: new Map() }
    if (slash < 0) group.self = edit
    else group.below.set(path.slice(slash + 1), edit)
    grouped.set(name, group)
  }
  return grouped
}

/** Git compares names as bytes, and a directory as if its name ended in `/`. */
function byGitOrder(a: TreeEntry, b: TreeEntry): number {
  const left = a.mode === '40000' ? `${a.name}/` : a.name
  const right = b.mode === '40000' ? `${b.name}/` : b.name
  return left < right ? -1 : left > right ? 1 : 0
}

/** Written here and not by isomorphic-git's writeTree, which takes names as text and would change bytes that are not UTF-8. */
function formatTree(entries: readonly TreeEntry[]): Buffer {
  return Buffer.concat(
    entries.flatMap(({ mode, name, oid }) => [Buffer.from(`${mode} ${name}\0`, 'latin1'), Buffer.from(oid, 'hex')]),
  )
}

function parseTree(body: Buffer): TreeEntry[] {
  const entries: TreeEntry[] = []
  for (let at = 0; at < body.length; ) {
    const space = body.indexOf(32, at)
    const end = body.indexOf(0, space)
    if (space < 0 || end < 0 || end + 21 > body.length) throw errors.gitFailed('a tree object is cut')
    entries.push({
      mode: normalMode(body.toString('latin1', at, space)),
      name: body.toString('latin1', space + 1, end),
      oid: body.toString('hex', end + 1, end + 21) as Oid,
    })
    at = end + 21
  }
  return entries
}

/** Old tools wrote other permission bits (100664) and zero-padded directories; git reads them as these. */
function normalMode(mode: string): TreeEntry['mode'] {
  const bits = Number.parseInt(mode, 8)
  switch (bits & 0o170000) {
    case 0o40000:
      return '40000'
    case 0o120000:
      return '120000'
    case 0o160000:
      return '160000'
    default:
      return bits & 0o100 ? '100755' : '100644'
  }
}

function parseCommit(body: Buffer): CommitData {
  const text = body.toString('utf8')
  const end = text.indexOf('\n\n')
  const lines = (end < 0 ? text : text.slice(0, end)).split('\n')
  const values = (key: string) =>
    lines.filter((line) => line.startsWith(`${key} `)).map((line) => line.slice(key.length + 1))
  return {
    tree: (values('tree')[0] ?? '') as Oid,
    parents: values('parent') as Oid[],
    author: values('author')[0] ?? '',
    committer: values('committer')[0] ?? '',
    message: end < 0 ? '' : text.slice(end + 2),
  }
}

/** Least recently used out first, counted by entries. */
class TreeCache {
  readonly #trees = new Map<Oid, readonly TreeEntry[]>()
  #entries = 0

  get(oid: Oid): readonly TreeEntry[] | null {
    const found = this.#trees.get(oid)
    if (found === undefined) return null
    this.#trees.delete(oid)
    this.#trees.set(oid, found)
    return found
  }

  put(oid: Oid, entries: readonly TreeEntry[]): readonly TreeEntry[] {
    if (this.#trees.has(oid) || entries.length > CACHED_ENTRIES / 4) return entries
    this.#trees.set(oid, entries)
    this.#entries += entries.length + 1
    for (const [old, held] of this.#trees) {
      if (this.#entries <= CACHED_ENTRIES) break
      this.#trees.delete(old)
      this.#entries -= held.length + 1
    }
    return entries
  }

  clear(): void {
    this.#trees.clear()
    this.#entries = 0
  }
}
