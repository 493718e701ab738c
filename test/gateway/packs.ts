/** Packs made and read by hand. */
import { createHash } from 'node:crypto'
import { deflateSync, inflateSync } from 'node:zlib'
import type { Oid } from '../../domain/names.ts'

/** One object of a pack: its type by number (7: a delta on `base`), and its bytes. */
export interface PackObject {
  readonly type: number
  readonly base?: Oid
  readonly bytes: Buffer
}

export function packOf(objects: readonly PackObject[]): Buffer {
  const body = unsignedPackOf(objects)
  return Buffer.concat([body, createHash('sha1').update(body).digest()])
}

/** Without its checksum. */
export function unsignedPackOf(objects: readonly PackObject[]): Buffer {
  const parts = [Buffer.from('PACK\0\0\0\x02', 'latin1'), Buffer.alloc(4)]
  parts[1]?.writeUInt32BE(objects.length)
  for (const { type, base, bytes } of objects) {
    const head: number[] = []
    let size = bytes.length >> 4
    head.push((type << 4) | (bytes.length & 15) | (size > 0 ? 0x80 : 0))
    for (; size > 0; size >>= 7) head.push((size & 0x7f) | (size > 0x7f ? 0x80 : 0))
    parts.push(Buffer.from(head), Buffer.from(base ?? '', 'hex'), deflateSync(bytes))
  }
  return Buffer.concat(parts)
}

/** The pack of an answer, out of its packet lines and sideband; empty when there is none. */
export function packIn(answer: Buffer): Buffer {
  const parts: Buffer[] = []
  for (let at = 0; at + 4 <= answer.length; ) {
    const digits = answer.toString('latin1', at, at + 4)
    if (digits === 'PACK') return Buffer.concat([...parts, answer.subarray(at)])
    const length = Number.parseInt(digits, 16)
    if (Number.isNaN(length)) break
    if (length > 4 && answer[at + 4] === 1) parts.push(answer.subarray(at + 5, at + length))
    at += Math.max(length, 4)
  }
  const all = Buffer.concat(parts)
  return all.toString('latin1', 0, 4) === 'PACK' ? all : Buffer.alloc(0)
}

/** Types of a pack's objects, in order. */
export function typesIn(pack: Buffer): number[] {
  const types: number[] = []
  let at = 12
  const skipNumber = () => {
    while (((pack[at] ?? 0) & 0x80) !== 0) at++
    at++
  }
  for (let left = pack.readUInt32BE(8); left > 0; left--) {
    const type = ((pack[at] ?? 0) >> 4) & 7
    types.push(type)
    skipNumber()
    if (type === 7) at += 20
    if (type === 6) skipNumber()
    const { engine } = inflateSync(pack.subarray(at), { info: true }) as unknown as { engine: { bytesWritten: number } }
    at += engine.bytesWritten
  }
  return types
}
