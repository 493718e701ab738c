/** `hangar mcp`: the bridge between an MCP client on this machine and the server, with this machine's checkouts. */
import type { Command } from 'commander'
import type { LocalWork } from '../../surfaces/mcp/bridge-tools.ts'
import { pullByName, pulledText } from '../apply-work.ts'
import { findCheckout } from '../checkout.ts'
import { callJson, findServer, serverEvents } from '../client.ts'
import { EXIT, Failure } from '../failure.ts'
import { handOver } from '../local-work.ts'
import type { WireSession } from '../wire.ts'

export function addMcpCommand(program: Command): void {
  program
    .command('mcp')
    .description('an MCP server on standard input and output, for MCP clients on this machine (docs/mcp-bridge.md)')
    .action(() => bridge(program.version() ?? ''))
}

async function bridge(version: string): Promise<void> {
  if (process.stdin.isTTY === true)
    process.stderr.write(
      'hangar mcp: this talks JSON-RPC with an MCP client, which is to start it: docs/mcp-bridge.md\n',
    )
  const { runBridge } = await import('../../surfaces/mcp/bridge.ts')
  for (const signal of ['SIGTERM', 'SIGINT'] as const)
    process.once(signal, () => {
      process.once(signal, () => process.exit(EXIT.done))
      process.stdin.destroy()
    })
  await runBridge({
    input: process.stdin,
    write: (line) => void process.stdout.write(`${line}\n`),
    log: (text) => void process.stderr.write(`hangar mcp: ${text}\n`),
    // Asked anew each time: the server's first start may still have to write where it is.
    target: () => findServer(process.env),
    events: (response) => serverEvents(response, () => {}),
    local,
    directory: process.cwd(),
    version,
  })
  process.exit(EXIT.done)
}

const local: LocalWork = {
  handOver: (request, use) =>
    inToolWords(async () => {
      const server = findServer(process.env)
      const checkout = findCheckout(request.directory)
      const repo = request.begins
        ? request.repo
        : (
            await callJson<WireSession>(server, {
              path: `/api/sessions/${encodeURIComponent(request.session)}`,
              signal: request.signal,
            })
          ).repo
      const options = {
        server,
        repo,
        createRepo: request.createRepo,
        mayAsk: false,
        signal: request.signal,
        output: { say: request.note },
      }
      return handOver(checkout, options, () => request.session, use)
    }),
  pull: ({ directory, ...request }) =>
    inToolWords(async () => {
      const pulled = await pullByName(findCheckout(directory), { server: findServer(process.env), ...request })
      return { ...pulled, text: toolWords(pulledText(pulled, request.name)) }
    }),
}

/** What the sentences of the command line call things, and what the tools call them. */
const WORDS: readonly (readonly [RegExp, string])[] = [
  [/hangar session pull (\S+) --checkout/g, 'pull_session with checkout: true'],
  [/hangar session pull( [a-z0-9-]+)?/g, 'pull_session'],
  [/hangar session wait/g, 'wait_for_turn'],
  [/hangar session send/g, 'send_to_session'],
  [/hangar session list/g, 'list_sessions'],
  [/--create-repo/g, 'create_repo: true'],
  [/--repo\b/g, 'repo'],
  [/--branch NAME/g, 'branch'],
  [/--branch/g, 'branch'],
  [/--force/g, 'force: true'],
  [/--checkout/g, 'checkout: true'],
  [/--from-local/g, 'from_local: true'],
]

function toolWords(text: string): string {
  return WORDS.reduce((said, [words, tool]) => said.replace(words, tool), text)
}

/** Failures of the command line, as a model is told of them. */
async function inToolWords<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof Failure)) throw error
    throw new Failure(error.status, toolWords(error.message), error)
  }
}
