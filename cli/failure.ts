/** How a command ends: a sentence on stderr with the next thing to try, and the exit status that INTERFACE.md gives it. */

/** Exit statuses, by name. */
export const EXIT = {
  done: 0,
  /** The turn failed, was cancelled, over budget or timed out. */
  turnFailed: 1,
  /** Wrong usage, or the server refused the request as wrong. */
  usage: 2,
  /** It waits for a person. */
  needsInput: 3,
  /** Not allowed, or the server or network failed. */
  unavailable: 4,
  /** Refused, to protect local work. */
  protected: 5,
  /** Waited long enough. */
  timedOut: 124,
} as const

export type ExitStatus = (typeof EXIT)[keyof typeof EXIT]

/** Ends the program with a sentence and a status; nothing else prints it. */
export class Failure extends Error {
  readonly status: ExitStatus

  constructor(status: ExitStatus, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.name = 'Failure'
    this.status = status
  }
}

/** The server is away: it, or the network on the way to it, does not answer. */
export class Unreachable extends Failure {
  /** What was seen, without advice. */
  readonly reason: string

  constructor(reason: string, advice: string, cause?: unknown) {
    super(EXIT.unavailable, `${reason}; ${advice}`, cause)
    this.name = 'Unreachable'
    this.reason = reason
  }
}

export const usage = (message: string): Failure => new Failure(EXIT.usage, message)
export const protectedWork = (message: string): Failure => new Failure(EXIT.protected, message)
