/** Objects held against Kubernetes' published shapes, strictly: an unknown field is a mistake. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Ajv, type ValidateFunction } from 'ajv'
import type { ApiObject } from './objects.ts'

const SCHEMAS = fileURLToPath(new URL('../../../../test/peers/kubernetes/schemas.json', import.meta.url))
const { kinds, $defs } = JSON.parse(readFileSync(SCHEMAS, 'utf8')) as {
  readonly kinds: Readonly<Record<string, string>>
  readonly $defs: Readonly<Record<string, unknown>>
}
const ajv = new Ajv({ strict: true, allErrors: true, allowUnionTypes: true })
ajv.addSchema({ $id: 'kubernetes', $defs })
const validators = new Map<string, ValidateFunction>()

/** What is wrong with the object, in words; null: nothing. */
export function validateObject(object: ApiObject): string | null {
  const kind = `${object.apiVersion}/${object.kind}`
  const at = kinds[kind]
  if (at === undefined) return `the kind ${kind} is not known`
  const validate = validators.get(kind) ?? ajv.compile({ $ref: `kubernetes${at}` })
  validators.set(kind, validate)
  return validate(object) ? null : ajv.errorsText(validate.errors)
}
