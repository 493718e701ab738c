/** `hangar doctor`: what is there and what is missing, one line each. */
import { spawnSync } from 'node:child_process'
import { tmpdir } from 'node:os'
import type { Command } from 'commander'
import type { Environment } from '../../domain/environment.ts'
import { callJson } from '../client.ts'
import { createContext } from '../command.ts'
import { EXIT, Failure } from '../failure.ts'
import type { Listed, WireEnvironment, WireEnvironmentCheck, WireRepo } from '../wire.ts'

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
      const server = await serverFinding(context)
      const findings = [
        nodeFinding(),
        gitFinding(),
        ...(await isolationFindings()),
        ...(await dockerFindings()),
        ...(await kubernetesFindings()),
        ...(await agentFindings()),
        server,
        ...(server.level === 'ok' ? await egressFindings(context) : []),
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

/** Whether the Docker engine answers, and what it isolates, where an environment uses it. */
async function dockerFindings(): Promise<Finding[]> {
  const [{ openDockerProvider }, { readConfig }] = await Promise.all([
    import('../../orchestrator/providers/docker.ts'),
    import('../../domain/config.ts'),
  ])
  try {
    const config = readConfig({ env: process.env })
    const environments = [...config.environments.values()].filter(({ provider }) => provider === 'docker')
    if (environments.length === 0) return []
    const log = { info: () => {}, warn: () => {}, error: () => {} }
    const relay = { directoryFor: async () => '', close: async () => {} }
    const deps = { socketPath: config.dockerSocket, helperFile: '', instance: '', relay, loopbackOnly: false, log }
    const { level, text } = await (await openDockerProvider(deps)).describe()
    return [{ level, what: 'docker', text }]
  } catch {
    // Wrong settings are told once, with the agents.
    return []
  }
}

/** Whether the cluster answers, where an environment uses it. */
async function kubernetesFindings(): Promise<Finding[]> {
  const { readConfig } = await import('../../domain/config.ts')
  try {
    const { environments, kubernetes } = readConfig({ env: process.env })
    if (![...environments.values()].some(({ provider }) => provider === 'kubernetes')) return []
    const { createKubernetesProvider } = await import('../../orchestrator/providers/kubernetes.ts')
    const { kubeconfig, ...settings } = kubernetes
    const log = { info: () => {}, warn: () => {}, error: () => {} }
    const provider = createKubernetesProvider({
      kubeconfig,
      install: { ...settings, instance: 'doctor' },
      helperDir: '',
      log,
    })
    const { level, text } = await provider.describe()
    return [{ level, what: 'kubernetes', text }]
  } catch (error) {
    return [{ level: 'missing', what: 'kubernetes', text: error instanceof Error ? error.message : String(error) }]
  }
}

async function agentFindings(): Promise<Finding[]> {
  const { readConfig } = await import('../../domain/config.ts')
  try {
    const config = readConfig({ env: process.env })
    return Promise.all(
      [...config.environments.values()].map((environment) => agentFinding(environment, config.dataDir)),
    )
  } catch (error) {
    return [{ level: 'missing', what: 'settings', text: error instanceof Error ? error.message : String(error) }]
  }
}

/** The agent program of an environment: whether it is there, and whether its version is one that was tried. */
async function agentFinding(environment: Environment, dataDir: string): Promise<Finding> {
  const { findProgram, programOf, SANDBOX_PATH, TESTED_VERSIONS } = await import('../../surfaces/harnesses.ts')
  const { name, harness } = environment
  const what = `agents: ${name}`
  const program = programOf(environment)
  if (program === null)
    return {
      level: 'warning',
      what,
      text: `no agent program is set; put {"environments":{"${name}":{"harness_options":{"argv":["…"]}}}} into ${dataDir}/hangar.config.json`,
    }
  if (environment.provider !== 'local')
    return { level: 'ok', what, text: `${program}, looked for in the image ${environment.image} when a turn starts` }
  const file = findProgram(environment)
  if (file === null)
    return {
      level: 'missing',
      what,
      text: `${program} is not found; install it, or name its directory in environments.${name}.path`,
    }
  if (harness === 'command') return { level: 'ok', what, text: file }
  const run = spawnSync(file, ['--version'], {
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...environment.env, PATH: [...environment.path, ...SANDBOX_PATH].join(':'), HOME: tmpdir() },
    input: '',
  })
  const version = /\d+\.\d+\.\d+\S*/.exec(`${run.stdout}${run.stderr}`)?.[0] ?? null
  if (run.status !== 0 || version === null)
    return { level: 'missing', what, text: `${program} --version failed: ${run.stderr.trim().slice(0, 300)}` }
  const tested = TESTED_VERSIONS[harness]
  if (tested === null) return { level: 'warning', what, text: `${program} ${version}; no version of it was ever tried` }
  if (tested === version) return { level: 'ok', what, text: `${program} ${version}` }
  return { level: 'warning', what, text: `${program} ${version}; hangar was tried with ${tested}` }
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

/** Of each environment of the server with an egress list, whether its sandboxes are really kept to it. */
async function egressFindings(context: ReturnType<typeof createContext>): Promise<Finding[]> {
  const server = context.server()
  try {
    const { items } = await callJson<Listed<WireEnvironment>>(server, { path: '/api/environments' })
    const findings: Finding[] = []
    for (const { name, egress } of items) {
      if (egress === null) continue
      context.output.say(`asking a sandbox of environment ${name} what it reaches …`)
      const path = `/api/environments/${encodeURIComponent(name)}/check`
      const check = await callJson<WireEnvironmentCheck>(server, { method: 'POST', path, body: {} }).catch(reasonOf)
      findings.push({ what: `egress: ${name}`, ...judge(check) })
    }
    return findings
  } catch (error) {
    return [{ level: 'warning', what: 'egress', text: `not tried: ${reasonOf(error)}` }]
  }
}

function judge(check: WireEnvironmentCheck | string): Pick<Finding, 'level' | 'text'> {
  if (typeof check === 'string') return { level: 'missing', text: `no sandbox could be asked: ${check}` }
  const { gateway, denied } = check
  const tried = [...new Set(denied.map(({ address }) => address))].join(', ')
  const through = denied.find(({ outcome }) => outcome === 'reached')
  if (through !== undefined)
    return {
      level: 'missing',
      text: `not kept: a sandbox reached ${through.address}, which is not in its list; in a cluster this needs a network plugin that enforces NetworkPolicies`,
    }
  if (gateway.outcome !== 'reached')
    return {
      level: 'missing',
      text: `a sandbox does not reach the gateway at ${gateway.address}: ${gateway.words || 'no answer'}`,
    }
  const unsure = denied.find(({ outcome }) => outcome === 'unknown')
  if (unsure !== undefined)
    return { level: 'warning', text: `whether ${unsure.address} is refused cannot be said: ${unsure.words}` }
  if (denied.length === 0) return { level: 'warning', text: 'the gateway is reached; there was nothing else to try' }
  return { level: 'ok', text: `a sandbox reaches the gateway, and is refused ${tried}` }
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
