/** What a session gives back: its change as a patch, its commits and checkpoint as a bundle, its artifacts. */
import type { Readable } from 'node:stream'
import { errors, HangarError } from '../domain/errors.ts'
import type { Limits } from '../domain/limits.ts'
import { type Oid, type SessionName, workBranch } from '../domain/names.ts'
import type { ArtifactEntry, TurnRecord } from '../domain/session.ts'
import type { ArtifactStore } from '../exchange/artifacts.ts'
import { patchBetween } from '../exchange/patch-out.ts'
import { createBundle } from '../gateway/git/bundle.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import type { SessionRecords } from './session-records.ts'

export interface SessionOut {
  /** From the session's base, or from what was handed over last, to the newest state (or that of a turn's end). */
  patch(
    name: SessionName,
    options: { readonly turn: number | null; readonly from: 'base' | 'handover' },
  ): Promise<Buffer>
  /** A git bundle of branch and checkpoint without what the caller has; null when nothing is new. Throws `no_content` when there is none yet. */
  pull(name: SessionName, have: readonly Oid[]): Promise<Readable | null>
  artifacts(name: SessionName): Promise<ArtifactEntry[]>
  artifact(
    name: SessionName,
    turn: number,
    path: string,
  ): Promise<{ readonly entry: ArtifactEntry; readonly content: Uint8Array }>
}

export interface SessionOutDeps {
  readonly records: SessionRecords
  readonly artifacts: ArtifactStore
  /** Brings the checkpoint of a session whose turn runs up to date; does nothing when none runs. */
  refresh(name: SessionName): Promise<void>
  readonly limits: Limits
}

export function createSessionOut({ records, artifacts, refresh, limits }: SessionOutDeps): SessionOut {
  const allArtifacts = async (name: SessionName) => {
    await records.get(name)
    return (await records.turns(name)).flatMap((turn) => turn.artifacts)
  }
  return {
    patch: async (name, { turn, from }) => {
      const { session } = await records.get(name)
      if (turn === null) await refresh(name)
      const repo = await records.repository(name)
      const turns = (await records.turns(name)).filter((record) => turn === null || record.turn <= turn)
      const asked = turn === null ? null : turns.find((record) => record.turn === turn)
      if (asked === undefined)
        throw errors.notFound(`session ${name} has no turn ${turn}; see: hangar session show ${name}`)
      if (asked !== null && asked.state !== 'ended')
        throw errors.noContent(
          `turn ${asked.turn} of ${name} has not ended yet; wait for it: hangar session wait ${name}`,
        )
      const to =
        asked !== null
          ? asked.checkpoint
          : ((await repo.refs.read(sessionRef(name, 'checkpoint'))) ??
            turns[0]?.contextCommit ??
            (await repo.refs.read(workBranch(name))))
      if (to === null)
        throw errors.noContent(
          `session ${name} has no work to show yet; wait for its turn: hangar session wait ${name}`,
        )
      const start = from === 'base' ? session.baseCommit : handedOver(turns)
      return patchBetween(repo, { from: start, to }, limits).catch((error: unknown) => {
        if (!(error instanceof HangarError) || error.code !== 'too_large') throw error
        throw errors.tooLarge(
          `${error.message}; take the work as git has it: hangar session pull ${name}, or git fetch`,
        )
      })
    },
    pull: async (name, have) => {
      const repo = await records.repository(name)
      const refs = [workBranch(name), sessionRef(name, 'checkpoint')]
      const tips = await Promise.all(refs.map((ref) => repo.refs.read(ref)))
      const present = refs.filter((_, place) => tips[place] !== null)
      if (present.length === 0)
        throw errors.noContent(
          `session ${name} has no work to pull yet; wait for its turn: hangar session wait ${name}`,
        )
      return createBundle(repo, { refs: present, have })
    },
    artifacts: allArtifacts,
    artifact: async (name, turn, path) => {
      const entry = (await allArtifacts(name)).find((artifact) => artifact.turn === turn && artifact.path === path)
      if (entry === undefined)
        throw errors.notFound(
          `session ${name} has no artifact ${JSON.stringify(path)} of turn ${turn}; see: hangar session artifacts ${name}`,
        )
      return { entry, content: await artifacts.read(await records.repository(name), name, entry) }
    },
  }
}

/** The newest state that was handed over: a context checkpoint, else the commit that turn 1 began on. */
function handedOver(turns: readonly TurnRecord[]): Oid | null {
  const handed = turns.filter((turn) => turn.contextCommit !== null).at(-1)
  return handed?.contextCommit ?? turns[0]?.requestedCommit ?? turns[0]?.actualCommit ?? null
}
