/** What a repo itself says of its environment, in `.hangar/environment.json`: only what concerns the inside of a sandbox is its to decide. */
import { type Static, Type } from '@sinclair/typebox'
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
 * The environment with what the repo adds at the commit that is worked on: a set-up where the server has none, and variables that the server
 * does not set; and a verification where there is none, by the commit that the work began on: an agent does not choose what verifies it.
 * A file that cannot be taken adds nothing but a warning for the turn.
 */
export async function withRepoEnvironment(
  environment: TurnEnvironment,
  repo: Repository,
  { head, base }: { readonly head: Oid | null; readonly base: Oid | null },
): Promise<TurnEnvironment> {
  const now = await readAt(repo, head)
  const then = base === head ? now : await readAt(repo, base)
  const refused = now.refused ?? then.refused
  const added = {
    setup: environment.setup ?? now.settings.setup ?? null,
    env: { ...now.settings.env, ...environment.env },
    verify: environment.verify ?? then.settings.verify ?? null,
  }
  if (refused === null) return { ...environment, ...added }
  const warning = `${FILE} of the repo was left out: ${refused}`
  return { ...environment, ...added, warnings: [...environment.warnings, warning] }
}

interface Read {
  readonly settings: Static<typeof Shape>
  /** Why the file is not taken. */
  readonly refused: string | null
}

async function readAt(repo: Repository, commit: Oid | null): Promise<Read> {
  const file = commit === null ? null : await repo.objects.info(`${commit}:${FILE}`)
  if (file === null || file.type !== 'blob') return { settings: {}, refused: null }
  try {
    if (file.size > MAX_BYTES) throw new Error(`it has ${file.size} bytes, and may have ${MAX_BYTES}`)
    const text = (await repo.objects.read(file.oid))?.body.toString('utf8') ?? ''
    return { settings: parseShape(Shape, JSON.parse(text), 'it'), refused: null }
  } catch (error) {
    return { settings: {}, refused: messageOf(error) }
  }
}
