/** `hangar audit` */
import type { Command } from 'commander'
import { callJson } from '../client.ts'
import { createContext } from '../command.ts'
import type { Listed, WireAuditEntry } from '../wire.ts'

export function addAuditCommand(program: Command): void {
  program
    .command('audit')
    .description('list decisions on pushes, newest first; in git: refs/hangar/audit of hangar.git')
    .option('--repo <repo>', 'only of this repo')
    .option('--ref <ref>', 'only of this ref, by its full name')
    .option('--by <who>', 'only of this token or grant: token:ID or grant:SANDBOX')
    .option('--rule <rule>', 'only what this rule refused')
    .option('--refused', 'only what was refused')
    .option('--limit <n>', 'at most so many (default 100)')
    .option('--cursor <cursor>', 'go on where a page before ended')
    .option('--json', "print the API's object")
    .action(async (options: Readonly<Record<string, string | boolean | undefined>>) => {
      const context = createContext({ json: options['json'] === true })
      const query = new URLSearchParams()
      for (const name of ['repo', 'ref', 'by', 'rule', 'limit', 'cursor'])
        if (typeof options[name] === 'string') query.set(name, options[name])
      if (options['refused'] === true) query.set('decision', 'refused')
      const listed = await callJson<Listed<WireAuditEntry>>(context.server(), { path: `/api/audit?${query}` })
      const rows = listed.items.map((entry) => [
        entry.at,
        entry.by,
        entry.repo,
        entry.ref,
        `${entry.old.slice(0, 10)}..${entry.new.slice(0, 10)}`,
        entry.decision + (entry.forced ? ' (forced)' : '') + (entry.times > 1 ? ` (${entry.times} times)` : ''),
        entry.rule === null ? '' : `${entry.rule}: ${entry.reason ?? ''}`,
      ])
      context.output.table(['AT', 'BY', 'REPO', 'REF', 'MOVE', 'DECISION', 'RULE'], rows, listed)
      if (listed.next_cursor !== null) context.output.say(`there is more: --cursor ${listed.next_cursor}`)
    })
}
