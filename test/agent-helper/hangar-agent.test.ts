import { spawnSync } from 'node:child_process'
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { toolchains } from './toolchains.ts'

const helper = fileURLToPath(new URL('../../../agent-helper/hangar-agent', import.meta.url))
const root = mkdtempSync(join(tmpdir(), 'hangar-agent-'))
t.setTimeout(2_000_000)
t.teardown(() => rmSync(root, { recursive: true, force: true }))
const chains = toolchains(root)
const io = join(root, 'io')
const out = (name: string) => join(io, 'out', name)
const work = join(root, 'work')
mkdirSync(work)

function agent(
  args: readonly string[],
  options: { input?: Uint8Array | string; path?: string; io?: string | null } = {},
) {
  const env: Record<string, string> = { PATH: options.path ?? process.env['PATH'] ?? '', HOME: root }
  if (options.io !== null) env['HANGAR_IO'] = options.io ?? io
  const argv = args.map((argument) => argument)
  const result = spawnSync('sh', [helper, ...argv], { cwd: work, env, input: options.input ?? '' })
  return { status: result.status, err: result.stderr.toString(), out: result.stdout.toString() }
}

const text = (name: string) => readFileSync(out(name), 'utf8')
const json = (name: string) => JSON.parse(text(name)) as unknown
const fresh = () => rmSync(io, { recursive: true, force: true })

for (const { name, path } of chains)
  t.test(`what an agent says, ${name}`, async (t) => {
    fresh()
    t.equal(agent(['progress', '--pct', '40', 'running', 'the tests'], { path }).status, 0)
    t.equal(
      agent(['progress', '-'], { path, input: Buffer.from('q"b\\n\n\t\x01\x7f é € 😀 \xff \xe2\x82 end', 'utf8') })
        .status,
      0,
    )
    t.equal(
      agent(['progress', '-'], {
        path,
        input: Buffer.from([0x61, 0xff, 0xc3, 0x28, 0xed, 0xa0, 0x80, 0, 0x62, 0xe2, 0x82]),
      }).status,
      0,
    )
    const lines = text('progress.jsonl')
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as { ts: string; message: string; pct?: number })
    t.match(lines[0], { ts: /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/, message: 'running the tests', pct: 40 })
    t.match(lines[1]?.message, 'q"b\\n\n\t\x01\x7f é € 😀')
    t.match(lines[2]?.message, /^a\ufffd\ufffd\(\ufffd+\u0000b\ufffd$/)
    t.notOk('pct' in (lines[1] ?? {}))

    const long = 'é'.repeat(100)
    t.equal(agent(['question', '--option', long, '--option=No "way"', 'Keep', 'it?'], { path }).status, 0)
    t.same(json('QUESTION.json'), { question: 'Keep it?', options: ['é'.repeat(80), 'No "way"'] })
    t.equal(text('QUESTION.md'), 'Keep it?')
    t.equal(agent(['ask', 'Then what?'], { path }).status, 0)
    t.equal(text('QUESTION.md'), 'Then what?')
    t.notOk(existsSync(out('QUESTION.json')))

    t.equal(agent(['done', '-'], { path, input: '# Done\n\nAll of it.\n' }).status, 0)
    t.equal(readFileSync(join(io, 'RESULT.md'), 'utf8'), '# Done\n\nAll of it.\n')
    t.equal(agent(['result', '{"a":[1,2.5e-3,"\\u00e9é"],"b":{}}'], { path }).status, 0)
    t.same(json('result.json'), { a: [1, 0.0025, 'éé'], b: {} })
    const refused = agent(['result', '{"a": 1,\n "b": tru}'], { path })
    t.match(refused, { status: 1, err: /line 2, column 7: "tru" is no JSON value/ })
    t.same(json('result.json'), { a: [1, 0.0025, 'éé'], b: {} }, 'the earlier result stays')
    t.same(
      readdirSync(join(io, 'out')).filter((file) => file.startsWith('.')),
      [],
      'nothing half-made is left',
    )
  })

/** In the manner of JSONTestSuite: what must be taken. */
const GOOD = [
  '[]',
  '{}',
  ' [ ] ',
  '[[]   ]',
  '[""]',
  '["a"]',
  '"x"',
  '1',
  '-0',
  '0',
  'true',
  'false',
  'null',
  '""',
  '[1\n]',
  '\t[1]\r\n',
  '[-1]',
  '[-123]',
  '[-0]',
  '[123e65]',
  '[0e+1]',
  '[0e1]',
  '[ 4]',
  '[1E22]',
  '[1E-2]',
  '[1E+2]',
  '[123e45]',
  '[123.456e78]',
  '[1e-2]',
  '[1e+2]',
  '[123.456789]',
  '[20e1]',
  '[-0.000000000000000000000000001]',
  '{"asd":"sdf","dfg":"fgh"}',
  '{"asd":"sdf"}',
  '{"a":"b","a":"c"}',
  '{"":0}',
  '{"foo\\u0000bar":42}',
  '{"min":-1.0e+28,"max":1.0e+28}',
  '{"a":[]}',
  '{\n"a": "b"\n}',
  '["\\u0060\\u012a\\u12AB"]',
  '["\\uD801\\udc37"]',
  '["\\"\\\\\\/\\b\\f\\n\\r\\t"]',
  '["\\\\u0000"]',
  '["a/*b*/c/*d//e"]',
  '["\\uDBFF\\uDFFF"]',
  '["\u{10ffff}"]',
  '["\u2028\u2029"]',
  '["π€𝄞"]',
  '["\x7f"]',
  '[null,1,"1",{}]',
  '[1,null,null,null,2]',
  '["asd "]',
  `[${'['.repeat(400)}${']'.repeat(400)}]`,
  `["${'y'.repeat(3_000)}", 1]`,
  `["${'é'.repeat(1_000)}"]`,
  `[${'1,'.repeat(2_000)}1]`,
  '["\uD800"]'.replace('\uD800', '\\uD800'),
]
/** What must be refused. */
const BAD: readonly (string | Uint8Array)[] = [
  '',
  ' ',
  '[1 true]',
  '["": 1]',
  '[,1]',
  '[1,,2]',
  '["x",,]',
  '["x"]]',
  '["",]',
  '["x"',
  '[x',
  '[3[4]]',
  '[1:2]',
  '[,',
  '[-]',
  '[   , ""]',
  '[1,\n1\n,1',
  '[1,]',
  '[""',
  '[*]',
  '[\n"a",',
  '[fals]',
  '[nul]',
  '[tru]',
  '[++1234]',
  '[+1]',
  '[+Inf]',
  '[-01]',
  '[-1.0.]',
  '[-2.]',
  '[-NaN]',
  '[.-1]',
  '[.2e-3]',
  '[0.1.2]',
  '[0.3e+]',
  '[0.3e]',
  '[0.e1]',
  '[0E+]',
  '[0e]',
  '[1.0e-]',
  '[1 000.0]',
  '[1eE2]',
  '[2.e+3]',
  '[2.e3]',
  '[9.e+]',
  '[Inf]',
  '[NaN]',
  '[1+2]',
  '[0x1]',
  '[0x42]',
  '[Infinity]',
  '[-012]',
  '[-.123]',
  '[1.8011670033376514H-308]',
  '[012]',
  '[1.]',
  '{[: "x"}',
  '{"x", null}',
  '{"x"::"b"}',
  '{"a":"a" 123}',
  "{key: 'v'}",
  '{"a" b}',
  '{:"b"}',
  '{"a" "b"}',
  '{"a":',
  '{"a"',
  '{1:1}',
  '{"id":0,,,,,}',
  "{'a':0}",
  '{"id":0,}',
  '{"a":"b"}/**/',
  '{"a":"b"}#',
  '{"a":"b",,"c":"d"}',
  '{a: "b"}',
  '{"a":"a',
  '{ "foo" : "bar", "a" }',
  '{"a":"b"}{}',
  '["\\uD800\\"]',
  '["\\u00A"]',
  '["\\"]',
  '["\\x00"]',
  '["\\\\\\"]',
  '["\\\t"]',
  '["\\a"]',
  '["\\u"]',
  '["\\uqqqq"]',
  "['single']",
  'abc',
  '["new\nline"]',
  '["tab\t"]',
  '["\x01"]',
  '"',
  '""x',
  '<.>',
  '[<null>]',
  '[1]x',
  '[1]]',
  '[True]',
  '{]',
  '{}}',
  '[}',
  '{"x": true,',
  '\u2060',
  '[\u2060]',
  '\ufeff{}',
  '* ',
  '[1]\f',
  '1 2',
  '[1e]',
  `[${'['.repeat(1_100)}`,
  '[',
  Buffer.from([0x5b, 0x22, 0xff, 0x22, 0x5d]),
  Buffer.from([0x5b, 0x22, 0xc3, 0x28, 0x22, 0x5d]),
  Buffer.from([0x5b, 0x22, 0xed, 0xa0, 0x80, 0x22, 0x5d]),
  Buffer.from([0x5b, 0x22, 0xc0, 0xaf, 0x22, 0x5d]),
  Buffer.from([0x5b, 0x00, 0x5d]),
  Buffer.from([0x5b, 0x22, 0x00, 0x22, 0x5d]),
  Buffer.from([0x22, 0xe2, 0x82, 0x22]),
]

t.test('a result is taken when it is JSON, and only then', async (t) => {
  const awks = chains.filter(({ name }) => name.startsWith('dash') || chains.length < 3)
  for (const { name, path } of awks) {
    // One shell for all cases: each is a file, and the answers come as lines.
    const dir = join(root, `json-${name.replaceAll(' ', '-')}`)
    mkdirSync(dir)
    const cases = [...GOOD.map((body) => ({ body, good: true })), ...BAD.map((body) => ({ body, good: false }))]
    cases.forEach(({ body }, at) => {
      writeFileSync(join(dir, `${at}`), body)
    })
    const script = `i=0; while [ $i -lt ${cases.length} ]; do if sh "${helper}" result @${dir}/$i 2>/dev/null; then echo y; else echo n; fi; i=$((i+1)); done`
    const answers = spawnSync('sh', ['-c', script], { env: { PATH: path, HANGAR_IO: io } })
      .stdout.toString()
      .trim()
      .split('\n')
    const wrong = cases
      .filter(({ good }, at) => (answers[at] === 'y') !== good)
      .map(({ body }) => JSON.stringify(body.toString().slice(0, 60)))
    t.same(wrong, [], `${name}: ${cases.length} cases`)
  }
})

t.test('a result of a megabyte is checked in reasonable time', async (t) => {
  const rows = Array.from({ length: 9_000 }, (_, at) => ({ id: at, name: `é ${at}`, text: 'x'.repeat(70), flag: null }))
  writeFileSync(join(work, 'big.json'), JSON.stringify(rows))
  t.ok(statSync(join(work, 'big.json')).size > 1_000_000)
  for (const { name, path } of chains.filter(({ name }) => name.startsWith('dash'))) {
    const began = performance.now()
    t.equal(agent(['result', '@big.json'], { path }).status, 0)
    const ms = performance.now() - began
    t.ok(ms < 20_000, `${name}: ${Math.round(ms)} ms`)
  }
})

t.test('artifacts are copies under safe names; links and special files stay behind', async (t) => {
  fresh()
  mkdirSync(join(work, 'site/deep'), { recursive: true })
  writeFileSync(join(work, 'site/deep/page'), 'page')
  writeFileSync(join(work, '-dash'), 'dash', { mode: 0o755 })
  writeFileSync(join(work, 'report.txt'), 'one')
  symlinkSync('/etc/passwd', join(work, 'site/out'))
  spawnSync('mkfifo', [join(work, 'site/pipe')])
  t.equal(agent(['artifact', 'report.txt']).status, 0)
  t.equal(agent(['artifact', '-dash', 'bin/tool']).status, 0)
  t.match(agent(['artifact', 'site/']), { status: 0, err: /left out 2 links or special files/ })
  t.equal(text('artifacts/report.txt'), 'one')
  t.equal(text('artifacts/bin/tool'), 'dash')
  t.equal(text('artifacts/site/deep/page'), 'page')
  t.notOk(existsSync(out('artifacts/site/out')))
  writeFileSync(join(work, 'report.txt'), 'two')
  rmSync(join(work, 'site/deep'), { recursive: true })
  t.equal(agent(['artifact', 'report.txt']).status, 0)
  t.equal(agent(['artifact', 'site']).status, 0)
  t.equal(text('artifacts/report.txt'), 'two')
  t.notOk(existsSync(out('artifacts/site/deep')), 'a directory is replaced, not mixed')
  t.equal(agent(['artifact', out('artifacts/site')]).status, 0, 'what is there already stays')
  for (const name of ['../up', '/abs', 'a/../b', 'a//b', './a', '', 'a\\b', 'new\nline', '.git/config', 'x/.GIT'])
    t.equal(agent(['artifact', 'report.txt', name]).status, 2, JSON.stringify(name))
  t.match(agent(['artifact', 'nothing']), { status: 1, err: /nothing: there is no such file/ })
  t.match(agent(['artifact', root, 'all']), { status: 1, err: /holds hangar's own directory/ })
  t.match(agent(['artifact', '.']), { status: 2, err: /give it a name/ })
  t.match(agent(['artifact', 'site/pipe']), { status: 1 })
  t.same(readdirSync(join(io, 'out')), ['artifacts'])
})

t.test('wrong use is a sentence and exit status 2', async (t) => {
  t.match(agent(['progress', 'x'], { io: null }), { status: 2, err: /HANGAR_IO is not set/ })
  for (const args of [
    ['progress'],
    ['progress', '--pct', '101', 'x'],
    ['progress', '--pct', '-1', 'x'],
    ['progress', '--pct'],
    ['ask'],
    ['question', '--option', 'a'],
    ['result'],
    ['result', '1', '2'],
    ['done'],
    ['nonsense'],
    ['snapshot'],
    ['restore', '--repo', '.'],
    ['snapshot', '--what', 'x'],
  ])
    t.match(agent(args), { status: 2, err: /^hangar-agent: / }, args.join(' '))
  t.match(agent(['question', ...['1', '2', '3', '4', '5', '6'].flatMap((n) => ['--option', n]), 'q']), {
    status: 2,
    err: /at most 5/,
  })
  t.match(agent(['help']), { status: 0, out: /Usage/ })
  t.match(agent(['result', '@missing']), { status: 1, err: /no such file/ })
})

t.test('a file is replaced in one step, whatever stands in its place', async (t) => {
  fresh()
  mkdirSync(join(io, 'out'), { recursive: true })
  writeFileSync(join(root, 'elsewhere'), 'untouched')
  symlinkSync(join(root, 'elsewhere'), out('QUESTION.md'))
  t.equal(agent(['ask', 'new']).status, 0)
  t.notOk(lstatSync(out('QUESTION.md')).isSymbolicLink())
  t.equal(readFileSync(join(root, 'elsewhere'), 'utf8'), 'untouched')
  mkdirSync(join(io, 'RESULT.md'))
  t.match(agent(['done', 'x']), { status: 1, err: /is a directory/ })
  const lines = spawnSync(
    'bash',
    ['-c', `for i in $(seq 8); do sh ${helper} progress "$(printf 'x%.0s' $(seq 3000))" & done; wait`],
    { env: { PATH: process.env['PATH'] ?? '', HANGAR_IO: io } },
  )
  t.equal(lines.status, 0)
  const progress = text('progress.jsonl').trimEnd().split('\n')
  t.equal(progress.length, 8)
  t.ok(progress.every((line) => (JSON.parse(line) as { message: string }).message.length === 3_000))
})

for (const { name, path } of chains.filter(({ name }) =>
  /^(dash with mawk|bash with gawk|busybox with busybox)$/.test(name),
))
  t.test(`the supervisor keeps its contract, ${name}`, async (t) => {
    const run = (key: string, options: readonly string[], script: string, input = '') => {
      const dir = join(root, `turn-${key}-${name.replaceAll(' ', '-')}`)
      writeFileSync(join(root, 'stdin'), input)
      const result = agent(
        ['supervise', '--stdin', join(root, 'stdin'), ...options, dir, '--', 'setsid', 'sh', '-c', script],
        { path },
      )
      const file = (at: string) => readFileSync(join(dir, at))
      return {
        dir,
        status: result.status,
        file,
        exit: () => JSON.parse(file('exit.json').toString()) as Record<string, unknown>,
      }
    }
    const plain = run('1', [], 'cat; printf "\\0\\377" >&2; exit 7', 'in')
    t.match(plain.exit(), { code: 7, timed_out: false, ended_at: Number })
    t.equal(plain.file('out.log').toString(), 'in')
    t.same([...plain.file('err.log')], [0, 255])
    t.match(plain.file('pid').toString(), /^\d+ \d+ [0-9a-f-]+\n$/)
    const late = run(
      '2',
      ['--timeout-ms', '300', '--grace-ms', '300'],
      'trap "" TERM; echo up; while :; do sleep 0.05; done',
    )
    t.match(late.exit(), { code: 137, timed_out: true })
    t.equal(late.file('out.log').toString(), 'up\n')
    const soft = run('3', ['--timeout-ms', '300'], 'trap "exit 5" TERM; while :; do sleep 0.05; done')
    t.match(soft.exit(), { code: 5, timed_out: true })
    const capped = run('4', ['--max-bytes', '5120'], 'head -c 300000 /dev/zero; exit 2')
    t.equal(capped.file('out.log').length, 5_120)
    t.match(capped.exit(), { code: 2 })
    t.same(readdirSync(capped.dir).sort(), ['claimed', 'err.log', 'exit.json', 'info.json', 'out.log', 'pid'])
  })
