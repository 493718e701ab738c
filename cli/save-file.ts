/** Saves what came from an agent below a directory: never outside of it, never through a symbolic link, never over another file unasked. */
import { lstatSync, mkdirSync, readFileSync, realpathSync, unlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { protectedWork, usage } from './failure.ts'

export interface SaveOptions {
  /** Replace a file that has another content. */
  readonly force: boolean
}

/** Writes the file without any right to execute it; gives whether it was not there as it is already. Throws what is in the way. */
export function saveFile(root: string, path: string, content: Uint8Array, { force }: SaveOptions): boolean {
  const parts = path.split('/')
  if (path === '' || parts.some((part) => part === '' || part === '.' || part === '..' || /[\0\\]/.test(part)))
    throw usage(`artifact ${JSON.stringify(path)} would leave ${root}; print it with --get instead`)
  if (parts.some((part) => /^(?:\.git[ .]*|git~\d+)$/i.test(part)))
    throw protectedWork(`artifact ${path} would be written into a git directory; print it with --get instead`)
  mkdirSync(root, { recursive: true })
  const file = join(directoryFor(realpathSync(root), parts.slice(0, -1)), parts.at(-1) ?? '')
  const found = lstatSync(file, { throwIfNoEntry: false })
  if (found?.isFile() === true && readFileSync(file).equals(content)) return false
  if (found !== undefined) {
    if (!found.isFile())
      throw protectedWork(`${file} is there and is no plain file; move it away, or save into another directory`)
    if (!force)
      throw protectedWork(
        `${file} is there with another content; save into another directory, or overwrite it with --force`,
      )
    unlinkSync(file)
  }
  // Exclusive: what another program put there meanwhile, a link for one, is an error and not followed.
  writeFileSync(file, content, { flag: 'wx', mode: 0o644 })
  return true
}

function directoryFor(root: string, parts: readonly string[]): string {
  let directory = root
  for (const part of parts) {
    directory = join(directory, part)
    const found = lstatSync(directory, { throwIfNoEntry: false })
    if (found === undefined) mkdirSync(directory)
    else if (!found.isDirectory())
      throw protectedWork(
        `${directory} is ${found.isSymbolicLink() ? 'a symbolic link' : 'no directory'}; nothing is written through it: move it away, or save into another directory`,
      )
  }
  return directory
}
