/** Sessions are suspended: what their sandbox holds is in git, so the sandbox goes; the next message gets a fresh one with all of it. */
import { setTimeout as sleep } from 'node:timers/promises'
import { errors, messageOf } from '../domain/errors.ts'
import type { SessionName } from '../domain/names.ts'
import type { SessionRecord } from '../domain/session.ts'
import { checkpointSandbox, isUp } from './sandbox-helper.ts'
import { sandboxRef, type TurnAt, type TurnServices } from './turn-context.ts'
import { keepConversation } from './turn-conversation.ts'

export interface SessionSuspend {
  /** Saves the working state and ends the sandbox of an idle session. Safe to repeat. Throws `conflict` while a turn is worked on. */
  suspend(name: SessionName): Promise<SessionRecord>
  /** Makes a suspended session idle again; its sandbox is made when the next message needs it. Safe to repeat. */
  resume(name: SessionName): Promise<SessionRecord>
  /** Suspends sessions that have been idle for as long as their environment says; one round. */
  sweep(): Promise<void>
  close(): Promise<void>
}

const ROUND_MS = 30_000

export function createSessionSuspend(services: TurnServices): SessionSuspend {
  const { records, grants, clock, log } = services
  const closing = new AbortController()

  const suspend = async (name: SessionName): Promise<SessionRecord> => {
    const { session } = await records.get(name)
    if (session.state === 'suspended') return session
    if (session.state !== 'idle') throw notIdle(session)
    const ref = sandboxRef(session)
    const environment = services.environment(session.environment)
    const at: TurnAt = {
      name,
      number: session.turns,
      repo: await records.repository(name),
      slug: session.repo,
      environment,
      signal: closing.signal,
    }
    if (ref !== null && session.sandbox?.ready === true && (await isUp(environment.provider, ref))) {
      await checkpointSandbox(at, ref, session, await records.turn(name, session.turns), services)
      const notKept = await keepConversation(at, ref, services)
      if (notKept !== null) throw errors.sandboxFailed(notKept)
    }
    const suspended = await records.move(name, async ({ session: current }) => {
      if (current.state === 'suspended') return null
      // A message came meanwhile, and may have changed what was saved.
      if (current.state !== 'idle' || current.turns !== session.turns) throw notIdle(current)
      return { message: 'the session is suspended', session: { ...current, state: 'suspended', sandbox: null } }
    })
    if (session.sandbox !== null) grants.revoke(session.sandbox.grantHash)
    // What a crash leaves here is an orphan that the next start removes.
    if (ref !== null) await environment.provider.destroy(ref)
    return suspended
  }

  const sweep = async (): Promise<void> => {
    for (const [, { session }] of await services.index.sessions.range()) {
      if (closing.signal.aborted) return
      if (session.state !== 'idle' || session.sandbox === null) continue
      try {
        const { idleSuspendMs } = services.environment(session.environment)
        if (idleSuspendMs === null || session.updatedAt > clock.now() - idleSuspendMs) continue
        await suspend(session.name)
      } catch (error) {
        log.warn(
          { session: session.name, error: messageOf(error) },
          'an idle session was not suspended; the next round tries again',
        )
      }
    }
  }
  const rounds = (async () => {
    for (;;) {
      await sleep(ROUND_MS, undefined, { signal: closing.signal, ref: false }).catch(() => {})
      if (closing.signal.aborted) return
      await sweep().catch((error: unknown) => log.warn({ error: messageOf(error) }, 'idle sessions were not looked at'))
    }
  })()

  return {
    suspend,
    sweep,
    resume: (name) =>
      records.move(name, async ({ session }) => {
        if (session.state === 'idle' || session.state === 'running') return null
        if (session.state !== 'suspended') throw notIdle(session)
        return { message: 'the session is resumed', session: { ...session, state: 'idle' } }
      }),
    close: async () => {
      closing.abort('closing')
      await rounds
    },
  }
}

function notIdle(session: SessionRecord) {
  return errors.conflict(
    session.state === 'running'
      ? `session ${session.name} is at work; wait for its turn (hangar session wait ${session.name}) or stop it (hangar session cancel ${session.name})`
      : `session ${session.name} is ${session.state}`,
  )
}
