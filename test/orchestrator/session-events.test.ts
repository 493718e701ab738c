/** The events of sessions: what a turn told of its usage is read once, and a session that takes a free name counts anew. */
import t from 'tap'
import type { SessionName } from '../../domain/names.ts'
import type { RunEventBody } from '../../domain/run-event.ts'
import { type Index, openIndex } from '../../gateway/state/index.ts'
import { createSessionEvents } from '../../orchestrator/session-events.ts'

const NAME = 's1' as SessionName
const LOG = { info: () => {}, warn: () => {}, error: () => {} }
const clock = { now: () => 1 }
const tokens = (outputTokens: number, scope: 'request' | 'turn' = 'request'): RunEventBody => ({
  kind: 'usage',
  scope,
  usage: { inputTokens: 0, outputTokens, cacheReadTokens: 0, cacheWriteTokens: 0, costUsd: null, costSource: null },
})

t.test('the usage of a turn at work is told by the events that came since it was last asked', async (t) => {
  let index: Index | null = null
  t.teardown(() => index?.close())
  index = await openIndex({ dir: t.testdir(), log: LOG })
  const { runEvents } = index
  let rows = 0
  const counted: Index = {
    ...index,
    runEvents: {
      ...runEvents,
      range: async (options) => {
        const found = await runEvents.range(options)
        rows += found.length
        return found
      },
    },
  }
  const events = createSessionEvents({ index: counted, clock })
  const used = async (turn: number) => {
    rows = 0
    return (await events.usageOf(NAME, turn))?.outputTokens ?? null
  }
  t.equal(await used(1), null)
  await events.append(NAME, 1, Array<RunEventBody>(1_200).fill(tokens(2)))
  t.equal(await used(1), 2_400)
  await events.append(NAME, 1, [{ kind: 'progress', message: 'on', source: 'agent' }, tokens(3)])
  t.equal(await used(1), 2_403)
  t.ok(rows <= 2, `${rows} events were read again`)
  await events.append(NAME, 1, [tokens(2_500, 'turn')])
  t.equal(await used(1), 2_500, 'the billing figure counts')
  await events.append(NAME, 2, [tokens(7)])
  t.equal(await used(2), 7)
  await index.batch((await runEvents.range()).map(([key]) => ({ section: 'runEvents', key, value: null }) as const))
  events.forget(NAME)
  await events.append(NAME, 2, [tokens(5)])
  t.equal(await used(2), 5, 'another session of the name')
})
