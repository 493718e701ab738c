/** The recorded streams of real agent programs, read by their parsers and written down as one short line for each event. */
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { ConversationStart, Harness, HarnessEnd } from '../../domain/harness.ts'
import { NO_USAGE, type RunEventBody, type Usage } from '../../domain/run-event.ts'
import { createAntigravityHarness } from '../../orchestrator/harnesses/antigravity.ts'
import { createClaudeHarness } from '../../orchestrator/harnesses/claude.ts'
import { createCodexHarness } from '../../orchestrator/harnesses/codex.ts'
import { createLineReader, START_OF_LINES } from '../../orchestrator/harnesses/lines.ts'
import { createPiHarness } from '../../orchestrator/harnesses/pi.ts'

export const FIXTURES = fileURLToPath(new URL('../../../test/fixtures/harness/', import.meta.url))

export const HARNESSES: Readonly<Record<string, Harness>> = {
  claude: createClaudeHarness({ model: null, args: [] }),
  codex: createCodexHarness({ model: null, args: [] }),
  pi: createPiHarness({ provider: null, model: null, args: [] }),
  antigravity: createAntigravityHarness({ model: null, args: [] }),
}

export interface Recorded {
  /** `claude/tools` */
  readonly name: string
  readonly harness: Harness
  readonly bytes: Buffer
  readonly stderr: string
  readonly exitCode: number | null
  readonly conversation: ConversationStart
  /** What the conversation had used before. */
  readonly before: Usage
}

/** What conversations had used before the recorded run, where its counters go on. */
const BEFORE: Readonly<Record<string, readonly [input: number, cached: number, output: number]>> = {
  'codex/resume': [18_775, 17_780, 145],
  'codex/fork': [27_575, 26_380, 163],
  'codex/resume-other-cwd': [27_575, 26_380, 163],
  'codex/moved-home-sessions-only': [31_975, 30_680, 172],
  'codex/moved-one-rollout': [31_975, 30_680, 172],
  'codex/moved-cwd': [36_375, 34_980, 181],
  'codex/moved-home-fork': [36_375, 34_980, 181],
  'probe/codex-par1': [31_975, 30_680, 172],
  'probe/codex-par2': [31_975, 30_680, 172],
  'antigravity/resume-cumulative': [18_200, 24_200, 1_080],
}

export function recordedStreams(): Recorded[] {
  return ['claude', 'codex', 'pi', 'antigravity', 'probe'].flatMap((dir) =>
    readdirSync(FIXTURES + dir)
      .filter((file) => file.endsWith('.jsonl'))
      .map((file) => recorded(`${dir}/${file.replace(/\.jsonl$/, '')}`)),
  )
}

function recorded(name: string): Recorded {
  const kind = name.startsWith('probe/') ? (/probe\/(\w+)-/.exec(name)?.[1] ?? '') : (name.split('/')[0] ?? '')
  const harness = HARNESSES[kind]
  if (harness === undefined) throw new Error(`${name} is of no harness`)
  const bytes = readFileSync(`${FIXTURES}${name}.jsonl`)
  const meta =
    kind === 'antigravity'
      ? { exit: 0, stderr: '', cmd: name.includes('resume') ? ['agy', '--conversation'] : [] }
      : (JSON.parse(readFileSync(`${FIXTURES}${name}.meta.json`, 'utf8')) as Meta)
  const [input = 0, cached = 0, output = 0] = BEFORE[name] ?? []
  return {
    name,
    harness,
    bytes,
    stderr: meta.stderr,
    exitCode: meta.exit,
    conversation: conversationOf(meta.cmd),
    before: {
      ...NO_USAGE,
      inputTokens: kind === 'codex' ? input - cached : input,
      cacheReadTokens: cached,
      outputTokens: output,
    },
  }
}

interface Meta {
  readonly exit: number | null
  readonly stderr: string
  readonly cmd: readonly string[]
}

/** The id is the one that the recording was asked for, where that matters: an Antigravity conversation is its own. */
function conversationOf(cmd: readonly string[]): ConversationStart {
  if (cmd.includes('--conversation')) return { kind: 'resume', id: '00000000-0000-4000-8000-000000000a97' }
  if (cmd.includes('fork') || cmd.includes('--fork-session') || cmd.includes('--fork'))
    return { kind: 'fork', parent: 'parent', id: 'child' }
  if (cmd.some((word) => ['resume', '--resume', '--session'].includes(word))) return { kind: 'resume', id: 'asked' }
  return { kind: 'new', id: 'new' }
}

export interface Read {
  readonly events: readonly RunEventBody[]
  readonly end: HarnessEnd
  readonly used: Usage
}

/** Reads a stream in chunks; `restarts` throws the reader and parser away after each chunk and takes up from what was saved. */
export function readStream(stream: Recorded, chunks: Iterable<Buffer>, restarts = false): Read {
  const { harness, conversation, before } = stream
  const open = (saved: unknown) => harness.parser({ conversation, before, saved })
  let reader = createLineReader(START_OF_LINES, harness.maxLineBytes)
  let parser = open(null)
  const events: RunEventBody[] = []
  let rest = Buffer.alloc(0)
  for (const chunk of chunks) {
    for (const line of reader.push(Buffer.concat([rest, chunk]), false))
      events.push(...parser.line('out', line.text, line.cut))
    rest = Buffer.alloc(0)
    if (!restarts) continue
    const cursor = reader.cursor()
    // What is not part of a line yet comes again.
    rest = Buffer.from(stream.bytes.subarray(cursor.offset, reader.position()))
    reader = createLineReader(cursor, harness.maxLineBytes)
    parser = open(JSON.parse(JSON.stringify(parser.save())))
  }
  for (const line of reader.push(rest, true)) events.push(...parser.line('out', line.text, line.cut))
  // Not part of what is written down, but of why a run failed.
  for (const line of stream.stderr.split('\n')) parser.line('err', line, false)
  const { end, events: last } = parser.end({ exitCode: stream.exitCode, stopped: false })
  return { events: [...events, ...last], end, used: parser.used() }
}

/** A run as text: one line for each event, then what it came to. */
export function written(stream: Recorded, { events, end }: Read): string {
  const lines = events.map((event) => `  ${eventLine(event)}`)
  const outcome = end.failure === null ? 'ended well' : `failed: ${clip(end.failure)}`
  const lost = end.conversationLost ? ', its conversation is lost' : ''
  return [
    `== ${stream.name}: ${outcome}${lost}`,
    `  conversation ${end.conversation === null ? 'none' : 'known'}`,
    ...lines,
  ].join('\n')
}

function eventLine(event: RunEventBody): string {
  const parent = event.parent === undefined ? '' : ' (of a sub-agent)'
  switch (event.kind) {
    case 'message':
      return `${event.role}: ${clip(event.text)}${parent}`
    case 'tool_call':
      return `call ${event.name} ${clip(event.input)}`
    case 'tool_result':
      return `result ${event.name ?? ''} ${event.ok ? 'ok' : 'not ok'}: ${clip(event.text)}`
    case 'command':
      return event.phase === 'start' ? `$ ${clip(event.command ?? '')}` : `exit ${String(event.exitCode)}`
    case 'file_change':
      return `files ${event.ok ? 'ok' : 'not ok'}: ${event.changes.map(({ path, change }) => `${change} ${path}`).join(', ')}`
    case 'error':
      return `error ${event.scope}${event.fatal ? ' fatal' : ''}${event.retrying ? ' retrying' : ''}${event.status === undefined ? '' : ` ${event.status}`}: ${clip(event.message)}`
    case 'usage': {
      const { inputTokens, outputTokens, cacheReadTokens, cacheWriteTokens, costUsd } = event.usage
      const cost = costUsd === null ? '' : ` ${costUsd.toFixed(6)} USD`
      return `usage of the ${event.scope}${event.provisional ? ', at least' : ''}: in ${inputTokens}, out ${outputTokens}, cached ${cacheReadTokens}, to cache ${cacheWriteTokens}${cost}`
    }
    case 'progress':
      return `progress ${event.pct ?? ''} ${clip(event.message)}`
    case 'state':
      return `state ${event.state}`
    default:
      return event satisfies never
  }
}

function clip(text: string): string {
  const line = text.replace(/\n/g, '\\n')
  return line.length <= 100 ? line : `${line.slice(0, 80)}… (${line.length})`
}
