/** `hangar doctor`: what is there and what is missing, one line each. */
import { spawnSync } from 'node:child_process'
import type { Command } from 'commander'
import { callJson } from '../client.ts'
import { createContext } from '../command.ts'
import { EXIT, Failure } from '../failure.ts'
import type { Listed, WireRepo } from '../wire.ts'

interface Finding {
  readonly level: 'ok' | 'warning' | 'missing'
  readonly what: string
  readonly text: string
}

export function addDoctorCommand(program: Command): void {
  program
    .command('doctor')
    .description('check this machine and the server')
    .option('--json', 'print the findings as JSON')
    .action(async (options: { json?: boolean }) => {
      const context = createContext(options)
      const findings = [
        nodeFinding(),
        gitFinding(),
        ...(await isolationFindings()),
        await configFinding(),
        await serverFinding(context),
      ]
      const mark = {
        ok: context.output.colour('ok', 'green'),
        warning: context.output.colour('warning', 'yellow'),
        missing: context.output.colour('missing', 'red'),
      }
      context.output.table(
        ['', 'WHAT', 'FOUND'],
        findings.map((finding) => [
          context.output.terminal ? mark[finding.level] : finding.level,
          finding.what,
          finding.text,
        ]),
        findings,
      )
      if (findings.some((finding) => finding.level === 'missing'))
        throw new Failure(EXIT.unavailable, 'something that hangar needs is missing; see above')
    })
}

function nodeFinding(): Finding {
  const major = Number(process.versions.node.split('.')[0])
  return {
    level: major >= 20 ? 'ok' : 'missing',
    what: 'node',
    text: `${process.versions.node}${major >= 20 ? '' : '; install Node.js 20 or newer'}`,
  }
}

function gitFinding(): Finding {
  const run = spawnSync('git', ['version'], { encoding: 'utf8' })
  const version = /(\d+)\.(\d+)/.exec(run.stdout ?? '')
  if (run.error !== undefined || version === null)
    return { level: 'missing', what: 'git', text: 'not found; install git 2.39 or newer' }
  const enough = Number(version[1]) > 2 || (Number(version[1]) === 2 && Number(version[2]) >= 39)
  return {
    level: enough ? 'ok' : 'missing',
    what: 'git',
    text: `${version[0]}${enough ? '' : '; install git 2.39 or newer'}`,
  }
}

/** What would isolate sandboxes of a server that this user starts here. */
async function isolationFindings(): Promise<Finding[]> {
  const [{ createLocalProvider }, { dataDirectory }, { fileURLToPath }, { join }] = await Promise.all([
    import('../../orchestrator/providers/local.ts'),
    import('../../domain/config.ts'),
    import('node:url'),
    import('node:path'),
  ])
  const provider = createLocalProvider({
    sandboxesDir: join(dataDirectory(process.env), 'sandboxes'),
    helperFile: fileURLToPath(new URL('../../../agent-helper/hangar-agent', import.meta.url)),
    clock: { now: Date.now },
    log: { info: () => {}, warn: () => {}, error: () => {} },
  })
  const { level, text } = await provider.describe()
  return [{ level, what: 'isolation', text }]
}

async function configFinding(): Promise<Finding> {
  const { readConfig } = await import('../../domain/config.ts')
  try {
    const config = readConfig({ env: process.env })
    const ready = [...config.environments.values()]
      .filter((environment) => environment.argv !== null)
      .map((environment) => environment.name)
    if (ready.length > 0) return { level: 'ok', what: 'environments', text: `${ready.join(', ')} can run agents` }
    return {
      level: 'warning',
      what: 'environments',
      text: `no agent program is set; put {"environments":{"default":{"harness_options":{"argv":["…"]}}}} into ${config.dataDir}/hangar.config.json`,
    }
  } catch (error) {
    return { level: 'missing', what: 'settings', text: error instanceof Error ? error.message : String(error) }
  }
}

async function serverFinding(context: ReturnType<typeof createContext>): Promise<Finding> {
  try {
    const server = context.server()
    const { items } = await callJson<Listed<WireRepo>>(server, { path: '/api/repos' })
    return { level: 'ok', what: 'server', text: `${server.url} answers; ${items.length} repo(s)` }
  } catch (error) {
    return { level: 'warning', what: 'server', text: error instanceof Error ? error.message : String(error) }
  }
}
