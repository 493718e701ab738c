/** Our own shapes: JSON Schemas written with TypeBox, checked by ajv; one sentence for the first thing that is wrong. */
import type { Static, TSchema } from '@sinclair/typebox'
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import { errors } from './errors.ts'

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
  const [error] = found
  if (error === undefined) return ' is not valid'
  const place = error.instancePath.replace(/\/(\d+)/g, '[$1]').replace(/\//g, '.')
  const params = error.params as Record<string, unknown>
  const where = place === '' ? '' : ` at ${place}`
  // A union of literals gives an error for each of them.
  const literals = found.filter((one) => one.keyword === 'const' && one.instancePath === error.instancePath)
  if (error.keyword === 'const' && literals.length > 1)
    return `${where}: must be one of ${literals.map((one) => String(one.schema)).join(', ')}`
  const description = (error.parentSchema as { description?: string } | undefined)?.description
  const allowed =
    params['allowedValues'] ??
    params['additionalProperty'] ??
    (error.keyword === 'pattern' ? description?.replace(/\.$/, '') : undefined)
  const detail = allowed === undefined ? '' : ` (${Array.isArray(allowed) ? allowed.join(', ') : String(allowed)})`
  return `${where}: ${error.message ?? 'is not valid'}${detail}`
}
