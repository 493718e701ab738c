/**
 * How the gateway grows with the sessions in one repository: fetch and push of a sandbox and of a person, each right after a ref has moved, and a page
 * of the listing of sessions. Usage: `node dist/bench/growth.js [rounds] [sessions…]`, default 7 rounds at 100, 1,000, 10,000 and 100,000. A session has
 * three refs, packed; its entry in the listing is as the server writes it. Wall time and the server's processor time (with its git), medians in ms.
 */
import { execFileSync, spawn } from 'node:child_process'
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Index, openIndex, orderKey, type SessionEntry } from '../gateway/state/index.ts'
import { ENV, git, serveGateway } from './git-peers.ts'

const [, self = '', first = '', ...others] = process.argv
const ROUNDS = Number(first || 7)
const SIZES = others.length > 0 ? others.map(Number) : [100, 1_000, 10_000, 100_000]

interface Server {
  readonly pid: number
  readonly port: number
}

async function bench(): Promise<void> {
  console.log(
    `${ROUNDS} rounds, load ${loadavg()[0]?.toFixed(1)}; ms of wall time (ms of the server's processor time)\n`,
  )
  const names = ['sandbox: fetch', 'sandbox: push', 'person: fetch', 'person: push', 'a page of 50 sessions']
  console.log(`| sessions | ${names.join(' | ')} | server MiB |`)
  console.log(`|---|${names.map(() => '---|').join('')}---|`)
  for (const sessions of SIZES) {
    const root = mkdtempSync(join(tmpdir(), 'hangar-growth-'))
    try {
      console.log(await measure(root, sessions))
    } finally {
      rmSync(root, { recursive: true, force: true, maxRetries: 5 })
    }
  }
}

async function measure(root: string, sessions: number): Promise<string> {
  const source = join(root, 'source')
  git(root, 'init', '-q', '-b', 'main', source)
  writeFileSync(join(source, 'file'), 'a\n')
  git(source, 'add', '.')
  git(source, 'commit', '-qm', 'base')
  const child = spawn(process.execPath, [self, 'serve', join(root, 'data')], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    const port = await new Promise<number>((resolve) =>
      child.stdout.once('data', (text) => resolve(Number(String(text)))),
    )
    const server = { pid: child.pid ?? 0, port }
    makeSessions(join(root, 'data', 'repos', 'bench', 'small.git'), source, sessions)
    const works = ['hgs_x', 'hgt_x'].map((secret) => workingCopy(root, source, server, secret))
    const cells: string[] = []
    for (const [at, work] of works.entries()) {
      const branch = at === 0 ? 'hangar/s' : 'main'
      const [fetches, pushes]: [Sample[], Sample[]] = [[], []]
      for (let round = -2; round < ROUNDS; round++) {
        appendFileSync(join(work, 'file'), `${round} ${Math.random()}\n`)
        git(work, 'commit', '-qam', 'one more')
        const push = timed(server, work, 'push', '-q', 'origin', `HEAD:refs/heads/${branch}`)
        // Sees the refs as they are now, for the first time.
        const fetch = timed(server, work, 'fetch', '-q', 'origin', 'main')
        if (round >= 0) {
          pushes.push(push)
          fetches.push(fetch)
        }
      }
      cells.push(shown(fetches), shown(pushes))
    }
    cells.push(await listing(join(root, 'index'), sessions))
    return `| ${sessions.toLocaleString('en')} | ${cells.join(' | ')} | ${memoryOf(server.pid)} |`
  } finally {
    child.kill('SIGKILL')
  }
}

/** Packed refs of so many sessions on top of main, each commit its own. */
function makeSessions(dir: string, source: string, count: number): void {
  const main = git(source, 'rev-parse', 'HEAD').trim()
  git(source, 'push', '-q', dir, 'main')
  const stream: string[] = []
  for (let at = 1; at <= count; at++)
    stream.push(
      `reset refs/tmp\ncommit refs/tmp\nmark :${at}\ncommitter a <a@b> ${1_700_100_000 + at} +0000\ndata 1\nx\nfrom ${main}\n`,
    )
  const marks = join(dir, 'marks')
  execFileSync('git', ['-c', 'fastimport.unpackLimit=0', 'fast-import', '--quiet', `--export-marks=${marks}`], {
    cwd: dir,
    env: ENV as NodeJS.ProcessEnv,
    input: stream.join(''),
  })
  git(dir, 'update-ref', '-d', 'refs/tmp')
  const lines: string[] = []
  for (const line of readFileSync(marks, 'utf8').trim().split('\n')) {
    const [mark = '', oid = ''] = line.slice(1).split(' ')
    const name = `s${mark.padStart(7, '0')}`
    lines.push(`${oid} refs/hangar/sessions/${name}/checkpoint`, `${oid} refs/hangar/sessions/${name}/log`)
    lines.push(`${oid} refs/heads/hangar/${name}`)
  }
  lines.push(`${main} refs/heads/main`)
  lines.sort((a, b) => (a.slice(41) < b.slice(41) ? -1 : 1))
  writeFileSync(join(dir, 'packed-refs'), ['# pack-refs with: peeled fully-peeled sorted ', ...lines, ''].join('\n'))
  rmSync(join(dir, 'refs', 'heads', 'main'), { force: true })
  rmSync(marks)
}

function workingCopy(root: string, source: string, { port }: Server, secret: string): string {
  const work = join(root, `work-${secret}`)
  git(root, 'clone', '-q', source, work)
  git(work, 'config', 'remote.origin.url', `http://x:${secret}@127.0.0.1:${port}/git/bench/small.git`)
  return work
}

interface Sample {
  readonly ms: number
  readonly cpuMs: number
}

function timed({ pid }: Server, cwd: string, ...args: string[]): Sample {
  const cpu = cpuOf(pid)
  const begun = performance.now()
  git(cwd, ...args)
  return { ms: performance.now() - begun, cpuMs: cpuOf(pid) - cpu }
}

/** Of a process and the children that it has waited for. */
function cpuOf(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'latin1')
    .replace(/^.*\) /, '')
    .split(' ')
  return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks) * 10, 0)
}

function memoryOf(pid: number): string {
  const kilobytes = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  return (Number(kilobytes) / 1024).toFixed(0)
}

/** The newest sessions, by the way that the operation goes: a range of the order, then each entry. */
async function listing(dir: string, count: number): Promise<string> {
  mkdirSync(dir)
  const index = await openIndex({ dir, log: { info() {}, warn() {}, error() {} } })
  try {
    for (let at = 0; at < count; at += 1_000) await index.batch(entries(at, Math.min(count, at + 1_000)))
    const samples: Sample[] = []
    for (let round = -2; round < ROUNDS; round++) {
      const cpu = process.cpuUsage()
      const begun = performance.now()
      const page = await index.order.range({ reverse: true, limit: 50 })
      for (const [, name] of page)
        if ((await index.sessions.get(name)) === null) throw new Error(`${name} is not there`)
      const used = process.cpuUsage(cpu)
      if (round >= 0) samples.push({ ms: performance.now() - begun, cpuMs: (used.user + used.system) / 1_000 })
    }
    return shown(samples)
  } finally {
    await index.close()
  }
}

function entries(from: number, to: number): Parameters<Index['batch']>[0] {
  return Array.from({ length: to - from }, (_, at) => `s${String(from + at).padStart(7, '0')}`).flatMap((name, at) => [
    { section: 'order', key: orderKey(1_700_000_000_000 + from + at, name), value: name } as const,
    { section: 'sessions', key: name, value: { note: 'x'.repeat(800) } as unknown as SessionEntry } as const,
  ])
}

function shown(samples: readonly Sample[]): string {
  const median = (values: number[]) => values.sort((a, b) => a - b)[values.length >> 1]?.toFixed(0) ?? ''
  return `${median(samples.map(({ ms }) => ms))} (${median(samples.map(({ cpuMs }) => cpuMs))})`
}

if (first === 'serve') await serveGateway(others[0] ?? '')
else await bench()
