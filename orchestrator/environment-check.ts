/** Whether an environment keeps what it says of the network: a sandbox is made, asked to reach the gateway and what it may not reach, and removed. */

import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { networkInterfaces } from 'node:os'
import { messageOf } from '../domain/errors.ts'
import type { RepoSlug, SessionName } from '../domain/names.ts'
import type { Log, Random } from '../domain/ports.ts'
import type { Provider, SandboxRef } from '../domain/sandbox.ts'
import type { TurnEnvironment } from './turn-context.ts'

/** `unknown`: what git said inside tells neither. */
export type Reached = 'reached' | 'refused' | 'unknown'

export interface Attempt {
  /** `host:port`, or the gateway's URL. */
  readonly address: string
  readonly outcome: Reached
  /** git's own words, to 500 characters. */
  readonly words: string
}

export interface EnvironmentCheck {
  readonly gateway: Attempt
  /** What is not in its egress, tried straight and through whatever proxy there is; none where it has no such list. */
  readonly denied: readonly Attempt[]
}

export interface EnvironmentCheckDeps {
  readonly random: Random
  readonly log: Log
}

const SECONDS = 10
const REPO = 'hangar/doctor'

/** Throws what the making of a sandbox throws. */
export async function checkEnvironment(
  environment: TurnEnvironment,
  deps: EnvironmentCheckDeps,
): Promise<EnvironmentCheck> {
  const { provider, egress, gatewayUrl } = environment
  const targets = egress === null ? null : await openTargets(provider, egress)
  const id = `doctor-${Buffer.from(deps.random.bytes(5)).toString('hex')}`
  const ref: SandboxRef = { provider: provider.kind, id }
  try {
    const { path, mounts, image, limits } = environment
    const about = { id, session: 'doctor' as SessionName, repo: REPO as RepoSlug, mirrors: [], labels: {} }
    // No grant that anybody knows: that the gateway refuses it is the sign that it was reached.
    const grant = `hgs_${Buffer.from(deps.random.bytes(20)).toString('hex')}`
    await provider.create({ ...about, grant, gatewayUrl, path, mounts, image, limits, egress })
    const words = await ask(provider, ref, [`${gatewayUrl}/git/${REPO}.git`, ...(targets?.addresses ?? []).map(urlOf)])
    const gateway = { address: gatewayUrl, outcome: outcomeOf(words[0] ?? ''), words: words[0] ?? '' }
    const denied = (targets?.addresses ?? []).flatMap((address, place) =>
      words.slice(1 + 2 * place, 3 + 2 * place).map((words) => ({
        address,
        outcome: targets?.wasReached(address) === true ? ('reached' as const) : outcomeOf(words),
        words,
      })),
    )
    return { gateway, denied }
  } finally {
    targets?.close()
    await provider
      .destroy(ref)
      .catch((error: unknown) =>
        deps.log.warn({ sandbox: id, error: messageOf(error) }, 'a sandbox that was made for a check stays for now'),
      )
  }
}

interface Targets {
  readonly addresses: readonly string[]
  /** Whether anybody connected to it; of what is not ours nothing is known. */
  wasReached(address: string): boolean
  close(): void
}

/** What every sandbox could reach if nothing kept it: the engine's own, or ports that are opened here for as long as it is asked. */
async function openTargets(provider: Provider, egress: readonly string[]): Promise<Targets> {
  const foreign = provider.forbidden?.() ?? null
  if (foreign !== null)
    return { addresses: [foreign].filter((address) => !egress.includes(address)), wasReached: () => false, close() {} }
  const outer = Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .find(({ internal, family }) => !internal && family === 'IPv4')
  const reached = new Set<string>()
  const servers = await Promise.all(
    ['127.0.0.1', ...(outer === undefined ? [] : [outer.address])].map(async (host) => {
      const server = createServer((socket) => {
        reached.add(address)
        socket.on('error', () => {})
        socket.end('HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
      })
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject)
        server.listen(0, host, resolve)
      })
      const address = `${host}:${(server.address() as AddressInfo).port}`
      return { server, address }
    }),
  )
  return {
    addresses: servers.map(({ address }) => address),
    wasReached: (address) => reached.has(address),
    close: () => {
      for (const { server } of servers) server.close()
    },
  }
}

/** The gateway as every git there reaches it; each other URL straight, and by the proxy that the environment names. */
const SCRIPT = `
cd / && said=$(mktemp) || exit 1
ask() {
  GIT_TERMINAL_PROMPT=0 git "$@" </dev/null >/dev/null 2>"$said" & asked=$!
  (sleep ${SECONDS}; kill $asked) </dev/null >/dev/null 2>&1 & late=$!
  wait $asked
  kill $late 2>/dev/null
  head -c 500 "$said" | tr '\\n' ' '
  echo
}
ask ls-remote "$1"
shift
for url; do
  ask -c http.proxy= -c http.sslVerify=false ls-remote "$url"
  ask -c http.sslVerify=false ls-remote "$url"
done
rm -f "$said"`

async function ask(provider: Provider, ref: SandboxRef, urls: readonly string[]): Promise<string[]> {
  const options = { timeoutMs: (2 * urls.length + 2) * SECONDS * 1_000, maxOutputBytes: 65_536 }
  const { out } = await provider.exec(ref, ['sh', '-c', SCRIPT, 'sh', ...urls], options)
  return out
    .toString('utf8')
    .split('\n')
    .map((line) => line.trim())
}

/** By TLS, so that a proxy is asked to connect. */
function urlOf(address: string): string {
  return `https://${address}/hangar/doctor.git`
}

const NO_WAY =
  /Failed to connect|Couldn't connect|Could not resolve|Connection refused|No route to host|unreachable|timed out|from proxy|CONNECT tunnel failed/i
const AN_ANSWER =
  /Authentication failed|could not read Username|returned error: \d|not found|SSL|TLS|certificate|Empty reply|Connection reset|not valid: is this a git repository/i

/** Nothing at all: git was ended while it still waited, as it does where packets are dropped. */
function outcomeOf(words: string): Reached {
  if (words === '' || NO_WAY.test(words)) return 'refused'
  return AN_ANSWER.test(words) ? 'reached' : 'unknown'
}
