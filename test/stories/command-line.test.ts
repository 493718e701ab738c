/** What the command line hands in, saves and bears: every option of a message arrives, artifacts harm nothing, a server may go away and come back. */
import { spawn } from 'node:child_process'
import { existsSync, lstatSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { saveFile } from '../../cli/save-file.ts'
import { freePort, serve } from './served.ts'
import { api, MAIN, run, serverEnvironment, shell, startHangar, temporaryDirectory, waitUntil } from './support.ts'

const OBEDIENT = 'read -r line; eval "$line"'
const KEEP = 'cp -r $HANGAR_IO/in/$HANGAR_TURN/. $HANGAR_IO/out/artifacts/'

t.test('with one server', async (t) => {
  const hangar = await startHangar(t, { agent: OBEDIENT, settings: { HANGAR_EXCHANGE_MAX_PATCH_MB: '0.01' } })
  const { dir } = hangar
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(dir, 'git init -q -b main seed; cd seed; echo one >a.txt; git add .; git commit -q -m base')
  const seed = join(dir, 'seed')
  await hangar.git(seed, ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
  const base = (await shell(seed, 'git rev-parse HEAD')).trim()

  await t.test('files, texts, URLs, patches, a schema and a budget come with a message', async (t) => {
    await shell(
      dir,
      `mkdir one two; printf 'first' >one/trace.txt; printf '\\000\\377' >two/trace.txt
       echo '{"type":"object"}' >schema.json
       cd seed; echo patched >>a.txt; git diff >../a.patch; git checkout -q a.txt; echo new >new.txt; git add new.txt; git diff --cached >../b.patch; git reset -q --hard`,
    )
    const options = [
      ...[
        '--file',
        'one/trace.txt',
        '--file',
        'two/trace.txt',
        '--file',
        '-',
        '--text',
        'a text',
        '--url',
        'https://x.example/1',
      ],
      ...[
        '--patch',
        'a.patch',
        '--patch',
        'b.patch',
        '--schema',
        'schema.json',
        '--max-minutes',
        '7',
        '--max-tokens',
        '8',
        '--max-cost',
        '0.5',
      ],
    ]
    const message = `${KEEP}; cp $HANGAR_PROMPT_FILE $HANGAR_IO/out/artifacts/prompt; hangar-agent result '{"ok":1}'`
    const made = await hangar.cli(['session', 'new', 'all', message, '--repo', 'acme/app', ...options, '-w'], {
      cwd: dir,
      input: 'from stdin',
    })
    t.equal(made.status, 0, made.err)
    t.match(made.out, /"ok": 1/)
    const get = async (path: string) => (await hangar.cli(['session', 'artifacts', 'all', '--get', path])).bytes
    t.equal((await get('trace.txt')).toString(), 'first')
    t.strictSame([...(await get('trace-2.txt'))], [0, 255], 'two files of one name both arrive')
    t.equal((await get('stdin.txt')).toString(), 'from stdin')
    t.equal((await get('text.txt')).toString(), 'a text')
    t.match((await get('prompt')).toString(), /https:\/\/x\.example\/1/)
    t.match((await hangar.cli(['session', 'patch', 'all'])).out, /\+patched[\s\S]*\+new/)
    t.match((await hangar.api('GET', '/api/sessions/all')).body.budget, {
      max_minutes: 7,
      max_tokens: 8,
      max_cost_usd: 0.5,
    })
  })

  await t.test('a bundle brings commits that plain git packed', async (t) => {
    await shell(
      seed,
      'git switch -q -c side; echo two >>a.txt; git commit -q -a -m side; git bundle create -q ../side.bundle main..side; git switch -q main',
    )
    const made = await hangar.cli(
      [
        'session',
        'new',
        'bundled',
        'git log -1 --format=%s',
        '--repo',
        'acme/app',
        '--bundle',
        'side.bundle',
        '--base',
        base,
        '-w',
      ],
      { cwd: dir },
    )
    t.match(made, { status: 0, err: /side/ })
    t.match((await hangar.cli(['session', 'patch', 'bundled'])).out, /\+two/)
  })

  await t.test('a patch beyond the cap names pull, which has none', async (t) => {
    await hangar.cli(['session', 'send', 'bundled', 'head -c 30000 /dev/urandom | base64 >big.txt', '-w'])
    t.match(await hangar.cli(['session', 'patch', 'bundled']), {
      status: 2,
      err: /more than [\d.]+ bytes; .*hangar session pull/,
    })
  })

  await t.test('artifacts of an older turn, and all of them in a directory', async (t) => {
    const write = (text: string) =>
      `mkdir -p $HANGAR_IO/out/artifacts/sub; echo ${text} >$HANGAR_IO/out/artifacts/sub/x; chmod +x $HANGAR_IO/out/artifacts/sub/x`
    await hangar.cli([
      'session',
      'new',
      'saves',
      `${write('1')}; echo same >$HANGAR_IO/out/artifacts/same`,
      '--repo',
      'acme/app',
      '-w',
    ])
    await hangar.cli(['session', 'send', 'saves', write('2'), '-w'])
    const artifacts = (...options: string[]) => hangar.cli(['session', 'artifacts', 'saves', ...options], { cwd: dir })
    t.equal((await artifacts('--get', 'sub/x')).out, '2\n')
    t.equal((await artifacts('--get', 'sub/x', '--turn', '1')).out, '1\n')
    t.equal((await artifacts('--get', 'same', '--turn', '2')).out, 'same\n', 'unchanged since turn 1')
    t.equal((await artifacts('--all', 'out')).status, 0)
    t.equal(readFileSync(join(dir, 'out', 'sub', 'x'), 'utf8'), '2\n')
    t.equal(lstatSync(join(dir, 'out', 'sub', 'x')).mode & 0o111, 0, 'nothing that was saved can be executed')
    t.equal((await artifacts('--all', 'out')).status, 0, 'again, as nothing differs')
    const other = await artifacts('--all', 'out', '--turn', '1')
    t.match(other, { status: 5, err: /out\/sub\/x is there with another content; .*--force/ })
    t.equal((await artifacts('--all', 'out', '--turn', '1', '--force')).status, 0)
    t.equal(readFileSync(join(dir, 'out', 'sub', 'x'), 'utf8'), '1\n')
    mkdirSync(join(dir, 'elsewhere'))
    mkdirSync(join(dir, 'linked'))
    symlinkSync('../elsewhere', join(dir, 'linked', 'sub'))
    t.match(await artifacts('--all', 'linked', '--force'), { status: 5, err: /symbolic link/ })
    t.notOk(existsSync(join(dir, 'elsewhere', 'x')))
  })
})

t.test('what an agent handed back is saved below its directory, or not at all', async (t) => {
  const root = temporaryDirectory(t)
  const save = (path: string, force = true) => saveFile(join(root, 'to'), path, Buffer.from('new'), { force })
  for (const path of ['', '..', '../x', 'a/../../x', '/etc/x', 'a//b', './a', 'a\\b', 'a\0b'])
    t.throws(() => save(path), JSON.stringify(path))
  for (const path of ['.git/config', 'sub/.GIT/hooks/x', 'git~1/config', '.git . /x'])
    t.throws(() => save(path), JSON.stringify(path))
  writeFileSync(join(root, 'outside'), 'old')
  mkdirSync(join(root, 'to'), { recursive: true })
  symlinkSync('../outside', join(root, 'to', 'link'))
  t.throws(() => save('link'), /no plain file/)
  mkdirSync(join(root, 'to', 'directory'))
  t.throws(() => save('directory'), /no plain file/)
  writeFileSync(join(root, 'to', 'file'), 'old')
  t.throws(() => save('file/below'), /no directory/)
  t.throws(() => save('file', false), /--force/)
  t.equal(readFileSync(join(root, 'outside'), 'utf8'), 'old')
  t.equal(save('file'), true)
  t.equal(save('file', false), false, 'the same content again is nothing to do')
})

t.test('what waits or follows outlives a server that is killed', { timeout: 600_000 }, async (story) => {
  const t = story
  const dir = temporaryDirectory(t)
  const env = serverEnvironment(dir, {
    agent: 'for i in $(seq 1 40); do echo "line $i."; sleep 0.3; done; hangar-agent done finished',
    settings: { HANGAR_LISTEN: `127.0.0.1:${await freePort()}` },
  })
  const served = await serve(story, dir, env)
  const call = (method: string, path: string, body?: unknown) => api(served.url, served.token, { method, path, body })
  await call('POST', '/api/repos', { slug: 'acme/app' })
  await shell(dir, 'git init -q -b main seed; cd seed; echo one >a.txt; git add .; git commit -q -m base')
  const header = `http.${served.url}/.extraHeader=Authorization: Bearer ${served.token}`
  await run('git', ['-c', header, 'push', '-q', `${served.url}/git/acme/app.git`, 'main'], { cwd: join(dir, 'seed') })

  const waiting = start(t, ['session', 'new', 'long', 'go', '--repo', 'acme/app', '-w'], env)
  await waitUntil('the agent is seen', () => waiting.err().includes('line 2.'))
  const following = start(t, ['session', 'events', 'long', '-f', '--json'], env)
  await waitUntil('its events are followed', () => following.out().includes('line 3.'))
  await served.kill()
  await waitUntil('both say so', () => [waiting, following].every((one) => one.err().includes('trying again')))
  const impatient = run(process.execPath, [MAIN, 'session', 'wait', 'long'], { env })
  t.match(
    await impatient,
    { status: 4, err: /no answer from .*hangar serve/ },
    'who begins without a server fails at once',
  )
  const again = await serve(story, dir, env)
  const short = start(t, ['session', 'wait', 'long', '--timeout', '2'], env)
  t.equal(await short.ended, 124)
  const bounded = start(t, ['session', 'events', 'long', '-f'], { ...env, HANGAR_RECONNECT_SECONDS: '1' })
  await waitUntil('it follows', () => bounded.out().includes('line 1.'))
  t.equal(await waiting.ended, 0, waiting.err())
  t.match(waiting.out(), /^finished\n/)
  const lines = Array.from({ length: 40 }, (_, at) => `line ${at + 1}.`)
  t.strictSame(waiting.err().match(/line \d+\./g), lines, 'each line once, in order')
  await waitUntil('the end is followed', () => following.out().includes('"ended"'))
  t.strictSame(following.out().match(/line \d+\./g), lines)
  await again.kill()
  t.equal(await bounded.ended, 4)
  t.match(
    bounded.err(),
    /no answer from .*, for \d+ seconds now; start it with: hangar serve, then go on with: hangar session events long -f/,
  )
})

interface Started {
  readonly ended: Promise<number | null>
  out(): string
  err(): string
}

/** The CLI as a process that is looked at while it runs, and ended at the end. */
function start(t: Test, args: readonly string[], env: Readonly<Record<string, string>>): Started {
  const child = spawn(process.execPath, [MAIN, ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  let out = ''
  let err = ''
  child.stdout.on('data', (chunk: Buffer) => {
    out += chunk.toString()
  })
  child.stderr.on('data', (chunk: Buffer) => {
    err += chunk.toString()
  })
  const ended = new Promise<number | null>((resolve) => child.once('close', (status) => resolve(status)))
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
  })
  return { ended, out: () => out, err: () => err }
}
