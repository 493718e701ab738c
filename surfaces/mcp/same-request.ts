/** Which calls of a tool are one and the same request, made again after it was cut off. */
import { createHash } from 'node:crypto'
import type { TokenCaller } from '../../domain/grant.ts'
import type { IdempotencyMark } from '../../domain/session.ts'
import type { Operation, Reply } from '../operations/operation.ts'

/** The same caller, tool and arguments (in whatever order) give the same mark; null for a tool whose calls are not told apart. */
export function sameRequestMark(
  { name, tool }: Pick<Operation, 'name' | 'tool'>,
  args: Readonly<Record<string, unknown>>,
  caller: TokenCaller,
): IdempotencyMark | null {
  if (tool?.idempotentBy === undefined) return null
  const hash = (text: string) => createHash('sha256').update(text).digest('hex')
  const body = hash(JSON.stringify(sorted(args)))
  return { key: hash(`${caller.id}\0mcp\0${name}\0${String(args[tool.idempotentBy])}\0${body}`), body }
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, inner]) => [key, sorted(inner)]),
  )
}

/** While a request is at work, the same one made again shares its answer; afterwards the records know it. */
export function createSharing(): (key: string, work: () => Promise<Reply>) => Promise<Reply> {
  const running = new Map<string, Promise<Reply>>()
  return (key, work) => {
    const known = running.get(key)
    if (known !== undefined) return known
    const reply = work().finally(() => running.delete(key))
    running.set(key, reply)
    return reply
  }
}
