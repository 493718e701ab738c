/**
 * The published conformance suite of MCP, twice: against the real server as it is (PRODUCT), and against the same endpoint with the
 * suite's own fixtures in place of hangar's features (TRANSPORT). docs/mcp.md lists both results.
 */
import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { createServer, request, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import express from 'express'
import t, { type Test } from 'tap'
import type { TokenCaller } from '../../domain/grant.ts'
import { openIndex } from '../../gateway/state/index.ts'
import { createMcpEndpoint } from '../../surfaces/mcp/endpoint.ts'
import { MCP_LIMITS } from '../../surfaces/mcp/sessions.ts'
import { run, SILENT, startHangar, temporaryDirectory } from '../stories/support.ts'
import { FIXTURES } from './mcp-fixtures.ts'

const SUITE = fileURLToPath(
  new URL('../../../node_modules/@modelcontextprotocol/conformance/dist/index.js', import.meta.url),
)
const DOCS = fileURLToPath(new URL('../../../docs/mcp.md', import.meta.url))

/** Scenarios of the suite that only a server with the suite's own tools, resources and prompts can pass. */
const NEED_FIXTURES = [
  'completion-complete',
  'elicitation-sep1034-defaults',
  'elicitation-sep1330-enums',
  'json-schema-2020-12',
  'prompts-get-embedded-resource',
  'prompts-get-simple',
  'prompts-get-with-args',
  'prompts-get-with-image',
  'prompts-list',
  'resources-read-binary',
  'resources-read-text',
  'resources-subscribe',
  'resources-templates-read',
  'resources-unsubscribe',
  'tools-call-audio',
  'tools-call-elicitation',
  'tools-call-embedded-resource',
  'tools-call-error',
  'tools-call-image',
  'tools-call-mixed-content',
  'tools-call-sampling',
  'tools-call-simple-text',
  'tools-call-with-logging',
  'tools-call-with-progress',
]

t.test('PRODUCT: what hangar offers', { skip: existsSync(SUITE) ? false : 'the suite is not installed' }, async (t) => {
  const hangar = await startHangar(t, { agent: 'true' })
  const results = await conformance(t, await proxy(t, hangar.url, hangar.token))
  t.strictSame(failures(results), NEED_FIXTURES)
  t.strictSame(documented('PRODUCT'), [results.size - NEED_FIXTURES.length, results.size])
})

t.test(
  'TRANSPORT: the same endpoint with the fixtures',
  { skip: existsSync(SUITE) ? false : 'the suite is not installed' },
  async (t) => {
    const index = await openIndex({ dir: join(temporaryDirectory(t), 'index'), log: SILENT })
    const app = express()
    const server = await listening(t, createServer(app))
    const caller: TokenCaller = { kind: 'token', id: 'suite', name: 'suite', scopes: ['admin'], repos: null }
    const endpoint = await createMcpEndpoint({
      features: FIXTURES,
      index,
      authenticate: (secret) => (secret === 'hgt_suite' ? caller : null),
      isLive: () => true,
      own: { host: '127.0.0.1', port: server.port, publicUrl: null },
      maxBodyBytes: 1_000_000,
      limits: MCP_LIMITS,
      clock: { now: Date.now },
      random: { bytes: (count) => randomBytes(count) },
      log: SILENT,
    })
    app.all('/mcp', endpoint.handle)
    const results = await conformance(t, await proxy(t, server.url, 'hgt_suite'))
    await endpoint.close()
    await index.close()
    t.strictSame(failures(results), [])
    t.strictSame(documented('TRANSPORT'), [results.size, results.size])
  },
)

/** The suite only warns where a server does not close streams to have its clients poll: no check of it is made. */
const UNCHECKED = ['server-sse-polling']

/** Each scenario that made checks, with whether all passed. */
async function conformance(t: Test, url: string): Promise<ReadonlyMap<string, boolean>> {
  const ran = await run(process.execPath, [
    SUITE,
    'server',
    '--url',
    `${url}/mcp`,
    '--suite',
    'all',
    '-o',
    temporaryDirectory(t),
  ])
  const results = new Map<string, boolean>()
  const unchecked: string[] = []
  for (const [, mark, name = '', passed] of ran.out.matchAll(/^([✓✗]) ([a-z0-9-]+): (\d+) passed, \d+ failed/gm))
    if (mark === '✓' && passed === '0') unchecked.push(name)
    else results.set(name, mark === '✓')
  t.ok(results.size >= 30, `the suite ran: ${ran.out.slice(-500)}${ran.err.slice(-500)}`)
  t.strictSame(unchecked, UNCHECKED)
  return results
}

function failures(results: ReadonlyMap<string, boolean>): string[] {
  return [...results]
    .filter(([, passed]) => !passed)
    .map(([name]) => name)
    .sort()
}

/** `PRODUCT: 8 of 32` in the docs. */
function documented(run: string): number[] {
  const [, passed, all] = new RegExp(`${run}: (\\d+) of (\\d+)`).exec(readFileSync(DOCS, 'utf8')) ?? []
  return [Number(passed), Number(all)]
}

/** The suite can send no header: this adds the token, and is the server's own origin to a browser. */
async function proxy(t: Test, target: string, token: string): Promise<string> {
  const { url } = await listening(
    t,
    createServer((req, res) => {
      const own =
        req.headers.origin === `http://${req.headers.host}` && /^(localhost|127\.)/.test(req.headers.host ?? '')
      const headers = {
        ...req.headers,
        authorization: `Bearer ${token}`,
        ...(own ? { origin: target } : {}),
      }
      const up = request(`${target}${req.url}`, { method: req.method, headers, agent: false })
      up.once('response', (answer) => {
        res.writeHead(answer.statusCode ?? 500, answer.headers)
        answer.pipe(res)
      })
      up.once('error', () => res.destroy())
      res.once('close', () => up.destroy())
      req.pipe(up)
    }),
  )
  return url.replace('127.0.0.1', 'localhost')
}

async function listening(t: Test, server: Server): Promise<{ url: string; port: number }> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  return { url: `http://127.0.0.1:${port}`, port }
}
