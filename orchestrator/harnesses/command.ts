/** The harness `command`: any program, its prompt on stdin; lines it prints are messages, unless they are run events as JSON. */
import { Type } from '@sinclair/typebox'
import type { Harness, HarnessParser, ParserStart } from '../../domain/harness.ts'
import { NO_USAGE, type RunEventBody, sumUsage, type Usage } from '../../domain/run-event.ts'
import { parseShape } from '../../domain/schema.ts'
import { count } from './json.ts'

const id = Type.String({ maxLength: 200 })
const text = Type.String()
const figure = Type.Integer({ minimum: 0 })

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
    input: Type.Optional(figure),
    output: Type.Optional(figure),
    cache_read: Type.Optional(figure),
    cache_write: Type.Optional(figure),
    cost_usd: Type.Optional(Type.Union([Type.Null(), Type.Number({ minimum: 0 })])),
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
    forks: true,
    maxLineBytes: 65_536,
    // It keeps what it likes in the directory of its own.
    state: ['.hangar/conversation'],
    notKept: [],
    run: ({ prompt }) => ({ argv, env: {}, stdin: Buffer.from(prompt) }),
    parser: createCommandParser,
  }
}

interface Saved {
  readonly requests: Usage | null
  readonly billed: Usage | null
}

function createCommandParser({ before, conversation, saved }: ParserStart): HarnessParser {
  const from = (saved as Saved | null) ?? null
  let requests = from?.requests ?? null
  let billed = from?.billed ?? null
  const used = () => billed ?? requests ?? NO_USAGE
  return {
    line: (stream, line) => {
      if (line.trim() === '') return []
      if (stream === 'err') return [{ kind: 'message', role: 'stderr', text: line }]
      // A line that was cut is a message like any other.
      const event = eventOf(line) ?? { kind: 'message', role: 'assistant', text: line }
      if (event.kind !== 'usage') return [event]
      if (event.scope === 'request') {
        requests = sumUsage([requests ?? NO_USAGE, event.usage])
        return [event]
      }
      // Told once, at the end.
      billed = event.usage
      return []
    },
    used,
    question: () => null,
    conversation: () => conversation.id,
    save: (): Saved => ({ requests, billed }),
    end: ({ exitCode, stopped }) => ({
      end: {
        failure: stopped || exitCode === 0 ? null : `the agent ended with exit status ${exitCode ?? 'unknown'}`,
        conversationLost: false,
        conversation: conversation.id,
        cumulative: sumUsage([before, used()]),
      },
      events: billed === null && requests === null ? [] : [{ kind: 'usage', scope: 'turn', usage: used() }],
    }),
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
        const { input = 0, output = 0, cache_read = 0, cache_write = 0, cost_usd = null } = event
        const usage = {
          inputTokens: count(input),
          outputTokens: count(output),
          cacheReadTokens: count(cache_read),
          cacheWriteTokens: count(cache_write),
          costUsd: cost_usd === null ? null : count(cost_usd),
          costSource: cost_usd === null ? null : ('reported' as const),
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
