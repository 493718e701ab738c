/** One server a store: a file that names its holder, by pid, start time and boot, so that a dead holder is told from a live one. */
import { randomBytes } from 'node:crypto'
import { link, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { errors } from '../../domain/errors.ts'

interface Holder {
  readonly pid: number
  /** Field 22 of /proc/<pid>/stat: clock ticks since the boot. A pid alone may have been given to another process since. */
  readonly started: string
  readonly boot: string
}

/** Takes the store's lock; gives its release. Throws `store_unusable` while another server lives. */
export async function lockStore(dataDir: string): Promise<() => Promise<void>> {
  const file = join(dataDir, 'lock')
  const mine = JSON.stringify(await describeProcess(process.pid))
  const temporary = `${file}.${randomBytes(6).toString('hex')}`
  await writeFile(temporary, mine, { mode: 0o600 })
  try {
    for (let attempt = 0; attempt < 5; attempt += 1) {
      if (await linkUnlessThere(temporary, file))
        return async () => {
          if ((await readFile(file, 'utf8').catch(() => '')) === mine) await rm(file, { force: true })
        }
      await removeIfDead(file)
    }
  } finally {
    await rm(temporary, { force: true })
  }
  throw errors.storeUnusable(`${file} changes hands; another server is starting on this store`)
}

async function linkUnlessThere(from: string, to: string): Promise<boolean> {
  try {
    await link(from, to)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  }
}

async function removeIfDead(file: string): Promise<void> {
  const text = await readFile(file, 'utf8').catch(() => null)
  if (text === null) return
  const holder = parseHolder(text)
  if (holder !== null && (await isAlive(holder)))
    throw errors.storeUnusable(
      `another hangar server (pid ${holder.pid}) runs on this store; stop it first, or give this one another data directory`,
    )
  // Two servers may find the same dead holder: what is moved away must be that one, or it goes back.
  const aside = `${file}.${randomBytes(6).toString('hex')}`
  await rename(file, aside).catch(() => {})
  if ((await readFile(aside, 'utf8').catch(() => text)) !== text) await linkUnlessThere(aside, file)
  await rm(aside, { force: true })
}

async function isAlive(holder: Holder): Promise<boolean> {
  const now = await describeProcess(holder.pid).catch(() => null)
  return now !== null && now.boot === holder.boot && now.started === holder.started
}

async function describeProcess(pid: number): Promise<Holder> {
  const boot = (await readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => '')).trim()
  return { pid, started: await startTime(pid), boot }
}

async function startTime(pid: number): Promise<string> {
  const stat = await readFile(`/proc/${pid}/stat`, 'latin1').catch(() => null)
  // The second field is the program's name in brackets and may itself hold brackets and spaces.
  if (stat !== null) {
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    // Killed, but not yet asked for by its parent: in a container it may stay so for good.
    if (fields[0] === 'Z' || fields[0] === 'X') throw errors.internal(`process ${pid} has ended`)
    return fields[19] ?? ''
  }
  // No /proc (macOS): only whether the pid lives can be told.
  process.kill(pid, 0)
  return ''
}

function parseHolder(text: string): Holder | null {
  try {
    const { pid, started, boot } = JSON.parse(text) as Partial<Holder>
    return typeof pid === 'number' && typeof started === 'string' && typeof boot === 'string'
      ? { pid, started, boot }
      : null
  } catch {
    return null
  }
}
