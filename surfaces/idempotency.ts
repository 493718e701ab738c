/** Answers to requests with an Idempotency-Key: the same key and body get the same answer, also at once from two clients. */
import { errors } from '../domain/errors.ts'
import type { Clock } from '../domain/ports.ts'
import type { IdempotencyMark } from '../domain/session.ts'
import type { Reply } from './operations/operation.ts'

/** Messages to sessions are told apart by their records, so they outlive this process; other answers are remembered here. */
export interface Answers {
  /** Does the work once for a key. Throws `idempotency_mismatch` when the key came with another body. */
  once(mark: IdempotencyMark, work: () => Promise<Reply>): Promise<Reply>
}

const LIFE_MS = 24 * 3_600_000
const MAX_ANSWERS = 2_000

interface Answer {
  readonly body: string
  readonly at: number
  readonly reply: Promise<Reply>
}

export function createAnswers({ clock }: { clock: Clock }): Answers {
  const answers = new Map<string, Answer>()
  const forgetOld = () => {
    for (const [key, { at }] of answers) {
      if (answers.size <= MAX_ANSWERS && at > clock.now() - LIFE_MS) return
      answers.delete(key)
    }
  }
  return {
    once: async ({ key, body }, work) => {
      forgetOld()
      const known = answers.get(key)
      if (known !== undefined && known.body !== body)
        throw errors.idempotencyMismatch(
          'this Idempotency-Key was used with another body; use a new key for a new request',
        )
      if (known !== undefined) return known.reply
      const reply = work()
      answers.set(key, { body, at: clock.now(), reply })
      // A refusal is not remembered: the caller mends the cause and tries again with the same key.
      return reply.catch((error: unknown) => {
        answers.delete(key)
        throw error
      })
    },
  }
}
