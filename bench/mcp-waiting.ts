/**
 * What a waiting MCP client costs the server: heap and resident memory with many clients idle, then all waiting for one turn with progress,
 * then with their sockets cut. Usage: `node --expose-gc dist/bench/mcp-waiting.js [clients]`. The server runs in this process on temporary
 * data, its clients in another.
 */
import { type ChildProcess, execFile, fork } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { readConfig } from '../domain/config.ts'
import { type HangarServer, startServer } from '../surfaces/server.ts'

const CLIENTS = Number(process.argv[2] ?? 200)
const SILENT = { info: () => {}, warn: () => {}, error: () => {} }
const PROTOCOL = '2025-11-25'

interface Order {
  readonly url: string
  readonly token: string
  readonly clients: number
}

interface Sample {
  readonly state: string
  readonly heap: number
  readonly rss: number
  readonly waiters: number
}

async function bench(): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-bench-'))
  process.once('exit', () => rmSync(dir, { recursive: true, force: true, maxRetries: 5 }))
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => process.exit(1))
  const { server, token } = await serverIn(dir)
  const clients = fork(process.argv[1] ?? '', ['clients'])
  try {
    await withSession(server.url, token, dir)
    const samples: Sample[] = []
    const sample = async (state: string) => void samples.push(await measure(state, server))
    // The first round warms up: what is made once is not a client's cost.
    for (const round of ['warm-up', 'measured']) {
      if (round === 'measured') await sample('no client')
      await tell(clients, 'connect', { url: server.url, token, clients: CLIENTS })
      if (round === 'measured') await sample(`${CLIENTS} idle sessions`)
      await tell(clients, 'wait')
      while (server.activity().mcp.requests < CLIENTS) await sleep(50)
      if (round === 'measured') await sample(`${CLIENTS} waiting with progress`)
      await tell(clients, 'cut')
      while (server.activity().mcp.requests > 0 || server.activity().waiters > 0) await sleep(50)
      if (round === 'measured') await sample('sockets cut')
      await tell(clients, 'end')
    }
    report(samples)
  } finally {
    clients.kill('SIGKILL')
    await call(server.url, token, 'POST', '/api/sessions/long/close', {}).catch(() => {})
    await server.close()
  }
}

function report(samples: readonly Sample[]): void {
  const kb = (bytes: number) => `${(bytes / 1024).toFixed(0)} KB`
  console.log(`${'state'.padEnd(32)}${'heap'.padStart(12)}${'resident'.padStart(12)}${'listeners'.padStart(11)}`)
  for (const { state, heap, rss, waiters } of samples)
    console.log(`${state.padEnd(32)}${kb(heap).padStart(12)}${kb(rss).padStart(12)}${String(waiters).padStart(11)}`)
  const [none, idle, waiting] = samples
  if (none === undefined || idle === undefined || waiting === undefined) return
  const each = (from: Sample, to: Sample) =>
    `${kb((to.heap - from.heap) / CLIENTS)} heap, ${kb((to.rss - from.rss) / CLIENTS)} resident`
  console.log(`each idle session: ${each(none, idle)}`)
  console.log(`each waiting client beyond that: ${each(idle, waiting)}`)
}

async function measure(state: string, server: HangarServer): Promise<Sample> {
  for (let round = 0; round < 3; round++) {
    globalThis.gc?.()
    await sleep(200)
  }
  const { heapUsed, external, rss } = process.memoryUsage()
  return { state, heap: heapUsed + external, rss, waiters: server.activity().waiters }
}

async function serverIn(dir: string): Promise<{ server: HangarServer; token: string }> {
  mkdirSync(join(dir, 'data'), { recursive: true })
  writeFileSync(join(dir, 'agent.sh'), 'echo started; while :; do hangar-agent progress tick; sleep 2; done\n')
  const config = { environments: { default: { harness_options: { argv: ['sh', join(dir, 'agent.sh')] } } } }
  writeFileSync(join(dir, 'data', 'hangar.config.json'), JSON.stringify(config))
  const env = { HANGAR_DATA: join(dir, 'data'), HANGAR_LISTEN: '127.0.0.1:0' }
  const server = await startServer({ config: readConfig({ env }), log: SILENT, cliFile: join(dir, 'cli.json') })
  return { server, token: (JSON.parse(readFileSync(join(dir, 'cli.json'), 'utf8')) as { token: string }).token }
}

async function withSession(url: string, token: string, dir: string): Promise<void> {
  await call(url, token, 'POST', '/api/repos', { slug: 'bench/app' })
  const git = 'git -c user.name=bench -c user.email=bench@example.com'
  const script = `git init -q -b main seed && cd seed && echo one >a && git add a && ${git} commit -q -m base && git -c "http.extraHeader=Authorization: Bearer ${token}" push -q ${url}/git/bench/app.git main`
  await promisify(execFile)('sh', ['-ec', script], { cwd: dir })
  await call(url, token, 'POST', '/api/sessions', { name: 'long', repo: 'bench/app', message: 'go' })
}

function tell(child: ChildProcess, what: string, order?: Order): Promise<void> {
  return new Promise((resolve) => {
    child.once('message', () => resolve())
    child.send({ what, order })
  })
}

/** The other process: connects, waits and is cut as it is told. */
function runClients(): void {
  const agent = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY })
  let order: Order = { url: '', token: '', clients: 0 }
  let sessions: string[] = []
  const open: { destroy(): void }[] = []
  const post = (session: string | null, message: object) =>
    new Promise<{ session: string }>((resolve, reject) => {
      const req = request(`${order.url}/mcp`, {
        method: 'POST',
        agent,
        headers: {
          Authorization: `Bearer ${order.token}`,
          'Content-Type': 'application/json',
          Accept: 'application/json, text/event-stream',
          ...(session === null ? {} : { 'Mcp-Session-Id': session, 'Mcp-Protocol-Version': PROTOCOL }),
        },
      })
      req.once('response', (res) => {
        const done = () => resolve({ session: String(res.headers['mcp-session-id']) })
        res.resume()
        if ('id' in message && message.id === 7) {
          open.push(req)
          res.once('error', () => {})
          done()
        } else res.once('end', done)
      })
      req.once('error', reject)
      req.end(JSON.stringify({ jsonrpc: '2.0', ...message }))
    })
  const initialize = {
    id: 0,
    method: 'initialize',
    params: { protocolVersion: PROTOCOL, capabilities: {}, clientInfo: { name: 'bench', version: '1' } },
  }
  const waiting = {
    id: 7,
    method: 'tools/call',
    params: { name: 'wait_for_turn', arguments: { ref: 'long', timeout_seconds: 600 }, _meta: { progressToken: 1 } },
  }
  const steps: Readonly<Record<string, () => Promise<unknown>>> = {
    connect: async () => {
      sessions = await Promise.all(
        Array.from({ length: order.clients }, async () => (await post(null, initialize)).session),
      )
    },
    wait: () => Promise.all(sessions.map((session) => post(session, waiting))),
    end: () => Promise.all(sessions.map((session) => end(order, session, agent))),
    cut: async () => {
      for (const req of open.splice(0)) req.destroy()
    },
  }
  process.on('message', (message: { what: string; order?: Order }) => {
    if (message.order !== undefined) order = message.order
    void steps[message.what]?.().then(() => process.send?.('done'))
  })
}

function end(order: Order, session: string, agent: Agent): Promise<void> {
  return new Promise((resolve, reject) => {
    const headers = { Authorization: `Bearer ${order.token}`, 'Mcp-Session-Id': session }
    const req = request(`${order.url}/mcp`, { method: 'DELETE', agent, headers })
    req.once('response', (res) => res.resume().once('end', () => resolve()))
    req.once('error', reject)
    req.end()
  })
}

async function call(url: string, token: string, method: string, path: string, body: unknown): Promise<void> {
  const response = await fetch(url + path, {
    method,
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  })
  if (!response.ok) throw new Error(`${path}: ${await response.text()}`)
}

if (process.argv[2] === 'clients') runClients()
else await bench()
