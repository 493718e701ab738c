/** Callbacks as Standard Webhooks has them: their headers, signed. Source: standard-webhooks.com, specification 1.0. */
import { createHmac } from 'node:crypto'

export interface Callback {
  /** The same for each attempt, so that a receiver knows what it has had. */
  readonly id: string
  readonly body: string
}

/** The headers of one attempt; `timestamp` in seconds. */
export function callbackHeaders(
  { id, body }: Callback,
  { secret, timestamp }: { readonly secret: Uint8Array; readonly timestamp: number },
): Record<string, string> {
  const signature = createHmac('sha256', secret).update(`${id}.${timestamp}.${body}`).digest('base64')
  return {
    'content-type': 'application/json',
    'user-agent': 'hangar/0',
    'webhook-id': id,
    'webhook-timestamp': String(timestamp),
    'webhook-signature': `v1,${signature}`,
  }
}

/** What happens after an attempt. */
export type Verdict =
  | { readonly kind: 'sent' }
  /** The receiver wants no more of this job. */
  | { readonly kind: 'gone' }
  | { readonly kind: 'parked' }
  | { readonly kind: 'again'; readonly afterMs: number }

/** Seconds before each attempt, the first at once. */
const SCHEDULE = [0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400]
/** Attempts at a receiver that says that the request is wrong. */
const ATTEMPTS_AT_REFUSALS = 3
const MAX_RETRY_AFTER_MS = 3_600_000

/** `attempts` counts the one that was just made; `status` null: no answer. */
export function afterAttempt(attempts: number, status: number | null, retryAfter: string | undefined): Verdict {
  if (status !== null && status >= 200 && status < 300) return { kind: 'sent' }
  if (status === 410) return { kind: 'gone' }
  const isRefusal = status !== null && status >= 400 && status < 500 && status !== 408 && status !== 429
  const next = SCHEDULE[attempts]
  if (next === undefined || (isRefusal && attempts >= ATTEMPTS_AT_REFUSALS)) return { kind: 'parked' }
  const asked = Number(retryAfter) * 1_000
  if (status === 429 && asked > 0) return { kind: 'again', afterMs: Math.min(asked, MAX_RETRY_AFTER_MS) }
  return { kind: 'again', afterMs: next * 1_000 }
}
