/** `hangar token …` */
import type { Command } from 'commander'
import { callJson } from '../client.ts'
import { collect, createContext } from '../command.ts'
import { ago } from '../output.ts'
import type { Listed, WireToken } from '../wire.ts'

export function addTokenCommands(program: Command): void {
  const token = program.command('token').description('work with tokens')

  token
    .command('create')
    .argument('<name>')
    .description('create a token and print it, this once')
    .requiredOption('--scope <scope>', 'read, sessions, jobs, repo:write or admin (may be repeated)', collect, [])
    .option('--repo <pattern>', 'only for repos such as acme/* (may be repeated)', collect, [])
    .option('--expires <time>', 'ISO 8601')
    .option('--json', "print the API's object")
    .action(
      async (
        name: string,
        options: { scope: readonly string[]; repo: readonly string[]; expires?: string; json?: boolean },
      ) => {
        const context = createContext(options)
        const made = await callJson<WireToken>(context.server(), {
          method: 'POST',
          path: '/api/tokens',
          body: {
            name,
            scopes: options.scope,
            ...(options.repo.length === 0 ? {} : { repos: options.repo }),
            ...(options.expires === undefined ? {} : { expires_at: options.expires }),
          },
        })
        if (context.output.json) context.output.data(`${JSON.stringify(made, null, 2)}\n`)
        else {
          context.output.data(`${made.token ?? ''}\n`)
          context.output.say(`token ${made.id} (${made.scopes.join(', ')}); it is shown this once`)
        }
      },
    )

  token
    .command('list')
    .description('list tokens')
    .option('--json', "print the API's object")
    .action(async (options: { json?: boolean }) => {
      const context = createContext(options)
      const listed = await callJson<Listed<WireToken>>(context.server(), { path: '/api/tokens' })
      const now = Date.now()
      const rows = listed.items.map((item) => [
        item.id,
        item.name,
        item.scopes.join(','),
        item.repos?.join(',') ?? '*',
        item.revoked_at === null ? (item.expires_at ?? 'never expires') : 'revoked',
        ago(item.created_at, now),
      ])
      context.output.table(['ID', 'NAME', 'SCOPES', 'REPOS', 'UNTIL', 'CREATED'], rows, listed)
    })

  token
    .command('revoke')
    .argument('<id>')
    .description('revoke a token at once')
    .action(async (id: string) => {
      const context = createContext({})
      await callJson<WireToken>(context.server(), { method: 'DELETE', path: `/api/tokens/${encodeURIComponent(id)}` })
      context.output.say(`token ${id} is revoked`)
    })
}
