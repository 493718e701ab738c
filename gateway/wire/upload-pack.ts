/** git-upload-pack on the wire: advertisements, ls-refs, and the requests of protocol v0, v1 and v2. Source: git's gitprotocol-v2, gitprotocol-pack. */
import { errors } from '../../domain/errors.ts'
import { isOid, type Oid, type RefName, ZERO_OID } from '../../domain/names.ts'
import type { RefEntry } from '../../refs-policy/ref-update.ts'
import { DELIM_PKT, FLUSH_PKT, lineOf, type PktReader, pktLine, pktLines } from './pkt-line.ts'

/** The answer to `info/refs` under protocol v2: the same for every repository. */
export const V2_ADVERTISEMENT: Buffer = Buffer.concat([
  pktLines([
    'version 2\n',
    'agent=hangar\n',
    'ls-refs=unborn\n',
    'fetch=shallow wait-for-done filter\n',
    'server-option\n',
    'object-format=sha1\n',
  ]),
  FLUSH_PKT,
])

const V0_CAPABILITIES =
  'multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since deepen-not deepen-relative no-progress include-tag multi_ack_detailed allow-tip-sha1-in-want allow-reachable-sha1-in-want no-done'

/** A ref with the object that its tag, or chain of tags, names; null when it is no tag. */
export interface PeeledRef extends RefEntry {
  readonly peeled: Oid | null
}

export interface Head {
  readonly target: RefName
  /** null: unborn, or not to be seen. */
  readonly oid: Oid | null
}

/** The advertisement of v0 or v1, `# service` header included. */
export function uploadPackAdvertisement(protocol: 0 | 1, head: Head, refs: readonly PeeledRef[]): Buffer {
  const lines: string[] = []
  if (head.oid !== null) lines.push(`${head.oid} HEAD`)
  for (const { name, oid, peeled } of refs) {
    lines.push(`${oid} ${name}`)
    if (peeled !== null) lines.push(`${peeled} ${name}^{}`)
  }
  if (lines.length === 0) lines.push(`${ZERO_OID} capabilities^{}`)
  const symref = head.oid === null ? '' : ` symref=HEAD:${head.target}`
  lines[0] = `${lines[0]}\0${V0_CAPABILITIES}${symref} filter object-format=sha1 agent=hangar`
  return Buffer.concat([
    pktLines(['# service=git-upload-pack\n']),
    FLUSH_PKT,
    pktLines([...(protocol === 1 ? ['version 1\n'] : []), ...lines.map((line) => `${line}\n`)]),
    FLUSH_PKT,
  ])
}

/** A v2 `ls-refs` command. */
export interface LsRefs {
  readonly symrefs: boolean
  readonly peel: boolean
  readonly unborn: boolean
  readonly prefixes: readonly string[]
}

/** The answer to `ls-refs`. HEAD is named when a prefix covers it. */
export function lsRefsAnswer(command: LsRefs, head: Head, refs: readonly PeeledRef[]): Buffer {
  const lines: string[] = []
  const asksHead = command.prefixes.length === 0 || command.prefixes.some((prefix) => 'HEAD'.startsWith(prefix))
  const target = command.symrefs ? ` symref-target:${head.target}` : ''
  if (asksHead && head.oid !== null) lines.push(`${head.oid} HEAD${target}\n`)
  else if (asksHead && command.unborn) lines.push(`unborn HEAD${target}\n`)
  for (const { name, oid, peeled } of refs)
    lines.push(`${oid} ${name}${command.peel && peeled !== null ? ` peeled:${peeled}` : ''}\n`)
  return Buffer.concat([pktLines(lines), FLUSH_PKT])
}

/** A fetch, in any protocol version, with what has to be looked at before git is asked. */
export interface FetchRequest {
  readonly kind: 'fetch'
  readonly wants: readonly Oid[]
  readonly shallows: readonly Oid[]
  /** Values of `deepen-not`. */
  readonly excluded: readonly string[]
  /**
   * It names nothing that the client has, and wants the pack at once: the answer depends on the request, on objects that never change, and where
   * `includeTag` says so on the tags that there are; on other refs only where `excluded` names some.
   */
  readonly fromNothing: boolean
  readonly includeTag: boolean
  /** The objects that the client says it has. */
  haves(): ReadonlySet<Oid>
  /** The request for git without the `shallow` lines that are to be left out; `selfContained`: also without `thin-pack`. */
  write(leaveOut: ReadonlySet<Oid>, options?: { readonly selfContained: boolean }): Buffer
}

export type UploadRequest =
  | { readonly kind: 'nothing' }
  | { readonly kind: 'ls-refs'; readonly command: LsRefs }
  | FetchRequest

/**
 * Reads a request to upload-pack to its end. Every line is checked against the grammar, so that nothing reaches git that was not understood here.
 * Throws `protocol_malformed`, and `limit_passed` over the reader's cap.
 */
export async function readUploadRequest(reader: PktReader, protocol: 0 | 1 | 2): Promise<UploadRequest> {
  return protocol === 2 ? readV2(reader) : readV0(reader)
}

/** An `ERR` line, which git prints as `fatal: remote error: …`. */
export function errorLine(sentence: string): Buffer {
  return pktLine(`ERR ${sentence.replace(/[\x00-\x1f]+/g, ' ').slice(0, 900)}\n`)
}

/** Lines as they were sent, and as they ask for a pack that holds the bases of its deltas. */
interface Part {
  readonly raw: Buffer
  readonly thick: Buffer
  readonly shallow: Oid | null
}

/** Gathers the lines of a fetch in order, and knows which ones matter. Haves may be very many: they are kept as bytes, thousands together. */
class FetchLines {
  readonly wants: Oid[] = []
  readonly shallows: Oid[] = []
  readonly excluded: string[] = []
  #haves = false
  #done = false
  #includeTag = false
  readonly #parts: Part[] = []
  #open: string[] = []

  add(line: string): void {
    const [word, value] = splitOnce(line)
    switch (word) {
      case 'want':
        this.wants.push(oidOf(value))
        // Capabilities of v0 follow the first.
        this.#includeTag ||= value.slice(40).split(' ').includes('include-tag')
        break
      case 'have':
        oidOf(value)
        this.#haves = true
        break
      case 'done':
        this.#done = true
        break
      case 'include-tag':
        this.#includeTag = true
        break
      case 'deepen-not':
        this.excluded.push(value)
        break
    }
    const thick = word === 'want' || word === 'thin-pack' ? line.replace(/(^| )thin-pack(?= |$)/, '') : line
    if (word === 'shallow') this.#addShallow(oidOf(value))
    else if (thick !== line) this.#addThin(line, thick)
    else if (this.#open.push(`${line}\n`) >= 4_096) this.#close()
  }

  mark(raw: Buffer): void {
    this.#close()
    this.#parts.push({ raw, thick: raw, shallow: null })
  }

  request(): FetchRequest {
    this.#close()
    return {
      kind: 'fetch',
      wants: this.wants,
      shallows: this.shallows,
      excluded: this.excluded,
      fromNothing: this.#done && !this.#haves,
      includeTag: this.#includeTag,
      haves: () =>
        new Set(
          this.#parts.flatMap(({ raw }) =>
            [...raw.toString('latin1').matchAll(/have ([0-9a-f]{40})/g)].map(([, oid]) => oid as Oid),
          ),
        ),
      write: (leaveOut, { selfContained } = { selfContained: false }) => {
        const kept = this.#parts.filter(({ shallow }) => shallow === null || !leaveOut.has(shallow))
        return Buffer.concat(kept.map(({ raw, thick }) => (selfContained ? thick : raw)))
      },
    }
  }

  #addShallow(oid: Oid): void {
    this.#close()
    this.shallows.push(oid)
    const raw = pktLine(`shallow ${oid}\n`)
    this.#parts.push({ raw, thick: raw, shallow: oid })
  }

  #addThin(line: string, thick: string): void {
    this.#close()
    this.#parts.push({
      raw: pktLine(`${line}\n`),
      thick: thick === '' ? Buffer.alloc(0) : pktLine(`${thick}\n`),
      shallow: null,
    })
  }

  #close(): void {
    if (this.#open.length === 0) return
    const raw = pktLines(this.#open)
    this.#parts.push({ raw, thick: raw, shallow: null })
    this.#open = []
  }
}

const V2_FETCH_LINE =
  /^(?:want|have|shallow|deepen|deepen-since|deepen-not|filter) [^\n\0]+$|^(?:done|thin-pack|no-progress|include-tag|ofs-delta|deepen-relative|wait-for-done)$/

async function readV2(reader: PktReader): Promise<UploadRequest> {
  const first = await reader.read()
  if (first === null || first.kind === 'flush') return { kind: 'nothing' }
  const command = first.kind === 'data' ? lineOf(first.payload) : ''
  if (command !== 'command=fetch' && command !== 'command=ls-refs')
    throw errors.protocolMalformed('only the commands ls-refs and fetch are taken')
  const args = await readV2Arguments(reader)
  if (command === 'command=ls-refs') return { kind: 'ls-refs', command: parseLsRefs(args) }
  const lines = new FetchLines()
  lines.mark(pktLines(['command=fetch', 'object-format=sha1']))
  lines.mark(DELIM_PKT)
  // Wants in one order and once each, as their order says nothing: sandboxes of one base then ask the same.
  const wants = [...new Set(args.filter(isWant))].sort()
  for (const line of [...wants, ...args.filter((arg) => !isWant(arg))]) {
    if (!V2_FETCH_LINE.test(line)) throw errors.protocolMalformed('fetch: an argument is not taken here')
    lines.add(line)
  }
  lines.mark(FLUSH_PKT)
  return lines.request()
}

function isWant(line: string): boolean {
  return line.startsWith('want ')
}

/** The arguments of a v2 command; its capabilities (agent, server options) are read and dropped. */
async function readV2Arguments(reader: PktReader): Promise<string[]> {
  const args: string[] = []
  let afterDelimiter = false
  for (let pkt = await reader.read(); pkt?.kind !== 'flush'; pkt = await reader.read()) {
    if (pkt?.kind === 'delim' && !afterDelimiter) afterDelimiter = true
    else if (pkt?.kind !== 'data') throw errors.protocolMalformed('a v2 command ends without its flush packet')
    else if (afterDelimiter) args.push(lineOf(pkt.payload))
    else if (/^object-format=(?!sha1$)/.test(lineOf(pkt.payload)))
      throw errors.protocolMalformed('the object format here is sha1')
  }
  return args
}

function parseLsRefs(args: readonly string[]): LsRefs {
  const prefixes = args.filter((arg) => arg.startsWith('ref-prefix ')).map((arg) => arg.slice(11))
  return {
    symrefs: args.includes('symrefs'),
    peel: args.includes('peel'),
    unborn: args.includes('unborn'),
    // As git does: a client that sends very many is answered with everything.
    prefixes: prefixes.length > 65_536 || prefixes.includes('') ? [] : prefixes,
  }
}

const V0_LINE = /^(?:shallow|deepen|deepen-since|deepen-not|filter|have) [^\n\0]+$|^done$/

/** v0 and v1: wants, shallows and depth up to a flush, then haves with flushes between, up to `done` or the end. */
async function readV0(reader: PktReader): Promise<UploadRequest> {
  const lines = new FetchLines()
  let first = true
  for (let pkt = await reader.read(); pkt !== null; pkt = await reader.read()) {
    if (pkt.kind === 'flush') {
      lines.mark(FLUSH_PKT)
      continue
    }
    if (pkt.kind !== 'data') throw errors.protocolMalformed('a fetch of protocol v0 holds only lines and flush packets')
    const line = lineOf(pkt.payload)
    const isWant = first ? /^want [0-9a-f]{40}(?: [^\n\0]*)?$/.test(line) : /^want [0-9a-f]{40}$/.test(line)
    if (!isWant && (first || !V0_LINE.test(line))) throw errors.protocolMalformed('fetch: a line is not taken here')
    lines.add(line)
    first = false
  }
  return lines.wants.length === 0 ? { kind: 'nothing' } : lines.request()
}

function splitOnce(line: string): [string, string] {
  const space = line.indexOf(' ')
  return space === -1 ? [line, ''] : [line.slice(0, space), line.slice(space + 1)]
}

/** The object id that a line's value begins with; capabilities may follow it on v0's first want. */
function oidOf(value: string): Oid {
  const oid = value.slice(0, 40)
  if (!isOid(oid) || (value.length > 40 && value[40] !== ' '))
    throw errors.protocolMalformed('fetch: a line names no object id')
  return oid
}
