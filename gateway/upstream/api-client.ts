/** Requests of GitHub's API, in the form of `fetch`, by node's older client: that takes certificate authorities, and follows no redirect. */
import http, { type IncomingMessage } from 'node:http'
import https from 'node:https'
import type { ForgeRequest } from './forge.ts'

const REQUEST_MS = 30_000
const MAX_ANSWER_BYTES = 16 * 1_048_576

/** A client that holds the API against these authorities (PEM); null: against node's own. A redirect is an answer, so that what is signed goes to no other place. */
export function createApiClient(authorities: readonly string[] | null): ForgeRequest {
  return (url, { method, headers, body }) =>
    new Promise((resolve, reject) => {
      const signal = AbortSignal.timeout(REQUEST_MS)
      const options = { method, headers, signal, ...(authorities === null ? {} : { ca: [...authorities] }) }
      const request = (url.startsWith('https:') ? https : http).request(url, options, (res) => {
        const chunks: Buffer[] = []
        let size = 0
        res.on('data', (chunk: Buffer) => {
          chunks.push(chunk)
          size += chunk.length
          if (size > MAX_ANSWER_BYTES) res.destroy(new Error(`the answer has more than ${MAX_ANSWER_BYTES} bytes`))
        })
        res.on('error', reject)
        res.on('end', () => {
          try {
            resolve(responseOf(res, Buffer.concat(chunks)))
          } catch (cause) {
            reject(cause)
          }
        })
      })
      request.on('error', reject)
      request.end(body)
    })
}

/** Throws on a status that there is not. */
function responseOf({ statusCode: status = 0, headers }: IncomingMessage, body: Buffer): Response {
  const named = Object.entries(headers).map(([name, value]) => [name, String(value)] as [string, string])
  const isEmpty = [204, 205, 304].includes(status)
  return new Response(isEmpty ? null : body, { status, headers: named })
}
