/** The one port: the git gateway gets its requests raw and at once, everything else waits until the server has recovered. */
import { createServer, type Server } from 'node:http'
import type express from 'express'
import type { Config } from '../domain/config.ts'
import { errors, messageOf } from '../domain/errors.ts'
import type { SmartHttp } from '../gateway/http/smart-http.ts'
import type { ServedMetrics } from './metrics.ts'

/** After this a connection that still sends or reads is cut at closing. */
const CLOSE_MS = 5_000

export interface Routes {
  readonly smartHttp: SmartHttp
  readonly metrics: ServedMetrics
  readonly app: Promise<express.Express>
}

/** A server that does not listen yet. */
export function createListener({ smartHttp, metrics, app }: Routes): Server {
  const listener = createServer({
    requestTimeout: 0,
    headersTimeout: 15_000,
    keepAliveTimeout: 10_000,
    // How often the time of a head is looked at; node itself does it twice a minute.
    connectionsCheckingInterval: 3_000,
  })
  listener.on('request', (req, res) => {
    metrics.request(req, res)
    if (isGit(req.url)) smartHttp.handle(req, res)
    else void app.then((handle) => handle(req, res))
  })
  listener.on('checkContinue', (req, res) => {
    metrics.request(req, res)
    if (isGit(req.url)) return smartHttp.checkContinue(req, res)
    void app.then((handle) => {
      res.writeContinue()
      handle(req, res)
    })
  })
  return listener
}

/** The git gateway sees the raw request: no middleware before it. */
function isGit(url: string | undefined): boolean {
  return url?.startsWith('/git/') === true
}

/** Throws `config_invalid` where the address cannot be used. */
export async function listen(listener: Server, config: Config): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    listener.once('error', (cause) => {
      reject(
        errors.configInvalid(
          `listen=${config.host}:${config.port} cannot be used: ${messageOf(cause)}; set HANGAR_LISTEN to another address or port`,
          {},
          cause,
        ),
      )
    })
    listener.listen(config.port, config.host, resolve)
  })
}

/** Takes no more connections, tells waiting requests, and cuts what still goes on after a while. */
export async function closeListener(listener: Server, closing: AbortController): Promise<void> {
  closing.abort()
  const timer = setTimeout(() => listener.closeAllConnections(), CLOSE_MS)
  await new Promise<void>((resolve) => {
    listener.close(() => resolve())
    listener.closeIdleConnections()
  })
  clearTimeout(timer)
}
