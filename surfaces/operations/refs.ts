/** What a reference in a request means: a session or a job, if the caller's token covers its repo. */
import { errors } from '../../domain/errors.ts'
import { coversRepo } from '../../domain/grant.ts'
import type { JobRecord } from '../../domain/job.ts'
import { isJobId, type JobId, jobOf, judgedJob, parseSessionName, type SessionName } from '../../domain/names.ts'
import { chosenSession } from '../../orchestrator/job-attempts.ts'
import { type Call, sessionFor } from './operation.ts'

/** The job, if the caller's token covers its repo; else `not_found`, as if there were none. */
export async function jobFor(call: Call, id: JobId): Promise<JobRecord> {
  const job = await call.services.jobRecords.get(id)
  if (!coversRepo(call.caller, job.repo))
    throw errors.notFound(`there is no job ${id}; hangar job list shows those there are`)
  return job
}

/** The session that is named, or whose work counts for the job that is named. Throws `conflict` while several attempts are at work. */
export async function sessionMeant(call: Call, ref: string): Promise<SessionName> {
  const name = parseSessionName(ref)
  if (isJobId(ref) && (await call.services.records.find(name)) === null) {
    const job = await jobFor(call, ref)
    const chosen = chosenSession(job)
    if (chosen === null)
      throw errors.conflict(
        `none of the ${job.n} attempts of ${ref} is chosen yet; name one of them: ${job.attempts.map(({ session }) => session).join(', ')}`,
      )
    return chosen
  }
  await sessionFor(call, name)
  return name
}

/** A session that somebody steers by itself, not one of a job. */
export async function ownSession(call: Call, ref: string): Promise<SessionName> {
  const name = parseSessionName(ref)
  await sessionFor(call, name)
  const job = jobOf(name)?.id ?? judgedJob(name)
  if (job !== null)
    throw errors.conflict(
      `session ${name} works for job ${job}, and is steered through it: hangar job follow-up ${job} "…", hangar job deliver ${job}, or hangar job cancel ${job}`,
    )
  return name
}
