/** A request's body as JSON, read with as few copies as there can be: payloads of tens of megabytes come this way. */
import { createHash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { createBrotliDecompress, createGunzip, createInflate } from 'node:zlib'
import { errors, messageOf } from '../domain/errors.ts'

export interface JsonBody {
  /** `{}` where there is no body. */
  readonly value: unknown
  /** SHA-256 of its bytes, in hex; null unless asked for. */
  readonly digest: string | null
}

export interface JsonBodyOptions {
  /** Bytes, after any content encoding is undone. */
  readonly maxBytes: number
  readonly digest: boolean
  readonly timeoutMs: number
}

/** Bytes that are announced; of a body that announces none, as many as may come. */
export function announcedBytes(req: IncomingMessage, maxBytes: number): number {
  const declared = req.headers['content-length']
  if (declared !== undefined) return Number(declared)
  return req.headers['transfer-encoding'] === undefined ? 0 : maxBytes
}

/** Throws `unsupported_media` for another type, charset or encoding, `too_large` past the cap, `invalid_request` for what is no JSON. */
export async function readJsonBody(req: IncomingMessage, options: JsonBodyOptions): Promise<JsonBody> {
  const empty = announcedBytes(req, options.maxBytes) === 0
  if (!empty) checkType(req.headers['content-type'])
  const bytes = empty ? Buffer.alloc(0) : await readAll(req, options)
  const digest = options.digest ? createHash('sha256').update(bytes).digest('hex') : null
  return { value: bytes.length === 0 ? {} : parse(bytes), digest }
}

function checkType(header: string | undefined): void {
  const [type = '', ...parameters] = (header ?? 'application/json').toLowerCase().split(';')
  if (!/^\s*application\/(?:[\w.-]+\+)?json\s*$/.test(type))
    throw errors.unsupportedMedia('send the body as Content-Type: application/json')
  const charset = parameters
    .map((parameter) => /^\s*charset\s*=\s*"?([^"\s]*)"?\s*$/.exec(parameter)?.[1])
    .find(Boolean)
  if (charset !== undefined && charset !== 'utf-8' && charset !== 'utf8')
    throw errors.unsupportedMedia(`the charset ${charset.slice(0, 40)} is not taken; send UTF-8`)
}

async function readAll(req: IncomingMessage, { maxBytes, timeoutMs }: JsonBodyOptions): Promise<Buffer> {
  const stream = decoded(req)
  const declared = stream === req ? Number(req.headers['content-length']) : Number.NaN
  const tooLarge = () => {
    // What still comes is read off, so that the client sees the answer.
    req.unpipe().resume()
    return errors.tooLarge('the body is larger than the server takes; push big work instead: --from-local')
  }
  if (declared > maxBytes) throw tooLarge()
  // Room for what is announced, so that the pieces are not kept beside the whole; it grows where nothing is.
  let room = Buffer.allocUnsafe(declared > 0 ? declared : 65_536)
  let size = 0
  let timer: NodeJS.Timeout | undefined
  await new Promise<void>((resolve, reject) => {
    const late = () =>
      give(errors.invalidRequest(`the body took longer than ${timeoutMs / 1000} s to arrive; send it again`))
    timer = setTimeout(late, timeoutMs)
    const give = (error: Error) => {
      stream.removeAllListeners('data')
      reject(error)
    }
    stream.on('data', (chunk: Buffer) => {
      if (size + chunk.length > maxBytes) return give(tooLarge())
      if (size + chunk.length > room.length) {
        const larger = Buffer.allocUnsafe(Math.min(maxBytes, Math.max(room.length * 2, size + chunk.length)))
        room.copy(larger, 0, 0, size)
        room = larger
      }
      chunk.copy(room, size)
      size += chunk.length
    })
    stream.once('end', resolve)
    stream.once('error', (error) => give(errors.invalidRequest(`the body could not be read: ${messageOf(error)}`)))
    req.once('aborted', () => give(errors.invalidRequest('the body was cut')))
    req.once('error', (error) => give(errors.invalidRequest(`the body could not be read: ${messageOf(error)}`)))
  }).finally(() => clearTimeout(timer))
  return room.subarray(0, size)
}

function decoded(req: IncomingMessage): Readable {
  const encoding = (req.headers['content-encoding'] ?? 'identity').toLowerCase()
  switch (encoding) {
    case 'identity':
      return req
    case 'gzip':
      return req.pipe(createGunzip())
    case 'deflate':
      return req.pipe(createInflate())
    case 'br':
      return req.pipe(createBrotliDecompress())
    default:
      throw errors.unsupportedMedia(
        `the content encoding ${encoding.slice(0, 40)} is not taken; send it as it is, or gzip`,
      )
  }
}

function parse(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8').replace(/^\ufeff/, '')) as unknown
  } catch (error) {
    throw errors.invalidRequest(`the body is not JSON: ${messageOf(error)}`)
  }
}
