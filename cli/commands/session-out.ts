/** `hangar session patch|pull|artifacts` */
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve, sep } from 'node:path'
import type { Command } from 'commander'
import { pullSession } from '../apply-work.ts'
import { findCheckout } from '../checkout.ts'
import { call, callJson } from '../client.ts'
import { createContext, wholeNumber } from '../command.ts'
import { usage } from '../failure.ts'
import type { Listed, WireArtifact, WireSession } from '../wire.ts'

export function addSessionOutCommands(session: Command): void {
  session
    .command('patch')
    .argument('<name>')
    .description('print the whole change as a patch, for git apply')
    .option('--turn <n>', "up to this turn's end", wholeNumber)
    .option('--from <what>', 'base (default) or handover: leave out what was handed over')
    .action(async (name: string, options: { turn?: number; from?: string }) => {
      const context = createContext({})
      const response = await call(context.server(), {
        path: `${path(name)}/patch`,
        query: { turn: options.turn, from: options.from },
      })
      context.output.data(Buffer.from(await response.arrayBuffer()))
    })

  session
    .command('pull')
    .argument('<name>')
    .description("fetch the session's commits into a local branch; with --checkout take over its whole working state")
    .option('--checkout', 'switch to the branch, with the uncommitted changes')
    .option('--force', 'overwrite commits of the local branch that the session does not have')
    .option('--branch <branch>', 'the local branch; default hangar/<name>')
    .action(pull)

  session
    .command('artifacts')
    .argument('<name>')
    .description('list the files that the agent handed back')
    .option('--get <path>', 'print one (the newest of that path) to standard output')
    .option('--all <dir>', 'save the newest of each into a directory')
    .option('--json', "print the API's object")
    .action(artifacts)
}

async function pull(name: string, options: { checkout?: boolean; force?: boolean; branch?: string }): Promise<void> {
  const context = createContext({})
  const checkout = findCheckout(context.cwd)
  const session = await callJson<WireSession>(context.server(), { path: path(name) })
  const pulled = await pullSession(checkout, {
    server: context.server(),
    session,
    branch: options.branch ?? `hangar/${name}`,
    checkout: options.checkout === true,
    force: options.force === true,
  })
  const { say } = context.output
  const at = pulled.head === null ? 'no commits yet' : pulled.head.slice(0, 12)
  if (pulled.checkedOut) say(`you are on ${pulled.branch} at ${at}, with the session's uncommitted changes`)
  else if (pulled.moved)
    say(
      `${pulled.branch} is at ${at}; look at it with: git log ${pulled.branch}\ntake over its uncommitted changes as well with: hangar session pull ${name} --checkout`,
    )
  else say(`${pulled.branch} is up to date at ${at}`)
}

async function artifacts(name: string, options: { get?: string; all?: string; json?: boolean }): Promise<void> {
  const context = createContext(options)
  const listed = await callJson<Listed<WireArtifact>>(context.server(), { path: `${path(name)}/artifacts` })
  const newest = new Map(listed.items.map((artifact) => [artifact.path, artifact]))
  const content = async (artifact: WireArtifact) => {
    const encoded = artifact.path.split('/').map(encodeURIComponent).join('/')
    return Buffer.from(
      await (
        await call(context.server(), { path: `${path(name)}/artifacts/${artifact.turn}/${encoded}` })
      ).arrayBuffer(),
    )
  }
  if (options.get !== undefined) {
    const artifact = newest.get(options.get)
    if (artifact === undefined)
      throw usage(`session ${name} has no artifact ${options.get}; hangar session artifacts ${name} lists them`)
    context.output.data(await content(artifact))
  } else if (options.all !== undefined) {
    const root = resolve(options.all)
    for (const artifact of newest.values()) {
      const file = resolve(root, artifact.path)
      if (!file.startsWith(root + sep)) throw usage(`artifact ${artifact.path} would leave ${root}`)
      mkdirSync(dirname(file), { recursive: true })
      writeFileSync(file, await content(artifact))
      context.output.say(join(options.all, artifact.path))
    }
  } else {
    const rows = listed.items.map((artifact) => [
      artifact.path,
      String(artifact.turn),
      String(artifact.size),
      artifact.content_type,
    ])
    context.output.table(['PATH', 'TURN', 'BYTES', 'TYPE'], rows, listed)
    if (listed.items.length === 0) context.output.say(`session ${name} handed back no files`)
  }
}

function path(name: string): string {
  return `/api/sessions/${encodeURIComponent(name)}`
}
