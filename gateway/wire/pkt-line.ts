/** Packet lines and sidebands: git's framing, written and read in bytes. */
import { errors } from '../../domain/errors.ts'

export type Pkt =
  | { readonly kind: 'data'; readonly payload: Buffer }
  | { readonly kind: 'flush' }
  | { readonly kind: 'delim' }
  | { readonly kind: 'response-end' }

export const FLUSH_PKT = Buffer.from('0000')
export const DELIM_PKT = Buffer.from('0001')
/** The largest payload of one packet line. Source: git's gitprotocol-common. */
const MAX_PKT_PAYLOAD = 65_516

/** One packet line; text is taken as latin1, so that bytes of ref names pass unchanged. Throws a RangeError over 65,516 bytes. */
export function pktLine(content: string | Buffer): Buffer {
  const payload = typeof content === 'string' ? Buffer.from(content, 'latin1') : content
  if (payload.length > MAX_PKT_PAYLOAD) throw new RangeError('a packet line holds at most 65,516 bytes')
  return Buffer.concat([Buffer.from((payload.length + 4).toString(16).padStart(4, '0'), 'latin1'), payload])
}

/** Many packet lines as one buffer, without a buffer for each. */
export function pktLines(lines: readonly string[]): Buffer {
  return Buffer.from(lines.map((line) => (line.length + 4).toString(16).padStart(4, '0') + line).join(''), 'latin1')
}

/** How a client wants its answer framed: `side-band-64k`, `side-band` or not at all. */
export type Sideband = 64 | 1 | null

/** The bytes wrapped into one band: 1 data, 2 progress, 3 a fatal error. Pieces hold 65,515 or 995 bytes. */
export function wrapBand(band: 1 | 2 | 3, bytes: Buffer, sideband: 64 | 1): Buffer {
  const most = sideband === 64 ? 65_515 : 995
  const pieces: Buffer[] = []
  for (let at = 0; at < bytes.length; at += most)
    pieces.push(pktLine(Buffer.concat([Buffer.of(band), bytes.subarray(at, at + most)])))
  return Buffer.concat(pieces)
}

/**
 * Reads packet lines off the front of a stream of bytes and leaves what follows them unread.
 * Takes at most `maxBytes` of packet lines; each is refused as soon as its length is seen to be none.
 */
export class PktReader {
  readonly #source: AsyncIterator<Buffer>
  readonly #maxBytes: number
  #rest: Buffer = Buffer.alloc(0)
  #taken = 0

  constructor(source: AsyncIterator<Buffer>, maxBytes: number) {
    this.#source = source
    this.#maxBytes = maxBytes
  }

  /** The next packet, or null at a clean end. Throws `protocol_malformed` on a bad length or a cut packet, `limit_passed` over the cap. */
  async read(): Promise<Pkt | null> {
    if (!(await this.#fill(4))) {
      if (this.#rest.length > 0) throw errors.protocolMalformed('the request ends inside a packet line')
      return null
    }
    const digits = this.#rest.toString('latin1', 0, 4)
    if (!/^[0-9a-fA-F]{4}$/.test(digits))
      throw errors.protocolMalformed('a packet line has no length of four hex digits')
    const length = Number.parseInt(digits, 16)
    if (length === 3) throw errors.protocolMalformed('a packet line has the length 0003')
    this.#taken += Math.max(length, 4)
    if (this.#taken > this.#maxBytes)
      throw errors.limitPassed(`the request has more than ${this.#maxBytes} bytes of packet lines`)
    if (length < 4) {
      this.#rest = this.#rest.subarray(4)
      return { kind: length === 0 ? 'flush' : length === 1 ? 'delim' : 'response-end' }
    }
    if (!(await this.#fill(length))) throw errors.protocolMalformed('the request ends inside a packet line')
    const payload = this.#rest.subarray(4, length)
    this.#rest = this.#rest.subarray(length)
    return { kind: 'data', payload }
  }

  /** All that follows the packets read so far. */
  async *rest(): AsyncGenerator<Buffer> {
    const first = this.#rest
    this.#rest = Buffer.alloc(0)
    if (first.length > 0) yield first
    for (let next = await this.#source.next(); !next.done; next = await this.#source.next()) yield next.value
  }

  async #fill(length: number): Promise<boolean> {
    const chunks = [this.#rest]
    let size = this.#rest.length
    while (size < length) {
      const next = await this.#source.next()
      if (next.done) break
      chunks.push(next.value)
      size += next.value.length
    }
    if (chunks.length > 1) this.#rest = Buffer.concat(chunks)
    return size >= length
  }
}

/** The payload as text of latin1 without the newline that lines may end with. */
export function lineOf(payload: Buffer): string {
  const end = payload.at(-1) === 0x0a ? payload.length - 1 : payload.length
  return payload.toString('latin1', 0, end)
}
