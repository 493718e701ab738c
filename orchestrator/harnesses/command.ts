/** The harness `command`: any program, its prompt on stdin; lines it prints are messages, unless they are run events as JSON. */
import { Type } from '@sinclair/typebox'
import type { Harness } from '../../domain/harness.ts'
import type { RunEventBody } from '../../domain/run-event.ts'
import { parseShape } from '../../domain/schema.ts'

const id = Type.String({ maxLength: 200 })
const text = Type.String()
const count = Type.Integer({ minimum: 0 })

/** The run events that a program may print itself, as they look on the wire. */
const WireEvent = Type.Union([
  Type.Object({
    kind: Type.Literal('message'),
    role: Type.Optional(Type.Union([Type.Literal('assistant'), Type.Literal('reasoning')])),
    text,
  }),
  Type.Object({ kind: Type.Literal('tool_call'), id, name: text, input: text }),
  Type.Object({ kind: Type.Literal('tool_result'), id, ok: Type.Boolean(), text }),
  Type.Object({
    kind: Type.Literal('command'),
    id,
    phase: Type.Union([Type.Literal('start'), Type.Literal('end')]),
    command: Type.Optional(text),
    exit_code: Type.Optional(Type.Union([Type.Integer(), Type.Null()])),
  }),
  Type.Object({
    kind: Type.Literal('file_change'),
    id,
    ok: Type.Boolean(),
    changes: Type.Array(
      Type.Object({
        path: text,
        change: Type.Union([
          Type.Literal('add'),
          Type.Literal('update'),
          Type.Literal('delete'),
          Type.Literal('write'),
        ]),
      }),
      { maxItems: 1_000 },
    ),
  }),
  Type.Object({ kind: Type.Literal('error'), message: text, fatal: Type.Optional(Type.Boolean()) }),
  Type.Object({
    kind: Type.Literal('usage'),
    scope: Type.Optional(Type.Union([Type.Literal('request'), Type.Literal('turn')])),
    usage: Type.Object({
      input_tokens: Type.Optional(count),
      output_tokens: Type.Optional(count),
      cache_read_tokens: Type.Optional(count),
      cache_write_tokens: Type.Optional(count),
      cost_usd: Type.Optional(Type.Union([Type.Null(), Type.Number({ minimum: 0 })])),
    }),
    model: Type.Optional(text),
  }),
  Type.Object({
    kind: Type.Literal('progress'),
    message: text,
    pct: Type.Optional(Type.Number({ minimum: 0, maximum: 100 })),
  }),
])

export function createCommandHarness({ argv }: { argv: readonly string[] }): Harness {
  return {
    kind: 'command',
    run: ({ prompt }) => ({ argv, stdin: Buffer.from(prompt) }),
    parse: (stream, line) => {
      if (line.trim() === '') return []
      if (stream === 'err') return [{ kind: 'message', role: 'stderr', text: line }]
      return [eventOf(line) ?? { kind: 'message', role: 'assistant', text: line }]
    },
  }
}

function eventOf(line: string): RunEventBody | null {
  if (!line.startsWith('{')) return null
  try {
    const event = parseShape(WireEvent, JSON.parse(line), 'event')
    switch (event.kind) {
      case 'message':
        return { kind: 'message', role: event.role ?? 'assistant', text: event.text }
      case 'command':
        return {
          kind: 'command',
          id: event.id,
          phase: event.phase,
          ...(event.command === undefined ? {} : { command: event.command }),
          ...(event.exit_code === undefined ? {} : { exitCode: event.exit_code }),
        }
      case 'error':
        return { kind: 'error', scope: 'harness', fatal: event.fatal ?? false, message: event.message }
      case 'usage': {
        const { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd } = event.usage
        const usage = {
          inputTokens: input_tokens ?? 0,
          outputTokens: output_tokens ?? 0,
          cacheReadTokens: cache_read_tokens ?? 0,
          cacheWriteTokens: cache_write_tokens ?? 0,
          costUsd: cost_usd ?? null,
          costSource: cost_usd == null ? null : ('reported' as const),
        }
        const model = event.model === undefined ? {} : { model: event.model }
        return { kind: 'usage', scope: event.scope ?? 'request', usage, ...model }
      }
      case 'progress':
        return {
          kind: 'progress',
          message: event.message,
          source: 'agent',
          ...(event.pct === undefined ? {} : { pct: event.pct }),
        }
      default:
        return event
    }
  } catch {
    return null
  }
}
