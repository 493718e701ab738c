/** What every provider must do, as one suite that runs over any of them. */
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import type { RepoSlug, SessionName } from '../../domain/names.ts'
import type { Provider, SandboxSpec, TurnCursor, TurnProcess, TurnStart } from '../../domain/sandbox.ts'

export interface ConformanceSubject {
  readonly provider: Provider
  /** A new provider over the same sandboxes, as a restarted server makes it. */
  again(): Provider
  /** Whether processes inside are kept from the host's files and processes. */
  readonly isolated: boolean
  /** What each spec of the suite has beyond the ordinary: an image, mounts. */
  readonly spec?: Partial<SandboxSpec>
}

let made = 0
const SECRET = 'hgs_conformance-secret'

/** A spec with an id of its own. */
export function sandboxSpec(overrides: Partial<SandboxSpec> = {}): SandboxSpec {
  made++
  return {
    id: `sbx-${process.pid}-${made}`,
    session: 'probe' as SessionName,
    repo: 'acme/app' as RepoSlug,
    gatewayUrl: 'http://127.0.0.1:9',
    grant: SECRET,
    path: [],
    mounts: [],
    image: null,
    limits: { cpu: null, memoryMb: null, pids: null },
    egress: null,
    mirrors: [],
    labels: {},
    ...overrides,
  }
}

export function turn(key: string, script: string, overrides: Partial<TurnStart> = {}): TurnStart {
  return {
    key,
    argv: ['sh', '-c', script],
    env: {},
    stdin: new Uint8Array(),
    timeoutMs: 60_000,
    graceMs: 500,
    maxOutputBytes: 1_048_576,
    ...overrides,
  }
}

/** Reads a run to its end, in small pieces, as a server does. */
export async function readToEnd(
  provider: Provider,
  id: string,
  key: string,
  from: TurnCursor = { out: 0, err: 0 },
): Promise<{ out: Buffer; err: Buffer; process: TurnProcess }> {
  const out: Buffer[] = []
  const err: Buffer[] = []
  let cursor = from
  for (let rounds = 0; rounds < 2_000; rounds++) {
    const got = await provider.read({ provider: provider.kind, id }, key, cursor, { waitMs: 1_000, maxBytes: 65_536 })
    out.push(got.out)
    err.push(got.err)
    cursor = got.next
    if (got.process.state !== 'running')
      return { out: Buffer.concat(out), err: Buffer.concat(err), process: got.process }
  }
  throw new Error('the run did not end')
}

/** Processes of the host whose command line holds the text; zombies have none. */
export function processesNaming(text: string): number[] {
  return processesWith((pid) => readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes(text))
}

/** Those whose working directory is in a sandbox, or was. */
function processesIn(id: string): number[] {
  return processesWith((pid) => readlinkSync(`/proc/${pid}/cwd`).includes(id))
}

function processesWith(test: (pid: number) => boolean): number[] {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.map(Number).filter((pid) => {
    try {
      return pid !== process.pid && test(pid)
    } catch {
      return false
    }
  })
}

export async function noneLeft(text: string): Promise<number> {
  for (let tries = 0; tries < 100 && processesNaming(text).length > 0; tries++) await sleep(30)
  return processesNaming(text).length
}

const execOptions = { timeoutMs: 20_000, maxOutputBytes: 1_048_576 }
const code = (exitCode: number) => ({ state: 'exited', exitCode, timedOut: false })

/** Runs the suite as one subtest. */
export async function conformance(t: Test, name: string, subject: ConformanceSubject): Promise<void> {
  await t.test(name, async (t) => {
    const { provider } = subject
    const ref = (id: string) => ({ provider: provider.kind, id })
    const spec = sandboxSpec(subject.spec)
    const begunAt = Date.now()
    const { id } = spec
    const paths = await provider.create(spec)
    const run = async (key: string, script: string, overrides: Partial<TurnStart> = {}) => {
      await provider.start(ref(id), turn(key, script, overrides))
      return readToEnd(provider, id, key)
    }
    const sh = async (script: string, env: Record<string, string> = {}) => {
      const result = await provider.exec(ref(id), ['sh', '-c', script], { ...execOptions, env })
      return result.out.toString().trim()
    }
    t.teardown(() => provider.destroy(ref(id)))

    await t.test('creating again gives the same sandbox and keeps its files', async (t) => {
      await sh('echo kept > kept.txt')
      t.same(await provider.create({ ...spec, grant: 'hgs_renewed' }), paths)
      t.equal(await sh('cat kept.txt; cat "$G"', { G: paths.grantFile }), 'kept\nhgs_renewed')
      await provider.create(spec)
      t.same(provider.paths(ref(id)), paths)
      const listed = (await provider.list()).find((other) => other.id === id)
      t.equal(listed?.provider, provider.kind)
      // Engines count in seconds.
      t.ok((listed?.createdAt ?? 0) > begunAt - 2_000 && (listed?.createdAt ?? 0) <= Date.now(), 'its age is known')
      t.equal((await provider.inspect(ref(id))).state, 'up')
    })

    await t.test('a program gets exactly its own environment, directory and input', async (t) => {
      const got = await run('env-1', 'env; pwd; cat', {
        env: { GIVEN: 'a b', HANGAR_IO: '/x' },
        stdin: Buffer.from('the prompt'),
      })
      t.match(got.process, code(0))
      const lines = got.out.toString().split('\n')
      const names = lines.filter((line) => /^\w+=/.test(line)).map((line) => line.split('=')[0])
      const wanted = ['GIT_CONFIG_SYSTEM', 'GIT_TERMINAL_PROMPT', 'GIVEN', 'HANGAR_IO', 'HOME', 'LANG', 'PATH']
      const own = new Set(['PWD', 'OLDPWD', '_', 'SHLVL', 'HANGAR_SANDBOX', 'HANGAR_RUN'])
      // tap adds variables of its own to whatever a test starts.
      const taps = /^(_TAPJS_|NODE_OPTIONS$)/
      t.same(names.filter((name = '') => !own.has(name) && !taps.test(name)).sort(), wanted)
      t.ok(lines.includes('GIVEN=a b') && lines.includes(`HOME=${paths.home}`) && lines.includes('LANG=C.UTF-8'))
      t.ok(lines.includes(paths.repo), 'it works in the checkout')
      t.equal(lines.at(-1), 'the prompt')
      t.notMatch(got.out.toString(), SECRET)
    })

    await t.test('output comes back byte for byte, both streams apart, with the exit status', async (t) => {
      const bytes = Buffer.from(Array.from({ length: 200_000 }, (_, at) => (at * 7 + (at >> 8)) & 255))
      const got = await run('bytes-1', 'cat; printf "to err\\0" >&2; exit 7', { stdin: bytes })
      t.ok(got.out.equals(bytes))
      t.same(got.err, Buffer.from('to err\0'))
      t.match(got.process, code(7))
      t.match((await run('bytes-2', 'kill -9 $$')).process, code(137))
      t.match((await run('bytes-3', ':', { argv: ['/no/such/program'] })).process, { state: 'exited' })
    })

    await t.test('a run starts once for its key, and a finished one can be read again', async (t) => {
      await Promise.all([1, 2, 3].map(() => provider.start(ref(id), turn('once-1', 'echo ran >> once.txt; echo out'))))
      await readToEnd(provider, id, 'once-1')
      await provider.start(ref(id), turn('once-1', 'echo ran >> once.txt'))
      t.equal((await readToEnd(provider, id, 'once-1')).out.toString(), 'out\n')
      t.equal(await sh('cat once.txt'), 'ran')
      const unknown = await provider.read(ref(id), 'never', { out: 0, err: 0 }, { waitMs: 0, maxBytes: 10 })
      t.equal(unknown.process.state, 'unknown')
    })

    await t.test('output is there as soon as it is written, and a reader can be called off', async (t) => {
      await provider.start(ref(id), turn('live-1', 'echo first; sleep 30'))
      const began = performance.now()
      const first = await provider.read(ref(id), 'live-1', { out: 0, err: 0 }, { waitMs: 10_000, maxBytes: 100 })
      t.equal(first.out.toString(), 'first\n')
      t.equal(first.process.state, 'running')
      t.ok(performance.now() - began < 3_000)
      const abort = new AbortController()
      setTimeout(() => abort.abort(), 50)
      const called = performance.now()
      await provider.read(ref(id), 'live-1', first.next, { waitMs: 20_000, maxBytes: 100, signal: abort.signal })
      t.ok(performance.now() - called < 3_000)
      await provider.stop(ref(id), 'live-1')
    })

    await t.test('stop ends a program that listens, and one that does not, with all their children', async (t) => {
      await provider.start(
        ref(id),
        turn('stop-1', 'trap "echo bye; exit 9" TERM; echo up; while :; do sleep 0.05; done'),
      )
      await provider.read(ref(id), 'stop-1', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 100 })
      await provider.stop(ref(id), 'stop-1')
      const polite = await readToEnd(provider, id, 'stop-1')
      t.match(polite.process, { state: 'exited', exitCode: 9 })
      t.equal(polite.out.toString(), 'up\nbye\n')
      const marker = `hangar-stray-${process.pid}-${made}`
      const script = `trap "" TERM HUP; M="exec -a ${marker}"; setsid bash -c "trap '' TERM; exec -a ${marker}-a sleep 300" & ( ( bash -c "exec -a ${marker}-b sleep 300" & ) & ); echo up; while :; do sleep 0.1; done`
      await provider.start(ref(id), turn('stop-2', script))
      await provider.read(ref(id), 'stop-2', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 100 })
      for (let tries = 0; tries < 100 && processesNaming(`${marker}-`).length < 2; tries++) await sleep(30)
      await provider.stop(ref(id), 'stop-2')
      t.match((await readToEnd(provider, id, 'stop-2')).process, { state: 'exited', exitCode: 137 })
      t.equal(await noneLeft(`${marker}-`), 0)
      await provider.stop(ref(id), 'stop-2')
      await provider.stop(ref(id), 'never')
    })

    await t.test('what a finished program leaves behind ends with it', async (t) => {
      const marker = `hangar-left-${process.pid}-${made}`
      const got = await run('left-1', `setsid bash -c "exec -a ${marker} sleep 300" & sleep 0.3; echo done`)
      t.match(got.process, code(0))
      t.equal(got.out.toString(), 'done\n')
      t.equal(await noneLeft(marker), 0)
    })

    await t.test(
      'a checkout that is closed, removed, or leads nowhere is there for the next command and run',
      async (t) => {
        for (const [way, script] of [
          'chmod 000 "$HOME/repo"',
          'cd /; rm -rf "$HOME/repo"',
          'cd /; rm -rf "$HOME/repo"; ln -s /nowhere "$HOME/repo"',
        ].entries()) {
          await run(`way-${way}`, script)
          const [one, other] = await Promise.all([sh('pwd'), sh('pwd; touch here')])
          t.strictSame([one, other], [paths.repo, paths.repo], script)
          await run(`way-${way}-again`, script)
          t.match((await run(`way-${way}-2`, 'pwd; touch here')).out.toString(), paths.repo, script)
        }
      },
    )

    await t.test('the time limit holds without any server', async (t) => {
      const got = await run('limit-1', 'echo in; sleep 300', { timeoutMs: 700 })
      t.match(got.process, { state: 'exited', timedOut: true })
      t.equal(got.out.toString(), 'in\n')
    })

    await t.test('a flood is cut at the cap, and the program is not harmed by that', async (t) => {
      const got = await run('flood-1', 'head -c 50000000 /dev/zero; echo end >&2; exit 3', { maxOutputBytes: 102_400 })
      t.equal(got.out.length, 102_400)
      t.equal(got.err.toString(), 'end\n')
      t.match(got.process, code(3))
    })

    await t.test('a new provider takes up a running program and misses nothing', async (t) => {
      await provider.start(
        ref(id),
        turn('again-1', 'i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.02; done'),
      )
      const first = await provider.read(ref(id), 'again-1', { out: 0, err: 0 }, { waitMs: 5_000, maxBytes: 65_536 })
      const rest = await readToEnd(subject.again(), id, 'again-1', first.next)
      const all = Buffer.concat([first.out, rest.out]).toString()
      t.equal(all, Array.from({ length: 40 }, (_, at) => `line ${at}\n`).join(''))
      t.match(rest.process, code(0))
    })

    await t.test('a helper command gives its output and status, and ends at its limits', async (t) => {
      const failed = await provider.exec(ref(id), ['sh', '-c', 'cat; echo no >&2; exit 4'], {
        ...execOptions,
        stdin: Buffer.from('in'),
      })
      t.match(failed, { exitCode: 4, out: Buffer.from('in'), err: Buffer.from('no\n') })
      const marker = `hangar-exec-${process.pid}-${made}`
      const slow = ['sh', '-c', `setsid bash -c "exec -a ${marker} sleep 300" & sleep 300`]
      await t.rejects(provider.exec(ref(id), slow, { ...execOptions, timeoutMs: 600 }), { code: 'sandbox_failed' })
      t.equal(await noneLeft(marker), 0)
      await t.rejects(
        provider.exec(ref(id), ['head', '-c', '9000', '/dev/zero'], { ...execOptions, maxOutputBytes: 100 }),
        {
          code: 'limit_passed',
        },
      )
    })

    await t.test('the helper is on PATH, and git gets the grant for the gateway only', async (t) => {
      t.match(await sh('command -v hangar-agent'), paths.helperDir)
      const ask = (url: string) => sh(`printf 'url=${url}\\n\\n' | git credential fill 2>&1`)
      t.match(await ask(spec.gatewayUrl), `username=x-hangar-grant\npassword=${SECRET}`)
      t.notMatch(await ask('http://other.example'), SECRET)
      t.equal(await sh('git config http.followRedirects'), 'false')
    })

    await t.test('a file is read in pieces, and no link leads out', async (t) => {
      const script =
        'printf 0123456789 > f; ln -s /etc/hostname out; ln -s / root; ln -s f in; mkfifo pipe; ln -s repo ../way'
      await sh(script)
      const read = (path: string, offset = 0, maxBytes = 100) => provider.readFile(ref(id), path, { offset, maxBytes })
      t.equal((await read(`${paths.repo}/f`, 3, 4))?.toString(), '3456')
      t.equal((await read(`${paths.repo}/f`, 50))?.length, 0)
      t.equal((await read(`${paths.home}/way/f`))?.toString(), '0123456789', 'a directory link that stays inside')
      for (const path of [
        'out',
        'in',
        'pipe',
        'root/etc/hostname',
        'nothing',
        'f/x',
        '',
        '../../../../etc/hostname',
        '../../grant',
      ])
        t.equal(await read(`${paths.repo}/${path}`), null, path)
      t.equal(await read('/etc/hostname'), null)
    })

    await t.test('trees go in and out as tar, owned by the user inside', async (t) => {
      await sh('mkdir -p src/d; echo x > src/d/f; ln -s /etc src/link; chmod +x src/d/f')
      const tar = await provider.getTar(ref(id), `${paths.repo}/src`, { maxBytes: 1_048_576 })
      const bytes = Buffer.concat((await tar.toArray()) as Buffer[])
      await provider.putTar(
        ref(id),
        `${paths.home}/new/place`,
        Readable.from([bytes.subarray(0, 700), bytes.subarray(700)]),
      )
      t.equal(
        await sh('cd ~/new/place && cat d/f && readlink link && test -x d/f && test -O d/f && echo own'),
        'x\n/etc\nown',
      )
      await t.rejects((await provider.getTar(ref(id), `${paths.repo}/none`, { maxBytes: 1_048_576 })).toArray(), {
        code: 'sandbox_failed',
      })
      await t.rejects((await provider.getTar(ref(id), paths.repo, { maxBytes: 2_000 })).toArray(), {
        code: 'limit_passed',
      })
      await t.rejects(provider.putTar(ref(id), paths.home, Readable.from([Buffer.from('this is no tar')])), {
        code: 'sandbox_failed',
      })
    })

    await t.test(
      'a second sandbox sees nothing of the first',
      { skip: !subject.isolated && 'no isolation here' },
      async (t) => {
        const other = sandboxSpec({ ...subject.spec, grant: 'hgs_other' })
        const there = await provider.create(other)
        await provider.exec(ref(other.id), ['sh', '-c', 'echo private > ~/private; chmod 644 ~/private'], execOptions)
        const host = spawn('sleep', ['300'], { env: { HOST_SECRET: 'x' } })
        const look = `cat ${there.grantFile} ${there.home}/private 2>&1; cat /proc/${host.pid}/environ 2>&1; cat /etc/shadow 2>&1; ls /root 2>&1; echo looked`
        const seen = await sh(look)
        host.kill()
        t.notMatch(seen, /hgs_other|HOST_SECRET|root:\S/)
        if (there.home !== paths.home) t.notMatch(seen, /^private$/m)
        t.match(seen, /looked$/)
        await provider.destroy(ref(other.id))
      },
    )

    await t.test(
      'a paused sandbox stands still, and goes on where it was',
      { skip: !provider.capabilities().pause && 'it cannot pause' },
      async (t) => {
        const script = 'i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.05; done'
        await provider.start(ref(id), turn('pause-1', script))
        const first = await provider.read(ref(id), 'pause-1', { out: 0, err: 0 }, { waitMs: 10_000, maxBytes: 65_536 })
        await provider.pause(ref(id))
        await provider.pause(ref(id))
        t.equal((await provider.inspect(ref(id))).state, 'paused')
        await t.rejects(provider.exec(ref(id), ['true'], execOptions), { code: 'sandbox_failed', message: /paused/ })
        let at = first.next
        const parts = [first.out]
        for (const waitMs of [0, 300, 300]) {
          const got = await provider.read(ref(id), 'pause-1', at, { waitMs, maxBytes: 65_536 })
          t.equal(got.process.state, 'running')
          if (waitMs === 300 && parts.length > 2) t.equal(got.out.length, 0, 'nothing is written meanwhile')
          parts.push(got.out)
          at = got.next
        }
        await provider.resume(ref(id))
        await provider.resume(ref(id))
        t.equal((await provider.inspect(ref(id))).state, 'up')
        const rest = await readToEnd(provider, id, 'pause-1', at)
        t.match(rest.process, code(0))
        t.equal(
          Buffer.concat([...parts, rest.out]).toString(),
          Array.from({ length: 60 }, (_, at) => `${at}\n`).join(''),
        )
        await provider.start(ref(id), turn('pause-2', 'echo up; sleep 300'))
        await provider.read(ref(id), 'pause-2', { out: 0, err: 0 }, { waitMs: 10_000, maxBytes: 100 })
        await provider.pause(ref(id))
        await provider.stop(ref(id), 'pause-2')
        t.match((await readToEnd(provider, id, 'pause-2')).process, { state: 'exited' }, 'stopping ends a paused run')
      },
    )

    await t.test('destroying ends all and removes all, also twice, whatever modes were set', async (t) => {
      const other = sandboxSpec(subject.spec)
      await provider.create(other)
      const marker = `hangar-gone-${process.pid}-${made}`
      await provider.start(
        ref(other.id),
        turn('gone-1', `mkdir -p ~/a/b; chmod 0 ~/a/b ~/a; bash -c "exec -a ${marker} sleep 300"`),
      )
      for (let tries = 0; tries < 100 && processesNaming(marker).length === 0; tries++) await sleep(30)
      if (provider.capabilities().pause) await provider.pause(ref(other.id))
      await provider.destroy(ref(other.id))
      await provider.destroy(ref(other.id))
      t.equal(await noneLeft(marker), 0)
      for (let tries = 0; tries < 100 && processesIn(other.id).length > 0; tries++) await sleep(30)
      t.same(processesIn(other.id), [], 'nor what kept its log')
      t.equal((await provider.inspect(ref(other.id))).state, 'gone')
      await t.rejects(provider.exec(ref(other.id), ['true'], execOptions), { code: 'sandbox_lost' })
      t.notOk((await provider.list()).some((found) => found.id === other.id))
    })
  })
}
