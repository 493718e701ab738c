/** A set of object ids in 20 bytes each, for sets too large for strings. */
import type { Oid } from '../../domain/names.ts'

const EMPTY_SLOT = Buffer.alloc(20)

/** Open addressing over one buffer, at most half full. The zero id cannot be in it. */
export class OidSet {
  #slots = 1_024
  #table = Buffer.alloc(this.#slots * 20)
  #size = 0

  get size(): number {
    return this.#size
  }

  add(oid: Oid | string): void {
    this.#put(Buffer.from(oid, 'hex'))
    if (this.#size * 2 > this.#slots) this.#grow()
  }

  has(oid: Oid | string): boolean {
    const bytes = Buffer.from(oid, 'hex')
    const at = this.#find(bytes)
    return this.#table.compare(bytes, 0, 20, at, at + 20) === 0
  }

  #put(bytes: Buffer): void {
    const at = this.#find(bytes)
    if (this.#table.compare(EMPTY_SLOT, 0, 20, at, at + 20) !== 0) return
    bytes.copy(this.#table, at)
    this.#size++
  }

  /** Where the id is, or would be put. */
  #find(bytes: Buffer): number {
    let slot = bytes.readUInt32BE(0) & (this.#slots - 1)
    for (;;) {
      const at = slot * 20
      if (this.#table.compare(bytes, 0, 20, at, at + 20) === 0) return at
      if (this.#table.compare(EMPTY_SLOT, 0, 20, at, at + 20) === 0) return at
      slot = (slot + 1) & (this.#slots - 1)
    }
  }

  #grow(): void {
    const [old, slots] = [this.#table, this.#slots]
    this.#slots = slots * 2
    this.#table = Buffer.alloc(this.#slots * 20)
    this.#size = 0
    for (let at = 0; at < old.length; at += 20)
      if (old.compare(EMPTY_SLOT, 0, 20, at, at + 20) !== 0) this.#put(old.subarray(at, at + 20))
  }
}
