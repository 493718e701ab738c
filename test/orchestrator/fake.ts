/** A provider without a supervisor: programs really run, on this host, but what is known of their runs is held in this process alone. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { errors } from '../../domain/errors.ts'
import type { Provider, SandboxRef, TurnProcess, TurnStart } from '../../domain/sandbox.ts'
import { execInside, startInside, waitForExit } from '../../orchestrator/providers/local-exec.ts'
import { readUnder } from '../../orchestrator/providers/local-files.ts'
import { createHostFacts, insidePaths, type LocalSandbox } from '../../orchestrator/providers/local-isolation.ts'
import { killSandbox, signalProcess } from '../../orchestrator/providers/local-processes.ts'
import { makeSandbox, removeSandboxDir } from '../../orchestrator/providers/local-sandbox.ts'

/** The sandboxes of any number of fake providers, as an engine has them. */
export interface FakeHost {
  /** Ends and removes a sandbox behind every provider's back. */
  vanish(id: string): Promise<void>
  provider(): Provider
}

interface Run {
  readonly inside: ReturnType<typeof startInside>
  readonly turn: TurnStart
  readonly out: Buffer[]
  readonly err: Buffer[]
  process: TurnProcess
  readonly ended: Promise<void>
}

interface Box {
  readonly sandbox: LocalSandbox
  readonly createdAt: number
  readonly runs: Map<string, Run>
}

const ID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/
const OWNER = `${process.pid}.fake`

export function createFakeHost(options: { readonly dir: string; readonly helperFile: string }): FakeHost {
  const boxes = new Map<string, Box>()
  const sandboxesDir = join(options.dir, 'fake')
  mkdirSync(sandboxesDir, { recursive: true })
  const vanish = async (id: string) => {
    const box = boxes.get(id)
    boxes.delete(id)
    if (box === undefined) return
    for (const { inside } of box.runs.values()) await inside.end()
    await killSandbox(box.sandbox)
    await removeSandboxDir(sandboxesDir, box.sandbox.dir, id)
  }
  return { vanish, provider: () => fakeProvider({ ...options, sandboxesDir, boxes, vanish }) }
}

function fakeProvider(host: {
  readonly sandboxesDir: string
  readonly helperFile: string
  readonly boxes: Map<string, Box>
  vanish(id: string): Promise<void>
}): Provider {
  const { boxes } = host
  const open = ({ id }: SandboxRef): Box => {
    const box = boxes.get(id)
    if (box === undefined) throw errors.sandboxLost(`the sandbox ${id} is gone: nobody knows where to`)
    return box
  }
  const paths = ({ id }: SandboxRef) => {
    if (!ID.test(id)) throw errors.invalidName(`sandbox id ${JSON.stringify(id)} is not taken`)
    const { home, repo, grantFile, helperDir } = insidePaths({ dir: join(host.sandboxesDir, id), isolation: 'none' })
    return { home, repo, grantFile, helperDir }
  }
  const exec: Provider['exec'] = async (ref, argv, options) =>
    execInside(open(ref).sandbox, argv, { ...options, owner: OWNER })
  return {
    kind: 'fake',
    capabilities: () => ({ pause: false, limits: [], network: false }),
    gatewayUrl: (url) => url,
    describe: async () => ({ level: 'warning', text: 'a double for tests: it isolates nothing' }),
    paths,
    create: async (spec) => {
      const sandbox = await makeSandbox(
        { ...host, isolation: 'none', host: createHostFacts(), clock: { now: Date.now } },
        spec,
      )
      const known = boxes.get(spec.id)
      boxes.set(spec.id, { sandbox, createdAt: known?.createdAt ?? Date.now(), runs: known?.runs ?? new Map() })
      return paths({ provider: 'fake', id: spec.id })
    },
    inspect: async ({ id }) =>
      boxes.has(id) ? { state: 'up', reason: null } : { state: 'gone', reason: 'nobody knows where to' },
    list: async () => [...boxes].map(([id, { createdAt }]) => ({ provider: 'fake', id, createdAt })),
    start: async (ref, turn) => {
      const { sandbox, runs } = open(ref)
      if (!runs.has(turn.key)) runs.set(turn.key, begin(sandbox, turn))
    },
    read: async (ref, key, cursor, { waitMs, maxBytes, signal }) => {
      const until = performance.now() + waitMs
      for (;;) {
        const run = open(ref).runs.get(key)
        const process = run?.process ?? { state: 'unknown' }
        const out = Buffer.concat(run?.out ?? []).subarray(cursor.out, cursor.out + maxBytes)
        const err = Buffer.concat(run?.err ?? []).subarray(cursor.err, cursor.err + maxBytes)
        const next = { out: cursor.out + out.length, err: cursor.err + err.length }
        const drained = out.length < maxBytes && err.length < maxBytes
        if (process.state !== 'running') return { out, err, next, process: drained ? process : { state: 'running' } }
        if (out.length > 0 || err.length > 0 || performance.now() >= until || signal?.aborted)
          return { out, err, next, process }
        await sleep(10)
      }
    },
    stop: async ({ id }, key) => {
      const run = boxes.get(id)?.runs.get(key)
      if (run !== undefined) await endRun(run)
    },
    exec,
    readFile: async (ref, path, options) => {
      const { home } = insidePaths(open(ref).sandbox)
      return readUnder(home, path.startsWith('/') ? path : join(home, path), options)
    },
    putTar: async (ref, dir, tar) => {
      const script = 'mkdir -p -- "$1" && exec tar -x -f - --no-same-owner -C "$1"'
      const limits = { timeoutMs: 60_000, maxOutputBytes: 65_536 }
      const { exitCode } = await exec(ref, ['sh', '-c', script, 'sh', dir], { ...limits, stdin: tar })
      if (exitCode !== 0) throw errors.sandboxFailed(`files could not be put into ${dir}`)
    },
    getTar: async (ref, dir, { maxBytes }) => {
      const limits = { timeoutMs: 60_000, maxOutputBytes: maxBytes }
      const packed = async function* () {
        const { exitCode, out } = await exec(ref, ['tar', '-c', '-f', '-', '-C', dir, '.'], limits)
        if (exitCode > 1) throw errors.sandboxFailed(`${dir} could not be read`)
        yield out
      }
      return Readable.from(packed(), { objectMode: false })
    },
    pause: async ({ id }) => {
      throw errors.sandboxFailed(`the sandbox ${id} cannot be paused`)
    },
    resume: async () => {},
    destroy: ({ id }) => host.vanish(id),
  }
}

function begin(sandbox: LocalSandbox, turn: TurnStart): Run {
  const inside = startInside(sandbox, turn.argv, { env: turn.env, owner: OWNER })
  const { child } = inside
  const keep = (kept: Buffer[]) => {
    let size = 0
    return (chunk: Buffer) => {
      const part = chunk.subarray(0, turn.maxOutputBytes - size)
      size += part.length
      if (part.length > 0) kept.push(part)
    }
  }
  const out: Buffer[] = []
  const err: Buffer[] = []
  child.stdout?.on('data', keep(out))
  child.stderr?.on('data', keep(err))
  child.stdin?.end(turn.stdin)
  const closed = new Promise<void>((resolve) => child.once('close', () => resolve()))
  let timedOut = false
  let timer: NodeJS.Timeout | undefined
  const end = async (run: Omit<Run, 'ended'> & { process: TurnProcess }) => {
    const exitCode = await waitForExit(child)
    clearTimeout(timer)
    await inside.end()
    await closed
    run.process = { state: 'exited', exitCode: exitCode ?? 137, timedOut, endedAt: Date.now() }
  }
  const started = { inside, turn, out, err, process: { state: 'running' } as TurnProcess }
  const run: Run = Object.assign(started, { ended: end(started) })
  timer = setTimeout(() => {
    timedOut = true
    void endRun(run)
  }, turn.timeoutMs)
  return run
}

async function endRun({ inside, turn, ended }: Run): Promise<void> {
  if (inside.child.pid !== undefined) signalProcess(-inside.child.pid, 'SIGTERM')
  await Promise.race([ended, sleep(turn.graceMs)])
  await inside.end()
  await ended
}
