/** hangar-agent in a sandbox: the variables it runs with, the checkpoint it makes, and what it says. */
import { errors, HangarError } from '../domain/errors.ts'
import { conversationDirectory, IO, ioDirectory } from '../domain/hangar-io.ts'
import { jobOf, type Oid, parseOid, workBranch } from '../domain/names.ts'
import type { Provider, SandboxPaths, SandboxRef } from '../domain/sandbox.ts'
import type { SessionRecord, TurnRecord } from '../domain/session.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import type { TurnAt, TurnServices } from './turn-context.ts'

const CHECKPOINT_TIMEOUT_MS = 15 * 60_000

/** Whether the sandbox can be worked in. One that was paused is made to go on first: a pause is no end, and all that is in it counts. */
export async function isUp(provider: Provider, ref: SandboxRef): Promise<boolean> {
  const { state } = await provider.inspect(ref)
  if (state !== 'paused') return state === 'up'
  if (provider.capabilities().pause) await provider.resume(ref)
  return (await provider.inspect(ref)).state !== 'gone'
}

/** Reads a directory of the sandbox; when that fails, once more with everything in it opened to the agent's own user, who may have closed it. */
export async function readOpened<T>(
  provider: Provider,
  at: { readonly ref: SandboxRef; readonly dir: string },
  read: () => Promise<T>,
): Promise<T> {
  try {
    return await read()
  } catch (error) {
    if (!(error instanceof HangarError && error.code === 'sandbox_failed')) throw error
    const script = 'chmod u+rwx "$HOME" "$HOME/.hangar" "$1/.." 2>/dev/null; exec chmod -R u+rwX "$1"'
    await provider.exec(at.ref, ['sh', '-c', script, 'sh', at.dir], { timeoutMs: 60_000, maxOutputBytes: 1_048_576 })
    return read()
  }
}

/** Runs `hangar-agent checkpoint`, which pushes the sandbox's state through the gateway. */
export async function checkpointSandbox(
  at: TurnAt,
  ref: SandboxRef,
  session: SessionRecord,
  turn: TurnRecord,
  services: TurnServices,
): Promise<HelperReport> {
  const { provider } = at.environment
  const env = turnEnvironment(at, session, turn, provider.paths(ref))
  const options = { env, timeoutMs: CHECKPOINT_TIMEOUT_MS, maxOutputBytes: 1_048_576 }
  const run = await services.exclusive(at.name, async () => {
    // Told where the refs are, the helper pushes nothing when nothing has changed.
    const branch = await at.repo.refs.read(workBranch(at.name))
    const checkpoint = await at.repo.refs.read(sessionRef(at.name, 'checkpoint'))
    const known = checkpoint === null ? [] : ['--branch-at', branch ?? '', '--checkpoint-at', checkpoint]
    const cap = ['--max-bytes', String(at.environment.maxUntrackedBytes)]
    return provider.exec(ref, ['hangar-agent', 'checkpoint', ...cap, ...known], options)
  })
  // An agent has a say in what the helper meets, and this error may be answered to whoever asked.
  if (run.exitCode !== 0) throw errors.sandboxFailed(services.redactor.text(lastWords(run.err)))
  return reportLines(run.out)
}

/** The variables of INTERFACE.md for everything that runs in the sandbox for this turn; the environment's own come first. Never a credential. */
export function turnEnvironment(
  at: TurnAt,
  session: SessionRecord,
  turn: TurnRecord,
  paths: SandboxPaths,
): Record<string, string> {
  const io = ioDirectory(paths.home, at.name)
  const job = jobOf(at.name)
  const author = { name: 'hangar agent', email: `${at.name}@hangar.invalid` }
  return {
    GIT_AUTHOR_NAME: author.name,
    GIT_AUTHOR_EMAIL: author.email,
    GIT_COMMITTER_NAME: author.name,
    GIT_COMMITTER_EMAIL: author.email,
    ...at.environment.env,
    HANGAR_IO: io,
    HANGAR_SESSION: at.name,
    ...(job === null ? {} : { HANGAR_JOB: job.id, HANGAR_ATTEMPT: String(job.attempt ?? 1) }),
    HANGAR_TURN: String(turn.turn),
    HANGAR_REPO: at.slug,
    HANGAR_BRANCH: `hangar/${at.name}`,
    HANGAR_BASE: session.baseCommit ?? '',
    HANGAR_GATEWAY: at.environment.gatewayUrl,
    HANGAR_PROMPT_FILE: `${io}/${IO.prompt}`,
    HANGAR_CONVERSATION: conversationDirectory(paths.home),
    ...(turn.outputSchema === null ? {} : { HANGAR_OUTPUT_SCHEMA: `${io}/${IO.schema}` }),
  }
}

/** Where a turn's record keeps an attachment: paths in trees are bytes held as latin1. */
export function attachmentPath(turn: number, name: string): string {
  return `turns/${turn}/in/${Buffer.from(name, 'utf8').toString('latin1')}`
}

/** What hangar-agent prints for the orchestrator: `<word> <value>` lines. */
export interface HelperReport {
  readonly head: Oid | null
  readonly commit: Oid | null
  readonly warnings: string[]
}

export function reportLines(out: Buffer): HelperReport {
  const values = new Map<string, string>()
  const warnings: string[] = []
  for (const line of out.toString('utf8').split('\n')) {
    const [word = '', ...rest] = line.split(' ')
    if (word === 'warning') warnings.push(rest.join(' ').slice(0, 1_000))
    else values.set(word, rest.join(' '))
  }
  const oid = (word: string) => {
    const text = values.get(word)
    return text === undefined || text === '' ? null : parseOid(text)
  }
  return { head: oid('head'), commit: oid('commit'), warnings: warnings.slice(0, 100) }
}

/** The end of what a helper said on stderr, for an error's sentence. */
export function lastWords(err: Buffer): string {
  return err.toString('utf8').trim().split('\n').slice(-5).join('; ').slice(-1_000)
}
