/** Which calls of a tool are one and the same request, made again after it was cut off. */
import { createHash } from 'node:crypto'
import { errors } from '../../domain/errors.ts'
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
  const told = args[tool.idempotentBy]
  if (told === undefined) return null
  const body = digestOf(args)
  return { key: hash(`${caller.id}\0mcp\0${name}\0${String(told)}\0${body}`), body }
}

/** SHA-256 (hex) of what the arguments say, in whatever order they say it. */
export function digestOf(args: Readonly<Record<string, unknown>>): string {
  return hash(JSON.stringify(sorted(args)))
}

function hash(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}

/** Deeper arguments are refused: each level costs stack. */
const MAX_DEPTH = 500

function sorted(value: unknown, depth = 0): unknown {
  if (depth > MAX_DEPTH) throw errors.invalidRequest(`the arguments are nested deeper than ${MAX_DEPTH} levels`)
  if (Array.isArray(value)) return value.map((inner) => sorted(inner, depth + 1))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, inner]) => [key, sorted(inner, depth + 1)]),
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
