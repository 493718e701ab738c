/** The gateway that is fuzzed, in a process of its own: a store whose every object is the same in each run, and answers to questions about itself. */
import { execFile } from 'node:child_process'
import { mkdirSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { type Oid, type RefName, type RepoSlug, ZERO_OID } from '../../domain/names.ts'
import { type GitServer, startGitServer } from './git-server.ts'

/** What the fuzzer asks for. */
export type Question = 'state' | 'reset' | 'close'

export interface Ready {
  readonly port: number
  readonly dir: string
  readonly main: Oid
  readonly old: Oid
  /** Objects that it sees. */
  readonly visible: readonly Oid[]
  /** Objects that the session `second` may not see. */
  readonly hidden: readonly Oid[]
}

export interface State {
  /** `oid ref` lines of both repositories, by git itself, without what attackers may move. */
  readonly refs: string
  readonly rssPeakBytes: number
  /** Command lines of git processes that work in the store, without those that live as long as it is open. */
  readonly processes: readonly string[]
  /** What the server logged as its own fault. */
  readonly faults: readonly string[]
  /** Files of receives and of git that were left in the store. */
  readonly leftovers: readonly string[]
  readonly fsck: string
}

/** Refs that the attackers' grant and token may move. */
const FREE = /^\w+ refs\/(heads\/hangar\/second|hangar\/sessions\/second\/checkpoint|hangar\/incoming\/[^/]+)$/
const OWN = ['refs/heads/hangar/second', 'refs/hangar/sessions/second/checkpoint']

const ENV = {
  PATH: process.env['PATH'],
  HOME: '/nonexistent',
  LC_ALL: 'C',
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_CONFIG_GLOBAL: '/dev/null',
  GIT_AUTHOR_NAME: 'a',
  GIT_AUTHOR_EMAIL: 'a@example.com',
  GIT_COMMITTER_NAME: 'a',
  GIT_COMMITTER_EMAIL: 'a@example.com',
  GIT_AUTHOR_DATE: '2026-01-02T03:04:05Z',
  GIT_COMMITTER_DATE: '2026-01-02T03:04:05Z',
}

const execute = promisify(execFile)
const git = async (cwd: string, ...args: string[]): Promise<string> =>
  (await execute('git', args, { cwd, env: ENV, encoding: 'latin1' })).stdout.trim()

/** Two repositories: one with what others have, hidden from the session `second`; one that it may read. */
async function seed(s: GitServer, dir: string): Promise<Omit<Ready, 'port' | 'dir'>> {
  const work = join(dir, 'work')
  await git(dir, 'init', '-q', '-b', 'main', 'work')
  const commit = async (file: string, text: string): Promise<Oid> => {
    mkdirSync(dirname(join(work, file)), { recursive: true })
    writeFileSync(join(work, file), text)
    await git(work, 'add', '.')
    await git(work, 'commit', '-q', '-m', `add ${file}`)
    return (await git(work, 'rev-parse', 'HEAD')) as Oid
  }
  const push = (secret: string, ...refspecs: string[]) => git(work, 'push', '-q', s.as(secret), ...refspecs)
  const old = await commit('old.txt', 'old\n'.repeat(50))
  await git(work, 'tag', '-a', '-m', 'one', 'v1')
  for (let at = 0; at < 8; at++) await commit(`dir-${at % 3}/file-${at % 2}.txt`, `${at}\n`.repeat(60))
  await git(work, 'tag', 'v2')
  const main = await commit('main.txt', 'main\n'.repeat(200))
  await git(work, 'reset', '-q', '--hard', 'v2')
  const topic = await commit('topic.txt', 'topic\n'.repeat(100))
  await git(work, 'reset', '-q', '--hard', main)
  await push('hgt_write', 'main', 'v1', 'v2', `${topic}:refs/heads/topic`)
  const hiddenTips: Oid[] = []
  const hide = async (name: string) => {
    await git(work, 'reset', '-q', '--hard', main)
    await commit(`${name}.txt`, `the ${name} of csv-fix\n`.repeat(40))
    const tip = await commit(`${name}-2.txt`, `more ${name}\n`.repeat(40))
    hiddenTips.push(tip)
    return tip
  }
  const branch = await hide('secret')
  await push('hgs_fix', `${branch}:refs/heads/hangar/csv-fix`, `${branch}:refs/hangar/sessions/csv-fix/checkpoint`)
  const moves: { readonly ref: RefName; readonly oid: Oid }[] = []
  for (const [name, ref] of [
    ['log', 'refs/hangar/sessions/csv-fix/log'],
    ['sealed', 'refs/hangar/sessions/csv-fix/sealed'],
    ['job', 'refs/hangar/jobs/job-1'],
    ['notes', 'refs/notes/hangar'],
    ['incoming', 'refs/hangar/incoming/theirs/kept'],
    ['upstream', 'refs/upstream/heads/main'],
  ] as const)
    moves.push({ ref: ref as RefName, oid: await hide(name) })
  for (const [at, { oid }] of moves.entries()) await push('hgt_write', `${oid}:refs/heads/moved-${at}`)
  await s.repo.refs.transact(moves.map(({ ref, oid }) => ({ ref, old: ZERO_OID, new: oid })))
  const gone = moves.map(({ oid }, at) => ({ ref: `refs/heads/moved-${at}` as RefName, old: oid, new: ZERO_OID }))
  await s.repo.refs.transact(gone)
  await s.repositories.create('acme/lib' as RepoSlug)
  await git(work, 'push', '-q', s.as('hgt_write').replace('acme/app', 'acme/lib'), `${old}:refs/heads/main`)
  await s.repositories.create('acme/closed' as RepoSlug)
  await git(work, 'push', '-q', s.as('hgt_write').replace('acme/app', 'acme/closed'), `${branch}:refs/heads/main`)
  const objects = async (...args: string[]) =>
    (await git(work, 'rev-list', '--objects', '--no-object-names', ...args)).split('\n') as Oid[]
  const visible = await objects(main, topic, 'v1')
  return { main, old, visible, hidden: await objects(...hiddenTips, '--not', main) }
}

async function reset({ repo }: GitServer): Promise<void> {
  const { refs } = await repo.refs.snapshot()
  const moved = refs.filter(({ name }) => OWN.includes(name) || /^refs\/hangar\/incoming\/[^/]+$/.test(name))
  if (moved.length > 0) await repo.refs.transact(moved.map(({ name, oid }) => ({ ref: name, old: oid, new: ZERO_OID })))
}

async function state(s: GitServer, dir: string): Promise<State> {
  const repos = ['app', 'lib', 'closed'].map((name) => join(dir, 'data', 'repos', 'acme', `${name}.git`))
  const refs: string[] = []
  const fsck: string[] = []
  for (const repo of repos) {
    refs.push(...(await git(repo, 'for-each-ref', '--format=%(objectname) %(refname)')).split('\n'))
    fsck.push(await git(repo, 'fsck', '--no-dangling', '--no-progress').catch((error: unknown) => String(error)))
  }
  const leftovers = repos.flatMap((repo) =>
    readdirSync(repo, { recursive: true, encoding: 'utf8' }).filter((path) =>
      /(^|\/)(incoming-|tmp_|.*\.lock$|shallow)/.test(path),
    ),
  )
  const status = readFileSync('/proc/self/status', 'latin1')
  return {
    refs: refs.filter((line) => !FREE.test(line)).join('\n'),
    rssPeakBytes: Number(/^VmHWM:\s+(\d+) kB/m.exec(status)?.[1] ?? 0) * 1024,
    processes: gitProcesses(dir),
    faults: s.logged.splice(0).flatMap(({ message, fields }) => {
      const fault = /failed|could not|fault/.test(message) && message !== 'upload-pack failed'
      return fault ? [`${message} ${JSON.stringify(fields)}`] : []
    }),
    leftovers,
    fsck: fsck.join(''),
  }
}

/** Whoever started them: by the directory that they work in. */
function gitProcesses(dir: string): string[] {
  return readdirSync('/proc').flatMap((pid) => {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) return []
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0')
      const own = readlinkSync(`/proc/${pid}/cwd`).startsWith(join(dir, 'data'))
      const command = words.join(' ')
      const lasts = /update-ref --stdin|cat-file --batch-command/.test(command)
      return own && words[0]?.endsWith('git') === true && !lasts ? [command.trim()] : []
    } catch {
      return []
    }
  })
}

const dir = process.argv[2] ?? ''
const s = await startGitServer(dir, {
  limits: { maxFetchRequestBytes: 4 * 1_048_576, maxPushBytes: 16 * 1_048_576, maxTransferMs: 20_000 },
  deps: { bodyIdleMs: 300 },
})
const ready: Ready = { port: s.port, dir, ...(await seed(s, dir)) }
process.on('message', (question: Question) => {
  if (question === 'close') void s.close().then(() => process.disconnect())
  else if (question === 'reset') void reset(s).then(() => process.send?.({ reset: true }))
  else void state(s, dir).then((now) => process.send?.(now))
})
process.send?.(ready)
