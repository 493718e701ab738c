/** Writes the pages of docs/ that are made from definitions; `--check` fails when one of them is not as it would be written. */
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { TSchema } from '@sinclair/typebox'
import type { Command } from 'commander'
import { EXIT } from '../cli/failure.ts'
import { createProgram } from '../cli/program.ts'
import { SETTINGS, settingVariable } from '../domain/config.ts'
import { ENVIRONMENT_SETTINGS } from '../domain/environment.ts'
import { ERROR_CODES } from '../domain/errors.ts'
import { METRICS } from '../domain/metrics.ts'
import { OPERATIONS } from '../surfaces/operations/all.ts'

const MADE = '<!-- Made by `npm run docs` from the definitions in the code; do not edit. -->\n'

const PAGES: Readonly<Record<string, () => string>> = {
  'settings.md': settingsPage,
  'errors.md': errorsPage,
  'api.md': apiPage,
  'cli.md': cliPage,
  'mcp-tools.md': toolsPage,
  'metrics.md': metricsPage,
}

const checking = process.argv.includes('--check')
const stale: string[] = []
for (const [name, make] of Object.entries(PAGES)) {
  const file = fileURLToPath(new URL(`../../docs/${name}`, import.meta.url))
  const text = `${MADE}\n${make()}`
  if (!checking) writeFileSync(file, text)
  else if (read(file) !== text) stale.push(name)
}
if (stale.length > 0) {
  process.stderr.write(`docs/${stale.join(', docs/')} is not what the code says; run: npm run docs\n`)
  process.exitCode = 1
}

function read(file: string): string | null {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return null
  }
}

function settingsPage(): string {
  const rows = SETTINGS.map(({ path, doc, default: value }) => [
    `\`${path}\``,
    `\`${settingVariable(path)}\``,
    value === null ? 'none' : `\`${value}\``,
    doc,
  ])
  const environment = ENVIRONMENT_SETTINGS.map(({ path, default: value, doc }) => [`\`${path}\``, value, doc])
  return `# Settings

A setting is taken from its variable, else from the config file (\`hangar serve --config FILE\`, else \`HANGAR_CONFIG\`, else \`hangar.config.json\` in the
data directory), else it has its default. A wrong setting stops the start with its name, its value and what is accepted. MB is 1,048,576 bytes.

${table(['setting', 'variable', 'default', 'what it is'], rows)}
\`HANGAR_DATA\` is the data directory (default \`\${XDG_DATA_HOME:-~/.local/share}/hangar\`); \`HANGAR_LOG\` the log level (\`info\`); \`HANGAR_URL\` and
\`HANGAR_TOKEN\` tell the CLI where the server is, when it is not the one of this user on this machine.
\`HANGAR_RECONNECT_SECONDS\` (120) is for how long commands that wait or follow bear with a server that is away.
\`HANGAR_UNTRACKED_MB\` (512) and \`HANGAR_UNTRACKED_FILES\` (20000) are the most that \`--from-local\` takes of files that git does not track.

## Environments

An environment is a named set of defaults for sessions, under \`environments.<name>\` in the config file; \`default\` is used where none is named.

${table(['setting', 'default', 'what it is'], environment)}
\`\`\`json
{
  "environments": {
    "default": { "harness_options": { "argv": ["sh", "/srv/agents/demo.sh"] }, "timeout_minutes": 60 }
  }
}
\`\`\`
`
}

function errorsPage(): string {
  const rows = Object.entries(ERROR_CODES).map(([code, { status, means }]) => [`\`${code}\``, String(status), means])
  return `# Error codes

Every refusal over REST is \`application/problem+json\` with \`type, title, status, detail, code\`, and where they apply \`item_index\`, \`item_name\` (the context
item), \`reason\` (git's own words) and \`missing\` (commit ids). \`detail\` is a sentence: what was refused, why, and what to do. A turn's \`error.code\` is from the same list.

${table(['code', 'status', 'meaning'], rows)}`
}

function apiPage(): string {
  const parts = OPERATIONS.map((operation) => {
    const fields = Object.entries(operation.input.properties as Record<string, TSchema>).map(([name, schema]) => [
      `\`${name}\`${(operation.input.required ?? []).includes(name) ? '' : ' (optional)'}`,
      typeOf(schema),
      schema.description ?? '',
    ])
    return `## \`${operation.method.toUpperCase()} ${operation.path}\`

\`${operation.name}\` · scope \`${operation.scope}\` · answers ${operation.status}${operation.output === null ? ` with \`${operation.contentType ?? 'application/octet-stream'}\`` : ''}

${operation.summary}${operation.restNote === undefined ? '' : ` ${operation.restNote}`}

${fields.length === 0 ? '' : table(['field', 'type', 'what it is'], fields)}`
  })
  return `# REST API

\`Authorization: Bearer hgt_…\` on every request. Of a GET or DELETE, fields that are not in the path are the query; of a POST, the JSON body. Every POST takes an
\`Idempotency-Key\`. Lists answer \`{items, next_cursor}\`. Refusals: [errors.md](errors.md). The same as OpenAPI 3.1, with every answer's schema: \`GET /openapi.json\`.

Without a token: \`/healthz\`, \`/readyz\`, \`/metrics\`, \`/openapi.json\`, and \`/.well-known/hangar-key.asc\`, the public key that hangar's commits are signed with.

${parts.join('\n')}`
}

function metricsPage(): string {
  const rows = Object.entries(METRICS).map(([name, { type, labels, help }]) => [
    `\`${name}\``,
    type,
    help,
    Object.entries(labels)
      .map(([label, values]) => `\`${label}\`: ${values}`)
      .join('; '),
  ])
  return `# Metrics

\`GET /metrics\` answers in Prometheus's text format, without a token: no label names a repo, a session or a person. Where the server is reachable by others, let the proxy before it keep
the path to itself. The usual \`process_*\` and \`nodejs_*\` metrics are there as well. Counters begin with 0 at each start; times are seconds. The rules of pushes are in [git.md](git.md).

${table(['metric', 'type', 'what it is', 'labels'], rows)}`
}

function toolsPage(): string {
  const tools = OPERATIONS.flatMap((operation) =>
    operation.tool === undefined ? [] : [{ ...operation, tool: operation.tool }],
  )
  const overview = tools.map(({ name, scope, summary, tool }) => [
    `[\`${name}\`](#${name})`,
    `\`${scope}\``,
    `${tool.effect}${tool.idempotentBy === undefined ? '' : ', may be repeated'}`,
    summary,
  ])
  const parts = tools.map(({ name, input, output, tool }) => {
    const fields = Object.entries(input.properties as Record<string, TSchema>).map(([field, schema]) => [
      `\`${field}\`${(input.required ?? []).includes(field) ? '' : ' (optional)'}`,
      typeOf(schema),
      schema.description ?? '',
    ])
    return `## \`${name}\`

${tool.advice}

${fields.length === 0 ? '' : table(['argument', 'type', 'what it is'], fields)}
Answers ${output === null ? 'with the content itself' : 'with `structuredContent`, and the same as text'}${tool.artifacts === undefined ? '' : ', and links to the artifacts'}. Example:

\`\`\`json
${JSON.stringify(tool.example, null, 2)}
\`\`\`
`
  })
  return `# MCP tools

The tools that [\`/mcp\`](mcp.md) offers; a token sees those that its scopes cover. Each is the REST operation of the same name ([api.md](api.md)).

${table(['tool', 'scope', 'effect', 'what it does'], overview)}
${parts.join('\n')}`
}

function cliPage(): string {
  const parts: string[] = []
  const visit = (command: Command, name: string) => {
    if (command.commands.length > 0) {
      for (const sub of command.commands) visit(sub, `${name} ${sub.name()}`)
      return
    }
    const words = command.registeredArguments.map((argument) =>
      argument.required ? `<${argument.name()}>` : `[${argument.name()}]`,
    )
    const options = command.options.map((option) => [`\`${option.flags}\``, option.description])
    parts.push(
      `## \`${[name, ...words].join(' ')}\`\n\n${command.description()}\n\n${options.length === 0 ? '' : table(['option', 'what it does'], options)}`,
    )
  }
  visit(createProgram(), 'hangar')
  const exits: Readonly<Record<keyof typeof EXIT, string>> = {
    done: 'done',
    turnFailed: 'the turn failed, was cancelled, over budget or timed out',
    usage: 'wrong usage, or the server refused the request as wrong',
    needsInput: 'it waits for a person (the question is printed)',
    unavailable: 'not allowed, or the server or network failed',
    protected: 'refused, to protect local work',
    timedOut: 'waited long enough',
  }
  return `# Command line

Data goes to standard output, all else to standard error; a table on a terminal, tab-separated without colour in a pipe. \`--json\` prints the API's own object.

${table(
  ['exit status', 'meaning'],
  Object.entries(exits).map(([name, meaning]) => [String(EXIT[name as keyof typeof EXIT]), meaning]),
)}
${parts.join('\n')}`
}

function typeOf(schema: TSchema): string {
  const union = schema['anyOf'] as TSchema[] | undefined
  if (union !== undefined)
    return [...new Set(union.map((one) => ('const' in one ? `\`${String(one['const'])}\`` : typeOf(one))))].join(
      ' \\| ',
    )
  if ('const' in schema) return `\`${String(schema['const'])}\``
  return String(schema['type'] ?? 'any')
}

function table(headings: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.map((cell) => cell.replace(/\n/g, ' ')).join(' | ')} |\n`
  return `${line(headings)}${line(headings.map(() => '---'))}${rows.map(line).join('')}\n`
}
