/** Looks for secrets in bytes that stream by: configured ones by value, hangar's own and those of well-known services by shape. */
import { secretForms } from './redact.ts'

export interface NamedSecret {
  /** The variable that it is given as. */
  readonly name: string
  readonly value: string
}

export interface SecretFound {
  /** What it is, for a sentence: `the secret NPM_TOKEN`, `a token of GitHub`. */
  readonly what: string
  /**
   * known: a secret of this server's, which may enter no store; likely: it has the shape of somebody's, and may be an example.
   */
  readonly kind: 'known' | 'likely'
  /** Bytes from the start. */
  readonly offset: number
}

export interface SecretSearch {
  /** A search through one piece of content, given chunk by chunk; `end` gives each thing that was found, once. */
  begin(): { add(chunk: Buffer): void; end(): SecretFound[] }
}

/** Values under this length are masked in what comes back, but refuse no push: `postgres` is also a word. */
const MIN_VALUE = 10

/** Each begins with a text of its own; the rest of the shape is looked at where that is found. */
const SHAPES: readonly { start: string; rest: RegExp; what: string; kind: 'ours' | 'likely' }[] = [
  { start: 'hgt_', rest: /^[A-Za-z0-9]{43}(?![A-Za-z0-9])/, what: 'a token of hangar', kind: 'ours' },
  { start: 'hgs_', rest: /^[A-Za-z0-9]{43}(?![A-Za-z0-9])/, what: 'a grant of hangar', kind: 'ours' },
  ...['ghp_', 'gho_', 'ghu_', 'ghs_', 'ghr_'].map((start) => ({
    start,
    rest: /^[A-Za-z0-9]{36}(?![A-Za-z0-9])/,
    what: 'a token of GitHub',
    kind: 'likely' as const,
  })),
  { start: 'github_pat_', rest: /^[A-Za-z0-9]{22}_[A-Za-z0-9]{59}/, what: 'a token of GitHub', kind: 'likely' },
  { start: 'glpat-', rest: /^[A-Za-z0-9_-]{20}/, what: 'a token of GitLab', kind: 'likely' },
  { start: 'npm_', rest: /^[A-Za-z0-9]{36}(?![A-Za-z0-9])/, what: 'a token of npm', kind: 'likely' },
  { start: 'sk-ant-', rest: /^[a-z0-9]+-[A-Za-z0-9_-]{80}/, what: 'a key of Anthropic', kind: 'likely' },
  { start: 'sk-proj-', rest: /^[A-Za-z0-9_-]{64}/, what: 'a key of OpenAI', kind: 'likely' },
  { start: 'xoxb-', rest: /^[0-9]{10,}-[0-9A-Za-z-]{20}/, what: 'a token of Slack', kind: 'likely' },
  { start: 'xoxp-', rest: /^[0-9]{10,}-[0-9A-Za-z-]{20}/, what: 'a token of Slack', kind: 'likely' },
]
/** No shape reaches further than this past its start. */
const LONGEST_SHAPE = 128

interface Pattern {
  readonly bytes: Buffer
  readonly what: string
  readonly kind: 'known' | 'ours' | 'likely'
  /** Judges what follows; null when the bytes are all of it. */
  readonly rest: RegExp | null
}

/**
 * The search for these secrets in every form that masking knows, but base64 that is broken into lines. `isLive` tells of what has the shape
 * of hangar's own tokens whether it opens anything here: an example in a test does not.
 */
export function createSecretSearch(
  secrets: readonly NamedSecret[],
  isLive: (secret: string) => boolean = () => false,
): SecretSearch {
  const patterns = [
    ...secrets.flatMap(({ name, value }) => patternsOf(name, value.trim())),
    ...SHAPES.map(({ start, ...shape }): Pattern => ({ ...shape, bytes: Buffer.from(start) })),
  ]
  const longest = Math.max(LONGEST_SHAPE, ...patterns.map(({ bytes }) => bytes.length + 1))
  const table = shiftTable(patterns.map(({ bytes }) => bytes))

  return {
    begin() {
      const found = new Map<string, SecretFound>()
      let kept = Buffer.alloc(0)
      let before = 0
      const look = (window: Buffer, until: number) => {
        for (const { at, index } of occurrences(window, until, table)) {
          const { bytes, what, rest, ...pattern } = patterns[index] as Pattern
          const after = at + bytes.length
          const shape = rest?.exec(window.toString('latin1', after, after + LONGEST_SHAPE))
          if (shape === null) continue
          const ours = pattern.kind === 'ours' && isLive(`${bytes.toString('latin1')}${shape?.[0] ?? ''}`)
          const kind = pattern.kind === 'ours' ? (ours ? 'known' : 'likely') : pattern.kind
          const key = `${kind} ${what}`
          if (!found.has(key)) found.set(key, { what, kind, offset: before + at })
        }
      }
      return {
        add(chunk) {
          const window = kept.length === 0 ? chunk : Buffer.concat([kept, chunk])
          // What begins in the last bytes may go on in the next chunk.
          const until = Math.max(0, window.length - longest)
          look(window, until)
          before += until
          kept = Buffer.from(window.subarray(until))
        },
        end() {
          look(kept, kept.length)
          return [...found.values()]
        },
      }
    },
  }
}

/** A secret of several lines counts by each of its lines that is long enough. */
function patternsOf(name: string, value: string): Pattern[] {
  const values = [value, ...value.split(/\r?\n/).map((line) => line.trim())]
  const forms = new Set(values.filter((one) => one.length >= MIN_VALUE).flatMap(secretForms))
  return [...forms].map((form) => ({
    bytes: Buffer.from(form, 'utf8'),
    what: `the secret ${name}`,
    kind: 'known',
    rest: null,
  }))
}

interface ShiftTable {
  /** The length of what is compared of each pattern: that of the shortest. */
  readonly length: number
  /** By two bytes: how far on the next place is that they can be part of. */
  readonly shift: Uint8Array
  /** By two bytes: the patterns whose compared part ends with them. */
  readonly ending: ReadonlyMap<number, readonly { readonly index: number; readonly bytes: Buffer }[]>
}

/** Source: Wu and Manber, "A fast algorithm for multi-pattern searching" (1994), with blocks of two bytes. */
function shiftTable(patterns: readonly Buffer[]): ShiftTable {
  const length = Math.min(...patterns.map((bytes) => bytes.length))
  const shift = new Uint8Array(65_536).fill(Math.min(255, length - 1))
  const ending = new Map<number, { index: number; bytes: Buffer }[]>()
  patterns.forEach((bytes, index) => {
    for (let end = 1; end < length; end++) {
      const block = bytes.readUInt16BE(end - 1)
      shift[block] = Math.min(shift[block] ?? 0, length - 1 - end)
    }
    const last = bytes.readUInt16BE(length - 2)
    ending.set(last, [...(ending.get(last) ?? []), { index, bytes }])
  })
  return { length, shift, ending }
}

/** Where a pattern begins before `until`. */
function* occurrences(
  window: Buffer,
  until: number,
  { length, shift, ending }: ShiftTable,
): Generator<{ at: number; index: number }> {
  for (let end = length - 1; end < window.length; ) {
    const block = ((window[end - 1] as number) << 8) | (window[end] as number)
    const skip = shift[block] as number
    if (skip > 0) {
      end += skip
      continue
    }
    const at = end - length + 1
    if (at >= until) return
    for (const { index, bytes } of ending.get(block) ?? [])
      if (window.compare(bytes, 0, bytes.length, at, Math.min(window.length, at + bytes.length)) === 0)
        yield { at, index }
    end++
  }
}
