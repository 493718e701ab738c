/** `hangar session patch|pull|artifacts` */
import { join } from 'node:path'
import type { Command } from 'commander'
import { pullByName, pulledText } from '../apply-work.ts'
import { findCheckout } from '../checkout.ts'
import { call, callJson } from '../client.ts'
import { type Context, createContext, wholeNumber } from '../command.ts'
import { usage } from '../failure.ts'
import { saveFile } from '../save-file.ts'
import type { Listed, WireArtifact } from '../wire.ts'

export function addSessionOutCommands(session: Command): void {
  patchCommand(session, '<name>')

  session
    .command('pull')
    .argument('<name>')
    .description("fetch the session's commits into a local branch; with --checkout take over its whole working state")
    .option('--checkout', 'switch to the branch, with the uncommitted changes')
    .option('--force', 'overwrite commits of the local branch that the session does not have')
    .option('--branch <branch>', 'the local branch; default hangar/<name>')
    .action(pull)

  artifactsCommand(session, '<name>')
}

/** Adds the command that prints a session's whole change; of a job, that of the session whose work counts. */
export function patchCommand(noun: Command, argument: string): void {
  noun
    .command('patch')
    .argument(argument)
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
}

/** Adds the command that lists and saves what agents handed back. */
export function artifactsCommand(noun: Command, argument: string): void {
  noun
    .command('artifacts')
    .argument(argument)
    .description('list the files that the agent handed back')
    .option('--get <path>', 'print one (the newest of that path) to standard output')
    .option('--all <dir>', 'save the newest of each into a directory')
    .option('--turn <n>', "as they were at this turn's end", wholeNumber)
    .option('--force', 'with --all: overwrite files that have another content')
    .option('--json', "print the API's object")
    .action(artifacts)
}

async function pull(name: string, options: { checkout?: boolean; force?: boolean; branch?: string }): Promise<void> {
  const context = createContext({})
  const checkout = findCheckout(context.cwd)
  const pulled = await pullByName(checkout, {
    server: context.server(),
    name,
    branch: options.branch ?? null,
    checkout: options.checkout === true,
    force: options.force === true,
  })
  context.output.say(pulledText(pulled, name))
}

interface ArtifactOptions {
  readonly get?: string
  readonly all?: string
  readonly turn?: number
  readonly force?: boolean
  readonly json?: boolean
}

async function artifacts(name: string, options: ArtifactOptions): Promise<void> {
  if (options.get !== undefined && options.all !== undefined)
    throw usage('--get prints one artifact and --all saves every one; give one of the two')
  const context = createContext(options)
  const listed = await callJson<Listed<WireArtifact>>(context.server(), { path: `${path(name)}/artifacts` })
  const items = listed.items.filter((artifact) => options.turn === undefined || artifact.turn <= options.turn)
  // An unchanged file is listed on the turn that last changed it.
  const newest = new Map(items.map((artifact) => [artifact.path, artifact]))
  if (options.get !== undefined) {
    const artifact = newest.get(options.get)
    if (artifact === undefined)
      throw usage(
        `session ${name} has no artifact ${options.get}${options.turn === undefined ? '' : ` up to turn ${options.turn}`}; hangar session artifacts ${name} lists them`,
      )
    context.output.data(await contentOf(context, name, artifact))
  } else if (options.all !== undefined) {
    for (const artifact of newest.values()) {
      const content = await contentOf(context, name, artifact)
      const saved = saveFile(options.all, artifact.path, content, { force: options.force === true })
      context.output.say(`${join(options.all, artifact.path)}${saved ? '' : ' (as it was)'}`)
    }
  } else {
    const rows = items.map((artifact) => [
      artifact.path,
      String(artifact.turn),
      String(artifact.size),
      artifact.content_type,
    ])
    context.output.table(['PATH', 'TURN', 'BYTES', 'TYPE'], rows, { ...listed, items })
  }
  if (newest.size === 0) context.output.say(`session ${name} handed back no files`)
}

async function contentOf(context: Context, name: string, artifact: WireArtifact): Promise<Buffer> {
  const encoded = artifact.path.split('/').map(encodeURIComponent).join('/')
  const response = await call(context.server(), { path: `${path(name)}/artifacts/${artifact.turn}/${encoded}` })
  return Buffer.from(await response.arrayBuffer())
}

function path(name: string): string {
  return `/api/sessions/${encodeURIComponent(name)}`
}
