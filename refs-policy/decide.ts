/** Decides a push ref by ref: by names before the pack is read, by history while the objects are in quarantine. */
import type { Caller } from '../domain/grant.ts'
import type { RefCommand, RefTable, RefUpdate } from './ref-update.ts'
import { HISTORY_RULES, type HistoryContext, NAME_RULES, type Rule, withKnownOld } from './rules.ts'

export type Verdict =
  | { readonly allowed: true; readonly update: RefUpdate }
  | {
      readonly allowed: false
      readonly ref: string
      readonly reason: string
      /** The id of the rule that refused. */
      readonly rule: string
      readonly asked: RefCommand
    }

/** A verdict for each command, in their order. `atomic` refuses all when one is refused. */
export function decideNames(input: {
  readonly caller: Caller
  readonly commands: readonly RefCommand[]
  readonly table: RefTable
  readonly mirrored?: boolean
  readonly atomic?: boolean
}): Verdict[] {
  const timesNamed = new Map<string, number>()
  for (const { ref } of input.commands) timesNamed.set(ref, (timesNamed.get(ref) ?? 0) + 1)
  const verdicts = input.commands.map((sent): Verdict => {
    const command = withKnownOld(sent, input.table)
    const refusal = firstRefusal(NAME_RULES, command, {
      caller: input.caller,
      table: input.table,
      mirrored: input.mirrored ?? false,
      timesNamed: timesNamed.get(command.ref) ?? 0,
    })
    // The first rule has found the name good.
    return refusal === null
      ? { allowed: true, update: command as RefUpdate }
      : { allowed: false, ref: command.ref, asked: sent, ...refusal }
  })
  return input.atomic ? allOrNothing(verdicts) : verdicts
}

/** The verdicts once the objects are known; `facts` has one for each allowed update that does not delete. */
export function decideHistory(input: {
  readonly verdicts: readonly Verdict[]
  readonly facts: ReadonlyMap<string, HistoryContext>
  readonly atomic?: boolean
}): Verdict[] {
  const verdicts = input.verdicts.map((verdict): Verdict => {
    const facts = verdict.allowed ? input.facts.get(verdict.update.ref) : undefined
    if (!verdict.allowed || facts === undefined) return verdict
    const refusal = firstRefusal(HISTORY_RULES, verdict.update, facts)
    return refusal === null ? verdict : refused(verdict.update, refusal)
  })
  return input.atomic ? allOrNothing(verdicts) : verdicts
}

/** Refuses every allowed update when one is refused: the whole of an atomic push. */
export function allOrNothing(verdicts: readonly Verdict[]): Verdict[] {
  if (verdicts.every((verdict) => verdict.allowed)) return [...verdicts]
  const refusal = { rule: 'atomic', reason: 'atomic push: another ref was refused' }
  return verdicts.map((verdict) => (verdict.allowed ? refused(verdict.update, refusal) : verdict))
}

export interface Refusal {
  readonly rule: string
  /** For the pusher. */
  readonly reason: string
}

/** The verdict that refuses an update. */
export function refused(update: RefUpdate, refusal: Refusal): Verdict {
  return { allowed: false, ref: update.ref, asked: update, ...refusal }
}

function firstRefusal<S, C>(rules: readonly Rule<S, C>[], subject: S, context: C): Refusal | null {
  const rule = rules.find((one) => one.refuses(subject, context))
  return rule === undefined ? null : { rule: rule.id, reason: rule.sentence(subject, context) }
}
