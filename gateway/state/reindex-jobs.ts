/** Builds the index's listing of jobs again from their records in git. */
import { messageOf } from '../../domain/errors.ts'
import type { JobRecord } from '../../domain/job.ts'
import type { JobId, Oid, RepoSlug } from '../../domain/names.ts'
import type { Repository } from '../git/repository.ts'
import type { Ledger } from '../ledger.ts'
import { type IndexChange, type JobEntry, orderKey } from './index.ts'
import type { ReindexDeps, Unreadable } from './reindex.ts'

const JOB_REF = /^refs\/hangar\/jobs\/(job-[a-z2-7]{10})$/

/** Takes in the jobs whose record has moved since they were indexed (`full`: all of them), and forgets those that are gone; adds to `unreadable`. */
export async function reindexJobs(
  { repositories, index, ledger }: ReindexDeps,
  { full, unreadable }: { readonly full: boolean; readonly unreadable: Unreadable[] },
): Promise<void> {
  const present = new Set<string>()
  const closed = new Set<RepoSlug>()
  for (const slug of await repositories.list()) {
    const repo = await repositories.open(slug).catch(() => null)
    if (repo === null) {
      closed.add(slug)
      continue
    }
    for (const { name, oid } of (await repo.refs.snapshot()).refs) {
      const id = JOB_REF.exec(name)?.[1] as JobId | undefined
      if (id === undefined) continue
      present.add(id)
      if (!full && (await index.jobs.get(id))?.oid === oid) continue
      await readJob(ledger, repo, oid)
        .then((job) => index.batch(jobChanges({ oid, job }), { durable: true }))
        .catch((error: unknown) => unreadable.push({ repo: slug, session: id, reason: messageOf(error) }))
    }
  }
  for (const [id, { job }] of await index.jobs.range())
    if (!present.has(id) && !closed.has(job.repo))
      await index.batch([
        { section: 'jobs', key: id, value: null },
        { section: 'jobOrder', key: orderKey(job.createdAt, id), value: null },
      ])
}

/** The index entries of a job. */
export function jobChanges(entry: JobEntry): IndexChange[] {
  const { id, createdAt } = entry.job
  return [
    { section: 'jobs', key: id, value: entry },
    { section: 'jobOrder', key: orderKey(createdAt, id), value: id },
  ]
}

async function readJob(ledger: Ledger, repo: Repository, oid: Oid): Promise<JobRecord> {
  const text = await ledger.readFile(repo, oid, 'job.json')
  if (text === null) throw new Error('the record has no job.json')
  return JSON.parse(text.toString('utf8')) as JobRecord
}
