import { execFileSync } from 'node:child_process'
import t from 'tap'
import { HangarError } from '../../domain/errors.ts'
import { DEFAULT_LIMITS } from '../../domain/limits.ts'
import type { Oid, RefName } from '../../domain/names.ts'
import { PktReader, pktLine, pktLines, wrapBand } from '../../gateway/wire/pkt-line.ts'
import { pushReport, readPushHead } from '../../gateway/wire/receive-pack.ts'
import { lsRefsAnswer, readUploadRequest, uploadPackAdvertisement } from '../../gateway/wire/upload-pack.ts'

const A = 'a'.repeat(40)
const B = 'b'.repeat(40)

/** Feeds the bytes in pieces of a given size. */
async function* pieces(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
}
const reader = (bytes: string | Buffer, size = 65_536, max = 1_000_000) =>
  new PktReader(pieces(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes, size), max)
const codeOf = async (work: Promise<unknown>) =>
  work.then(
    () => 'ok',
    (error: unknown) => (error instanceof HangarError ? error.code : String(error)),
  )

t.test('packet lines are read however the bytes are cut', async (t) => {
  const bytes = Buffer.concat([
    pktLine('one\n'),
    Buffer.from('0000'),
    pktLine('two'),
    Buffer.from('00010002'),
    Buffer.from('PACKrest'),
  ])
  for (const size of [1, 2, 3, 7, 100]) {
    const from = reader(bytes, size)
    const kinds: string[] = []
    for (let left = 5; left > 0; left--) kinds.push((await from.read())?.kind ?? 'end')
    t.strictSame(kinds, ['data', 'flush', 'data', 'delim', 'response-end'])
    const rest: Buffer[] = []
    for await (const chunk of from.rest()) rest.push(chunk)
    t.equal(Buffer.concat(rest).toString(), 'PACKrest')
  }
})

t.test('what is no packet line is refused at once', async (t) => {
  for (const bad of ['zzzz', '0003', '-001', '00', '0008ab', '0x10aaaaaaaaaaaaaaaa'])
    t.equal(await codeOf(reader(bad).read()), 'protocol_malformed', bad)
  t.equal(await codeOf(reader('0000').read()), 'ok')
  const many = reader(pktLines(Array.from({ length: 100 }, () => 'x'.repeat(96))), 1000, 2_000)
  const readAll = async () => {
    while ((await many.read()) !== null);
  }
  t.equal(await codeOf(readAll()), 'limit_passed')
})

t.test('bands hold at most what their sideband allows, counted in bytes', async (t) => {
  t.equal(wrapBand(2, Buffer.alloc(65_515), 64).length, 65_520)
  t.equal(wrapBand(2, Buffer.alloc(65_516), 64).length, 65_520 + 6)
  t.equal(wrapBand(1, Buffer.alloc(995), 1).length, 1_000)
  t.equal(wrapBand(1, Buffer.from('é'), 1).toString('latin1'), '0007\x01Ã©')
})

t.test('the head of a push: commands, capabilities, shallow lines, options', async (t) => {
  const head = (...lines: string[]) => `${pktLines(lines).toString('latin1')}0000`
  const read = (bytes: string, size?: number) => readPushHead(reader(bytes, size), DEFAULT_LIMITS)
  t.equal(await read('0000'), null, 'a lone flush')
  t.equal(await read(''), null, 'nothing')
  const first = `${A} ${B} refs/heads/\xff\xfe\0 report-status side-band-64k atomic push-options agent=git/2`
  const options = `${pktLines(['a\nb;c', 'x'.repeat(2_000)]).toString('latin1')}0000`
  const from = reader(`${head(`shallow ${A}`, first, `${A} ${B} refs/heads/b`)}${options}PACK`, 5)
  t.strictSame(await readPushHead(from, DEFAULT_LIMITS), {
    commands: [
      { old: A, new: B, ref: 'refs/heads/\xff\xfe' },
      { old: A, new: B, ref: 'refs/heads/b' },
    ],
    capabilities: { reportStatus: true, sideband: 64, atomic: true },
    shallow: true,
  })
  const rest: Buffer[] = []
  for await (const chunk of from.rest()) rest.push(chunk)
  t.equal(Buffer.concat(rest).toString(), 'PACK')
  const refused: readonly [string, string, string][] = [
    ['a signed push', head('push-cert\0report-status'), 'forbidden'],
    ['a cut push', head(`${A} ${B} refs/heads/b`).slice(0, -4), 'protocol_malformed'],
    ['a short id', head(`${A.slice(1)} ${B} refs/heads/b`), 'protocol_malformed'],
    ['no name', head(`${A} ${B} `), 'protocol_malformed'],
    ['a delimiter', '0001', 'protocol_malformed'],
    ['too many', head(...Array.from({ length: 5_001 }, (_, at) => `${A} ${B} refs/heads/${at}`)), 'limit_passed'],
  ]
  for (const [name, bytes, code] of refused) t.equal(await codeOf(read(bytes)), code, name)
})

t.test('a report cannot be forged by a name or a reason', async (t) => {
  const report = pushReport(
    'ok',
    [{ ref: 'refs/heads/a\nok refs/heads/b', reason: `x\n${'y'.repeat(500)}` }],
    null,
  ).toString('latin1')
  t.equal(report.split('\n').length, 3)
  t.match(report, /ng refs\/heads\/a\?ok\?refs\/heads\/b x y{198}\n0000$/)
})

t.test('requests to upload-pack are read whole, and only in their grammar', async (t) => {
  const v2 = (...args: string[]) =>
    `${pktLines(['command=fetch', 'agent=x', 'object-format=sha1']).toString('latin1')}0001${pktLines(args).toString('latin1')}0000`
  const fetch = await readUploadRequest(reader(v2('thin-pack', `want ${A}\n`, `shallow ${B}`, 'deepen 1', 'done')), 2)
  if (fetch.kind !== 'fetch') throw new Error('no fetch')
  t.strictSame([fetch.wants, fetch.shallows], [[A], [B]])
  t.match(fetch.write(new Set()).toString(), `shallow ${B}\n`)
  t.notMatch(fetch.write(new Set([B as Oid])).toString(), /shallow/)
  const v0 = await readUploadRequest(
    reader(
      `${pktLines([`want ${A} multi_ack agent=x\n`, `want ${B}\n`]).toString('latin1')}0000${pktLines([`have ${A}\n`, 'done\n']).toString('latin1')}`,
    ),
    0,
  )
  if (v0.kind !== 'fetch') throw new Error('no fetch')
  t.strictSame(v0.wants, [A, B])
  t.equal(v0.write(new Set()).subarray(-9).toString(), '0009done\n')
  t.equal((await readUploadRequest(reader('0000'), 0)).kind, 'nothing')
  t.equal((await readUploadRequest(reader('0000'), 2)).kind, 'nothing')
  const refused: readonly [string, 0 | 2, string][] = [
    ['want-ref', 2, v2('want-ref refs/hangar/x')],
    ['an unknown argument', 2, v2('packfile-uris https')],
    ['a want that is no id', 2, v2('want refs/heads/main')],
    ['an unknown command', 2, `${pktLines(['command=object-info']).toString()}0000`],
    ['another hash', 2, `${pktLines(['command=fetch', 'object-format=sha256']).toString()}0000`],
    ['v2 spoken under v0', 0, v2(`want ${A}`)],
    ['have before want', 0, `${pktLines([`have ${A}`]).toString()}0000`],
  ]
  for (const [name, version, bytes] of refused)
    t.equal(await codeOf(readUploadRequest(reader(bytes), version)), 'protocol_malformed', name)
})

t.test("advertisements are git's own, but for the agent and what wants may be", async (t) => {
  const dir = t.testdir()
  const git = (...args: string[]) =>
    execFileSync('git', args, {
      cwd: dir,
      encoding: 'latin1',
      env: {
        PATH: process.env['PATH'],
        GIT_CONFIG_GLOBAL: '/dev/null',
        GIT_AUTHOR_NAME: 'a',
        GIT_AUTHOR_EMAIL: 'a',
        GIT_COMMITTER_NAME: 'a',
        GIT_COMMITTER_EMAIL: 'a',
      },
    })
  git('init', '-q', '-b', 'main')
  git('commit', '-q', '--allow-empty', '-m', 'x')
  git('tag', '-am', 'x', 'v1')
  git('config', 'uploadpack.allowFilter', 'true')
  git('config', 'uploadpack.allowTipSHA1InWant', 'true')
  git('config', 'uploadpack.allowReachableSHA1InWant', 'true')
  const [main, tag] = [git('rev-parse', 'main').trim() as Oid, git('rev-parse', 'v1').trim() as Oid]
  const refs = [
    { name: 'refs/heads/main' as RefName, oid: main, peeled: null },
    { name: 'refs/tags/v1' as RefName, oid: tag, peeled: main },
  ]
  const head = { target: 'refs/heads/main' as RefName, oid: main }
  const ours = uploadPackAdvertisement(0, head, refs).toString('latin1')
  const theirs = git('upload-pack', '--http-backend-info-refs', '--stateless-rpc', '.')
  // The first line's length differs with the agent.
  const comparable = (text: string) => text.replace(/agent=\S+/, '').replace(/^.*?([0-9a-f]{40} HEAD)/s, '$1')
  t.equal(comparable(ours), comparable(theirs))
  const command = { symrefs: true, peel: true, unborn: true, prefixes: [] }
  t.equal(
    lsRefsAnswer(command, head, refs)
      .toString('latin1')
      .replace(/^....|\n..../g, '\n'),
    `\n${main} HEAD symref-target:refs/heads/main\n${main} refs/heads/main\n${tag} refs/tags/v1 peeled:${main}\n`,
  )
  t.match(lsRefsAnswer(command, { ...head, oid: null }, []).toString(), 'unborn HEAD symref-target:refs/heads/main')
})
