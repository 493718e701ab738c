/** One push from its commands to its report: decided by name, taken into quarantine, decided by history, moved in one transaction. */

import type { BranchSettings } from '../domain/environment.ts'
import { HangarError, messageOf } from '../domain/errors.ts'
import type { Caller } from '../domain/grant.ts'
import type { Limits } from '../domain/limits.ts'
import { type Oid, type RefName, type RepoSlug, ZERO_OID } from '../domain/names.ts'
import type { Log } from '../domain/ports.ts'
import type { SecretSearch } from '../domain/secret-search.ts'
import { type ContentPolicy, NO_CONTENT, policyOf } from '../refs-policy/content.ts'
import { allOrNothing, decideHistory, decideNames, type Refusal, refused, type Verdict } from '../refs-policy/decide.ts'
import { placeOf } from '../refs-policy/ref-names.ts'
import { currentOid, type RefUpdate } from '../refs-policy/ref-update.ts'
import type { HistoryContext } from '../refs-policy/rules.ts'
import { isAncestor } from './git/ancestry.ts'
import { type Ingested, ingestPack, NOTHING_SENT, type ObjectFault } from './git/ingest.ts'
import { openQuarantine, type Quarantine } from './git/quarantine.ts'
import { type Repository, setHead } from './git/repositories.ts'
import { createPushContent } from './push-content.ts'
import { createPushFacts, type PushFacts } from './push-facts.ts'
import type { Reachable } from './reachable.ts'
import type { EventLog } from './state/event-log.ts'
import type { View } from './view.ts'
import type { CommandResult, PushHead } from './wire/receive-pack.ts'

export interface PushDeps {
  readonly reachable: Reachable
  readonly events: Pick<EventLog, 'append'>
  /** Asked again right before refs move: a long upload may outlive its grant. */
  readonly isLive: (caller: Caller) => boolean
  readonly mirrored: (slug: RepoSlug) => boolean
  readonly search: SecretSearch
  readonly settings: PushSettings
  readonly limits: Limits
  readonly log: Log
}

/** What is asked of pushes beyond names and history. */
export interface PushSettings {
  /** Patterns of the project's own branches and tags that only move forward. */
  readonly fastForwardOnly: readonly string[]
  /** What the environment of a grant's session asks of its branch; null: nothing. */
  readonly branchOf: (caller: Caller) => Promise<BranchSettings | null>
}

export interface Push {
  readonly slug: RepoSlug
  readonly repo: Repository
  readonly caller: Caller
  /** As it was when the commands were read. */
  readonly view: View
  readonly head: PushHead
}

export interface PushOutcome {
  /** `ok`, or why the pack was not taken. */
  readonly unpack: string
  readonly verdicts: readonly Verdict[]
  /** Objects that may not enter, for whoever can leave them out of the next push. */
  readonly faults?: readonly ObjectFault[]
}

export interface Pushes {
  /** The verdicts by name alone; when none is allowed the pack need not be read. */
  decide(push: Push): Verdict[]
  /** Takes the pack and moves the refs. Throws what the stream throws, but for its caps. */
  receive(
    push: Push,
    verdicts: readonly Verdict[],
    pack: AsyncIterable<Buffer>,
    signal: AbortSignal,
  ): Promise<PushOutcome>
}

export function createPushes(deps: PushDeps): Pushes {
  const factsOf = createPushFacts(deps.reachable)
  const lookThrough = createPushContent(deps)

  /** What the history rules are told of each update. */
  async function contextsOf(
    push: Push,
    news: readonly RefUpdate[],
    taken: Ingested,
    quarantine: Quarantine | null,
    signal: AbortSignal,
  ) {
    const branch = await deps.settings.branchOf(push.caller)
    const settings = { branch, fastForwardOnly: deps.settings.fastForwardOnly }
    const updates = news.map((update) => ({ update, policy: policyOf(push.caller, update.ref, settings) }))
    // Side by side: git walks the history while the objects are looked through here.
    const [facts, look] = await Promise.all([
      factsOf({ ...push, updates: news, taken, quarantine, signal }),
      quarantine === null ? null : lookThrough({ ...push, updates, taken, quarantine, signal }),
    ])
    const whole = updates.filter(({ update }) => facts.get(update.ref)?.complete)
    const content = look === null || whole.length === 0 ? null : await look.of(whole)
    const contexts = new Map<RefName, HistoryContext>()
    for (const { update, policy } of updates) {
      const fact = facts.get(update.ref)
      if (fact === undefined) continue
      const rewinds = fact.complete && (await isRewound(push, update, policy, fact.continuesOld, quarantine))
      contexts.set(update.ref, { ...fact, rewinds, policy, content: content?.facts(update.ref) ?? NO_CONTENT })
    }
    return { facts, contexts, faults: content?.faults ?? [] }
  }

  return {
    decide: ({ caller, view, head, slug }) =>
      decideNames({
        caller,
        commands: head.commands,
        table: view.table,
        mirrored: deps.mirrored(slug),
        atomic: head.capabilities.atomic,
      }),
    async receive(push, verdicts, pack, signal) {
      const news = allowedUpdates(verdicts).filter((update) => update.new !== ZERO_OID)
      const quarantine = news.length === 0 ? null : await openQuarantine(push.repo)
      try {
        const taken = quarantine === null ? NOTHING_SENT : await takePack(deps, push.repo, quarantine, pack, signal)
        if (!taken.ok && !taken.missing) {
          const refusal = { rule: 'pack', reason: taken.reason }
          return { unpack: taken.reason, verdicts: refuse(verdicts, () => refusal), faults: taken.faults ?? [] }
        }
        const { facts, contexts, faults } = await contextsOf(push, news, taken, quarantine, signal)
        const decided = decideHistory({ verdicts, facts: contexts, atomic: push.head.capabilities.atomic })
        signal.throwIfAborted()
        return { unpack: 'ok', verdicts: await settle(deps, push, decided, quarantine, facts), faults }
      } finally {
        await quarantine?.drop()
      }
    },
  }
}

/** What the report says of each command. */
export function resultsOf(verdicts: readonly Verdict[]): CommandResult[] {
  return verdicts.map((verdict) =>
    verdict.allowed ? { ref: verdict.update.ref, reason: null } : { ref: verdict.ref, reason: verdict.reason },
  )
}

/** Every ref that was still allowed refused, by a fault of the server's. */
export function failAll(verdicts: readonly Verdict[], reason: string): PushOutcome {
  return { unpack: 'failed', verdicts: refuse(verdicts, () => ({ rule: 'failed', reason })) }
}

/** Asked only where the policy wants to know. */
async function isRewound(
  push: Push,
  update: RefUpdate,
  policy: ContentPolicy,
  continuesOld: boolean,
  quarantine: Quarantine | null,
): Promise<boolean> {
  if (!policy.fastForwardOnly || update.old === ZERO_OID || continuesOld) return false
  return !(await isAncestor(push.repo, update.old, update.new, quarantine?.env))
}

async function takePack(
  deps: PushDeps,
  repo: Repository,
  quarantine: Quarantine,
  pack: AsyncIterable<Buffer>,
  signal: AbortSignal,
): Promise<Ingested> {
  try {
    return await ingestPack(repo.dir, quarantine, pack, signal, deps.limits.maxPushObjects)
  } catch (error) {
    if (!(error instanceof HangarError) || error.code !== 'limit_passed') throw error
    const reason = signal.aborted
      ? 'the push was given up, since it took too long (gateway.max_transfer_minutes)'
      : `the push is larger than ${deps.limits.maxPushBytes} bytes, or took too long`
    return { ok: false, reason, missing: false }
  }
}

/** Moves what is still allowed: looked at once more, objects first, refs in one transaction, then the event. */
async function settle(
  deps: PushDeps,
  push: Push,
  verdicts: readonly Verdict[],
  quarantine: Quarantine | null,
  facts: PushFacts,
): Promise<readonly Verdict[]> {
  const table = await push.repo.refs.snapshot()
  const current = (update: RefUpdate) => currentOid(table, update.ref) ?? ZERO_OID
  let left = refuse(verdicts, (update) => {
    if (!deps.isLive(push.caller)) return { rule: 'ended', reason: `this ${push.caller.kind} is no longer valid` }
    return current(update) === update.old ? null : MOVED
  })
  if (push.head.capabilities.atomic) left = allOrNothing(left)
  if (allowedUpdates(left).length === 0) return left
  await quarantine?.migrate()
  const moved = await moveRefs(deps, push, left)
  const updates = allowedUpdates(moved)
  if (updates.length === 0) return moved
  await nameHead(push.repo, updates)
  await tellEvent(deps, push, updates, facts)
  return moved
}

const MOVED: Refusal = { rule: 'moved', reason: 'the ref moved meanwhile; fetch and push again' }
const FOLDER: Refusal = {
  rule: 'folder',
  reason: 'a ref that is a folder of this one, or lies below it, exists; use another name',
}
const UNMOVED: Refusal = { rule: 'failed', reason: 'the ref could not be moved; try again' }

/** One transaction; a ref that loses a race is refused and, unless the push is atomic, the others are tried again. */
async function moveRefs(deps: PushDeps, push: Push, verdicts: readonly Verdict[]): Promise<readonly Verdict[]> {
  let left = verdicts
  for (;;) {
    const updates = allowedUpdates(left)
    const result = await push.repo.refs.transact(updates)
    if (result.ok || updates.length === 0) return left
    deps.log.warn({ repo: push.slug, ref: result.ref, reason: result.reason }, 'a push lost its transaction')
    const table = await push.repo.refs.snapshot()
    const culprit = updates.some(({ ref }) => ref === result.ref) ? result.ref : null
    left = refuse(left, (update) => {
      if ((currentOid(table, update.ref) ?? ZERO_OID) !== update.old) return MOVED
      if (culprit !== null && update.ref !== culprit) return null
      return /exists; cannot create|conflict/.test(result.reason) ? FOLDER : UNMOVED
    })
    if (push.head.capabilities.atomic) left = allOrNothing(left)
    if (allowedUpdates(left).length === 0) return left
  }
}

/** A first push into an empty repository decides its default branch, when that is plain. */
async function nameHead(repo: Repository, updates: readonly RefUpdate[]): Promise<void> {
  const created = updates.filter(
    ({ ref, old, new: oid }) => placeOf(ref) === 'branch' && old === ZERO_OID && oid !== old,
  )
  const [only] = created
  if (only === undefined || created.length !== 1) return
  const table = await repo.refs.snapshot()
  if (currentOid(table, table.head) === null) await setHead(repo, only.ref)
}

/** The event is durable before the client reads its report; a crash before it is found by comparing refs at the next start. */
async function tellEvent(deps: PushDeps, push: Push, updates: readonly RefUpdate[], facts: PushFacts): Promise<void> {
  try {
    const forced: RefName[] = []
    for (const update of updates) if (await isForced(push.repo, update, facts)) forced.push(update.ref)
    const by = `${push.caller.kind}:${push.caller.id}`
    await deps.events.append({ type: 'push', repo: push.slug, by, updates: [...updates], forced })
  } catch (error) {
    deps.log.error({ repo: push.slug, error: messageOf(error) }, 'the event of a push could not be kept')
  }
}

async function isForced(repo: Repository, update: RefUpdate, facts: PushFacts): Promise<boolean> {
  if (update.old === ZERO_OID || update.new === ZERO_OID || facts.get(update.ref)?.continuesOld) return false
  if (placeOf(update.ref) === 'tag') return true
  return !(await isAncestor(repo, update.old as Oid, update.new as Oid))
}

function allowedUpdates(verdicts: readonly Verdict[]): RefUpdate[] {
  return verdicts.flatMap((verdict) => (verdict.allowed ? [verdict.update] : []))
}

/** Refuses the allowed updates for which a refusal is given. */
function refuse(verdicts: readonly Verdict[], refusalOf: (update: RefUpdate) => Refusal | null): Verdict[] {
  return verdicts.map((verdict): Verdict => {
    const refusal = verdict.allowed ? refusalOf(verdict.update) : null
    return verdict.allowed && refusal !== null ? refused(verdict.update, refusal) : verdict
  })
}
