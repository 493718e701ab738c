/** Claude Code: `claude -p` with stream-json, its own conversations by id, cost as it reports it. Source: recorded streams of 2.1.332. */
import { MAX_QUESTION_OPTIONS } from '../../domain/hangar-io.ts'
import type {
  AskedQuestion,
  Harness,
  HarnessEnd,
  HarnessInput,
  HarnessParser,
  HarnessRun,
  ParserStart,
} from '../../domain/harness.ts'
import {
  type FileChange,
  NO_USAGE,
  type RunEventBody,
  sumUsage,
  type Usage,
  usageSince,
} from '../../domain/run-event.ts'
import {
  contentText,
  conversationId,
  count,
  type Json,
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

export interface ClaudeOptions {
  readonly model: string | null
  /** Further arguments. */
  readonly args: readonly string[]
}

/** Tools that make no sense where nobody watches and the sandbox ends with the turn. */
const DISALLOWED = ['AskUserQuestion', 'CronCreate', 'ScheduleWakeup', 'Monitor', 'EnterWorktree', 'ExitWorktree']
const QUESTION_TOOL = 'AskUserQuestion'
const COMMAND_TOOL = 'Bash'
const EDIT_TOOLS: Readonly<Record<string, FileChange['change']>> = {
  Edit: 'update',
  MultiEdit: 'update',
  NotebookEdit: 'update',
  Write: 'write',
}

export function createClaudeHarness({ model, args }: ClaudeOptions): Harness {
  return {
    kind: 'claude',
    forks: true,
    maxLineBytes: MAX_JSON_LINE_BYTES,
    state: ['.claude/projects'],
    notKept: ['.claude/.credentials.json'],
    run: (input) => commandLine(input, { model, args }),
    parser: createClaudeParser,
  }
}

function commandLine({ prompt, conversation }: HarnessInput, { model, args }: ClaudeOptions): HarnessRun {
  return {
    argv: [
      'claude',
      '-p',
      ...['--output-format', 'stream-json', '--verbose', '--include-partial-messages'],
      '--dangerously-skip-permissions',
      ...['--disallowedTools', DISALLOWED.join(',')],
      ...conversationArguments(conversation),
      ...(model === null ? [] : ['--model', model]),
      ...args,
    ],
    env: {
      // Lifts its refusal to run as root: the sandbox is what keeps it in.
      IS_SANDBOX: '1',
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      DISABLE_AUTOUPDATER: '1',
    },
    stdin: Buffer.from(prompt),
  }
}

function conversationArguments(conversation: HarnessInput['conversation']): string[] {
  switch (conversation.kind) {
    case 'new':
      return ['--session-id', conversation.id]
    case 'resume':
      return ['--resume', conversation.id]
    case 'fork':
      return ['--resume', conversation.parent, '--fork-session', '--session-id', conversation.id]
    default:
      return conversation satisfies never
  }
}

/** How its end is told. */
const TOLD = { program: 'Claude Code', milestone: 'its result' }

/** What is kept of a run, as JSON. */
interface Saved {
  readonly tally: ReturnType<Tally['save']>
  readonly conversation: string | null
  readonly question: AskedQuestion | null
  /** Tool calls that have no result yet, by id. */
  readonly tools: readonly (readonly [string, string])[]
  /** The message whose usage was counted last, by sub-agent: it is repeated with each of its blocks. */
  readonly counted: readonly (readonly [string, string])[]
  readonly final: {
    readonly failure: string | null
    readonly lost: boolean
    readonly used: Usage
    readonly cumulative: Usage
  } | null
}

/** How many tool calls without a result are remembered. */
const MAX_OPEN_TOOLS = 1_000

function createClaudeParser({ conversation: start, before, saved }: ParserStart): HarnessParser {
  const from = (saved as Saved | null) ?? null
  const tally = createTally(from?.tally ?? null)
  const tools = new Map(from?.tools ?? [])
  let conversation = from?.conversation ?? null
  let question = from?.question ?? null
  const counted = new Map(from?.counted ?? [])
  let final = from?.final ?? null

  /** The figures of a message's first sign are a lower bound. */
  const beginMessage = (parent: string, message: Json): RunEventBody[] => {
    const id = remembered(message['id'])
    if (counted.get(parent) === id) return []
    if (counted.size > MAX_OPEN_TOOLS) counted.clear()
    counted.set(parent, id)
    const model = text(message['model'])
    return [tally.request(id, usageOf(object(message['usage'])), { model, provisional: true })]
  }
  const assistant = (parent: string, event: Json): RunEventBody[] => {
    const message = object(event['message'])
    // Its own words about a failed request: the result tells them again, as an error.
    if (message['model'] === '<synthetic>') return []
    const events = list(message['content']).flatMap((block) => assistantBlock(object(block)))
    return [...events, ...beginMessage(parent, message)]
  }
  const assistantBlock = (block: Json): RunEventBody[] => {
    switch (block['type']) {
      case 'text':
        return messageEvent('assistant', text(block['text']))
      case 'thinking':
        return messageEvent('reasoning', text(block['thinking']))
      case 'tool_use':
        return toolCall(remembered(block['id']), remembered(block['name']), object(block['input']))
      default:
        return []
    }
  }
  const toolCall = (id: string, name: string, input: Json): RunEventBody[] => {
    if (tools.size < MAX_OPEN_TOOLS) tools.set(id, name)
    if (name === QUESTION_TOOL) question ??= questionOf(input)
    const call: RunEventBody = { kind: 'tool_call', id, name, input: shown(input) }
    if (name !== COMMAND_TOOL) return [call]
    return [call, { kind: 'command', id, phase: 'start', command: text(input['command']) }]
  }
  const toolResults = (event: Json): RunEventBody[] =>
    list(object(event['message'])['content'])
      .map(object)
      .filter((block) => block['type'] === 'tool_result')
      .flatMap((block) => toolResult(block, event['tool_use_result']))
  const toolResult = (block: Json, detail: unknown): RunEventBody[] => {
    const id = remembered(block['tool_use_id'])
    const name = tools.get(id)
    tools.delete(id)
    const ok = block['is_error'] !== true
    const said = contentText(block['content'])
    const changes = ok ? changesOf(name, object(detail)) : []
    return [
      ...(name === COMMAND_TOOL
        ? [{ kind: 'command' as const, id, phase: 'end' as const, exitCode: exitCodeOf(ok, said) }]
        : []),
      ...(changes.length === 0 ? [] : [{ kind: 'file_change' as const, id, ok, changes }]),
      { kind: 'tool_result', id, ok, text: said, ...(name === undefined ? {} : { name }) },
    ]
  }
  const system = (event: Json): RunEventBody[] => {
    if (event['subtype'] === 'init') conversation = conversationId(event['session_id']) || conversation
    if (event['subtype'] !== 'api_retry') return []
    const status = count(event['error_status'])
    const message = `the model's API refused (${status === 0 ? 'no status' : status} ${text(event['error'])}); attempt ${count(event['attempt'])} of ${count(event['max_retries'])} follows`
    return [{ kind: 'error', scope: 'api', fatal: false, retrying: true, message, ...(status === 0 ? {} : { status }) }]
  }
  /** With partial messages each response's own figures come at its end; what was told before was a lower bound. */
  const streamEvent = (parent: string, event: Json): RunEventBody[] => {
    const inner = object(event['event'])
    if (inner['type'] === 'message_start') return beginMessage(parent, object(inner['message']))
    if (inner['type'] !== 'message_delta') return []
    return [tally.request(counted.get(parent) ?? '', usageOf(object(inner['usage'])), {})]
  }
  const result = (event: Json): RunEventBody[] => {
    conversation = conversationId(event['session_id']) || conversation
    const cumulative = usageOfModels(event['modelUsage'])
    const since = event['model_usage_since_last_result']
    const used = since === undefined ? usageSince(cumulative, before) : usageOfModels(since)
    const failure = toldFailure(event)
    const lost =
      start.kind !== 'new' && list(event['errors']).some((error) => /No conversation found/.test(text(error)))
    final = { failure, lost, used, cumulative }
    if (failure === null) return []
    const status = count(event['api_error_status'])
    const scope = event['terminal_reason'] === 'api_error' ? 'api' : 'turn'
    return [{ kind: 'error', scope, fatal: true, message: failure, ...(status === 0 ? {} : { status }) }]
  }

  return {
    line: readJsonLines(tally, {
      // Most lines of a long answer: one for each piece of text, which the whole message repeats.
      repeats: (line) => line.startsWith('{"type":"stream_event","event":{"type":"content_block_'),
      event: (event) => {
        const parent = remembered(event['parent_tool_use_id'])
        const inParent = (events: RunEventBody[]) =>
          parent === '' ? events : events.map((body) => ({ ...body, parent }))
        switch (event['type']) {
          case 'assistant':
            return inParent(assistant(parent, event))
          case 'user':
            return inParent(toolResults(event))
          case 'system':
            return system(event)
          case 'stream_event':
            return inParent(streamEvent(parent, event))
          case 'result':
            return result(event)
          default:
            return []
        }
      },
    }),
    used: () => final?.used ?? tally.used(),
    question: () => question,
    conversation: () => conversation,
    save: (): Saved => ({
      tally: tally.save(),
      conversation,
      question,
      tools: [...tools],
      counted: [...counted],
      final,
    }),
    end: (exit) => {
      const used = final?.used ?? tally.used()
      const end: HarnessEnd = {
        failure: failureOf({ ...TOLD, reached: final !== null, failure: final?.failure ?? null }, exit, tally),
        conversationLost: final?.lost ?? false,
        conversation,
        cumulative: final?.cumulative ?? used,
      }
      return { end, events: tally.end(used) }
    },
  }
}

/** `subtype` says "success" of an API error as well. */
function toldFailure(event: Json): string | null {
  if (event['is_error'] !== true && event['subtype'] === 'success') return null
  const errors = list(event['errors'])
    .map(text)
    .filter((error) => error !== '')
  const said = errors.length > 0 ? errors.join('; ') : text(event['result'])
  return reason(
    said === '' ? `Claude Code ended its turn: ${text(event['terminal_reason']) || text(event['subtype'])}` : said,
  )
}

/** Of a failed command the text begins with its exit status. */
function exitCodeOf(ok: boolean, said: string): number | null {
  if (ok) return 0
  const code = /^Exit code (\d{1,3})\b/.exec(said)?.[1]
  return code === undefined ? null : Number(code)
}

function changesOf(name: string | undefined, detail: Json): FileChange[] {
  if (name === COMMAND_TOOL) {
    const diff = object(detail['bashEditDiff'])
    const created = new Set(
      list(diff['files'])
        .map(object)
        .filter((file) => file['created'] === true)
        .map((file) => text(file['filePath'])),
    )
    return list(diff['changedFiles'])
      .map(text)
      .filter((path) => path !== '')
      .map((path) => ({ path, change: created.has(path) ? 'add' : 'update' }))
  }
  const change = EDIT_TOOLS[name ?? '']
  const path = text(detail['filePath'])
  if (change === undefined || path === '') return []
  return [{ path, change: detail['type'] === 'create' ? 'add' : change }]
}

function questionOf(input: Json): AskedQuestion {
  const questions = list(input['questions']).map(object)
  const first = questions[0] ?? input
  const asked = questions.map((question) => text(question['question'])).filter((question) => question !== '')
  return {
    text: reason(asked.join('\n\n') || text(input['question']) || 'The agent asked a question without saying which.'),
    options:
      questions.length > 1
        ? []
        : list(first['options'])
            .map((option) => remembered(typeof option === 'string' ? option : object(option)['label']))
            .filter((option) => option !== '')
            .slice(0, MAX_QUESTION_OPTIONS),
  }
}

function usageOf(usage: Json): Usage {
  return {
    ...NO_USAGE,
    inputTokens: count(usage['input_tokens']),
    outputTokens: count(usage['output_tokens']),
    cacheReadTokens: count(usage['cache_read_input_tokens']),
    cacheWriteTokens: count(usage['cache_creation_input_tokens']),
  }
}

function usageOfModels(models: unknown): Usage {
  return sumUsage(
    Object.values(object(models)).map((value) => {
      const usage = object(value)
      return {
        inputTokens: count(usage['inputTokens']),
        outputTokens: count(usage['outputTokens']),
        cacheReadTokens: count(usage['cacheReadInputTokens']),
        cacheWriteTokens: count(usage['cacheCreationInputTokens']),
        costUsd: count(usage['costUSD']),
        costSource: 'reported',
      }
    }),
  )
}
