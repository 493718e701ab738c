/** A Docker engine of the test's own, away from any that the machine has, with an image made here; ended with all that it mounted. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { accessSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pack } from 'tar-stream'
import { createEngine, type Engine } from '../../orchestrator/providers/docker-engine.ts'

export interface DockerHost {
  readonly socketPath: string
  readonly engine: Engine
  /** An image with nothing but links into /usr, which `mounts` bring from this host: sh, bash, git and all. */
  readonly image: string
  readonly mounts: readonly string[]
  /** An image of busybox alone, and what brings git and bash to it; null where this machine has none that stands alone. */
  readonly bare: { readonly image: string; readonly mounts: readonly string[] } | null
  /** Restarts the engine's own process, as an upgrade does; containers go on. */
  restart(): Promise<void>
  close(): Promise<void>
}

const DOCKERD = '/usr/sbin/dockerd'

/**
 * Ends all that belongs to an engine in directory `$1` with the cgroup `$2`: its daemons and shims by their command lines, the containers'
 * processes by their cgroup (thawed first: what is frozen does not even die), its mounts, its files.
 */
const CLEAR = `
clear() {
  for round in 1 2 3; do
    for process in /proc/[0-9]*; do
      if [ "$process" != "/proc/$$" ] && grep -qsF "$1/" "$process/cmdline"; then kill -9 "\${process#/proc/}"; fi
    done
    for cgroup in $(find /sys/fs/cgroup -mindepth 2 -type d -path "*/$2/*"); do
      if [ -e "$cgroup/freezer.state" ]; then echo THAWED >"$cgroup/freezer.state"; fi
      if [ -e "$cgroup/cgroup.freeze" ]; then echo 0 >"$cgroup/cgroup.freeze"; fi
      for process in $(cat "$cgroup/cgroup.procs"); do kill -9 "$process"; done
    done
    if [ -z "$(find /sys/fs/cgroup -path "*/$2/*" -name cgroup.procs -exec cat {} +)" ]; then break; fi
    sleep 0.5
  done
  awk -v dir="$1/" 'index($2, dir) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r at; do umount -l "$at"; done
  find /sys/fs/cgroup -depth -type d -path "*/$2*" -exec rmdir {} \\;
  rm -rf "$1"
}
`
/** The same when this process ends without having done so, killed for instance: nothing else would end the containers. */
const GUARD = `${CLEAR}
while kill -0 "$3" 2>/dev/null; do sleep 1; done
if [ -d "$1" ]; then clear "$1" "$2"; fi
`

/** A word why no engine can be started here, or null. */
export function whyNoDocker(): string | null {
  if (process.getuid?.() !== 0) return 'only root can start a Docker engine'
  const found = [DOCKERD, '/usr/bin/dockerd'].some((file) => isFile(file))
  return found ? null : 'dockerd is not installed (apt-get install docker.io containerd iptables)'
}

/** Starts it; the string says why it could not. `HANGAR_TEST_ENGINE` names the socket of one that runs already, Podman's for instance: only images are left there. */
export async function startDocker(): Promise<DockerHost | string> {
  const given = process.env['HANGAR_TEST_ENGINE']
  if (given !== undefined) {
    const engine = createEngine({ socketPath: given })
    const restart = () => Promise.reject(new Error('it is not the test that has started this engine'))
    return { socketPath: given, engine, ...(await imagesOf(engine)), restart, close: async () => {} }
  }
  const none = whyNoDocker()
  if (none !== null) return none
  const dir = mkdtempSync(join(tmpdir(), 'hangar-docker-'))
  const socketPath = join(dir, 'docker.sock')
  const parent = `hangar-test-${process.pid}`
  const settings = {
    'data-root': join(dir, 'data'),
    'exec-root': join(dir, 'exec'),
    pidfile: join(dir, 'pid'),
    hosts: [`unix://${socketPath}`],
    iptables: false,
    ip6tables: false,
    bridge: 'none',
    'ip-forward': false,
    'live-restore': true,
    'exec-opts': ['native.cgroupdriver=cgroupfs'],
    'cgroup-parent': `/${parent}`,
  }
  writeFileSync(join(dir, 'daemon.json'), JSON.stringify(settings))
  spawn('sh', ['-c', GUARD, 'sh', dir, parent, String(process.pid)], { detached: true, stdio: 'ignore' }).unref()
  const engine = createEngine({ socketPath })
  let daemon: ChildProcess | null = null
  const start = async (): Promise<boolean> => {
    daemon = spawn(isFile(DOCKERD) ? DOCKERD : 'dockerd', ['--config-file', join(dir, 'daemon.json')], {
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    daemon.stderr?.on('data', (chunk: Buffer) => writeFileSync(join(dir, 'log'), chunk, { flag: 'a' }))
    const started = daemon
    for (let tries = 0; tries < 300 && started.exitCode === null && started.signalCode === null; tries++) {
      const answers = await engine.ask('GET', '/_ping', { once: true }).then(
        ({ status }) => status === 200,
        () => false,
      )
      if (answers) return true
      await sleep(100)
    }
    return false
  }
  const stop = async (signal: NodeJS.Signals) => {
    const stopped = daemon
    if (stopped === null || stopped.exitCode !== null || stopped.signalCode !== null) return
    const gone = new Promise<void>((resolve) => stopped.once('exit', () => resolve()))
    stopped.kill(signal)
    const timer = setTimeout(() => stopped.kill('SIGKILL'), 20_000)
    await gone
    clearTimeout(timer)
  }
  const close = async () => {
    await removeAll(engine)
    await stop('SIGTERM')
    spawnSync('sh', ['-c', `${CLEAR} clear "$1" "$2"`, 'sh', dir, parent], { stdio: 'ignore' })
  }
  try {
    if (!(await start())) throw new Error('it did not answer')
    return {
      socketPath,
      engine,
      ...(await imagesOf(engine)),
      restart: async () => {
        await stop('SIGTERM')
        if (!(await start())) throw new Error('the engine did not come back')
      },
      close,
    }
  } catch (error) {
    const log = readLog(dir)
    await close()
    return `the Docker engine cannot be started here: ${String(error)} ${log}`
  }
}

async function imagesOf(engine: Engine): Promise<Pick<DockerHost, 'image' | 'mounts' | 'bare'>> {
  const bare = await importBusybox(engine)
  return {
    image: await importLinks(engine),
    mounts: ['/usr', '/etc/alternatives', '/etc/ld.so.cache'],
    bare: bare === null ? null : { image: bare, mounts: gitAndBash() },
  }
}

/** The two programs with the libraries of this machine, and nothing else of it. */
function gitAndBash(): string[] {
  const libraries = readdirSync('/usr/lib').filter((name) => name.endsWith('-linux-gnu'))
  const linkers = ['/lib64'].filter(isFile)
  return [
    '/usr/bin/git',
    '/usr/lib/git-core',
    '/usr/bin/bash',
    ...linkers,
    ...libraries.map((name) => `/usr/lib/${name}`),
  ]
}

function isFile(path: string): boolean {
  try {
    accessSync(path)
    return true
  } catch {
    return false
  }
}

function readLog(dir: string): string {
  try {
    return readFileSync(join(dir, 'log'), 'utf8').trim().split('\n').slice(-3).join(' ')
  } catch {
    return ''
  }
}

async function importImage(engine: Engine, tar: ReturnType<typeof pack>, repo: string): Promise<string> {
  tar.finalize()
  const chunks: Buffer[] = []
  for await (const chunk of tar as AsyncIterable<Buffer>) chunks.push(chunk)
  // Podman takes no other tag here.
  const query = { fromSrc: '-', repo, tag: 'latest' }
  const made = await engine.ask('POST', '/images/create', { query, tar: Buffer.concat(chunks) })
  if (made.status !== 200) throw new Error(JSON.stringify(made.body))
  return `${repo}:latest`
}

async function importLinks(engine: Engine): Promise<string> {
  const tar = pack()
  // The engine binds its init to /sbin/docker-init: as a link into /usr that place would be covered.
  for (const name of ['etc', 'usr', 'tmp', 'proc', 'sys', 'dev', 'run', 'sbin', 'etc/alternatives'])
    tar.entry({ name: `${name}/`, type: 'directory', mode: name === 'tmp' ? 0o1777 : 0o755 })
  for (const name of ['bin', 'lib', 'lib64', 'lib32']) tar.entry({ name, type: 'symlink', linkname: `usr/${name}` })
  tar.entry({ name: 'etc/passwd' }, 'root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/hangar/home:/bin/sh\n')
  tar.entry({ name: 'etc/group' }, 'root:x:0:\nagent:x:1000:\n')
  tar.entry({ name: 'etc/ld.so.cache' }, '')
  return importImage(engine, tar, 'hangar-test')
}

async function importBusybox(engine: Engine): Promise<string | null> {
  const busybox = ['/bin/busybox', '/usr/bin/busybox'].find(isFile)
  if (busybox === undefined || !spawnSync('ldd', [busybox]).stderr.toString().includes('not a dynamic')) return null
  const tar = pack()
  for (const name of ['bin', 'sbin', 'etc', 'tmp', 'proc', 'sys', 'dev', 'run'])
    tar.entry({ name: `${name}/`, type: 'directory', mode: 0o755 })
  // The linker that is bound in is a link into /lib.
  tar.entry({ name: 'usr/lib/', type: 'directory', mode: 0o755 })
  tar.entry({ name: 'lib', type: 'symlink', linkname: 'usr/lib' })
  tar.entry({ name: 'bin/busybox', mode: 0o755 }, readFileSync(busybox))
  for (const applet of spawnSync(busybox, ['--list']).stdout.toString().trim().split('\n'))
    if (applet !== 'busybox') tar.entry({ name: `bin/${applet}`, type: 'symlink', linkname: 'busybox' })
  return importImage(engine, tar, 'hangar-bare')
}

/** Containers live outside of this process's group: nothing else ends them. */
async function removeAll(engine: Engine): Promise<void> {
  try {
    const { body } = await engine.ask('GET', '/containers/json', { query: { all: 'true' }, once: true })
    for (const { Id } of body as { Id: string }[]) {
      await engine.ask('POST', `/containers/${Id}/unpause`)
      await engine.ask('DELETE', `/containers/${Id}`, { query: { force: 'true', v: 'true' } })
    }
  } catch {
    // It never answered.
  }
}
