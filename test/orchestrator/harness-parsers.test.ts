/** The parsers of agent programs on the recorded streams: what each file says is written down, and no chunking or restart changes it. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { NO_USAGE } from '../../domain/run-event.ts'
import { createCommandHarness } from '../../orchestrator/harnesses/command.ts'
import { createLineReader, START_OF_LINES } from '../../orchestrator/harnesses/lines.ts'
import { FIXTURES, HARNESSES, readStream, recordedStreams, written } from './harness-streams.ts'

const STREAMS = recordedStreams()
const CHUNKINGS = 1_000

t.test('each recorded stream gives the events, the usage and the outcome that are written down', async (t) => {
  const expected = readFileSync(`${FIXTURES}expected.txt`, 'utf8').split(/^(?=== )/m)
  const found = STREAMS.map((stream) => `${written(stream, readStream(stream, [stream.bytes]))}\n`)
  t.equal(found.length, expected.length)
  for (const [place, text] of found.entries()) t.equal(text, expected[place], text.slice(3, text.indexOf(':')))
})

t.test(`any of ${CHUNKINGS} chunkings of a stream gives the same lines`, async (t) => {
  for (const { name, bytes } of STREAMS) {
    const whole = linesOf([bytes])
    const differing = Array.from({ length: CHUNKINGS }, (_, seed) => seed).filter(
      (seed) => JSON.stringify(linesOf(chunksOf(bytes, seed))) !== JSON.stringify(whole),
    )
    t.strictSame(differing, [], name)
  }
})

t.test('a parser that was saved and taken up again after each chunk gives the same events', async (t) => {
  for (const stream of STREAMS) {
    const whole = written(stream, readStream(stream, [stream.bytes]))
    for (const seed of [1, 2, 3]) {
      const again = readStream(stream, chunksOf(stream.bytes, seed, 4_096), true)
      t.equal(written(stream, again), whole, `${stream.name}, chunking ${seed}`)
    }
  }
})

t.test('lines that are broken, huge or hostile are counted, and the others are read', async (t) => {
  for (const stream of STREAMS.filter(({ name }) => name.endsWith('/tools'))) {
    const { harness } = stream
    const lines = stream.bytes.toString('utf8').trimEnd().split('\n')
    const huge = `{"type":"assistant","text":"${'x'.repeat(harness.maxLineBytes)}"}`
    const hostile = [
      'not JSON at all',
      '{"type":"assistant","message":',
      '[]',
      'null',
      '42',
      huge,
      '{"type":"assistant","message":{"content":[{"type":"text","text":{"toString":1}},null,7,{"type":"tool_use"}],"usage":[]}}',
      '{"type":"item.completed","item":{"type":"command_execution","exit_code":"no","changes":5}}',
      '{"type":"item.completed","item":null}',
      '{"type":"message_end","message":{"role":"assistant","content":"text","usage":{"input":-5,"output":1e999}}}',
      '{"event":"step_update","step_update":{"step_type":"tool","tool_info":[]}}',
      '{"__proto__":{"polluted":true},"type":"constructor"}',
      `${'['.repeat(100_000)}${']'.repeat(100_000)}`,
      '\u0000\u0001\ufffd',
    ]
    const bytes = Buffer.from([...lines.slice(0, -1), ...hostile, lines.at(-1)].join('\n'))
    const { events, end, used } = readStream({ ...stream, bytes }, [bytes])
    t.equal(end.failure, null, harness.kind)
    t.match(
      events
        .filter((event) => event.kind === 'error')
        .map((event) => event.message)
        .join(),
      /\d+ line\(s\) of the agent's output could not be read/,
    )
    t.ok(used.inputTokens >= 275, 'its own figures are there')
    t.ok(
      Object.values(used).every((figure) => figure === null || typeof figure === 'string' || Number.isFinite(figure)),
    )
    t.equal(({} as Record<string, unknown>)['polluted'], undefined)
  }
})

t.test('deep JSON, huge ids and endless figures: no throw, and little to save', async (t) => {
  const deep = `${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}`
  const huge = 'x'.repeat(1_000_000)
  const parsers: typeof HARNESSES = { ...HARNESSES, command: createCommandHarness({ argv: ['x'] }) }
  const lines = [
    `{"type":"assistant","message":{"id":"${huge}","usage":{"input_tokens":1e308},"content":[{"type":"tool_use","id":"${huge}","name":"${huge}","input":${deep}}]}}`,
    `{"type":"assistant","message":{"id":"m","usage":{"input_tokens":1e308},"content":[{"type":"tool_use","id":"1","name":"AskUserQuestion","input":{"question":"${huge}","options":["${huge}"]}}]}}`,
    `{"type":"system","subtype":"init","session_id":"${huge}"}`,
    `{"type":"result","is_error":true,"result":"${huge}","session_id":"${huge}"}`,
    `{"type":"item.started","item":{"id":"${huge}","type":"mcp_tool_call","server":"s","tool":"t","arguments":${deep}}}`,
    `{"type":"thread.started","thread_id":"${huge}"}`,
    `{"type":"turn.failed","error":{"message":"${huge}"}}`,
    `{"type":"session","id":"--${huge}"}`,
    `{"type":"tool_execution_start","toolCallId":"${huge}","toolName":"edit","args":{"path":"${huge}","x":${deep}}}`,
    `{"type":"message_end","message":{"role":"assistant","stopReason":"error","errorMessage":"${huge}","responseId":"${huge}","usage":{"input":1e308}}}`,
    `{"type":"message_end","message":{"role":"assistant","stopReason":"stop","responseId":"r","usage":{"input":1e308}}}`,
    `{"event":"init","conversation_id":"${huge}"}`,
    `{"event":"step_update","step_update":{"step_index":1,"step_type":"agent_response","text_delta":"${huge}"}}`,
    `{"event":"step_update","step_update":{"step_index":2,"step_type":"tool","tool_info":{"name":"${huge}","parameters":${deep}}}}`,
    `{"event":"result","result":{"status":"ERROR","error":"${huge}","conversation_id":"${huge}","usage":{"input_tokens":1e308}}}`,
    ...['{"kind":"usage","input":1e308,"cost_usd":1e308}', '{"kind":"usage","input":1e308,"cost_usd":1e308}'],
  ]
  for (const [kind, { parser: create }] of Object.entries(parsers)) {
    const parser = create({ conversation: { kind: 'new', id: 'x' }, before: NO_USAGE, saved: null })
    for (const line of lines) parser.line('out', line, false)
    const saved = JSON.stringify(parser.save()).length
    t.ok(saved < 131_072, `${kind} saves ${saved} characters`)
    t.ok((parser.conversation() ?? '').length < 256, `${kind}: no such id could be an argument`)
    const { inputTokens, costUsd } = parser.used()
    t.ok(Number.isFinite(inputTokens) && Number.isFinite(costUsd ?? 0), kind)
  }
})

t.test('a line over the cap costs the cap, and what follows is read', async (t) => {
  const reader = createLineReader(START_OF_LINES, 1_000)
  const lines = [
    Buffer.alloc(600, 'a'),
    Buffer.alloc(600, 'a'),
    Buffer.alloc(5_000, 'a'),
    Buffer.from('a\nb\n'),
  ].flatMap((chunk) => [...reader.push(chunk, false)])
  t.strictSame(lines, [
    { text: 'a'.repeat(1_000), cut: true },
    { text: 'b', cut: false },
  ])
  t.strictSame(reader.cursor(), { offset: 6_204, skipping: 0 })
})

t.test('Claude Code: its own question tool becomes a question', async (t) => {
  const parser = HARNESSES['claude']?.parser({ conversation: { kind: 'new', id: 'x' }, before: NO_USAGE, saved: null })
  const ask = (input: unknown) =>
    parser?.line(
      'out',
      JSON.stringify({
        type: 'assistant',
        message: { id: 'm', content: [{ type: 'tool_use', id: '1', name: 'AskUserQuestion', input }] },
      }),
      false,
    )
  t.equal(parser?.question(), null)
  ask({ questions: [{ question: 'Which one?', options: [{ label: 'A' }, { label: 'B', description: 'x' }] }] })
  t.strictSame(parser?.question(), { text: 'Which one?', options: ['A', 'B'] })
})

t.test('a run that hangar stopped has not failed', async (t) => {
  for (const [kind, harness] of Object.entries(HARNESSES)) {
    const parser = harness.parser({ conversation: { kind: 'resume', id: 'x' }, before: NO_USAGE, saved: null })
    const { end } = parser.end({ exitCode: 143, stopped: true })
    t.match(end, { failure: null, conversationLost: false }, kind)
  }
})

t.test('command lines: new, resumed and forked conversations, the prompt on standard input', async (t) => {
  const input = { prompt: '-x "quoted"\nline', home: '/home/agent', repo: '/home/agent/repo' }
  const words = (kind: string, conversation: Parameters<(typeof HARNESSES)[string]['run']>[0]['conversation']) => {
    const run = HARNESSES[kind]?.run({ ...input, conversation })
    t.equal(Buffer.from(run?.stdin ?? []).toString(), kind === 'antigravity' ? '' : input.prompt)
    return run?.argv.join(' ')
  }
  const id = '11111111-2222-4333-8444-555555555555'
  const fork = { kind: 'fork', parent: 'P', id } as const
  t.match(words('claude', { kind: 'new', id }), new RegExp(`^claude -p .*--verbose .*--session-id ${id}$`))
  t.match(words('claude', { kind: 'resume', id }), new RegExp(`--resume ${id}$`))
  t.match(words('claude', fork), new RegExp(`--resume P --fork-session --session-id ${id}$`))
  t.match(words('codex', { kind: 'new', id }), /^codex exec --json .*-$/)
  t.match(words('codex', { kind: 'resume', id }), new RegExp(`^codex exec resume --json .*${id} -$`))
  t.match(words('codex', fork), /^codex exec fork --json .*P -$/)
  t.match(words('pi', { kind: 'new', id }), new RegExp(`^pi --mode json --session-id ${id}$`))
  t.match(words('pi', { kind: 'resume', id }), new RegExp(`--session ${id}$`))
  t.match(words('pi', fork), new RegExp(`--fork P --session-id ${id}$`))
  t.match(words('antigravity', { kind: 'resume', id }), new RegExp(`^agy --print=-x "quoted"[^]*--conversation ${id}$`))
  const long = HARNESSES['antigravity']?.run({
    ...input,
    prompt: 'x'.repeat(200_000),
    conversation: { kind: 'new', id },
  })
  t.ok(
    (long?.argv ?? []).every((word) => word.length < 131_000),
    'no argument is longer than Linux takes',
  )
})

function linesOf(chunks: readonly Buffer[]): unknown[] {
  const reader = createLineReader(START_OF_LINES, 4_096)
  return [...chunks.flatMap((chunk) => [...reader.push(chunk, false)]), ...reader.push(Buffer.alloc(0), true)]
}

/** Chunks of 1 to `most` bytes, or of 777, by a seeded generator. */
function chunksOf(bytes: Buffer, seed: number, most = 16_384): Buffer[] {
  const chunks: Buffer[] = []
  let state = seed + 1
  for (let at = 0; at < bytes.length; ) {
    state = (state * 48_271) % 2_147_483_647
    const size = seed === 0 ? 777 : 1 + (state % most)
    chunks.push(bytes.subarray(at, at + size))
    at += size
  }
  return chunks
}
