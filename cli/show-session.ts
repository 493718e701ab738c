/** A session for a person: where it stands, and each of its turns in a few lines. */
import type { Context } from './command.ts'
import { ago, printable } from './output.ts'
import { usageText } from './timeline.ts'
import type { WireSession, WireTurn } from './wire.ts'

export function showSession({ output }: Context, session: WireSession): void {
  if (output.json) {
    output.data(`${JSON.stringify(session, null, 2)}\n`)
    return
  }
  const now = Date.now()
  const short = (oid: string | null) => oid?.slice(0, 12) ?? 'none'
  const facts: [string, string][] = [
    ['session', session.name],
    ['repo', session.repo],
    ['state', session.state],
    ['branch', `${session.branch} at ${short(session.head_commit)}`],
    ['base', short(session.base_commit)],
    [
      'checkpoint',
      session.checkpoint === null ? 'none' : `${short(session.checkpoint.commit)} of turn ${session.checkpoint.turn}`,
    ],
    [
      'sandbox',
      session.sandbox === null
        ? 'none'
        : `${session.sandbox.id} (${session.sandbox.provider}, ${session.sandbox.state})`,
    ],
    ['agent', `${session.harness} in environment ${session.environment}`],
    ...(session.usage.input_tokens + session.usage.output_tokens === 0
      ? []
      : [['used', usageText(session.usage)] as [string, string]]),
    ['updated', ago(session.updated_at, now)],
  ]
  for (const [key, value] of facts) output.data(`${output.dim(key.padEnd(11))}${value}\n`)
  for (const turn of session.turns) output.data(`\n${turnText(turn, output.bold(`turn ${turn.turn}`))}`)
  if (session.needs_input === null) return
  output.data(`\nit asks: ${printable(session.needs_input)}\n`)
  for (const [place, option] of session.question_options.entries())
    output.data(`  ${place + 1}. ${printable(option)}\n`)
  output.say(
    `answer with: hangar session send ${session.name} "…"${session.question_options.length > 0 ? ', or --option N' : ''}`,
  )
}

function turnText(turn: WireTurn, title: string): string {
  const lines = [`${title} ${turn.outcome ?? turn.state}: ${firstLine(turn.message)}`]
  if (turn.error !== null) lines.push(`  ${turn.error.code}: ${firstLine(turn.error.message)}`)
  if (turn.summary !== null)
    lines.push(
      ...printable(turn.summary)
        .split('\n')
        .slice(0, 12)
        .map((line) => `  ${line}`),
    )
  if (turn.usage !== null) lines.push(`  used: ${usageText(turn.usage)}`)
  if (turn.repair_usage !== null) lines.push(`  used by the repair of its result: ${usageText(turn.repair_usage)}`)
  if (turn.result !== null) lines.push(`  result: ${JSON.stringify(turn.result).slice(0, 300)}`)
  if (turn.result_error !== null) lines.push(`  no structured result: ${firstLine(turn.result_error)}`)
  for (const artifact of turn.artifacts) lines.push(`  artifact: ${artifact.path} (${artifact.size} bytes)`)
  for (const warning of turn.warnings) lines.push(`  warning: ${firstLine(warning)}`)
  return `${lines.join('\n')}\n`
}

function firstLine(text: string): string {
  return printable(text).split('\n')[0]?.slice(0, 200) ?? ''
}
