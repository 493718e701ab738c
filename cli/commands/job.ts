/** `hangar job …` */
import type { Command } from 'commander'
import { findCheckout } from '../checkout.ts'
import { call, callJson } from '../client.ts'
import { type Context, createContext, positiveNumber, wholeNumber } from '../command.ts'
import { usage } from '../failure.ts'
import { handOver } from '../local-work.ts'
import { localOptions, type MessageOptions, messageBody, messageOptions, messageText, repoHere } from '../message.ts'
import { ago, printable } from '../output.ts'
import { showJob } from '../show-job.ts'
import { waitForJob } from '../wait.ts'
import type { Listed, WireJob, WireTurn } from '../wire.ts'
import { eventsCommand } from './session.ts'
import { artifactsCommand, patchCommand } from './session-out.ts'

interface SubmitOptions extends MessageOptions {
  readonly repo?: string
  readonly ref?: string
  readonly harness?: string
  readonly env?: string
  readonly verify?: string
  readonly bestOf?: number
  readonly callback?: string
  readonly key?: string
}

export function addJobCommands(program: Command): void {
  const job = program.command('job').description('submit work, and follow it until it is delivered')

  messageOptions(job.command('submit').argument('<instructions>', 'what is to be done; - reads standard input'))
    .description('submit a job')
    .option('--repo <slug>', 'the repo; default: the one that this checkout belongs to')
    .option('--ref <ref>', 'branch, tag or commit to start from')
    .option('--harness <name>', "must be the environment's agent program")
    .option('--env <name>', 'the environment')
    .option('--verify <command>', "what verifies the work; default: the environment's command")
    .option('--best-of <n>', 'make so many attempts, and deliver the best', wholeNumber)
    .option('--callback <url>', "where the job's events are posted to")
    .option('--key <key>', 'an idempotency key: the same one gives the same job')
    .action(submit)

  job
    .command('list')
    .description('list jobs, the newest first')
    .option('--repo <slug>', 'only of this repo')
    .option('--state <state>', 'only in this state')
    .option('--limit <n>', 'at most so many', wholeNumber, 50)
    .option('--json', "print the API's object")
    .action(list)

  job
    .command('show')
    .argument('<id>')
    .description('show a job: its attempts side by side, its verification, its delivery and its timeline')
    .option('--json', "print the API's object")
    .action(async (id: string, options: { json?: boolean }) => {
      const context = createContext(options)
      showJob(context, await callJson<WireJob>(context.server(), { path: jobPath(id) }))
    })

  job
    .command('wait')
    .argument('<id>')
    .description('wait until the job is at an end, or waits for a person (exit status 3)')
    .option('--timeout <seconds>', 'give up after so long (exit status 124)', positiveNumber)
    .option('--json', "print the API's object")
    .action(async (id: string, options: { timeout?: number; json?: boolean }) => {
      process.exitCode = await waitForJob(createContext(options), id, {
        timeoutSeconds: options.timeout ?? null,
        live: [],
      })
    })

  messageOptions(job.command('follow-up').argument('<id>').argument('[message]', 'the message; - reads standard input'))
    .description("send a further message: the answer to the job's question, or what is to be done next")
    .option('--option <n>', 'pick an offered answer', wholeNumber)
    .action(followUp)

  job
    .command('approve')
    .argument('<id>')
    .description('let a job begin that waits for approval')
    .option('--json', "print the API's object")
    .action((id: string, options: { json?: boolean }) => act(id, 'approve', {}, options))

  job
    .command('reject')
    .argument('<id>')
    .description('turn a job down that waits for approval')
    .option('--reason <text>', 'why, for whoever asked for it')
    .option('--json', "print the API's object")
    .action((id: string, { reason, ...options }: { reason?: string; json?: boolean }) =>
      act(id, 'reject', reason === undefined ? {} : { reason }, options),
    )

  job
    .command('cancel')
    .argument('<id>')
    .description('stop a job and its agents; what they did so far is kept')
    .option('--json', "print the API's object")
    .action((id: string, options: { json?: boolean }) => act(id, 'cancel', {}, options))

  job
    .command('deliver')
    .argument('<id>')
    .description('deliver the work once more, when its delivery failed')
    .option(
      '--expected <commit>',
      'replace this commit upstream, when others moved the branch; forty zeros: it was deleted',
    )
    .option('-w, --wait', 'wait for its end')
    .option('--json', "print the API's object")
    .action(deliver)

  job
    .command('diff')
    .argument('<id>')
    .argument('<from>', 'an attempt, by number', wholeNumber)
    .argument('<to>', 'another', wholeNumber)
    .description('print what differs between two attempts')
    .action(async (id: string, from: number, to: number) => {
      const context = createContext({})
      const response = await call(context.server(), { path: `${jobPath(id)}/diff`, query: { from, to } })
      context.output.data(Buffer.from(await response.arrayBuffer()))
    })

  // A job's id stands for the session whose work counts.
  eventsCommand(job, '<id>')
  patchCommand(job, '<id>')
  artifactsCommand(job, '<id>')
}

async function submit(instructions: string, options: SubmitOptions): Promise<void> {
  const context = createContext(options)
  const { context: items, ...message } = messageBody(options)
  const body = {
    instructions: messageText(instructions, options),
    ...message,
    ...(options.ref === undefined ? {} : { ref: options.ref }),
    ...(options.harness === undefined ? {} : { harness: options.harness }),
    ...(options.env === undefined ? {} : { environment: options.env }),
    ...(options.verify === undefined ? {} : { verify: options.verify }),
    ...(options.bestOf === undefined ? {} : { strategy: 'best_of_n', n: options.bestOf }),
    ...(options.callback === undefined ? {} : { callback_url: options.callback }),
    ...(options.key === undefined ? {} : { idempotency_key: options.key }),
  }
  const post = (repo: string, handed: readonly unknown[]) =>
    callJson<WireJob>(context.server(), {
      method: 'POST',
      path: '/api/jobs',
      body: { ...body, repo, context: [...handed, ...items] },
    })
  const made =
    options.fromLocal === true
      ? await handOver(
          findCheckout(context.cwd),
          localOptions(context, options, options.repo ?? null),
          (job: WireJob) => job.session ?? job.attempts[0]?.session ?? null,
          ({ repo, commit }) => post(repo, [{ kind: 'checkpoint', commit }]),
        )
      : await post(options.repo ?? (await repoHere(context)), [])
  context.output.say(`job ${made.id} on ${made.repo} is ${made.state}`)
  await ended(context, made, made, options)
}

async function followUp(
  id: string,
  message: string | undefined,
  options: MessageOptions & { option?: number },
): Promise<void> {
  const context = createContext(options)
  if (message === undefined && options.option === undefined)
    throw usage(
      `no message was given; give one with: hangar job follow-up ${id} "…", or pick an answer with --option N`,
    )
  const body = {
    ...messageBody(options),
    message: messageText(message, options),
    ...(options.option === undefined ? {} : { option: options.option }),
  }
  const job = await callJson<WireJob>(context.server(), { path: jobPath(id) })
  const post = (handed: readonly unknown[]) =>
    callJson<WireTurn>(context.server(), {
      method: 'POST',
      path: `${jobPath(id)}/follow-up`,
      body: { ...body, context: [...handed, ...body.context] },
    })
  const turn =
    options.fromLocal === true
      ? await handOver(
          findCheckout(context.cwd),
          localOptions(context, options, job.repo),
          () => job.session,
          ({ commit }) => post([{ kind: 'checkpoint', commit }]),
        )
      : await post([])
  context.output.say(`turn ${turn.turn} of ${id} is ${turn.state}`)
  await ended(context, turn, job, options)
}

/** Waits when asked to; else prints the object, or the next thing to do. */
async function ended(
  context: Context,
  object: WireJob | WireTurn,
  { id, session, attempts }: WireJob,
  options: Pick<MessageOptions, 'wait'>,
): Promise<void> {
  const live = session === null ? attempts.map((attempt) => attempt.session) : [session]
  if (options.wait === true) process.exitCode = await waitForJob(context, id, { timeoutSeconds: null, live })
  else if (context.output.json) context.output.data(`${JSON.stringify(object, null, 2)}\n`)
  else context.output.say(`wait for it with: hangar job wait ${id}`)
}

async function list(options: { repo?: string; state?: string; limit: number; json?: boolean }): Promise<void> {
  const context = createContext(options)
  const found: WireJob[] = []
  let cursor: string | null = null
  do {
    const page: Listed<WireJob> = await callJson<Listed<WireJob>>(context.server(), {
      path: '/api/jobs',
      query: {
        repo: options.repo,
        state: options.state,
        limit: Math.min(200, options.limit - found.length),
        cursor: cursor ?? undefined,
      },
    })
    found.push(...page.items)
    cursor = page.next_cursor
  } while (cursor !== null && found.length < options.limit)
  const now = Date.now()
  const rows = found.map((job) => [
    job.id,
    job.repo,
    job.state.replace('_', ' '),
    job.requester ?? '',
    ago(job.updated_at, now),
    printable(job.needs_input === null ? (job.instructions.split('\n')[0] ?? '') : `asks: ${job.needs_input}`).slice(
      0,
      80,
    ),
  ])
  context.output.table(['ID', 'REPO', 'STATE', 'BY', 'UPDATED', 'ABOUT'], rows, { items: found, next_cursor: cursor })
  if (found.length === 0) context.output.say('no jobs; submit one with: hangar job submit INSTRUCTIONS')
}

const DONE = {
  approve: 'is approved, and begins',
  reject: 'is rejected',
  cancel: 'is cancelled; what was done so far is kept',
} as const

async function act(id: string, verb: keyof typeof DONE, body: object, options: { json?: boolean }): Promise<void> {
  const context = createContext(options)
  const job = await callJson<WireJob>(context.server(), { method: 'POST', path: `${jobPath(id)}/${verb}`, body })
  if (context.output.json) context.output.data(`${JSON.stringify(job, null, 2)}\n`)
  else context.output.say(`job ${id} ${DONE[verb]}`)
}

async function deliver(id: string, options: { expected?: string; wait?: boolean; json?: boolean }): Promise<void> {
  const context = createContext(options)
  const body = options.expected === undefined ? {} : { expected: options.expected }
  const job = await callJson<WireJob>(context.server(), { method: 'POST', path: `${jobPath(id)}/deliver`, body })
  context.output.say(`job ${id} is being delivered`)
  // No agent is at work that could be shown.
  await ended(context, job, { ...job, session: null, attempts: [] }, options)
}

function jobPath(id: string): string {
  return `/api/jobs/${encodeURIComponent(id)}`
}
