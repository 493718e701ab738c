/** The timeline of recorded streams as a person sees it in a pipe. */
import t from 'tap'
import { createOutput } from '../../cli/output.ts'
import { createTimeline, usageText } from '../../cli/timeline.ts'
import type { WireEvent } from '../../cli/wire.ts'
import type { RunEvent } from '../../domain/run-event.ts'
import { eventView } from '../../surfaces/views.ts'
import { readStream, recordedStreams } from '../orchestrator/harness-streams.ts'

const output = createOutput({ json: false, env: { NO_COLOR: '1' } })

function shown(name: string): string[] {
  const stream = recordedStreams().find((candidate) => candidate.name === name)
  if (stream === undefined) throw new Error(`no stream ${name}`)
  const timeline = createTimeline(output)
  const { events } = readStream(stream, [stream.bytes])
  const at = (place: number) => Date.UTC(2026, 0, 2, 3, 4, 5) + place * 1_000
  const wire = events.map((body, place) => eventView({ ...body, seq: place + 1, at: at(place), turn: 1 } as RunEvent))
  return [...wire.flatMap((event) => [...timeline.event(event as unknown as WireEvent)]), ...timeline.end()]
}

t.test('commands have their exit status, files their sign, and the cost runs along', async (t) => {
  t.strictSame(shown('pi/tools'), [
    '03:04:05 I will write a file with the shell.',
    '03:04:08 $ mkdir -p out && echo alpha > out/note.txt && cat out/note.txt',
    '           exit 0, 1 s',
    '03:04:11 Now I will edit a file.  740 tokens, $0.0043',
    '03:04:14 ± greeting.txt',
    '03:04:16 Now a command that fails.  920 tokens, $0.0068',
    '03:04:19 $ echo to-stderr >&2; exit 3',
    '           exit 3, 1 s',
    '03:04:22 Done: wrote out/note.txt, edited greeting.txt, and saw exit code 3.  1055 tokens, $0.0090',
  ])
})

t.test('calls without a line of their own are collapsed; what failed is told', async (t) => {
  const lines = shown('claude/edit')
  t.ok(lines.some((line) => /⋯ Read repo\/greeting\.txt$/.test(line)))
  t.ok(lines.some((line) => /\+ \/home\/agent\/repo\/created\.txt$/.test(line)))
  t.match(shown('claude/badedit').join('\n'), /Edit failed: <tool_use_error>String to replace not found/)
  t.match(shown('claude/flaky429').join('\n'), /the model's API refused \(429 rate_limit\); attempt 1 of 2 follows/)
  const event = (name: string, path: string): WireEvent => ({
    seq: 1,
    ts: '2026-01-02T03:04:05.000Z',
    turn: 1,
    kind: 'tool_call',
    name,
    input: JSON.stringify({ path }),
  })
  const timeline = createTimeline(output)
  for (let count = 0; count < 9; count++) t.strictSame(timeline.event(event('Read', `src/file-${count}.ts`)), [])
  t.strictSame(timeline.event(event('Grep', 'x')), [])
  t.match(timeline.end(), [/^03:04:05 ⋯ Read ×9 src\/file-0\.ts, .*, and 3 more, Grep x$/])
})

t.test('what was used, in words', async (t) => {
  const usage = { input_tokens: 12_000, output_tokens: 300, cache_read_tokens: 4_000_000, cache_write_tokens: 0 }
  t.equal(
    usageText({ ...usage, cost_usd: 0.1234, cost_source: 'priced' }),
    '12.3k tokens (and 4000k from a cache), $0.1234 by the price table',
  )
  t.equal(usageText({ ...usage, cache_read_tokens: 0, cost_usd: null, cost_source: null }), '12.3k tokens')
})
