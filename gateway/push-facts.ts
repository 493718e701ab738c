/** What history says of each update of a push, while its objects are in quarantine. */
import type { Oid, RefName } from '../domain/names.ts'
import type { RefUpdate } from '../refs-policy/ref-update.ts'
import type { HistoryContext } from '../refs-policy/rules.ts'
import type { Ingested } from './git/ingest.ts'
import { gitLines, revisions } from './git/lines.ts'
import type { Quarantine } from './git/quarantine.ts'
import type { Repository } from './git/repository.ts'
import type { Reachable } from './reachable.ts'
import type { View } from './view.ts'
import type { PushHead } from './wire/receive-pack.ts'

/** The part of `HistoryContext` that history itself says. */
export interface PushFact extends Pick<HistoryContext, 'type' | 'complete' | 'shallow'> {
  /** The new value's history was seen to continue the old one; false says nothing. */
  readonly continuesOld: boolean
}
export type PushFacts = ReadonlyMap<RefName, PushFact>

export interface FactsInput {
  readonly repo: Repository
  readonly view: View
  readonly head: PushHead
  /** Those that do not delete. */
  readonly updates: readonly RefUpdate[]
  readonly taken: Ingested
  readonly quarantine: Quarantine | null
  readonly signal: AbortSignal
}

/** A push of more refs that is not whole is refused as a whole, rather than walked once for each. */
const MOST_SEPARATE_WALKS = 50
/** Objects outside the push that are looked up; more mean that the push does not hold its own history. */
const MOST_FOREIGN = 200_000
const FEW_FOREIGN = 1_000

export function createPushFacts(reachable: Reachable): (input: FactsInput) => Promise<PushFacts> {
  return async (input) => {
    const facts = new Map<RefName, PushFact>()
    const tips = input.view.tipsAmong(new Set(input.updates.map((update) => update.new)))
    const known = input.updates.filter((update) => tips.has(update.new))
    const fresh = input.updates.filter((update) => !tips.has(update.new))
    for (const update of known) facts.set(update.ref, await factOf(input, update, { complete: true }))
    const together = await walk(reachable, input, fresh)
    const separate = !together.complete && fresh.length > 1 && fresh.length <= MOST_SEPARATE_WALKS
    for (const update of fresh)
      facts.set(update.ref, await factOf(input, update, separate ? await walk(reachable, input, [update]) : together))
    return facts
  }
}

interface Walk {
  readonly complete: boolean
  /** New objects that are commits, and those that are not. */
  readonly commits?: ReadonlySet<string>
  readonly others?: ReadonlySet<string>
  readonly boundary?: ReadonlySet<string>
}

async function factOf(input: FactsInput, update: RefUpdate, walk: Walk): Promise<PushFact> {
  const { complete } = walk
  const fact = { complete, shallow: input.head.shallow, continuesOld: walk.boundary?.has(update.old) ?? false }
  if (!complete) return { ...fact, type: null }
  if (walk.commits?.has(update.new)) return { ...fact, type: 'commit' }
  if (walk.others?.has(update.new)) return { ...fact, type: 'blob' }
  return { ...fact, type: (await input.repo.objects.info(update.new))?.type ?? null }
}

/**
 * Walks from the new values to what the caller sees. Git finds what is absent; each object on the way must be in the quarantine itself, else it is
 * somebody else's, unless the caller sees it by another way (an old file that came back). First to the refs that a push is told of, which is nearly
 * always far enough, and where it is not to all that are seen: of a person they are as many as there are sessions.
 */
async function walk(reachable: Reachable, input: FactsInput, updates: readonly RefUpdate[]): Promise<Walk> {
  const { view, taken } = input
  if (updates.length === 0) return { complete: true }
  if (!taken.ok) return { complete: false }
  const near = await walkTo(input, taken, updates, {
    tips: view.pushTips,
    mostForeign: view.seesMore ? 0 : MOST_FOREIGN,
  })
  if (near === null) return { complete: false }
  if (near.foreign.size === 0) return { ...near, complete: true }
  // Sent, and not in the quarantine, since the store had them already from somebody else.
  const few = view.seesMore && near.foreign.size <= FEW_FOREIGN
  if (few && (await taken.notSent(near.foreign)).size === 0) return { ...near, complete: true }
  const far = view.seesMore ? await walkTo(input, taken, updates, { tips: view.tips, mostForeign: MOST_FOREIGN }) : near
  if (far === null || far.foreign.size > MOST_FOREIGN) return { complete: false }
  const hidden = await reachable.unreachable(input.repo, far.foreign, view.tips, input.signal)
  const stranger = hidden.size === 0 ? hidden : await taken.notSent(hidden)
  return { ...far, complete: stranger.size === 0 }
}

/** Ends early past so many objects that the push does not hold. null: something is absent. */
async function walkTo(
  { repo, view, quarantine, signal }: FactsInput,
  taken: Ingested & { ok: true },
  updates: readonly RefUpdate[],
  { tips, mostForeign }: { readonly tips: ReadonlySet<Oid>; readonly mostForeign: number },
) {
  const asked = new Set<string>(updates.map((update) => update.new))
  const [commits, others, boundary, foreign] = [new Set<string>(), new Set<string>(), new Set<string>(), new Set<Oid>()]
  const { exitCode } = await gitLines(
    {
      gitDir: repo.dir,
      args: ['rev-list', '--objects', '--no-object-names', '--timestamp', '--boundary', '--stdin'],
      env: quarantine?.env ?? {},
      input: revisions(asked, tips),
      signal,
    },
    (line) => {
      // `<seconds> <oid>` is a commit, `<seconds> -<oid>` one at the edge, `<oid>` any other object.
      const oid = line.slice(-40) as Oid
      if (line.at(-41) === '-') {
        if (updates.length === 1) boundary.add(oid)
        return true
      }
      if (asked.has(oid)) (line.length > 40 ? commits : others).add(oid)
      if (!view.seesAll && !taken.has(oid)) foreign.add(oid)
      return foreign.size <= mostForeign
    },
  )
  return exitCode === 0 || exitCode === null ? { commits, others, boundary, foreign } : null
}
