/** `hangar repo …` */
import type { Command } from 'commander'
import { callJson } from '../client.ts'
import { createContext } from '../command.ts'
import { usage } from '../failure.ts'
import type { Listed, WireRepo } from '../wire.ts'

export function addRepoCommands(program: Command): void {
  const repo = program.command('repo').description('work with repos')

  repo
    .command('add')
    .argument('<slug>', 'owner/name')
    .description('host a repo on the server, or have one follow an upstream')
    .option('--upstream <url>', 'the https URL of the repository that it follows')
    .option('--credential <name>', 'for the upstream: github-app, github-token or env:HANGAR_CREDENTIAL_…')
    .option('--json', "print the API's object")
    .action(async (slug: string, options: { upstream?: string; credential?: string; json?: boolean }) => {
      const context = createContext(options)
      const { upstream, credential } = options
      const made = await callJson<WireRepo>(context.server(), {
        method: 'POST',
        path: '/api/repos',
        body: { slug, upstream, credential },
      })
      if (context.output.json) context.output.data(`${JSON.stringify(made, null, 2)}\n`)
      else if (made.upstream_error !== null)
        context.output.say(`${made.slug} could not be fetched yet: ${made.upstream_error.message}`)
      else if (made.upstream !== null)
        context.output.say(`${made.slug} follows ${made.upstream}; fetch it from ${made.url}`)
      else
        context.output.say(`${made.slug} is hosted; push to it with a token as the password: git push ${made.url} main`)
    })

  repo
    .command('list')
    .description('list repos')
    .option('--json', "print the API's object")
    .action(async (options: { json?: boolean }) => {
      const context = createContext(options)
      const listed = await callJson<Listed<WireRepo>>(context.server(), { path: '/api/repos' })
      context.output.table(
        ['SLUG', 'DEFAULT', 'URL', 'UPSTREAM'],
        listed.items.map((item) => [item.slug, item.default_branch, item.url, item.upstream ?? '']),
        listed,
      )
      if (listed.items.length === 0) context.output.say('no repos; host one with: hangar repo add OWNER/NAME')
    })

  repo
    .command('remove')
    .argument('<slug>', 'owner/name')
    .description('remove a repo with all that is in it')
    .option('--yes', 'really')
    .action(async (slug: string, options: { yes?: boolean }) => {
      const context = createContext({})
      if (options.yes !== true)
        throw usage(
          `this removes ${slug} with all its commits from the server; to do it: hangar repo remove ${slug} --yes`,
        )
      const path = `/api/repos/${slug.split('/').map(encodeURIComponent).join('/')}`
      await callJson<WireRepo>(context.server(), { method: 'DELETE', path })
      context.output.say(`${slug} is gone`)
    })
}
