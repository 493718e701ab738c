/** The reason of a turn's end by a limit, on record before the end itself. */
import type { TurnAt, TurnServices } from './turn-context.ts'

/** Writes down why a turn is about to be stopped; a reason that is there already stays. */
export async function recordStop(
  at: TurnAt,
  { reason, detail }: { readonly reason: 'timed_out' | 'over_budget'; readonly detail: string },
  services: TurnServices,
): Promise<void> {
  await services.records.move(at.name, async ({ session, turn }) => {
    const current = await turn(at.number)
    if (current.stopReason !== null) return null
    return {
      message: `turn ${at.number} is being stopped: ${reason}`,
      session,
      turns: [{ ...current, stopReason: reason, stopDetail: detail }],
    }
  })
}
