/** Splits a program's output into lines as it comes: any chunking gives the same lines, and a line without end costs bounded memory. */

/** How far a stream was taken in. `offset` is the byte after the last finished line. */
export interface LineCursor {
  readonly offset: number
  /** Bytes of the line that is being skipped, because it is longer than the cap. */
  readonly skipping: number
}

export interface SplitLines {
  readonly lines: readonly OutputLine[]
  readonly cursor: LineCursor
}

export interface OutputLine {
  /** Without its line end; cut at the cap. */
  readonly text: string
  /** Bytes of the whole line when it was cut. */
  readonly truncated: number | null
}

export const START_OF_LINES: LineCursor = { offset: 0, skipping: 0 }

/**
 * The lines that are complete in `chunk`, which begins at `cursor.offset` of the stream. With `ended` the rest counts as a line.
 * A line longer than `maxBytes` is given once, cut, when its end comes.
 */
export function splitLines(
  cursor: LineCursor,
  chunk: Buffer,
  options: { maxBytes: number; ended: boolean },
): SplitLines {
  const lines: OutputLine[] = []
  let { skipping } = cursor
  let from = 0
  for (let end = chunk.indexOf(10, from); end !== -1; end = chunk.indexOf(10, from)) {
    if (skipping === 0) lines.push(lineOf(chunk.subarray(from, end), options.maxBytes))
    skipping = 0
    from = end + 1
  }
  const rest = chunk.subarray(from)
  if (options.ended) {
    if (rest.length > 0 && skipping === 0) lines.push(lineOf(rest, options.maxBytes))
    return { lines, cursor: { offset: cursor.offset + chunk.length, skipping: 0 } }
  }
  if (rest.length <= options.maxBytes && skipping === 0)
    return { lines, cursor: { offset: cursor.offset + from, skipping: 0 } }
  if (skipping === 0) lines.push(lineOf(rest, options.maxBytes))
  return { lines, cursor: { offset: cursor.offset + chunk.length, skipping: skipping + rest.length } }
}

function lineOf(bytes: Buffer, maxBytes: number): OutputLine {
  const text = bytes.subarray(0, maxBytes).toString('utf8').replace(/\r$/, '')
  return { text, truncated: bytes.length > maxBytes ? bytes.length : null }
}
