/** The file packed-refs: its lines, and what differs between two states of it. Source: git's refs/packed-backend.c. */
import { isOid, type Oid } from '../../domain/names.ts'

export interface PackedRef {
  /** Bytes as latin1. */
  readonly name: string
  /** null: it is there no more. */
  readonly oid: Oid | null
}

const NEWLINE = 10
const BLOCK_BYTES = 65_536

/** All refs of the file. */
export function* packedRefs(file: Buffer): Generator<PackedRef & { oid: Oid }> {
  for (let at = 0; at < file.length; ) {
    const end = lineEnd(file, at)
    const line = file.toString('latin1', at, end)
    if (isRef(line)) yield { name: line.slice(41), oid: line.slice(0, 40) as Oid }
    at = end + 1
  }
}

/**
 * What changed between two states of the file; null where one of them is not sorted, and has to be read whole. What is the same is compared as memory
 * and not looked at: a hundred thousand sessions are some 30 MB, of which packing changes a few hundred lines.
 */
export function packedChanges(before: Buffer, after: Buffer): PackedRef[] | null {
  if (!isSorted(before) || !isSorted(after)) return null
  const changes: PackedRef[] = []
  let [old, now] = [0, 0]
  for (;;) {
    const same = sameBytes(before, old, after, now)
    if (old + same >= before.length && now + same >= after.length) return changes
    // Back to the beginning of the line, which is as far back in both.
    const back = lineStart(before, old + same) - (old + same)
    old += same + back
    now += same + back
    const [left, right] = [lineAt(before, old), lineAt(after, now)]
    // Lines that are no refs: the header, and what a tag before them names.
    if (left !== null && !isRef(left)) old += left.length + 1
    else if (right !== null && !isRef(right)) now += right.length + 1
    else if (left !== null && (right === null || left.slice(41) < right.slice(41))) {
      changes.push({ name: left.slice(41), oid: null })
      old += left.length + 1
    } else if (right !== null) {
      if (left !== right) changes.push({ name: right.slice(41), oid: right.slice(0, 40) as Oid })
      if (left?.slice(41) === right.slice(41)) old += left.length + 1
      now += right.length + 1
    } else return changes
  }
}

function isRef(line: string): boolean {
  return line[40] === ' ' && isOid(line.slice(0, 40))
}

function isSorted(file: Buffer): boolean {
  return /^# pack-refs with:.* sorted /.test(file.toString('latin1', 0, Math.min(lineEnd(file, 0), 200)))
}

function lineEnd(file: Buffer, at: number): number {
  const end = file.indexOf(NEWLINE, at)
  return end === -1 ? file.length : end
}

function lineStart(file: Buffer, at: number): number {
  return at === 0 ? 0 : file.lastIndexOf(NEWLINE, at - 1) + 1
}

function lineAt(file: Buffer, at: number): string | null {
  return at >= file.length ? null : file.toString('latin1', at, lineEnd(file, at))
}

/** How many bytes from two places on are the same: by blocks, the last one halved until its first difference is found. */
function sameBytes(a: Buffer, atA: number, b: Buffer, atB: number): number {
  const most = Math.min(a.length - atA, b.length - atB)
  let same = 0
  for (let block = BLOCK_BYTES; block > 0 && same < most; ) {
    const size = Math.min(block, most - same)
    const [fromA, fromB] = [atA + same, atB + same]
    if (a.compare(b, fromB, fromB + size, fromA, fromA + size) === 0) same += size
    else block = size >> 1
  }
  return same
}
