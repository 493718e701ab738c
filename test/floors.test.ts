/** The floors of the house and the table of who may import which package, held against every import there is. */
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))

/** From the top down: a folder imports from itself and from those below it. */
const FLOORS = ['cli', 'surfaces', 'hooks', 'orchestrator', 'exchange', 'gateway', 'refs-policy', 'domain']

/** The only files that may import a package; a name that ends in `/` is a folder. */
const PACKAGES: Readonly<Record<string, readonly string[]>> = {
  'node-git-server': ['gateway/http/hangar-git.ts'],
  'isomorphic-git': ['gateway/git/'],
  level: ['gateway/state/index.ts'],
  openpgp: ['gateway/state/seal.ts', 'gateway/state/sign.ts', 'gateway/state/key-file.ts'],
  ajv: ['domain/schema.ts', 'exchange/result-schema.ts'],
  'ajv-formats': ['exchange/result-schema.ts'],
  '@sinclair/typebox': ['domain/', 'surfaces/', 'orchestrator/harnesses/', 'orchestrator/repo-environment.ts'],
  '@modelcontextprotocol/sdk': ['surfaces/mcp/'],
  express: ['surfaces/', 'hooks/', 'gateway/http/'],
  '@octokit/app': ['gateway/upstream/github.ts'],
  '@kubernetes/client-node': ['orchestrator/providers/kubernetes.ts'],
  'tar-stream': [
    'exchange/io-prepare.ts',
    'exchange/io-collect.ts',
    'exchange/conversation-state.ts',
    'orchestrator/providers/docker-container.ts',
    'orchestrator/providers/kubernetes-install.ts',
  ],
  commander: ['cli/'],
  'prom-client': ['surfaces/metrics.ts'],
  pino: ['cli/commands/serve.ts'],
}

/** What client commands may load of the server's floors: git's runner and what that needs, and nothing else. */
const CLIENT_MAY_LOAD = ['cli/', 'gateway/git/process.ts', 'domain/errors.ts', 'domain/limits.ts']

interface Import {
  readonly from: string
  readonly to: string
  readonly lazy: boolean
  readonly typeOnly: boolean
}

const sources = ['agent-helper', 'bench', ...FLOORS].flatMap(sourceFiles)
const imports = [...sources, ...sourceFiles('test')].flatMap(importsOf)

t.test('imports go only down', async (t) => {
  const up = imports.filter(({ from, to }) => isFloor(from) && isFloor(to) && floorOf(to) < floorOf(from))
  t.strictSame(up.map(show), [])
})

t.test('no folder has a cycle inside', async (t) => {
  const graph = new Map<string, string[]>()
  for (const { from, to, typeOnly } of imports)
    if (!typeOnly && from.split('/')[0] === to.split('/')[0]) graph.set(from, [...(graph.get(from) ?? []), to])
  t.strictSame(
    [...graph.keys()].map((file) => cycleFrom(file, graph)).filter((cycle) => cycle !== null),
    [],
  )
})

t.test('a package is imported only where the table says', async (t) => {
  const outside = imports.filter(
    ({ from, to }) =>
      !to.startsWith('.') &&
      !isFile(to) &&
      !to.startsWith('node:') &&
      !from.startsWith('test/') &&
      !from.startsWith('bench/'),
  )
  const wrong = outside.filter(
    ({ from, to }) =>
      !(PACKAGES[packageOf(to)] ?? []).some(
        (place) => from === place || (place.endsWith('/') && from.startsWith(place)),
      ),
  )
  t.strictSame(wrong.map(show), [])
  const used = new Set(outside.map(({ to }) => packageOf(to)))
  t.strictSame(
    Object.keys(PACKAGES).filter((name) => !used.has(name)),
    [],
    'every package of the table is used',
  )
})

t.test('git is started in one place, and the environment is read in few', async (t) => {
  const text = (file: string) => readFileSync(join(ROOT, file), 'utf8')
  const production = sources.filter((file) => !file.startsWith('bench/'))
  t.strictSame(production.filter((file) => /spawn(Sync)?\(\s*'git'/.test(text(file))).sort(), [
    'cli/checkout.ts',
    'cli/commands/doctor.ts',
    'cli/demo.ts',
  ])
  // There its name stands apart: a small process may start it, on that file's orders alone.
  t.match(text('gateway/git/process.ts'), /\['git', args\]/)
  t.strictSame(
    imports
      .filter(({ from, to }) => to === 'gateway/git/starter.ts' && !from.startsWith('test/'))
      .map(({ from }) => from)
      .sort(),
    ['gateway/git/process.ts', 'gateway/git/process.ts', 'gateway/git/starter-process.ts'],
  )
  t.strictSame(production.filter((file) => /process\.env/.test(text(file)) && !file.startsWith('cli/')).sort(), [
    'gateway/git/process.ts',
    'orchestrator/providers/local-isolation.ts',
  ])
})

t.test('the client commands load none of the server', async (t) => {
  const loaded = new Set<string>()
  const visit = (file: string) => {
    if (loaded.has(file)) return
    loaded.add(file)
    for (const { to, lazy, typeOnly } of imports.filter(({ from }) => from === file)) {
      if (lazy || typeOnly) continue
      if (isFile(to)) visit(to)
      else loaded.add(to)
    }
  }
  visit('cli/main.ts')
  const foreign = [...loaded].filter(
    (file) =>
      !file.startsWith('node:') &&
      file !== 'commander' &&
      !CLIENT_MAY_LOAD.some((place) => file === place || (place.endsWith('/') && file.startsWith(place))),
  )
  t.strictSame(foreign, [])
})

function sourceFiles(folder: string): string[] {
  let names: string[]
  try {
    names = readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
  } catch {
    return []
  }
  return names.filter((name) => name.endsWith('.ts')).map((name) => join(folder, name))
}

function importsOf(from: string): Import[] {
  const text = readFileSync(join(ROOT, from), 'utf8')
  const found: Import[] = []
  for (const match of text.matchAll(/^(?:import|export) (type )?(?:[^'"]*? from )?'([^']+)'/gms))
    found.push({ from, to: resolve(from, match[2] ?? ''), lazy: false, typeOnly: match[1] !== undefined })
  for (const match of text.matchAll(/\bimport\('([^']+)'\)/g))
    found.push({ from, to: resolve(from, match[1] ?? ''), lazy: true, typeOnly: false })
  return found
}

function resolve(from: string, to: string): string {
  return to.startsWith('.') ? relative(ROOT, join(ROOT, dirname(from), to)) : to
}

function isFile(to: string): boolean {
  return to.endsWith('.ts')
}

function isFloor(file: string): boolean {
  return FLOORS.includes(file.split('/')[0] ?? '')
}

function floorOf(file: string): number {
  return FLOORS.indexOf(file.split('/')[0] ?? '')
}

function packageOf(name: string): string {
  return name
    .split('/')
    .slice(0, name.startsWith('@') ? 2 : 1)
    .join('/')
}

function show({ from, to }: Import): string {
  return `${from} imports ${to}`
}

function cycleFrom(start: string, graph: ReadonlyMap<string, readonly string[]>): string | null {
  const walk = (file: string, way: readonly string[]): string | null => {
    for (const next of graph.get(file) ?? []) {
      if (next === start) return [...way, next].join(' → ')
      if (way.includes(next)) continue
      const found = walk(next, [...way, next])
      if (found !== null) return found
    }
    return null
  }
  return walk(start, [start])
}
