/** Requests to addresses that somebody else named: to public ones only, resolved once and pinned, without redirects, bounded in time and bytes. */
import { lookup } from 'node:dns/promises'
import http from 'node:http'
import https from 'node:https'
import { isIP, type LookupFunction } from 'node:net'
import { errors, messageOf } from '../domain/errors.ts'
import { isPublicAddress } from '../domain/public-address.ts'

export interface SafeFetchDeps {
  /** For receivers in one's own network; plain http is taken as well then. */
  readonly allowPrivateAddresses: boolean
  /** All addresses of a name. */
  resolve?(hostname: string): Promise<readonly string[]>
}

export interface SafeAnswer {
  readonly status: number
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
}

export interface SafeFetch {
  /** Throws `invalid_request` for a URL that is never asked, whatever it resolves to. */
  check(url: string): void
  /** The answer's status and headers; its body is not kept. Throws `invalid_request` for an address that is not to be connected to, else what the network says. */
  post(
    url: string,
    ask: { readonly headers: Readonly<Record<string, string>>; readonly body: string },
  ): Promise<SafeAnswer>
}

const TIMEOUT_MS = 15_000
const MAX_ANSWER_BYTES = 65_536
const MAX_URL_CHARACTERS = 2_000

export function createSafeFetch({ allowPrivateAddresses, resolve = addressesOf }: SafeFetchDeps): SafeFetch {
  const refuse = (url: string, why: string) => errors.invalidRequest(`${placeOf(url)} is not asked: ${why}`)

  const parse = (text: string): URL => {
    if (text.length > MAX_URL_CHARACTERS) throw refuse(text, `it has more than ${MAX_URL_CHARACTERS} characters`)
    if (!URL.canParse(text)) throw refuse(text, 'it is no URL')
    const url = new URL(text)
    if (url.username !== '' || url.password !== '') throw refuse(text, 'it holds a user or a password')
    if (url.protocol !== 'https:' && !(url.protocol === 'http:' && allowPrivateAddresses))
      throw refuse(text, 'give an https URL')
    const literal = url.hostname.replace(/^\[(.*)\]$/, '$1')
    if (isIP(literal) !== 0) checkAddress(text, literal)
    else if (!allowPrivateAddresses && !url.hostname.includes('.')) throw refuse(text, 'its host is no public name')
    return url
  }
  const checkAddress = (url: string, address: string): void => {
    if (!allowPrivateAddresses && !isPublicAddress(address))
      throw refuse(
        url,
        `it leads to ${address}, which is no public address; for a receiver in your own network set callbacks.allow_private_addresses`,
      )
  }

  return {
    check: (url) => void parse(url),
    post: async (text, { headers, body }) => {
      const url = parse(text)
      const literal = url.hostname.replace(/^\[(.*)\]$/, '$1')
      const addresses = isIP(literal) === 0 ? await resolve(url.hostname) : [literal]
      if (addresses.length === 0) throw new Error(`${url.hostname} has no address`)
      // One bad address among good ones is enough: the name is somebody's who controls them all.
      for (const address of addresses) checkAddress(text, address)
      return ask(url, addresses[0] ?? '', { headers, body })
    },
  }
}

function ask(
  url: URL,
  address: string,
  { headers, body }: { readonly headers: Readonly<Record<string, string>>; readonly body: string },
): Promise<SafeAnswer> {
  const pinned: LookupFunction = (_hostname, options, callback) => {
    const family = isIP(address)
    if (options.all === true) callback(null, [{ address, family }])
    else callback(null, address, family)
  }
  return new Promise((resolve, reject) => {
    const options = {
      method: 'POST',
      headers: { ...headers, 'content-length': String(Buffer.byteLength(body)) },
      lookup: pinned,
      agent: false,
      signal: AbortSignal.timeout(TIMEOUT_MS),
    } as const
    const request = (url.protocol === 'https:' ? https : http).request(url, options, (res) => {
      let bytes = 0
      res.on('data', (chunk: Buffer) => {
        bytes += chunk.length
        if (bytes > MAX_ANSWER_BYTES) res.destroy()
      })
      // What it says is not kept: a cut answer has its status all the same.
      res.on('close', () => resolve({ status: res.statusCode ?? 0, headers: res.headers }))
      res.on('error', () => {})
    })
    request.on('error', reject)
    request.end(body)
  })
}

/** Without path and query, which are often secrets: what is refused comes into logs as well. */
function placeOf(text: string): string {
  if (!URL.canParse(text)) return 'the URL'
  const { protocol, host } = new URL(text)
  return JSON.stringify(`${protocol}//${host}`)
}

async function addressesOf(hostname: string): Promise<readonly string[]> {
  try {
    return (await lookup(hostname, { all: true })).map(({ address }) => address)
  } catch (cause) {
    throw new Error(`${hostname} has no address (${messageOf(cause)})`, { cause })
  }
}
