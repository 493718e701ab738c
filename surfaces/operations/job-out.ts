/** What a job gives back, at its own paths over REST: the same operations as of sessions, which take a job's id as well; and its attempts compared. */
import { Type } from '@sinclair/typebox'
import { errors } from '../../domain/errors.ts'
import type { JobRecord } from '../../domain/job.ts'
import { type Oid, parseJobId, workBranch } from '../../domain/names.ts'
import { diffTrees } from '../../gateway/git/diff.ts'
import { JobRef } from '../shapes.ts'
import { type Operation, operation } from './operation.ts'
import { jobFor } from './refs.ts'
import { getArtifact, getEvents, getPatch, listArtifacts } from './session-out.ts'
import { waitForEnd } from './sessions.ts'

const Attempt = Type.Integer({ minimum: 1, description: 'An attempt, by number.' })

const diffAttempts = operation({
  name: 'diff_attempts',
  summary: 'What differs between the branches of two attempts of a job, as a patch.',
  scope: 'read',
  method: 'get',
  path: '/api/jobs/{ref}/diff',
  cli: 'job diff',
  input: Type.Object({ ref: JobRef, from: Attempt, to: Attempt }, { additionalProperties: false }),
  output: null,
  contentType: 'text/x-diff',
  status: 200,
  handle: async (call, input) => {
    const job = await jobFor(call, parseJobId(input.ref))
    const repo = await call.services.jobRecords.repository(job.repo)
    const tipOf = async (attempt: number): Promise<Oid> => {
      const tip = await repo.refs.read(workBranch(sessionOf(job, attempt)))
      if (tip === null) throw errors.noContent(`attempt ${attempt} of ${job.id} has no commit yet; wait for it`)
      return tip
    }
    const [from, to] = [await tipOf(input.from), await tipOf(input.to)]
    const content = await diffTrees(repo, { from, to, maxBytes: call.services.config.limits.maxPatchBytes })
    return { kind: 'bytes', contentType: 'text/x-diff', content, download: null }
  },
})

function sessionOf(job: JobRecord, number: number) {
  const found = job.attempts.find(({ attempt }) => attempt === number)
  if (found === undefined)
    throw errors.notFound(`job ${job.id} has ${job.attempts.length} attempt(s), and no attempt ${number}`)
  return found.session
}

export const JOB_OUT_OPERATIONS: readonly Operation[] = [
  ...[getEvents, getPatch, listArtifacts, getArtifact, waitForEnd].map(ofJobs),
  diffAttempts,
]

function ofJobs({ tool: _tool, cli: _cli, ...of }: Operation): Operation {
  return {
    ...of,
    name: `${of.name.replace('_session', '')}_of_job`,
    summary: `${of.summary} Of a job: those of the session whose work counts for it.`,
    path: of.path.replace('/api/sessions/', '/api/jobs/'),
  }
}
