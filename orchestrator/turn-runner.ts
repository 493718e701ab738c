/** Runs turns: each as a list of named steps that may begin again after a crash, a bounded number at once, one at a time per session. */
import { HangarError, messageOf } from '../domain/errors.ts'
import { type SessionName, workBranch } from '../domain/names.ts'
import type { TurnRecord } from '../domain/session.ts'
import { withRepoEnvironment } from './repo-environment.ts'
import { checkpointSandbox } from './sandbox-helper.ts'
import type { Slots } from './slots.ts'
import { collectTurn, failTurn, salvageTurn } from './turn-collect.ts'
import { sandboxRef, type TurnAt, type TurnServices } from './turn-context.ts'
import { followTurn } from './turn-follow.ts'
import { prepareTurn } from './turn-prepare.ts'
import { repairTurn } from './turn-repair.ts'

export interface TurnRunner {
  /** Runs what is queued (or was being worked on) in the session, when nothing of it runs yet. */
  kick(name: SessionName): void
  /** Ends the running step of the session's turn early; its record already says why. */
  interrupt(name: SessionName): void
  /** Has the sandbox of a running turn push a checkpoint of its present state; does nothing when no agent runs. */
  refresh(name: SessionName): Promise<void>
  /** Resolves when nothing of the session is worked on. */
  settled(name: SessionName): Promise<void>
  /** Lets go of all turns; agents run on, and are found again at the next start. */
  close(): Promise<void>
}

export interface TurnRunnerDeps extends TurnServices {
  readonly slots: Slots
}

/** Waiting before a step is tried again whose record could not be written. */
const RETRY_MS = 2_000

export function createTurnRunner(services: TurnRunnerDeps): TurnRunner {
  const working = new Map<SessionName, { readonly stop: AbortController; readonly done: Promise<void> }>()
  const { slots } = services
  services.metrics.gauge('hangar_turns', () =>
    Object.entries(slots.load()).map(([state, value]) => ({ labels: { state }, value })),
  )
  let closing = false

  // Asked again while the last turn's work was ending: looked at once more when it has.
  const again = new Set<SessionName>()

  const kick = (name: SessionName): void => {
    if (closing) return
    if (working.has(name)) {
      again.add(name)
      return
    }
    const stop = new AbortController()
    const done = work(name, stop)
      .catch((error: unknown) =>
        services.log.error({ session: name, error: messageOf(error) }, 'a turn could not be worked on'),
      )
      .finally(() => {
        working.delete(name)
        if (again.delete(name)) kick(name)
      })
    working.set(name, { stop, done })
  }

  const work = async (name: SessionName, first: AbortController): Promise<void> => {
    let stop = first
    for (;;) {
      const turn = await nextTurn(name)
      if (turn === null || closing) return
      const { repo } = await services.records.get(name)
      const release = await slots.take({ repo, requester: turn.requester ?? '', signal: stop.signal })
      try {
        if (closing) return
        await runTurn(name, turn.turn, stop.signal)
      } finally {
        release()
      }
      if (closing) return
      stop = new AbortController()
      const entry = working.get(name)
      if (entry !== undefined) working.set(name, { stop, done: entry.done })
    }
  }

  const nextTurn = async (name: SessionName): Promise<TurnRecord | null> => {
    const entry = await services.records.find(name)
    // A job's session waits for its job.
    if (entry === null || entry.session.state === 'creating') return null
    return (await services.records.turns(name)).find((turn) => turn.state !== 'ended') ?? null
  }

  const runTurn = async (name: SessionName, number: number, signal: AbortSignal): Promise<void> => {
    while (!closing) {
      const turn = await services.records.turn(name, number)
      if (turn.state === 'ended') return turn.error?.code === 'sandbox_lost' ? clearGone(name, services) : undefined
      try {
        await step(await turnAt(name, number, signal), turn)
      } catch (error) {
        if (closing || (signal.aborted && signal.reason === 'closing')) return
        await end(name, number, error)
      }
    }
  }

  const turnAt = async (name: SessionName, number: number, signal: AbortSignal): Promise<TurnAt> => {
    const { session, repo: slug } = await services.records.get(name)
    const repo = await services.records.repository(name)
    const head = await repo.refs.read(workBranch(name))
    const environment = await withRepoEnvironment(services.environment(session.environment), repo, {
      head,
      base: session.baseCommit,
    })
    return { name, number, repo, slug, environment, signal }
  }

  const step = async (at: TurnAt, turn: TurnRecord): Promise<void> => {
    if (turn.stopReason !== null && (turn.state === 'queued' || turn.state === 'preparing'))
      return failTurn(at, null, services)
    switch (turn.state) {
      case 'queued':
      case 'preparing':
        return prepareTurn(at, services)
      case 'running':
        return followTurn(at, services)
      case 'collecting':
        return collectTurn(at, services)
      case 'repairing':
        return repairTurn(at, services)
      case 'ended':
        return
      default:
        return turn.state satisfies never
    }
  }

  /** A failed step ends its turn with the reason; when even that cannot be recorded, it is tried again later. */
  const end = async (name: SessionName, number: number, error: unknown): Promise<void> => {
    services.log.warn(
      { session: name, turn: number, error: messageOf(error), cause: causeOf(error) },
      'a step of a turn failed',
    )
    try {
      const at = await turnAt(name, number, new AbortController().signal)
      await salvageTurn(at, services)
    } catch (lost) {
      services.log.warn(
        { session: name, turn: number, error: messageOf(lost) },
        'the work of a failed turn could not be saved',
      )
    }
    try {
      const { repo: slug } = await services.records.get(name)
      await failTurn({ name, number, repo: await services.records.repository(name), slug }, error, services)
    } catch (again) {
      if (again instanceof HangarError && again.code === 'not_found') throw again
      services.log.error(
        { session: name, turn: number, error: messageOf(again) },
        'the end of a turn could not be recorded; trying again',
      )
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
    }
  }

  return {
    kick,
    interrupt: (name) => working.get(name)?.stop.abort('stopped'),
    refresh: async (name) => {
      const { session } = await services.records.get(name)
      const turn = (await services.records.turns(name)).find(
        (turn) => turn.state === 'running' || turn.state === 'repairing',
      )
      const ref = sandboxRef(session)
      if (turn === undefined || ref === null) return
      const at = await turnAt(name, turn.turn, new AbortController().signal)
      if ((await at.environment.provider.inspect(ref)).state === 'up')
        await checkpointSandbox(at, ref, session, turn, services)
    },
    settled: async (name) => {
      await working.get(name)?.done
    },
    close: async () => {
      closing = true
      for (const { stop } of working.values()) stop.abort('closing')
      await Promise.allSettled([...working.values()].map(({ done }) => done))
    },
  }
}

/** Ends what a sandbox that is gone has left behind; the session's next turn makes it anew. */
async function clearGone(name: SessionName, services: TurnServices): Promise<void> {
  const { session } = await services.records.get(name)
  const ref = sandboxRef(session)
  if (ref === null) return
  const { provider } = services.environment(session.environment)
  try {
    if ((await provider.inspect(ref)).state === 'gone') await provider.destroy(ref)
  } catch (error) {
    services.log.warn(
      { session: name, error: messageOf(error) },
      'what a lost sandbox left behind could not be removed',
    )
  }
}

function causeOf(error: unknown): string | undefined {
  return error instanceof Error && error.cause !== undefined ? messageOf(error.cause) : undefined
}
