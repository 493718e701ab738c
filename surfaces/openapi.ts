/** The OpenAPI document, made from the table of operations. */
import type { TObject, TSchema } from '@sinclair/typebox'
import type { Operation } from './operations/operation.ts'

/** OpenAPI 3.1, whose schemas are JSON Schema 2020-12. */
export function openApiDocument(
  operations: readonly Operation[],
  options: { readonly version: string; readonly url: string },
): Record<string, unknown> {
  const paths: Record<string, Record<string, unknown>> = {}
  for (const operation of operations) {
    paths[operation.path] ??= {}
    Object.assign(paths[operation.path] as object, { [operation.method]: entryOf(operation) })
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'hangar',
      version: options.version,
      description: 'Hand work to coding agents in sandboxes, and get it back by git.',
    },
    servers: [{ url: options.url }],
    security: [{ bearer: [] }],
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer', description: 'A token, hgt_…' } },
      schemas: { Problem: PROBLEM },
    },
    paths,
  }
}

const PROBLEM = {
  type: 'object',
  required: ['type', 'title', 'status', 'detail', 'code'],
  properties: {
    type: { type: 'string' },
    title: { type: 'string' },
    status: { type: 'integer' },
    detail: { type: 'string' },
    code: { type: 'string' },
    item_index: { type: 'integer' },
    item_name: { type: 'string' },
    reason: { type: 'string' },
    missing: { type: 'array', items: { type: 'string' } },
  },
}

function entryOf(operation: Operation): Record<string, unknown> {
  const inPath = [...operation.path.matchAll(/\{(\w+)\}/g)].map((match) => match[1] ?? '')
  const fields = Object.entries(operation.input.properties as Record<string, TSchema>)
  const rest = fields.filter(([name]) => !inPath.includes(name))
  const parameters = [
    ...inPath.map((name) => parameter(name, 'path', operation.input, true)),
    ...(operation.method === 'post' ? [] : rest.map(([name]) => parameter(name, 'query', operation.input, false))),
    ...(operation.method === 'post'
      ? [{ name: 'Idempotency-Key', in: 'header', required: false, schema: { type: 'string', maxLength: 255 } }]
      : []),
  ]
  const required = (operation.input.required ?? []).filter((name) => !inPath.includes(name))
  return {
    operationId: operation.name,
    summary: operation.summary,
    ...(operation.restNote === undefined ? {} : { description: operation.restNote }),
    'x-scope': operation.scope,
    parameters,
    ...(operation.method === 'post' && rest.length > 0
      ? {
          requestBody: {
            required: required.length > 0,
            content: {
              'application/json': {
                schema: { type: 'object', additionalProperties: false, required, properties: Object.fromEntries(rest) },
              },
            },
          },
        }
      : {}),
    responses: {
      [operation.status]: {
        description: 'Done.',
        content:
          operation.output === null
            ? { [operation.contentType ?? 'application/octet-stream']: {} }
            : { 'application/json': { schema: operation.output } },
      },
      default: {
        description: 'Refused or failed.',
        content: { 'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } } },
      },
    },
  }
}

function parameter(name: string, place: 'path' | 'query', input: TObject, required: boolean): Record<string, unknown> {
  const schema = input.properties[name] as TSchema
  return { name, in: place, required: required || (input.required ?? []).includes(name), schema }
}
