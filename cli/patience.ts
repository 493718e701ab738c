/** Patience with a server that is away for a while: what waits on it tries again with growing pauses, to a limit. */
import { EXIT, Failure, Unreachable, usage } from './failure.ts'

const FIRST_PAUSE_MS = 250
const LONGEST_PAUSE_MS = 5_000
const DEFAULT_SECONDS = 120

export interface Patience {
  /** The server is there. */
  answered(): void
  /** Pauses; throws when the failure is no absence, the server was never there, or it has been away for too long. */
  failed(error: unknown): Promise<void>
}

export interface PatienceOptions {
  /** Whether the server has answered this command before; if not, its absence is a failure at once. */
  readonly met: boolean
  readonly limitMs: number
  /** The time at which waiting ends anyway, with exit status 124. */
  readonly until?: number
  /** The command to try when the server is back. */
  readonly again: string
  say(text: string): void
}

export function createPatience(options: PatienceOptions): Patience {
  let { met } = options
  let awaySince: number | null = null
  let pauseMs = FIRST_PAUSE_MS
  return {
    answered: () => {
      if (awaySince !== null) options.say('the server answers again')
      met = true
      awaySince = null
      pauseMs = FIRST_PAUSE_MS
    },
    failed: async (error) => {
      if (!(error instanceof Unreachable) || !met) throw error
      const now = Date.now()
      if (awaySince === null) {
        awaySince = now
        if (Number.isFinite(options.limitMs))
          options.say(`${error.reason}; trying again for ${Math.ceil(options.limitMs / 1000)} seconds`)
      }
      const left = (options.until ?? Number.POSITIVE_INFINITY) - now
      if (left <= 0)
        throw new Failure(EXIT.timedOut, `waited long enough: ${error.reason}; go on with: ${options.again}`)
      if (now - awaySince >= options.limitMs)
        throw new Failure(
          EXIT.unavailable,
          `${error.reason}, for ${Math.round((now - awaySince) / 1000)} seconds now; start it with: hangar serve, then go on with: ${options.again}`,
          error,
        )
      await new Promise((resolve) => setTimeout(resolve, Math.min(pauseMs, left)))
      pauseMs = Math.min(LONGEST_PAUSE_MS, pauseMs * 2)
    },
  }
}

/** For how long a command that waits bears with a server that is away: `HANGAR_RECONNECT_SECONDS`. */
export function patienceMs(env: NodeJS.ProcessEnv): number {
  const value = env['HANGAR_RECONNECT_SECONDS']
  if (value === undefined || value === '') return DEFAULT_SECONDS * 1000
  if (!/^\d{1,6}$/.test(value))
    throw usage(
      `HANGAR_RECONNECT_SECONDS=${value}: that is not a whole number of seconds; the default is ${DEFAULT_SECONDS}`,
    )
  return Number(value) * 1000
}
