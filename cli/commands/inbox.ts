/** `hangar inbox`: the questions and approvals that wait for a person. */
import type { Command } from 'commander'
import { callJson } from '../client.ts'
import { type Context, createContext } from '../command.ts'
import { duration, printable } from '../output.ts'
import type { Listed, WireInboxItem } from '../wire.ts'

export function addInboxCommand(program: Command): void {
  program
    .command('inbox')
    .description('list the questions and approvals that wait for a person, the oldest first')
    .option('--json', "print the API's object")
    .action(async (options: { json?: boolean }) => {
      const context = createContext(options)
      const items = await readAll(context)
      show(context, items)
      if (items.length === 0)
        context.output.say('nothing waits for an answer; see what agents are doing with: hangar session list')
    })
}

async function readAll(context: Context): Promise<WireInboxItem[]> {
  const found: WireInboxItem[] = []
  let cursor: string | null = null
  do {
    const page: Listed<WireInboxItem> = await callJson<Listed<WireInboxItem>>(context.server(), {
      path: '/api/inbox',
      query: { limit: 200, cursor: cursor ?? undefined },
    })
    found.push(...page.items)
    cursor = page.next_cursor
  } while (cursor !== null)
  return found
}

/** On a terminal a block for each, since a question with its answers is no table's cell. */
function show({ output }: Context, items: readonly WireInboxItem[]): void {
  const now = Date.now()
  if (output.json || !output.terminal) {
    const rows = items.map((item) => [
      item.ref,
      item.repo,
      String(item.turn),
      item.since,
      item.requester ?? '',
      item.question,
      ...item.question_options,
    ])
    output.table([], rows, { items, next_cursor: null })
    return
  }
  for (const item of items) {
    const by = item.requester === null ? '' : `, asked for by ${printable(item.requester)}`
    output.data(
      `${output.bold(item.ref)} on ${item.repo} waits for ${duration(item.since, now)} (turn ${item.turn}${by})\n`,
    )
    output.data(`${printable(item.question).trim().replace(/^/gm, '  ')}\n`)
    for (const [place, option] of item.question_options.entries()) output.data(`  ${place + 1}. ${printable(option)}\n`)
    output.data(`  ${output.dim(nextStep(item))}\n\n`)
  }
}

function nextStep({ kind, ref, question_options: options }: WireInboxItem): string {
  if (kind === 'approval') return `let it begin with: hangar job approve ${ref}, or not: hangar job reject ${ref}`
  const choice = options.length === 0 ? '"…"' : `--option 1${options.length > 1 ? `…${options.length}` : ''}, or "…"`
  const command = ref.startsWith('job-') ? 'job follow-up' : 'session send'
  return `answer with: hangar ${command} ${ref} ${choice}`
}
