/** Our own shapes: JSON Schemas written with TypeBox, checked by ajv; one sentence for the first thing that is wrong. */
import type { Static, TSchema } from '@sinclair/typebox'
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import { errors } from './errors.ts'

const ajv = new Ajv({ strict: false, allErrors: false, useDefaults: true, coerceTypes: false })
const queryAjv = new Ajv({ strict: false, allErrors: false, useDefaults: true, coerceTypes: true })
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
  throw errors.invalidRequest(`${what}${sentence(validate.errors?.[0])}`)
}

/** Where and what, as in `.context[2].kind must be equal to one of the allowed values (file, text)`. */
function sentence(error: ErrorObject | undefined): string {
  if (error === undefined) return ' is not valid'
  const place = error.instancePath.replace(/\/(\d+)/g, '[$1]').replace(/\//g, '.')
  const params = error.params as Record<string, unknown>
  const allowed = params['allowedValues'] ?? params['additionalProperty']
  const detail = allowed === undefined ? '' : ` (${Array.isArray(allowed) ? allowed.join(', ') : String(allowed)})`
  return `${place === '' ? '' : ` at ${place}`}: ${error.message ?? 'is not valid'}${detail}`
}
