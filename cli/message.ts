/** A message's options on the command line, and what they make of a request: context items, schema, budget. */
import { statSync } from 'node:fs'
import type { Command } from 'commander'
import { findCheckout, matchRepo } from './checkout.ts'
import { callJson } from './client.ts'
import { type Context, collect, positiveNumber, readNamedFile, readStandardInput, wholeNumber } from './command.ts'
import { usage } from './failure.ts'
import type { Listed, WireRepo } from './wire.ts'

/** Files beyond this are no attachments whatever the server's cap; its request has an end as well. */
const MAX_FILE_BYTES = 64 * 1_048_576

export interface MessageOptions {
  readonly file: readonly string[]
  readonly text: readonly string[]
  readonly url: readonly string[]
  readonly patch: readonly string[]
  readonly bundle?: string
  readonly base?: string
  readonly schema?: string
  readonly maxMinutes?: number
  readonly maxTokens?: number
  readonly maxCost?: number
  readonly timeoutMinutes?: number
  readonly fromLocal?: boolean
  readonly createRepo?: boolean
  readonly wait?: boolean
  readonly json?: boolean
}

/** Adds the options that every message has. */
export function messageOptions(command: Command): Command {
  return command
    .option('--from-local', "hand over this checkout's commits and uncommitted changes")
    .option('--create-repo', 'with --from-local: host the repo when the server does not know it')
    .option('--file <path>', 'attach a file, - is standard input (may be repeated)', collect, [])
    .option('--text <text>', 'attach a text (may be repeated)', collect, [])
    .option('--url <url>', 'name a URL to the agent (may be repeated)', collect, [])
    .option(
      '--patch <file>',
      'apply a patch first, as git diff or git format-patch make it (may be repeated)',
      collect,
      [],
    )
    .option('--bundle <file>', 'hand over the commits of a git bundle; needs --base')
    .option('--base <commit>', "the commit that the bundle's commits build on, which the server has")
    .option('--schema <file>', 'a JSON Schema that the structured result must fit')
    .option('--max-minutes <n>', 'budget: minutes', positiveNumber)
    .option('--max-tokens <n>', 'budget: tokens', wholeNumber)
    .option('--max-cost <usd>', 'budget: US dollars', positiveNumber)
    .option('--timeout-minutes <n>', 'time-out of the turn', positiveNumber)
    .option('-w, --wait', 'show progress until the turn has ended')
    .option('--json', "print the API's object")
}

/** The message from its argument; `-` reads standard input. */
export function messageText(argument: string | undefined, options: MessageOptions): string {
  if (argument !== '-') return argument ?? ''
  if (options.file.includes('-')) throw usage('standard input can be the message (-) or a file (--file -), not both')
  return readStandardInput().toString('utf8')
}

/** The request's fields. Throws a usage failure with the option's name for what cannot be read or does not go together. */
export function messageBody(options: MessageOptions) {
  if (options.createRepo === true && options.fromLocal !== true)
    throw usage('--create-repo goes with --from-local; to host an empty repo: hangar repo add OWNER/NAME')
  const budget = {
    ...(options.maxMinutes === undefined ? {} : { max_minutes: options.maxMinutes }),
    ...(options.maxTokens === undefined ? {} : { max_tokens: options.maxTokens }),
    ...(options.maxCost === undefined ? {} : { max_cost_usd: options.maxCost }),
  }
  return {
    context: contextOf(options),
    ...(options.schema === undefined ? {} : { output_schema: parseSchema(options.schema) }),
    ...(Object.keys(budget).length === 0 ? {} : { budget }),
    ...(options.timeoutMinutes === undefined ? {} : { timeout_minutes: options.timeoutMinutes }),
  }
}

function contextOf(options: MessageOptions): object[] {
  return [
    ...bundleItem(options),
    ...options.patch.map((path) => ({ kind: 'patch', ...contentOf(path, '--patch') })),
    ...attachedFiles(options.file),
    ...options.text.map((content) => ({ kind: 'text', content })),
    ...options.url.map((url) => ({ kind: 'url', url })),
  ]
}

function bundleItem({ bundle, base, fromLocal }: MessageOptions): object[] {
  if (bundle === undefined) {
    if (base !== undefined) throw usage('--base goes with --bundle FILE')
    return []
  }
  if (fromLocal === true) throw usage('hand over either a bundle (--bundle) or this checkout (--from-local), not both')
  if (base === undefined || !/^[0-9a-f]{40}$/.test(base))
    throw usage(
      '--bundle needs --base COMMIT, the full id of the commit that its commits build on, such as git rev-parse origin/main gives',
    )
  return [{ kind: 'bundle', ...contentOf(bundle, '--bundle'), base_commit: base }]
}

function attachedFiles(paths: readonly string[]): object[] {
  if (paths.filter((path) => path === '-').length > 1) throw usage('standard input can be attached once (--file -)')
  return paths.map((path) =>
    path === '-'
      ? { kind: 'file', name: 'stdin.txt', content: readStandardInput().toString('base64'), encoding: 'base64' }
      : { kind: 'file', ...contentOf(path, '--file') },
  )
}

function contentOf(path: string, option: string) {
  const found = statSync(path, { throwIfNoEntry: false })
  if (found?.isDirectory() === true)
    throw usage(
      `${option} ${path} is a directory; name the files in it one by one, or hand over the whole checkout with --from-local`,
    )
  if (found !== undefined && found.size > MAX_FILE_BYTES)
    throw usage(
      `${option} ${path} has ${found.size} bytes, too many for a request; commit it and hand it over with --from-local`,
    )
  const name = path.replace(/\/+$/, '').split('/').at(-1) ?? 'file'
  return { name, content: readNamedFile(path, option).toString('base64'), encoding: 'base64' }
}

function parseSchema(path: string): unknown {
  try {
    return JSON.parse(readNamedFile(path, '--schema').toString('utf8')) as unknown
  } catch (cause) {
    if (cause instanceof SyntaxError) throw usage(`--schema ${path} is not JSON: ${cause.message}`)
    throw cause
  }
}

/** How `--from-local` hands over what is here. */
export function localOptions(context: Context, options: MessageOptions, repo: string | null) {
  return {
    server: context.server(),
    output: context.output,
    repo,
    createRepo: options.createRepo === true,
    mayAsk: true,
  }
}

/** The repo that this checkout belongs to. Throws a usage failure where the server has none such. */
export async function repoHere(context: Context): Promise<string> {
  const { items } = await callJson<Listed<WireRepo>>(context.server(), { path: '/api/repos' })
  const slug = matchRepo(findCheckout(context.cwd), items)
  if (slug === null)
    throw usage(
      'no remote of this checkout names a repo of the server; name one with --repo, or hand your work over with --from-local',
    )
  return slug
}
