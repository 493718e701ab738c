/** Pushed checkpoints that nobody takes go after a day, and not before. */
import { join } from 'node:path'
import t from 'tap'
import { parseRepoSlug, type RefName, ZERO_OID } from '../../domain/names.ts'
import { createRepositories } from '../../gateway/git/repositories.ts'
import { openIndex } from '../../gateway/state/index.ts'
import { createSigner } from '../../gateway/state/sign.ts'
import { createHousekeeping } from '../../orchestrator/housekeeping.ts'
import { SILENT, temporaryDirectory } from '../stories/support.ts'

const DAY_MS = 24 * 3_600_000

t.test('an incoming ref is deleted a day after it was first seen', async (t) => {
  const dataDir = temporaryDirectory(t)
  let now = Date.UTC(2026, 0, 1)
  const clock = { now: () => now }
  const signer = await createSigner({ keyFile: join(dataDir, 'key.asc'), clock })
  const repositories = await createRepositories({ dataDir, signer, log: SILENT, clock })
  const index = await openIndex({ dir: join(dataDir, 'index'), log: SILENT })
  const housekeeping = createHousekeeping({ repositories, index, clock, log: SILENT })
  t.teardown(async () => {
    await housekeeping.close()
    await index.close()
    await repositories.close()
  })
  const repo = await repositories.create(parseRepoSlug('acme/app'))
  const tree = await repo.objects.writeTree([])
  const oid = await repo.objects.writeCommit({ tree, parents: [], message: 'waits', at: 0 })
  const early = 'refs/hangar/incoming/early' as RefName
  const late = 'refs/hangar/incoming/late' as RefName
  const main = 'refs/heads/main' as RefName
  await repo.refs.transact([early, main].map((ref) => ({ ref, old: ZERO_OID, new: oid })))
  await housekeeping.sweep()
  now += DAY_MS - 1
  await repo.refs.transact([{ ref: late, old: ZERO_OID, new: oid }])
  await housekeeping.sweep()
  t.equal(await repo.refs.read(early), oid, 'not before its day is over')
  now += 1
  await housekeeping.sweep()
  t.equal(await repo.refs.read(early), null)
  t.equal(await repo.refs.read(late), oid)
  t.equal(await repo.refs.read(main), oid, 'nothing else is touched')
  now += DAY_MS
  await housekeeping.sweep()
  t.equal(await repo.refs.read(late), null)
})
