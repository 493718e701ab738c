/** Which Host and Origin a request may come with, so that a web page cannot reach the server through a visitor's browser. */
import type { IncomingMessage } from 'node:http'

export interface OwnPlaces {
  /** The address that the server listens on, and the port it got. */
  readonly host: string
  readonly port: number
  readonly publicUrl: string | null
}

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\]|::1)$/i

/**
 * null when the request may go on, else the sentence why not. An Origin that is there must be the server's own; a server that listens on
 * loopback is spoken to by a loopback name or by its public URL (DNS rebinding gives a page's own name that address).
 */
export function refuseOrigin(req: Pick<IncomingMessage, 'headers'>, own: OwnPlaces): string | null {
  const { host, origin } = req.headers
  if (LOOPBACK.test(own.host) && !isOwnHost(host ?? '', own))
    return `Host ${JSON.stringify(host ?? '')} is not a name of this server; use localhost:${own.port}${own.publicUrl === null ? '' : `, or ${own.publicUrl}`}`
  if (origin !== undefined && !isOwnOrigin(origin, own))
    return `requests from the web origin ${JSON.stringify(origin)} are not taken`
  return null
}

function isOwnHost(host: string, own: OwnPlaces): boolean {
  const url = parse(`http://${host}`)
  if (url === null || url.host !== host.toLowerCase().replace(/:80$/, '')) return false
  return LOOPBACK.test(url.hostname) || isPublic((at) => at.hostname === url.hostname, own)
}

function isOwnOrigin(origin: string, own: OwnPlaces): boolean {
  const url = parse(origin)
  if (url === null || url.origin === 'null') return false
  if (isPublic((at) => at.origin === url.origin, own)) return true
  const port = url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port)
  return port === own.port && (LOOPBACK.test(url.hostname) || url.hostname === own.host.toLowerCase())
}

function isPublic(same: (url: URL) => boolean, own: OwnPlaces): boolean {
  const url = own.publicUrl === null ? null : parse(own.publicUrl)
  return url !== null && same(url)
}

function parse(text: string): URL | null {
  return URL.canParse(text) ? new URL(text) : null
}
