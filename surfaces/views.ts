/** Domain values as the wire shows them: snake_case, ISO times, no hashes. The only place where that change happens on the way out. */
import type { Token } from '../domain/grant.ts'
import type { JobRecord } from '../domain/job.ts'
import type { Oid, SessionName } from '../domain/names.ts'
import { type Budget, type RunEvent, sumUsage, type Usage } from '../domain/run-event.ts'
import type { ArtifactEntry, SessionRecord, TurnRecord } from '../domain/session.ts'
import { artifactUri } from '../exchange/artifact-uri.ts'
import type { Waited } from '../orchestrator/waiting.ts'
import { nextStep, type Surface } from './next-steps.ts'

/** ISO 8601, UTC. */
export const time = (ms: number) => new Date(ms).toISOString()
const timeOrNull = (ms: number | null) => (ms === null ? null : time(ms))

export function budgetView(budget: Budget) {
  return { max_minutes: budget.maxMinutes, max_tokens: budget.maxTokens, max_cost_usd: budget.maxCostUsd }
}

export function usageView(usage: Usage) {
  return {
    input_tokens: usage.inputTokens,
    output_tokens: usage.outputTokens,
    cache_read_tokens: usage.cacheReadTokens,
    cache_write_tokens: usage.cacheWriteTokens,
    cost_usd: usage.costUsd,
    cost_source: usage.costSource,
  }
}

export function artifactView(session: SessionName, artifact: ArtifactEntry) {
  return {
    path: artifact.path,
    turn: artifact.turn,
    uri: artifactUri(session, artifact.turn, artifact.path),
    size: artifact.size,
    content_type: artifact.contentType,
    sha256: artifact.sha256,
  }
}

export function turnView(session: SessionName, turn: TurnRecord) {
  return {
    turn: turn.turn,
    message: turn.message,
    state: turn.state,
    outcome: turn.outcome,
    error: turn.error,
    summary: turn.summary,
    result: turn.result ?? null,
    result_error: turn.resultError,
    artifacts: turn.artifacts.map((artifact) => artifactView(session, artifact)),
    warnings: turn.warnings,
    question: turn.question,
    question_options: turn.questionOptions,
    usage: turn.usage === null ? null : usageView(turn.usage),
    repair_usage: turn.repairUsage === null ? null : usageView(turn.repairUsage),
    requested_commit: turn.requestedCommit,
    actual_commit: turn.actualCommit,
    head_commit: turn.headCommit,
    checkpoint: turn.checkpoint,
    context_commit: turn.contextCommit,
    created_at: time(turn.createdAt),
    started_at: timeOrNull(turn.startedAt),
    ended_at: timeOrNull(turn.endedAt),
  }
}

export function sessionView(session: SessionRecord, turns: readonly TurnRecord[], head: Oid | null) {
  const saved = turns.filter((turn) => turn.checkpoint !== null).at(-1)
  return {
    name: session.name,
    repo: session.repo,
    branch: `hangar/${session.name}`,
    base_commit: session.baseCommit,
    head_commit: head,
    state: session.state,
    needs_input: session.needsInput,
    question_options: session.questionOptions,
    harness: session.harness,
    environment: session.environment,
    parent: session.parent,
    budget: budgetView(session.budget),
    usage: usageView(usageOfTurns(turns)),
    checkpoint: saved?.checkpoint
      ? { commit: saved.checkpoint, turn: saved.turn, created_at: time(saved.endedAt ?? session.updatedAt) }
      : null,
    sandbox:
      session.sandbox === null
        ? null
        : {
            id: session.sandbox.id,
            provider: session.sandbox.provider,
            state: session.sandbox.ready ? 'up' : 'preparing',
          },
    turns: turns.map((turn) => turnView(session.name, turn)),
    created_at: time(session.createdAt),
    updated_at: time(session.updatedAt),
  }
}

function usageOfTurns(turns: readonly TurnRecord[]): Usage {
  return sumUsage(
    turns.flatMap((turn) => [turn.usage, turn.repairUsage]).filter((usage): usage is Usage => usage !== null),
  )
}

/** `surface` says in whose words the hint is. */
export function waitView({ done, session, turn, progress, cursor }: Waited, surface: Surface) {
  return {
    done,
    state: session.state,
    turn: turn.turn,
    outcome: turn.outcome,
    summary: turn.summary,
    result: turn.result ?? null,
    result_error: turn.resultError,
    artifacts: turn.artifacts.map((artifact) => artifactView(session.name, artifact)),
    needs_input: turn.question,
    question_options: turn.questionOptions,
    warnings: turn.warnings,
    progress,
    cursor,
    hint: nextStep(surface, session.name, turn),
  }
}

/** `ref` is the session's name, or the id of the job that it works for. */
export function inboxView(ref: string, session: SessionRecord, turn: TurnRecord) {
  return {
    kind: 'question',
    ref,
    repo: session.repo,
    turn: turn.turn,
    question: session.needsInput,
    question_options: session.questionOptions,
    since: time(turn.endedAt ?? session.updatedAt),
    requester: turn.requester ?? null,
  }
}

/** A job that waits for approval. */
export function approvalView(job: JobRecord) {
  return {
    kind: 'approval',
    ref: job.id,
    repo: job.repo,
    turn: 1,
    question: job.instructions,
    question_options: [],
    since: time(job.updatedAt),
    requester: job.requester,
  }
}

/** An event on the wire: `ts` for the time, snake_case fields, and only what its kind has. */
export function eventView(event: RunEvent): Record<string, unknown> {
  const { seq, at, turn, kind, ...rest } = event
  const fields: Record<string, unknown> = {}
  for (const [key, value] of Object.entries(rest))
    fields[key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)] = value
  if (event.kind === 'usage') {
    const { inputTokens, outputTokens, cacheReadTokens, cacheWriteTokens, costUsd, costSource } = event.usage
    const figures = {
      input: inputTokens,
      output: outputTokens,
      cache_read: cacheReadTokens,
      cache_write: cacheWriteTokens,
    }
    const { usage: _nested, ...others } = fields
    return { seq, ts: time(at), turn, kind, ...others, ...figures, cost_usd: costUsd, cost_source: costSource }
  }
  return { seq, ts: time(at), turn, kind, ...fields }
}

export function tokenView(token: Token) {
  return {
    id: token.id,
    name: token.name,
    scopes: token.scopes,
    repos: token.repos,
    created_at: time(token.createdAt),
    expires_at: timeOrNull(token.expiresAt),
    revoked_at: timeOrNull(token.revokedAt),
  }
}
