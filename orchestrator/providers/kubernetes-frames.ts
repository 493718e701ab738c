/** The frames in which `hangar-pod` sends the logs of a run: parsed once, checked by their hash, capped. */
import { createHash } from 'node:crypto'
import type { TurnCursor, TurnProcess } from '../../domain/sandbox.ts'
import { parseExit } from '../turn-record.ts'

/** A piece of both logs, and how the run stood right before it was read. */
export interface Frame {
  readonly at: TurnCursor
  readonly out: Buffer
  readonly err: Buffer
  readonly process: TurnProcess
}

/** What came is no frame, or was harmed on its way; the connection is to be made again. */
export class FrameError extends Error {}

const MAX_HEADER_BYTES = 4_096
const HEADER = /^hangar (\d+) (\d+) (\d+) (\d+) (-|[0-9a-f]{40}|[0-9a-f]{64}) (\w+) ?(.*)$/

export interface FrameReader {
  /** The frames that are complete with these bytes. Throws `FrameError`. */
  push(bytes: Buffer): Frame[]
}

/** A reader of one connection's output; each log's piece is at most `maxBytes`. */
export function createFrameReader(maxBytes: number): FrameReader {
  let pending: Buffer[] = []
  let size = 0
  let header: Header | null = null
  const take = (): Buffer => {
    const all = pending.length === 1 && pending[0] !== undefined ? pending[0] : Buffer.concat(pending)
    pending = []
    size = 0
    return all
  }
  const keep = (bytes: Buffer) => {
    if (bytes.length === 0) return
    pending.push(bytes)
    size += bytes.length
  }
  return {
    push(bytes) {
      keep(bytes)
      const frames: Frame[] = []
      for (;;) {
        if (header === null) {
          const all = take()
          const end = all.indexOf(10)
          keep(end < 0 ? all : all.subarray(end + 1))
          if ((end < 0 ? all.length : end) > MAX_HEADER_BYTES) throw new FrameError('a frame has no head')
          if (end < 0) return frames
          header = parseHeader(all.toString('utf8', 0, end), maxBytes)
        }
        const length = header.outBytes + header.errBytes
        if (size < length) return frames
        const all = take()
        keep(all.subarray(length))
        frames.push(makeFrame(header, all.subarray(0, length)))
        header = null
      }
    },
  }
}

interface Header {
  readonly at: TurnCursor
  readonly outBytes: number
  readonly errBytes: number
  readonly oid: string
  readonly process: TurnProcess
}

function parseHeader(line: string, maxBytes: number): Header {
  const [whole, out, outBytes, err, errBytes, oid = '', state = '', detail = ''] = HEADER.exec(line) ?? []
  if (whole === undefined) throw new FrameError(`a frame began with ${JSON.stringify(line.slice(0, 80))}`)
  const header = {
    at: { out: Number(out), err: Number(err) },
    outBytes: Number(outBytes),
    errBytes: Number(errBytes),
    oid,
  }
  if (header.outBytes > maxBytes || header.errBytes > maxBytes) throw new FrameError('a frame is too long')
  return { ...header, process: parseState(state, detail) }
}

function makeFrame({ at, outBytes, oid, process }: Header, body: Buffer): Frame {
  if (body.length > 0 && blobId(body, oid.length) !== oid) throw new FrameError('a frame was harmed on its way')
  return { at, out: body.subarray(0, outBytes), err: body.subarray(outBytes), process }
}

/** Git's id of these bytes as a blob. */
export function blobId(bytes: Uint8Array, hexDigits = 40): string {
  return createHash(hexDigits === 64 ? 'sha256' : 'sha1')
    .update(`blob ${bytes.length}\0`)
    .update(bytes)
    .digest('hex')
}

function parseState(state: string, detail: string): TurnProcess {
  switch (state) {
    case 'running':
    case 'unknown':
      return { state }
    case 'lost':
      return { state, reason: 'the process that supervised the run is gone' }
    case 'exited':
      return parseCountedExit(detail)
    default:
      throw new FrameError(`a run cannot be ${state}`)
  }
}

/** `OOM_KILLS {"code","timed_out","ended_at"}`. */
function parseCountedExit(detail: string): TurnProcess {
  const space = detail.indexOf(' ')
  const exited = parseExit(detail.slice(space + 1))
  return exited.state === 'exited' && Number(detail.slice(0, space)) > 0 ? { ...exited, oom: true } : exited
}
