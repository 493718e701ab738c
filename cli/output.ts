/** What the CLI prints: data on stdout, all else on stderr; a table on a terminal, tab-separated in a pipe. */

export interface Output {
  readonly terminal: boolean
  readonly json: boolean
  data(text: string | Uint8Array): void
  /** For the person who looks on: progress, hints. */
  say(text: string): void
  /** Rows under headings; with `--json` the API's own object instead. */
  table(headings: readonly string[], rows: readonly (readonly string[])[], object: unknown): void
  dim(text: string): string
  bold(text: string): string
  colour(text: string, colour: 'red' | 'green' | 'yellow' | 'cyan'): string
}

const CODES = { red: 31, green: 32, yellow: 33, cyan: 36 } as const

export function createOutput(options: { readonly json: boolean; readonly env: NodeJS.ProcessEnv }): Output {
  const terminal = process.stdout.isTTY === true
  const coloured = (options.env['NO_COLOR'] ?? '') === '' && process.stderr.isTTY === true && terminal
  const paint = (text: string, code: number, end: number) => (coloured ? `\u001b[${code}m${text}\u001b[${end}m` : text)
  return {
    terminal,
    json: options.json,
    data: (text) => {
      process.stdout.write(text)
    },
    say: (text) => {
      process.stderr.write(`${text}\n`)
    },
    table: (headings, rows, object) => {
      if (options.json) process.stdout.write(`${JSON.stringify(object, null, 2)}\n`)
      else if (!terminal) process.stdout.write(rows.map((row) => `${row.map(oneLine).join('\t')}\n`).join(''))
      else process.stdout.write(aligned([headings, ...rows], (line, first) => (first ? paint(line, 1, 22) : line)))
    },
    dim: (text) => paint(text, 2, 22),
    bold: (text) => paint(text, 1, 22),
    colour: (text, colour) => paint(text, CODES[colour], 39),
  }
}

/** A cell has no tab and no line end, whatever an agent wrote. */
function oneLine(text: string): string {
  return text.replace(/[\x00-\x1f\x7f]+/g, ' ')
}

function aligned(rows: readonly (readonly string[])[], style: (line: string, first: boolean) => string): string {
  const clean = rows.map((row) => row.map(oneLine))
  const widths = (clean[0] ?? []).map((_, column) => Math.max(...clean.map((row) => [...(row[column] ?? '')].length)))
  return clean
    .map((row, number) => {
      const cells = row.map((cell, column) =>
        column === row.length - 1 ? cell : cell + ' '.repeat((widths[column] ?? 0) - [...cell].length),
      )
      return `${style(cells.join('  ').trimEnd(), number === 0)}\n`
    })
    .join('')
}

/** How long ago, in one unit. */
export function ago(iso: string, now: number): string {
  return `${duration(iso, now)} ago`
}

/** How long since then, in one unit. */
export function duration(iso: string, now: number): string {
  const seconds = Math.max(0, Math.round((now - Date.parse(iso)) / 1000))
  if (seconds < 60) return `${seconds}s`
  if (seconds < 3_600) return `${Math.floor(seconds / 60)}m`
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)}h`
  return `${Math.floor(seconds / 86_400)}d`
}

/** Text of an agent for a terminal: no control characters, which could move the cursor or change the title. */
export function printable(text: string): string {
  return text.replace(/[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]/g, '\ufffd')
}
