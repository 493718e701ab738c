/** Codex CLI: `codex exec --json`, threads resumed and forked by id, usage counted over the thread. Source: recorded streams of 0.171.0. */
import type { Harness, HarnessEnd, HarnessInput, HarnessParser, HarnessRun, ParserStart } from '../../domain/harness.ts'
import { type FileChange, NO_USAGE, type RunEventBody, type Usage, usageSince } from '../../domain/run-event.ts'
import {
  conversationId,
  count,
  type Json,
  jsonObject,
  list,
  MAX_JSON_LINE_BYTES,
  object,
  reason,
  shown,
  text,
} from './json.ts'
import { failureOf, messageEvent, readJsonLines } from './json-lines.ts'
import { createTally, type Tally } from './tally.ts'

export interface CodexOptions {
  readonly model: string | null
  /** Further arguments, `-c key=value` among them. */
  readonly args: readonly string[]
}

export function createCodexHarness({ model, args }: CodexOptions): Harness {
  return {
    kind: 'codex',
    forks: true,
    maxLineBytes: MAX_JSON_LINE_BYTES,
    // A fork's rollout only points at its parent's, so the whole tree is kept.
    state: ['.codex/sessions'],
    notKept: ['.codex/auth.json'],
    // Its output tells the usage only when the turn is complete.
    sideLog: (thread) => ({ directory: '.codex/sessions', name: `rollout-*-${thread}.jsonl` }),
    run: (input) => commandLine(input, { model, args }),
    parser: createCodexParser,
  }
}

function commandLine({ prompt, conversation }: HarnessInput, { model, args }: CodexOptions): HarnessRun {
  const verb =
    conversation.kind === 'new'
      ? []
      : [conversation.kind, conversation.kind === 'resume' ? conversation.id : conversation.parent]
  const [subcommand = [], id = []] = verb.map((word) => [word])
  return {
    argv: [
      ...['codex', 'exec'],
      ...subcommand,
      // The sandbox is hangar's; its own does not run in it.
      ...['--json', '--dangerously-bypass-approvals-and-sandbox', '--skip-git-repo-check'],
      ...(model === null ? [] : ['-m', model]),
      ...args,
      ...id,
      '-',
    ],
    // Its home is ~/.codex, which it makes; named by CODEX_HOME it would have to be there.
    env: {},
    stdin: Buffer.from(prompt),
  }
}

/** How its end is told. */
const TOLD = { program: 'Codex', milestone: 'its turn was complete' }

interface Saved {
  readonly tally: ReturnType<Tally['save']>
  readonly thread: string | null
  readonly failure: string | null
  /** What its output told at the end of the turn. */
  readonly completed: Usage | null
  /** What its rollout file told last: it also has the turns that were stopped, which the output leaves out. */
  readonly recorded: Usage | null
}

/** It says so on standard error in every run. */
const NO_ERROR = /^(WARNING: proceeding|Reading (additional input|prompt) from stdin)/
/** Codex retries and says so in an error like any other. */
const RETRYING = /^Reconnecting\.\.\. \d+\/\d+/

function createCodexParser({ before, conversation, saved }: ParserStart): HarnessParser {
  const from = (saved as Saved | null) ?? null
  const tally = createTally(from?.tally ?? null)
  let thread = from?.thread ?? null
  let failure = from?.failure ?? null
  let completed = from?.completed ?? null
  let recorded = from?.recorded ?? null

  const used = () => usageSince(recorded ?? completed ?? before, before)

  const itemStarted = (item: Json): RunEventBody[] => {
    const id = text(item['id'])
    switch (item['type']) {
      case 'command_execution': {
        const command = unwrapped(text(item['command']))
        return [
          { kind: 'tool_call', id, name: 'shell', input: command },
          { kind: 'command', id, phase: 'start', command },
        ]
      }
      case 'file_change':
        return [{ kind: 'tool_call', id, name: 'apply_patch', input: shown(item['changes'] ?? []) }]
      case 'mcp_tool_call':
        return [
          {
            kind: 'tool_call',
            id,
            name: `${text(item['server'])}.${text(item['tool'])}`,
            input: shown(item['arguments'] ?? {}),
          },
        ]
      case 'web_search':
        return [{ kind: 'tool_call', id, name: 'web_search', input: text(item['query']) }]
      default:
        return []
    }
  }
  const itemCompleted = (item: Json): RunEventBody[] => {
    const id = text(item['id'])
    const ok = item['status'] !== 'failed'
    switch (item['type']) {
      case 'agent_message':
        return messageEvent('assistant', text(item['text']))
      case 'reasoning':
        return messageEvent('reasoning', text(item['text']))
      case 'command_execution': {
        const exitCode = typeof item['exit_code'] === 'number' ? item['exit_code'] : null
        return [
          { kind: 'command', id, phase: 'end', exitCode },
          { kind: 'tool_result', id, name: 'shell', ok: ok && exitCode === 0, text: text(item['aggregated_output']) },
        ]
      }
      case 'file_change': {
        const changes = list(item['changes']).map((change) => changeOf(object(change)))
        return [
          { kind: 'file_change', id, ok, changes },
          { kind: 'tool_result', id, name: 'apply_patch', ok, text: changes.map(({ path }) => path).join('\n') },
        ]
      }
      case 'mcp_tool_call':
        return [{ kind: 'tool_result', id, ok, text: shown(item['result'] ?? item['error'] ?? '') }]
      case 'web_search':
        return [{ kind: 'tool_result', id, name: 'web_search', ok, text: '' }]
      case 'todo_list':
        return progressOf(list(item['items']).map(object))
      case 'error':
        return [{ kind: 'error', scope: 'harness', fatal: false, message: text(item['message']) }]
      default:
        return []
    }
  }
  const failed = (message: string): RunEventBody[] => {
    const first = failure === null
    failure = message === '' ? 'Codex failed its turn without saying why' : reason(message)
    return first ? [{ kind: 'error', scope: 'turn', fatal: true, message: failure }] : []
  }

  return {
    line: readJsonLines(tally, {
      isNoise: (line) => NO_ERROR.test(line),
      event: (event) => {
        switch (event['type']) {
          case 'thread.started':
            thread = conversationId(event['thread_id']) || thread
            return []
          case 'item.started':
            return itemStarted(object(event['item']))
          case 'item.completed':
            return itemCompleted(object(event['item']))
          case 'error': {
            const message = plain(text(event['message']))
            return [
              {
                kind: 'error',
                scope: 'api',
                fatal: false,
                message,
                ...(RETRYING.test(message) ? { retrying: true } : {}),
              },
            ]
          }
          case 'turn.failed':
            return failed(plain(text(object(event['error'])['message'])))
          case 'turn.completed':
            completed = usageOf(object(event['usage']))
            return []
          default:
            return []
        }
      },
    }),
    side: (line) => {
      // Only these lines matter, and the others are long.
      if (!line.includes('"type":"token_usage_record"')) return []
      const payload = object(jsonObject(line)?.['payload'])
      const total = usageOf(object(payload['thread_token_usage']))
      // Those of earlier turns are there as well.
      if (payload['thread_id'] !== thread || tokensOf(total) <= tokensOf(recorded ?? before)) return []
      recorded = total
      return [tally.request(text(payload['response_id']), usageOf(object(payload['usage'])), {})]
    },
    used,
    question: () => null,
    conversation: () => thread,
    save: (): Saved => ({ tally: tally.save(), thread, failure, completed, recorded }),
    end: (exit) => {
      const end: HarnessEnd = {
        failure: failureOf({ ...TOLD, reached: completed !== null, failure: failure }, exit, tally),
        // An unknown thread ends it with an empty output.
        conversationLost: conversation.kind !== 'new' && thread === null && !exit.stopped,
        conversation: thread,
        cumulative: recorded ?? completed ?? before,
      }
      return { end, events: tally.end(used()) }
    },
  }
}

/** Commands come wrapped: `/bin/bash -lc '…'`. */
function unwrapped(command: string): string {
  const single = /^(?:\/\S*\/)?(?:ba|z)?sh -lc '([\s\S]*)'$/.exec(command)?.[1]
  if (single !== undefined) return single.replaceAll(`'\\''`, `'`)
  const double = /^(?:\/\S*\/)?(?:ba|z)?sh -lc "([\s\S]*)"$/.exec(command)?.[1]
  return double === undefined ? command : double.replace(/\\(["\\$`])/g, '$1')
}

function changeOf(change: Json): FileChange {
  const kind = change['kind']
  return { path: text(change['path']), change: kind === 'add' || kind === 'delete' ? kind : 'update' }
}

function progressOf(items: readonly Json[]): RunEventBody[] {
  const open = items.find((item) => item['completed'] !== true)
  if (items.length === 0) return []
  const done = items.filter((item) => item['completed'] === true).length
  const message = open === undefined ? 'all steps are done' : text(open['text'])
  return [{ kind: 'progress', source: 'harness', message, pct: Math.round((done / items.length) * 100) }]
}

/** An API's error arrives as its JSON. */
function plain(message: string): string {
  return text(object(jsonObject(message)?.['error'])['message']) || message
}

function tokensOf(usage: Usage): number {
  return usage.inputTokens + usage.cacheReadTokens + usage.cacheWriteTokens + usage.outputTokens
}

/** Codex counts cached and cache-writing tokens inside its input. */
function usageOf(usage: Json): Usage {
  const cacheReadTokens = count(usage['cached_input_tokens'])
  const cacheWriteTokens = count(usage['cache_write_input_tokens'])
  return {
    ...NO_USAGE,
    inputTokens: Math.max(0, count(usage['input_tokens']) - cacheReadTokens - cacheWriteTokens),
    outputTokens: count(usage['output_tokens']),
    cacheReadTokens,
    cacheWriteTokens,
  }
}
