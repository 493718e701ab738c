/** The demo: a person's half-finished work goes to a scripted agent and comes home by patch, artifact, fetch and pull; every entry is compared. */
import { spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { EXIT, Failure } from './failure.ts'

const MAIN = fileURLToPath(new URL('./main.js', import.meta.url))
const PROJECT = fileURLToPath(new URL('../../', import.meta.url))
const NAME = 'demo'

/** What the agent does: any program is one; this reads its prompt and works with sh, git and hangar-agent. */
const AGENT = `#!/bin/sh
set -e
echo "I was told: $(head -n 1)"
hangar-agent progress --pct 10 "looking around"
git log --oneline -1
git status --short
hangar-agent progress --pct 40 "finishing the work"
printf 'finished by the agent\\n' >>HANDED.md
git add HANDED.md staged.txt
git commit -q -m "Finish what was handed over"
printf 'not committed yet\\n' >>notes.txt
printf '\\000\\001\\377' >agent.bin
ln -s HANDED.md agent-link
mkdir -p report
printf '<h1>Coverage: 100 %%</h1>\\n' >report/coverage.html
hangar-agent progress --pct 90 "handing back"
hangar-agent artifact report/coverage.html coverage.html
rm -r report
printf '{"files_changed": 4, "from_attachment": "%s"}' "$(cat "$HANGAR_IO/in/$HANGAR_TURN/text.txt")" | hangar-agent result -
hangar-agent done "Finished HANDED.md, left notes.txt for you to look at."
`

interface Demo {
  readonly dir: string
  readonly clone: string
  readonly env: NodeJS.ProcessEnv
  readonly port: number
}

/** Runs the whole demo; throws a Failure when anything differs. */
export async function runDemo({ keep }: { readonly keep: boolean }): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-demo-'))
  const demo: Demo = { dir, clone: join(dir, 'clone'), port: await freePort(), env: environment(dir) }
  const started = Date.now()
  const step = createSteps()
  let server: Server | null = null
  try {
    step('clone a real repository, and half-finish some work in it')
    makeClone(demo)
    makeHalfFinishedWork(demo.clone)
    say(indent(git(demo.clone, ['status', '--short', '--branch'])))

    step('start a server with a scripted agent, on a free port and a temporary data directory')
    server = await startServer(demo)

    step('hangar session new --from-local: the unpushed commit and the uncommitted changes go to the agent')
    const handed = treeOf(demo.clone)
    hangar(
      demo,
      ['session', 'new', NAME, 'finish this', '--from-local', '--create-repo', '--text', 'a wish from the user', '-w'],
      { show: true },
    )

    step('what the session says')
    say(indent(hangar(demo, ['session', 'show', NAME])))

    step('hangar session patch: the whole change, applied on a fresh clone of the base')
    checkPatch(demo)

    step('hangar session artifacts')
    say(indent(hangar(demo, ['session', 'artifacts', NAME])))
    expect(
      hangar(demo, ['session', 'artifacts', NAME, '--get', 'coverage.html']).includes('100 %'),
      'the artifact came back whole',
    )

    step('git fetch: the commits, by plain git')
    const { url, token } = JSON.parse(readFileSync(join(demo.dir, 'config', 'hangar', 'cli.json'), 'utf8')) as {
      url: string
      token: string
    }
    git(demo.clone, [
      '-c',
      `http.${url}/.extraHeader=Authorization: Bearer ${token}`,
      'fetch',
      '-q',
      `${url}/git/local/clone.git`,
      `hangar/${NAME}`,
    ])
    say(indent(git(demo.clone, ['log', '--oneline', '-3', 'FETCH_HEAD'])))

    step('hangar session pull --checkout: commits and uncommitted changes, into the clone')
    hangar(demo, ['session', 'pull', NAME, '--checkout'], { show: true })
    say(indent(git(demo.clone, ['status', '--short', '--branch'])))

    step("compare the clone with the agent's sandbox, entry by entry")
    compare(sandboxRepo(demo), demo.clone, handed)
    say(`\nThe work came home exact, in ${((Date.now() - started) / 1000).toFixed(1)} s. What to try next:`)
    say('  hangar serve                                        run a server of your own')
    say('  hangar doctor                                       see what it would isolate agents with')
    say('  hangar session new NAME "…" --from-local -w         hand over what you are working on')
    say('README.md tells how to set the agent that it runs.')
  } finally {
    await server?.stop()
    if (keep) say(`kept: ${dir}`)
    else rmSync(dir, { recursive: true, force: true })
  }
}

function environment(dir: string): NodeJS.ProcessEnv {
  const { PATH, LANG, TERM } = process.env
  return {
    PATH,
    LANG,
    TERM,
    HOME: join(dir, 'home'),
    XDG_CONFIG_HOME: join(dir, 'config'),
    HANGAR_DATA: join(dir, 'data'),
    HANGAR_LOG: 'warn',
    NO_COLOR: '1',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_AUTHOR_NAME: 'A Developer',
    GIT_AUTHOR_EMAIL: 'dev@example.com',
    GIT_COMMITTER_NAME: 'A Developer',
    GIT_COMMITTER_EMAIL: 'dev@example.com',
  }
}

/** This project's own history where there is one, else a small generated one. */
function makeClone({ dir, clone }: Demo): void {
  mkdirSync(join(dir, 'home'), { recursive: true })
  if (
    existsSync(join(PROJECT, '.git')) &&
    spawnSync('git', ['-C', PROJECT, 'rev-parse', '--verify', '-q', 'HEAD']).status === 0
  ) {
    git(dir, ['clone', '-q', '--no-hardlinks', `file://${PROJECT}`, clone])
    git(clone, ['checkout', '-q', '-B', 'main'])
  } else {
    git(dir, ['init', '-q', '-b', 'main', clone])
    mkdirSync(join(clone, 'src'))
    for (let file = 0; file < 50; file++)
      writeFileSync(join(clone, 'src', `file-${file}.txt`), `file ${file}\n`.repeat(file + 1))
    writeFileSync(join(clone, 'README.md'), '# A generated project\n')
    git(clone, ['add', '-A'])
    git(clone, ['commit', '-q', '-m', 'Begin'])
    git(clone, ['update-ref', 'refs/remotes/origin/main', 'HEAD'])
  }
}

/** An unpushed commit; a staged, an unstaged, an untracked and a deleted file; an executable, a symbolic link and a binary. */
function makeHalfFinishedWork(clone: string): void {
  git(clone, ['switch', '-q', '-c', 'feature'])
  writeFileSync(join(clone, 'HANDED.md'), 'begun by a person\n')
  writeFileSync(join(clone, 'gone.txt'), 'to be deleted\n')
  git(clone, ['add', 'HANDED.md', 'gone.txt'])
  git(clone, ['commit', '-q', '-m', 'Begin something that is pushed nowhere'])
  writeFileSync(join(clone, 'staged.txt'), 'staged\n')
  git(clone, ['add', 'staged.txt'])
  writeFileSync(join(clone, 'HANDED.md'), 'begun by a person\nand changed without staging\n')
  writeFileSync(join(clone, 'notes.txt'), 'untracked\n')
  rmSync(join(clone, 'gone.txt'))
  writeFileSync(join(clone, 'run.sh'), '#!/bin/sh\necho hello\n')
  chmodSync(join(clone, 'run.sh'), 0o755)
  symlinkSync('HANDED.md', join(clone, 'link'))
  writeFileSync(join(clone, 'data.bin'), Buffer.from(Array.from({ length: 512 }, (_, at) => at % 256)))
}

interface Server {
  stop(): Promise<void>
}

async function startServer({ dir, env, port }: Demo): Promise<Server> {
  const agent = join(dir, 'agent.sh')
  writeFileSync(agent, AGENT)
  mkdirSync(join(dir, 'data'), { recursive: true })
  const config = join(dir, 'hangar.config.json')
  writeFileSync(
    config,
    JSON.stringify({
      listen: `127.0.0.1:${port}`,
      environments: { default: { harness_options: { argv: ['sh', agent] } } },
    }),
  )
  const child = spawn(process.execPath, [MAIN, 'serve', '--config', config], {
    env,
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let said = ''
  let ready = () => {}
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text
    if (said.includes('hangar serves ')) ready()
  })
  await new Promise<void>((resolve, reject) => {
    ready = resolve
    child.once('exit', (code) => reject(new Failure(EXIT.unavailable, `the server ended with ${code}:\n${said}`)))
  })
  say(indent(said.trim()))
  return {
    stop: async () => {
      if (child.exitCode !== null) return
      // The session's sandbox goes with the data directory: end it first.
      spawnSync(process.execPath, [MAIN, 'session', 'close', NAME], { env })
      const ended = new Promise((resolve) => child.once('exit', resolve))
      child.kill('SIGTERM')
      await ended
    },
  }
}

/** The patch on a clone of the base gives the sandbox's working tree. */
function checkPatch(demo: Demo): void {
  const patch = join(demo.dir, 'demo.patch')
  writeFileSync(patch, hangarBytes(demo, ['session', 'patch', NAME]))
  const session = JSON.parse(hangar(demo, ['session', 'show', NAME, '--json'])) as { base_commit: string }
  const fresh = join(demo.dir, 'fresh')
  git(demo.dir, ['clone', '-q', '--no-checkout', demo.clone, fresh])
  git(fresh, ['checkout', '-q', '--detach', session.base_commit])
  git(fresh, ['apply', '--index', '--whitespace=nowarn', patch])
  say(indent(git(fresh, ['diff', '--cached', '--stat', '--summary'])))
  same(treeOf(sandboxRepo(demo)), treeOf(fresh), 'the patched clone and the sandbox')
}

function sandboxRepo({ dir }: Demo): string {
  const [sandbox = ''] = readdirSync(join(dir, 'data', 'sandboxes')).filter((name) => name.startsWith(`${NAME}-`))
  return join(dir, 'data', 'sandboxes', sandbox, 'home', 'repo')
}

function compare(sandbox: string, clone: string, handed: ReadonlyMap<string, string>): void {
  const there = treeOf(sandbox)
  same(there, treeOf(clone), "the sandbox's and the clone's working trees")
  const index = (repo: string) => git(repo, ['ls-files', '--stage'])
  expect(index(sandbox) === index(clone), 'the index is the same')
  expect(git(sandbox, ['rev-parse', 'HEAD']) === git(clone, ['rev-parse', 'HEAD']), 'HEAD is the same')
  expect(git(clone, ['branch', '--show-current']).trim() === `hangar/${NAME}`, `the clone is on hangar/${NAME}`)
  const kept = [...handed].filter(([path, entry]) => there.get(path) === entry).length
  say(`   ${there.size} entries are the same in content, mode and link; ${kept} of them as they were handed over`)
}

/** Every file of a work tree: path to kind, mode and content. */
function treeOf(dir: string): ReadonlyMap<string, string> {
  const files = new Map<string, string>()
  const walk = (at: string, prefix: string) => {
    for (const name of readdirSync(at)) {
      if (prefix === '' && name === '.git') continue
      const file = join(at, name)
      const stat = lstatSync(file)
      if (stat.isDirectory()) walk(file, `${prefix}${name}/`)
      else if (stat.isSymbolicLink()) files.set(prefix + name, `link ${readlinkSync(file)}`)
      else files.set(prefix + name, `file ${stat.mode & 0o100 ? 'x' : '-'} ${readFileSync(file).toString('base64')}`)
    }
  }
  walk(dir, '')
  return files
}

function same(one: ReadonlyMap<string, string>, other: ReadonlyMap<string, string>, what: string): void {
  const differing = [...new Set([...one.keys(), ...other.keys()])].filter((path) => one.get(path) !== other.get(path))
  expect(
    differing.length === 0,
    `${what} are the same${differing.length === 0 ? '' : `, but for ${differing.slice(0, 10).join(', ')}`}`,
  )
}

function expect(holds: boolean, what: string): void {
  if (!holds) throw new Failure(EXIT.turnFailed, `the demo failed: it should hold that ${what}`)
  say(`   ok: ${what}`)
}

function hangar(demo: Demo, args: readonly string[], options: { readonly show?: boolean } = {}): string {
  return hangarBytes(demo, args, options).toString('utf8')
}

function hangarBytes(
  { clone, env }: Demo,
  args: readonly string[],
  { show = false }: { readonly show?: boolean } = {},
): Buffer {
  const run = spawnSync(process.execPath, [MAIN, ...args], { cwd: clone, env, maxBuffer: 256 * 1_048_576 })
  const said = run.stderr.toString('utf8')
  if (show) say(indent(`${said}${run.stdout.toString('utf8')}`.trim()))
  if (run.status !== 0)
    throw new Failure(EXIT.turnFailed, `the demo failed: hangar ${args.join(' ')} ended with ${run.status}\n${said}`)
  return run.stdout
}

function git(cwd: string, args: readonly string[]): string {
  const env = { ...environment(dirname(cwd)), HOME: '/nonexistent', GIT_CONFIG_GLOBAL: '/dev/null' }
  const run = spawnSync('git', ['-c', 'safe.directory=*', '-c', 'core.autocrlf=false', ...args], {
    cwd,
    env,
    encoding: 'utf8',
    maxBuffer: 256 * 1_048_576,
  })
  if (run.status !== 0) throw new Failure(EXIT.turnFailed, `the demo failed: git ${args.join(' ')}: ${run.stderr}`)
  return run.stdout
}

/** Prints each step's title, and how long the last one took. */
function createSteps(): (title: string) => void {
  let number = 0
  let since = Date.now()
  return (title) => {
    if (number > 0) say(`   (${((Date.now() - since) / 1000).toFixed(1)} s)`)
    number++
    since = Date.now()
    say(`\n${number}. ${title}`)
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer()
    probe.once('error', reject)
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address()
      const port = typeof address === 'object' && address !== null ? address.port : 0
      probe.close(() => resolve(port))
    })
  })
}

function indent(text: string): string {
  return text
    .trimEnd()
    .split('\n')
    .map((line) => `   ${line}`)
    .join('\n')
}

function say(text: string): void {
  process.stdout.write(`${text}\n`)
}
