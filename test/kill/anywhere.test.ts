/**
 * A session's whole life with the server killed (-9) at one point after another, each followed by a restart: every turn is recorded once, no
 * commit, question or artifact is lost, no agent runs twice, no process is left. `npm run test:kill` kills at 200 and more points; here a few.
 */
import { randomBytes } from 'node:crypto'
import t from 'tap'
import { live, local, prepared } from './life.ts'

const POINTS = Number(process.env['HANGAR_KILLS'] ?? 5)

t.test(`killed at ${POINTS} points of a session's life`, { timeout: 3_600_000 }, async (t) => {
  const from = await prepared(t)
  const { operations } = await live(t, { from, at: 0, place: local })
  t.comment(`a life has about ${operations} operations`)
  t.ok(operations > 100, 'the hook counts')
  const random = randomBytes(4).readUInt32BE() % operations
  const points = Array.from(
    { length: POINTS },
    (_, place) => 1 + ((random + Math.floor((place * operations) / POINTS)) % operations),
  )
  let kills = 0
  let longest = 0
  for (const at of points) {
    const { killed, recoveryMs } = await live(t, { from, at, place: local })
    if (killed) kills++
    longest = Math.max(longest, recoveryMs)
  }
  t.comment(`${kills} of ${POINTS} lives were cut; the longest start after a kill took ${Math.round(longest)} ms`)
  t.ok(kills > POINTS / 2, `${kills} kills`)
})
