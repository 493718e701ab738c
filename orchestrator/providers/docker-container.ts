/** A sandbox as a container: its names and labels, how it is shut in, and the files that are put into it. */
import { readFile, realpath } from 'node:fs/promises'
import { delimiter, sep } from 'node:path'
import { type Pack, pack } from 'tar-stream'
import { errors } from '../../domain/errors.ts'
import { MB } from '../../domain/limits.ts'
import type { SandboxSpec } from '../../domain/sandbox.ts'
import { proxyEnvironment, RELAY_DIR, RELAY_PORTS, relayScript } from './relay-inside.ts'
import { authorization, gitConfig } from './sandbox-git.ts'

const ID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/
const KEY = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/
const DEFAULT_PIDS = 4096
const DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
const UID = 1000

/**
 * Where things are inside. All lies on one volume, whose root belongs to root: the agent's user owns its home and the records of its runs,
 * and can neither replace the helper nor what says which run is the newest.
 */
export const INSIDE = {
  root: '/hangar',
  home: '/hangar/home',
  repo: '/hangar/home/repo',
  run: '/hangar/run',
  grantFile: '/hangar/run/grant',
  helperDir: '/hangar/run/bin',
  gitConfig: '/hangar/run/gitconfig',
  turns: '/hangar/turns',
  newest: '/hangar/run/newest',
  relay: '/hangar/run/relay',
  user: `${UID}:${UID}`,
} as const

/** The container's and its volume's name. Throws `invalid_name` on an id that is no plain name. */
export function containerName(id: string): string {
  if (!ID.test(id)) throw errors.invalidName(`sandbox id ${JSON.stringify(id.slice(0, 80))} is not taken`)
  return `hangar-${id}`
}

/** The directory of a run inside. Throws `invalid_name` on a key that is no plain name. */
export function turnDirectory(key: string): string {
  if (!KEY.test(key)) throw errors.invalidName(`run key ${JSON.stringify(key.slice(0, 80))} is not taken`)
  return `${INSIDE.turns}/${key}`
}

/** What marks containers and volumes as this server's own. */
export const LABELS = { instance: 'hangar.instance', sandbox: 'hangar.sandbox' } as const

export function labelsOf(spec: SandboxSpec, instance: string): Record<string, string> {
  return {
    ...spec.labels,
    'hangar.managed': 'true',
    [LABELS.instance]: instance,
    [LABELS.sandbox]: spec.id,
    'hangar.session': spec.session,
    'hangar.repo': spec.repo,
  }
}

/**
 * The body of the engine's "create a container". The first process idles as a user of its own, which the agent cannot signal; its init reaps
 * what loses its parent. All else comes in by exec, as user 1000. After a restart of the engine the container is started again: the runs are lost,
 * the files are not.
 */
export async function containerBody(
  spec: SandboxSpec,
  options: {
    readonly instance: string
    readonly network: 'bridge' | 'host' | 'none'
    readonly imageEnv: readonly string[]
    /** The relay's sockets on this host; null: the sandbox reaches the gateway by itself. */
    readonly relayDir: string | null
    /** Options of /tmp: Docker keeps its mode over any /tmp of the image only with uid and gid, which Podman does not take. */
    readonly tmp: string
  },
): Promise<object> {
  const path = options.imageEnv.find((entry) => entry.startsWith('PATH='))?.slice('PATH='.length) ?? DEFAULT_PATH
  const { limits } = spec
  const { relayDir } = options
  return {
    Image: spec.image,
    User: '1001:1001',
    Entrypoint: ['sh', '-c', relayDir === null ? IDLE : `sh ${INSIDE.relay} & ${IDLE}`],
    Cmd: [],
    WorkingDir: '/',
    Labels: labelsOf(spec, options.instance),
    Env: [
      `PATH=${[INSIDE.helperDir, ...spec.path, path].join(delimiter)}`,
      `HOME=${INSIDE.home}`,
      'LANG=C.UTF-8',
      `GIT_CONFIG_SYSTEM=${INSIDE.gitConfig}`,
      'GIT_TERMINAL_PROMPT=0',
      ...(spec.egress?.length ? Object.entries(proxyEnvironment()).map(([name, value]) => `${name}=${value}`) : []),
    ],
    Healthcheck: { Test: ['NONE'] },
    HostConfig: {
      Init: true,
      ReadonlyRootfs: true,
      CapDrop: ['ALL'],
      SecurityOpt: ['no-new-privileges'],
      NetworkMode: options.network,
      ...(options.network === 'bridge' ? { ExtraHosts: [`${HOST_NAME}:host-gateway`] } : {}),
      IpcMode: 'private',
      RestartPolicy: { Name: 'unless-stopped' },
      LogConfig: { Type: 'none' },
      PidsLimit: limits.pids ?? DEFAULT_PIDS,
      ...(limits.cpu === null ? {} : { NanoCpus: Math.round(limits.cpu * 1e9) }),
      ...(limits.memoryMb === null ? {} : { Memory: limits.memoryMb * MB, MemorySwap: limits.memoryMb * MB }),
      Tmpfs: { '/tmp': options.tmp },
      Mounts: [
        { Type: 'volume', Source: containerName(spec.id), Target: INSIDE.root },
        ...(relayDir === null ? [] : [{ Type: 'bind', Source: relayDir, Target: RELAY_DIR, ReadOnly: true }]),
        ...(await hostMounts([...spec.path, ...spec.mounts])),
      ],
    },
  }
}

const IDLE = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'

/** `exec` must be said: tools build and run there. */
export const TMP_OPTIONS = {
  docker: `rw,exec,nosuid,nodev,mode=1777,uid=${UID},gid=${UID}`,
  podman: 'rw,exec,nosuid,nodev,mode=1777',
} as const

/** The host's name inside, where the container has a network of its own. */
export const HOST_NAME = 'host.docker.internal'

/** Files and directories of the host at their own paths, and at their real ones, read-only. */
async function hostMounts(paths: readonly string[]): Promise<object[]> {
  const targets = new Map<string, string>()
  for (const path of paths) {
    const real = await realpath(path).catch(() => null)
    if (real === null) throw errors.sandboxFailed(`${path} is to be mounted in the sandbox, and is not on this host`)
    for (const target of [real, path]) targets.set(target.replace(/(.)\/+$/, '$1'), real)
  }
  return [...targets]
    .filter(([target]) => ![...targets.keys()].some((other) => target.startsWith(other + sep)))
    .map(([target, source]) => ({ Type: 'bind', Source: source, Target: target, ReadOnly: true }))
}

/** What the engine unpacks on the volume, as root: the helper, git's configuration, the grant for user 1000 to read, and that user's directories. */
export async function sandboxTar(spec: SandboxSpec, helperFile: string): Promise<Buffer> {
  const tar = pack()
  const directory = (name: string, uid: number, mode: number) =>
    tar.entry({ name: `${name}/`, type: 'directory', mode, uid, gid: uid })
  const file = (name: string, content: string | Buffer, mode: number) =>
    tar.entry({ name, mode, uid: 0, gid: mode === 0o640 ? UID : 0 }, content)
  directory('run', 0, 0o755)
  directory('run/bin', 0, 0o755)
  file('run/bin/hangar-agent', await readFile(helperFile), 0o755)
  file('run/gitconfig', gitConfig(spec, INSIDE.grantFile), 0o644)
  file('run/relay', relayScript({ dir: RELAY_DIR, ports: RELAY_PORTS }), 0o644)
  file('run/grant', `${spec.grant}\n`, 0o640)
  file('run/authorization', authorization(spec), 0o640)
  directory('home', UID, 0o700)
  directory('home/repo', UID, 0o755)
  directory('turns', UID, 0o700)
  tar.finalize()
  return bytesOf(tar)
}

/** A tar of the one file that names the newest run: when that has ended, nothing else may go on. */
export async function newestTar(key: string): Promise<Buffer> {
  const tar = pack()
  tar.entry({ name: 'run/newest', mode: 0o644, uid: 0, gid: 0 }, `${key}\n`)
  tar.finalize()
  return bytesOf(tar)
}

async function bytesOf(tar: Pack): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of tar as AsyncIterable<Buffer>) chunks.push(chunk)
  return Buffer.concat(chunks)
}
