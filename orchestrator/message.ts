/** A message to an agent, as a session or a job takes it. */
import type { ContextItem } from '../domain/context-item.ts'
import { errors } from '../domain/errors.ts'
import type { Budget } from '../domain/run-event.ts'
import type { IdempotencyMark } from '../domain/session.ts'

/** A message with what is handed in beside it. */
export interface Message {
  readonly message: string
  /** The name of the token that sends it. */
  readonly requester: string | null
  readonly context: readonly ContextItem[]
  readonly outputSchema: unknown
  /** Over the session's and the environment's. */
  readonly budget: Partial<Budget>
  readonly timeoutMs: number | null
  readonly idempotency: IdempotencyMark | null
}

/** Whether what a request made came from one with this key. Throws `idempotency_mismatch` when that had another body. */
export function isSameRequest(made: IdempotencyMark | null | undefined, mark: IdempotencyMark | null): boolean {
  if (mark === null || made?.key !== mark.key) return false
  if (made.body === mark.body) return true
  throw errors.idempotencyMismatch('this Idempotency-Key was used with another body; use a new key for a new request')
}
