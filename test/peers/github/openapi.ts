/** GitHub's published shapes: which operation a request is, and what is wrong with its body or its answer. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Ajv, type ValidateFunction } from 'ajv'
import formats from 'ajv-formats'

interface Content {
  readonly content?: { readonly 'application/json'?: { readonly schema: object } }
  readonly $ref?: string
}
interface Described {
  readonly operationId: string
  readonly requestBody?: Content & { readonly required?: boolean }
  readonly responses: Readonly<Record<string, Content>>
}
export interface Found {
  readonly id: string
  readonly params: Readonly<Record<string, string>>
  /** What is wrong with the body; null: nothing. */
  requestFault(body: unknown): string | null
  responseFault(status: number, body: unknown): string | null
}

const SLICE = fileURLToPath(new URL('../../../../test/peers/github/openapi-slice.json', import.meta.url))
const slice = JSON.parse(readFileSync(SLICE, 'utf8')) as {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Described>>>>
  readonly components: {
    readonly responses: Readonly<Record<string, Content>>
    readonly schemas: Readonly<Record<string, Shape>>
  }
}
const ajv = new Ajv({ strict: false, allErrors: false })
// biome-ignore lint/suspicious/noExplicitAny: the package's types are those of CommonJS
;((formats as any).default ?? formats)(ajv)
ajv.addSchema({ $id: 'github', ...(rewritten(slice) as object) })
const validators = new Map<object, ValidateFunction>()

const ROUTES = Object.entries(slice.paths).flatMap(([template, operations]) =>
  Object.entries(operations).map(([method, operation]) => ({
    method: method.toUpperCase(),
    operation,
    names: [...template.matchAll(/\{(\w+)\}/g)].map(([, name]) => name ?? ''),
    pattern: new RegExp(`^${template.replace(/\{\w+\}/g, '([^/]+)')}$`),
  })),
)

/** The operation of a request; null: GitHub's API as hangar may use it has none. */
export function findOperation(method: string, path: string): Found | null {
  for (const route of ROUTES) {
    const values = route.method === method ? route.pattern.exec(path)?.slice(1) : undefined
    if (values === undefined) continue
    const { operation, names } = route
    return {
      id: operation.operationId,
      params: Object.fromEntries(names.map((name, at) => [name, decodeURIComponent(values[at] ?? '')])),
      requestFault(body) {
        const schema = operation.requestBody?.content?.['application/json']?.schema
        if (schema === undefined) return body === undefined ? null : 'it takes no body'
        if (body === undefined) return operation.requestBody?.required === true ? 'it needs a body' : null
        return fault(schema, body)
      },
      responseFault(status, body) {
        const described = operation.responses[String(status)]
        if (described === undefined) return `status ${status} is not documented`
        const content = described.$ref === undefined ? described : slice.components.responses[lastOf(described.$ref)]
        const schema = content?.content?.['application/json']?.schema
        return schema === undefined ? null : fault(schema, body)
      },
    }
  }
  return null
}

function fault(schema: object, value: unknown): string | null {
  const validate = validators.get(schema) ?? ajv.compile(rewritten(schema) as object)
  validators.set(schema, validate)
  return validate(value) ? null : ajv.errorsText(validate.errors)
}

/** References within the document, as ajv finds them from outside of it. */
function rewritten(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value).replace(/"\$ref":"#\//g, '"$ref":"github#/'))
}

function lastOf(reference: string): string {
  return reference.split('/').at(-1) ?? ''
}

/** The smallest value that a published shape takes, by its name among the components. */
export function sampleOf(name: string): unknown {
  return sample({ $ref: `#/components/schemas/${name}` }, 0)
}

interface Shape {
  readonly $ref?: string
  readonly type?: string | readonly string[]
  readonly nullable?: boolean
  readonly enum?: readonly unknown[]
  readonly format?: string
  readonly required?: readonly string[]
  readonly properties?: Readonly<Record<string, Shape>>
  readonly allOf?: readonly Shape[]
  readonly anyOf?: readonly Shape[]
  readonly oneOf?: readonly Shape[]
}

function sample(shape: Shape, depth: number): unknown {
  if (shape.$ref !== undefined) {
    const found = slice.components.schemas[lastOf(shape.$ref)]
    if (found === undefined) throw new Error(`there is no shape ${shape.$ref}`)
    return sample(found, depth + 1)
  }
  if (shape.enum !== undefined) return shape.enum[0]
  if (shape.nullable === true || shape.type === 'null' || (Array.isArray(shape.type) && shape.type.includes('null')))
    return null
  const several = shape.allOf ?? shape.anyOf?.slice(0, 1) ?? shape.oneOf?.slice(0, 1)
  if (several !== undefined)
    return several.length === 1
      ? sample(several[0] ?? {}, depth + 1)
      : Object.assign({}, ...several.map((one) => sample(one, depth + 1)))
  switch (Array.isArray(shape.type) ? shape.type[0] : shape.type) {
    case 'string':
      if (shape.format === 'uri') return 'https://example.com/'
      return shape.format === 'date-time' ? '2026-01-01T00:00:00Z' : 'x'
    case 'integer':
    case 'number':
      return 1
    case 'boolean':
      return false
    case 'array':
      return []
    default:
      return Object.fromEntries(
        (shape.required ?? []).map((field) => [field, sample(shape.properties?.[field] ?? {}, depth + 1)]),
      )
  }
}
