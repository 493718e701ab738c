/** The provider of sandboxes on the server's own host: bubblewrap where it works, else a user of its own, else plain processes. */
import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { errors } from '../../domain/errors.ts'
import type { Clock, Log } from '../../domain/ports.ts'
import type { Provider, SandboxRef, SandboxSpec, TurnOutput, TurnStart } from '../../domain/sandbox.ts'
import { isAlive, readLogs, readMark, readTurnProcess, type TurnFiles, turnFiles } from '../turn-record.ts'
import { type DirectoryChanges, watchDirectory } from './directory-changes.ts'
import { execInside, startInside, waitForExit } from './local-exec.ts'
import { readUnder } from './local-files.ts'
import {
  createHostFacts,
  type Isolation,
  insideCommand,
  insideEnvironment,
  insidePaths,
  type LocalSandbox,
  probeIsolation,
} from './local-isolation.ts'
import { type ControlGroups, notKept, oomFile, openControlGroups, SETTING_OF_LIMIT } from './local-limits.ts'
import { hasStoppedSupervisor, isPaused, pauseSandbox, resumeSandbox } from './local-pause.ts'
import { findMarked, findProcesses, killFound, killSandbox, signalProcess } from './local-processes.ts'
import {
  listDirectories,
  listSandboxes,
  makeSandbox,
  readSandbox,
  removeSandboxDir,
  sandboxDir,
  sweepGone,
} from './local-sandbox.ts'
import type { Relay } from './relay.ts'
import { RELAY_URL } from './relay-inside.ts'

export interface LocalProviderDeps {
  /** Holds one directory a sandbox; made when absent, mode 711. */
  readonly sandboxesDir: string
  /** The script `hangar-agent`. */
  readonly helperFile: string
  readonly clock: Clock
  readonly log: Log
  /** The way out of sandboxes whose network is limited; without it such are refused. */
  readonly relay?: Pick<Relay, 'directoryFor'>
  /** Default: the best that works here. */
  readonly isolation?: Isolation
}

const KEY = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/
const LIMITS: readonly (keyof SandboxSpec['limits'])[] = ['cpu', 'memoryMb', 'pids']
const POLL_MS = 20
/** Between looks at a run whose directory is watched: a supervisor that was killed leaves no change in it. */
const WATCHED_POLL_MS = 100

/** A provider whose sandboxes are directories and processes of this host. Its runs outlive the server; a new provider on the same directory takes them up. */
export function createLocalProvider(deps: LocalProviderDeps): Provider {
  return new LocalProvider(deps)
}

class LocalProvider implements Provider {
  readonly kind = 'local'
  readonly #deps: LocalProviderDeps
  readonly #owner = `${process.pid}.${readStartTime()}`
  readonly #host = createHostFacts()
  #isolation: Isolation | null
  #groups: ControlGroups | null = null
  #recovered: Promise<void> | null = null
  /** Sandboxes are made one at a time, so that no two get the same user. */
  #making: Promise<unknown> = Promise.resolve()

  constructor(deps: LocalProviderDeps) {
    this.#deps = deps
    this.#isolation = deps.isolation ?? null
  }

  get #best(): Isolation {
    this.#isolation ??= probeIsolation()
    return this.#isolation
  }

  get #limits(): ControlGroups {
    this.#groups ??= openControlGroups()
    return this.#groups
  }

  capabilities() {
    return { pause: true, limits: this.#limits.kept, network: this.#best === 'bubblewrap' }
  }

  gatewayUrl(url: string, egress: SandboxSpec['egress']) {
    return egress === null ? url : RELAY_URL
  }

  async describe() {
    const { kept } = this.#limits
    const limited =
      kept.length === LIMITS.length
        ? 'limits are kept'
        : `no limits of ${LIMITS.filter((limit) => !kept.includes(limit))
            .map((limit) => SETTING_OF_LIMIT[limit])
            .join(', ')}`
    const shared = `programs use the host's network, unless their environment has egress; ${limited}`
    switch (this.#best) {
      case 'bubblewrap':
        return { level: 'ok', text: `bubblewrap: own processes, files and user; ${shared}` } as const
      case 'uid':
        return {
          level: 'warning',
          text: `a user of its own for each sandbox, without bubblewrap: programs see the host's processes and world-readable files; ${shared}`,
        } as const
      case 'none':
        return {
          level: 'warning',
          text: `no isolation: programs run as the server's own user and can read all that it can, its keys as well; ${shared}; install bubblewrap`,
        } as const
    }
  }

  create(spec: Parameters<Provider['create']>[0]) {
    const made = this.#making.then(async () => {
      await this.#recover()
      const lacking = LIMITS.find((limit) => spec.limits[limit] !== null && !this.#limits.kept.includes(limit))
      if (lacking !== undefined) throw errors.sandboxFailed(notKept(lacking))
      // What a removed directory has left behind may bear the very user that the new one gets.
      if ((await readSandbox(this.#deps.sandboxesDir, spec.id)) === null)
        await this.destroy({ provider: this.kind, id: spec.id })
      const sandbox = await makeSandbox({ ...this.#deps, isolation: this.#best, host: this.#host }, spec)
      if (sandbox.isolation === 'bubblewrap' && sandbox.uid === null && process.getuid?.() === 0)
        this.#deps.log.warn(
          { sandbox: spec.id },
          "the sandbox runs as the server's own user: its directory or a mount is not open to others",
        )
      return this.paths({ provider: this.kind, id: spec.id })
    })
    this.#making = made.catch(() => {})
    return made
  }

  paths(ref: SandboxRef) {
    const dir = sandboxDir(this.#deps.sandboxesDir, ref.id)
    let isolation = this.#isolation
    try {
      isolation = (JSON.parse(readFileSync(join(dir, 'sandbox.json'), 'utf8')) as LocalSandbox).isolation
    } catch {
      // Not made yet: as it would be made now.
    }
    const { home, repo, grantFile, helperDir } = insidePaths({ dir, isolation: isolation ?? this.#best })
    return { home, repo, grantFile, helperDir }
  }

  async inspect(ref: SandboxRef) {
    const sandbox = await readSandbox(this.#deps.sandboxesDir, ref.id)
    if (sandbox === null) return { state: 'gone', reason: `there is no sandbox ${ref.id} on this host` } as const
    if (await isPaused(sandbox)) return { state: 'paused', reason: 'it was paused' } as const
    if (await hasStoppedSupervisor(sandbox))
      return { state: 'paused', reason: 'the process that supervises its run was stopped (SIGSTOP)' } as const
    return { state: 'up', reason: null } as const
  }

  async list() {
    return (await listDirectories(this.#deps.sandboxesDir)).map((found) => ({ provider: this.kind, ...found }))
  }

  async start(ref: SandboxRef, turn: TurnStart) {
    const sandbox = await this.#openAwake(ref)
    const files = this.#turn(sandbox, turn.key)
    if (await isClaimed(files)) return
    await mkdir(files.dir, { recursive: true, mode: 0o700 })
    await writeFile(files.spec, JSON.stringify({ grace_ms: turn.graceMs, timeout_ms: turn.timeoutMs }), { mode: 0o600 })
    await writeFile(files.stdin, turn.stdin, { mode: 0o600 })
    const supervisor = spawn('sh', this.#supervise(sandbox, files, turn), {
      cwd: '/',
      env: insideEnvironment(sandbox, turn.env),
      detached: true,
      stdio: 'ignore',
    })
    supervisor.unref()
    await waitForClaim(files, supervisor)
  }

  #supervise(sandbox: LocalSandbox, files: TurnFiles, turn: TurnStart): string[] {
    const namespace = sandbox.isolation === 'bubblewrap'
    const oom = oomFile(sandbox.groups ?? [])
    const command = insideCommand(sandbox, turn.argv, { mark: `turn:${turn.key}`, ...(namespace ? { infoFd: 8 } : {}) })
    return [
      this.#deps.helperFile,
      'supervise',
      ...['--timeout-ms', String(Math.ceil(turn.timeoutMs)), '--grace-ms', String(Math.ceil(turn.graceMs))],
      ...['--max-bytes', String(turn.maxOutputBytes), '--stdin', files.stdin],
      ...(oom === null ? [] : ['--oom-file', oom]),
      ...(namespace ? ['--namespace'] : ['--reap', join(sandbox.dir, 'reap')]),
      ...[files.dir, '--'],
      // A session of its own, so that a signal reaches the whole group and never the supervisor.
      ...['setsid', ...command],
    ]
  }

  async read(
    ref: SandboxRef,
    key: string,
    cursor: Parameters<Provider['read']>[2],
    options: Parameters<Provider['read']>[3],
  ): Promise<TurnOutput> {
    const sandbox = await this.#open(ref)
    const files = this.#turn(sandbox, key)
    const until = performance.now() + options.waitMs
    const changes = watchDirectory(files.dir)
    try {
      return await this.#readOn(sandbox, { files, cursor, until, changes }, options)
    } finally {
      changes.close()
    }
  }

  async #readOn(
    sandbox: LocalSandbox,
    at: {
      readonly files: TurnFiles
      readonly cursor: Parameters<Provider['read']>[2]
      readonly until: number
      readonly changes: DirectoryChanges
    },
    options: Parameters<Provider['read']>[3],
  ): Promise<TurnOutput> {
    const { files, cursor } = at
    for (;;) {
      // Looked at before the logs are read: what was written before the end is then never missed.
      const found = await readTurnProcess(files, this.#deps.clock.now())
      if (found.state === 'lost') await this.#clearLost(sandbox, files)
      const { drained, ...logs } = await readLogs(files, cursor, options.maxBytes)
      const ended = found.state !== 'running'
      if (ended && drained) return { ...logs, process: found }
      const news = logs.out.length > 0 || logs.err.length > 0
      const left = at.until - performance.now()
      if (news || left <= 0 || options.signal?.aborted) return { ...logs, process: { state: 'running' } }
      await at.changes.next(Math.min(left, WATCHED_POLL_MS))
    }
  }

  /** In a pid namespace nothing of the program outlives its supervisor; elsewhere what is left is looked for. */
  async #clearLost(sandbox: LocalSandbox, files: TurnFiles) {
    await killFound(() => findProcesses((pid) => isOfSandbox(pid, files.dir)))
    if (sandbox.isolation !== 'bubblewrap') await killSandbox(sandbox)
  }

  async stop(ref: SandboxRef, key: string) {
    const sandbox = await readSandbox(this.#deps.sandboxesDir, ref.id)
    if (sandbox === null) return
    const files = this.#turn(sandbox, key)
    if ((await stat(files.dir).catch(() => null)) === null) return
    if (await isPaused(sandbox)) await resumeSandbox(sandbox)
    await writeFile(files.stop, '')
    const { grace_ms } = JSON.parse(await readFile(files.spec, 'utf8').catch(() => '{"grace_ms":0}')) as {
      grace_ms: number
    }
    await this.#signalSupervisor(files, 'SIGTERM')
    if (await this.#endsWithin(files, grace_ms + 10_000)) return
    await this.#signalSupervisor(files, 'SIGKILL')
    await this.#endsWithin(files, 5_000)
    await this.#clearLost(sandbox, files)
  }

  /** A supervisor leads a process group of its alarm and its pumps. They end with it, but not if they are paused: they are killed with it. */
  async #signalSupervisor(files: TurnFiles, signal: 'SIGTERM' | 'SIGKILL') {
    const mark = await readMark(files)
    if (mark !== null && (await isAlive(mark))) signalProcess(signal === 'SIGKILL' ? -mark.pid : mark.pid, signal)
  }

  async #endsWithin(files: TurnFiles, ms: number): Promise<boolean> {
    const until = performance.now() + ms
    while ((await readTurnProcess(files, this.#deps.clock.now())).state === 'running') {
      if (performance.now() > until) return false
      await sleep(POLL_MS)
    }
    return true
  }

  async exec(ref: SandboxRef, argv: readonly string[], options: Parameters<Provider['exec']>[2]) {
    return execInside(await this.#openAwake(ref), argv, { ...options, owner: this.#owner })
  }

  async readFile(ref: SandboxRef, path: string, options: Parameters<Provider['readFile']>[2]) {
    const sandbox = await this.#open(ref)
    const { home } = insidePaths(sandbox)
    const relative = path.startsWith(`${home}/`) ? path.slice(home.length + 1) : path
    if (relative.startsWith('/') || relative.includes('\0')) return null
    const root = join(sandbox.dir, 'home')
    return readUnder(root, join(root, relative), options)
  }

  async putTar(ref: SandboxRef, dir: string, tar: Readable) {
    const script = 'mkdir -p -- "$1" && exec tar -x -f - --no-same-owner -C "$1"'
    const result = await execInside(await this.#openAwake(ref), ['sh', '-c', script, 'sh', dir], {
      stdin: tar,
      timeoutMs: 10 * 60_000,
      maxOutputBytes: 1_048_576,
      owner: this.#owner,
    })
    if (result.exitCode !== 0)
      throw errors.sandboxFailed(`files could not be put into ${dir} of the sandbox`, {
        reason: result.err.toString('utf8').slice(0, 2_000),
      })
  }

  async getTar(ref: SandboxRef, dir: string, options: { readonly maxBytes: number }) {
    const inside = startInside(await this.#openAwake(ref), ['tar', '-c', '-f', '-', '-C', dir, '.'], {
      env: {},
      owner: this.#owner,
    })
    return Readable.from(tarOf(inside, dir, options.maxBytes), { objectMode: false })
  }

  async pause(ref: SandboxRef) {
    await pauseSandbox(await this.#open(ref))
  }

  async resume(ref: SandboxRef) {
    await resumeSandbox(await this.#open(ref))
  }

  async destroy(ref: SandboxRef) {
    const sandbox = await readSandbox(this.#deps.sandboxesDir, ref.id)
    const dir = sandboxDir(this.#deps.sandboxesDir, ref.id)
    if (sandbox !== null) {
      for (const key of await readdir(join(dir, 'turns')).catch(() => []))
        await this.#signalSupervisor(this.#turn(sandbox, key), 'SIGKILL')
    }
    // Whatever else names this sandbox: helper commands, alarms of a killed supervisor, all of one whose directory was removed.
    await killFound(() => findProcesses((pid) => isOfSandbox(pid, dir)))
    if (sandbox !== null) await killSandbox(sandbox)
    else await killFound(() => findMarked(`HANGAR_SANDBOX=${ref.id}`))
    await this.#limits.remove(ref.id)
    await removeSandboxDir(this.#deps.sandboxesDir, dir, ref.id)
  }

  async #open(ref: SandboxRef): Promise<LocalSandbox> {
    await this.#recover()
    const sandbox = await readSandbox(this.#deps.sandboxesDir, ref.id)
    if (sandbox === null) throw errors.sandboxLost(`the sandbox ${ref.id} is not on this host`)
    return sandbox
  }

  /** For all that would start something in it. */
  async #openAwake(ref: SandboxRef): Promise<LocalSandbox> {
    const sandbox = await this.#open(ref)
    if (await isPaused(sandbox)) throw errors.sandboxFailed(`the sandbox ${ref.id} is paused; resume it first`)
    // Control groups do not outlive the host's boot, sandboxes do.
    const groups = sandbox.limits ? await this.#limits.make(sandbox.id, sandbox.limits) : []
    return { ...sandbox, groups }
  }

  #turn(sandbox: LocalSandbox, key: string): TurnFiles {
    if (!KEY.test(key)) throw errors.invalidName(`run key ${JSON.stringify(key.slice(0, 80))} is not taken`)
    return turnFiles(join(sandbox.dir, 'turns', key))
  }

  /** Once, before anything else: ends helper commands that a killed server has left, and half-removed directories. */
  #recover(): Promise<void> {
    this.#recovered ??= (async () => {
      await sweepGone(this.#deps.sandboxesDir)
      const ids = new Set(await listSandboxes(this.#deps.sandboxesDir))
      await killFound(() => findProcesses((pid) => isOrphan(pid, ids)))
    })()
    return this.#recovered
  }
}

/** Whether a process is a supervisor or a bubblewrap of the sandbox (or of the one run) in that directory. */
async function isOfSandbox(pid: number, dir: string): Promise<boolean> {
  const argv = (await readFile(`/proc/${pid}/cmdline`, 'latin1')).split('\0')
  const ours = argv.includes('supervise') || argv.some((argument) => argument.endsWith('/bwrap'))
  return ours && argv.some((argument) => argument === dir || argument.startsWith(`${dir}/`))
}

/** Whether a process is a helper command of one of these sandboxes whose server is gone. */
async function isOrphan(pid: number, sandboxes: ReadonlySet<string>): Promise<boolean> {
  const environment = (await readFile(`/proc/${pid}/environ`, 'latin1')).split('\0')
  const owner = environment.find((entry) => entry.startsWith('HANGAR_RUN=exec:'))?.split(':')[1]
  const id = environment.find((entry) => entry.startsWith('HANGAR_SANDBOX='))?.slice('HANGAR_SANDBOX='.length)
  if (owner === undefined || id === undefined || !sandboxes.has(id)) return false
  const [server, startTime] = owner.split('.')
  return readStartTime(Number(server)) !== startTime
}

function readStartTime(pid: number | 'self' = 'self'): string {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')[19] ?? ''
  } catch {
    return ''
  }
}

async function isClaimed(files: TurnFiles): Promise<boolean> {
  return (await stat(files.claimed).catch(() => null)) !== null
}

async function waitForClaim(files: TurnFiles, supervisor: ChildProcess): Promise<void> {
  const failed = waitForExit(supervisor)
  const until = performance.now() + 20_000
  while (!((await isClaimed(files)) && (await readMark(files)) !== null)) {
    const over = await Promise.race([failed.then(() => true), sleep(4, false)])
    if ((over || performance.now() > until) && !(await isClaimed(files)))
      throw errors.sandboxFailed('the supervisor of the run did not start')
    if (over) return
  }
}

async function* tarOf(inside: ReturnType<typeof startInside>, dir: string, maxBytes: number): AsyncGenerator<Buffer> {
  const { child } = inside
  let size = 0
  let words = ''
  child.stderr?.on('data', (chunk: Buffer) => {
    if (words.length < 2_000) words += chunk.toString('utf8')
  })
  const ended = waitForExit(child)
  try {
    child.stdin?.end()
    for await (const chunk of child.stdout as AsyncIterable<Buffer>) {
      size += chunk.length
      if (size > maxBytes) throw errors.limitPassed(`${dir} of the sandbox is bigger than ${maxBytes} bytes as a tar`)
      yield chunk
    }
    const exitCode = await ended
    // 1 says only that a file changed while it was read.
    if (exitCode !== 0 && exitCode !== 1)
      throw errors.sandboxFailed(`${dir} of the sandbox could not be read`, { reason: words.slice(0, 2_000) })
  } finally {
    await inside.end()
  }
}
