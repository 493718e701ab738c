/** Jobs: submitted, verified, delivered, followed up; several attempts of which the best counts; cancelled; all of it over restarts. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { hostedRepo, SCRIPTED_AGENT, settled, states, submit } from './jobs-support.ts'
import { shell, startHangar } from './support.ts'

const AGENT = SCRIPTED_AGENT

t.test('a job runs, is verified and is delivered as a branch; a follow-up goes on with its conversation', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT })
  await hostedRepo(t, hangar)
  const submitted = await submit(hangar, {
    instructions: `make it
! cat "$HANGAR_IO/note.txt" >made.txt; hangar-agent done "made it"; hangar-agent result '{"ok":true}'
! test "$HANGAR_IO" = "$HOME/.hangar/jobs/$HANGAR_JOB"; test "$HANGAR_ATTEMPT" = 1; echo extra >../extra; hangar-agent artifact ../extra`,
    verify: 'echo checking; test "$(cat made.txt)" = "a note"; echo droppings >left-by-verify',
    context: [{ kind: 'text', name: 'note.txt', content: 'a note' }],
    output_schema: { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'] },
  })
  t.equal(submitted.status, 201)
  t.match(submitted.body.id, /^job-[a-z2-7]{10}$/)
  t.equal(submitted.headers.get('location'), `/api/jobs/${submitted.body.id}`)
  const job = await settled(hangar, submitted.body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  t.match(job.verification, { passed: true, exit_code: 0, log_tail: /checking/ })
  t.match(job.result, { summary: 'made it', data: { ok: true }, artifacts: [{ path: 'extra' }] })
  t.match(job.delivery, { branch: `hangar/${job.id}`, pushed: false, pull_request_url: null })
  t.same(states(job), ['queued', 'running', 'verifying', 'delivering', 'succeeded'])
  const shown = await hangar.git(hangar.dir, ['ls-remote', `${hangar.url}/git/acme/app.git`, `hangar/${job.id}`])
  t.match(shown.out, job.delivery.commit, 'the branch is the delivery')
  const patch = (await hangar.api('GET', `/api/jobs/${job.id}/patch`)).bytes.toString()
  t.match(patch, '+a note', 'what was left uncommitted was committed')
  t.notMatch(patch, 'left-by-verify', 'what a verification leaves behind is not the work')
  const events = await hangar.api('GET', `/api/jobs/${job.id}/events`)
  t.match(
    events.body.items.filter(({ kind }: { kind: string }) => kind === 'command'),
    [{ phase: 'start' }, { phase: 'end', exit_code: 0 }],
  )

  const followed = await hangar.api('POST', `/api/jobs/${job.id}/follow-up`, {
    message: '! cat "$HANGAR_CONVERSATION/log" >log.txt; hangar-agent result \'{"ok":false}\'',
  })
  t.equal(followed.status, 202, JSON.stringify(followed.body))
  t.equal((await hangar.api('GET', `/api/jobs/${job.id}`)).body.state.match(/queued|running/)?.length, 1)
  const again = await settled(hangar, job.id)
  t.equal(again.state, 'succeeded', again.state_reason)
  t.same(again.result.data, { ok: false }, 'the schema is inherited')
  const further = (await hangar.api('GET', `/api/jobs/${job.id}/patch`)).bytes.toString()
  t.match(further, '+turn 1\n+turn 2', 'the conversation went on')
})

t.test('a failing verification is given back to the agent once, then fails the job', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT })
  await hostedRepo(t, hangar)
  const mended = await submit(hangar, {
    instructions: '! if [ "$HANGAR_TURN" = 1 ]; then echo bad >x.txt; else echo good >x.txt; fi',
    verify: 'cat x.txt; grep -q good x.txt',
  })
  const job = await settled(hangar, mended.body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  t.same(states(job), ['queued', 'running', 'verifying', 'running', 'verifying', 'delivering', 'succeeded'])
  const session = (await hangar.api('GET', `/api/sessions/${job.id}`)).body
  t.equal(session.turns.length, 2)
  t.match(session.turns[1].message, /failed with exit status 1[\s\S]*bad/, 'the agent is shown the end of its output')

  const hopeless = await submit(hangar, { instructions: '! echo bad >x.txt', verify: 'grep -q good x.txt' })
  const failed = await settled(hangar, hopeless.body.id)
  t.equal(failed.state, 'failed')
  t.equal(failed.state_reason, 'the verification failed with exit status 1')
  t.equal((await hangar.api('GET', `/api/sessions/${failed.id}`)).body.turns.length, 2, 'given back once')
  t.equal(failed.delivery, null, 'nothing is delivered')
  const { status, err } = await hangar.cli(['job', 'show', failed.id])
  t.equal(status, 0, err)
})

t.test('a question leaves the job waiting, also over a restart; the answer resumes the conversation', async (t) => {
  let hangar = await startHangar(t, { agent: AGENT })
  await hostedRepo(t, hangar)
  const { body } = await submit(hangar, {
    instructions: `! if [ "$HANGAR_TURN" = 1 ]; then echo one >one.txt; git add .; git commit -qm one; hangar-agent question --option red --option blue "Which colour?"
! else sed -n 1p "$HANGAR_CONVERSATION/prompt" >answer.txt; cat "$HANGAR_CONVERSATION/log" >log.txt; fi`,
    verify: 'test -f answer.txt',
  })
  const job = await settled(hangar, body.id)
  t.equal(job.state, 'needs_input')
  t.equal(job.needs_input, 'Which colour?')
  t.same(job.question_options, ['red', 'blue'])
  t.equal(job.verification, null, 'nothing is verified yet')
  t.equal(job.delivery, null, 'nothing is delivered yet')
  t.match((await hangar.api('GET', '/api/inbox')).body.items, [{ ref: job.id, question: 'Which colour?' }])
  const waited = await hangar.cli(['job', 'wait', job.id])
  t.equal(waited.status, 3, waited.err)
  t.match(waited.out + waited.err, 'Which colour?')

  hangar = await hangar.restart({ reindex: true })
  t.teardown(() => hangar.close())
  const after = (await hangar.api('GET', `/api/jobs/${job.id}`)).body
  t.equal(after.state, 'needs_input')
  t.equal(after.needs_input, 'Which colour?')
  const answered = await hangar.api('POST', `/api/jobs/${job.id}/follow-up`, { option: 2 })
  t.equal(answered.status, 202, JSON.stringify(answered.body))
  const done = await settled(hangar, job.id)
  t.equal(done.state, 'succeeded', done.state_reason)
  const patch = (await hangar.api('GET', `/api/jobs/${job.id}/patch`)).bytes.toString()
  t.match(patch, '+blue', 'the answer reached the agent')
  t.match(patch, '+turn 1\n+turn 2', 'in the same conversation')
  t.match(patch, 'one.txt', 'with what it had committed')
})

t.test('the same idempotency key gives the same job, also at once from two clients', async (t) => {
  let hangar = await startHangar(t, { agent: AGENT })
  await hostedRepo(t, hangar)
  const body = { instructions: '! echo 1 >one.txt', idempotency_key: 'one' }
  const answers = await Promise.all(Array.from({ length: 6 }, () => submit(hangar, body)))
  t.same(new Set(answers.map(({ status }) => status)), new Set([201]))
  t.equal(new Set(answers.map(({ body }) => body.id)).size, 1)
  await settled(hangar, answers[0]?.body.id)
  hangar = await hangar.restart()
  t.teardown(() => hangar.close())
  t.equal((await submit(hangar, body)).body.id, answers[0]?.body.id, 'also after a restart')
  const other = await submit(hangar, { ...body, instructions: 'something else' })
  t.equal(other.status, 409)
  t.equal(other.body.code, 'idempotency_mismatch')
  t.equal((await hangar.api('GET', '/api/jobs')).body.items.length, 1)
  t.equal((await hangar.api('GET', '/api/sessions')).body.items.length, 1)
})

t.test('a job is cancelled at work and while it waits; a follow-up goes on with it', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT, settings: { HANGAR_QUEUE_MAX_RUNNING: '1' } })
  await hostedRepo(t, hangar)
  const first = await submit(hangar, { instructions: '! echo begun >begun.txt; sleep 60' })
  const second = await submit(hangar, { instructions: '! echo 2 >two.txt' })
  while ((await hangar.api('GET', `/api/jobs/${first.body.id}`)).body.state !== 'running')
    await new Promise((resolve) => setTimeout(resolve, 50))
  t.equal((await hangar.api('GET', `/api/jobs/${second.body.id}`)).body.state, 'queued')
  const cancelled = await hangar.api('POST', `/api/jobs/${second.body.id}/cancel`)
  t.equal(cancelled.body.state, 'cancelled')
  t.match(cancelled.body.state_reason, /^cancelled by /)
  t.equal((await hangar.api('POST', `/api/jobs/${first.body.id}/cancel`)).body.state, 'cancelled')
  t.equal((await hangar.api('POST', `/api/jobs/${first.body.id}/cancel`)).status, 409, 'it is at an end')
  const on = await hangar.api('POST', `/api/jobs/${second.body.id}/follow-up`, { message: '! echo 3 >three.txt' })
  t.equal(on.status, 202, JSON.stringify(on.body))
  const done = await settled(hangar, second.body.id)
  t.equal(done.state, 'succeeded', done.state_reason)
  const patch = (await hangar.api('GET', `/api/jobs/${second.body.id}/patch`)).bytes.toString()
  t.match(patch, 'three.txt')
  t.notMatch(patch, 'two.txt', 'what was cancelled never ran')
})

t.test('what is wrong with a submission is refused, and nothing of it stays', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT })
  await hostedRepo(t, hangar)
  const refused: [Record<string, unknown>, number, RegExp][] = [
    [{ instructions: '' }, 400, /say what is to be done/],
    [{ instructions: 'x', n: 3 }, 400, /"strategy": "best_of_n"/],
    [{ instructions: 'x', strategy: 'best_of_n', n: 1 }, 400, /2 to 16/],
    [{ instructions: 'x', ref: 'nowhere' }, 404, /nowhere/],
    [{ instructions: 'x', environment: 'other' }, 404, /other/],
    [{ instructions: 'x', verify: ' ' }, 400, /verify/],
    [{ instructions: 'x', context: [{ name: 'out/x', content: '' }] }, 422, /out\/x/],
    [{ instructions: 'x', context: [{ name: 'RESULT.md', content: '' }] }, 422, /RESULT.md/],
    [
      { instructions: 'x', strategy: 'best_of_n', context: [{ kind: 'patch', content: 'no patch' }] },
      422,
      /context\[0\]/,
    ],
  ]
  for (const [body, status, words] of refused) {
    const answer = await submit(hangar, body)
    t.equal(answer.status, status, JSON.stringify(answer.body))
    t.match(answer.body.detail, words)
  }
  t.equal((await hangar.api('GET', '/api/jobs')).body.items.length, 0)
  t.equal((await hangar.api('GET', '/api/sessions')).body.items.length, 0)
  const job = await submit(hangar, { instructions: '! sleep 20' })
  for (const verb of ['cancel', 'close', 'turns']) {
    const answer = await hangar.api(
      'POST',
      `/api/sessions/${job.body.id}/${verb}`,
      verb === 'turns' ? { message: 'x' } : {},
    )
    t.equal(answer.status, 409)
    t.match(answer.body.detail, 'steered through it')
  }
  t.equal((await hangar.api('POST', `/api/sessions`, { name: 'job-x', repo: 'acme/app', message: 'x' })).status, 400)
  await hangar.api('POST', `/api/jobs/${job.body.id}/cancel`)
})

t.test(
  'what is delivered is what was verified, by what the project says; what the branch refuses is not delivered',
  async (t) => {
    const hangar = await startHangar(t, { agent: AGENT })
    const checkout = await hostedRepo(t, hangar)
    const meddling = await submit(hangar, {
      instructions: '! echo good >x.txt',
      verify:
        'grep -q good x.txt && echo worse >x.txt && git commit -qam worse && git push -q origin HEAD:"$HANGAR_BRANCH"',
    })
    const job = await settled(hangar, meddling.body.id)
    t.equal(job.state, 'succeeded', job.state_reason)
    const { turns } = (await hangar.api('GET', `/api/sessions/${job.id}`)).body
    t.equal(job.delivery.commit, turns[0].head_commit)
    const fetched = await hangar.git(checkout, ['fetch', '-q', `${hangar.url}/git/acme/app.git`, `hangar/${job.id}`])
    t.equal(fetched.status, 0, fetched.err)
    const file = await hangar.git(checkout, ['show', `${job.delivery.commit}:x.txt`])
    t.equal(file.out, 'good\n', "the agent's commit, not that of its verification")

    const forbidden = await submit(hangar, {
      instructions: '! mkdir -p .github/workflows; echo x >.github/workflows/x.yml',
    })
    const refused = await settled(hangar, forbidden.body.id)
    t.equal(refused.state, 'failed')
    t.match(refused.state_reason, /not on its branch.*\.github\/workflows/)
    t.equal((await hangar.api('GET', `/api/sessions/${refused.id}`)).body.turns.length, 2, 'its agent was told so once')

    for (const args of [
      ['switch', '-q', '-c', 'strict'],
      ['add', '.'],
      ['commit', '-qm', 'verify'],
      ['push', '-q', `${hangar.url}/git/acme/app.git`, 'strict'],
    ]) {
      mkdirSync(join(checkout, '.hangar'), { recursive: true })
      writeFileSync(join(checkout, '.hangar', 'environment.json'), '{"verify":"test -f wanted.txt"}')
      t.equal((await hangar.git(checkout, args)).status, 0)
    }
    const lenient = await submit(hangar, {
      ref: 'strict',
      instructions: '! echo \'{"verify":"true"}\' >.hangar/environment.json',
    })
    const strict = await settled(hangar, lenient.body.id)
    t.equal(strict.state, 'failed', 'an agent does not choose what verifies it')
    t.match(strict.verification, { command: 'test -f wanted.txt', passed: false })
  },
)

t.test('a cancelled job stays so, with the messages that waited', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT })
  await hostedRepo(t, hangar)
  const { body } = await submit(hangar, { instructions: '! echo begun >begun.txt; sleep 60' })
  while ((await hangar.api('GET', `/api/jobs/${body.id}`)).body.state !== 'running')
    await new Promise((resolve) => setTimeout(resolve, 50))
  const further = await hangar.api('POST', `/api/jobs/${body.id}/follow-up`, { message: '! echo 2 >two.txt' })
  t.equal(further.status, 202)
  t.equal((await hangar.api('POST', `/api/jobs/${body.id}/cancel`)).status, 200)
  const session = await hangar.api('GET', `/api/sessions/${body.id}/wait?turn=2&timeout_seconds=60`)
  t.match(session.body, { done: true, outcome: 'cancelled' })
  await hangar.api('GET', `/api/sessions/${body.id}/wait?turn=1&timeout_seconds=60`)
  const job = (await hangar.api('GET', `/api/jobs/${body.id}`)).body
  t.equal(job.state, 'cancelled')
  t.notMatch((await hangar.api('GET', `/api/jobs/${body.id}/patch`)).bytes.toString(), 'two.txt')
})

t.test('a job whose record cannot be understood hides no other, and stops no start', async (t) => {
  let hangar = await startHangar(t, { agent: AGENT })
  await hostedRepo(t, hangar)
  const { body } = await submit(hangar, { instructions: '! true' })
  await settled(hangar, body.id)
  const record = JSON.stringify({ id: 'job-aaaaaaaaaa', repo: 'acme/app', state: 'succeeded', createdAt: Date.now() })
  const git = "git -c safe.directory='*'"
  await shell(
    join(hangar.dataDir, 'repos', 'acme', 'app.git'),
    `blob=$(echo '${record}' | ${git} hash-object -w --stdin)
    tree=$(printf '100644 blob %s\\tjob.json\\n' $blob | ${git} mktree)
    ${git} update-ref refs/hangar/jobs/job-aaaaaaaaaa $(${git} commit-tree -m broken $tree)`,
  )
  hangar = await hangar.restart()
  t.teardown(() => hangar.close())
  const listed = await hangar.api('GET', '/api/jobs')
  t.equal(listed.status, 200, JSON.stringify(listed.body))
  t.match(listed.body.items, [{ id: body.id }])
  t.equal((await hangar.api('GET', '/api/jobs?limit=1')).body.next_cursor !== null, true, 'the next page is told of')
  t.equal((await submit(hangar, { instructions: '! true' })).status, 201)
})

t.test('a token with the scope jobs alone hands local work in with its job', async (t) => {
  const hangar = await startHangar(t, { agent: AGENT })
  const checkout = await hostedRepo(t, hangar)
  writeFileSync(join(checkout, 'local.txt'), 'not committed\n')
  const { body: made } = await hangar.api('POST', '/api/tokens', { name: 'submitter', scopes: ['jobs'] })
  const submitted = await hangar.cli(
    ['job', 'submit', '! cat local.txt >seen.txt', '--repo', 'acme/app', '--from-local', '--json'],
    { cwd: checkout, env: { HANGAR_URL: hangar.url, HANGAR_TOKEN: made.token } },
  )
  t.equal(submitted.status, 0, submitted.err)
  const job = await settled(hangar, JSON.parse(submitted.out).id)
  t.equal(job.state, 'succeeded', job.state_reason)
  t.match((await hangar.api('GET', `/api/jobs/${job.id}/patch`)).bytes.toString(), /seen\.txt[\s\S]*\+not committed/)
})
