/** git-receive-pack on the wire: the advertisement, the head of a push, and the report. Source: git's gitprotocol-pack. */
import { errors } from '../../domain/errors.ts'
import type { Limits } from '../../domain/limits.ts'
import { isOid, type Oid, ZERO_OID } from '../../domain/names.ts'
import type { RefCommand, RefEntry } from '../../refs-policy/ref-update.ts'
import { FLUSH_PKT, lineOf, type PktReader, pktLines, type Sideband, wrapBand } from './pkt-line.ts'

/**
 * `no-thin` is a wall: a pack must hold the bases of its deltas, so that a delta cannot copy out of an object that its pusher may not see.
 */
const CAPABILITIES =
  'report-status delete-refs side-band-64k quiet atomic ofs-delta push-options no-thin object-format=sha1 agent=hangar'

/** The advertisement for a push, `# service` header included. */
export function receivePackAdvertisement(refs: readonly RefEntry[]): Buffer {
  const lines = refs.map(({ name, oid }) => `${oid} ${name}`)
  if (lines.length === 0) lines.push(`${ZERO_OID} capabilities^{}`)
  lines[0] = `${lines[0]}\0${CAPABILITIES}`
  return Buffer.concat([
    pktLines(['# service=git-receive-pack\n']),
    FLUSH_PKT,
    pktLines(lines.map((line) => `${line}\n`)),
    FLUSH_PKT,
  ])
}

/** The head of a push: all before the pack. */
export interface PushHead {
  readonly commands: readonly RefCommand[]
  readonly capabilities: PushCapabilities
  /** The client's history is cut at commits. */
  readonly shallow: boolean
}

interface PushCapabilities {
  readonly reportStatus: boolean
  readonly sideband: Sideband
  readonly atomic: boolean
}

/**
 * Reads the head of a push and leaves the pack unread; null when the body is one flush packet or empty, which git sends to settle authentication.
 * At most `maxRefUpdates` commands. Push options are read and dropped: they are data that nothing here acts on.
 * Throws `protocol_malformed`, `limit_passed`, and `forbidden` for signed pushes.
 */
export async function readPushHead(reader: PktReader, limits: Pick<Limits, 'maxRefUpdates'>): Promise<PushHead | null> {
  const commands: RefCommand[] = []
  let capabilities = new Set<string>()
  let shallow = false
  for (;;) {
    const pkt = await reader.read()
    if (pkt === null && commands.length === 0 && !shallow) return null
    if (pkt === null) throw errors.protocolMalformed('the push ends before its flush packet')
    if (pkt.kind === 'flush') break
    if (pkt.kind !== 'data') throw errors.protocolMalformed('a push holds only lines and flush packets')
    const payload = pkt.payload
    const nul = payload.indexOf(0)
    if (commands.length === 0 && nul !== -1)
      capabilities = new Set(
        lineOf(payload.subarray(nul + 1))
          .split(' ')
          .filter(Boolean),
      )
    const line = lineOf(nul === -1 ? payload : payload.subarray(0, nul))
    if (line.startsWith('push-cert')) throw errors.forbidden('signed pushes are not taken; push without --signed')
    if (line.startsWith('shallow ')) shallow = parseShallow(line)
    else commands.push(parseCommand(line))
    if (commands.length > limits.maxRefUpdates)
      throw errors.limitPassed(`a push may update at most ${limits.maxRefUpdates} refs; push them in parts`)
  }
  if (commands.length === 0) return null
  if (capabilities.has('push-options')) await skipOptions(reader)
  return { commands, capabilities: parseCapabilities(capabilities), shallow }
}

/** What became of one command; null is ok. */
export interface CommandResult {
  readonly ref: string
  readonly reason: string | null
}

/**
 * The report as one finished body, wrapped as the client asked; `unpack` is `ok` or git's sentence. `remarks` are lines that the client shows after
 * `remote:`, where it takes a sideband.
 */
export function pushReport(
  unpack: string,
  results: readonly CommandResult[],
  sideband: Sideband,
  remarks: readonly string[] = [],
): Buffer {
  const lines = [`unpack ${safeText(unpack)}\n`]
  for (const { ref, reason } of results)
    lines.push(reason === null ? `ok ${safeName(ref)}\n` : `ng ${safeName(ref)} ${safeText(reason)}\n`)
  const report = Buffer.concat([pktLines(lines), FLUSH_PKT])
  if (sideband === null) return report
  const said = Buffer.from(remarks.map((line) => `${line.replace(CONTROL, '?')}\n`).join(''), 'utf8')
  const remarked = said.length === 0 ? said : wrapBand(2, said, sideband)
  return Buffer.concat([remarked, wrapBand(1, report, sideband), FLUSH_PKT])
}

function parseCommand(line: string): RefCommand {
  const [old, next] = [line.slice(0, 40), line.slice(41, 81)]
  if (!isOid(old) || !isOid(next) || line[40] !== ' ' || line[81] !== ' ' || line.length === 82)
    throw errors.protocolMalformed('a command is not "old SP new SP ref"')
  return { old, new: next as Oid, ref: line.slice(82) }
}

function parseShallow(line: string): true {
  if (!isOid(line.slice(8))) throw errors.protocolMalformed('a shallow line names no commit')
  return true
}

function parseCapabilities(sent: ReadonlySet<string>): PushCapabilities {
  const sideband = sent.has('side-band-64k') ? 64 : sent.has('side-band') ? 1 : null
  return {
    reportStatus: sent.has('report-status') || sent.has('report-status-v2'),
    sideband,
    atomic: sent.has('atomic'),
  }
}

async function skipOptions(reader: PktReader): Promise<void> {
  for (let pkt = await reader.read(); pkt?.kind !== 'flush'; pkt = await reader.read())
    if (pkt?.kind !== 'data') throw errors.protocolMalformed('the push options end without a flush packet')
}

const CONTROL = /[\x00-\x1f\x7f]/g

/** A name as it may be echoed: the bytes that could forge a line of the report are replaced. */
function safeName(ref: string): string {
  return ref.replace(/[\x00-\x20\x7f]/g, '?').slice(0, 300)
}

/** One line of at most 200 bytes. */
function safeText(text: string): string {
  return Buffer.from(text.replace(/[\x00-\x1f\x7f]+/g, ' ').trim(), 'utf8')
    .subarray(0, 200)
    .toString('latin1')
}
