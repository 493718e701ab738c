/** What every floor is given from outside: time, chance and a log. Interfaces only. */

export interface Clock {
  /** Milliseconds since 1970, UTC. */
  now(): number
}

export interface Random {
  bytes(count: number): Uint8Array
}

export interface Log {
  info(fields: Record<string, unknown>, message: string): void
  warn(fields: Record<string, unknown>, message: string): void
  error(fields: Record<string, unknown>, message: string): void
}

/** Server tasks that run on after the request that started them; `close()` of the server waits for all. */
export interface Tasks {
  /** Keeps the promise until it settles; a rejection is logged, once, under the name. */
  run(name: string, work: () => Promise<void>): void
}
