/** Trees as lists of files, and files on the disk beside them. Paths are bytes, held as latin1. */
import { lstat, mkdtemp, readdir, readFile, readlink, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Checkout, gitIn } from './checkout.ts'

type Env = Readonly<Record<string, string>>

/** Path to `mode oid`. */
export type TreeFiles = ReadonlyMap<string, string>

/** All files of a tree. */
export async function listTree(checkout: Checkout, env: Env, tree: string): Promise<TreeFiles> {
  const out = await gitIn(checkout, {
    args: ['ls-tree', '-r', '-z', '--full-tree', tree],
    env,
    maxOutputBytes: 512 * 1_048_576,
  })
  const files = new Map<string, string>()
  for (const line of out.toString('latin1').split('\0')) {
    const tab = line.indexOf('\t')
    if (tab === -1) continue
    const [mode = '', , oid = ''] = line.slice(0, tab).split(' ')
    files.set(line.slice(tab + 1), `${mode} ${oid}`)
  }
  return files
}

/** The tree `base` with further files put on top. */
export async function treeWith(checkout: Checkout, env: Env, base: string, files: TreeFiles): Promise<string> {
  if (files.size === 0) return base
  const scratch = await mkdtemp(join(tmpdir(), 'hangar-tree-'))
  try {
    const own = { ...env, GIT_INDEX_FILE: join(scratch, 'index') }
    await gitIn(checkout, { args: ['read-tree', base], env: own })
    const lines = [...files].map(([path, entry]) => `${entry}\t${path}\0`).join('')
    await gitIn(checkout, {
      args: ['update-index', '-z', '--index-info'],
      env: own,
      input: Buffer.from(lines, 'latin1'),
    })
    return (await gitIn(checkout, { args: ['write-tree'], env: own })).toString('latin1').trim()
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

export interface Standing {
  /** Wanted files that are on the disk just as they are wanted, though `have` does not know them. */
  readonly same: TreeFiles
  /** Paths of local files, ignored ones too, that a wanted file would overwrite or hide. */
  readonly obstacles: readonly string[]
}

/** What stands on the disk where `want` has files that `have` has not. Git itself would overwrite ignored files there. */
export async function standing(checkout: Checkout, env: Env, have: TreeFiles, want: TreeFiles): Promise<Standing> {
  const same = new Map<string, string>()
  const obstacles = new Set<string>()
  for (const [path, entry] of want) {
    if (have.has(path)) continue
    const parent = await blockingParent(checkout, path)
    if (parent !== null) {
      if (!have.has(parent)) obstacles.add(parent)
      continue
    }
    const found = await entryOnDisk(checkout, env, path)
    if (found === entry) same.set(path, entry)
    else if (found === 'directory')
      for (const inside of await filesBelow(checkout, path)) if (!have.has(inside)) obstacles.add(inside)
    if (found !== null && found !== entry && found !== 'directory') obstacles.add(path)
  }
  return { same, obstacles: [...obstacles] }
}

/** The first part of the way to a path that is there but is no directory. */
async function blockingParent(checkout: Checkout, path: string): Promise<string | null> {
  for (let slash = path.indexOf('/'); slash !== -1; slash = path.indexOf('/', slash + 1)) {
    const found = await lstat(onDisk(checkout, path.slice(0, slash))).catch(() => null)
    if (found === null) return null
    if (!found.isDirectory()) return path.slice(0, slash)
  }
  return null
}

async function entryOnDisk(checkout: Checkout, env: Env, path: string): Promise<string | null> {
  const file = onDisk(checkout, path)
  const found = await lstat(file).catch(() => null)
  if (found === null) return null
  if (found.isDirectory()) return 'directory'
  if (!found.isFile() && !found.isSymbolicLink()) return 'special'
  const content = found.isSymbolicLink() ? await readlink(file, 'buffer') : await readFile(file)
  const mode = found.isSymbolicLink() ? '120000' : (found.mode & 0o100) !== 0 ? '100755' : '100644'
  const oid = await gitIn(checkout, { args: ['hash-object', '--no-filters', '--stdin'], env, input: content })
  return `${mode} ${oid.toString('latin1').trim()}`
}

async function filesBelow(checkout: Checkout, path: string): Promise<string[]> {
  const entries = await readdir(onDisk(checkout, path), { withFileTypes: true, encoding: 'latin1' as BufferEncoding })
  const found: string[] = []
  for (const entry of entries) {
    const inside = `${path}/${entry.name}`
    if (entry.isDirectory()) found.push(...(await filesBelow(checkout, inside)))
    else found.push(inside)
  }
  return found
}

function onDisk(checkout: Checkout, path: string): Buffer {
  return Buffer.concat([Buffer.from(`${checkout.top}/`), Buffer.from(path, 'latin1')])
}
