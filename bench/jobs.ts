/**
 * A hundred jobs at once, eight at a time, from four requesters in three repos: how long they wait, what hangar adds to each, and that none is
 * lost, doubled or stuck. `npm run bench:jobs` (100), with `--quick` 24. Starts a server in this process on temporary data.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { readConfig } from '../domain/config.ts'
import { startServer } from '../surfaces/server.ts'
import { api, shell } from '../test/stories/support.ts'

const COUNT = process.argv.includes('--quick') ? 24 : 100
const REPOS = ['bench/one', 'bench/two', 'bench/three']
/** What an agent does by hand, and in each job. */
const WORK = 'sleep 0.5; echo "$RANDOM$$" >made.txt; git add made.txt; git commit -qm made'

const root = mkdtempSync(join(tmpdir(), 'hangar-bench-'))
try {
  await bench()
} finally {
  rmSync(root, { recursive: true, force: true, maxRetries: 5 })
}

interface Job {
  readonly id: string
  readonly state: string
  readonly session: string
  readonly timeline: readonly { readonly at: string; readonly state: string }[]
}

async function bench(): Promise<void> {
  mkdirSync(join(root, 'data'), { recursive: true })
  const argv = ['sh', '-c', `cat >/dev/null; ${WORK}`]
  const config = { environments: { default: { harness_options: { argv }, verify: 'test -s made.txt' } } }
  writeFileSync(join(root, 'data', 'hangar.config.json'), JSON.stringify(config))
  const env = { HOME: root, HANGAR_DATA: join(root, 'data'), HANGAR_LISTEN: '127.0.0.1:0' }
  const log = { info: () => {}, warn: () => {}, error: () => {} }
  const cliFile = join(root, 'cli.json')
  const server = await startServer({ config: readConfig({ env }), log, cliFile })
  try {
    const { token: admin } = JSON.parse(readFileSync(cliFile, 'utf8')) as { token: string }
    const call = (token: string, method: string, path: string, body?: unknown) =>
      api(server.url, token, { method, path, body })
    await seed(server.url, admin, (slug) => call(admin, 'POST', '/api/repos', { slug }))
    const tokens = await Promise.all(
      ['ann', 'bob', 'cyd', 'dan'].map(async (name) => {
        const made = await call(admin, 'POST', '/api/tokens', { name, scopes: ['read', 'jobs'] })
        return made.body.token as string
      }),
    )
    const begun = performance.now()
    // The first asks for half of all.
    const submitted = await Promise.all(
      Array.from({ length: COUNT }, async (_, place) => {
        const token = tokens[place % 2 === 0 ? 0 : 1 + (place % 3)] ?? admin
        const repo = REPOS[place % REPOS.length]
        return (await call(token, 'POST', '/api/jobs', { repo, instructions: `job ${place}` })).body.id as string
      }),
    )
    for (const id of submitted)
      for (;;) if ((await call(admin, 'GET', `/api/jobs/${id}/wait?timeout_seconds=600`)).body.done === true) break
    const seconds = (performance.now() - begun) / 1_000
    const jobs = await Promise.all(
      submitted.map(async (id) => (await call(admin, 'GET', `/api/jobs/${id}`)).body as Job),
    )
    const listed = (await call(admin, 'GET', '/api/jobs?limit=200')).body.items.length as number
    const turns = await Promise.all(
      jobs.map(async ({ id }) => (await call(admin, 'GET', `/api/sessions/${id}`)).body.turns.length as number),
    )
    const bad = jobs.filter(({ state }) => state !== 'succeeded').length
    if (bad > 0 || listed !== COUNT || new Set(submitted).size !== COUNT || turns.some((count) => count !== 1))
      throw new Error(`of ${COUNT} jobs ${bad} did not succeed, ${listed} are listed, and turns are ${turns.join(' ')}`)
    report(jobs, { seconds, byHand: await byHand() })
  } finally {
    await server.close()
  }
}

function report(
  jobs: readonly Job[],
  { seconds, byHand }: { readonly seconds: number; readonly byHand: number },
): void {
  const at = ({ timeline }: Job, wanted: string) =>
    Date.parse(timeline.find(({ state }) => state === wanted)?.at ?? '') / 1_000
  const waits = jobs.map((job) => at(job, 'running') - at(job, 'queued'))
  const takes = jobs.map((job) => at(job, 'succeeded') - at(job, 'running'))
  const part = (values: readonly number[], of: number) =>
    [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * of))] ?? 0
  const show = (value: number) => `${value.toFixed(2)} s`.padStart(9)
  console.log(
    `${jobs.length} jobs, each once, all succeeded, in ${seconds.toFixed(1)} s: ${(jobs.length / seconds).toFixed(2)} a second`,
  )
  console.log(`                           median   95 of 100   longest`)
  for (const [name, values] of [
    ['in the queue', waits],
    ['from start to delivery', takes],
  ] as const)
    console.log(
      `${name.padEnd(24)}${show(part(values, 0.5))}   ${show(part(values, 0.95))} ${show(Math.max(...values))}`,
    )
  console.log(`the same work by hand   ${show(byHand)}`)
  console.log(`added to each of 8 at once, median: ${(part(takes, 0.5) - byHand).toFixed(2)} s`)
}

/** The agent's work alone, in a clone that is there: seconds, the median of five. */
async function byHand(): Promise<number> {
  const times: number[] = []
  for (let round = 0; round < 5; round++) {
    await shell(root, 'rm -rf hand && git clone -q seed hand')
    const from = performance.now()
    await shell(join(root, 'hand'), `git config user.email a@b.c; git config user.name a; ${WORK}; test -s made.txt`)
    times.push((performance.now() - from) / 1_000)
  }
  return times.sort((a, b) => a - b)[2] ?? 0
}

async function seed(url: string, token: string, add: (slug: string) => Promise<unknown>): Promise<void> {
  await shell(
    root,
    'git init -q -b main seed && cd seed && seq 1000 >a.txt && git add . && git -c user.email=a@b.c -c user.name=a commit -qm base',
  )
  for (const slug of REPOS) {
    await add(slug)
    await shell(
      join(root, 'seed'),
      `git -c http.${url}/.extraHeader='Authorization: Bearer ${token}' push -q ${url}/git/${slug}.git main`,
    )
  }
}
