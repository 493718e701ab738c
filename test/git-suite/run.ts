/**
 * Runs git's own test scripts for smart HTTP against the gateway: `npm run test:git-suite`, or with names of scripts. The scripts come from a
 * checkout of git named by HANGAR_GIT_SOURCE, else from Debian's source package, and are never part of this repository. What does not
 * pass must stand in known.json with its reason; all else is told, and fails the run. `--keep --verbose` keeps what the scripts said.
 */
import { spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const SCRIPTS = [
  't5539-fetch-http-shallow',
  't5541-http-push-smart',
  't5542-push-http-shallow',
  't5545-push-options',
  't5549-fetch-push-http',
  't5551-http-fetch-smart',
  't5581-http-curl-verbose',
  't5700-protocol-v1',
  't5702-protocol-v2',
]
const SCRIPT_MS = 10 * 60_000

interface Known {
  /** Why these fail, or do not count here. */
  readonly reason: string
  /** Script to the titles of its tests, in full. */
  readonly tests: Readonly<Record<string, readonly string[]>>
}

interface Outcome {
  readonly passed: number
  readonly failed: readonly string[]
  readonly skipped: number
  readonly finished: boolean
}

const here = fileURLToPath(new URL('../../../test/git-suite', import.meta.url))
const known = JSON.parse(readFileSync(join(here, 'known.json'), 'utf8')) as readonly Known[]
const asked = process.argv.slice(2).filter((word) => !word.startsWith('--'))
const work = mkdtempSync(join(tmpdir(), 'hangar-git-suite-'))
try {
  process.exitCode = await main()
} finally {
  if (!process.argv.includes('--keep')) rmSync(work, { recursive: true, force: true, maxRetries: 5 })
  else console.log(`kept: ${work}`)
}

async function main(): Promise<number> {
  const source = findSource()
  if (source === null) {
    console.log(
      'no scripts: name a checkout of git in HANGAR_GIT_SOURCE, or run where apt-get can fetch source packages',
    )
    return 2
  }
  const tests = layOut(source)
  let unexpected = 0
  console.log('script                       passed  known  skipped  unexpected')
  for (const script of SCRIPTS) {
    if (asked.length > 0 && !asked.some((word) => script.startsWith(word))) continue
    const { passed, failed, skipped, finished } = await runScript(tests, script)
    const expected = new Set(known.flatMap((group) => group.tests[script] ?? []))
    const surprises = failed.filter((title) => !expected.has(title))
    if (!finished) surprises.push('(the script did not come to its end)')
    unexpected += surprises.length
    const show = (value: number, width: number) => String(value).padStart(width)
    console.log(
      `${script.padEnd(28)}${show(passed, 7)}${show(failed.length - surprises.filter((title) => failed.includes(title)).length, 7)}${show(skipped, 9)}${show(surprises.length, 12)}`,
    )
    for (const title of surprises) console.log(`    unexpected: ${title}`)
    for (const title of expected)
      if (!failed.includes(title)) console.log(`    passes now, take it out of known.json: ${title}`)
  }
  return unexpected === 0 ? 0 : 1
}

/** The directory of a checkout, or of an unpacked source package; null when neither is to be had. */
function findSource(): string | null {
  const named = process.env['HANGAR_GIT_SOURCE']
  if (named !== undefined) return existsSync(join(named, 't', 'test-lib.sh')) ? named : null
  const dir = join(work, 'source')
  const parts = join(dir, 'parts')
  mkdirSync(parts, { recursive: true })
  mkdirSync(join(dir, 'lists', 'partial'), { recursive: true })
  // The same places as for binary packages, asked for their sources; nothing of the machine's own settings changes.
  for (const list of ['/etc/apt/sources.list', ...filesIn('/etc/apt/sources.list.d')]) {
    if (!existsSync(list)) continue
    const text = readFileSync(list, 'utf8')
      .replace(/^Types: deb$/gm, 'Types: deb-src')
      .replace(/^deb /gm, 'deb-src ')
    writeFileSync(join(parts, list.endsWith('.sources') ? 'suite.sources' : 'suite.list'), text)
  }
  const apt = (...args: string[]) =>
    spawnSync(
      'apt-get',
      [
        ...['-q', '-o', 'Dir::Etc::sourcelist=/dev/null', '-o', `Dir::Etc::sourceparts=${parts}`],
        ...['-o', `Dir::State::lists=${join(dir, 'lists')}`, ...args],
      ],
      { cwd: dir, stdio: ['ignore', 'ignore', 'ignore'], timeout: 5 * 60_000 },
    ).status === 0
  if (!apt('update') || !apt('source', '--download-only', 'git')) return null
  const archive = readdirSync(dir).find((name) => /^git_.*\.orig\.tar\.\w+$/.test(name))
  if (archive === undefined || spawnSync('tar', ['-xf', archive], { cwd: dir }).status !== 0) return null
  const unpacked = readdirSync(dir).find((name) => existsSync(join(dir, name, 't', 'test-lib.sh')))
  if (unpacked === undefined) return null
  const patches = readdirSync(dir).find((name) => /\.debian\.tar\.\w+$/.test(name))
  if (patches !== undefined) applyPatches(join(dir, unpacked), join(dir, patches))
  return join(dir, unpacked)
}

/** Debian's git is not the original: its changes come with changes of the tests. */
function applyPatches(source: string, archive: string): void {
  if (spawnSync('tar', ['-xf', archive], { cwd: source }).status !== 0) return
  const series = readFileSync(join(source, 'debian', 'patches', 'series'), 'utf8').split('\n')
  for (const name of series.filter((line) => line !== '' && !line.startsWith('#')))
    spawnSync('git', ['apply', '-p1', '--include=t/*', join('debian', 'patches', name)], { cwd: source })
}

function filesIn(dir: string): string[] {
  return existsSync(dir) ? readdirSync(dir).map((name) => join(dir, name)) : []
}

/** A build tree as the scripts look for one, with the installed git in it, our server for Apache's place, and a stand-in for test-tool. */
function layOut(source: string): string {
  const root = join(work, 'build')
  const tests = join(root, 't')
  cpSync(join(source, 't'), tests, { recursive: true })
  cpSync(join(source, 'mergetools'), join(root, 'mergetools'), { recursive: true })
  const httpd = readFileSync(join(source, 't', 'lib-httpd.sh'), 'utf8')
  // What tests, and does not serve, is the suite's own.
  const shared = httpd.slice(httpd.indexOf('test_http_push_nonff'))
  writeFileSync(join(tests, 'lib-httpd.sh'), `${readFileSync(join(here, 'lib-httpd.sh'), 'utf8')}\n${shared}`)
  mkdirSync(join(root, 'templates', 'blt', 'hooks'), { recursive: true })
  mkdirSync(join(tests, 'helper'), { recursive: true })
  copyFileSync(join(here, 'test-tool.sh'), join(tests, 'helper', 'test-tool'))
  chmodSync(join(tests, 'helper', 'test-tool'), 0o755)
  const options = {
    SHELL_PATH: '/bin/sh',
    PERL_PATH: '/usr/bin/perl',
    PYTHON_PATH: '/usr/bin/python3',
    DIFF: 'diff',
    TAR: 'tar',
    NO_CURL: '',
    NO_EXPAT: '',
    NO_PERL: '',
    NO_PTHREADS: '',
    NO_PYTHON: '',
    NO_UNIX_SOCKETS: '',
    NO_GETTEXT: 'YesPlease',
    USE_LIBPCRE2: 'YesPlease',
    PAGER_ENV: 'LESS=FRX LV=-c',
    X: '',
  }
  const lines = Object.entries(options).map(([name, value]) => `${name}='${value}'`)
  writeFileSync(join(root, 'GIT-BUILD-OPTIONS'), `${lines.join('\n')}\n`)
  return tests
}

function runScript(tests: string, script: string): Promise<Outcome> {
  const env = {
    PATH: process.env['PATH'] ?? '/usr/bin:/bin',
    HOME: work,
    LANG: 'C',
    GIT_TEST_INSTALLED: dirname(spawnSync('sh', ['-c', 'command -v git'], { encoding: 'utf8' }).stdout.trim()),
    GIT_TEST_DEFAULT_HASH: 'sha1',
    GIT_TEST_BUILTIN_HASH: 'sha1',
    GIT_TEST_DEFAULT_REF_FORMAT: 'files',
    HANGAR_NODE: process.execPath,
    HANGAR_SUITE_SERVER: fileURLToPath(new URL('server.js', import.meta.url)),
  }
  return new Promise((resolve) => {
    const verbose = process.argv.includes('--verbose') ? ['-v'] : []
    const child = spawn('sh', [`./${script}.sh`, ...verbose], {
      cwd: tests,
      env,
      stdio: ['ignore', 'pipe', 'ignore'],
      detached: true,
    })
    let said = ''
    child.stdout.on('data', (chunk: Buffer) => {
      said += chunk.toString('latin1')
    })
    const late = setTimeout(() => process.kill(-(child.pid ?? 0), 'SIGKILL'), SCRIPT_MS)
    child.once('close', () => {
      clearTimeout(late)
      if (verbose.length > 0) writeFileSync(join(work, `${script}.log`), said)
      const lines = said.split('\n')
      const failed = lines.flatMap((line) => {
        const found = /^not ok \d+ - (.*?)(?: # TODO .*)?$/.exec(line)
        return found === null || line.includes('# TODO known breakage') ? [] : [found[1] ?? '']
      })
      const oks = lines.filter((line) => /^ok \d+/.test(line))
      const skipped = oks.filter((line) => / # skip /.test(line)).length
      resolve({ passed: oks.length - skipped, failed, skipped, finished: lines.some((line) => /^1\.\.\d+/.test(line)) })
    })
  })
}
