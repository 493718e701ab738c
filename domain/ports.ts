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
