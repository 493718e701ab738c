/**
 * Antigravity: `agy --print` with stream-json, conversations resumed by id, never forked. It cannot be run without a Google sign-in: this
 * follows public captures of 1.1.8 to 1.2.14, and was never tried on the program itself.
 */
import type { Harness, HarnessEnd, HarnessInput, HarnessParser, HarnessRun, ParserStart } from '../../domain/harness.ts'
import { NO_USAGE, type RunEventBody, sumUsage, type Usage, usageSince } from '../../domain/run-event.ts'
import { conversationId, count, type Json, list, MAX_JSON_LINE_BYTES, object, reason, shown, text } from './json.ts'
import { failureOf, readJsonLines } from './json-lines.ts'
import { createTally, type Tally } from './tally.ts'

export interface AntigravityOptions {
  readonly model: string | null
  /** Further arguments. */
  readonly args: readonly string[]
}

export function createAntigravityHarness({ model, args }: AntigravityOptions): Harness {
  return {
    kind: 'antigravity',
    forks: false,
    maxLineBytes: MAX_JSON_LINE_BYTES,
    state: ['conversations', 'brain', 'cache'].map((name) => `.gemini/antigravity-cli/${name}`),
    notKept: ['.gemini/antigravity-cli/token.json', '.gemini/oauth_creds.json'],
    run: (input) => commandLine(input, { model, args }),
    parser: createAntigravityParser,
  }
}

/** Linux takes no longer argument than this. */
const MAX_ARGUMENT_BYTES = 128 * 1024 - 64

function commandLine({ prompt, conversation }: HarnessInput, { model, args }: AntigravityOptions): HarnessRun {
  const long = Buffer.byteLength(prompt) > MAX_ARGUMENT_BYTES
  return {
    argv: [
      'agy',
      // A long prompt is in a file: the program takes it as an argument only.
      `--print=${long ? 'Do what the file $HANGAR_PROMPT_FILE says.' : prompt}`,
      ...['--output-format', 'stream-json', '--dangerously-skip-permissions'],
      // Its own limit is 5 minutes; hangar's decides.
      ...['--print-timeout', '168h'],
      ...(conversation.kind === 'resume' ? ['--conversation', conversation.id] : []),
      ...(model === null ? [] : ['--model', model]),
      ...args,
    ],
    env: {},
    stdin: new Uint8Array(),
  }
}

/** How its end is told. */
const TOLD = { program: 'Antigravity', milestone: 'its result' }

interface Saved {
  readonly tally: ReturnType<Tally['save']>
  readonly conversation: string | null
  readonly speaking: string
  /** The step whose tool call was told last: it may be repeated. */
  readonly called: number
  readonly final: { readonly failure: string | null; readonly cumulative: Usage } | null
}

/** Characters of a message that comes in pieces: more than is shown of it. */
const MAX_SPEAKING = 65_536

const EDIT_TOOLS = ['write_to_file', 'replace_file_content', 'multi_replace_file_content']

function createAntigravityParser({ before, conversation: start, saved }: ParserStart): HarnessParser {
  const from = (saved as Saved | null) ?? null
  const tally = createTally(from?.tally ?? null)
  let conversation = from?.conversation ?? null
  let speaking = from?.speaking ?? ''
  let called = from?.called ?? -1
  let final = from?.final ?? null

  const used = () => (final === null ? tally.used() : usageSince(final.cumulative, before))

  const step = (update: Json): RunEventBody[] => {
    const index = count(update['step_index'])
    const state = update['state']
    switch (update['step_type']) {
      case 'agent_response':
        return response(index, update)
      case 'tool':
        return tool(index, update)
      case 'error_message':
        return [
          { kind: 'error', scope: 'turn', fatal: false, message: text(update['text_delta']) || `step ${index} failed` },
        ]
      case 'system_message':
        return state === 'DONE' ? progressOf(text(update['text_delta'])) : []
      default:
        return []
    }
  }
  const response = (index: number, update: Json): RunEventBody[] => {
    speaking = (speaking + text(update['text_delta'])).slice(0, MAX_SPEAKING)
    if (update['state'] !== 'DONE') return []
    const said = speaking.trim()
    speaking = ''
    const usage = object(update['usage'])
    return [
      ...(said === '' ? [] : [{ kind: 'message' as const, role: 'assistant' as const, text: said }]),
      ...(update['usage'] === undefined ? [] : [tally.request(`step ${index}`, usageOf(usage), {})]),
    ]
  }
  const tool = (index: number, update: Json): RunEventBody[] => {
    const id = `step-${index}`
    const info = object(update['tool_info'])
    const name = text(info['name']) || text(update['tool_name'])
    const parameters = object(info['parameters'])
    const command = name === 'run_command' ? text(parameters['CommandLine']) : null
    const begins: RunEventBody[] =
      called === index
        ? []
        : [
            { kind: 'tool_call', id, name, input: shown(parameters) },
            ...(command === null ? [] : [{ kind: 'command' as const, id, phase: 'start' as const, command }]),
          ]
    called = index
    if (update['state'] !== 'DONE' && update['state'] !== 'ERROR') return begins
    const ok = update['state'] === 'DONE'
    const path = EDIT_TOOLS.includes(name) ? text(parameters['TargetFile']) : ''
    const said = ok ? shown(info['output'] ?? '') : text(object(info['error'])['message'])
    return [
      ...begins,
      // It does not tell the exit status.
      ...(command === null ? [] : [{ kind: 'command' as const, id, phase: 'end' as const, exitCode: null }]),
      ...(path === '' || !ok
        ? []
        : [
            {
              kind: 'file_change' as const,
              id,
              ok,
              changes: [{ path, change: name === 'write_to_file' ? ('write' as const) : ('update' as const) }],
            },
          ]),
      { kind: 'tool_result', id, name, ok, text: said },
    ]
  }
  const result = (ended: Json): RunEventBody[] => {
    conversation = conversationId(ended['conversation_id']) || conversation
    const failure = toldFailure(ended)
    final = { failure, cumulative: usageOf(object(ended['usage'])) }
    return failure === null ? [] : [{ kind: 'error', scope: 'turn', fatal: true, message: failure }]
  }

  return {
    line: readJsonLines(tally, {
      event: (event) => {
        switch (event['event']) {
          case 'init':
            conversation = conversationId(event['conversation_id']) || conversation
            return []
          case 'step_update':
            return step(object(event['step_update']))
          case 'result':
            return result(object(event['result']))
          default:
            return []
        }
      },
    }),
    used,
    question: () => null,
    conversation: () => conversation,
    save: (): Saved => ({ tally: tally.save(), conversation, speaking, called, final }),
    end: (exit) => {
      const end: HarnessEnd = {
        failure: failureOf({ ...TOLD, reached: final !== null, failure: final?.failure ?? null }, exit, tally),
        // It mints another conversation when it does not know the one it is given.
        conversationLost: start.kind === 'resume' && !exit.stopped && conversation !== start.id,
        conversation,
        cumulative: final?.cumulative ?? sumUsage([before, used()]),
      }
      return { end, events: tally.end(used()) }
    },
  }
}

/** Tools that were refused count as a failure whatever the status says. */
function toldFailure(ended: Json): string | null {
  const denied = list(ended['denied_actions'])
  if (denied.length > 0) return `Antigravity denied ${denied.length} action(s) of the agent`
  const status = text(ended['status'])
  if (status === 'SUCCESS' || status === 'OK') return null
  return reason(text(ended['error']) || `Antigravity ended its turn: ${status || 'without a status'}`)
}

function progressOf(message: string): RunEventBody[] {
  return message.trim() === '' ? [] : [{ kind: 'progress', source: 'harness', message: message.trim() }]
}

function usageOf(usage: Json): Usage {
  return {
    ...NO_USAGE,
    inputTokens: count(usage['input_tokens']),
    outputTokens: count(usage['output_tokens']),
    cacheReadTokens: count(usage['cache_read_tokens']),
    cacheWriteTokens: count(usage['cache_write_tokens']),
  }
}
