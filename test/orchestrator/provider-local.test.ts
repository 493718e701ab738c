import { spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { createLocalProvider } from '../../orchestrator/providers/local.ts'
import { bubblewrapWorks, canChangeUser, type Isolation } from '../../orchestrator/providers/local-isolation.ts'
import { openControlGroups } from '../../orchestrator/providers/local-limits.ts'
import { conformance, noneLeft, processesNaming, readToEnd, sandboxSpec, turn } from './provider-conformance.ts'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const base = mkdtempSync(join(tmpdir(), 'hangar-local-'))
chmodSync(base, 0o711)
// Somewhere that every user may read: the tree under test may not be.
const helperFile = join(base, 'hangar-agent')
cpSync(join(root, 'agent-helper', 'hangar-agent'), helperFile)
t.setTimeout(900_000)
t.teardown(() => rmSync(base, { recursive: true, force: true }))

const silent = { info() {}, warn() {}, error() {} }
const make = (isolation: Isolation, name = isolation as string) =>
  createLocalProvider({
    sandboxesDir: join(base, name),
    helperFile,
    clock: { now: () => Date.now() },
    log: silent,
    isolation,
  })
const missing: Record<Isolation, string | false> = {
  bubblewrap: !bubblewrapWorks(null) && 'bubblewrap does not work here',
  uid: !canChangeUser() && 'only root can change the user',
  none: false,
}

for (const isolation of ['bubblewrap', 'uid', 'none'] as const) {
  if (missing[isolation] !== false) t.test(isolation, { skip: missing[isolation] as string }, async () => {})
  else
    await conformance(t, `local, ${isolation}`, {
      provider: make(isolation),
      again: () => make(isolation),
      isolated: isolation !== 'none',
    })
}

const groups = openControlGroups()
for (const isolation of ['bubblewrap', 'none'] as const) {
  const kept = (['cpu', 'memoryMb', 'pids'] as const).filter((limit) => groups.kept.includes(limit))
  const skip = missing[isolation] || (kept.length < 3 && `only ${kept.join(', ') || 'nothing'} can be limited here`)
  t.test(`limits are kept by ${isolation}, for runs and for commands`, { skip }, async (t) => {
    const provider = make(isolation)
    const spec = sandboxSpec({ limits: { cpu: 0.5, memoryMb: 48, pids: 40 } })
    await provider.create(spec)
    await provider.start(ref(spec.id), turn('big-1', 'head -c 400000000 /dev/zero | tail | wc -c; exit 0'))
    t.match((await readToEnd(provider, spec.id, 'big-1')).process, { state: 'exited', exitCode: 0, oom: true })
    await provider.start(ref(spec.id), turn('small-1', 'exit 0'))
    t.notOk(
      'oom' in (await readToEnd(provider, spec.id, 'small-1')).process,
      'an earlier one is not blamed on the next',
    )

    // As after a boot of the host: the sandbox is there, its groups are not.
    const made = await groups.make(spec.id, spec.limits)
    await groups.remove(spec.id)
    t.notOk(
      made.some((group) => existsSync(group)),
      'they can go while nothing runs',
    )
    await provider.start(ref(spec.id), turn('big-2', 'head -c 400000000 /dev/zero | tail | wc -c; exit 0'))
    t.match((await readToEnd(provider, spec.id, 'big-2')).process, { state: 'exited', oom: true })
    const limits = await provider
      .exec(ref(spec.id), ['sh', '-c', 'i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done 2>&1; true'], {
        timeoutMs: 60_000,
        maxOutputBytes: 65_536,
      })
      .catch((error: Error) => ({ exitCode: null, out: Buffer.from(error.message), err: Buffer.alloc(0) }))
    t.match(
      `${limits.out}${limits.err}`,
      /[Cc]annot fork|Resource temporarily unavailable/,
      'the 40th process is refused',
    )

    await provider.destroy(ref(spec.id))
    t.notOk(
      made.some((group) => existsSync(group)),
      'the groups go with the sandbox',
    )
  })
}

const best: Isolation = missing.bubblewrap === false ? 'bubblewrap' : 'none'
const ref = (id: string) => ({ provider: 'local', id })

t.test(
  'what a sandbox is made again over is its own: a link in the place of its checkout gives nothing of the host away',
  { skip: missing.uid },
  async (t) => {
    const provider = make(best)
    const spec = sandboxSpec()
    await provider.create(spec)
    const theirs = join(base, `theirs-${process.pid}`)
    mkdirSync(theirs)
    await provider.start(ref(spec.id), turn('link-1', `cd /; rm -rf "$HOME/repo"; ln -s ${theirs} "$HOME/repo"`))
    await readToEnd(provider, spec.id, 'link-1')
    await provider.create(spec)
    t.equal(statSync(theirs).uid, 0, "it is nobody else's")
    t.ok(lstatSync(join(base, best, spec.id, 'home', 'repo')).isDirectory())
    await provider.destroy(ref(spec.id))
  },
)

t.test(
  'without a limit of processes a user of its own is one, and cannot be raised',
  { skip: missing.uid },
  async (t) => {
    for (const isolation of ['bubblewrap', 'uid'] as const) {
      if (missing[isolation] !== false) continue
      const provider = make(isolation)
      const spec = sandboxSpec()
      await provider.create(spec)
      const script = 'ulimit -u; ulimit -u 5000; ulimit -u 30; for i in $(seq 60); do sleep 5 & done'
      await provider.start(ref(spec.id), turn('many-1', script, { argv: ['bash', '-c', script] }))
      const many = await readToEnd(provider, spec.id, 'many-1')
      t.equal(many.out.toString(), '4096\n')
      t.match(many.err.toString(), /cannot modify limit[\s\S]*Resource temporarily unavailable/)
      await provider.destroy(ref(spec.id))
    }
  },
)

t.test('a run goes on when the server that started it is killed, and is read in full by the next one', async (t) => {
  for (const isolation of ['bubblewrap', 'none'] as const) {
    if (missing[isolation] !== false) continue
    const spec = sandboxSpec()
    const server = join(base, `server-${isolation}.mjs`)
    const script = 'i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; exit 6'
    const orphan = `hangar-orphan-${isolation}-${process.pid}`
    writeFileSync(
      server,
      `import { createLocalProvider } from ${JSON.stringify(join(root, 'dist/orchestrator/providers/local.js'))}
const log = { info() {}, warn() {}, error() {} }
const provider = createLocalProvider({ sandboxesDir: ${JSON.stringify(join(base, isolation))}, helperFile: ${JSON.stringify(helperFile)}, clock: { now: () => Date.now() }, log, isolation: '${isolation}' })
const spec = ${JSON.stringify(spec)}
await provider.create(spec)
await provider.start({ provider: 'local', id: spec.id }, ${JSON.stringify({ ...turn('1-1', script), stdin: [] })})
void provider.exec({ provider: 'local', id: spec.id }, ['bash', '-c', 'setsid bash -c "exec -a ${orphan} sleep 300" & sleep 300'], { timeoutMs: 600000, maxOutputBytes: 1000 })
setTimeout(() => { console.log('up') }, 400)
`,
    )
    const child = spawn(process.execPath, [server], { stdio: ['ignore', 'pipe', 'inherit'] })
    await new Promise((resolve) => child.stdout.once('data', resolve))
    child.kill('SIGKILL')
    await new Promise((resolve) => child.once('exit', resolve))
    const provider = make(isolation)
    const got = await readToEnd(provider, spec.id, '1-1')
    t.equal(got.out.toString(), Array.from({ length: 30 }, (_, at) => `line ${at}\n`).join(''), isolation)
    t.match(got.process, { state: 'exited', exitCode: 6 })
    t.equal(await noneLeft(orphan), 0, 'the helper command of the killed server is ended')
    await provider.destroy(ref(spec.id))
  }
})

t.test('a run whose supervisor is killed is lost, and nothing of it goes on', async (t) => {
  for (const isolation of ['bubblewrap', 'uid', 'none'] as const) {
    if (missing[isolation] !== false) continue
    const provider = make(isolation)
    const spec = sandboxSpec()
    await provider.create(spec)
    const marker = `hangar-lost-${isolation}-${process.pid}`
    await provider.start(ref(spec.id), turn('1-1', `echo up; setsid bash -c "exec -a ${marker} sleep 300" & sleep 300`))
    await provider.read(ref(spec.id), '1-1', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 100 })
    for (let tries = 0; tries < 100 && processesNaming(marker).length === 0; tries++) await sleep(20)
    const pid = Number(readFileSync(join(base, isolation, spec.id, 'turns/1-1/pid'), 'utf8').split(' ')[0])
    process.kill(pid, 'SIGKILL')
    const got = await readToEnd(provider, spec.id, '1-1')
    t.match(got.process, { state: 'lost', reason: /supervised/ }, isolation)
    t.equal(got.out.toString(), 'up\n')
    t.equal(await noneLeft(marker), 0)
    await provider.stop(ref(spec.id), '1-1')
    await provider.destroy(ref(spec.id))
  }
})

t.test('in bubblewrap only what was given is there', { skip: missing.bubblewrap }, async (t) => {
  const given = join(base, 'given')
  mkdirSync(join(given, 'real'), { recursive: true })
  writeFileSync(join(given, 'real', 'tool'), '#!/bin/sh\necho tool ran\n', { mode: 0o755 })
  symlinkSync(join(given, 'real'), join(given, 'bin'))
  writeFileSync(join(given, 'data'), 'mounted')
  const provider = make('bubblewrap')
  const spec = sandboxSpec({ path: [join(given, 'bin')], mounts: [join(given, 'data')] })
  await provider.create(spec)
  process.env['HANGAR_TEST_SECRET'] = 'of-the-server'
  const sh = async (script: string) =>
    (
      await provider.exec(ref(spec.id), ['sh', '-c', `{ ${script}; } 2>&1`], {
        timeoutMs: 10_000,
        maxOutputBytes: 1_000_000,
      })
    ).out
      .toString()
      .trim()
  t.equal(await sh(`tool; cat ${given}/data`), 'tool ran\nmounted')
  t.match(await sh(`echo x > ${given}/data; echo x > ${given}/bin/new`), /[Rr]ead-only|denied/)
  t.match(await sh('echo x > /run/hangar/grant; echo x > /usr/x; echo x > /etc/x'), /[Rr]ead-only|denied/)
  t.equal(await sh('id -u; id -un; echo ~'), '1000\nagent\n/home/agent')
  t.equal(await sh(`ls ${base} | tr '\\n' ' '`), 'given')
  t.notMatch(await sh('env; cat /proc/*/environ'), /of-the-server/)
  t.notOk((await sh('ls /')).split('\n').includes('root'))
  t.notMatch(await sh('ls /etc'), /shadow|gshadow|ssh$/m)
  t.ok(Number(await sh('ls -d /proc/[0-9]* | wc -l')) < 10, 'its own processes only')
  t.match(await sh('cat /proc/1/comm'), /tini|bwrap|sh/)
  t.match(await sh('awk "/CapEff|NoNewPrivs/" /proc/self/status'), /0000000000000000[\s\S]*1/)
  t.equal(await sh('echo a > /tmp/x && cat /tmp/x'), 'a')
  await provider.destroy(ref(spec.id))
})

t.test('no secret stands in a command line, and the directories are closed', async (t) => {
  const provider = make(best)
  const spec = sandboxSpec({ grant: 'hgs_not-in-argv' })
  await provider.create(spec)
  await provider.start(ref(spec.id), turn('1-1', 'echo up; sleep 20', { env: { KEY: 'env-not-in-argv' } }))
  await provider.read(ref(spec.id), '1-1', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 100 })
  t.same(processesNaming('not-in-argv'), [])
  const turns = join(base, best, spec.id, 'turns')
  t.notMatch(spawnSync('grep', ['-r', 'not-in-argv', turns]).stdout.toString(), /./)
  await provider.destroy(ref(spec.id))
  t.notOk(existsSync(join(base, best, spec.id)))
})

t.test('an id or a key that is no plain name is refused', async (t) => {
  const provider = make(best)
  for (const id of ['../x', '', 'a/b', '.hidden'])
    await t.rejects(provider.create(sandboxSpec({ id })), { code: 'invalid_name' })
  const spec = sandboxSpec()
  await provider.create(spec)
  await t.rejects(provider.start(ref(spec.id), turn('../1', 'true')), { code: 'invalid_name' })
  await provider.destroy(ref(spec.id))
  t.equal(resolve(base), base)
})

t.test('it says what isolates and what does not', async (t) => {
  t.match(await make('bubblewrap').describe(), { level: 'ok', text: /host's network/ })
  t.match(await make('uid').describe(), { level: 'warning' })
  t.match(await make('none').describe(), { level: 'warning', text: /install bubblewrap/ })
})

t.test(
  'two stores on one host give out different users, so neither ends what runs for the other',
  {
    skip: missing.bubblewrap || missing.uid,
  },
  async (t) => {
    const [one, other] = [make('bubblewrap', 'store-one'), make('bubblewrap', 'store-two')]
    const [spec, second] = [sandboxSpec(), sandboxSpec()]
    await one.create(spec)
    await other.create(second)
    const uid = (store: string, id: string) =>
      (JSON.parse(readFileSync(join(base, store, id, 'sandbox.json'), 'utf8')) as { uid: number }).uid
    t.not(uid('store-one', spec.id), uid('store-two', second.id))
    await one.start(ref(spec.id), turn('1-1', 'sleep 1; echo whole'))
    await other.destroy(ref(second.id))
    t.match(await readToEnd(one, spec.id, '1-1'), { process: { state: 'exited', exitCode: 0 } })
    await one.destroy(ref(spec.id))
  },
)
