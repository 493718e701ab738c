/**
 * Malformed and hostile requests against a gateway in a process of its own: no ref outside of the grant moves, nothing hidden is served, it never
 * fails by itself, leaves no process and no file, and stays within its memory. `npm run test:fuzz` sends 100,000; the gate 2,000.
 * HANGAR_FUZZ is how many, HANGAR_FUZZ_SEED the seed, HANGAR_FUZZ_FROM the first one's number: a failure prints what sends the same again.
 */
import { type ChildProcess, fork, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { record } from './fuzz-recording.ts'
import { type FuzzRequest, fuzzRequest, type Material } from './fuzz-requests.ts'
import type { Question, Ready, State } from './fuzz-server.ts'
import { packIn } from './packs.ts'

const COUNT = Number(process.env['HANGAR_FUZZ'] ?? 2_000)
const FROM = Number(process.env['HANGAR_FUZZ_FROM'] ?? 0)
const SEED = process.env['HANGAR_FUZZ_SEED'] ?? randomBytes(4).toString('hex')
const AT_ONCE = 8
/** Between looks at refs, faults and what was served. */
const BATCH = 250
const MOST_RSS_BYTES = 400 * 1_048_576
/** What the gateway may answer; 500 would be its own fault. */
const STATUSES = new Set([200, 400, 401, 403, 404, 408, 413, 415, 417, 431, 503, 505])

interface Answer {
  /** null: none came before the connection ended. */
  readonly status: number | null
  readonly body: Buffer
}

const SERVER = fileURLToPath(new URL('./fuzz-server.js', import.meta.url))
const agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE })

t.test(`${COUNT} hostile requests from number ${FROM} with seed ${SEED}`, { timeout: 4 * 3_600_000 }, async (t) => {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-fuzz-'))
  t.teardown(() => rmSync(dir, { recursive: true, force: true, maxRetries: 5 }))
  const server = fork(SERVER, [dir], { execArgv: [], env: { ...process.env, NODE_OPTIONS: '' } })
  t.teardown(() => server.kill('SIGKILL'))
  const ready = (await heard(server)) as Ready
  const ask = (question: Question) => {
    server.send(question)
    return heard(server)
  }
  const material: Material = { ready, recorded: await record(ready, dir) }
  t.ok(material.recorded.length > 30, `${material.recorded.length} requests of real git are bent`)
  await ask('reset')
  const thief = join(dir, 'thief')
  const owned = createThief(thief, ready)
  const before = (await ask('state')) as State
  t.equal(before.fsck, '')
  t.equal(before.leftovers.length, 0)

  const statuses = new Map<number | null, number>()
  const wrong: string[] = []
  let accepted = 0
  for (let at = FROM; at < FROM + COUNT && wrong.length === 0; at += BATCH) {
    // A push whose answer nobody read has moved its ref all the same.
    await ask('reset')
    const numbers = Array.from({ length: Math.min(BATCH, FROM + COUNT - at) }, (_, place) => at + place)
    const left = [...numbers].reverse()
    const one = async () => {
      for (let number = left.pop(); number !== undefined; number = left.pop()) {
        const asked = fuzzRequest(material, SEED, number)
        const answer = await send(ready.port, asked)
        statuses.set(answer.status, (statuses.get(answer.status) ?? 0) + 1)
        const what = `number ${number} (${asked.how.join(', ')})`
        if (answer.status === null && asked.raw === null) wrong.push(`${what} got no answer: ${answer.body}`)
        if (answer.status !== null && !STATUSES.has(answer.status)) wrong.push(`${what} was answered ${answer.status}`)
        if (asked.secret.startsWith('hgs_')) owned.take(answer.body, what)
        if (/[0-9a-f]{4}ok refs\//.test(answer.body.toString('latin1'))) {
          accepted++
          await reset()
        }
      }
    }
    let resetting: Promise<unknown> | null = null
    const reset = async () => {
      while (resetting !== null) await resetting
      resetting = ask('reset')
      await resetting
      resetting = null
    }
    await Promise.all(Array.from({ length: AT_ONCE }, one))
    if (server.exitCode !== null || server.signalCode !== null) wrong.push('the gateway ended')
    else {
      const now = (await ask('state')) as State
      if (now.refs !== before.refs) wrong.push(`refs moved:\n${now.refs}\nwere\n${before.refs}`)
      if (now.rssPeakBytes > MOST_RSS_BYTES) wrong.push(`it took ${now.rssPeakBytes} bytes of memory`)
      wrong.push(...now.faults, ...owned.look())
    }
    for (const what of wrong)
      t.fail(`${what}\nagain: HANGAR_FUZZ_SEED=${SEED} HANGAR_FUZZ_FROM=${at} HANGAR_FUZZ=${BATCH}`)
  }
  const settled = async (): Promise<State> => {
    for (let attempt = 0; ; attempt++) {
      const now = (await ask('state')) as State
      if (attempt === 50 || (now.processes.length === 0 && now.leftovers.length === 0)) return now
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }
  const after = await settled()
  t.strictSame(after.leftovers, [], 'nothing of a refused push is left')
  t.strictSame(after.processes, [], 'no process is left')
  t.equal(after.fsck, '', 'the store is whole')
  t.ok(accepted > COUNT / 500, `${accepted} pushes were taken: what is asked goes deep`)
  t.ok(owned.served() > COUNT / 50, `${owned.served()} packs were served, ${owned.different()} different ones`)
  t.comment(`statuses ${JSON.stringify([...statuses])}; peak ${Math.round(after.rssPeakBytes / 1_048_576)} MB`)
  agent.destroy()
  server.send('close' satisfies Question)
  await new Promise((resolve) => server.once('exit', resolve))
})

function heard(server: ChildProcess): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const onExit = () => reject(new Error('the gateway ended'))
    server.once('exit', onExit)
    server.once('message', (message) => {
      server.off('exit', onExit)
      resolve(message)
    })
  })
}

function send(port: number, asked: FuzzRequest): Promise<Answer> {
  return asked.raw === null ? sendWhole(port, asked) : sendRaw(port, asked.raw)
}

/**
 * By a client that says the truth about its length. As every client must, it sends again on a fresh connection what met one that the server had just
 * closed for want of requests. Without an answer the body says why.
 */
async function sendWhole(port: number, asked: FuzzRequest): Promise<Answer> {
  const first = await sendOnce(port, asked, agent)
  return first === 'closed' ? ((await sendOnce(port, asked, false)) as Answer) : first
}

function sendOnce(
  port: number,
  { method, path, headers, body, secret }: FuzzRequest,
  agent: Agent | false,
): Promise<Answer | 'closed'> {
  const authorization = `Basic ${Buffer.from(`x:${secret}`).toString('base64')}`
  return new Promise((resolve) => {
    const req = request(
      { host: '127.0.0.1', port, agent, method, path, headers: { ...headers, authorization } },
      (res) => {
        const chunks: Buffer[] = []
        const done = () => resolve({ status: res.statusCode ?? null, body: Buffer.concat(chunks) })
        res.on('data', (chunk: Buffer) => chunks.push(chunk))
        res.once('end', done)
        res.once('error', done)
      },
    )
    req.setTimeout(30_000, () => req.destroy(new Error('nothing came for 30 s')))
    req.once('error', (error: NodeJS.ErrnoException) => {
      const isClosed = req.reusedSocket && ['ECONNRESET', 'EPIPE'].includes(error.code ?? '')
      resolve(isClosed ? 'closed' : { status: null, body: Buffer.from(error.message) })
    })
    req.end(body.length === 0 ? undefined : body)
  })
}

const CONTINUE = /^HTTP\/1\.1 100 Continue\r\n\r\n/

/** Whatever the bytes are; who lies about them may be kept waiting for an end. */
function sendRaw(port: number, raw: Buffer): Promise<Answer> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = []
    const socket = connect(port, '127.0.0.1')
    const done = () => {
      clearTimeout(timer)
      socket.destroy()
      const all = Buffer.from(Buffer.concat(chunks).toString('latin1').replace(CONTINUE, ''), 'latin1')
      const [, status] = /^HTTP\/1\.1 (\d{3}) /.exec(all.toString('latin1', 0, 20)) ?? []
      const end = all.indexOf('\r\n\r\n')
      resolve({ status: status === undefined ? null : Number(status), body: end === -1 ? all : all.subarray(end + 4) })
    }
    let timer = setTimeout(done, 1_500)
    socket.on('data', (chunk: Buffer) => {
      chunks.push(chunk)
      clearTimeout(timer)
      timer = setTimeout(done, 50)
    })
    socket.once('error', done)
    socket.once('close', done)
    socket.write(raw)
  })
}

/** A repository that takes in every pack that the grant was served, and then looks whether anything hidden is in it. */
function createThief(dir: string, ready: Ready) {
  const git = (args: string[], input?: Buffer) =>
    spawnSync('git', ['-c', 'safe.directory=*', ...args], { cwd: dir, input, maxBuffer: 1 << 26 })
  spawnSync('git', ['init', '-q', dir])
  const seen = new Set<string>()
  let served = 0
  const refused: string[] = []
  git(['fetch', '-q', `http://x:hgs_two@127.0.0.1:${ready.port}/git/acme/app.git`, '+refs/*:refs/*'])
  return {
    served: () => served,
    different: () => seen.size,
    take(body: Buffer, what: string) {
      const pack = packIn(body)
      if (pack.length < 32) return
      served++
      if (seen.has(pack.toString('latin1'))) return
      seen.add(pack.toString('latin1'))
      const taken = git(['index-pack', '--stdin', '--fix-thin'], pack)
      // What its client cut short is no whole pack.
      if (taken.status !== 0 && !/early EOF|pack is corrupted|premature end/.test(taken.stderr.toString()))
        refused.push(`${what} was served a pack that cannot be read: ${taken.stderr.toString()}`)
    },
    look(): string[] {
      const listed = git(
        ['cat-file', '--batch-check=%(objectname) %(objecttype)'],
        Buffer.from(ready.hidden.join('\n')),
      )
      const stolen = listed.stdout
        .toString()
        .split('\n')
        .filter((line) => line !== '' && !line.endsWith(' missing'))
      return [...stolen.map((line) => `${line} was served, and is hidden`), ...refused.splice(0)]
    },
  }
}
