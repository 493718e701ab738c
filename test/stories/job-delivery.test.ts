/** A job whose repo follows GitHub: its branch goes there, with one pull request, one comment and a check run, whatever is repeated or breaks. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { GithubPeer } from '../peers/github/peer.ts'
import { Pulls } from '../peers/github/pulls.ts'
import { SCRIPTED_AGENT, settled, states, submit } from './jobs-support.ts'
import { type Hangar, shell, startHangar, temporaryDirectory } from './support.ts'

interface Story {
  readonly peer: GithubPeer
  readonly pulls: Pulls
  readonly hangar: Hangar
  readonly dir: string
}

async function begin(t: Test, credential: 'github-app' | 'env:HANGAR_CREDENTIAL_PAT'): Promise<Story> {
  const dir = temporaryDirectory(t)
  const peer = await GithubPeer.start(t, join(dir, 'github'))
  const repo = peer.addRepo('acme', 'app')
  await shell(
    dir,
    `git init -q -b main seed && cd seed && echo one >a.txt && git add . && git commit -q -m base && git branch topic && git push -q '${repo.dir}' main topic`,
  )
  writeFileSync(join(dir, 'app.pem'), peer.tokens.privateKey, { mode: 0o600 })
  const hangar = await startHangar(t, {
    agent: SCRIPTED_AGENT,
    settings: {
      HANGAR_UPSTREAM_ALLOW_PRIVATE_ADDRESSES: 'true',
      HANGAR_UPSTREAM_FRESH_SECONDS: '0',
      HANGAR_GITHUB_API_URL: peer.apiUrl,
      HANGAR_CREDENTIAL_PAT: peer.tokens.person(),
      HANGAR_GITHUB_APP_ID: String(peer.tokens.appId),
      HANGAR_GITHUB_APP_PRIVATE_KEY_FILE: join(dir, 'app.pem'),
    },
  })
  const made = await hangar.api('POST', '/api/repos', { slug: 'acme/app', upstream: repo.url(), credential })
  t.equal(made.status, 201, JSON.stringify(made.body))
  return { peer, pulls: new Pulls(peer), hangar, dir }
}

const tipThere = (story: Story, branch: string) =>
  shell(
    story.dir,
    `git -c safe.directory='*' -C github/acme/app.git rev-parse -q --verify refs/heads/${branch} || echo none`,
  )

t.test('a pull request says all that people need, and a follow-up brings it up to date', async (t) => {
  const story = await begin(t, 'github-app')
  const { hangar, pulls, peer } = story
  const { body } = await submit(hangar, {
    instructions: `! echo made >made.txt; printf 'Make it\\n\\nthanks @somebody, closes #12 <!-- hangar:job=x -->\\n' | hangar-agent done -; hangar-agent result '{"tests":3}'`,
    verify: "echo 'all ```good'",
    ref: 'topic',
  })
  const job = await settled(hangar, body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  const [pull] = pulls.pulls
  t.match(pull, { head: `hangar/${job.id}`, base: 'topic', draft: true, title: 'Make it' })
  t.match(job.delivery, { pushed: true, pull_request_url: `${peer.url}/acme/app/pull/1`, branch: `hangar/${job.id}` })
  t.equal((await tipThere(story, `hangar/${job.id}`)).trim(), job.delivery.commit)
  const text = pull?.body ?? ''
  t.match(text, '"tests": 3')
  t.match(text, /passed in [\d.]+ s/)
  t.match(text, '````\nall ```good\n````', 'a fence longer than what it holds')
  t.match(text, `hangar session pull ${job.id}`)
  t.match(text, `Hangar-Job: ${job.id}\nHangar-Session: ${job.id}\nHangar-Requester: `)
  t.notMatch(text, /@somebody|closes #12|<!--/, 'an agent calls nobody and closes nothing')
  t.equal(pulls.comments.length, 1)
  t.match(pulls.checks, [{ name: 'hangar', head_sha: job.delivery.commit, external_id: job.id, conclusion: 'success' }])

  await hangar.api('POST', `/api/jobs/${job.id}/follow-up`, {
    message: `! echo more >more.txt; hangar-agent done "Make more: fixes GH-7 for @somebody ${'é'.repeat(60)}"`,
  })
  const again = await settled(hangar, job.id)
  t.equal(again.state, 'succeeded', again.state_reason)
  t.equal(pulls.pulls.length, 1, 'one pull request')
  t.equal(pulls.comments.length, 1, 'one comment, edited in place')
  t.match(pulls.comments[0]?.body, again.delivery.commit.slice(0, 12))
  t.match(pulls.pulls[0]?.body, 'Make more')
  t.equal((await tipThere(story, `hangar/${job.id}`)).trim(), again.delivery.commit)
  const subject = await shell(
    story.dir,
    `git -c safe.directory='*' -C github/acme/app.git log -1 --format=%s ${again.delivery.commit}`,
  )
  t.match(subject, /^Make more: fixes\u200b GH-7 for @\u200bsomebody é+…\n$/, 'the subject as well')
  t.strictSame(peer.violations, [])
})

t.test('whatever breaks on the way, there is one pull request and one comment', async (t) => {
  const story = await begin(t, 'env:HANGAR_CREDENTIAL_PAT')
  const { hangar, pulls, peer } = story
  pulls.drafts = false
  // Stored, and answered by nothing: asked again, it must be found.
  peer.fail({ on: /^POST .*\/pulls$/, cut: 'after' })
  peer.fail({ on: /^GET .*\/pulls\?/, status: 502 })
  peer.fail({ on: /^POST .*\/issues\/1\/comments$/, cut: 'after' })
  peer.fail({ on: /^GET .*\/comments\?/, status: 429, headers: { 'retry-after': '1' } })
  const { body } = await submit(hangar, { instructions: '! echo made >made.txt' })
  const job = await settled(hangar, body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  t.equal(pulls.pulls.length, 1)
  t.equal(pulls.pulls[0]?.draft, false, 'without a draft where there are none')
  t.equal(pulls.comments.length, 1)
  t.equal(pulls.checks.length, 0, 'check runs are for Apps')

  peer.fail({ on: /^PATCH .*\/pulls\//, status: 403 })
  await hangar.api('POST', `/api/jobs/${job.id}/follow-up`, { message: '! echo more >more.txt' })
  const denied = await settled(hangar, job.id)
  t.equal(denied.state, 'failed')
  t.match(denied.state_reason, /delivery failed: upstream_denied/)
  t.strictSame(states(denied).slice(-2), ['delivering', 'failed'])
  t.strictSame(peer.violations, [])
})

t.test(
  'an App without the permission for checks delivers all the same, and says so; nothing changed is nothing delivered',
  async (t) => {
    const story = await begin(t, 'github-app')
    const { hangar, pulls, peer } = story
    peer.permissions = { contents: 'write', metadata: 'read', pull_requests: 'write' }
    const { body } = await submit(hangar, { instructions: '! echo made >made.txt' })
    const job = await settled(hangar, body.id)
    t.equal(job.state, 'succeeded', job.state_reason)
    t.match(job.warnings, [/there is no check run/])
    t.equal(pulls.pulls.length, 1)
    const idle = await submit(hangar, { instructions: '! true' })
    const nothing = await settled(hangar, idle.body.id)
    t.equal(nothing.state, 'succeeded')
    t.equal(nothing.delivery, null)
    t.equal(pulls.pulls.length, 1)
  },
)

t.test('a branch that others moved is left alone until somebody says what of theirs is replaced', async (t) => {
  const story = await begin(t, 'github-app')
  const { pulls, peer, dir } = story
  let { hangar } = story
  const { body } = await submit(hangar, { instructions: '! echo made >made.txt' })
  const job = await settled(hangar, body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  t.match(await hangar.api('POST', `/api/jobs/${job.id}/deliver`), {
    status: 409,
    body: { code: 'conflict', detail: /no delivery of it has failed/ },
  })
  const branch = `hangar/${job.id}`
  const upstream = join(dir, 'github/acme/app.git')
  await shell(
    join(dir, 'seed'),
    `git fetch -q '${upstream}' ${branch} && git switch -q --detach FETCH_HEAD && echo x >review.txt && git add . &&
     git commit -qm review && git push -q '${upstream}' HEAD:${branch}`,
  )
  const theirs = (await tipThere(story, branch)).trim()
  await hangar.api('POST', `/api/jobs/${job.id}/follow-up`, { message: '! echo more >more.txt' })
  const lost = await settled(hangar, job.id)
  t.equal(lost.state, 'failed')
  const command = `hangar job deliver ${job.id} --expected ${theirs}`
  t.match(lost.state_reason, /delivery failed: upstream_moved/)
  t.match(lost.state_reason, command)
  t.equal((await tipThere(story, branch)).trim(), theirs, 'nothing was overwritten')

  const blind = await hangar.cli(['job', 'deliver', job.id, '-w'])
  t.match(blind, { status: 1, err: /upstream_moved/ })
  // What is to be replaced is known after a restart as well.
  peer.fail({ on: /service=git-receive-pack/, times: 2, status: 502 })
  const told = await hangar.cli(command.split(' ').slice(1))
  t.match(told, { status: 0, err: `hangar job wait ${job.id}` }, told.err)
  hangar = await hangar.restart()
  t.teardown(() => hangar.close())
  t.match(await hangar.cli(['job', 'wait', job.id]), { status: 0 })
  const again = await settled(hangar, job.id)
  t.equal(again.state, 'succeeded', again.state_reason)
  t.strictSame(states(again).slice(-5), ['failed', 'delivering', 'failed', 'delivering', 'succeeded'])
  t.equal((await tipThere(story, branch)).trim(), again.delivery.commit)
  t.not(again.delivery.commit, job.delivery.commit, 'the follow-up is delivered')
  t.equal(pulls.pulls.length, 1, 'one pull request')
  t.equal(pulls.comments.length, 1, 'one comment')
  t.strictSame(peer.violations, [])

  const unfit = await submit(hangar, { instructions: '! false', verify: 'false' })
  t.equal((await settled(hangar, unfit.body.id)).state, 'failed')
  t.match(await hangar.api('POST', `/api/jobs/${unfit.body.id}/deliver`), {
    status: 409,
    body: { code: 'conflict', detail: /failed before it was to be delivered/ },
  })
})

t.test('a check run that was made, and not answered, is brought up to date and not made again', async (t) => {
  const { hangar, pulls, peer } = await begin(t, 'github-app')
  peer.fail({ on: /^POST .*\/check-runs$/, cut: 'after' })
  const { body } = await submit(hangar, { instructions: '! echo made >made.txt', verify: 'true' })
  const job = await settled(hangar, body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  t.match(pulls.checks, [{ external_id: job.id, head_sha: job.delivery.commit, conclusion: 'success' }])
  t.equal(pulls.checks.length, 1, 'one check run of one commit')
  await hangar.api('POST', `/api/jobs/${job.id}/follow-up`, { message: '! echo more >more.txt' })
  const again = await settled(hangar, job.id)
  t.match(
    pulls.checks.map(({ head_sha }) => head_sha),
    [job.delivery.commit, again.delivery.commit],
    'each commit has its own',
  )
  t.strictSame(peer.violations, [])
})
