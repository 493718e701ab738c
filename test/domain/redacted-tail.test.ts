/** The end of a command's output: secrets are masked wherever the streams were cut, and before the end is cut off. */
import t from 'tap'
import { createRedactor } from '../../domain/redact.ts'
import { createRedactedTail } from '../../domain/redacted-tail.ts'

const SECRET = 'sk-live/Q7+zz"4f_9Kx&81 tail'
const OWN = `hgs_${'Ab3'.repeat(14)}`
const redactor = createRedactor([SECRET, 'w'.repeat(90)])
const none = Buffer.alloc(0)

function tailOf(chunks: readonly (readonly [string, string])[], maxBytes = 200): string {
  const tail = createRedactedTail(redactor, maxBytes)
  for (const [out, err] of chunks) tail.push({ out: Buffer.from(out), err: Buffer.from(err) })
  return tail.end()
}

t.test('a secret in two reads is masked, whatever the other stream says between', async (t) => {
  for (const secret of [SECRET, OWN])
    for (let cut = 0; cut <= secret.length; cut++) {
      const [head, rest] = [secret.slice(0, cut), secret.slice(cut)]
      const said = tailOf([
        ['one\n', `key ${head}`],
        ['two\n', `${rest} end\n`],
      ])
      t.equal(said, 'one\ntwo\nkey [redacted] end\n')
      t.equal(
        tailOf([
          [`key ${head}`, ''],
          [rest, 'two\n'],
          ['', ''],
        ]),
        'two\nkey [redacted]',
      )
    }
})

t.test('the end is cut after it was masked', async (t) => {
  for (let more = 150; more <= 200; more++) {
    const said = tailOf([[`key ${OWN} ${'.'.repeat(more)}\n`, '']])
    t.notMatch(said, /Ab3/)
    t.ok(Buffer.byteLength(said) <= 200)
  }
  const long = '.'.repeat(70_000)
  t.notMatch(
    tailOf([
      [`${OWN}${OWN}`.repeat(2_000), ''],
      [`x\n`, ''],
    ]),
    /Ab3/,
    'a line longer than what is held',
  )
  t.equal(
    tailOf([
      [long, ''],
      [long, ''],
      ['end\n', ''],
    ]),
    `${'.'.repeat(196)}end\n`,
  )
})

t.test('base64 that was broken into lines is masked over reads as well', async (t) => {
  const lines = Buffer.from('w'.repeat(90)).toString('base64').replace(/.{76}/g, '$&\n')
  const [first = '', second = ''] = lines.split('\n')
  t.notMatch(
    tailOf([
      [`a\n${first}\n`, 'b\n'],
      [`${second}\nc\n`, ''],
    ]),
    /d3d3d3d3/,
  )
})

t.test('characters in two reads stay whole, and nothing is lost', async (t) => {
  const tail = createRedactedTail(redactor, 200)
  const bytes = Buffer.from('é😀\r50 %\rdone')
  for (const byte of bytes) tail.push({ out: Buffer.from([byte]), err: none })
  t.equal(tail.end(), 'é😀\r50 %\rdone')
  t.equal(createRedactedTail(redactor, 200).end(), '')
})
