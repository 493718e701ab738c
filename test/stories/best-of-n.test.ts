/** Several attempts at one job: the best that passes is delivered, all are listed with their verdicts. */
import t from 'tap'
import { hostedRepo, SCRIPTED_AGENT, settled, submit } from './jobs-support.ts'
import { startHangar } from './support.ts'

const THREE = `three ways
! case $HANGAR_ATTEMPT in 1) echo wrong >x.txt ;; 2) seq 50 >x.txt; echo good >>x.txt ;; 3) echo good >x.txt ;; esac; hangar-agent done "attempt $HANGAR_ATTEMPT"`

t.test('one failing and two passing attempts: a passing one is delivered, all three are listed', async (t) => {
  const hangar = await startHangar(t, { agent: SCRIPTED_AGENT })
  await hostedRepo(t, hangar)
  const { body } = await submit(hangar, {
    instructions: THREE,
    verify: 'grep -q good x.txt',
    strategy: 'best_of_n',
    n: 3,
    context: [{ kind: 'text', name: 'note.txt', content: 'a note' }],
  })
  const job = await settled(hangar, body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  t.equal(job.session, `${job.id}-3`, 'the smallest difference wins')
  t.match(job.attempts, [
    {
      attempt: 1,
      session: `${job.id}-1`,
      outcome: 'exited',
      verification: { passed: false },
      rank: 3,
      reason: /verification failed with exit status 1/,
    },
    {
      attempt: 2,
      outcome: 'exited',
      verification: { passed: true },
      rank: 2,
      diff: { files: 1, insertions: 51, deletions: 0 },
    },
    {
      attempt: 3,
      outcome: 'exited',
      verification: { passed: true },
      rank: 1,
      diff: { insertions: 1 },
      branch: `hangar/${job.id}-3`,
    },
  ])
  t.equal(
    (await hangar.api('GET', `/api/sessions/${job.id}-1`)).body.turns.length,
    2,
    'the failing one was given back once',
  )
  const refs = (await hangar.git(hangar.dir, ['ls-remote', `${hangar.url}/git/acme/app.git`, 'hangar/*'])).out
  for (const branch of [job.id, `${job.id}-1`, `${job.id}-2`, `${job.id}-3`])
    t.match(refs, `refs/heads/hangar/${branch}\n`)
  t.match(refs, `${job.delivery.commit}\trefs/heads/hangar/${job.id}\n`)
  t.equal(job.result.summary, 'attempt 3')
  for (const lost of [1, 2])
    t.equal(
      (await hangar.api('GET', `/api/sessions/${job.id}-${lost}`)).body.sandbox,
      null,
      'a lost attempt keeps no sandbox',
    )

  const shown = await hangar.cli(['job', 'show', job.id])
  t.match(
    shown.out,
    /1\t3\texited\tpassed.*\n2\t2\texited\tpassed.*\n3\t1\texited\tfailed/,
    'the attempts side by side, the best first',
  )
  const diff = await hangar.cli(['job', 'diff', job.id, '3', '2'])
  t.match(diff.out, '+50\n', 'what differs between two of them')

  await hangar.api('POST', `/api/jobs/${job.id}/follow-up`, {
    message: '! echo more >>x.txt; cat "$HANGAR_CONVERSATION/log" >log.txt',
  })
  const further = await settled(hangar, job.id)
  t.equal(further.state, 'succeeded', further.state_reason)
  t.not(further.delivery.commit, job.delivery.commit)
  const patch = (await hangar.api('GET', `/api/jobs/${job.id}/patch`)).bytes.toString()
  t.match(patch, '+turn 1\n+turn 2', 'the best attempt is gone on with')
})

t.test('none passes: the job fails with the reason of each; budgets cover the whole job', async (t) => {
  const hangar = await startHangar(t, { agent: SCRIPTED_AGENT })
  await hostedRepo(t, hangar)
  const { body } = await submit(hangar, {
    instructions: '! echo bad >x.txt',
    verify: 'false',
    strategy: 'best_of_n',
    n: 2,
  })
  const job = await settled(hangar, body.id)
  t.equal(job.state, 'failed')
  t.match(job.state_reason, /attempt 1: its verification failed.*attempt 2: its verification failed/)

  const spender = await submit(hangar, {
    instructions: `! echo '{"kind":"usage","scope":"request","input":400}'; sleep 30`,
    strategy: 'best_of_n',
    n: 3,
    budget: { max_tokens: 1000 },
  })
  const over = await settled(hangar, spender.body.id)
  t.equal(over.state, 'over_budget', over.state_reason)
  t.match(over.state_reason, /of the whole job/)
  t.equal(over.usage.input_tokens, 1200)
})

t.test('a judge ranks those that pass; the first that passes may stop the others', async (t) => {
  const agent = `if [ -z "$HANGAR_JOB" ]; then
  grep -q 'attempt 2, its change in' && hangar-agent result '{"ranking":[{"attempt":2,"reason":"it is thorough"},{"attempt":3,"reason":"it is short"}]}'
  test -s "$HANGAR_IO/in/1/attempt-2.patch"; exit
fi
${SCRIPTED_AGENT}`
  const hangar = await startHangar(t, {
    agent,
    config: {
      environments: {
        default: { harness_options: { argv: ['sh', '-c', agent] }, judge: 'prefer what is thorough' },
        quick: { harness_options: { argv: ['sh', '-c', agent] }, stop_at_first_pass: true },
      },
    },
  })
  await hostedRepo(t, hangar)
  const judged = await submit(hangar, { instructions: THREE, verify: 'grep -q good x.txt', strategy: 'best_of_n' })
  const job = await settled(hangar, judged.body.id)
  t.equal(job.state, 'succeeded', job.state_reason)
  t.equal(job.session, `${job.id}-2`)
  t.match(job.attempts[1].reason, 'the judge: it is thorough')
  t.same(job.warnings, [])

  const quick = await submit(hangar, {
    instructions: '! if [ "$HANGAR_ATTEMPT" = 2 ]; then echo good >x.txt; else sleep 100; fi',
    verify: 'grep -q good x.txt',
    strategy: 'best_of_n',
    environment: 'quick',
    n: 2,
  })
  const first = await settled(hangar, quick.body.id)
  t.equal(first.state, 'succeeded', first.state_reason)
  t.equal(first.session, `${first.id}-2`)
  t.match(first.attempts[0].reason, 'was stopped')
})
