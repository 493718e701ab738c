/** Where an upstream's name leads: resolved once, looked at, and pinned, so that nothing resolves to another address afterwards. */
import { lookup } from 'node:dns/promises'
import { isIP } from 'node:net'
import { errors, messageOf } from '../../domain/errors.ts'
import { isPublicAddress } from '../../domain/public-address.ts'

/**
 * The value of git's `http.curloptResolve` for the URL; null for a literal address, which resolves to itself.
 * Throws `upstream_unreachable` for a name without an address, and `upstream_denied` for one that is not to be connected to.
 */
export async function pinAddress(url: string, allowPrivateAddresses: boolean): Promise<string | null> {
  const { hostname, port, protocol } = new URL(url)
  const literal = hostname.replace(/^\[(.*)\]$/, '$1')
  const addresses = isIP(literal) !== 0 ? [literal] : await addressesOf(hostname)
  const wrong = allowPrivateAddresses ? undefined : addresses.find((address) => !isPublicAddress(address))
  if (wrong !== undefined)
    throw errors.upstreamDenied(
      `${hostname} is at ${wrong}, which is no public address; if the upstream is in your own network, set upstream.allow_private_addresses`,
    )
  if (isIP(literal) !== 0) return null
  const listed = addresses.map((address) => (isIP(address) === 6 ? `[${address}]` : address))
  return `${hostname}:${port === '' ? (protocol === 'http:' ? '80' : '443') : port}:${listed.join(',')}`
}

async function addressesOf(hostname: string): Promise<string[]> {
  try {
    return (await lookup(hostname, { all: true })).map(({ address }) => address)
  } catch (cause) {
    throw errors.upstreamUnreachable(`${hostname} has no address (${messageOf(cause)})`, {}, cause)
  }
}
