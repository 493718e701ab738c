/**
 * The way out of a sandbox that has no network: unix sockets in a directory that is bound into it. One leads to the gateway; where an
 * environment names hosts, another is a proxy that connects to exactly those.
 */
import { createHash } from 'node:crypto'
import { chmod, mkdir, rm } from 'node:fs/promises'
import { createServer as createHttpServer, type Server as HttpServer } from 'node:http'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { errors, messageOf } from '../../domain/errors.ts'
import type { Log } from '../../domain/ports.ts'
import type { SandboxSpec } from '../../domain/sandbox.ts'

export interface Relay {
  /** The directory of sockets for an `egress`: `gateway.sock`, and `proxy.sock` when it names hosts. */
  directoryFor(egress: SandboxSpec['egress']): Promise<string>
  close(): Promise<void>
}

export interface RelayDeps {
  /** Holds one directory for each different `egress`. A socket's path has at most 107 bytes. */
  readonly dir: string
  /** Where the server listens, as this host reaches it. */
  readonly gateway: { readonly host: string; readonly port: number }
  readonly log: Log
}

const MAX_SOCKET_PATH_BYTES = 107
const CONNECT_MS = 30_000

/** A new relay in an old one's place takes its sockets over: sandboxes that live on see the new ones, since the directory is the same. */
export function createRelay(deps: RelayDeps): Relay {
  const open = new Map<string, Promise<string>>()
  const servers: (Server | HttpServer)[] = []
  const sockets = new Set<Socket>()

  const listen = async (server: Server | HttpServer, path: string): Promise<void> => {
    if (Buffer.byteLength(path) > MAX_SOCKET_PATH_BYTES)
      throw errors.configInvalid(`${path} is too long for a socket's path: set HANGAR_DATA to a shorter one`)
    await rm(path, { force: true })
    server.on('connection', (socket: Socket) => {
      sockets.add(socket)
      socket.once('close', () => sockets.delete(socket))
    })
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen(path, resolve)
    })
    // The sandbox's user is nobody here.
    await chmod(path, 0o666)
    servers.push(server)
  }

  const make = async (egress: readonly string[]): Promise<string> => {
    const dir = join(deps.dir, createHash('sha256').update(egress.join('\n')).digest('hex').slice(0, 12))
    await mkdir(dir, { recursive: true, mode: 0o755 })
    await listen(
      createServer({ allowHalfOpen: true }, (inside) => joinTo(inside, deps.gateway)),
      join(dir, 'gateway.sock'),
    )
    if (egress.length > 0) await listen(createProxy(new Set(egress), deps.log), join(dir, 'proxy.sock'))
    return dir
  }

  return {
    directoryFor: (egress) => {
      const list = [...new Set((egress ?? []).map((entry) => entry.toLowerCase()))].sort()
      const key = list.join('\n')
      const known = open.get(key)
      if (known !== undefined) return known
      const made = make(list)
      open.set(key, made)
      made.catch(() => open.delete(key))
      return made
    },
    close: async () => {
      const closed = servers.map((server) => new Promise<void>((resolve) => server.close(() => resolve())))
      for (const socket of sockets) socket.destroy()
      await Promise.all(closed)
    },
  }
}

function joinTo(inside: Socket, to: { readonly host: string; readonly port: number }, onOpen?: () => void): Socket {
  const outside = connect({ ...to, allowHalfOpen: true })
  outside.setTimeout(CONNECT_MS, () => outside.destroy(new Error('it did not answer in time')))
  outside.once('connect', () => {
    outside.setTimeout(0)
    onOpen?.()
    inside.pipe(outside)
    outside.pipe(inside)
  })
  inside.on('error', () => outside.destroy())
  outside.on('error', () => inside.destroy())
  // Only one that closes before its end cuts the other off: what was said before an end may still be on its way.
  inside.on('close', () => {
    if (!inside.readableEnded) outside.destroy()
  })
  outside.on('close', () => {
    if (!outside.readableEnded) inside.destroy()
  })
  return outside
}

/** A proxy for `CONNECT host:port` alone; every other wish is refused in words. */
function createProxy(allowed: ReadonlySet<string>, log: Log): HttpServer {
  const server = createHttpServer((request, response) => {
    response.writeHead(403, { 'Content-Type': 'text/plain', Connection: 'close' })
    response.end(`this sandbox's proxy passes on CONNECT to ${[...allowed].join(', ')} alone, not ${request.method}\n`)
  })
  server.on('connect', (request, inside: Socket, head: Buffer) => {
    const target = (request.url ?? '').toLowerCase()
    const refuse = (status: string, words: string) => {
      inside.on('error', () => {})
      inside.end(`HTTP/1.1 ${status}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n${words}\n`)
    }
    if (!allowed.has(target)) {
      log.info({ target: target.slice(0, 300) }, 'a sandbox was refused a connection')
      return refuse(
        '403 Forbidden',
        `${target.slice(0, 300)} is not in this environment's egress: ${[...allowed].join(', ')}`,
      )
    }
    const colon = target.lastIndexOf(':')
    let answered = false
    const to = { host: target.slice(0, colon), port: Number(target.slice(colon + 1)) }
    const outside = joinTo(inside, to, () => {
      answered = true
      inside.write('HTTP/1.1 200 Connection Established\r\n\r\n')
      if (head.length > 0) outside.write(head)
    })
    outside.prependListener('error', (error) => {
      if (!answered) refuse('502 Bad Gateway', `${target} cannot be reached: ${messageOf(error)}`)
    })
  })
  server.on('clientError', (_error, socket) => socket.destroy())
  return server
}
