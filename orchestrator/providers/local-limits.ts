/** Limits of local sandboxes: control groups (v1 or v2) below the server's own, where the kernel lets the server make them. */
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { mkdir, rmdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { errors } from '../../domain/errors.ts'
import type { SandboxLimits } from '../../domain/sandbox.ts'

type Limit = keyof SandboxLimits

/** The server's own group in the hierarchy that has a limit's controller. */
interface Hierarchy {
  readonly version: 1 | 2
  readonly dir: string
}

export interface ControlGroups {
  /** The limits that can be kept here. */
  readonly kept: readonly Limit[]
  /** Makes the groups of a sandbox, where they are not there yet, and gives their directories, none without a limit. Throws `sandbox_failed` for a limit that cannot be kept. */
  make(id: string, limits: SandboxLimits): Promise<string[]>
  /** Removes the groups of a sandbox whose processes have ended. One that is not empty yet is tried again for two seconds, and then left to the next removal. */
  remove(id: string): Promise<void>
}

const CONTROLLERS: Readonly<Record<Limit, string>> = { cpu: 'cpu', memoryMb: 'memory', pids: 'pids' }
/** The last word of a limit's setting. */
export const SETTING_OF_LIMIT: Readonly<Record<Limit, string>> = { cpu: 'cpu', memoryMb: 'memory_mb', pids: 'pids' }
const CPU_PERIOD_US = 100_000

/** What keeps the limits of sandboxes on this host, found by trying it. */
export function openControlGroups(): ControlGroups {
  const hierarchies = new Map<Limit, Hierarchy>()
  for (const limit of Object.keys(CONTROLLERS) as Limit[]) {
    const found = hierarchyOf(CONTROLLERS[limit])
    if (found !== null) hierarchies.set(limit, found)
  }
  return {
    kept: [...hierarchies.keys()],
    async make(id, limits) {
      const wanted = (Object.keys(CONTROLLERS) as Limit[]).filter((limit) => limits[limit] !== null)
      const groups = new Set<string>()
      for (const limit of wanted) {
        const hierarchy = hierarchies.get(limit)
        if (hierarchy === undefined) throw errors.sandboxFailed(notKept(limit))
        const group = groupOf(hierarchy, id)
        await mkdir(group, { recursive: true })
        for (const [file, value] of filesOf(limit, limits[limit] ?? 0, hierarchy.version))
          await writeFile(join(group, file), value).catch((cause: NodeJS.ErrnoException) => {
            // Hosts without swap accounting have no file for it, and nothing to limit.
            if (!(cause.code === 'ENOENT' && file.includes('sw'))) throw cause
          })
        groups.add(group)
      }
      return [...groups]
    },
    async remove(id) {
      for (const hierarchy of hierarchies.values()) await removeGroup(groupOf(hierarchy, id))
    },
  }
}

/** The sentence that says why a limit cannot be kept on this host, and what to do. */
export function notKept(limit: Limit): string {
  return (
    `limits.${SETTING_OF_LIMIT[limit]} needs control groups that the server may make (the controller ${CONTROLLERS[limit]}): ` +
    'run hangar as root, or as a systemd service with Delegate=yes; or take the limit out, or set "provider": "docker"'
  )
}

/** The command line that puts itself into the groups, and then becomes `argv`. */
export function joining(groups: readonly string[], argv: readonly string[]): string[] {
  if (groups.length === 0) return [...argv]
  const script = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'
  return ['sh', '-c', script, 'hangar-limits', ...groups, '--', ...argv]
}

/** The file whose line `oom_kill N` counts the processes that the kernel ended for want of memory; null without a memory limit. */
export function oomFile(groups: readonly string[]): string | null {
  const files = groups.flatMap((group) => [join(group, 'memory.events'), join(group, 'memory.oom_control')])
  return files.find((file) => existsSync(file)) ?? null
}

function groupOf(hierarchy: Hierarchy, id: string): string {
  return join(hierarchy.dir, `hangar.${id}`)
}

async function removeGroup(group: string): Promise<void> {
  for (let tries = 0; tries < 40; tries++) {
    const left = await rmdir(group).then(
      () => false,
      (error: NodeJS.ErrnoException) => error.code === 'EBUSY',
    )
    if (!left) return
    await sleep(50)
  }
}

function filesOf(limit: Limit, value: number, version: 1 | 2): readonly (readonly [string, string])[] {
  const quota = Math.max(1_000, Math.round(value * CPU_PERIOD_US))
  const bytes = String(value * 1_048_576)
  switch (limit) {
    case 'cpu':
      return version === 2
        ? [['cpu.max', `${quota} ${CPU_PERIOD_US}`]]
        : [
            ['cpu.cfs_period_us', String(CPU_PERIOD_US)],
            ['cpu.cfs_quota_us', String(quota)],
          ]
    case 'memoryMb':
      return version === 2
        ? [
            ['memory.max', bytes],
            ['memory.swap.max', '0'],
          ]
        : [
            ['memory.limit_in_bytes', bytes],
            ['memory.memsw.limit_in_bytes', bytes],
          ]
    case 'pids':
      return [['pids.max', String(value)]]
  }
}

/** The server's own group with this controller, if groups with it can be made there; else null. */
function hierarchyOf(controller: string): Hierarchy | null {
  try {
    const own = readFileSync('/proc/self/cgroup', 'utf8').split('\n')
    const mounts = readFileSync('/proc/self/mountinfo', 'utf8').split('\n')
    const v1 = place(own, mounts, { type: 'cgroup', controller })
    if (v1 !== null) return canMake(v1) ? { version: 1, dir: v1 } : null
    const v2 = place(own, mounts, { type: 'cgroup2', controller: '' })
    if (v2 === null || !delegated(v2, controller)) return null
    return canMake(v2) ? { version: 2, dir: v2 } : null
  } catch {
    return null
  }
}

/** Where a group of /proc/self/cgroup is mounted. A line there is `<number>:<controllers>:<path>`, v2's has no controllers. */
function place(
  own: readonly string[],
  mounts: readonly string[],
  wanted: { readonly type: 'cgroup' | 'cgroup2'; readonly controller: string },
): string | null {
  const path = own.map((line) => line.split(':')).find(([, names]) => names?.split(',').includes(wanted.controller))
  const group = path?.slice(2).join(':')
  if (group === undefined) return null
  for (const line of mounts) {
    const [before = '', after = ''] = line.split(' - ')
    const [type, , options = ''] = after.split(' ')
    const [, , , root = '', point = ''] = before.split(' ')
    const right = type === wanted.type && (type === 'cgroup2' || options.split(',').includes(wanted.controller))
    if (!right || !(root === '/' || group === root || group.startsWith(`${root}/`))) continue
    return join(point, root === '/' ? group : group.slice(root.length))
  }
  return null
}

/**
 * Version 2 gives a controller to children only where their parent says so, and a parent that says so may hold no processes itself: the
 * server, when it is alone in a group that was delegated to it, moves into a child.
 */
function delegated(dir: string, controller: string): boolean {
  const control = join(dir, 'cgroup.subtree_control')
  if (readFileSync(control, 'utf8').split(/\s/).includes(controller)) return true
  if (!readFileSync(join(dir, 'cgroup.controllers'), 'utf8').split(/\s/).includes(controller)) return false
  try {
    writeFileSync(control, `+${controller}`)
  } catch {
    mkdirSync(join(dir, 'hangar.server'), { recursive: true })
    writeFileSync(join(dir, 'hangar.server', 'cgroup.procs'), String(process.pid))
    writeFileSync(control, `+${controller}`)
  }
  return true
}

function canMake(dir: string): boolean {
  const probe = join(dir, `hangar.probe-${process.pid}`)
  try {
    mkdirSync(probe)
    rmdirSync(probe)
    return true
  } catch {
    return false
  }
}
