/** What a parser counts on the way: the usage of each request, and lines that could not be read. */
import { NO_USAGE, type RunEventBody, sumUsage, type Usage } from '../../domain/run-event.ts'
import { remembered } from './json.ts'

export interface Tally {
  /** Counts a request's figures; the same id again corrects what was counted for it. Gives the event that tells. */
  request(id: string, usage: Usage, about: { readonly model?: string; readonly provisional?: boolean }): RunEventBody
  unread(): void
  /** A line on standard error as an event; the first one that looks like an error, else the first, may say why the program ended. */
  stderr(line: string): RunEventBody
  /** The sentence that a program's early end is told with. */
  ended(what: string): string
  used(): Usage
  /** The events at a run's end: its billing figure, and how many lines could not be read. */
  end(used: Usage): RunEventBody[]
  save(): {
    readonly done: Usage
    readonly open: readonly (readonly [string, Usage])[]
    readonly unread: number
    readonly words: string
    readonly wordsAreError: boolean
  }
}

/** Requests whose figures may still be corrected; older ones are only in the sum. */
const MAX_OPEN = 16
const MAX_LAST_WORDS = 500

export function createTally(saved: ReturnType<Tally['save']> | null): Tally {
  let done = saved?.done ?? NO_USAGE
  const open = new Map(saved?.open ?? [])
  let unread = saved?.unread ?? 0
  let { words, wordsAreError } = saved ?? { words: '', wordsAreError: false }
  const used = () => sumUsage([done, ...open.values()])
  return {
    request: (id, usage, { model = '', provisional = false }) => {
      open.set(remembered(id), usage)
      if (open.size > MAX_OPEN) {
        const [oldest, counted] = [...open][0] ?? ['', NO_USAGE]
        open.delete(oldest)
        done = sumUsage([done, counted])
      }
      return {
        kind: 'usage',
        scope: 'request',
        usage,
        ...(provisional ? { provisional: true } : {}),
        ...(model === '' ? {} : { model }),
      }
    },
    unread: () => {
      unread++
    },
    stderr: (line) => {
      const isError = /error|fail|cannot/i.test(line)
      if (words === '' || (isError && !wordsAreError)) {
        words = line.trim().slice(0, MAX_LAST_WORDS)
        wordsAreError = isError
      }
      return { kind: 'message', role: 'stderr', text: line }
    },
    ended: (what) => (words === '' ? what : `${what}; it said: ${words}`),
    used,
    end: (billed) => [
      ...(unread === 0
        ? []
        : [
            {
              kind: 'error' as const,
              scope: 'stream' as const,
              fatal: false,
              message: `${unread} line(s) of the agent's output could not be read`,
            },
          ]),
      { kind: 'usage', scope: 'turn', usage: billed },
    ],
    save: () => ({ done, open: [...open], unread, words, wordsAreError }),
  }
}
