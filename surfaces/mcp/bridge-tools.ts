/** What the bridge adds to the server's tools: the work in a checkout on this machine, handed over and taken back. */
import type { JsonRpcMessage } from './json-lines.ts'

/** What only the user's machine can do. Each throws an error whose message is a sentence for the caller. */
export interface LocalWork {
  /** Pushes a checkpoint of a checkout to the server and gives it to `use`. */
  handOver<T>(
    request: {
      readonly directory: string
      readonly session: string
      /** The repo; null: of a new session the one that the checkout belongs to, else the session's. */
      readonly repo: string | null
      readonly begins: boolean
      readonly createRepo: boolean
      note(text: string): void
      readonly signal: AbortSignal
    },
    use: (handed: { readonly repo: string; readonly commit: string }) => Promise<T>,
  ): Promise<T>
  pull(request: {
    readonly directory: string
    readonly name: string
    readonly branch: string | null
    readonly checkout: boolean
    readonly force: boolean
    /** The way to the server is cut by it, never a change of the checkout. */
    readonly signal: AbortSignal
  }): Promise<Pulled>
}

export interface Pulled {
  readonly branch: string
  readonly head: string | null
  readonly moved: boolean
  readonly checkedOut: boolean
  /** All that in a sentence. */
  readonly text: string
}

export interface Tool {
  readonly name: string
  readonly description?: string
  readonly inputSchema: Schema
  readonly [field: string]: unknown
}

interface Schema {
  readonly properties?: Readonly<Record<string, unknown>>
  readonly required?: readonly string[]
  readonly [field: string]: unknown
}

type Arguments = Readonly<Record<string, unknown>>

const PULL = 'pull_session'
const WITH_LOCAL = ['new_session', 'send_to_session']

/** The server's tools with what the bridge adds; `whole` says that no further page follows. */
export function addLocalTools(tools: readonly Tool[], directory: string, { whole }: { whole: boolean }): Tool[] {
  const extended = tools
    .filter(({ name }) => name !== PULL)
    .map((tool) => (WITH_LOCAL.includes(tool.name) ? withLocal(tool, directory) : tool))
  return whole ? [...extended, pullTool(directory)] : extended
}

function withLocal(tool: Tool, directory: string): Tool {
  const begins = tool.name === 'new_session'
  const { required = [], properties, ...schema } = tool.inputSchema
  return {
    ...tool,
    description: `${tool.description ?? ''}
from_local: true hands over the user's checkout on this machine as it is, whatever was pushed or committed: rather use it than context items of kind bundle or patch that you would have to make. Take the work back with ${PULL}.`,
    inputSchema: {
      ...schema,
      properties: {
        ...properties,
        from_local: {
          type: 'boolean',
          description: `Hand over a checkout of this machine: its commits, pushed or not, and its staged, unstaged and untracked changes; ignored files stay. The checkout is not changed.${begins ? ' repo may be left out: it is found by the remotes.' : ' The session must be at rest.'}`,
        },
        checkout: {
          type: 'string',
          description: `With from_local: absolute path of the checkout; default ${directory}.`,
        },
        ...(begins
          ? {
              create_repo: {
                type: 'boolean',
                description:
                  'With from_local: host the repo on the server when it does not know this checkout. Only when the user agrees.',
              },
            }
          : {}),
      },
      required: begins ? required.filter((name) => name !== 'repo') : required,
    },
  }
}

function pullTool(directory: string): Tool {
  return {
    name: PULL,
    title: "Take a session's work into the checkout",
    description: `Fetches a session's commits from the server into a local branch (hangar/<name>) of a checkout on this machine. With checkout: true the checkout itself becomes the session's: branch, staged, unstaged and untracked changes. Use it when a turn has ended and the user wants the work; get_session_patch only shows it. Nothing local is overwritten: it refuses with a sentence that says what is in the way.
Example: ${PULL}({"name":"csv-fix","checkout":true})`,
    inputSchema: {
      type: 'object',
      properties: {
        name: { type: 'string', description: "The session's name." },
        checkout: {
          type: 'boolean',
          description: "Switch to the branch and take over the session's uncommitted changes too; default: only fetch.",
        },
        branch: { type: 'string', description: 'The local branch; default hangar/<name>.' },
        force: {
          type: 'boolean',
          description:
            'Overwrite commits of the local branch that the session does not have. Only when the user agrees.',
        },
        directory: { type: 'string', description: `Absolute path of the checkout; default ${directory}.` },
      },
      required: ['name'],
      additionalProperties: false,
    },
    outputSchema: {
      type: 'object',
      properties: {
        branch: { type: 'string' },
        head_commit: { type: ['string', 'null'] },
        moved: { type: 'boolean', description: 'Whether the branch was moved.' },
        checked_out: { type: 'boolean' },
        text: { type: 'string' },
      },
      required: ['branch', 'head_commit', 'moved', 'checked_out', 'text'],
    },
    annotations: { readOnlyHint: false, destructiveHint: false, idempotentHint: true, openWorldHint: false },
  }
}

interface LocalDeps {
  readonly local: LocalWork
  readonly directory: string
  readonly signal: AbortSignal
}

/** How a call of a tool is answered here; null: it is the server's. */
export function localCall(
  message: JsonRpcMessage,
  deps: LocalDeps,
): ((forward: Forward) => Promise<JsonRpcMessage>) | null {
  const name = message.params?.['name']
  const given = message.params?.['arguments']
  const args: Arguments = typeof given === 'object' && given !== null ? (given as Arguments) : {}
  if (name === PULL) return () => pull(message, args, deps)
  const own = ['from_local', 'checkout', 'create_repo'].some((field) => field in args)
  return typeof name === 'string' && WITH_LOCAL.includes(name) && own
    ? (forward) => handOver(message, args, deps, forward)
    : null
}

export type Forward = (message: JsonRpcMessage) => Promise<JsonRpcMessage>

/** A result that says no with a sentence. */
export function refusal(id: JsonRpcMessage['id'], text: string): JsonRpcMessage {
  return { jsonrpc: '2.0', id: id ?? null, result: { isError: true, content: [{ type: 'text', text }] } }
}

async function handOver(
  message: JsonRpcMessage,
  { from_local: fromLocal, checkout, create_repo: createRepo, ...args }: Arguments,
  { local, directory, signal }: LocalDeps,
  forward: Forward,
): Promise<JsonRpcMessage> {
  const begins = message.params?.['name'] === 'new_session'
  const session = begins ? args['name'] : args['ref']
  const wrong =
    notBoolean({ from_local: fromLocal, create_repo: createRepo }) ??
    notPath({ checkout }) ??
    (begins || createRepo === undefined ? null : 'create_repo: a session that exists has its repo')
  if (wrong !== null) return refusal(message.id, wrong)
  const pass = (more: Arguments) =>
    forward({ ...message, params: { ...message.params, arguments: { ...args, ...more } } })
  if (fromLocal !== true) {
    if (checkout !== undefined || createRepo === true)
      return refusal(message.id, 'checkout and create_repo go with from_local: true')
    return pass({})
  }
  // What else is wrong with the arguments is the server's to say, before anything is pushed.
  if (typeof session !== 'string' || !(args['context'] === undefined || Array.isArray(args['context']))) return pass({})
  const notes: string[] = []
  const request = {
    directory: typeof checkout === 'string' ? checkout : directory,
    session,
    repo: begins && typeof args['repo'] === 'string' ? args['repo'] : null,
    begins,
    createRepo: createRepo === true,
    note: (text: string) => notes.push(text),
    signal,
  }
  try {
    return await local.handOver(request, async ({ repo, commit }) => {
      const context = [{ kind: 'checkpoint', commit }, ...((args['context'] as unknown[] | undefined) ?? [])]
      const answer = await pass(begins ? { repo, context } : { context })
      // What was not taken must not be remembered as handed over.
      if (answer.error !== undefined || answer.result?.['isError'] === true) throw new NotTaken(answer)
      return withNotes(answer, notes)
    })
  } catch (error) {
    if (error instanceof NotTaken) return error.answer
    throw error
  }
}

class NotTaken extends Error {
  readonly answer: JsonRpcMessage

  constructor(answer: JsonRpcMessage) {
    super('the server did not take it')
    this.answer = answer
  }
}

function withNotes(answer: JsonRpcMessage, notes: readonly string[]): JsonRpcMessage {
  const content = answer.result?.['content']
  if (notes.length === 0 || !Array.isArray(content)) return answer
  const more = notes.map((text) => ({ type: 'text', text }))
  return { ...answer, result: { ...answer.result, content: [...content, ...more] } }
}

async function pull(
  message: JsonRpcMessage,
  args: Arguments,
  { local, directory, signal }: LocalDeps,
): Promise<JsonRpcMessage> {
  const { name, checkout, branch, force, directory: named } = args
  const unknown = Object.keys(args).find((key) => !['name', 'checkout', 'branch', 'force', 'directory'].includes(key))
  const wrong =
    unknown !== undefined
      ? `${unknown}: ${PULL} takes name, checkout, branch, force and directory`
      : typeof name !== 'string' || !/^[a-z0-9][a-z0-9-]{0,62}$/.test(name)
        ? "name: give the session's name; list_sessions shows those there are"
        : branch !== undefined && typeof branch !== 'string'
          ? 'branch: give the name of a local branch'
          : (notBoolean({ checkout, force }) ?? notPath({ directory: named }))
  if (wrong !== null) return refusal(message.id, wrong)
  const pulled = await local.pull({
    directory: typeof named === 'string' ? named : directory,
    name: name as string,
    branch: typeof branch === 'string' ? branch : null,
    checkout: checkout === true,
    force: force === true,
    signal,
  })
  const structuredContent = {
    branch: pulled.branch,
    head_commit: pulled.head,
    moved: pulled.moved,
    checked_out: pulled.checkedOut,
    text: pulled.text,
  }
  const content = [{ type: 'text', text: JSON.stringify(structuredContent) }]
  return { jsonrpc: '2.0', id: message.id ?? null, result: { content, structuredContent } }
}

function notBoolean(fields: Arguments): string | null {
  const [wrong] = Object.entries(fields).filter(([, value]) => value !== undefined && typeof value !== 'boolean')
  return wrong === undefined ? null : `${wrong[0]}: give true or false`
}

function notPath(fields: Arguments): string | null {
  const [wrong] = Object.entries(fields).filter(
    ([, value]) => value !== undefined && (typeof value !== 'string' || !value.startsWith('/') || value.includes('\0')),
  )
  return wrong === undefined ? null : `${wrong[0]}: give the absolute path of a checkout on this machine`
}
