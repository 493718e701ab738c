/** `hangar job show`: a job for people, its attempts side by side. */
import type { Context } from './command.ts'
import { ago, printable } from './output.ts'
import { usageText } from './timeline.ts'
import type { WireJob } from './wire.ts'

export function showJob({ output }: Context, job: WireJob): void {
  if (output.json) {
    output.data(`${JSON.stringify(job, null, 2)}\n`)
    return
  }
  const now = Date.now()
  const line = (text: string) => printable(text).split('\n')[0]?.slice(0, 200) ?? ''
  const { delivery, verification } = job
  const facts: [string, string | null][] = [
    ['job', job.id],
    ['repo', job.repo],
    ['state', job.state_reason === null ? job.state : `${job.state}: ${line(job.state_reason)}`],
    ['about', line(job.instructions)],
    ['asked by', job.requester],
    ['session', job.session],
    [
      'delivered',
      delivery === null
        ? null
        : `${delivery.branch} at ${delivery.commit.slice(0, 12)}${delivery.pushed ? ', upstream' : ''}`,
    ],
    ['pull req.', delivery?.pull_request_url ?? null],
    ['verified', verification === null ? null : `${verdict(verification)}: ${line(verification.command)}`],
    ['used', job.usage.input_tokens + job.usage.output_tokens === 0 ? null : usageText(job.usage)],
    ['updated', ago(job.updated_at, now)],
  ]
  for (const [key, value] of facts) if (value !== null) output.data(`${output.dim(key.padEnd(11))}${value}\n`)
  if (job.attempts.length > 1) {
    output.data('\n')
    output.table(
      ['RANK', 'ATTEMPT', 'OUTCOME', 'VERIFIED', 'FILES', 'LINES', 'BRANCH', 'WHY'],
      [...job.attempts]
        .sort((a, b) => (a.rank ?? 99) - (b.rank ?? 99) || a.attempt - b.attempt)
        .map(({ attempt, state, outcome, verification, diff, rank, reason, branch }) => [
          rank === null ? '' : String(rank),
          String(attempt),
          outcome ?? state,
          verification === null ? '' : verdict(verification),
          diff === null ? '' : String(diff.files),
          diff === null ? '' : `+${diff.insertions} -${diff.deletions}`,
          branch,
          reason === null ? '' : line(reason),
        ]),
      job.attempts,
    )
  }
  if (verification?.passed === false && verification.log_tail !== '')
    output.data(`\n${output.dim('the end of the verification:')}\n${printable(verification.log_tail).trimEnd()}\n`)
  if (job.result !== null) {
    if (job.result.summary !== null) output.data(`\n${printable(job.result.summary)}\n`)
    if (job.result.data !== null) output.data(`${JSON.stringify(job.result.data, null, 2)}\n`)
    for (const artifact of job.result.artifacts) output.data(`artifact: ${artifact.path} (${artifact.size} bytes)\n`)
  }
  output.data('\n')
  for (const entry of job.timeline)
    output.data(
      `${output.dim(entry.at.slice(0, 19).replace('T', ' '))}  ${entry.state.padEnd(18)}${line(entry.text)}\n`,
    )
  for (const warning of job.warnings) output.say(`warning: ${line(warning)}`)
  if (job.needs_input !== null) {
    output.data(`\nit asks: ${printable(job.needs_input)}\n`)
    for (const [place, option] of job.question_options.entries()) output.data(`  ${place + 1}. ${printable(option)}\n`)
    output.say(
      `answer with: hangar job follow-up ${job.id} "…"${job.question_options.length > 0 ? ', or --option N' : ''}`,
    )
  }
  if (job.attempts.length > 1) output.say(`compare two of them: hangar job diff ${job.id} 1 2`)
}

function verdict({ passed, exit_code, seconds }: NonNullable<WireJob['verification']>): string {
  if (passed === null) return 'runs'
  const took = seconds === null ? '' : ` in ${seconds} s`
  return passed ? `passed${took}` : `failed${exit_code === null ? '' : ` (${exit_code})`}${took}`
}
