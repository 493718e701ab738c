/** Hostile requests, each a function of the seed and its number alone: recorded ones, bent in their lines, bytes, packs, framing and headers. */
import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import { ZERO_OID } from '../../domain/names.ts'
import type { Recorded } from './fuzz-recording.ts'
import type { Ready } from './fuzz-server.ts'
import { type PackObject, unsignedPackOf } from './packs.ts'

export interface FuzzRequest {
  /** Who sends it. */
  readonly secret: string
  /** The whole of it as bytes, for what no HTTP client would send; null: `method` and so on, by a client. */
  readonly raw: Buffer | null
  readonly method: string
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: Buffer
  /** What was done to it. */
  readonly how: readonly string[]
}

/** A generator of numbers. Source: mulberry32. */
export class Dice {
  #state: number

  constructor(seed: string) {
    this.#state = createHash('sha256').update(seed).digest().readUInt32LE(0)
  }

  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296
  }

  below(count: number): number {
    return Math.floor(this.next() * count)
  }

  chance(of: number): boolean {
    return this.next() < of
  }

  pick<T>(from: readonly T[]): T {
    const found = from[this.below(from.length)]
    if (found === undefined) throw new Error('nothing to pick from')
    return found
  }

  bytes(count: number): Buffer {
    return Buffer.from(Array.from({ length: count }, () => this.below(256)))
  }
}

export interface Material {
  readonly ready: Ready
  readonly recorded: readonly Recorded[]
}

const REFS = [
  'refs/heads/hangar/second',
  'refs/hangar/sessions/second/checkpoint',
  'refs/heads/main',
  'refs/heads/topic',
  'refs/heads/hangar/csv-fix',
  'refs/heads/hangar/second/x',
  'refs/heads/hangar/secondevil',
  'refs/heads/hangar',
  'refs/hangar/sessions/csv-fix/checkpoint',
  'refs/hangar/sessions/csv-fix/log',
  'refs/hangar/sessions/csv-fix/sealed',
  'refs/hangar/sessions/second/log',
  'refs/hangar/sessions/secondevil/checkpoint',
  'refs/hangar/incoming/mine',
  'refs/hangar/incoming/../../heads/main',
  'refs/hangar/jobs/job-1',
  'refs/notes/hangar',
  'refs/upstream/heads/main',
  'refs/tags/v1',
  'refs/tags/v9',
  'HEAD',
  'refs/heads/../heads/main',
  'refs/heads/main.lock',
  'refs/heads/hangar/second\n',
  'refs/heads/hangar/second\nok refs/heads/main',
  'refs/heads/hangar/second\0 report-status',
  'refs/heads/hangar/second ',
  'refs/heads//hangar/second',
  './refs/heads/hangar/second',
  'refs/heads/hangar/second/',
  'refs/heads/hangar/\xc3\xa9\xff',
  'refs/heads/@{-1}',
  'refs/heads/a..b',
  '--upload-pack=id',
  '-x',
  '',
  `refs/heads/${'n'.repeat(400)}`,
  'refs\\heads\\main',
  'REFS/HEADS/MAIN',
] as const

const PATHS = [
  '/git/acme/lib.git/',
  '/git/acme/closed.git/',
  '/git/acme/none.git/',
  '/git/acme/../acme/closed.git/',
  '/git/acme/app.git/../closed.git/',
  '/git/acme/%63losed.git/',
  '/git/ACME/APP.git/',
  '/git//acme/app.git/',
  '/git/acme/app.git//',
  '/git/acme/app.git/objects/',
  '/git/-x/-y.git/',
  '/git/acme\\closed.git/',
  '/git/acme/app.git;x/',
  '/git/hangar.git/',
  '//git/acme/app.git/',
] as const

/** Request number `at`. */
export function fuzzRequest(material: Material, seed: string, at: number): FuzzRequest {
  const dice = new Dice(`${seed} ${at}`)
  const kind = dice.pick(['receive-pack', 'receive-pack', 'receive-pack', 'upload-pack', 'upload-pack', 'refs'])
  const from = dice.pick(material.recorded.filter(({ path }) => path.replace(/\?.*/, '').endsWith(kind)))
  const how: string[] = [`${from.method} ${from.path}`]
  let { body, path } = from
  const headers: Record<string, string> = { ...from.headers }
  const secret = dice.pick([...Array<string>(12).fill('hgs_two'), 'hgt_read', 'hgt_sessions', 'hgt_other', 'nobody'])
  if (headers['content-encoding'] === 'gzip') delete headers['content-encoding']
  const bend = (what: string, of: number, work: () => void) => {
    if (!dice.chance(of)) return
    how.push(what)
    work()
  }
  const isPush = path.endsWith('git-receive-pack')
  if (isPush) bend('create', 0.7, () => (body = withZeroOlds(body)))
  if (body.length > 0) {
    bend('lines', 0.6, () => (body = bendLines(body, { dice, material, isPush })))
    if (isPush) bend('pack', 0.5, () => (body = bendPack(body, dice, material)))
    bend('bytes', 0.15, () => (body = bendBytes(body, dice)))
    bend('splice', 0.05, () => {
      const other = dice.pick(material.recorded).body
      body = Buffer.concat([body.subarray(0, dice.below(body.length)), other.subarray(dice.below(other.length + 1))])
    })
    bend('version', 0.1, () => (headers['git-protocol'] = dice.pick(VERSIONS)))
    bend('type', 0.03, () => (headers['content-type'] = dice.pick(TYPES)))
    bend('gzip', 0.15, () => (body = bendGzip(body, headers, dice)))
    bend('expect', 0.03, () => (headers['expect'] = '100-continue'))
  }
  bend('repo', 0.06, () => (path = path.replace('/git/acme/app.git/', dice.pick(PATHS))))
  bend('service', 0.02, () => (path = path.replace(/upload-pack|receive-pack/, dice.pick(SERVICES))))
  bend('header', 0.03, () => (headers[dice.pick(HEADERS)] = dice.pick(['', '0', '-1', 'x'.repeat(2_000), '1;2'])))
  const method = dice.chance(0.01) ? dice.pick(['GET', 'POST', 'PUT', 'HEAD', 'OPTIONS']) : from.method
  const request = { secret, raw: null, method, path, headers, body, how }
  return dice.chance(0.12) ? asRaw(request, dice) : request
}

const VERSIONS = ['version=0', 'version=1', 'version=2', 'version=3', 'version=2:version=0', '', 'x', 'version=2\tx']
const TYPES = ['application/x-git-upload-pack-request', 'application/x-git-receive-pack-request', 'text/plain', '']
const SERVICES = ['upload-pack', 'receive-pack', 'upload-archive', 'upload-pack?x', 'receive-pack/', '']
const HEADERS = ['range', 'if-none-match', 'x-http-method-override', 'content-range', 'authorization2', 'te', 'via']

/** `old` of every command of a push made zero, so that it creates. */
function withZeroOlds(body: Buffer): Buffer {
  const text = body.toString('latin1')
  const end = text.indexOf('0000PACK')
  const head = end === -1 ? text : text.slice(0, end)
  const zeroed = head.replace(/([0-9a-f]{4})[0-9a-f]{40} ([0-9a-f]{40} refs\/)/g, `$1${ZERO_OID} $2`)
  return Buffer.from(zeroed + text.slice(head.length), 'latin1')
}

type Line = { readonly kind: 'line'; readonly text: string } | { readonly kind: 'mark'; readonly text: string }

/** The packet lines at the front, and what follows them. */
function split(body: Buffer): { readonly lines: Line[]; readonly rest: Buffer } {
  const lines: Line[] = []
  let at = 0
  while (at + 4 <= body.length && body.toString('latin1', at, at + 4) !== 'PACK') {
    const length = Number.parseInt(body.toString('latin1', at, at + 4), 16)
    if (Number.isNaN(length) || at + length > body.length) break
    if (length < 4) lines.push({ kind: 'mark', text: body.toString('latin1', at, at + 4) })
    else lines.push({ kind: 'line', text: body.toString('latin1', at + 4, at + length) })
    at += Math.max(4, length)
  }
  return { lines, rest: body.subarray(at) }
}

interface Bender {
  readonly dice: Dice
  readonly material: Material
  readonly isPush: boolean
}

function bendLines(body: Buffer, bender: Bender): Buffer {
  const { dice } = bender
  const { lines, rest } = split(body)
  const want = lines.findIndex(({ text }) => text.startsWith('want '))
  if (want !== -1 && dice.chance(0.5)) {
    const more = Array.from({ length: 1 + dice.below(3) }, () => ({ kind: 'line' as const, text: plausible(bender) }))
    lines.splice(want + 1, 0, ...more)
    return Buffer.concat([Buffer.from(lines.map(written).join(''), 'latin1'), rest])
  }
  for (let times = 1 + dice.below(4); times > 0 && lines.length > 0; times--) {
    const at = dice.below(lines.length)
    const line = lines[at] as Line
    const swap = (text: string) => lines.splice(at, 1, { kind: 'line', text })
    switch (dice.below(9)) {
      case 0:
        lines.splice(at, 1)
        break
      case 1:
        lines.splice(at, 0, line)
        break
      case 2:
        lines.splice(dice.below(lines.length), 0, ...lines.splice(at, 1))
        break
      case 3:
      case 4:
        swap(line.text.replace(/[0-9a-f]{40}/g, (oid) => (dice.chance(0.7) ? someOid(bender) : oid)))
        break
      case 5:
        swap(line.text.replace(/(refs\/[^\0\n ]*|HEAD)/, dice.pick(REFS)))
        break
      case 6:
      case 7:
        lines.splice(at, 0, { kind: 'line', text: someLine(bender) })
        break
      default:
        lines.splice(at, 0, { kind: 'mark', text: dice.pick(['0000', '0001', '0002', '0003', '0004']) })
    }
  }
  const wrong = dice.chance(0.12) ? dice.below(lines.length + 1) : -1
  const texts = lines.map((line, at) =>
    at === wrong && line.kind === 'line' ? dice.pick(LENGTHS) + line.text : written(line),
  )
  return Buffer.concat([Buffer.from(texts.join(''), 'latin1'), rest])
}

function written({ kind, text }: Line): string {
  return kind === 'mark' ? text : (text.length + 4).toString(16).padStart(4, '0') + text
}

/** A line that a fetch may well hold, about what is seen and what is not. */
function plausible({ dice, material: { ready } }: Bender): string {
  const oid = dice.pick([dice.pick(ready.visible), dice.pick(ready.visible), dice.pick(ready.hidden)])
  return dice.pick([
    `want ${oid}\n`,
    `have ${oid}\n`,
    `have ${dice.pick(ready.hidden)}\n`,
    `shallow ${oid}\n`,
    `deepen ${1 + dice.below(5)}\n`,
    'deepen-since 1\n',
    `deepen-not ${dice.pick(['v1', 'topic', 'hangar/csv-fix', 'refs/heads/hangar/csv-fix'])}\n`,
    `filter ${dice.pick(['blob:none', 'tree:1', 'tree:0', 'blob:limit=300', 'object:type=blob', 'combine:tree:2+blob:none'])}\n`,
    'thin-pack\n',
    'include-tag\n',
  ])
}

const LENGTHS = [
  '0001',
  '0003',
  '0005',
  'ffff',
  'fff0',
  'zzzz',
  '-001',
  ' 0a0',
  '0x10',
  '00',
  'FFFF',
  '\0\0\0\0',
  '0010',
]

function someOid({ dice, material: { ready } }: Bender): string {
  return dice.pick([
    dice.pick(ready.hidden),
    dice.pick(ready.hidden),
    dice.pick(ready.visible),
    dice.pick(ready.visible),
    dice.pick(ready.visible),
    ready.main,
    ZERO_OID,
    dice.bytes(20).toString('hex'),
    ready.main.toUpperCase(),
    ready.main.slice(0, 39),
    `${ready.main}0`,
    dice.pick(ready.hidden).slice(0, 10),
  ])
}

function someLine(bender: Bender): string {
  const { dice, isPush } = bender
  const oid = someOid(bender)
  const common = ['\n', '', 'x'.repeat(dice.below(3_000)), `shallow ${oid}\n`, 'agent=git/2.39.5\n']
  if (isPush)
    return dice.pick([
      ...common,
      `${someOid(bender)} ${oid} ${dice.pick(REFS)}\n`,
      `${someOid(bender)} ${oid} ${dice.pick(REFS)}\0report-status side-band-64k atomic push-options\n`,
      `${ZERO_OID} ${oid} ${dice.pick(REFS)}`,
      `${ZERO_OID} ${ZERO_OID} ${dice.pick(REFS)}`,
      `${bender.material.ready.main} ${ZERO_OID} refs/heads/main`,
      'push-cert\0report-status\n',
      'certificate version 0.1\n',
    ])
  return dice.pick([
    ...common,
    `want ${oid}\n`,
    `want ${oid} thin-pack side-band-64k ofs-delta allow-tip-sha1-in-want filter\n`,
    `have ${oid}\n`,
    'done\n',
    'deepen 1\n',
    'deepen 2147483647\n',
    'deepen -1\n',
    'deepen-since 1\n',
    'deepen-relative\n',
    `deepen-not ${dice.pick(REFS)}\n`,
    'filter blob:none\n',
    'filter tree:0\n',
    `filter sparse:oid=${oid}\n`,
    `filter combine:blob:none+sparse:oid=${oid}\n`,
    `want-ref ${dice.pick(REFS)}\n`,
    'command=fetch\n',
    'command=ls-refs\n',
    'command=object-info\n',
    `oid ${oid}\n`,
    'size\n',
    `ref-prefix ${dice.pick(REFS)}\n`,
    'ref-prefix refs/hangar/\n',
    'unborn\n',
    'symrefs\n',
    'peel\n',
    'object-format=sha256\n',
    'server-option=x\n',
    'packfile-uris https\n',
    'sideband-all\n',
    'wait-for-done\n',
    'include-tag\n',
    'thin-pack\n',
  ])
}

/** The pack of a push changed where it is, or replaced by one made by hand; often with its checksum made right again. */
function bendPack(body: Buffer, dice: Dice, { ready }: Material): Buffer {
  const at = body.indexOf('PACK')
  if (at === -1) return body
  const head = body.subarray(0, at)
  if (dice.chance(0.5)) {
    const made = madePush(dice, ready)
    const tip = dice.chance(0.8) ? made.tip : dice.pick(ready.hidden)
    const text = head.toString('latin1').replace(/([0-9a-f]{40} )[0-9a-f]{40}( refs\/)/g, `$1${tip}$2`)
    return Buffer.concat([Buffer.from(text, 'latin1'), made.pack])
  }
  const pack = Buffer.from(body.subarray(at, body.length - 20))
  const put = (value: number) => pack.writeUInt32BE(value, dice.pick([4, 8]))
  if (dice.chance(0.4)) put(dice.pick([0, 1, 2, 3, 4, 99, 100, 101, 0x7fffffff, 0xffffffff]))
  else for (let times = 1 + dice.below(3); times > 0; times--) pack[dice.below(pack.length)] = dice.below(256)
  return Buffer.concat([head, signed(dice.chance(0.2) ? pack.subarray(0, dice.below(pack.length)) : pack, dice)])
}

function signed(pack: Buffer, dice: Dice): Buffer {
  const sum = createHash('sha1').update(pack).digest()
  return Buffer.concat([
    pack,
    dice.chance(0.85) ? sum : dice.bytes(20),
    dice.chance(0.1) ? dice.bytes(30) : pack.subarray(0, 0),
  ])
}

/** A commit on what is hidden, or with what is hidden in it, or with what no tree may hold. */
function madePush(dice: Dice, { main, hidden }: Ready): { readonly tip: string; readonly pack: Buffer } {
  const objects: PackObject[] = []
  const add = (type: number, name: string, bytes: Buffer) => {
    objects.push({ type, bytes })
    return createHash('sha1').update(`${name} ${bytes.length}\0`).update(bytes).digest('hex')
  }
  const blob = add(3, 'blob', dice.bytes(dice.below(200)))
  const [mode, name] = [dice.pick(['100644', '100755', '120000', '40000', '160000', '0', '']), dice.pick(ENTRIES)]
  const entry = dice.chance(0.5) ? blob : dice.pick(hidden)
  const tree = add(2, 'tree', Buffer.concat([Buffer.from(`${mode} ${name}\0`, 'latin1'), Buffer.from(entry, 'hex')]))
  const parents = [main, dice.pick(hidden), dice.bytes(20).toString('hex')].filter(() => dice.chance(0.4))
  const person = dice.pick(['a <a@b> 1 +0000', 'a <a@b> 99999999999999999999 +0000', 'a', 'a <a@b\n> 1 +0000'])
  const commit = `tree ${dice.chance(0.7) ? tree : dice.pick(hidden)}\n${parents.map((oid) => `parent ${oid}\n`).join('')}author ${person}\ncommitter ${person}\n\nx\n`
  let tip = add(1, 'commit', Buffer.from(commit))
  if (dice.chance(0.1))
    tip = add(4, 'tag', Buffer.from(`object ${dice.pick(hidden)}\ntype commit\ntag x\ntagger a <a@b> 1 +0000\n\nx\n`))
  if (dice.chance(0.3)) {
    const delta = Buffer.from([dice.below(256), dice.below(128), 0x90, dice.below(256), dice.below(256)])
    objects.push({ type: 7, base: dice.pick(hidden), bytes: dice.chance(0.5) ? delta : dice.bytes(dice.below(40)) })
  }
  if (dice.chance(0.05)) objects.push({ type: dice.pick([0, 5, 6]), bytes: dice.bytes(10) })
  if (dice.chance(0.1)) objects.splice(dice.below(objects.length), 1)
  return { tip, pack: signed(unsignedPackOf(objects), dice) }
}

const ENTRIES = [
  'x',
  '.git',
  '.GIT',
  '.gitmodules',
  '..',
  '.',
  '',
  'a/b',
  'git~1',
  '.g\xe2\x80\x8cit',
  'x\ny',
  '.gitattributes',
]

function bendBytes(body: Buffer, dice: Dice): Buffer {
  const bent = Buffer.from(body)
  const at = dice.below(bent.length)
  switch (dice.below(5)) {
    case 0:
      return bent.subarray(0, at)
    case 1:
      return Buffer.concat([bent.subarray(0, at), dice.bytes(1 + dice.below(40)), bent.subarray(at)])
    case 2:
      return Buffer.concat([bent, bent.subarray(at)])
    case 3:
      return Buffer.concat([bent.subarray(0, at), bent.subarray(Math.min(bent.length, at + 1 + dice.below(20)))])
    default:
      for (let times = 1 + dice.below(8); times > 0; times--) {
        const place = dice.below(bent.length)
        bent[place] = (bent[place] ?? 0) ^ (1 << dice.below(8))
      }
      return bent
  }
}

function bendGzip(body: Buffer, headers: Record<string, string>, dice: Dice): Buffer {
  headers['content-encoding'] = dice.pick([
    'gzip',
    'gzip',
    'gzip',
    'x-gzip',
    'deflate',
    'constructor',
    'gzip, gzip',
    '',
  ])
  const packed = gzipSync(body)
  switch (dice.below(8)) {
    case 0:
      return body
    case 1:
      return packed.subarray(0, dice.below(packed.length))
    case 2:
      return Buffer.concat([packed, dice.bytes(20)])
    case 3:
      return Buffer.concat([gzipSync(body.subarray(0, 7)), gzipSync(body.subarray(7))])
    case 4:
      return gzipSync(packed)
    case 5:
      return gzipSync(Buffer.concat([body, Buffer.alloc(200_000, dice.pick(['\0', '0', '0000', '0004', 'a']))]))
    case 6:
      return bendBytes(packed, dice)
    default:
      return packed
  }
}

/** As bytes of HTTP, with framing that lies. */
function asRaw(request: FuzzRequest, dice: Dice): FuzzRequest {
  const { body, method, path, secret } = request
  const authorization = dice.pick([
    ...Array<string>(6).fill(`Basic ${Buffer.from(`x:${secret}`).toString('base64')}`),
    `Bearer ${secret}`,
    'Basic ====',
    `Basic ${Buffer.from(secret).toString('base64')}`,
    `Basic ${Buffer.from(`x:${secret}\0hgt_admin`).toString('base64')}`,
    'Negotiate x',
  ])
  const length = body.length
  const chunk = (size: string, bytes: Buffer) => Buffer.concat([Buffer.from(`${size}\r\n`), bytes, Buffer.from('\r\n')])
  const half = dice.below(length + 1)
  const chunks = [
    chunk(half.toString(16), body.subarray(0, half)),
    chunk((length - half).toString(16), body.subarray(half)),
  ]
  const end = Buffer.from('0\r\n\r\n')
  const [framing, sent] = dice.pick<readonly [string, Buffer]>([
    [`Content-Length: ${length}`, body],
    [`Content-Length: ${length + 1 + dice.below(100)}`, body],
    [`Content-Length: ${half}`, body],
    [`Content-Length: ${length}\r\nContent-Length: ${half}`, body],
    [`Content-Length: ${length}\r\nTransfer-Encoding: chunked`, Buffer.concat([...chunks, end])],
    ['Transfer-Encoding: chunked', Buffer.concat([...chunks.filter((one) => one.length > 5), end])],
    ['Transfer-Encoding: chunked', Buffer.concat(chunks)],
    [
      'Transfer-Encoding: chunked',
      Buffer.concat([chunk(`${length.toString(16)};x=y`, body), Buffer.from('0\r\nX: y\r\n\r\n')]),
    ],
    ['Transfer-Encoding: chunked', Buffer.concat([chunk(dice.pick(['-1', 'zz', 'ffffffffffff', '0x4']), body), end])],
    ['Transfer-Encoding: gzip, chunked', Buffer.concat([...chunks, end])],
    ['Transfer-Encoding: identity', body],
    ['Content-Length: -1', body],
    ['X: y', body],
  ])
  const lines = [
    `${method} ${path} HTTP/${dice.pick(['1.1', '1.1', '1.1', '1.0', '2.0'])}`,
    'Host: x',
    `Authorization: ${authorization}`,
    ...Object.entries(request.headers).map(([name, value]) => `${name}: ${value.replace(/[\r\n]/g, '')}`),
    framing,
    ...(dice.chance(0.1) ? [dice.pick(['X', ': y', 'X\0: y', ' folded', 'Connection: upgrade\r\nUpgrade: h2c'])] : []),
  ]
  const raw = Buffer.concat([Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1'), sent])
  return { ...request, raw, how: [...request.how, 'raw', framing] }
}
