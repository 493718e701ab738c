/** A program's output as lines, as it comes: any chunking gives the same lines, and a line without end costs bounded memory. */

/** How far a stream was taken in. */
export interface LineCursor {
  /** The byte after the last finished line; while a line is skipped, the byte after what was skipped. */
  readonly offset: number
  /** Bytes of the line that is being skipped, because it is longer than the cap. */
  readonly skipping: number
}

export interface OutputLine {
  /** Without its line end; cut at the cap. */
  readonly text: string
  /** Whether it was longer than the cap. */
  readonly cut: boolean
}

export const START_OF_LINES: LineCursor = { offset: 0, skipping: 0 }

export interface LineReader {
  /** Takes the next bytes of the stream; with `ended` the rest counts as a line. A line over the cap is given once, cut, as soon as it is that long. */
  push(chunk: Buffer, ended: boolean): readonly OutputLine[]
  /** From where on to read after a restart: what was pushed, but is not yet part of a line, comes again. */
  cursor(): LineCursor
  /** The byte that the next push begins at. */
  position(): number
}

/** Reads lines of at most `maxBytes` from a cursor on. */
export function createLineReader({ offset, skipping: skipped }: LineCursor, maxBytes: number): LineReader {
  let position = offset
  let skipping = skipped
  let pending: Buffer[] = []
  let pendingBytes = 0

  const lineOf = (rest: Buffer): OutputLine => {
    const bytes = pendingBytes === 0 ? rest : Buffer.concat([...pending, rest])
    pending = []
    pendingBytes = 0
    const text = bytes.subarray(0, maxBytes).toString('utf8').replace(/\r$/, '')
    return { text, cut: bytes.length > maxBytes }
  }
  return {
    push: (chunk, ended) => {
      const lines: OutputLine[] = []
      let from = 0
      for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, from)) {
        if (skipping === 0) lines.push(lineOf(chunk.subarray(from, end)))
        skipping = 0
        from = end + 1
      }
      const rest = chunk.subarray(from)
      position += chunk.length
      if (skipping > 0) skipping += rest.length
      else if (pendingBytes + rest.length > maxBytes) {
        skipping = pendingBytes + rest.length
        lines.push(lineOf(rest))
      } else if (rest.length > 0) {
        // A copy: the chunk's whole memory would be kept for it otherwise.
        pending.push(Buffer.from(rest))
        pendingBytes += rest.length
      }
      if (ended) {
        if (pendingBytes > 0) lines.push(lineOf(Buffer.alloc(0)))
        skipping = 0
      }
      return lines
    },
    cursor: () => ({ offset: position - pendingBytes, skipping }),
    position: () => position,
  }
}
