/** pi: `pi --mode json`, one session file of our own naming, usage and cost told with each message. Source: recorded streams of 1.6.0. */
import type { Harness, HarnessEnd, HarnessInput, HarnessParser, HarnessRun, ParserStart } from '../../domain/harness.ts'
import { type FileChange, NO_USAGE, type RunEventBody, type Usage } from '../../domain/run-event.ts'
import {
  contentText,
  conversationId,
  count,
  type Json,
  jsonObject,
  list,
  MAX_JSON_LINE_BYTES,
  object,
  reason,
  remembered,
  shown,
  text,
} from './json.ts'
import { failureOf, messageEvent, readJsonLines } from './json-lines.ts'
import { createTally, type Tally } from './tally.ts'

export interface PiOptions {
  readonly provider: string | null
  readonly model: string | null
  /** Further arguments. */
  readonly args: readonly string[]
}

/** Wherever its other files are. */
const SESSIONS = '.pi/agent/sessions'

export function createPiHarness(options: PiOptions): Harness {
  return {
    kind: 'pi',
    forks: true,
    maxLineBytes: MAX_JSON_LINE_BYTES,
    state: [SESSIONS],
    notKept: ['.pi/agent/auth.json'],
    run: (input) => commandLine(input, options),
    parser: createPiParser,
  }
}

function commandLine({ prompt, conversation, home }: HarnessInput, { provider, model, args }: PiOptions): HarnessRun {
  return {
    argv: [
      ...['pi', '--mode', 'json'],
      ...(provider === null ? [] : ['--provider', provider]),
      ...(model === null ? [] : ['--model', model]),
      ...conversationArguments(conversation),
      ...args,
    ],
    env: { PI_TELEMETRY: '0', PI_OFFLINE: '1', PI_CODING_AGENT_SESSION_DIR: `${home}/${SESSIONS}` },
    stdin: Buffer.from(prompt),
  }
}

/** An id of our own, which it looks up for the directory that it runs in: always the checkout. An unknown one is refused only by `--session`. */
function conversationArguments(conversation: HarnessInput['conversation']): string[] {
  switch (conversation.kind) {
    case 'new':
      return ['--session-id', conversation.id]
    case 'resume':
      return ['--session', conversation.id]
    case 'fork':
      return ['--fork', conversation.parent, '--session-id', conversation.id]
    default:
      return conversation satisfies never
  }
}

/** How its end is told. */
const TOLD = { program: 'pi', milestone: 'it had settled' }

interface Saved {
  readonly tally: ReturnType<Tally['save']>
  readonly conversation: string | null
  readonly failure: string | null
  readonly settled: boolean
  readonly messages: number
  /** Files that open edits touch, by tool call. */
  readonly edits: readonly (readonly [string, FileChange])[]
}

const MAX_OPEN_EDITS = 1_000

function createPiParser({ conversation: start, saved }: ParserStart): HarnessParser {
  const from = (saved as Saved | null) ?? null
  const tally = createTally(from?.tally ?? null)
  const edits = new Map(from?.edits ?? [])
  let conversation = from?.conversation ?? null
  let failure = from?.failure ?? null
  let settled = from?.settled ?? false
  let messages = from?.messages ?? 0

  const assistant = (message: Json): RunEventBody[] => {
    const events = list(message['content']).flatMap((value): RunEventBody[] => {
      const block = object(value)
      if (block['type'] === 'text') return messageEvent('assistant', text(block['text']))
      if (block['type'] === 'thinking') return messageEvent('reasoning', text(block['thinking']))
      return []
    })
    // Only the last try's end counts: an earlier one may have been retried.
    const stopped = text(message['stopReason'])
    const ended = stopped === 'error' || stopped === 'aborted'
    failure = ended ? reason(plain(text(message['errorMessage'])) || `pi's model ended with ${stopped}`) : null
    const usage = usageOf(object(message['usage']))
    if (usage.inputTokens + usage.outputTokens + usage.cacheReadTokens + usage.cacheWriteTokens === 0) return events
    const id = text(message['responseId']) || `message ${messages++}`
    return [...events, tally.request(id, usage, { model: text(message['model']) })]
  }
  const toolStart = (event: Json): RunEventBody[] => {
    const id = remembered(event['toolCallId'])
    const name = text(event['toolName'])
    const args = object(event['args'])
    const path = text(args['path']).slice(0, 1_000)
    if ((name === 'edit' || name === 'write') && path !== '' && edits.size < MAX_OPEN_EDITS)
      edits.set(id, { path, change: name === 'edit' ? 'update' : 'write' })
    const call: RunEventBody = { kind: 'tool_call', id, name, input: shown(args) }
    return name === 'bash' ? [call, { kind: 'command', id, phase: 'start', command: text(args['command']) }] : [call]
  }
  const toolEnd = (event: Json): RunEventBody[] => {
    const id = remembered(event['toolCallId'])
    const name = text(event['toolName'])
    const ok = event['isError'] !== true
    const result = object(event['result'])
    const change = edits.get(id)
    edits.delete(id)
    const code = object(result['structuredContent'])['exit_code']
    return [
      ...(name === 'bash'
        ? [{ kind: 'command' as const, id, phase: 'end' as const, exitCode: typeof code === 'number' ? code : null }]
        : []),
      ...(change === undefined ? [] : [{ kind: 'file_change' as const, id, ok, changes: [change] }]),
      { kind: 'tool_result', id, name, ok, text: contentText(result['content']) },
    ]
  }

  return {
    line: readJsonLines(tally, {
      // Most of its bytes say again what other lines say: pieces of messages, and whole histories.
      repeats: (line) => REPEATED.some((start) => line.startsWith(start)),
      event: (event) => {
        switch (event['type']) {
          case 'session':
            conversation = conversationId(event['id']) || conversation
            return []
          case 'message_end': {
            const message = object(event['message'])
            return message['role'] === 'assistant' ? assistant(message) : []
          }
          case 'tool_execution_start':
            return toolStart(event)
          case 'tool_execution_end':
            return toolEnd(event)
          case 'auto_retry_start': {
            const message = `${plain(text(event['errorMessage']))}; attempt ${count(event['attempt'])} of ${count(event['maxAttempts'])} follows`
            const status = Number(/^(\d{3}) /.exec(text(event['errorMessage']))?.[1] ?? 0)
            return [
              {
                kind: 'error',
                scope: 'api',
                fatal: false,
                retrying: true,
                message,
                ...(status === 0 ? {} : { status }),
              },
            ]
          }
          case 'agent_settled':
            settled = true
            return failure === null ? [] : [{ kind: 'error', scope: 'api', fatal: true, message: failure }]
          default:
            return []
        }
      },
    }),
    used: () => tally.used(),
    question: () => null,
    conversation: () => conversation,
    save: (): Saved => ({ tally: tally.save(), conversation, failure, settled, messages, edits: [...edits] }),
    end: (exit) => {
      const end: HarnessEnd = {
        failure: failureOf({ ...TOLD, reached: settled, failure: failure }, exit, tally),
        // It asks what to do about an unknown session, gets no answer, and ends with status 0.
        conversationLost: start.kind !== 'new' && conversation === null && !exit.stopped,
        conversation,
        cumulative: tally.used(),
      }
      return { end, events: tally.end(tally.used()) }
    },
  }
}

const REPEATED = ['message_update', 'message_start', 'tool_execution_update', 'turn_end', 'agent_end'].map(
  (type) => `{"type":"${type}"`,
)

/** `400 {"type":"error","error":{"message":…}}` */
function plain(message: string): string {
  const [, status, rest] = /^(\d{3}) (\{[\s\S]*\})$/.exec(message) ?? []
  const said = text(object(jsonObject(rest ?? '')?.['error'])['message'])
  return said === '' ? message : `${status} ${said}`
}

function usageOf(usage: Json): Usage {
  const cost = object(usage['cost'])['total']
  const known = typeof cost === 'number' && Number.isFinite(cost)
  return {
    ...NO_USAGE,
    inputTokens: count(usage['input']),
    outputTokens: count(usage['output']),
    cacheReadTokens: count(usage['cacheRead']),
    cacheWriteTokens: count(usage['cacheWrite']),
    costUsd: known ? count(cost) : null,
    costSource: known ? 'reported' : null,
  }
}
