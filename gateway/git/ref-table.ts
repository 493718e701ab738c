/** All refs of a repository in memory, kept right by its own transactions and by looking for writers from outside. */
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { isOid, type Oid, type RefName, ZERO_OID } from '../../domain/names.ts'
import { packedChanges, packedRefs } from './packed-refs.ts'
import type { RefSnapshot, RefUpdate } from './repository.ts'

/**
 * A directory or file whose mtime is younger than this when it is looked at may change again within the same tick of the file
 * system's clock and look the same: it is looked at again the next time. (Git calls such entries racily clean.) A tick is 4 to 10 ms,
 * but on a virtual machine that was kept waiting the file system's clock was seen to lag by more than 50.
 */
const RACY_MS = 250

interface LooseFile {
  readonly mark: string
  readonly settled: boolean
  /** An oid, the target of a symbolic ref, or null when the file holds neither (cut by a crash). */
  readonly value: Oid | { readonly symref: string } | null
}

interface LooseDirectory {
  mark: string
  settled: boolean
  readonly files: Map<string, LooseFile>
}

/**
 * An outside writer is noticed when it works as git does: a loose ref is written by making `<ref>.lock` beside it and renaming it (which
 * changes the directory's mtime), and packed-refs and HEAD are replaced by a rename (another inode). Writing into a ref's file in
 * place is not noticed. A check costs one `stat` for each directory that holds loose refs (few, as refs are packed) and two more.
 *
 * Everything is synchronous, so that no transaction can come between the looking and the taking in. Loose refs are read before
 * packed ones: `pack-refs` writes packed-refs before it removes a loose file, so a ref on its way is seen at least once.
 */
export class RefTable {
  readonly #gitDir: string
  #directories = new Map<string, LooseDirectory>()
  #packed = new Map<string, Oid>()
  #packedMark = ''
  /** As it was read last; our own transactions change it through git alone. */
  #packedFile: Buffer | null = null
  #head = 'refs/heads/main' as RefName
  #headMark = ''
  #version = 0
  #sorted: RefSnapshot['refs'] | null = null
  #changed = new Set<string>()
  #symrefs = 0
  #loaded = false

  constructor(gitDir: string) {
    this.#gitDir = gitDir
  }

  /** Forgets everything; the next refresh reads it all again. */
  clear(): void {
    this.#loaded = false
    this.#directories = new Map()
    this.#packed = new Map()
    this.#packedMark = ''
    this.#packedFile = null
    this.#sorted = null
    this.#symrefs = 0
    this.#changed.clear()
    this.#version += 1
  }

  get(ref: string, depth = 0): Oid | null {
    const slash = ref.lastIndexOf('/')
    const value = this.#directories.get(ref.slice(0, slash))?.files.get(ref.slice(slash + 1))?.value
    if (typeof value === 'string') return value
    if (value === undefined) return this.#packed.get(ref) ?? null
    return value === null || depth > 5 ? null : this.get(value.symref, depth + 1)
  }

  /** Takes in what others have written since the last time. */
  refresh(): void {
    if (!this.#loaded) this.#scan('refs')
    this.#loaded = true
    for (const [path, directory] of [...this.#directories]) {
      const mark = markOf(this.#path(path))
      if (mark.text !== directory.mark || !directory.settled) this.#scan(path)
    }
    const packed = markOf(this.#path('packed-refs'))
    if (packed.text !== this.#packedMark) this.#loadPacked(packed.text)
    const head = markOf(this.#path('HEAD'))
    if (head.text !== this.#headMark || !head.settled) this.#loadHead(head.text)
  }

  /** Takes in what a transaction of ours has just written. */
  apply(updates: readonly RefUpdate[]): void {
    if (!this.#loaded) return
    for (const { ref, new: oid } of updates) {
      const slash = ref.lastIndexOf('/')
      const path = ref.slice(0, slash)
      const directory = this.#directories.get(path) ?? { mark: '', settled: false, files: new Map() }
      directory.settled = false
      if (oid === ZERO_OID) {
        directory.files.delete(ref.slice(slash + 1))
        this.#packed.delete(ref)
      } else {
        directory.files.set(ref.slice(slash + 1), { mark: '', settled: false, value: oid })
        this.#directories.set(path, directory)
      }
      this.#touch(ref)
    }
  }

  snapshot(): RefSnapshot {
    this.#sorted = this.#sorted === null || this.#symrefs > 0 ? this.#sortAll() : this.#sortChanged(this.#sorted)
    this.#changed.clear()
    return { version: this.#version, head: this.#head, refs: this.#sorted }
  }

  #path(name: string): Buffer {
    return Buffer.concat([Buffer.from(join(this.#gitDir, '/')), Buffer.from(name, 'latin1')])
  }

  #touch(ref: string): void {
    this.#version += 1
    if (this.#sorted !== null) this.#changed.add(ref)
  }

  #scan(path: string): void {
    const mark = markOf(this.#path(path))
    const known = this.#directories.get(path)
    if (mark.text === '') {
      for (const name of known?.files.keys() ?? []) this.#touch(`${path}/${name}`)
      this.#directories.delete(path)
      return
    }
    const directory: LooseDirectory = known ?? { mark: '', settled: false, files: new Map() }
    directory.mark = mark.text
    directory.settled = mark.settled
    this.#directories.set(path, directory)
    const seen = new Set<string>()
    for (const entry of entriesOf(this.#path(path))) {
      const name = entry.name.toString('latin1')
      if (entry.isDirectory()) {
        if (!this.#directories.has(`${path}/${name}`)) this.#scan(`${path}/${name}`)
      } else if (!name.endsWith('.lock') && !/[\x00-\x20\x7f]/.test(name)) {
        if (this.#readLoose(directory, path, name)) seen.add(name)
      }
    }
    for (const name of [...directory.files.keys()]) {
      if (seen.has(name)) continue
      directory.files.delete(name)
      this.#touch(`${path}/${name}`)
    }
  }

  /** False when the file has gone since its directory was read. */
  #readLoose(directory: LooseDirectory, path: string, name: string): boolean {
    const file = this.#path(`${path}/${name}`)
    const mark = markOf(file)
    const known = directory.files.get(name)
    if (known?.settled && known.mark === mark.text) return true
    const text = mark.text === '' ? '' : readOrEmpty(file)
    if (text === '' && markOf(file).text === '') return false
    const value = parseLoose(text)
    directory.files.set(name, { mark: mark.text, settled: mark.settled, value })
    if (typeof value === 'object' && value !== null && typeof known?.value !== 'object') this.#symrefs += 1
    if (known === undefined || known.value !== value) this.#touch(`${path}/${name}`)
    return true
  }

  /** Of a file that is known in an older state only what changed is taken in. */
  #loadPacked(mark: string): void {
    this.#packedMark = mark
    const before = this.#packedFile
    this.#packedFile = readOrNothing(this.#path('packed-refs'))
    const changes = before === null ? null : packedChanges(before, this.#packedFile)
    if (changes === null) {
      this.#packed = new Map()
      for (const { name, oid } of packedRefs(this.#packedFile)) this.#packed.set(name, oid)
      this.#version += 1
      this.#sorted = null
      return
    }
    for (const { name, oid } of changes) {
      if (oid === null) this.#packed.delete(name)
      else this.#packed.set(name, oid)
      this.#touch(name)
    }
  }

  #loadHead(mark: string): void {
    this.#headMark = mark
    const target = /^ref: (refs\/\S+)/.exec(readOrEmpty(this.#path('HEAD')))?.[1]
    if (target === undefined || target === this.#head) return
    this.#head = target as RefName
    this.#version += 1
  }

  #sortAll(): RefSnapshot['refs'] {
    const names = new Set(this.#packed.keys())
    for (const [path, directory] of this.#directories)
      for (const name of directory.files.keys()) names.add(`${path}/${name}`)
    return [...names].sort().flatMap((name) => this.#entry(name))
  }

  /** A snapshot that was given out is never changed: the next one is a copy. */
  #sortChanged(before: RefSnapshot['refs']): RefSnapshot['refs'] {
    if (this.#changed.size === 0) return before
    // Each that comes or goes moves what is behind it.
    if (this.#changed.size > 100 + before.length / 200) return this.#sortAll()
    const refs = [...before]
    for (const name of this.#changed) {
      const at = placeOf(refs, name)
      const [entry] = this.#entry(name)
      const isThere = refs[at]?.name === name
      if (isThere && entry !== undefined) refs[at] = entry
      else refs.splice(at, isThere ? 1 : 0, ...(entry === undefined ? [] : [entry]))
    }
    return refs
  }

  #entry(name: string): { name: RefName; oid: Oid }[] {
    const oid = this.get(name)
    return oid === null ? [] : [{ name: name as RefName, oid }]
  }
}

interface Entry {
  readonly name: Buffer
  isDirectory(): boolean
}

/** What tells one state of a file from another, and whether it is old enough to tell; empty when it is absent. */
function markOf(path: Buffer): { text: string; settled: boolean } {
  // The wall clock, not the server's `Clock`: it is compared with what the file system wrote. Read first: this process may be kept
  // waiting between the two for longer than RACY_MS.
  const now = Date.now()
  const stat = statSync(path, { bigint: true, throwIfNoEntry: false })
  if (stat === undefined) return { text: '', settled: true }
  return {
    text: `${stat.mtimeNs} ${stat.ino} ${stat.size}`,
    settled: now - Number(stat.mtimeNs / 1_000_000n) > RACY_MS,
  }
}

function entriesOf(path: Buffer): readonly Entry[] {
  try {
    return readdirSync(path, { withFileTypes: true, encoding: 'buffer' }) as unknown as Entry[]
  } catch {
    // Removed since it was seen: the next refresh finds it gone.
    return []
  }
}

function readOrEmpty(path: Buffer): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    // Removed since it was seen; the next refresh finds its directory changed.
    return ''
  }
}

function readOrNothing(path: Buffer): Buffer {
  try {
    return readFileSync(path)
  } catch {
    // There is none, or it is being replaced: the next refresh finds another mark.
    return Buffer.alloc(0)
  }
}

function parseLoose(text: string): LooseFile['value'] {
  if (isOid(text.slice(0, 40))) return text.slice(0, 40) as Oid
  const symref = /^ref: (refs\/\S+)/.exec(text)?.[1]
  return symref === undefined ? null : { symref }
}

function placeOf(refs: RefSnapshot['refs'], name: string): number {
  let low = 0
  let high = refs.length
  while (low < high) {
    const middle = (low + high) >> 1
    if ((refs[middle]?.name ?? '') < name) low = middle + 1
    else high = middle
  }
  return low
}
