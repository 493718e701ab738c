/** Secrets are masked in every form that a text may give them, and nothing else is touched. */
import { randomBytes } from 'node:crypto'
import t from 'tap'
import { createRedactor } from '../../domain/redact.ts'

const SECRET = 'p4ss/w0rd+"with" spaces&more'
const PEM =
  '-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n-----END KEY-----\n'
const OWN = `hgs_${'Ab3'.repeat(14)}x`
const redactor = createRedactor([SECRET, PEM, '12345678', 'tiny'])

const base64 = (text: string) => Buffer.from(text).toString('base64')
const FORMS: readonly (readonly [string, string])[] = [
  ['plain', SECRET],
  ['JSON', JSON.stringify({ a: SECRET })],
  ['JSON in JSON', JSON.stringify({ a: JSON.stringify({ a: SECRET }) })],
  ['JSON with escaped slashes', JSON.stringify({ a: SECRET }).replaceAll('/', '\\/')],
  ['that in JSON', JSON.stringify({ a: JSON.stringify({ a: SECRET }).replaceAll('/', '\\/') })],
  ['a path of a URL', encodeURIComponent(SECRET).replaceAll('%2F', '/')],
  ['a whole URL', encodeURI(SECRET)],
  ['URL', encodeURIComponent(SECRET)],
  ['URL in small letters', encodeURIComponent(SECRET).replace(/%../g, (code) => code.toLowerCase())],
  ['a form', new URLSearchParams({ a: SECRET }).toString()],
  [
    'every byte percent-encoded',
    [...Buffer.from(SECRET)].map((byte) => `%${byte.toString(16).toUpperCase()}`).join(''),
  ],
  ['hex', Buffer.from(SECRET).toString('hex')],
  ['base64', base64(SECRET)],
  ['base64, one before', base64(`x${SECRET}y`)],
  ['base64, two before', base64(`xy${SECRET}z`)],
  ['base64url', Buffer.from(`??>${SECRET}`).toString('base64url')],
]

t.test('a known secret is masked in every form', async (t) => {
  for (const [name, text] of FORMS) {
    const out = redactor.text(`before ${text} after`)
    t.match(out, /^before .*\[redacted\].* after$/s, name)
    for (const [other, form] of FORMS) t.notOk(out.includes(form), `${name}: no ${other}`)
  }
  t.equal(redactor.text('tiny words stay, 1234567 too'), 'tiny words stay, 1234567 too')
  t.equal(redactor.text('pin 12345678.'), 'pin [redacted].')
})

t.test('a secret of several lines is masked line by line', async (t) => {
  for (const line of PEM.trim().split('\n')) t.equal(redactor.text(`> ${line} <`), '> [redacted] <')
  t.notMatch(redactor.text(PEM), /MII|BKc/)
})

t.test('base64 that was broken into lines is masked', async (t) => {
  const long = randomBytes(80).toString('hex')
  const wrapped = base64(`prefix ${long} suffix`).replace(/.{76}/g, '$&\n')
  const out = createRedactor([long]).text(`here:\n${wrapped}\nthere`)
  const inner = base64(long).slice(12, 40)
  t.notOk(out.replace(/\n/g, '').includes(inner))
  t.match(out, /^here:[\s\S]*\[redacted\][\s\S]*there$/)
})

t.test('the two pieces of a secret that chunks have cut are masked from 8 characters on', async (t) => {
  for (let cut = 8; cut <= SECRET.length - 8; cut++) {
    t.equal(redactor.text(`say ${SECRET.slice(0, cut)}`), 'say [redacted]')
    t.equal(redactor.text(`${SECRET.slice(cut)} said`), '[redacted] said')
    const encoded = base64(SECRET)
    t.equal(redactor.text(`say ${encoded.slice(0, cut)}`), 'say [redacted]', 'in base64 as well')
  }
  t.equal(redactor.text(SECRET.slice(5, 20)), '[redacted]', 'a chunk from its middle')
  t.equal(redactor.text('p4ss/w0'), 'p4ss/w0', 'fewer may be anything')
})

t.test("hangar's own are masked by their shape", async (t) => {
  t.equal(redactor.text(`token ${OWN}.`), 'token [redacted].')
  t.equal(redactor.text(`url http://x:${OWN}@host`), 'url http://x:[redacted]@host')
  for (const before of ['', 'x', 'xy', 'user:'])
    t.notMatch(
      Buffer.from(redactor.text(base64(before + OWN)).replace('[redacted]', ''), 'base64').toString('latin1'),
      /Ab3Ab3/,
    )
  const innocent = base64(`${'hgs_'} is a prefix, and nothing of it is secret, however long this goes on`)
  t.equal(redactor.text(innocent), innocent)
})

t.test('a result keeps its shape', async (t) => {
  t.strictSame(redactor.json({ ok: true, n: 12345678, list: [SECRET, 7, null], [SECRET]: { deep: `a${SECRET}b` } }), {
    ok: true,
    n: '[redacted]',
    list: ['[redacted]', 7, null],
    '[redacted]': { deep: 'a[redacted]b' },
  })
})

t.test('files: text is masked byte by byte, binary is left alone', async (t) => {
  const latin1 = Buffer.concat([Buffer.from([0xe9, 0xff, 0x0a]), Buffer.from(SECRET), Buffer.from([0xfe])])
  t.strictSame(
    redactor.file(latin1),
    Buffer.concat([Buffer.from([0xe9, 0xff, 0x0a]), Buffer.from('[redacted]'), Buffer.from([0xfe])]),
  )
  const binary = Buffer.concat([Buffer.from([0]), Buffer.from(SECRET)])
  t.equal(redactor.file(binary), binary)
  const clean = Buffer.from('nothing here\n')
  t.equal(redactor.file(clean), clean)
  t.equal(redactor.file(Buffer.from(`grant=${OWN}\n`)).toString(), 'grant=[redacted]\n')
  t.notMatch(redactor.file(Buffer.from(`é ${base64(`user:${OWN}`)}\n`)).toString(), /[A-Za-z0-9]{40}/)
})

t.test('a megabyte of random base64 stays as it is', async (t) => {
  const text = randomBytes(1_000_000).toString('base64').replace(/.{76}/g, '$&\n')
  t.equal(redactor.text(text), text)
})
