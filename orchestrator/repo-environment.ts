/** What a repo itself says of its environment, in `.hangar/environment.json`: only what concerns the inside of a sandbox is its to decide. */
import { Type } from '@sinclair/typebox'
import { VariablesShape } from '../domain/environment.ts'
import { messageOf } from '../domain/errors.ts'
import type { Oid } from '../domain/names.ts'
import { parseShape } from '../domain/schema.ts'
import type { Repository } from '../gateway/git/repository.ts'
import type { TurnEnvironment } from './turn-context.ts'

const FILE = '.hangar/environment.json'
const MAX_BYTES = 64 * 1024

const Shape = Type.Object(
  {
    setup: Type.Optional(Type.String({ pattern: '^[^\\0]+$', maxLength: 16_384 })),
    env: Type.Optional(VariablesShape),
    verify: Type.Optional(Type.String({ pattern: '^[^\\0]+$', maxLength: 16_384 })),
  },
  { additionalProperties: false },
)

/**
 * The environment with what the repo adds at the commit: a set-up and a verification where the server has none, and variables that the server does not set.
 * A file that cannot be taken adds nothing but a warning for the turn.
 */
export async function withRepoEnvironment(
  environment: TurnEnvironment,
  repo: Repository,
  commit: Oid | null,
): Promise<TurnEnvironment> {
  if (commit === null) return environment
  const file = await repo.objects.info(`${commit}:${FILE}`)
  if (file === null || file.type !== 'blob') return environment
  try {
    if (file.size > MAX_BYTES) throw new Error(`it has ${file.size} bytes, and may have ${MAX_BYTES}`)
    const text = (await repo.objects.read(file.oid))?.body.toString('utf8') ?? ''
    const { setup, env, verify } = parseShape(Shape, JSON.parse(text), 'it')
    return {
      ...environment,
      setup: environment.setup ?? setup ?? null,
      env: { ...env, ...environment.env },
      verify: environment.verify ?? verify ?? null,
    }
  } catch (error) {
    return {
      ...environment,
      warnings: [...environment.warnings, `${FILE} of the repo was left out: ${messageOf(error)}`],
    }
  }
}
