/**
 * The git gateway beside nginx + fcgiwrap + `git http-backend`, node-git-server and `git daemon`, on one machine in interleaved rounds: wall time as
 * the median of the rounds' ratios, and processor time of each server with all that it starts.
 * Usage: `node dist/bench/gateway.js [rounds] [--quick] [--minutes N] [--only TEXT] [--plot FILE.svg]`; default 10 rounds and 25 minutes. Debian packages nginx-light and fcgiwrap.
 */
import { type SpawnOptions, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  appendFileSync,
  cpSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { request } from 'node:http'
import { connect } from 'node:net'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { ratioPlot } from './chart.ts'
import { ENV, git, MANY_REFS, type Peer, REPLIES, REPOS, type Repo, serveGateway, startPeers } from './git-peers.ts'
import { serveReplies } from './git-replies.ts'

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    serve: { type: 'string' },
    replies: { type: 'string' },
    quick: { type: 'boolean', default: false },
    minutes: { type: 'string' },
    only: { type: 'string', default: '' },
    plot: { type: 'string' },
  },
})
const quick = options.quick
const ROUNDS = Number(positionals[0] ?? (quick ? 2 : 10))
const BUDGET_MS = Number(options.minutes ?? (quick ? 0.6 : 25)) * 60_000
/** A client that takes longer has lost, and its server is left out from then on. */
const TIMEOUT_MS = 60_000
const LARGE_MB = quick ? 30 : 120

interface Measure {
  readonly what: string
  readonly clients: number
  /** Taken in each so many rounds. */
  readonly every?: number
  readonly repo: Repo
  /** Where the ratio to the best peer over HTTP is to be. */
  readonly target: number
  readonly skip?: (peer: Peer) => boolean
  /** Whether the requests are the same each time. */
  readonly repeats?: boolean
  /** A peer that does less, and is no measure for the best. */
  readonly less?: string
  /** Makes what is needed, untimed, and gives the work to be timed. */
  prepare(peer: Peer, round: number): Promise<() => Promise<void>>
}

interface Sample {
  readonly measure: Measure
  readonly peer: string
  readonly round: number
  /** Infinity: it took too long. */
  readonly ms: number
  readonly cpuMs: number | null
}

async function bench(): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'hangar-bench-'))
  const sources = await makeSources(root)
  const self = process.argv[1] ?? ''
  const peers = await startPeers(root, {
    gateway: (dataDir) => [process.execPath, self, '--serve', dataDir],
    replies: (port) => [process.execPath, self, '--replies', String(port)],
  })
  try {
    for (const peer of peers.all.filter(({ name }) => name !== REPLIES))
      for (const repo of REPOS) fill(peer, repo, sources)
    const measures = measuresOf(root, sources).filter(({ what }) => what.includes(options.only))
    const samples = await run(measures, peers.all)
    report(measures, peers.all, samples)
  } finally {
    await peers.close()
    rmSync(root, { recursive: true, force: true, maxRetries: 5 })
  }
}

async function run(measures: readonly Measure[], peers: readonly Peer[]): Promise<Sample[]> {
  const until = performance.now() + BUDGET_MS
  const samples: Sample[] = []
  const lost = new Set<string>()
  for (let round = -1; round < ROUNDS; round++)
    for (const measure of measures) {
      // The first round warms up, without the heavy ones.
      if (round % (measure.every ?? 1) !== 0 && !(round === -1 && measure.every === undefined)) continue
      if (performance.now() > until) continue
      const order = peers.map((_, at) => peers[(at + round + 1) % peers.length]).filter((peer) => peer !== undefined)
      for (const peer of order) {
        const one = `${nameOf(measure)} ${peer.name}`
        if (!takesPart(measure, peer) || lost.has(one)) continue
        const sample = await take(measure, peer, round)
        if (sample.ms === Number.POSITIVE_INFINITY) lost.add(one)
        if (round >= 0 || sample.ms === Number.POSITIVE_INFINITY) samples.push(sample)
      }
    }
  return samples
}

async function take(measure: Measure, peer: Peer, round: number): Promise<Sample> {
  const work = await measure.prepare(peer, round)
  const cpu = peer.cpuMs()
  const begun = performance.now()
  const late = await work().then(
    () => false,
    (error: unknown) => {
      if (error instanceof TooLate) return true
      throw new Error(`${nameOf(measure)}, ${peer.name}: ${error instanceof Error ? error.message : error}`)
    },
  )
  const ms = late ? Number.POSITIVE_INFINITY : performance.now() - begun
  const after = peer.cpuMs()
  return { measure, peer: peer.name, round, ms, cpuMs: cpu === null || after === null ? null : after - cpu }
}

/** Peers that differ only on the repository with many refs are measured only there, and replies alone where all requests are the same each time. */
function takesPart({ repo, skip, repeats }: Measure, peer: Peer): boolean {
  if (peer.name === REPLIES) return repeats === true
  return (peer.name !== 'nginx, hideRefs' || repo === 'refs') && skip?.(peer) !== true
}

function measuresOf(root: string, sources: Sources): Measure[] {
  const dir = (peer: Peer, name: string) => join(root, 'work', peer.name.replaceAll(/\W+/g, '-'), name)
  const scratch = (peer: Peer) => {
    const path = dir(peer, 'clones')
    rmSync(path, { recursive: true, force: true })
    mkdirSync(path, { recursive: true })
    return path
  }
  /** A working copy of a repository, made once for each peer and name. */
  const copy = (peer: Peer, repo: 'small' | 'refs', name: string, client = 0) => {
    const path = dir(peer, name)
    if (!existsSync(path)) {
      cpSync(sources.work, path, { recursive: true })
      git(path, 'config', 'remote.origin.url', peer.url(repo, client))
      git(path, 'config', 'remote.origin.fetch', '+refs/heads/main:refs/remotes/origin/main')
    }
    return path
  }
  const commit = (path: string, round: number) => {
    appendFileSync(join(path, 'f1'), `${round} ${Math.random()}\n`)
    git(path, 'commit', '-qam', 'one more')
  }
  const times = <T>(count: number, make: (client: number) => T) => Array.from({ length: count }, (_, at) => make(at))
  const together = (commands: readonly { cwd: string; args: string[]; fails?: boolean }[]) => async () => {
    await Promise.all(commands.map((command) => client(command)))
  }
  const cloneOf = (branch: string) => ['clone', '-q', '--bare', '--single-branch', '--no-tags', '-b', branch]

  const firstByte: Measure = {
    what: 'info/refs, first byte',
    clients: 1,
    repo: 'small',
    target: 0.15,
    repeats: true,
    skip: ({ name }) => name === 'git daemon',
    prepare: async (peer) => async () => {
      for (let time = 0; time < 20; time++) await readHead(peer, 'small')
    },
  }
  const clone = (clients: number): Measure => ({
    what: 'clone, small, asked before',
    clients,
    repo: 'small',
    target: 1,
    async prepare(peer) {
      const cwd = scratch(peer)
      return together(times(clients, (at) => ({ cwd, args: [...cloneOf('main'), peer.url('small', at), `c${at}`] })))
    },
  })
  const firstClone: Measure = {
    what: 'clone, small, of a new commit',
    clients: 1,
    repo: 'small',
    target: 1,
    async prepare(peer, round) {
      const path = copy(peer, 'small', 'new')
      commit(path, round)
      git(path, 'push', '-q', 'origin', 'HEAD:refs/heads/new')
      return together([{ cwd: scratch(peer), args: [...cloneOf('new'), peer.url('small'), 'c'] }])
    },
  }
  const noop = (repo: 'small' | 'refs', clients: number): Measure => ({
    what: repo === 'small' ? 'fetch of nothing new' : `${refsName}: fetch of nothing new`,
    clients,
    repo,
    target: 0.65,
    repeats: true,
    async prepare(peer) {
      const paths = times(clients, (at) => copy(peer, repo, `noop-${repo}-${at}`, at))
      return together(paths.map((cwd) => ({ cwd, args: ['fetch', '-q'] })))
    },
  })
  const fetchOne = (clients: number): Measure => ({
    what: 'fetch of 1 commit',
    clients,
    repo: 'small',
    target: 1,
    async prepare(peer, round) {
      const branch = `next-${clients}`
      const from = copy(peer, 'small', `from-${clients}`)
      if (round === -1) git(from, 'push', '-q', 'origin', `HEAD:refs/heads/${branch}`)
      const args = ['fetch', '-q', 'origin', `+refs/heads/${branch}:refs/remotes/origin/next`]
      const paths = times(clients, (at) => copy(peer, 'small', `to-${clients}-${at}`, at))
      if (round === -1) for (const path of paths) git(path, ...args)
      commit(from, round)
      git(from, 'push', '-q', 'origin', `HEAD:refs/heads/${branch}`)
      return together(paths.map((cwd) => ({ cwd, args })))
    },
  })
  const push = (repo: 'small' | 'refs', clients: number): Measure => ({
    what: repo === 'small' ? 'push of 1 commit' : `${refsName}: push of 1 commit`,
    clients,
    repo,
    target: 1,
    async prepare(peer, round) {
      const paths = times(clients, (at) => copy(peer, repo, `push-${repo}-${clients}-${at}`, at))
      for (const path of paths) commit(path, round)
      return together(
        paths.map((cwd, at) => ({ cwd, args: ['push', '-q', 'origin', `HEAD:refs/heads/p-${clients}-${at}`] })),
      )
    },
  })
  const refused: Measure = {
    what: 'push of 10 MB, refused',
    // A bare 403, of which the client shows no reason.
    less: 'node-git-server',
    clients: 1,
    repo: 'small',
    target: 1,
    async prepare(peer) {
      const args = ['push', '-q', peer.url('small', 0, true), 'HEAD:refs/heads/no']
      return together([{ cwd: sources.big, args, fails: true }])
    },
  }
  const large = (clients: number, every?: number): Measure => ({
    what: `pack of ${LARGE_MB} MB, asked before`,
    clients,
    repo: 'large',
    target: 0.25,
    ...(every === undefined ? {} : { every }),
    prepare: async (peer) => async () => {
      await Promise.all(times(clients, () => fetchPack(peer, sources.tips.large, sources.large)))
    },
  })
  const firstLarge: Measure = {
    what: `pack of ${LARGE_MB} MB, of a new commit`,
    clients: 1,
    repo: 'large',
    target: 1,
    async prepare(peer) {
      // An object of its own for each, so that nothing of the answer is kept from the time before.
      const tip = git(sources.dirs.large, 'commit-tree', '-p', sources.tips.large, '-m', String(Math.random()), TREE)
      git(sources.dirs.large, 'push', '-q', peer.url('large'), `${tip.trim()}:refs/heads/new-${Math.random()}`)
      return () => fetchPack(peer, tip.trim(), sources.large)
    },
  }
  const refsName = `${MANY_REFS.toLocaleString('en')} refs`
  const singleBranch = (clients: number): Measure => ({
    what: `${refsName}: clone of one branch`,
    clients,
    repo: 'refs',
    target: 1,
    async prepare(peer) {
      const cwd = scratch(peer)
      return together(times(clients, (at) => ({ cwd, args: [...cloneOf('main'), peer.url('refs', at), `c${at}`] })))
    },
  })
  const light = [
    firstByte,
    firstClone,
    clone(1),
    noop('small', 1),
    fetchOne(1),
    push('small', 1),
    refused,
    firstLarge,
    large(1),
    noop('refs', 1),
    singleBranch(1),
    push('refs', 1),
  ]
  if (quick) return [...light, noop('small', 8), clone(8)]
  const many = [8, 32].flatMap((clients) => [
    clone(clients),
    noop('small', clients),
    fetchOne(clients),
    push('small', clients),
  ])
  const manyRefs = [8, 32].flatMap((clients) => [noop('refs', clients), singleBranch(clients), push('refs', clients)])
  return [...light, ...many, ...manyRefs, large(8, 3), large(32, 9)]
}

class TooLate extends Error {}

function client({ cwd, args, fails = false }: { cwd: string; args: string[]; fails?: boolean }): Promise<void> {
  const options: SpawnOptions = { cwd, env: ENV as NodeJS.ProcessEnv, stdio: ['ignore', 'ignore', 'pipe'] }
  return new Promise((resolve, reject) => {
    const child = spawn('git', args, options)
    let said = ''
    let late = false
    const timer = setTimeout(() => {
      late = true
      child.kill('SIGKILL')
    }, TIMEOUT_MS)
    child.stderr?.on('data', (chunk) => {
      said += String(chunk)
    })
    child.once('close', (status) => {
      clearTimeout(timer)
      if (late) reject(new TooLate())
      else if ((status !== 0) === fails) resolve()
      else reject(new Error(`git ${args.join(' ')} ended with ${status}: ${said}`))
    })
  })
}

const AUTHORIZATION = `Basic ${Buffer.from('x:hgt_x').toString('base64')}`

/** Asks for `info/refs` on a new connection, and waits for the first byte of the answer. */
function readHead(peer: Peer, repo: Repo): Promise<void> {
  return new Promise((resolve, reject) => {
    const path = `${peer.path(repo)}/info/refs?service=git-upload-pack`
    const headers = { Authorization: AUTHORIZATION, 'Git-Protocol': 'version=2' }
    const sent = request({ host: '127.0.0.1', port: peer.port, path, headers, agent: false }, (answer) => {
      answer.once('data', () => {
        resolve()
        answer.resume()
      })
      if (answer.statusCode !== 200) reject(new Error(`info/refs was answered with ${answer.statusCode}`))
    })
    sent.once('error', reject)
    sent.end()
  })
}

/** Asks for everything that a commit reaches, in protocol v0, which all speak, and throws the pack away as it comes. */
async function fetchPack(peer: Peer, tip: string, leastBytes: number): Promise<void> {
  const body = `${pkt(`want ${tip} side-band-64k ofs-delta no-progress agent=bench\n`)}0000${pkt('done\n')}`
  const bytes = await (peer.http ? fetchOverHttp(peer, body) : fetchFromDaemon(peer, body))
  if (bytes < leastBytes) throw new Error(`a pack of ${bytes} bytes came`)
}

function fetchOverHttp(peer: Peer, body: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const headers = {
      Authorization: AUTHORIZATION,
      'Content-Type': 'application/x-git-upload-pack-request',
      'Content-Length': body.length,
    }
    const path = `${peer.path('large')}/git-upload-pack`
    const sent = request(
      { host: '127.0.0.1', port: peer.port, path, method: 'POST', headers, agent: false },
      (answer) => {
        let bytes = 0
        answer.on('data', (chunk: Buffer) => {
          bytes += chunk.length
        })
        answer.once('end', () => resolve(bytes))
        answer.once('error', reject)
      },
    )
    sent.once('error', reject)
    sent.end(body)
  })
}

function fetchFromDaemon(peer: Peer, body: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket = connect(peer.port, '127.0.0.1')
    let bytes = 0
    socket.on('data', (chunk) => {
      bytes += chunk.length
    })
    socket.once('close', () => resolve(bytes))
    socket.once('error', reject)
    socket.write(pkt(`git-upload-pack ${peer.path('large')}\0host=127.0.0.1\0`) + body)
  })
}

function pkt(text: string): string {
  return (text.length + 4).toString(16).padStart(4, '0') + text
}

interface Sources {
  readonly dirs: Readonly<Record<Repo, string>>
  readonly tips: Readonly<Record<Repo, string>>
  readonly packedRefs: Readonly<Record<Repo, string>>
  /** Bytes that the pack of `large` has at least. */
  readonly large: number
  /** A working copy of `small`. */
  readonly work: string
  /** The same with a commit of 10 MB more. */
  readonly big: string
}

const TREE = '4b825dc642cb6eb9a060e54bf8d69288fbee4904'

async function makeSources(root: string): Promise<Sources> {
  const dirs = { small: join(root, 'small-src'), large: join(root, 'large-src'), refs: join(root, 'refs-src') }
  await importCommits(dirs.small, { commits: 200, files: 1, bytes: 400 })
  await importCommits(dirs.large, { commits: 200, files: 100, bytes: (LARGE_MB * 1_000_000) / 10_000 })
  cpSync(dirs.small, dirs.refs, { recursive: true })
  const tipOf = (dir: string) => git(dir, 'rev-parse', 'main').trim()
  const tips = { small: tipOf(dirs.small), large: tipOf(dirs.large), refs: tipOf(dirs.refs) }
  const branches = await importBranches(dirs.refs, tips.refs)
  git(dirs.large, 'hash-object', '-t', 'tree', '-w', '/dev/null')
  const work = join(root, 'work-src')
  git(root, 'clone', '-q', dirs.small, work)
  const big = join(root, 'big')
  cpSync(work, big, { recursive: true })
  writeFileSync(join(big, 'big'), randomBytes(10_000_000))
  git(big, 'add', '.')
  git(big, 'commit', '-qm', 'big')
  const packedRefs = Object.fromEntries(
    REPOS.map((repo) => [
      repo,
      [
        '# pack-refs with: peeled fully-peeled sorted ',
        ...(repo === 'refs' ? branches : []),
        `${tips[repo]} refs/heads/main`,
        '',
      ].join('\n'),
    ]),
  ) as Record<Repo, string>
  return { dirs, tips, packedRefs, work, big, large: LARGE_MB * 900_000 }
}

/** Gives a peer a repository: packs by hard links, refs packed. */
function fill(peer: Peer, repo: Repo, { dirs, packedRefs, tips }: Sources): void {
  const places = [peer.dir(repo)]
  if (repo === 'small') places.push(join(places[0] ?? '', '..', 'no-small.git'))
  for (const place of places) {
    // Of the peer with hidden refs only one is there, and hangar refuses by itself.
    if (!existsSync(place)) continue
    const from = join(dirs[repo], 'objects', 'pack')
    mkdirSync(join(place, 'objects', 'pack'), { recursive: true })
    for (const name of readdirSync(from)) {
      if (!/\.(pack|idx)$/.test(name)) continue
      rmSync(join(place, 'objects', 'pack', name), { force: true })
      linkSync(join(from, name), join(place, 'objects', 'pack', name))
    }
    writeFileSync(join(place, 'packed-refs'), packedRefs[repo])
    if (git(place, 'rev-parse', 'main').trim() !== tips[repo]) throw new Error(`${place} has no main`)
  }
}

/** Commits that each change some files, as one pack; text of which half the bytes are chance. */
async function importCommits(
  dir: string,
  { commits, files, bytes }: { commits: number; files: number; bytes: number },
): Promise<void> {
  git(join(dir, '..'), 'init', '-q', '--bare', '-b', 'main', dir)
  await fastImport(dir, [], function* () {
    for (let at = 0; at < commits; at++) {
      yield `commit refs/heads/main\ncommitter a <a@b> ${1_700_000_000 + at} +0000\ndata 1\nx\n`
      for (let file = 0; file < files; file++) {
        const text = randomBytes(bytes / 2).toString('hex')
        yield `M 100644 inline d${(at + file) % 50}/f${(at * files + file) % 2_000}\ndata ${text.length}\n${text}\n`
      }
      if (at === 0) yield 'M 100644 inline f1\ndata 1\n1\n'
    }
  })
  git(dir, 'repack', '-adq')
}

/** A commit on top of main for each of the many branches, and the lines of packed-refs that name them. */
async function importBranches(dir: string, main: string): Promise<string[]> {
  const count = MANY_REFS / 2
  const marks = join(dir, 'marks')
  await fastImport(dir, [`--export-marks=${marks}`], function* () {
    for (let at = 1; at <= count; at++)
      yield `reset refs/tmp\ncommit refs/tmp\nmark :${at}\ncommitter a <a@b> ${1_700_100_000 + at} +0000\ndata 1\nx\nfrom ${main}\n`
  })
  git(dir, 'update-ref', '-d', 'refs/tmp')
  const oids = readFileSync(marks, 'utf8').trim().split('\n')
  const named = oids.map((line) => {
    const [mark = '', oid = ''] = line.slice(1).split(' ')
    return { name: `s${mark.padStart(6, '0')}`, oid }
  })
  named.sort((a, b) => (a.name < b.name ? -1 : 1))
  return [
    ...named.map(({ name, oid }) => `${oid} refs/hangar/sessions/${name}/log`),
    ...named.map(({ name, oid }) => `${oid} refs/heads/hangar/${name}`),
  ]
}

function fastImport(dir: string, args: string[], parts: () => Iterable<string>): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn('git', ['fast-import', '--quiet', '--force', ...args], {
      cwd: dir,
      env: { ...ENV, GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: 'fastimport.unpackLimit', GIT_CONFIG_VALUE_0: '0' },
      stdio: ['pipe', 'inherit', 'inherit'],
    })
    child.once('close', (status) => (status === 0 ? resolve() : reject(new Error(`fast-import: ${status}`))))
    const feed = async () => {
      for (const part of parts())
        if (!child.stdin.write(part)) await new Promise((drained) => child.stdin.once('drain', drained))
      child.stdin.end()
    }
    feed().catch(reject)
  })
}

function nameOf({ what, clients }: Measure): string {
  return clients === 1 ? what : `${what}, ${clients} at once`
}

interface Row {
  readonly name: string
  readonly target: number
  /** By peer: medians of ms and CPU, and of the rounds' ratios to the first peer. */
  readonly cells: ReadonlyMap<string, { ms: number; cpuMs: number | null; ratio: number }>
  /** Ours to the best peer over HTTP (that with the lowest median), the median of the rounds' ratios. */
  readonly best: number
}

function rowOf(measure: Measure, peers: readonly Peer[], all: readonly Sample[]): Row {
  const samples = all.filter((sample) => sample.measure === measure)
  const of = (peer: string) => samples.filter((sample) => sample.peer === peer)
  const at = (peer: string, round: number) => of(peer).find((sample) => sample.round === round)?.ms
  const cells = new Map<string, { ms: number; cpuMs: number | null; ratio: number }>()
  for (const { name } of peers) {
    const own = of(name)
    if (own.length === 0) continue
    const cpu = own.flatMap(({ cpuMs }) => (cpuMs === null ? [] : [cpuMs]))
    cells.set(name, {
      ms: median(own.map(({ ms }) => ms)),
      cpuMs: cpu.length === 0 ? null : median(cpu),
      ratio: median(own.map(({ ms, round }) => ms / (at('nginx', round) ?? Number.NaN))),
    })
  }
  const rivals = peers.filter(({ name, http }) => http && name !== 'hangar' && name !== measure.less)
  const [best = 'nginx'] = rivals
    .map(({ name }) => name)
    .filter((name) => cells.has(name))
    .sort((a, b) => (cells.get(a)?.ratio ?? 0) - (cells.get(b)?.ratio ?? 0))
  const toBest = median(of('hangar').map(({ ms, round }) => ms / (at(best, round) ?? Number.NaN)))
  return { name: nameOf(measure), target: measure.target, cells, best: toBest }
}

function report(measures: readonly Measure[], peers: readonly Peer[], samples: readonly Sample[]): void {
  const rows = measures.map((measure) => rowOf(measure, peers, samples)).filter(({ cells }) => cells.size > 0)
  const taken = new Map(
    measures.map((m) => [nameOf(m), samples.filter((s) => s.measure === m && s.peer === 'hangar').length]),
  )
  const shown = peers.map(({ name }) => name)
  console.log(
    `${ROUNDS} rounds, load ${loadavg()[0]?.toFixed(1)} at the end. nginx: ms (CPU ms of server and git). Others: ratio of wall time to nginx, the median of the rounds' (CPU ms).`,
  )
  console.log(`\n| test | rounds | ${shown.join(' | ')} | hangar to the best over HTTP | aim |`)
  console.log(`|---|---|${shown.map(() => '---|').join('')}---|---|`)
  for (const row of rows) {
    const cells = shown.map((name) => {
      const cell = row.cells.get(name)
      if (cell === undefined) return ''
      const cpu = cell.cpuMs === null ? '' : ` (${cell.cpuMs.toFixed(0)})`
      if (!Number.isFinite(cell.ms)) return 'over a minute'
      return name === 'nginx' ? `${cell.ms.toFixed(0)}${cpu}` : `${cell.ratio.toFixed(2)}${cpu}`
    })
    const mark = row.best <= row.target ? '' : ' **missed**'
    console.log(
      `| ${row.name} | ${taken.get(row.name) ?? 0} | ${cells.join(' | ')} | ${row.best.toFixed(2)} | ${row.target}${mark} |`,
    )
  }
  if (options.plot !== undefined) writeFileSync(options.plot, plotOf(rows, shown))
}

function plotOf(rows: readonly Row[], names: readonly string[]): string {
  return ratioPlot({
    title: 'Wall time as a ratio to nginx + git http-backend (left is faster)',
    series: names.filter((name) => name !== 'nginx'),
    rows: rows.map(({ name, cells }) => ({
      name,
      values: new Map([...cells].map(([peer, { ratio }]) => [peer, ratio] as const)),
    })),
  })
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[sorted.length >> 1] ?? Number.NaN
}

if (options.serve !== undefined) await serveGateway(options.serve)
else if (options.replies !== undefined) serveReplies(Number(options.replies))
else await bench()
