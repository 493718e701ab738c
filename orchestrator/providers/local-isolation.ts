/** What keeps a local sandbox's processes apart from the host: the command line that runs a program inside. */
import { spawnSync } from 'node:child_process'
import { accessSync, constants, lstatSync, readlinkSync, realpathSync } from 'node:fs'
import { delimiter, dirname, join, sep } from 'node:path'
import type { SandboxLimits } from '../../domain/sandbox.ts'
import { carriedName, IN_DIRECTORY } from './inside-scripts.ts'
import { joining } from './local-limits.ts'
import { proxyEnvironment, RELAY_DIR, RELAY_PORTS } from './relay-inside.ts'

export type Isolation = 'bubblewrap' | 'uid' | 'none'

/** One sandbox on this host, as its own record says. */
export interface LocalSandbox {
  readonly id: string
  readonly dir: string
  readonly isolation: Isolation
  /** The host's user that the sandbox's processes run as; null is the server's own. */
  readonly uid: number | null
  readonly path: readonly string[]
  readonly mounts: readonly string[]
  /** Epoch milliseconds; records of older releases have none. */
  readonly createdAt?: number
  /** Its only way out, where its environment limits the network: the relay's sockets, and whether a proxy is among them. */
  readonly relay?: { readonly dir: string; readonly proxy: boolean } | null
  readonly limits?: SandboxLimits
  /** The control groups that keep its limits, once they are known to be there. */
  readonly groups?: readonly string[]
}

const SYSTEM_PATH = '/usr/local/bin:/usr/bin:/bin'
/** The harmless part of /etc: name lookups, certificates, the linker's cache, the alternatives that /usr/bin links to. */
const ETC = [
  'alternatives',
  'ca-certificates',
  'hosts',
  'ld.so.cache',
  'ld.so.conf',
  'ld.so.conf.d',
  'localtime',
  'mime.types',
  'nsswitch.conf',
  'os-release',
  'pki/tls/certs',
  'pki/ca-trust',
  'protocols',
  'resolv.conf',
  'services',
  'ssl/certs',
  'ssl/openssl.cnf',
  'timezone',
]

/** Whether a program is on the server's PATH; its full path, or null. */
export function findProgram(name: string): string | null {
  for (const dir of (process.env['PATH'] ?? SYSTEM_PATH).split(delimiter)) {
    const file = join(dir, name)
    try {
      accessSync(file, constants.X_OK)
      return file
    } catch {
      // Not in this one.
    }
  }
  return null
}

/** Processes and threads of a sandbox's user, where the environment sets no limit: a fork bomb must not take the host's last one. */
const DEFAULT_PIDS = 4096

/** Begins with that limit, which needs no control group: the kernel counts by user, and inside it cannot be raised. */
function bounded({ limits }: LocalSandbox): string[] {
  return (limits?.pids ?? null) !== null || findProgram('prlimit') === null
    ? []
    : ['prlimit', `--nproc=${DEFAULT_PIDS}:${DEFAULT_PIDS}`]
}

/** Options of setpriv that make a plain user of a root process; the program dies with the one that started it. */
export function asUser(uid: number): string[] {
  const id = String(uid)
  const caps = ['--inh-caps=-all', '--bounding-set=-all']
  return ['setpriv', '--reuid', id, '--regid', id, '--clear-groups', '--no-new-privs', ...caps, '--pdeathsig', 'KILL']
}

/** The best isolation that really works here, found by trying it. */
export function probeIsolation(): Isolation {
  if (bubblewrapWorks(null)) return 'bubblewrap'
  return canChangeUser() ? 'uid' : 'none'
}

/** Whether bubblewrap makes its namespaces here, as the server's user or (as root) as another one. */
export function bubblewrapWorks(uid: number | null): boolean {
  const bwrap = findProgram('bwrap')
  if (bwrap === null) return false
  const probe = [bwrap, ...namespaces(), '--ro-bind', '/', '/', '--proc', '/proc', '--dev', '/dev', '/bin/true']
  return succeeds(uid === null ? probe : [...asUser(uid), ...probe])
}

/** Whether the server may start programs as another user. */
export function canChangeUser(): boolean {
  return process.getuid?.() === 0 && succeeds([...asUser(500_000_000), 'true'])
}

/** Whether a user reaches a path of the host: needed before anything is run as that user. */
export function userReaches(uid: number, paths: readonly string[]): boolean {
  const script = 'for path; do test -r "$path" || exit 1; done'
  return succeeds([...asUser(uid), 'sh', '-c', script, 'sh', ...paths])
}

/** What was found out about this host once holds for as long as the server runs: each question starts a program. */
export interface HostFacts {
  canChangeUser(): boolean
  /** Whether bubblewrap works for a user of a sandbox's own; all of them are alike. */
  bubblewrapWorks(uid: number): boolean
}

export function createHostFacts(): HostFacts {
  let changes: boolean | null = null
  let works = false
  return {
    canChangeUser() {
      changes ??= canChangeUser()
      return changes
    },
    bubblewrapWorks(uid) {
      works ||= bubblewrapWorks(uid)
      return works
    },
  }
}

function succeeds(argv: readonly string[]): boolean {
  const [program, ...args] = argv
  return program !== undefined && spawnSync(program, args, { stdio: 'ignore', timeout: 10_000 }).status === 0
}

function namespaces(): string[] {
  return [
    '--unshare-user',
    '--unshare-pid',
    '--unshare-ipc',
    '--unshare-uts',
    '--unshare-cgroup-try',
    '--die-with-parent',
  ]
}

/** Where things are as the sandbox's own processes see them. */
export function insidePaths(sandbox: Pick<LocalSandbox, 'dir' | 'isolation'>) {
  const bwrap = sandbox.isolation === 'bubblewrap'
  const home = bwrap ? '/home/agent' : join(sandbox.dir, 'home')
  const run = bwrap ? '/run/hangar' : join(sandbox.dir, 'run')
  return {
    home,
    repo: `${home}/repo`,
    grantFile: `${run}/grant`,
    helperDir: `${run}/bin`,
    gitConfig: `${run}/gitconfig`,
  }
}

/**
 * The environment to start `insideCommand` with: nothing of the server's own, and all that the program inside is to have under names that mean
 * nothing to anybody. What stands before it on the command line runs on the host, as root for the most part, and a repo may name any
 * variable: PATH or LD_PRELOAD must not reach that.
 */
export function insideEnvironment(
  sandbox: LocalSandbox,
  extra: Readonly<Record<string, string>>,
): Record<string, string> {
  const entries = Object.entries(programEnvironment(sandbox, extra)).map(([name, value]) => `${name}=${value}`)
  return {
    PATH: SYSTEM_PATH,
    LANG: 'C.UTF-8',
    ...Object.fromEntries(entries.map((entry, place) => [carriedName(place), entry])),
  }
}

function programEnvironment(sandbox: LocalSandbox, extra: Readonly<Record<string, string>>): Record<string, string> {
  const paths = insidePaths(sandbox)
  return {
    PATH: [paths.helperDir, ...sandbox.path, SYSTEM_PATH].join(delimiter),
    HOME: paths.home,
    LANG: 'C.UTF-8',
    GIT_CONFIG_SYSTEM: paths.gitConfig,
    GIT_TERMINAL_PROMPT: '0',
    ...(sandbox.relay?.proxy === true ? proxyEnvironment() : {}),
    ...extra,
  }
}

/**
 * The command line that runs `argv` inside, in the checkout, which is made again where the agent has removed it. The environment is inherited, never named, so that no secret stands in an argv.
 * `infoFd` makes bubblewrap say there which process is the first inside. `mark` is a value by which stray processes are found where
 * no pid namespace holds them.
 */
export function insideCommand(
  sandbox: LocalSandbox,
  argv: readonly string[],
  options: { readonly infoFd?: number; readonly mark: string },
): string[] {
  // Of a user that others share, theirs would count as well.
  const user = sandbox.uid === null ? [] : [...bounded(sandbox), ...asUser(sandbox.uid)]
  const { groups = [] } = sandbox
  const inside = ['sh', '-c', IN_DIRECTORY, 'sh', insidePaths(sandbox).repo, ...argv]
  if (sandbox.isolation === 'bubblewrap')
    return joining(groups, [
      ...user,
      ...bubblewrap(sandbox, options.infoFd),
      ...(sandbox.relay ? withRelay(inside) : inside),
    ])
  const dies = user.length > 0 ? user : findProgram('setpriv') === null ? [] : ['setpriv', '--pdeathsig', 'KILL']
  return joining(groups, [...dies, 'env', `HANGAR_SANDBOX=${sandbox.id}`, `HANGAR_RUN=${options.mark}`, ...inside])
}

/** Each command has a network of its own, so each begins with the relay's end in it, and waits until that listens. */
function withRelay(argv: readonly string[]): string[] {
  const port = RELAY_PORTS.gateway.toString(16).toUpperCase().padStart(4, '0')
  const script = `sh /run/hangar/relay &
i=0
until grep -qE ':${port} [0-9A-F:]+ 0A ' /proc/net/tcp || [ $i -ge 200 ]; do i=$((i+1)); sleep 0.01; done
exec "$@"`
  return ['sh', '-c', script, 'sh', ...argv]
}

function bubblewrap(sandbox: LocalSandbox, infoFd: number | undefined): string[] {
  const paths = insidePaths(sandbox)
  const run = join(sandbox.dir, 'run')
  const tini = findProgram('tini')
  return [
    findProgram('bwrap') ?? 'bwrap',
    ...namespaces(),
    '--new-session',
    ...(sandbox.relay ? ['--unshare-net'] : []),
    ...['--uid', '1000', '--gid', '1000', '--hostname', 'hangar'],
    ...['--ro-bind', '/usr', '/usr'],
    ...['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'].flatMap(rootEntry),
    ...['--dir', '/etc'],
    ...ETC.flatMap((name) => ['--ro-bind-try', `/etc/${name}`, `/etc/${name}`]),
    ...['passwd', 'group'].flatMap((name) => ['--ro-bind', join(run, 'etc', name), `/etc/${name}`]),
    ...['--proc', '/proc', '--dev', '/dev', '--tmpfs', '/tmp', '--perms', '1777', '--dir', '/var/tmp'],
    ...['--bind', join(sandbox.dir, 'home'), paths.home],
    ...['--ro-bind', run, dirname(paths.grantFile)],
    ...(sandbox.relay ? ['--ro-bind', sandbox.relay.dir, RELAY_DIR] : []),
    ...[...sandbox.path, ...sandbox.mounts].flatMap(hostEntry),
    ...['--chdir', '/'],
    ...(infoFd === undefined ? [] : ['--info-fd', String(infoFd)]),
    ...(tini?.startsWith('/usr/') ? ['--as-pid-1', '--', tini, '-g', '--'] : ['--']),
  ]
}

/** /bin and its like: a link on a merged-/usr host, a directory on others. */
function rootEntry(name: string): string[] {
  const path = `/${name}`
  try {
    if (lstatSync(path).isSymbolicLink()) return ['--symlink', readlinkSync(path), path]
    return ['--ro-bind', path, path]
  } catch {
    return []
  }
}

/** A file or directory of the host at its own path, and at its real path where that is another. */
function hostEntry(path: string): string[] {
  try {
    const real = realpathSync(path)
    return [...new Set([real, path])]
      .filter((at) => !at.startsWith(`${sep}usr${sep}`))
      .flatMap((at) => ['--ro-bind', real, at])
  } catch {
    return []
  }
}
