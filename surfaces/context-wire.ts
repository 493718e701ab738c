/** A message as the wire carries it, to the domain's: contents become bytes here, and base64 is checked. */
import type { Static } from '@sinclair/typebox'
import type { ContextItem } from '../domain/context-item.ts'
import { HangarError } from '../domain/errors.ts'
import { isOid, type Oid } from '../domain/names.ts'
import type { Budget } from '../domain/run-event.ts'
import type { BudgetShape, ContextShape } from './shapes.ts'

interface WireMessage {
  readonly message: string
  readonly context?: Static<typeof ContextShape>
  readonly output_schema?: unknown
  readonly budget?: Static<typeof BudgetShape>
  readonly timeout_minutes?: number
}

/** Throws `invalid_context` with the item's index when base64 or a commit id is not one. */
export function messageOfWire(wire: WireMessage) {
  return {
    message: wire.message,
    context: (wire.context ?? []).map(contextItem),
    outputSchema: wire.output_schema ?? null,
    budget: budgetOfWire(wire.budget),
    timeoutMs: wire.timeout_minutes === undefined ? null : wire.timeout_minutes * 60_000,
  }
}

function budgetOfWire(budget: Static<typeof BudgetShape> | undefined): Partial<Budget> {
  return {
    ...(budget?.max_minutes == null ? {} : { maxMinutes: budget.max_minutes }),
    ...(budget?.max_tokens == null ? {} : { maxTokens: budget.max_tokens }),
    ...(budget?.max_cost_usd == null ? {} : { maxCostUsd: budget.max_cost_usd }),
  }
}

function contextItem(item: Static<typeof ContextShape>[number], index: number): ContextItem {
  switch (item.kind) {
    case 'url':
      return { kind: 'url', url: item.url }
    case 'checkpoint':
      return { kind: 'checkpoint', commit: commitOf(item.commit, index, 'commit') }
    case 'bundle':
      return {
        kind: 'bundle',
        name: item.name ?? null,
        content: bytesOf({ ...item, encoding: 'base64' }, index),
        baseCommit: commitOf(item.base_commit, index, 'base_commit'),
      }
    case 'patch':
      return { kind: 'patch', name: item.name ?? null, content: bytesOf(item, index) }
    default:
      return { kind: item.kind ?? 'file', name: item.name ?? null, content: bytesOf(item, index) }
  }
}

function bytesOf(item: { content: string; name?: string; encoding?: 'base64' }, index: number): Uint8Array {
  if (item.encoding === undefined) return Buffer.from(item.content, 'utf8')
  const bytes = bytesOfBase64(item.content)
  if (bytes === null)
    throw refuse(index, item.name, 'content is not base64; encode it with the standard alphabet and padding')
  return bytes
}

/** Null when the text is no base64. Its characters are counted by what they decode to: no pass over tens of megabytes but the decoder's own. */
function bytesOfBase64(content: string): Buffer | null {
  const text = content.includes('\n') ? content.replace(/[\r\n]/g, '') : content
  if (text.length % 4 !== 0 || text.includes('-') || text.includes('_')) return null
  const bytes = Buffer.from(text, 'base64')
  const padding = text.endsWith('==') ? 2 : text.endsWith('=') ? 1 : 0
  return bytes.length === (text.length / 4) * 3 - padding ? bytes : null
}

function commitOf(text: string, index: number, field: string): Oid {
  if (!isOid(text))
    throw refuse(
      index,
      undefined,
      `${field} ${JSON.stringify(text.slice(0, 80))} is not a full commit id (40 hex digits)`,
    )
  return text
}

function refuse(index: number, name: string | undefined, reason: string): HangarError {
  return new HangarError('invalid_context', `context[${index}]: ${reason}`, {
    itemIndex: index,
    ...(name === undefined ? {} : { itemName: name }),
    reason,
  })
}
