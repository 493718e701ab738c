/** The kubelet of the peer: a pod is a bubblewrap sandbox with a pid namespace of its own, an exec is nsenter into it. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { existsSync, lstatSync, mkdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export interface ContainerSpec {
  readonly command: readonly string[]
  readonly workingDir?: string
  readonly env?: readonly { readonly name: string; readonly value?: string }[]
  readonly volumeMounts?: readonly { readonly name: string; readonly mountPath: string }[]
}

export interface RunningPod {
  readonly ended: Promise<{ readonly exitCode: number }>
  /** Starts a program inside, with three pipes; its end ends nothing else. */
  exec(argv: readonly string[]): ChildProcess
  signal(signal: NodeJS.Signals): void
  /** Ends everything in it and removes its volumes. */
  remove(): Promise<void>
  logs(): string
}

const ETC = [
  'alternatives',
  'hosts',
  'ld.so.cache',
  'nsswitch.conf',
  'os-release',
  'protocols',
  'resolv.conf',
  'services',
  'ssl/certs',
]
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/** Why pods cannot be run here; false when they can. */
export function whyNoPods(): string | false {
  const probe = [
    '--unshare-user',
    '--unshare-pid',
    '--uid',
    '1000',
    '--ro-bind',
    '/',
    '/',
    '--proc',
    '/proc',
    '/bin/true',
  ]
  if (spawnSync('bwrap', probe, { stdio: 'ignore' }).status !== 0) return 'bubblewrap does not work here'
  return spawnSync('nsenter', ['--version'], { stdio: 'ignore' }).status !== 0 && 'there is no nsenter'
}

/** Starts the container; resolves when its first process runs. */
export async function startPod(name: string, spec: ContainerSpec, dir: string): Promise<RunningPod> {
  const volumes = (spec.volumeMounts ?? []).map((mount) => ({ ...mount, dir: join(dir, mount.name) }))
  for (const volume of volumes) mkdirSync(volume.dir, { recursive: true, mode: 0o777 })
  writeFileSync(join(dir, 'passwd'), 'root:x:0:0:root:/root:/bin/sh\n')
  const env = environmentOf(name, spec)
  const child = spawn('bwrap', bubblewrap(name, spec, { dir, volumes, env }), {
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    env: {},
  })
  let said = ''
  for (const stream of [child.stdout, child.stderr])
    stream?.on('data', (chunk: Buffer) => {
      said += chunk.toString()
    })
  const ended = new Promise<{ exitCode: number }>((resolve) => {
    child.once('exit', (code, signal) => resolve({ exitCode: code ?? (signal === 'SIGKILL' ? 137 : 143) }))
    child.once('error', () => resolve({ exitCode: 128 }))
  })
  const first = await firstProcess(child, ended)
  let removed = false
  const remove = async () => {
    if (removed) return
    removed = true
    // The namespace's first process: the kernel ends all the others with it.
    if (first !== null) kill(first, 'SIGKILL')
    child.kill('SIGKILL')
    await ended
    rmSync(dir, { recursive: true, force: true, maxRetries: 5 })
  }
  if (first === null) throw new Error(`the container did not start: ${said}`)
  const enter = ['-t', String(first), '-U', '-m', '-p', '-i', '-u', '--preserve-credentials', '--']
  const inDirectory = ['/bin/sh', '-c', 'cd "$0" && exec "$@"', spec.workingDir ?? '/']
  return {
    ended,
    exec: (argv) =>
      spawn('nsenter', [...enter, ...inDirectory, ...argv], { env, detached: true, stdio: ['pipe', 'pipe', 'pipe'] }),
    signal: (signal) => kill(first, signal),
    remove,
    logs: () => said,
  }
}

function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // Gone already.
  }
}

function environmentOf(name: string, spec: ContainerSpec): Record<string, string> {
  return {
    PATH,
    HOSTNAME: name,
    KUBERNETES_SERVICE_HOST: '10.96.0.1',
    KUBERNETES_PORT_443_TCP: 'tcp://10.96.0.1:443',
    ...Object.fromEntries((spec.env ?? []).map(({ name, value }) => [name, value ?? ''])),
  }
}

function bubblewrap(
  name: string,
  spec: ContainerSpec,
  at: {
    readonly dir: string
    readonly volumes: readonly { readonly mountPath: string; readonly dir: string }[]
    readonly env: Record<string, string>
  },
): string[] {
  return [
    ...['--unshare-user', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--die-with-parent', '--new-session'],
    ...['--uid', '1000', '--gid', '1000', '--hostname', name.slice(0, 60), '--info-fd', '3'],
    ...['--ro-bind', '/usr', '/usr'],
    ...['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'].flatMap(rootEntry),
    ...ETC.flatMap((entry) => ['--ro-bind-try', `/etc/${entry}`, `/etc/${entry}`]),
    ...['--ro-bind', join(at.dir, 'passwd'), '/etc/passwd'],
    ...['--proc', '/proc', '--dev', '/dev'],
    ...[...at.volumes]
      .sort((one, other) => one.mountPath.length - other.mountPath.length)
      .flatMap(({ dir, mountPath }) => ['--bind', dir, mountPath]),
    ...(spec.workingDir === undefined ? [] : ['--chdir', spec.workingDir]),
    ...['--remount-ro', '/', '--clearenv'],
    ...Object.entries(at.env).flatMap(([variable, value]) => ['--setenv', variable, value]),
    ...['--as-pid-1', '--', ...spec.command],
  ]
}

function rootEntry(name: string): string[] {
  const path = `/${name}`
  if (!existsSync(path)) return []
  return lstatSync(path).isSymbolicLink() ? ['--symlink', readlinkSync(path), path] : ['--ro-bind', path, path]
}

/** The host's number of the first process inside, which bubblewrap tells before all is set up: it is waited for. */
async function firstProcess(child: ChildProcess, ended: Promise<unknown>): Promise<number | null> {
  const pipe = child.stdio[3]
  const told = new Promise<number | null>((resolve) => {
    let text = ''
    pipe?.on('data', (chunk: Buffer) => {
      text += chunk.toString()
      const found = /"child-pid": *(\d+)/.exec(text)
      if (found !== null) resolve(Number(found[1]))
    })
  })
  const pid = await Promise.race([told, ended.then(() => null)])
  for (let tries = 0; pid !== null && tries < 500 && isBubblewrap(pid); tries++) await sleep(5)
  return pid
}

function isBubblewrap(pid: number): boolean {
  try {
    return readlinkSync(`/proc/${pid}/exe`).endsWith('/bwrap')
  } catch {
    return false
  }
}
