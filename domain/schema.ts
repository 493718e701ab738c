/** Our own shapes: JSON Schemas written with TypeBox, checked by ajv; one sentence for the first thing that is wrong. */
import type { Static, TSchema } from '@sinclair/typebox'
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import { errors } from './errors.ts'

// verbose: errors carry the schema and the value that they are about.
const OPTIONS = { strict: false, allErrors: false, useDefaults: true, verbose: true } as const
const ajv = new Ajv({ ...OPTIONS, coerceTypes: false })
const queryAjv = new Ajv({ ...OPTIONS, coerceTypes: true })
const compiled = new WeakMap<TSchema, ValidateFunction>()
const compiledQuery = new WeakMap<TSchema, ValidateFunction>()

/** The value as the schema's type, with its defaults filled in. Throws `invalid_request` that names the place. */
export function parseShape<S extends TSchema>(schema: S, value: unknown, what: string): Static<S> {
  return check(schema, value, what, compiled, ajv)
}

/** The same for query and path parameters, which arrive as strings: numbers and booleans are read from them. */
export function parseQuery<S extends TSchema>(schema: S, value: unknown, what: string): Static<S> {
  return check(schema, value, what, compiledQuery, queryAjv)
}

function check<S extends TSchema>(
  schema: S,
  value: unknown,
  what: string,
  cache: WeakMap<TSchema, ValidateFunction>,
  validator: Ajv,
): Static<S> {
  let validate = cache.get(schema)
  if (validate === undefined) {
    validate = validator.compile(schema)
    cache.set(schema, validate)
  }
  if (validate(value)) return value as Static<S>
  throw errors.invalidRequest(`${what}${sentence(validate.errors ?? [])}`)
}

/** Where and what, as in `.context[2].kind must be equal to one of the allowed values (file, text)`. */
function sentence(found: readonly ErrorObject[]): string {
  const error = pickError(found)
  if (error === undefined) return ' is not valid'
  const place = error.instancePath.replace(/\/(\d+)/g, '[$1]').replace(/\//g, '.')
  const where = place === '' ? '' : ` at ${place}`
  // A union of literals gives an error for each of them.
  const literals = found.filter((one) => one.keyword === 'const' && one.instancePath === error.instancePath)
  if (error.keyword === 'const' && literals.length > 1)
    return `${where}: must be one of ${literals.map((one) => String(one.schema)).join(', ')}`
  const params = error.params as Record<string, unknown>
  const description = (error.parentSchema as { description?: string } | undefined)?.description
  const allowed =
    params['allowedValues'] ??
    params['additionalProperty'] ??
    params['allowedValue'] ??
    (error.keyword === 'pattern' ? description?.replace(/\.$/, '') : undefined)
  const detail = allowed === undefined ? '' : ` (${Array.isArray(allowed) ? allowed.join(', ') : String(allowed)})`
  return `${where}: ${error.message ?? 'is not valid'}${detail}`
}

/**
 * The error to tell of. Where a value fits no branch of a union, ajv's first is of the first branch; what helps is the one of the branch
 * that the value's `kind` names, and for an unknown `kind` the kinds there are.
 */
function pickError(errors: readonly ErrorObject[]): ErrorObject | undefined {
  const union = errors.findLast(({ keyword, parentSchema }) => keyword === 'anyOf' && kindsOf(parentSchema) !== null)
  if (union === undefined) return errors[0]
  const kinds = kindsOf(union.parentSchema) ?? []
  const kind = (union.data as { kind?: unknown } | null)?.kind
  const at = kinds.findIndex((own) => (kind === undefined ? own.optional : own.values.includes(kind)))
  if (at === -1) {
    const allowedValues = kinds.flatMap(({ values }) => values)
    const message = 'must be equal to one of the allowed values'
    return { ...union, instancePath: `${union.instancePath}/kind`, message, params: { allowedValues } }
  }
  return errors.find(({ schemaPath }) => schemaPath.startsWith(`${union.schemaPath}/${at}/`)) ?? union
}

interface Kinds {
  readonly values: readonly unknown[]
  readonly optional: boolean
}

/** The values of `kind` by branch, when each branch of the union is an object with one. */
function kindsOf(schema: unknown): readonly Kinds[] | null {
  const branches = (schema as TSchema | undefined)?.['anyOf'] as readonly TSchema[] | undefined
  const kinds = (branches ?? []).map((branch): Kinds | null => {
    const own = (branch['properties'] as Record<string, TSchema> | undefined)?.['kind']
    if (own === undefined) return null
    const values = ((own['anyOf'] as readonly TSchema[] | undefined) ?? [own]).map((one): unknown => one['const'])
    return { values, optional: !((branch['required'] as readonly string[] | undefined) ?? []).includes('kind') }
  })
  return kinds.length > 0 && kinds.every((one) => one !== null) ? kinds : null
}
