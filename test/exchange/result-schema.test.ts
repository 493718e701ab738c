/** Results against untrusted schemas: hostile ones cost their own time and no more, and the answer is a sentence. */
import t from 'tap'
import { createFairQueue } from '../../exchange/fair-queue.ts'
import { createResultChecker, type ResultChecker } from '../../exchange/result-schema.ts'

t.setTimeout(300_000)

const DRAFT_07 = 'http://json-schema.org/draft-07/schema#'
const LATEST = 'https://json-schema.org/draft/2020-12/schema'
const INTEGER = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] }

function checker(t: { teardown(handler: () => Promise<void>): unknown }, options = {}): ResultChecker {
  const made = createResultChecker(options)
  t.teardown(() => made.close())
  return made
}

t.test('valid and invalid, in both dialects', async (t) => {
  const { check } = checker(t)
  const rows: readonly (readonly [what: string, schema: unknown, text: string | null, expected: object])[] = [
    ['no schema, no result', null, null, { kind: 'none' }],
    ['no schema', null, '{"a":1}', { kind: 'valid', value: { a: 1 } }],
    ['no result', INTEGER, null, { kind: 'invalid', reason: /out\/result\.json is missing/ }],
    ['no JSON', INTEGER, '{', { kind: 'invalid', reason: /out\/result\.json: not JSON/ }],
    ['no JSON and no schema', null, '{', { kind: 'invalid', reason: /not JSON/ }],
    ['valid', INTEGER, '{"n":1}', { kind: 'valid', value: { n: 1 } }],
    ['invalid', INTEGER, '{"n":"1"}', { kind: 'invalid', reason: /does not fit the schema: \/n must be integer/ }],
    ['true', true, '1', { kind: 'valid' }],
    ['false', false, '1', { kind: 'invalid', reason: /boolean schema is false/ }],
    ['nothing asked', {}, '[]', { kind: 'valid' }],
    [
      'draft-07',
      { $schema: DRAFT_07, items: [{ type: 'string' }] },
      '[1]',
      { kind: 'invalid', reason: /\/0 must be string/ },
    ],
    [
      '2020-12',
      { $schema: LATEST, prefixItems: [{ type: 'string' }] },
      '[1]',
      { kind: 'invalid', reason: /\/0 must be string/ },
    ],
    ['2020-12 by default', { prefixItems: [{ type: 'string' }] }, '[1]', { kind: 'invalid', reason: /\/0/ }],
    [
      'a format, draft-07',
      { $schema: DRAFT_07, format: 'email' },
      '"x"',
      { kind: 'invalid', reason: /format "email"/ },
    ],
    ['a format', { format: 'date-time' }, '"yesterday"', { kind: 'invalid', reason: /format "date-time"/ }],
    ['a format that fits', { format: 'uri' }, '"https://example.com"', { kind: 'valid' }],
    ['an unknown format asks nothing', { format: 'shoe-size' }, '"x"', { kind: 'valid' }],
    ['an unknown keyword asks nothing', { 'x-note': 1, type: 'string' }, '"x"', { kind: 'valid' }],
    [
      'references inside',
      { $defs: { a: { type: 'integer' } }, $ref: '#/$defs/a' },
      '"x"',
      { kind: 'invalid', reason: /integer/ },
    ],
    [
      'a recursive schema',
      { properties: { next: { $ref: '#' } }, additionalProperties: false },
      '{"next":{"next":{"x":1}}}',
      { kind: 'invalid', reason: /\/next\/next/ },
    ],
    [
      'a result of 3,000 levels',
      true,
      '['.repeat(3_000) + ']'.repeat(3_000),
      { kind: 'invalid', reason: /deeper than 200/ },
    ],
    [
      'a result of 3,000 levels without a schema',
      null,
      '['.repeat(3_000),
      { kind: 'invalid', reason: /deeper than 200/ },
    ],
    [
      'keys of prototypes in a result',
      { additionalProperties: { type: 'integer' } },
      '{"__proto__":{"bad":1},"constructor":1}',
      { kind: 'invalid', reason: /must be integer/ },
    ],
  ]
  for (const [what, schema, text, expected] of rows) t.match(await check(schema, text), expected, what)
  t.equal(({} as { bad?: unknown }).bad, undefined)
})

t.test('schemas that cannot be used say why', async (t) => {
  const { refuseSchema, check } = checker(t)
  let deep: unknown = {}
  for (let level = 0; level < 100_000; level++) deep = { not: deep }
  const rows: readonly (readonly [what: string, schema: unknown, reason: RegExp])[] = [
    ['a type that is none', { type: 'thing' }, /type must be equal to one of the allowed values/],
    ['a pattern that is none', { pattern: '(' }, /Invalid regular expression/],
    ['an unknown dialect', { $schema: 'https://example.com/mine' }, /use JSON Schema 2020-12 or draft-07/],
    ['an older dialect', { $schema: 'http://json-schema.org/draft-04/schema#' }, /use JSON Schema 2020-12 or draft-07/],
    ['a dialect that is no text', { $schema: 7 }, /use JSON Schema 2020-12 or draft-07/],
    [
      'a reference elsewhere',
      { $ref: 'https://example.com/schema.json' },
      /can't resolve reference https:\/\/example\.com/,
    ],
    ['a reference to a file', { $ref: 'file:///etc/passwd' }, /can't resolve reference/],
    ['a reference to nothing', { $ref: '#/$defs/none' }, /can't resolve reference/],
    ['a reference that leaves', { $id: 'https://example.com/a/', $ref: '../../x' }, /can't resolve reference/],
    ['100,000 levels', deep, /nested deeper than 200 levels/],
    ['an array', [], /./],
    ['a text', 'string', /./],
  ]
  for (const [what, schema, reason] of rows) t.match(await refuseSchema(schema), reason, what)
  await t.rejects(refuseSchema({ enum: Array.from({ length: 2_000_000 }, () => 1) }), { code: 'too_large' })
  await t.rejects(refuseSchema({ description: 'x'.repeat(300_000) }), { code: 'too_large', message: /262144 bytes/ })
  const proto = JSON.parse(
    '{"properties":{"__proto__":{"type":"integer"},"constructor":{"type":"integer"}},"__proto__":{"bad":1}}',
  ) as unknown
  t.equal(await refuseSchema(proto), null)
  t.match(await check(proto, '{"constructor":"x"}'), { kind: 'invalid' })
  t.match(await check(INTEGER, '{"n":1}'), { kind: 'valid' }, 'others are checked as before')
  t.equal(({} as { bad?: unknown }).bad, undefined)
})

/** Each hangs ajv or exhausts its memory. */
const doubling = Object.fromEntries(
  Array.from({ length: 30 }, (_, at) => [
    `d${at}`,
    { allOf: [{ $ref: `#/$defs/d${at + 1}` }, { $ref: `#/$defs/d${at + 1}` }] },
  ]),
)
const HOSTILE: readonly (readonly [what: string, schema: unknown, text: string | null])[] = [
  ['a pattern that backtracks', { type: 'string', pattern: '^(a+)+$' }, JSON.stringify(`${'a'.repeat(40)}!`)],
  ['references that double 30 times', { $ref: '#/$defs/d0', $defs: { ...doubling, d30: { type: 'string' } } }, '"x"'],
  [
    '30,000 objects that must differ',
    { uniqueItems: true },
    JSON.stringify(Array.from({ length: 30_000 }, (_, n) => ({ n }))),
  ],
  ['a property name that backtracks', { patternProperties: { '^(a|a)*$': true } }, `{"${'a'.repeat(40)}!":1}`],
  ['a reference to itself', { $ref: '#' }, '1'],
  [
    '20,000 patterns',
    { patternProperties: Object.fromEntries(Array.from({ length: 8_000 }, (_, n) => [`^x${n}`, {}])) },
    '{}',
  ],
]

t.test('hostile schemas end at their time, one by one', async (t) => {
  const { check } = checker(t, { timeLimitMs: 500 })
  for (const [what, schema, text] of HOSTILE) {
    const outcome = await check(schema, text)
    if (outcome.kind === 'invalid')
      t.match(outcome.reason, /took longer than 0\.5 s; simplify it|could not be|cannot be used/, what)
    else t.equal(outcome.kind, 'valid', `${what}: this machine was quick`)
    t.match(await check(INTEGER, '{"n":1}'), { kind: 'valid' }, `after ${what}`)
  }
})

t.test('many hostile schemas of one repo do not stand in the way of another', async (t) => {
  const results = checker(t, { timeLimitMs: 800, maxWaiting: 4 })
  const [, schema, text] = HOSTILE[0] ?? []
  const order: string[] = []
  const hostile = Array.from({ length: 5 }, () =>
    results.check(schema, text ?? '', 'acme/hostile').then((outcome) => {
      order.push('hostile')
      return outcome
    }),
  )
  const honest = results.check(INTEGER, '{"n":1}', 'acme/honest').then(() => order.push('honest'))
  await honest
  t.ok(order.filter((one) => one === 'hostile').length <= 1, 'it did not wait for them')
  const more = Array.from({ length: 8 }, () =>
    results.refuseSchema({ pattern: 'x' }, 'acme/hostile').catch((error: unknown) => error),
  )
  t.match(
    await Promise.race(more),
    { code: 'busy', message: /as many schemas of this repo wait/ },
    'and only so many may wait',
  )
  t.equal(await results.refuseSchema(INTEGER, 'acme/honest'), null)
  await results.close()
  await Promise.all([...hostile, ...more])
})

t.test('askers take turns', async (t) => {
  const queue = createFairQueue(2)
  const order: string[] = []
  const release: (() => void)[] = []
  const work = (name: string) => () =>
    new Promise<void>((resolve) => {
      order.push(name)
      release.push(resolve)
    })
  const all = ['a1', 'a2', 'a3', 'b1', 'b2', 'c1'].map((name) => queue.run(name.slice(0, 1), work(name)))
  t.strictSame(order, ['a1', 'b1'], 'no asker holds both places')
  t.equal(queue.waiting('a'), 2)
  for (let done = 0; done < all.length; done++) {
    release[done]?.()
    await new Promise((resolve) => setImmediate(resolve))
  }
  await Promise.all(all)
  t.strictSame(order, ['a1', 'b1', 'a2', 'b2', 'c1', 'a3'])
  await t.rejects(
    queue.run('a', () => Promise.reject(new Error('its own'))),
    { message: 'its own' },
  )
  t.equal(await queue.run('a', async () => 'on'), 'on')
})
