/** The directory of a local sandbox: makes it, reads its record, removes it. */

import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { constants, realpathSync } from 'node:fs'
import {
  chmod,
  chown,
  copyFile,
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  unlink,
  writeFile,
} from 'node:fs/promises'
import { join } from 'node:path'
import { errors } from '../../domain/errors.ts'
import type { Clock } from '../../domain/ports.ts'
import type { SandboxSpec } from '../../domain/sandbox.ts'
import { type HostFacts, type Isolation, insidePaths, type LocalSandbox, userReaches } from './local-isolation.ts'
import { reapScript } from './local-processes.ts'
import type { Relay } from './relay.ts'
import { RELAY_DIR, RELAY_PORTS, relayScript } from './relay-inside.ts'
import { authorization, gitConfig } from './sandbox-git.ts'

/** Users that sandboxes get, one each, begin here, above what systems hand out by themselves: each store on a host has 100,000 of its own. */
const FIRST_UID = 500_000_001
const UIDS_PER_STORE = 100_000
const UID_RANGES = 15_000
const ID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/

/** A sandbox's directory. Throws `invalid_name` on an id that is no plain file name. */
export function sandboxDir(sandboxesDir: string, id: string): string {
  if (!ID.test(id)) throw errors.invalidName(`sandbox id ${JSON.stringify(id.slice(0, 80))} is not taken`)
  return join(sandboxesDir, id)
}

/** Ids of all sandboxes that have been made in full. */
export async function listSandboxes(sandboxesDir: string): Promise<string[]> {
  return (await readSandboxes(sandboxesDir)).map(({ id }) => id).sort()
}

/** All directories of sandboxes with their age, also those that a crash left half-made. */
export async function listDirectories(sandboxesDir: string): Promise<{ id: string; createdAt: number }[]> {
  const names = (await readdir(sandboxesDir).catch(() => [])).filter((name) => ID.test(name)).sort()
  const found = await Promise.all(
    names.map(async (id) => {
      const sandbox = await readSandbox(sandboxesDir, id)
      const createdAt = sandbox?.createdAt ?? (await stat(sandboxDir(sandboxesDir, id)).catch(() => null))?.mtimeMs
      return createdAt === undefined ? null : { id, createdAt }
    }),
  )
  return found.filter((entry) => entry !== null)
}

async function readSandboxes(sandboxesDir: string): Promise<LocalSandbox[]> {
  const names = await readdir(sandboxesDir).catch(() => [])
  const read = await Promise.all(names.map((name) => (ID.test(name) ? readSandbox(sandboxesDir, name) : null)))
  return read.filter((sandbox) => sandbox !== null)
}

/** The sandbox's own record; null when there is none. */
export async function readSandbox(sandboxesDir: string, id: string): Promise<LocalSandbox | null> {
  const dir = sandboxDir(sandboxesDir, id)
  const text = await readFile(join(dir, 'sandbox.json'), 'utf8').catch(() => null)
  return text === null ? null : ({ ...(JSON.parse(text) as object), id, dir } as LocalSandbox)
}

/** Makes the directory with home, checkout, grant, git configuration and helper; made again, it gives the same sandbox with the grant renewed. */
export async function makeSandbox(
  deps: {
    readonly sandboxesDir: string
    readonly helperFile: string
    readonly isolation: Isolation
    readonly host: HostFacts
    readonly relay?: Pick<Relay, 'directoryFor'>
    readonly clock: Clock
  },
  spec: SandboxSpec,
): Promise<LocalSandbox> {
  const dir = sandboxDir(deps.sandboxesDir, spec.id)
  await mkdir(deps.sandboxesDir, { recursive: true, mode: 0o711 })
  await chmod(deps.sandboxesDir, 0o711)
  const known = await readSandbox(deps.sandboxesDir, spec.id)
  const isolation = known?.isolation ?? deps.isolation
  if (spec.egress !== null && (isolation !== 'bubblewrap' || deps.relay === undefined))
    throw errors.sandboxFailed(
      'its environment limits the network (egress), which only bubblewrap can keep on this host: install bubblewrap, or take egress out',
    )
  if (known === null) await mkdir(dir, { recursive: true, mode: 0o700 })
  const plain: LocalSandbox = {
    id: spec.id,
    dir,
    isolation,
    uid: null,
    path: spec.path,
    mounts: spec.mounts,
    limits: known?.limits ?? spec.limits,
    relay:
      spec.egress === null || deps.relay === undefined
        ? null
        : { dir: await deps.relay.directoryFor(spec.egress), proxy: spec.egress.length > 0 },
  }
  const sandbox = { ...plain, uid: known === null ? await chooseUid(deps, plain) : known.uid }
  await layOut(sandbox, spec, deps.helperFile)
  const { uid, path, mounts, limits, relay } = sandbox
  const createdAt = known?.createdAt ?? deps.clock.now()
  const record = { isolation, uid, path, mounts, limits, relay, createdAt }
  await writeFile(join(dir, 'sandbox.json.tmp'), JSON.stringify(record), { mode: 0o600 })
  await rename(join(dir, 'sandbox.json.tmp'), join(dir, 'sandbox.json'))
  return sandbox
}

/** By its place: all of a user's processes are ended with its sandbox, so no other store may give that user to one of its own. */
function firstUid(sandboxesDir: string): number {
  const place = createHash('sha256').update(realpathSync(sandboxesDir)).digest().readUInt32BE(0)
  return FIRST_UID + (place % UID_RANGES) * UIDS_PER_STORE
}

/** A user of the sandbox's own, when the server may make one and that user reaches all that the sandbox needs; else null. */
async function chooseUid(
  { sandboxesDir, host }: { readonly sandboxesDir: string; readonly host: HostFacts },
  sandbox: LocalSandbox,
): Promise<number | null> {
  if (sandbox.isolation === 'none' || !host.canChangeUser()) return null
  const others = await readSandboxes(sandboxesDir)
  const taken = new Set(others.map((other) => other.uid))
  let uid = firstUid(sandboxesDir)
  while (taken.has(uid)) uid++
  await chown(sandbox.dir, 0, uid)
  await chmod(sandbox.dir, 0o750)
  const reaches = userReaches(uid, [sandbox.dir, ...sandbox.path, ...sandbox.mounts])
  if (reaches && (sandbox.isolation === 'uid' || host.bubblewrapWorks(uid))) return uid
  if (sandbox.isolation === 'bubblewrap') return null
  await rm(sandbox.dir, { recursive: true, force: true })
  throw errors.sandboxFailed(
    `a sandbox's own user cannot reach ${sandbox.dir} or a mounted directory: put HANGAR_DATA where every user may pass (mode 711), or install bubblewrap`,
  )
}

async function layOut(sandbox: LocalSandbox, spec: SandboxSpec, helperFile: string): Promise<void> {
  const { dir, uid } = sandbox
  const run = join(dir, 'run')
  const put = async (path: string, text: string, mode: number) => {
    await writeFile(`${path}.tmp`, text, { mode })
    await chmod(`${path}.tmp`, mode)
    if (uid !== null) await chown(`${path}.tmp`, uid, uid)
    await rename(`${path}.tmp`, path)
  }
  for (const [path, mode] of [
    ['', 0o710],
    ['turns', 0o700],
    ['run', 0o750],
    ['run/bin', 0o755],
    ['run/etc', 0o755],
  ] as const) {
    await mkdir(join(dir, path), { recursive: true })
    await chmod(join(dir, path), mode)
    if (uid !== null) await chown(join(dir, path), 0, uid)
  }
  for (const path of ['home', 'home/repo']) await giveDirectory(join(dir, path), uid)
  await chmod(join(dir, 'home'), 0o700)
  await copyFile(helperFile, join(run, 'bin', '.hangar-agent'))
  await chmod(join(run, 'bin', '.hangar-agent'), 0o755)
  await rename(join(run, 'bin', '.hangar-agent'), join(run, 'bin', 'hangar-agent'))
  await put(
    join(run, 'etc', 'passwd'),
    'root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n',
    0o644,
  )
  await put(join(run, 'etc', 'group'), 'root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n', 0o644)
  await put(join(run, 'grant'), `${spec.grant}\n`, 0o600)
  await put(join(run, 'authorization'), authorization(spec), 0o600)
  await put(join(run, 'gitconfig'), gitConfig(spec, insidePaths(sandbox).grantFile), 0o644)
  if (sandbox.relay) await put(join(run, 'relay'), relayScript({ dir: RELAY_DIR, ports: RELAY_PORTS }), 0o644)
  await writeFile(join(dir, 'reap'), reapScript(sandbox), { mode: 0o600 })
}

/** Makes a directory, or takes the one that is there, and gives it to the user. An agent may have put a link in its place, which leads anywhere. */
async function giveDirectory(path: string, uid: number | null): Promise<void> {
  const make = () =>
    mkdir(path).catch((cause: NodeJS.ErrnoException) => {
      if (cause.code !== 'EEXIST') throw cause
    })
  const flags = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW
  await make()
  if (uid === null) return
  const place = await open(path, flags).catch(async (cause: NodeJS.ErrnoException) => {
    if (cause.code !== 'ENOTDIR' && cause.code !== 'ELOOP') throw cause
    await unlink(path)
    await make()
    return open(path, flags)
  })
  try {
    await place.chown(uid, uid)
  } finally {
    await place.close()
  }
}

/** Removes the directory, whatever modes the agent has set in it. */
export async function removeSandboxDir(sandboxesDir: string, dir: string, name: string): Promise<void> {
  const gone = join(sandboxesDir, `.gone-${name}-${process.hrtime.bigint()}`)
  // Out of the way in one step: half a sandbox is never taken for one.
  await rename(dir, gone).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code !== 'ENOENT') throw cause
  })
  await removeTree(gone)
}

/** Removes what an earlier server had no time to remove. */
export async function sweepGone(sandboxesDir: string): Promise<void> {
  for (const name of await readdir(sandboxesDir).catch(() => []))
    if (name.startsWith('.gone-')) await removeTree(join(sandboxesDir, name))
}

/** By `rm`, which goes down step by step: a tree may be deeper than any path that a system call takes, and hold names that are no text. */
async function removeTree(path: string): Promise<void> {
  try {
    await rm(path, { recursive: true, force: true, maxRetries: 3 })
  } catch {
    // A plain user cannot empty a directory without its permissions; its owner can give them back.
    await run('chmod', ['-R', 'u+rwx', '--', path]).catch(() => {})
    await run('rm', ['-rf', '--', path])
  }
}

function run(program: string, args: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { stdio: 'ignore', env: { PATH: '/usr/bin:/bin' } })
    child.once('error', reject)
    child.once('exit', (code) => (code === 0 ? resolve() : reject(new Error(`${program} ended with ${code}`))))
  })
}
