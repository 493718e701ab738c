/** What people see of a delivered job: the texts of its pull request, its comment and its check run. */
import { harmless, subjectOf } from '../domain/harmless.ts'
import type { JobRecord } from '../domain/job.ts'
import type { Oid, RepoSlug } from '../domain/names.ts'
import type { Redactor } from '../domain/redact.ts'
import type { Usage } from '../domain/run-event.ts'
import type { TurnRecord, Verification } from '../domain/session.ts'
import type { Forge } from '../gateway/upstream/forge.ts'
import type { Upstreams } from '../gateway/upstream/upstreams.ts'
import { type AttemptServices, spentBy } from './job-attempts.ts'
import type { Publisher } from './job-delivery.ts'

export interface JobPublisherDeps extends AttemptServices {
  readonly upstreams: Pick<Upstreams, 'of'>
  readonly forge: Forge
  /** The project's own branches by name, the default one first. */
  projectBranches(repo: RepoSlug): Promise<readonly string[]>
  isDraft(environment: string): boolean
  readonly redactor: Pick<Redactor, 'text'>
  /** Of the server, as people reach it, without a trailing slash. */
  publicUrl(): string
}

/** Of the summary and of the result each: GitHub takes 65,536 characters in all. */
const MAX_PART = 20_000
const MAX_TITLE = 120

export function createJobPublisher(deps: JobPublisherDeps): Publisher {
  return {
    publish: async (job, session, commit) => {
      const upstream = deps.upstreams.of(job.repo)
      if (upstream === null || !deps.forge.knows(upstream)) return { url: null, warnings: [] }
      const turn = (await deps.records.turns(session.name)).findLast(({ state }) => state === 'ended') ?? null
      const { usage } = await spentBy(job, deps)
      const branches = await deps.projectBranches(job.repo)
      // Work that began on a tag or a commit is to be merged into the default branch.
      const base = branches.find((branch) => branch === job.ref) ?? branches[0] ?? 'main'
      const marker = `<!-- hangar:job=${job.id};kind=status -->`
      const about = { job, turn, usage }
      return deps.forge.publish(upstream, {
        branch: `hangar/${job.id}`,
        base,
        commit,
        title: deps.redactor.text(titleOf(job, turn)),
        body: deps.redactor.text(bodyOf(about)),
        draft: deps.isDraft(job.environment),
        marker,
        comment: `${marker}\n${deps.redactor.text(statusOf(about, commit))}`,
        check: {
          externalId: job.id,
          conclusion: turn?.verification?.passed === true ? 'success' : 'neutral',
          title: turn?.verification == null ? 'Delivered; nothing verified it' : 'Verified and delivered',
          summary: deps.redactor.text(statusOf(about, commit)),
          detailsUrl: `${deps.publicUrl()}/api/jobs/${job.id}`,
        },
      })
    },
  }
}

interface About {
  readonly job: JobRecord
  readonly turn: TurnRecord | null
  readonly usage: Usage
}

function titleOf(job: JobRecord, turn: TurnRecord | null): string {
  return subjectOf(turn?.summary ?? '', MAX_TITLE) ?? `The work of ${job.id}`
}

function bodyOf({ job, turn, usage }: About): string {
  return [
    cut(harmless(turn?.summary ?? 'Its agent gave no summary.')),
    turn?.result == null ? '' : `### Result\n\n${fenced(cut(JSON.stringify(turn.result, null, 2)), 'json')}`,
    `### Verification\n\n${verificationText(turn?.verification ?? null)}`,
    attemptsText(job),
    `### Take over\n\n${fenced(`hangar session pull ${job.id} --checkout`, 'sh')}\n\nor answer with \`hangar job follow-up ${job.id} "…"\`.`,
    `Cost: ${costText(usage)}`,
    [
      `Hangar-Job: ${job.id}`,
      `Hangar-Session: ${job.id}`,
      ...(job.requester === null ? [] : [`Hangar-Requester: ${harmless(job.requester)}`]),
    ].join('\n'),
  ]
    .filter((part) => part !== '')
    .join('\n\n')
}

function statusOf({ job, turn, usage }: About, commit: Oid): string {
  return [
    `**${job.id}** delivered ${commit.slice(0, 12)}: ${verificationLine(turn?.verification ?? null)}. Cost: ${costText(usage)}.`,
    attemptsText(job),
    `Go on with it: \`hangar job follow-up ${job.id} "…"\``,
  ]
    .filter((part) => part !== '')
    .join('\n\n')
}

function verificationLine(verification: Verification | null): string {
  if (verification === null) return 'nothing verified it'
  const took = verification.seconds === null ? '' : ` in ${verification.seconds} s`
  return verification.passed === true ? `its verification passed${took}` : `its verification failed${took}`
}

function verificationText(verification: Verification | null): string {
  if (verification === null) return 'None: no command is set that verifies the work.'
  const tail = verification.logTail.trim().slice(-4_000)
  return `${fenced(verification.command, 'sh')}\n\n${verificationLine(verification)}.${tail === '' ? '' : `\n\n${fenced(tail, '')}`}`
}

function attemptsText({ attempts }: JobRecord): string {
  if (attempts.length < 2) return ''
  const rows = [...attempts]
    .sort((a, b) => (a.rank ?? 99) - (b.rank ?? 99))
    .map(
      ({ attempt, rank, reason, session }) =>
        `| ${rank ?? ''} | ${attempt} | \`hangar/${session}\` | ${cell(reason ?? '')} |`,
    )
  return ['### Attempts', '', '| rank | attempt | branch | why |', '|---|---|---|---|', ...rows].join('\n')
}

function costText({ inputTokens, outputTokens, costUsd }: Usage): string {
  if (inputTokens + outputTokens === 0) return 'not told by its agent'
  const money = costUsd === null ? '' : `, $${costUsd.toFixed(4)}`
  return `${inputTokens + outputTokens} tokens${money}`
}

/** A fence longer than any in the text. */
function fenced(text: string, language: string): string {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length))
  const fence = '`'.repeat(longest + 1)
  return `${fence}${language}\n${text}\n${fence}`
}

function cell(text: string): string {
  return harmless(text).replace(/\s+/g, ' ').replace(/\|/g, '\\|').slice(0, 300)
}

function cut(text: string): string {
  return text.length <= MAX_PART ? text : `${text.slice(0, MAX_PART)}\n(cut here)`
}
