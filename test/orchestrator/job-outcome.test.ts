/** What a job does when its attempts have ended, as a table: its move, the attempt it takes, and how often work was given back. */
import t from 'tap'
import type { TurnRecord } from '../../domain/session.ts'
import { chosenOf, nonePassed, outcomeMove, repairKey, repairsOf } from '../../orchestrator/job-outcome.ts'

const turn = (fields: Readonly<Record<string, unknown>>): TurnRecord =>
  ({ turn: 1, outcome: 'exited', error: null, question: null, idempotency: null, ...fields }) as unknown as TurnRecord
const verified = (exitCode: number | null) => turn({ verification: { passed: exitCode === 0, exitCode } })
const error = { code: 'any', message: 'said by the turn' }

t.test('one attempt', async (t) => {
  const rows: [string, TurnRecord | null, string, string][] = [
    ['ended well, nothing verifies', turn({}), 'deliver', 'the work is being delivered'],
    ['verified', verified(0), 'deliver', 'the work is being delivered'],
    ['verification failed', verified(3), 'fail', 'the verification failed with exit status 3'],
    ['verification cut off', verified(null), 'fail', 'the verification did not end'],
    ['work left off the branch', turn({ notOnBranch: 'a secret' }), 'fail', 'its work is not on its branch: a secret'],
    ['asks', turn({ outcome: 'needs_input', question: 'Which?' }), 'ask', 'Which?'],
    ['asks without words', turn({ outcome: 'needs_input' }), 'ask', 'the agent asks'],
    ['over budget', turn({ outcome: 'over_budget', error }), 'exceed_budget', 'said by the turn'],
    ['timed out', turn({ outcome: 'timed_out' }), 'time_out', 'the turn took too long'],
    ['cancelled', turn({ outcome: 'cancelled' }), 'cancel', 'its turn was cancelled'],
    ['failed', turn({ outcome: 'failed', error }), 'fail', 'said by the turn'],
    ['session removed', null, 'fail', 'its session is gone'],
  ]
  for (const [what, ended, event, text] of rows) t.match(outcomeMove(ended), { event, text }, what)
})

t.test('of several attempts', async (t) => {
  const ranking = [2, 1, 3].map((attempt, at) => ({ attempt, rank: at + 1, reason: `reason ${attempt}` }))
  const [exited, asks] = [turn({}), turn({ outcome: 'needs_input', question: 'Which?' })]
  const ended = (outcomes: readonly (TurnRecord | null)[]) => outcomes.map((turn, at) => ({ attempt: at + 1, turn }))
  const outcome = (name: string) => turn({ outcome: name })
  const [late, cancelled, over, failed] = ['timed_out', 'cancelled', 'over_budget', 'failed'].map(outcome)

  t.equal(chosenOf(ranking, ended([asks, exited, asks])), 2, 'the first in rank when it passes')
  t.equal(chosenOf(ranking, ended([failed ?? null, verified(1), asks])), 3, 'else one that asks')
  t.equal(chosenOf(ranking, ended([failed ?? null, verified(1), null])), 2, 'else the first in rank')

  const text = 'no attempt passed: attempt 1: reason 1; attempt 2: reason 2; attempt 3: reason 3'
  const rows: [string, (TurnRecord | null | undefined)[], string][] = [
    ['one over budget', [failed, over, failed], 'exceed_budget'],
    ['all too late', [late, late, late], 'time_out'],
    ['all cancelled', [cancelled, cancelled, cancelled], 'cancel'],
    ['some too late', [late, failed, late], 'fail'],
    ['none verified', [verified(1), verified(2), null], 'fail'],
  ]
  for (const [what, outcomes, event] of rows) {
    const turns = outcomes.map((one) => one ?? null)
    t.strictSame(nonePassed(turns, turns[1] ?? null, ranking), { event, text, isReason: true }, what)
  }
  t.match(nonePassed([exited, asks], asks, ranking), { event: 'ask', text: 'Which?' }, 'the chosen one asks')
})

t.test('how often work was given back in a row', async (t) => {
  const said = turn({ idempotency: { key: 'mine' } })
  const repair = turn({ idempotency: { key: repairKey({ turn: 1 }) } })
  const rows: [TurnRecord[], number][] = [
    [[said], 0],
    [[said, repair], 1],
    [[said, repair, repair], 2],
    [[said, repair, said], 0],
    [[said, repair, said, repair], 1],
  ]
  for (const [turns, times] of rows) t.equal(repairsOf(turns), times)
})
