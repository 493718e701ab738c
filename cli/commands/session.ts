/** `hangar session …` */
import type { Command } from 'commander'
import { findCheckout } from '../checkout.ts'
import { callJson } from '../client.ts'
import { type Context, collect, createContext, positiveNumber, wholeNumber } from '../command.ts'
import { EXIT, type ExitStatus, type Failure, usage } from '../failure.ts'
import { followEvents } from '../follow.ts'
import { handOver } from '../local-work.ts'
import { localOptions, type MessageOptions, messageBody, messageOptions, messageText, repoHere } from '../message.ts'
import { ago, printable } from '../output.ts'
import { createPatience, patienceMs } from '../patience.ts'
import { showSession } from '../show-session.ts'
import { createTimeline } from '../timeline.ts'
import { waitForEnd } from '../wait.ts'
import type { Listed, WireDelivery, WireEvent, WireSession, WireTurn } from '../wire.ts'
import { addSessionOutCommands } from './session-out.ts'

interface NewOptions extends MessageOptions {
  readonly repo?: string
  readonly ref?: string
  readonly harness?: string
  readonly env?: string
}

export function addSessionCommands(program: Command): void {
  const session = program.command('session').description('work with sessions')

  messageOptions(
    session.command('new').argument('<name>').argument('<message>', 'what is to be done; - reads standard input'),
  )
    .description('begin a session')
    .option('--repo <slug>', 'the repo; default: the one that this checkout belongs to')
    .option('--ref <ref>', 'branch, tag or commit to start from')
    .option('--harness <name>', "must be the environment's agent program")
    .option('--env <name>', 'the environment')
    .action((name: string, message: string, options: NewOptions) => newSession(name, message, options))

  messageOptions(
    session.command('send').argument('<name>').argument('[message]', 'the message; - reads standard input'),
  )
    .description("send a message: the next turn, or the answer to the session's question")
    .option('--option <n>', 'pick an offered answer', wholeNumber)
    .action((name: string, message: string | undefined, options: MessageOptions & { option?: number }) =>
      send(name, message, options),
    )

  session
    .command('wait')
    .argument('<name>')
    .description('wait until the newest turn has ended')
    .option('--timeout <seconds>', 'give up after so long (exit status 124)', positiveNumber)
    .option('--turn <n>', 'a certain turn', wholeNumber)
    .option('--json', "print the API's object")
    .action(async (name: string, options: { timeout?: number; turn?: number; json?: boolean }) => {
      const context = createContext(options)
      process.exitCode = await waitForEnd(context, name, {
        turn: options.turn ?? null,
        timeoutSeconds: options.timeout ?? null,
        live: false,
      })
    })

  session
    .command('list')
    .description('list sessions, the newest first')
    .option('--repo <slug>', 'only of this repo')
    .option('--state <state>', 'only in this state')
    .option('--needs-input', 'only those that wait for an answer')
    .option('--limit <n>', 'at most so many', wholeNumber, 50)
    .option('--json', "print the API's object")
    .action(list)

  session
    .command('show')
    .argument('<name>')
    .description('show a session with its turns')
    .option('--json', "print the API's object")
    .action(async (name: string, options: { json?: boolean }) => {
      const context = createContext(options)
      showSession(context, await callJson<WireSession>(context.server(), { path: sessionPath(name) }))
    })

  eventsCommand(session, '<name>')

  session
    .command('fork')
    .argument('<name>')
    .description('make sessions that begin where this one is, with its uncommitted work and its conversation')
    .option('-n <n>', 'how many', wholeNumber)
    .option('--name <name>', 'the name of one (may be repeated); default: NAME-fork-1 and on', collect, [])
    .option('--turn <n>', "as it was at this turn's end", wholeNumber)
    .option('--message <text>', 'the first message of each; default: they wait for one')
    .option('--json', "print the API's object")
    .action(fork)

  session
    .command('cancel')
    .argument('<name>')
    .description('stop the turn that runs; what it did so far is kept')
    .option('--json', "print the API's object")
    .action((name: string, options: { json?: boolean }) => control(name, 'cancel', {}, options))

  session
    .command('suspend')
    .argument('<name>')
    .description('end the sandbox of an idle session; the next message makes a fresh one with all that it held')
    .option('--json', "print the API's object")
    .action((name: string, options: { json?: boolean }) => control(name, 'suspend', {}, options))

  session
    .command('resume')
    .argument('<name>')
    .description('make a suspended session idle again')
    .option('--json', "print the API's object")
    .action((name: string, options: { json?: boolean }) => control(name, 'resume', {}, options))

  session
    .command('deliver')
    .argument('<name>')
    .description("push the session's branch to the upstream of its repo")
    .option(
      '--expected <commit>',
      'replace this commit there, when others moved the branch; forty zeros: it was deleted',
    )
    .option('--json', "print the API's object")
    .action(deliver)

  session
    .command('close')
    .argument('<name>')
    .description('end a session; its work stays in git')
    .option('--delete', 'remove its work as well and free its name')
    .option('--json', "print the API's object")
    .action((name: string, options: { delete?: boolean; json?: boolean }) =>
      control(name, 'close', { delete: options.delete === true }, options),
    )

  addSessionOutCommands(session)
}

/** Adds the command that shows what happened in a session's turns; of a job, in those of the session whose work counts. */
export function eventsCommand(noun: Command, argument: string): void {
  noun
    .command('events')
    .argument(argument)
    .description('show what happened in its turns')
    .option('-f, --follow', 'go on as it happens')
    .option('--since <seq>', 'only events after this one', wholeNumber, 0)
    .option('--json', 'print each event as one line of JSON')
    .action(events)
}

async function newSession(name: string, message: string, options: NewOptions): Promise<void> {
  const context = createContext(options)
  const body = {
    name,
    message: messageText(message, options),
    ...messageBody(options),
    ...(options.ref === undefined ? {} : { ref: options.ref }),
    ...(options.harness === undefined ? {} : { harness: options.harness }),
    ...(options.env === undefined ? {} : { environment: options.env }),
  }
  const create = (repo: string, handed: readonly unknown[]) =>
    callJson<WireSession>(context.server(), {
      method: 'POST',
      path: '/api/sessions',
      body: { ...body, repo, context: [...handed, ...body.context] },
    })
  const made =
    options.fromLocal === true
      ? await handOver(
          findCheckout(context.cwd),
          localOptions(context, options, options.repo ?? null),
          () => name,
          ({ repo, commit }) => create(repo, [{ kind: 'checkpoint', commit }]),
        )
      : await create(options.repo ?? (await repoHere(context)), [])
  context.output.say(`session ${made.name} on ${made.repo}: turn 1 is ${made.turns[0]?.state ?? 'queued'}`)
  await ended(context, made, 1, options)
}

async function send(
  name: string,
  message: string | undefined,
  options: MessageOptions & { option?: number },
): Promise<void> {
  const context = createContext(options)
  if (message === undefined && options.option === undefined) throw await nothingSaid(context, name)
  const body = {
    ...messageBody(options),
    message: messageText(message, options),
    ...(options.option === undefined ? {} : { option: options.option }),
  }
  const post = (handed: readonly unknown[]) =>
    callJson<WireTurn>(context.server(), {
      method: 'POST',
      path: `${sessionPath(name)}/turns`,
      body: { ...body, context: [...handed, ...body.context] },
    })
  let turn: WireTurn
  if (options.fromLocal === true) {
    const { repo } = await callJson<WireSession>(context.server(), { path: sessionPath(name) })
    turn = await handOver(
      findCheckout(context.cwd),
      localOptions(context, options, repo),
      () => name,
      ({ commit }) => post([{ kind: 'checkpoint', commit }]),
    )
  } else turn = await post([])
  context.output.say(`turn ${turn.turn} of ${name} is ${turn.state}`)
  await ended(context, turn, turn.turn, options, name)
}

/** What to say instead: of a session with a question, how to answer it. */
async function nothingSaid(context: Context, name: string): Promise<Failure> {
  const session = await callJson<WireSession>(context.server(), { path: sessionPath(name) })
  if (session.needs_input === null)
    return usage(`no message was given; send one with: hangar session send ${name} "what is to be done"`)
  const options = session.question_options.map((option, place) => `\n  ${place + 1}. ${printable(option)}`).join('')
  return usage(
    `session ${name} asks: ${printable(session.needs_input)}${options}\nanswer with: hangar session send ${name} "…"${options === '' ? '' : ', or --option N'}`,
  )
}

/** Waits when asked to; else prints the object, or the next thing to do. */
async function ended(
  context: Context,
  object: WireSession | WireTurn,
  turn: number,
  options: MessageOptions,
  session?: string,
): Promise<void> {
  const name = session ?? (object as WireSession).name
  if (options.wait === true)
    process.exitCode = await waitForEnd(context, name, { turn, timeoutSeconds: null, live: true })
  else if (context.output.json) context.output.data(`${JSON.stringify(object, null, 2)}\n`)
  else context.output.say(`wait for it with: hangar session wait ${name}`)
}

async function list(options: {
  repo?: string
  state?: string
  needsInput?: boolean
  limit: number
  json?: boolean
}): Promise<void> {
  const context = createContext(options)
  const found: WireSession[] = []
  let cursor: string | null = null
  do {
    const page: Listed<WireSession> = await callJson<Listed<WireSession>>(context.server(), {
      path: '/api/sessions',
      query: {
        repo: options.repo,
        state: options.state,
        needs_input: options.needsInput === true ? true : undefined,
        limit: Math.min(200, options.limit - found.length),
        cursor: cursor ?? undefined,
      },
    })
    found.push(...page.items)
    cursor = page.next_cursor
  } while (cursor !== null && found.length < options.limit)
  const now = Date.now()
  const rows = found.map((session) => {
    const last = session.turns.at(-1)
    return [
      session.name,
      session.repo,
      session.needs_input === null ? session.state : 'needs input',
      String(session.turns.length),
      last?.outcome ?? last?.state ?? '',
      ago(session.updated_at, now),
      session.needs_input === null
        ? (last?.summary ?? last?.message ?? '').slice(0, 60)
        : `asks: ${session.needs_input.slice(0, 100)}`,
    ]
  })
  context.output.table(['NAME', 'REPO', 'STATE', 'TURNS', 'LAST', 'UPDATED', 'ABOUT'], rows, {
    items: found,
    next_cursor: cursor,
  })
  if (found.length === 0)
    context.output.say('no sessions; begin one with: hangar session new NAME MESSAGE --from-local')
}

async function events(name: string, options: { follow?: boolean; since: number; json?: boolean }): Promise<void> {
  const context = createContext(options)
  const timeline = createTimeline(context.output)
  const write = (lines: readonly string[]) => context.output.data(lines.map((line) => `${line}\n`).join(''))
  const print = (event: WireEvent) => write(options.json === true ? [JSON.stringify(event)] : timeline.event(event))
  if (options.follow === true) {
    await followEvents(
      context.server(),
      {
        name,
        since: options.since,
        signal: new AbortController().signal,
        patience: createPatience({
          met: false,
          limitMs: patienceMs(context.env),
          again: `hangar session events ${name} -f`,
          say: context.output.say,
        }),
        until: () => false,
      },
      print,
    )
    return
  }
  for (let since = options.since; ; ) {
    const page = await callJson<Listed<WireEvent>>(context.server(), {
      path: `${sessionPath(name)}/events`,
      query: { since, limit: 1000 },
    })
    for (const event of page.items) print(event)
    if (page.next_cursor === null) return write(timeline.end())
    since = Number(page.next_cursor)
  }
}

async function control(
  name: string,
  verb: 'cancel' | 'suspend' | 'resume' | 'close',
  body: { readonly delete?: boolean },
  options: { json?: boolean },
): Promise<void> {
  const context = createContext(options)
  const session = await callJson<WireSession>(context.server(), {
    method: 'POST',
    path: `${sessionPath(name)}/${verb}`,
    body,
  })
  if (context.output.json) context.output.data(`${JSON.stringify(session, null, 2)}\n`)
  else if (verb === 'cancel') context.output.say(`the turn of ${name} is being stopped`)
  else if (verb === 'suspend')
    context.output.say(`session ${name} is suspended; the next message goes on: hangar session send ${name} "…"`)
  else if (verb === 'resume')
    context.output.say(`session ${name} is ${session.state}; go on with: hangar session send ${name} "…"`)
  else if (body.delete === true) context.output.say(`session ${name} and its work are gone, and its name is free`)
  else context.output.say(`session ${name} is closed; its work can still be pulled: hangar session pull ${name}`)
  process.exitCode = EXIT.done satisfies ExitStatus
}

interface ForkOptions {
  readonly n?: number
  readonly name: readonly string[]
  readonly turn?: number
  readonly message?: string
  readonly json?: boolean
}

async function fork(name: string, options: ForkOptions): Promise<void> {
  const context = createContext(options)
  const body = {
    ...(options.n === undefined ? {} : { n: options.n }),
    ...(options.name.length === 0 ? {} : { names: options.name }),
    ...(options.turn === undefined ? {} : { turn: options.turn }),
    ...(options.message === undefined ? {} : { message: options.message }),
  }
  const made = await callJson<Listed<WireSession>>(context.server(), {
    method: 'POST',
    path: `${sessionPath(name)}/fork`,
    body,
  })
  const rows = made.items.map((child) => [child.name, child.branch, child.state])
  context.output.table(['NAME', 'BRANCH', 'STATE'], rows, made)
  const first = made.items[0]?.name ?? name
  context.output.say(
    options.message === undefined
      ? `go on with each: hangar session send ${first} "…"`
      : `wait for each: hangar session wait ${first}`,
  )
}

async function deliver(name: string, options: { expected?: string; json?: boolean }): Promise<void> {
  const context = createContext(options)
  const made = await callJson<WireDelivery>(context.server(), {
    method: 'POST',
    path: `${sessionPath(name)}/deliver`,
    body: options.expected === undefined ? {} : { expected: options.expected },
  })
  if (context.output.json) context.output.data(`${JSON.stringify(made, null, 2)}\n`)
  else
    context.output.say(
      `${made.branch} is at ${made.upstream}, commit ${made.commit}${made.status === 'unchanged' ? ' (it was already)' : ''}`,
    )
}

export function sessionPath(name: string): string {
  return `/api/sessions/${encodeURIComponent(name)}`
}
