/** A checkpoint of the user's checkout, made by `hangar-agent snapshot` into a directory of its own: the repository stays untouched. */
import { spawn } from 'node:child_process'
import { copyFile, mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Checkout, gitIn, globalExcludes, lineEnds, type StateTrees } from './checkout.ts'
import { EXIT, Failure, protectedWork, usage } from './failure.ts'

const HELPER = fileURLToPath(new URL('../../agent-helper/hangar-agent', import.meta.url))

export interface Snapshot extends StateTrees {
  readonly commit: string
  readonly head: string
  readonly headTree: string
  readonly unborn: boolean
  readonly warnings: readonly string[]
  /** Where the new objects are. */
  readonly objects: string
  /** For every git that is to see the new objects. */
  readonly env: Readonly<Record<string, string>>
}

/** Gives the snapshot to `use`, and removes its objects afterwards. `strict` refuses what cannot be carried. */
export async function withSnapshot<T>(
  checkout: Checkout,
  options: { readonly strict: boolean },
  use: (snapshot: Snapshot) => Promise<T>,
): Promise<T> {
  const objects = await mkdtemp(join(tmpdir(), 'hangar-objects-'))
  try {
    return await use(await take(checkout, objects, options.strict))
  } finally {
    await rm(objects, { recursive: true, force: true })
  }
}

async function take(checkout: Checkout, objects: string, strict: boolean): Promise<Snapshot> {
  const excludes = globalExcludes(checkout)
  const { status, out, err } = await run([
    HELPER,
    'snapshot',
    '--repo',
    checkout.top,
    '--objects',
    objects,
    ...(strict ? ['--strict'] : []),
    ...(excludes === null ? [] : ['--excludes', excludes]),
    '--autocrlf',
    lineEnds(checkout),
    ...untrackedCaps(),
  ])
  const said = err.replace(/^hangar-agent: /gm, '').trim()
  if (status === 5) {
    const raise = said.includes('too much is untracked')
      ? '\nor let more travel: HANGAR_UNTRACKED_MB (512), HANGAR_UNTRACKED_FILES (20000)'
      : ''
    throw protectedWork(`this checkout cannot be handed over as it is:\n${said}${raise}`)
  }
  if (status !== 0) throw new Failure(EXIT.usage, said === '' ? 'the state of this checkout could not be read' : said)
  const values = new Map<string, string>()
  const warnings: string[] = []
  for (const line of out.split('\n')) {
    const [word = '', ...rest] = line.split(' ')
    if (word === 'warning') warnings.push(rest.join(' '))
    else values.set(word, rest.join(' '))
  }
  const commit = values.get('commit') ?? ''
  const env = {
    GIT_OBJECT_DIRECTORY: objects,
    GIT_ALTERNATE_OBJECT_DIRECTORIES: quoted(join(checkout.commonDir, 'objects')),
  }
  const trees = await gitIn(checkout, {
    args: ['rev-parse', `${commit}^{tree}`, `${commit}^1^{tree}`, `${commit}^2^{tree}`, `${commit}^3^{tree}`],
    env,
  })
  const [tracked = '', headTree = '', index = '', untracked = ''] = trees.toString('latin1').trim().split('\n')
  return {
    commit,
    head: values.get('head') ?? '',
    headTree,
    unborn: values.has('unborn'),
    tracked,
    index,
    untracked,
    warnings,
    objects,
    env,
  }
}

/** The caps of `HANGAR_UNTRACKED_MB` and `HANGAR_UNTRACKED_FILES`, where they are set. */
function untrackedCaps(): string[] {
  const cap = (variable: string): number | null => {
    const value = process.env[variable]
    if (value === undefined || value === '') return null
    if (!/^\d{1,9}$/.test(value)) throw usage(`${variable}=${value}: that is not a whole number`)
    return Number(value)
  }
  const [megabytes, files] = [cap('HANGAR_UNTRACKED_MB'), cap('HANGAR_UNTRACKED_FILES')]
  return [
    ...(megabytes === null ? [] : ['--max-bytes', String(megabytes * 1_048_576)]),
    ...(files === null ? [] : ['--max-files', String(files)]),
  ]
}

/** Moves a snapshot's objects into the checkout's own store, and keeps a commit of them under a ref. */
export async function keepSnapshot(
  checkout: Checkout,
  snapshot: Pick<Snapshot, 'objects' | 'commit'>,
  ref: string,
): Promise<void> {
  for (const folder of await readdir(snapshot.objects)) {
    if (!/^[0-9a-f]{2}$/.test(folder)) continue
    const to = join(checkout.commonDir, 'objects', folder)
    await mkdir(to, { recursive: true })
    for (const name of await readdir(join(snapshot.objects, folder))) {
      // Copied beside its place first: a half-written object must never have its name.
      const temporary = join(to, `tmp_obj_hangar_${process.pid}_${name}`)
      await copyFile(join(snapshot.objects, folder, name), temporary)
      await rename(temporary, join(to, name))
    }
  }
  await gitIn(checkout, { args: ['update-ref', '-m', 'hangar: kept', ref, snapshot.commit] })
}

/** One entry of a colon-separated list, as git unquotes it. */
function quoted(path: string): string {
  return `"${path.replace(/(["\\])/g, '\\$1')}"`
}

function run(args: readonly string[]): Promise<{ status: number | null; out: string; err: string }> {
  return new Promise((resolve, reject) => {
    const child = spawn('sh', args, { stdio: ['ignore', 'pipe', 'pipe'] })
    let out = ''
    let err = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      out += text
    })
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      err += text
    })
    child.once('error', (cause) => reject(new Failure(EXIT.usage, `sh could not be started: ${cause.message}`, cause)))
    child.once('close', (status) => resolve({ status, out, err }))
  })
}
