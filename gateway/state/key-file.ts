/** A key file: made once, readable by the server only, and never half there. */
import { randomBytes } from 'node:crypto'
import { link, mkdir, open, readFile, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { errors } from '../../domain/errors.ts'

/** Gives the file's text; when there is none, makes it, mode 0600, on the disk before it is used. Two servers that start at once agree on one key. */
export async function loadOrMakeKey(file: string, make: () => Promise<string>): Promise<string> {
  const existing = await readOrNull(file)
  if (existing !== null) return existing
  await mkdir(dirname(file), { recursive: true, mode: 0o700 })
  const temporary = `${file}.${randomBytes(6).toString('hex')}.tmp`
  try {
    await writeSynced(temporary, await make())
    // A link, not a rename: it fails when another server was first, and that one's key may be in use already.
    await link(temporary, file).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error
    })
    await syncDirectory(dirname(file))
  } finally {
    await rm(temporary, { force: true })
  }
  const text = await readOrNull(file)
  if (text === null) throw errors.storeUnusable(`the key file ${file} could not be made`)
  return text
}

async function readOrNull(file: string): Promise<string | null> {
  return readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null
    throw errors.storeUnusable(
      `the key file ${file} cannot be read (${error.code}); give the server's user access`,
      {},
      error,
    )
  })
}

async function writeSynced(file: string, text: string): Promise<void> {
  const handle = await open(file, 'wx', 0o600)
  try {
    await handle.writeFile(text)
    await handle.sync()
  } finally {
    await handle.close()
  }
}

async function syncDirectory(dir: string): Promise<void> {
  const handle = await open(dir, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
