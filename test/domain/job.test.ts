/** The table of a job's moves, whole: every state with every event has its move, or its refusal with a sentence. */
import t from 'tap'
import { HangarError } from '../../domain/errors.ts'
import { isAtRest, JOB_EVENTS, JOB_STATES, type JobEvent, type JobState, jobMove, moveJob } from '../../domain/job.ts'
import { jobIdOf, jobOf, jobSession, parseJobId, parseNewSessionName, parseSessionName } from '../../domain/names.ts'

/** As MODEL.md and INTERFACE.md tell it, written down apart from the code's own table. */
const EXPECTED: readonly (readonly [JobEvent, readonly (readonly [JobState, JobState])[]])[] = [
  ['approve', [['awaiting_approval', 'queued']]],
  ['reject', [['awaiting_approval', 'rejected']]],
  ['start', [['queued', 'running']]],
  ['verify', [['running', 'verifying']]],
  ['work', [['verifying', 'running']]],
  [
    'ask',
    [
      ['queued', 'needs_input'],
      ['running', 'needs_input'],
      ['verifying', 'needs_input'],
    ],
  ],
  [
    'deliver',
    [
      ['running', 'delivering'],
      ['verifying', 'delivering'],
    ],
  ],
  ['redeliver', [['failed', 'delivering']]],
  ['succeed', [['delivering', 'succeeded']]],
  [
    'fail',
    [
      ['queued', 'failed'],
      ['running', 'failed'],
      ['verifying', 'failed'],
      ['delivering', 'failed'],
    ],
  ],
  [
    'exceed_budget',
    [
      ['queued', 'over_budget'],
      ['running', 'over_budget'],
      ['verifying', 'over_budget'],
      ['needs_input', 'over_budget'],
    ],
  ],
  [
    'time_out',
    [
      ['queued', 'timed_out'],
      ['running', 'timed_out'],
      ['verifying', 'timed_out'],
    ],
  ],
  [
    'cancel',
    [
      ['awaiting_approval', 'cancelled'],
      ['queued', 'cancelled'],
      ['running', 'cancelled'],
      ['verifying', 'cancelled'],
      ['delivering', 'cancelled'],
      ['needs_input', 'cancelled'],
    ],
  ],
  [
    'follow_up',
    [
      ['queued', 'queued'],
      ['running', 'running'],
      ['verifying', 'running'],
      ['delivering', 'queued'],
      ['needs_input', 'queued'],
      ['succeeded', 'queued'],
      ['failed', 'queued'],
      ['cancelled', 'queued'],
      ['over_budget', 'queued'],
      ['timed_out', 'queued'],
    ],
  ],
]

t.test('every state with every event has its move or its refusal', async (t) => {
  const id = jobIdOf(Buffer.alloc(8))
  t.equal(EXPECTED.length, JOB_EVENTS.length, 'every event is told of')
  for (const event of JOB_EVENTS)
    for (const state of JOB_STATES) {
      const moves = EXPECTED.find(([name]) => name === event)?.[1] ?? []
      const to = moves.find(([from]) => from === state)?.[1] ?? null
      t.equal(jobMove(state, event), to, `${state} and ${event}`)
      if (to !== null) t.equal(moveJob(id, state, event), to)
      else t.throws(() => moveJob(id, state, event), { code: 'conflict', message: new RegExp(`job ${id}.*[a-z]`) })
    }
})

t.test('a refusal says what to do', async (t) => {
  const id = jobIdOf(Buffer.alloc(8))
  const sentence = (state: JobState, event: JobEvent): string => {
    try {
      moveJob(id, state, event)
    } catch (error) {
      if (error instanceof HangarError) return error.message
    }
    return ''
  }
  t.match(sentence('awaiting_approval', 'follow_up'), `hangar job approve ${id}`)
  t.match(sentence('succeeded', 'cancel'), `hangar job follow-up ${id}`)
  t.match(sentence('running', 'approve'), 'waits for no approval')
  t.match(sentence('rejected', 'follow_up'), 'submit another job')
  t.match(sentence('succeeded', 'redeliver'), 'no delivery of it has failed')
  t.match(sentence('awaiting_approval', 'redeliver'), `hangar job approve ${id}`)
})

t.test('at rest is what nothing moves but somebody', async (t) => {
  t.same(
    JOB_STATES.filter((state) => !isAtRest(state)),
    ['queued', 'running', 'verifying', 'delivering'],
  )
})

t.test('ids and the sessions that they name', async (t) => {
  const id = jobIdOf(Buffer.from('00112233445566', 'hex'))
  t.match(id, /^job-[a-z2-7]{10}$/)
  t.equal(parseJobId(id), id)
  t.same(jobOf(jobSession(id, null)), { id, attempt: null })
  t.same(jobOf(jobSession(id, 12)), { id, attempt: 12 })
  t.equal(jobOf(parseSessionName('csv-fix')), null)
  t.equal(jobOf(parseSessionName(`${id}-judge`)), null, 'a judge works for nobody')
  t.throws(() => parseNewSessionName(id), { code: 'invalid_name' })
  for (const wrong of ['job-', 'job-abc', 'job-ABCDEFGHIJ', 'job-abcdefghi1', `${id}x`, `${id}-1`])
    t.throws(() => parseJobId(wrong), { code: 'invalid_name' }, wrong)
})
