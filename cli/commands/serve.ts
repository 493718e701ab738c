/** `hangar serve`: the only command that loads the server. */
import type { Command } from 'commander'
import { EXIT, Failure } from '../failure.ts'

interface ServeOptions {
  readonly config?: string
  readonly reindex?: boolean
}

export function addServeCommand(program: Command): void {
  program
    .command('serve')
    .description('run the server')
    .option('--config <file>', 'the config file; default $HANGAR_CONFIG, else hangar.config.json in the data directory')
    .option('--reindex', 'rebuild the index from git')
    .action(serve)
}

async function serve(options: ServeOptions): Promise<void> {
  const [{ startServer }, { cliFile }, { readConfig }, { startGitFromSmallProcess }, { pino }] = await Promise.all([
    import('../../surfaces/server.ts'),
    import('../../surfaces/first-start.ts'),
    import('../../domain/config.ts'),
    import('../../gateway/git/process.ts'),
    import('pino'),
  ])
  const log = pino(
    { level: process.env['HANGAR_LOG'] ?? 'info', base: null },
    pino.destination({ dest: 2, sync: true }),
  )
  const say = (text: string) => process.stderr.write(`${text}\n`)
  try {
    const config = readConfig({
      env: process.env,
      ...(options.config === undefined ? {} : { configFile: options.config }),
    })
    const file = cliFile(process.env)
    const stopStarter = await startGitFromSmallProcess().catch((error: unknown) => {
      log.warn({ error: String(error) }, 'git is started by the server itself, which is slower')
      return async () => {}
    })
    const server = await startServer({ config, log, cliFile: file, reindex: options.reindex === true })
    if (server.firstStart)
      say(`first start: keys and an admin token were made; the CLI of this user finds it in ${file}`)
    if (server.isolation.level === 'warning') say(`warning: ${server.isolation.text}`)
    say(`hangar serves ${server.url}, data in ${config.dataDir}`)
    const taken = await Promise.race([stopped(), server.lost.then(() => true)])
    if (taken === true) say('another server has taken this store over; this one writes no more')
    say('stopping; agents that run go on and are found again at the next start')
    await server.close()
    await stopStarter()
    process.exit(taken === true ? EXIT.unavailable : EXIT.done)
  } catch (error) {
    throw error instanceof Failure
      ? error
      : new Failure(
          EXIT.unavailable,
          `the server did not start: ${error instanceof Error ? error.message : String(error)}`,
          error,
        )
  }
}

/** Resolves at the first TERM or INT; a second one ends the process at once. */
function stopped(): Promise<void> {
  return new Promise((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const)
      process.once(signal, () => {
        process.once(signal, () => process.exit(EXIT.turnFailed))
        resolve()
      })
  })
}
