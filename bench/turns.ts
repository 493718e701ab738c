/**
 * What hangar adds around an agent's turn: the first and the later turn of an agent that does nothing, and of one that commits, on a small and
 * on a 5,000-file repo, beside a plain script that clones from the same server, runs the same agent and pushes; and how the turn grows with
 * the number of sessions in the store. Usage: `node dist/bench/turns.js [--quick]`. Starts `hangar serve` on temporary data and ends it.
 */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

const quick = process.argv.includes('--quick')
const ROUNDS = quick ? 3 : 9
const GROWTH = quick ? [1, 10, 40] : [1, 10, 100, 1_000]
/** Nothing is begun after this; what runs ends by its own time limits. */
const BUDGET_MS = quick ? 50_000 : 15 * 60_000
const REPOS = quick
  ? ([['small', 10]] as const)
  : ([
      ['small', 10],
      ['large', 5_000],
    ] as const)
/** Each turn's prompt is the shell command that the agent runs in its checkout. */
const AGENTS = [
  ['true', 'true'],
  ['one commit', 'date +%N >>d0/f0; git commit -qam work'],
] as const

interface Server {
  readonly url: string
  readonly token: string
  readonly pid: number
}

interface Row {
  readonly name: string
  readonly peer: readonly number[]
  readonly ours: readonly number[]
}

async function bench(): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'hangar-bench-'))
  let child: ChildProcess | null = null
  const until = performance.now() + BUDGET_MS
  try {
    const started = await startServer(root)
    child = started.child
    const { server } = started
    // Also when this process is ended, or dies of something (its output closed).
    process.once('exit', () => {
      started.child.kill('SIGKILL')
      rmSync(root, { recursive: true, force: true, maxRetries: 5 })
    })
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => process.exit(1))
    for (const [name, files] of REPOS) await addRepo(server, root, name, files)
    const rows: Row[] = []
    for (const [repo] of REPOS)
      for (const [agent, command] of AGENTS)
        rows.push(...(await compare(server, root, { repo, agent, command, until })))
    report(rows)
    await growth(server, until)
    console.log(`\nserver process at the end: ${(rssOf(server.pid) / 1024).toFixed(0)} MiB resident`)
  } finally {
    if (child !== null) await stop(child)
    rmSync(root, { recursive: true, force: true, maxRetries: 5 })
  }
}

/** First and later turns, each beside the peer's, in alternating order. */
async function compare(
  server: Server,
  root: string,
  { repo, agent, command, until }: { repo: string; agent: string; command: string; until: number },
): Promise<Row[]> {
  const first = { peer: [] as number[], ours: [] as number[] }
  const later = { peer: [] as number[], ours: [] as number[] }
  const label = agent.replaceAll(' ', '-')
  // The first round warms up.
  for (let round = -1; round < ROUNDS && performance.now() < until; round++) {
    const name = `${repo}-${label}-${round + 1}`
    const peer = () => plainTurns(server, root, { repo, name, command })
    const ours = () => hangarTurns(server, { repo, name, command })
    const before = round % 2 === 0 ? await peer() : null
    const [ourFirst, ourLater] = await ours()
    const [peerFirst, peerLater] = before ?? (await peer())
    if (round < 0) continue
    first.peer.push(peerFirst)
    first.ours.push(ourFirst)
    later.peer.push(peerLater)
    later.ours.push(ourLater)
  }
  return [
    { name: `${repo}, ${agent}, first turn`, ...first },
    { name: `${repo}, ${agent}, later turn`, ...later },
  ]
}

/** Milliseconds from the request to the end of a session's first and second turn; the session is closed then. */
async function hangarTurns(
  server: Server,
  { repo, name, command }: { repo: string; name: string; command: string },
): Promise<[number, number]> {
  const first = await timed(async () => {
    await call(server, 'POST', '/api/sessions', { name, repo: `bench/${repo}`, message: command })
    await untilEnded(server, name)
  })
  const later = await timed(async () => {
    await call(server, 'POST', `/api/sessions/${name}/turns`, { message: command })
    await untilEnded(server, name)
  })
  await call(server, 'POST', `/api/sessions/${name}/close`, {})
  return [first, later]
}

async function untilEnded(server: Server, name: string): Promise<void> {
  const { session } = await call(server, 'GET', `/api/sessions/${name}/wait?timeout_seconds=60`)
  const state = (session as { state?: string } | undefined)?.state
  if (state !== undefined && state !== 'idle') throw new Error(`${name} is ${state} after a minute`)
}

/** The peer: a script that does by hand what a turn does, without sandbox, record or uncommitted state. */
async function plainTurns(
  server: Server,
  root: string,
  { repo, name, command }: { repo: string; name: string; command: string },
): Promise<[number, number]> {
  const dir = join(root, 'peer', name)
  mkdirSync(dir, { recursive: true })
  const url = `${server.url}/git/bench/${repo}.git`
  const push = `git push -q origin HEAD:refs/heads/peer/${name}`
  const first = await timed(async () =>
    shell(dir, `git clone -q ${url} work && cd work && ${command} && ${push}`, server),
  )
  const later = await timed(async () => shell(join(dir, 'work'), `${command} && ${push}`, server))
  rmSync(dir, { recursive: true, force: true })
  return [first, later]
}

/** Turns in a store that fills up: the earlier sessions are closed while they wait, so no sandbox of theirs is left. */
async function growth(server: Server, until: number): Promise<void> {
  console.log('\nsessions in the store    first turn    later turn    server MiB')
  let count = Number((await listed(server)) ?? 0)
  for (const target of GROWTH) {
    while (count < target && performance.now() < until) {
      const batch = Array.from({ length: Math.min(8, target - count) }, (_, at) => `filler-${count + at}`)
      await Promise.all(batch.map((name) => fill(server, name)))
      count += batch.length
    }
    const samples: [number, number][] = []
    for (let round = 0; round < Math.min(ROUNDS, 5); round++) {
      if (performance.now() > until) break
      samples.push(await hangarTurns(server, { repo: 'small', name: `grown-${target}-${round}`, command: 'true' }))
      count++
    }
    if (samples.length === 0) return console.log('stopped: the time for this run is over')
    const cells = [0, 1].map((at) => median(samples.map((sample) => sample[at] ?? 0)).toFixed(0))
    console.log(
      [
        String(count).padStart(21),
        ...cells.map((cell) => cell.padStart(13)),
        (rssOf(server.pid) / 1024).toFixed(0).padStart(13),
      ].join(''),
    )
  }
}

async function listed(server: Server): Promise<number> {
  let count = 0
  let cursor: string | null = null
  do {
    const page: Record<string, unknown> = await call(
      server,
      'GET',
      `/api/sessions?limit=100${cursor === null ? '' : `&cursor=${encodeURIComponent(cursor)}`}`,
    )
    count += ((page['items'] as unknown[] | undefined) ?? []).length
    cursor = (page['next_cursor'] as string | null | undefined) ?? null
  } while (cursor !== null)
  return count
}

async function fill(server: Server, name: string): Promise<void> {
  await call(server, 'POST', '/api/sessions', { name, repo: 'bench/small', message: 'true' })
  await call(server, 'POST', `/api/sessions/${name}/close`, {})
}

/** Each call on a connection of its own: a kept one may just be ending when a turn took long. */
function call(server: Server, method: string, path: string, body?: unknown): Promise<Record<string, unknown>> {
  return new Promise((resolve, reject) => {
    const headers = { Authorization: `Bearer ${server.token}`, 'Content-Type': 'application/json' }
    const sent = request(server.url + path, { method, headers, agent: false, timeout: 120_000 }, (answer) => {
      const chunks: Buffer[] = []
      answer.on('data', (chunk: Buffer) => chunks.push(chunk))
      answer.once('error', reject)
      answer.once('end', () => {
        const text = Buffer.concat(chunks).toString('utf8')
        if ((answer.statusCode ?? 500) < 300) resolve(JSON.parse(text) as Record<string, unknown>)
        else reject(new Error(`${method} ${path}: ${answer.statusCode} ${text}`))
      })
    })
    sent.once('timeout', () => sent.destroy(new Error(`${method} ${path}: no answer`)))
    sent.once('error', reject)
    sent.end(body === undefined ? undefined : JSON.stringify(body))
  })
}

async function startServer(root: string): Promise<{ server: Server; child: ChildProcess }> {
  const agent = join(root, 'agent.sh')
  writeFileSync(agent, 'read -r line\neval "$line"\n')
  mkdirSync(join(root, 'data'))
  const config = { environments: { default: { harness_options: { argv: ['sh', agent] } } } }
  writeFileSync(join(root, 'data', 'hangar.config.json'), JSON.stringify(config))
  const main = fileURLToPath(new URL('../cli/main.js', import.meta.url))
  const child = spawn(process.execPath, [main, 'serve'], {
    cwd: root,
    env: {
      PATH: process.env['PATH'],
      HOME: root,
      XDG_CONFIG_HOME: join(root, 'config'),
      HANGAR_DATA: join(root, 'data'),
      HANGAR_LISTEN: '127.0.0.1:0',
      HANGAR_LOG: 'warn',
    },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const url = await new Promise<string>((resolve, reject) => {
    let said = ''
    child.stderr.on('data', (chunk) => {
      said += String(chunk)
      const found = /hangar serves (\S+),/.exec(said)?.[1]
      if (found !== undefined) resolve(found)
    })
    child.once('exit', () => reject(new Error(`the server did not start: ${said}`)))
  })
  const { token } = JSON.parse(readFileSync(join(root, 'config', 'hangar', 'cli.json'), 'utf8')) as { token: string }
  return { child, server: { url, token, pid: child.pid ?? 0 } }
}

async function stop(child: ChildProcess): Promise<void> {
  child.kill('SIGTERM')
  for (let tries = 0; tries < 100 && child.exitCode === null && child.signalCode === null; tries++) await sleep(100)
  child.kill('SIGKILL')
}

async function addRepo(server: Server, root: string, name: string, files: number): Promise<void> {
  await call(server, 'POST', '/api/repos', { slug: `bench/${name}` })
  const dir = join(root, `${name}-source`)
  mkdirSync(dir)
  git(dir, server, 'init', '-q', '-b', 'main')
  for (let at = 0; at < files; at++) {
    const folder = join(dir, `d${Math.floor(at / 50)}`)
    if (at % 50 === 0) mkdirSync(folder)
    writeFileSync(join(folder, `f${at}`), `${at}\n`.repeat(100))
  }
  git(dir, server, 'add', '.')
  git(dir, server, 'commit', '-qm', 'base')
  git(dir, server, 'push', '-q', `${server.url}/git/bench/${name}.git`, 'main')
}

function environmentOf(server: Server): Record<string, string | undefined> {
  return {
    PATH: process.env['PATH'],
    HOME: '/nonexistent',
    GIT_CONFIG_GLOBAL: '/dev/null',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_CONFIG_COUNT: '1',
    GIT_CONFIG_KEY_0: `http.${server.url}/.extraHeader`,
    GIT_CONFIG_VALUE_0: `Authorization: Bearer ${server.token}`,
    GIT_AUTHOR_NAME: 'a',
    GIT_AUTHOR_EMAIL: 'a@b',
    GIT_COMMITTER_NAME: 'a',
    GIT_COMMITTER_EMAIL: 'a@b',
  }
}

function git(cwd: string, server: Server, ...args: string[]): void {
  execFileSync('git', args, { cwd, env: environmentOf(server), stdio: ['ignore', 'ignore', 'pipe'] })
}

function shell(cwd: string, script: string, server: Server): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn('sh', ['-c', script], { cwd, env: environmentOf(server), stdio: ['ignore', 'ignore', 'pipe'] })
    let said = ''
    child.stderr.on('data', (chunk) => {
      said += String(chunk)
    })
    child.once('close', (status) => (status === 0 ? resolve() : reject(new Error(`${script}: ${said}`))))
  })
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now()
  await work()
  return performance.now() - start
}

function report(rows: readonly Row[]): void {
  const load = spawnSync('cat', ['/proc/loadavg'], { encoding: 'utf8' }).stdout.split(' ')[0]
  console.log(`${ROUNDS} rounds; medians in ms; added is the median of the rounds' differences; load now ${load}\n`)
  console.log(`${''.padEnd(32)}${['by hand', 'hangar', 'added', 'ratio'].map((head) => head.padStart(9)).join('')}`)
  for (const { name, peer, ours } of rows) {
    if (ours.length === 0) continue
    const differences = ours.map((ms, at) => ms - (peer[at] ?? ms))
    const ratios = ours.map((ms, at) => ms / (peer[at] ?? ms))
    const cells = [
      median(peer).toFixed(0),
      median(ours).toFixed(0),
      median(differences).toFixed(0),
      median(ratios).toFixed(2),
    ]
    console.log(name.padEnd(32) + cells.map((cell) => cell.padStart(9)).join(''))
  }
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN
}

/** KiB. */
function rssOf(pid: number): number {
  return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0)
}

await bench()
