/** The API's objects, as far as the CLI reads them. Names are the wire's. */

export interface WireTurn {
  readonly turn: number
  readonly message: string
  readonly state: string
  readonly outcome: string | null
  readonly error: { readonly code: string; readonly message: string } | null
  readonly summary: string | null
  readonly result: unknown
  readonly result_error: string | null
  readonly artifacts: readonly WireArtifact[]
  readonly warnings: readonly string[]
  readonly question: string | null
  readonly question_options: readonly string[]
  readonly usage: WireUsage | null
  readonly repair_usage: WireUsage | null
  readonly head_commit: string | null
  readonly checkpoint: string | null
  readonly started_at: string | null
  readonly ended_at: string | null
}

export interface WireUsage {
  readonly input_tokens: number
  readonly output_tokens: number
  readonly cache_read_tokens: number
  readonly cache_write_tokens: number
  readonly cost_usd: number | null
  readonly cost_source: 'reported' | 'priced' | null
}

export interface WireArtifact {
  readonly path: string
  readonly turn: number
  readonly uri: string
  readonly size: number
  readonly content_type: string
}

export interface WireSession {
  readonly name: string
  readonly repo: string
  readonly branch: string
  readonly base_commit: string | null
  readonly head_commit: string | null
  readonly state: string
  readonly needs_input: string | null
  readonly question_options: readonly string[]
  readonly harness: string
  readonly environment: string
  readonly usage: WireUsage
  readonly checkpoint: { readonly commit: string; readonly turn: number; readonly created_at: string } | null
  readonly sandbox: { readonly id: string; readonly provider: string; readonly state: string } | null
  readonly turns: readonly WireTurn[]
  readonly created_at: string
  readonly updated_at: string
}

interface WireVerification {
  readonly command: string
  readonly passed: boolean | null
  readonly exit_code: number | null
  readonly seconds: number | null
  readonly log_tail: string
}

export interface WireJob {
  readonly id: string
  readonly repo: string
  readonly state: string
  readonly state_reason: string | null
  readonly instructions: string
  readonly requester: string | null
  readonly session: string | null
  readonly attempts: readonly {
    readonly attempt: number
    readonly session: string
    readonly state: string
    readonly outcome: string | null
    readonly verification: WireVerification | null
    readonly diff: { readonly files: number; readonly insertions: number; readonly deletions: number } | null
    readonly rank: number | null
    readonly reason: string | null
    readonly branch: string
  }[]
  readonly verification: WireVerification | null
  readonly delivery: {
    readonly branch: string
    readonly commit: string
    readonly pushed: boolean
    readonly pull_request_url: string | null
  } | null
  readonly result: {
    readonly summary: string | null
    readonly data: unknown
    readonly error: string | null
    readonly artifacts: readonly WireArtifact[]
  } | null
  readonly needs_input: string | null
  readonly question_options: readonly string[]
  readonly warnings: readonly string[]
  readonly usage: WireUsage
  readonly timeline: readonly { readonly at: string; readonly state: string; readonly text: string }[]
  readonly updated_at: string
}

export interface WireInboxItem {
  readonly kind: 'question' | 'approval'
  readonly ref: string
  readonly repo: string
  readonly turn: number
  readonly question: string
  readonly question_options: readonly string[]
  readonly since: string
  readonly requester: string | null
}

export interface WireDelivery {
  readonly status: 'delivered' | 'unchanged'
  readonly branch: string
  readonly commit: string
  readonly upstream: string
}

export interface WireRepo {
  readonly slug: string
  readonly upstream: string | null
  readonly upstream_error: { readonly code: string; readonly message: string } | null
  readonly default_branch: string
  readonly url: string
}

export interface WireToken {
  readonly id: string
  readonly name: string
  readonly scopes: readonly string[]
  readonly repos: readonly string[] | null
  readonly created_at: string
  readonly expires_at: string | null
  readonly revoked_at: string | null
  readonly token?: string
}

export interface WireEvent {
  readonly seq: number
  readonly ts: string
  readonly turn: number
  readonly kind: string
  readonly [field: string]: unknown
}

export interface Listed<T> {
  readonly items: readonly T[]
  readonly next_cursor: string | null
}

export interface WireEnvironment {
  readonly name: string
  readonly egress: readonly string[] | null
}

interface WireAttempt {
  readonly address: string
  readonly outcome: 'reached' | 'refused' | 'unknown'
  readonly words: string
}

export interface WireEnvironmentCheck {
  readonly gateway: WireAttempt
  readonly denied: readonly WireAttempt[]
}

export interface WireAuditEntry {
  readonly at: string
  readonly by: string
  readonly repo: string
  readonly ref: string
  readonly old: string
  readonly new: string
  readonly decision: string
  readonly rule: string | null
  readonly reason: string | null
  readonly forced: boolean
  readonly times: number
}
