/**
 * How fast the parsers of agent programs read recorded streams, against JSON.parse of each line in the same run, and what a 1 GB log costs
 * in memory. `npm run bench:parsers`, with `--quick` a short form.
 */
import { NO_USAGE } from '../domain/run-event.ts'
import { createLineReader, START_OF_LINES } from '../orchestrator/harnesses/lines.ts'
import { type Recorded, recordedStreams } from '../test/orchestrator/harness-streams.ts'

const quick = process.argv.includes('--quick')
const MB = 1_048_576
const TOTAL = (quick ? 16 : 128) * MB
const LONG = (quick ? 64 : 1_024) * MB
const CHUNK = 65_536
/** What a fast model and its tools make an agent print: measured streams of whole turns stay below it. */
const FULL_SPEED = 100 * 1024

interface Row {
  readonly parser: string
  readonly megabytesPerSecond: number
  readonly ratio: number
  readonly share: number
}

const rows = recordedStreams()
  .filter(({ name }) => name.endsWith('/tools'))
  .map((stream): Row => {
    const bytes = repeated(stream, TOTAL)
    const plain = seconds(() => {
      const reader = createLineReader(START_OF_LINES, stream.harness.maxLineBytes)
      for (let at = 0; at < bytes.length; at += CHUNK)
        for (const { text } of reader.push(bytes.subarray(at, at + CHUNK), false)) if (text !== '') JSON.parse(text)
    })
    const parsed = seconds(() => parse(stream, bytes, bytes.length))
    return {
      parser: stream.harness.kind,
      megabytesPerSecond: bytes.length / MB / parsed,
      ratio: plain / parsed,
      share: FULL_SPEED / (bytes.length / parsed),
    }
  })

console.log('parser        MB/s   × JSON.parse of each line   of a core at 100 KB/s')
for (const { parser, megabytesPerSecond, ratio, share } of rows)
  console.log(
    `${parser.padEnd(12)} ${megabytesPerSecond.toFixed(0).padStart(5)}   ${ratio.toFixed(2).padStart(10)}                ${(share * 100).toFixed(3)} %`,
  )

const [stream] = recordedStreams().filter(({ name }) => name === 'claude/tools')
if (stream !== undefined) {
  const bytes = repeated(stream, 16 * MB)
  global.gc?.()
  const before = process.memoryUsage()
  const peak = parse(stream, bytes, LONG)
  console.log(
    `memory on a log of ${LONG / MB} MB: RSS ${megabytes(before.rss)} before, ${megabytes(peak)} at most (the ${megabytes(bytes.length)} that are read over and over among them)`,
  )
}

/** Parses the bytes over and over until so many were read; gives the highest RSS seen. */
function parse({ harness, conversation }: Recorded, bytes: Buffer, total: number): number {
  const reader = createLineReader(START_OF_LINES, harness.maxLineBytes)
  const parser = harness.parser({ conversation, before: NO_USAGE, saved: null })
  let peak = 0
  for (let read = 0; read < total; read += CHUNK) {
    const at = read % bytes.length
    for (const { text, cut } of reader.push(bytes.subarray(at, at + CHUNK), false)) parser.line('out', text, cut)
    parser.save()
    if (read % (64 * MB) === 0) peak = Math.max(peak, process.memoryUsage.rss())
  }
  return Math.max(peak, process.memoryUsage.rss())
}

function repeated({ bytes }: Recorded, total: number): Buffer {
  const whole = Buffer.concat([bytes, Buffer.from('\n')])
  return Buffer.concat(Array.from({ length: Math.ceil(total / whole.length) }, () => whole)).subarray(0, total)
}

function seconds(work: () => void): number {
  const from = performance.now()
  work()
  return (performance.now() - from) / 1000
}

function megabytes(bytes: number): string {
  return `${(bytes / MB).toFixed(0)} MB`
}
