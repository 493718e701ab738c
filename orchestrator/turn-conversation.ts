/** The agent's conversation in and out of a sandbox: kept after each turn, put back into a fresh one, or given up with a reason. */
import { messageOf } from '../domain/errors.ts'
import type { SandboxRef } from '../domain/sandbox.ts'
import type { SessionRecord } from '../domain/session.ts'
import { type StateFile, stateFiles } from '../exchange/conversation-state.ts'
import { readOpened } from './sandbox-helper.ts'
import type { TurnAt, TurnServices } from './turn-context.ts'

/** Keeps the conversation's files; gives a warning when that could not be done. */
export async function keepConversation(at: TurnAt, ref: SandboxRef, services: TurnServices): Promise<string | null> {
  const { provider, harness } = at.environment
  const { home } = provider.paths(ref)
  try {
    const files: StateFile[] = []
    for (const under of await presentOf(at, ref, harness.state)) {
      const { maxConversationBytes: maxBytes, maxConversationFiles: maxFiles } = services.limits
      const dir = `${home}/${under}`
      const read = async () => {
        const tar = await provider.getTar(ref, dir, { maxBytes: 2 * maxBytes })
        return stateFiles(tar, { under, notKept: harness.notKept, maxFiles, maxBytes }).finally(() => tar.destroy())
      }
      files.push(...(await readOpened(provider, { ref, dir }, read)))
    }
    await services.conversations.keep(at.repo, at.name, files)
    return null
  } catch (error) {
    return `the agent's conversation was not kept, so another sandbox cannot go on with it: ${services.redactor.text(messageOf(error))}`
  }
}

/** Those of the directories that are there; each look into a sandbox costs, so all are asked for at once. */
async function presentOf(at: TurnAt, ref: SandboxRef, directories: readonly string[]): Promise<string[]> {
  const script =
    'cd "$1" && shift && for dir; do if [ -d "$dir" ] && [ ! -L "$dir" ]; then printf "%s\\n" "$dir"; fi; done'
  const { home } = at.environment.provider.paths(ref)
  const { out } = await at.environment.provider.exec(ref, ['sh', '-c', script, 'sh', home, ...directories], {
    timeoutMs: 30_000,
    maxOutputBytes: 65_536,
  })
  const present = new Set(out.toString('utf8').split('\n'))
  return directories.filter((directory) => present.has(directory))
}

/** Puts the conversation into a fresh sandbox; gives the reason when it has to be given up. */
export async function restoreConversation(
  at: TurnAt,
  { ref, session }: { readonly ref: SandboxRef; readonly session: SessionRecord },
  services: TurnServices,
): Promise<string | null> {
  const known = session.conversation ?? null
  // A fork of a session whose agent had done something that nobody can go on with.
  if (known === null) return session.turns === 1 && (session.parentTurn ?? 0) > 0 ? 'nothing of it was kept' : null
  const { provider, harness } = at.environment
  if (known.harness !== harness.kind)
    return `it is one of ${known.harness}, and the environment now runs ${harness.kind}`
  if (known.isParents && !harness.forks) return `${harness.kind} cannot fork a conversation`
  try {
    const tar = await services.conversations.restore(at.repo, session.name)
    if (tar === null) return 'nothing of it was kept'
    await provider.putTar(ref, provider.paths(ref).home, tar)
    return null
  } catch (error) {
    if (at.signal.aborted) throw error
    return services.redactor.text(messageOf(error))
  }
}
