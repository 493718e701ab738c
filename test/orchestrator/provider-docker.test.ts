/** The docker provider against a real engine: the suite of every provider, and what only an engine can do wrong. */
import { spawn } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { openDockerProvider } from '../../orchestrator/providers/docker.ts'
import { startDocker } from './docker-host.ts'
import { conformance, noneLeft, processesNaming, readToEnd, sandboxSpec, turn } from './provider-conformance.ts'

const helperFile = fileURLToPath(new URL('../../../agent-helper/hangar-agent', import.meta.url))
const silent = { info() {}, warn() {}, error() {} }
const relay = {
  directoryFor: async () => {
    throw new Error('no relay is asked for here')
  },
  close: async () => {},
}
t.setTimeout(600_000)

const host = await startDocker()
if (typeof host === 'string') t.test('docker', { skip: host }, async () => {})
else {
  t.teardown(() => host.close())
  const { socketPath, image, mounts } = host
  const open = () =>
    openDockerProvider({ socketPath, helperFile, instance: 'of-the-test', relay, loopbackOnly: true, log: silent })
  const provider = await open()
  const again = await open()
  await conformance(t, 'docker', { provider, again: () => again, isolated: true, spec: { image, mounts } })
  if (host.bare !== null)
    await conformance(t, 'docker, of busybox', { provider, again: () => again, isolated: true, spec: host.bare })

  const ref = (id: string) => ({ provider: 'docker', id })
  const inside = async (id: string, script: string, by = provider) =>
    (await by.exec(ref(id), ['sh', '-c', `{ ${script}; } 2>&1`], { timeoutMs: 20_000, maxOutputBytes: 1_000_000 })).out
      .toString()
      .trim()

  await t.test('it is shut in: no capability, no new privileges, a read-only disk, its limits', async (t) => {
    const spec = sandboxSpec({ image, mounts, limits: { cpu: 0.5, memoryMb: 64, pids: 48 }, grant: 'hgs_shut-in' })
    await provider.create(spec)
    t.equal(await inside(spec.id, 'id -u; id -g'), '1000\n1000')
    const status = await inside(spec.id, 'cat /proc/self/status')
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) t.match(status, `${set}:\t0000000000000000`)
    t.match(status, /NoNewPrivs:\t1\n.*Seccomp:\t2/s)
    t.match(await inside(spec.id, 'echo x >/etc/x; echo x >/usr/x'), /Read-only[\s\S]*Read-only/)
    t.match(await inside(spec.id, 'echo x >/hangar/run/grant'), /[Pp]ermission denied/)
    t.match(await inside(spec.id, 'echo x >/hangar/run/newest; rm -f /hangar/run/newest; ls /hangar/run'), /denied/)
    t.equal(await inside(spec.id, 'printf "#!/bin/sh\necho runs\n" >/tmp/x; chmod +x /tmp/x; /tmp/x'), 'runs')
    t.match(await inside(spec.id, 'cat /proc/1/cmdline | tr "\\0" " "'), /docker-init|podman-init/)
    const { body } = await host.engine.ask('GET', `/containers/hangar-${spec.id}/json`)
    t.match(body.HostConfig, { Memory: 67_108_864, MemorySwap: 67_108_864, PidsLimit: 48, NanoCpus: 500_000_000 })
    t.notMatch(JSON.stringify(body), 'hgs_shut-in', 'the grant is in a file alone')
    await provider.start(ref(spec.id), turn('pids-1', 'for i in $(seq 100); do sleep 20 & done; echo never'))
    const forks = await readToEnd(provider, spec.id, 'pids-1')
    t.match(forks.err.toString(), /[Cc]an.?.?not fork|Resource temporarily/)
    await provider.destroy(ref(spec.id))
  })

  await t.test('want of memory is noted, also when the program ends well', async (t) => {
    const spec = sandboxSpec({ image, mounts, limits: { cpu: null, memoryMb: 64, pids: null } })
    await provider.create(spec)
    await provider.start(ref(spec.id), turn('oom-1', 'head -c 400000000 /dev/zero | tail | wc -c; exit 0'))
    t.match((await readToEnd(provider, spec.id, 'oom-1')).process, { state: 'exited', exitCode: 0, oom: true })
    await provider.start(ref(spec.id), turn('oom-2', 'exit 0'))
    t.strictSame(Object.keys((await readToEnd(provider, spec.id, 'oom-2')).process).includes('oom'), false)
    await provider.destroy(ref(spec.id))
  })

  await t.test('an agent that forges its end, or kills all it can, ends with everything that it started', async (t) => {
    const spec = sandboxSpec({ image, mounts })
    await provider.create(spec)
    const marker = `hangar-forged-${process.pid}`
    const forge = `setsid bash -c "exec -a ${marker} sleep 300" & echo '{"code":0,"timed_out":false,"ended_at":1}' >/hangar/turns/forge-1/exit.json; sleep 300`
    await provider.start(ref(spec.id), turn('forge-1', forge))
    t.match((await readToEnd(provider, spec.id, 'forge-1')).process, { state: 'exited', exitCode: 0 })
    t.equal(await noneLeft(marker), 0)
    await provider.start(
      ref(spec.id),
      turn('kill-1', `setsid bash -c "exec -a ${marker} sleep 300" & kill -9 -1; sleep 300`),
    )
    t.match((await readToEnd(provider, spec.id, 'kill-1')).process, { state: 'lost' })
    t.equal(await noneLeft(marker), 0)
    t.equal((await provider.inspect(ref(spec.id))).state, 'up', 'the first process is not its own to end')
    await provider.start(ref(spec.id), turn('bomb-1', `f() { f | f & }; f; sleep 0.2; exit 5`))
    t.match((await readToEnd(provider, spec.id, 'bomb-1')).process, { state: 'exited' })
    t.equal(Number(await inside(spec.id, 'cat /proc/[0-9]*/status | grep -c "^Uid:.1000"')) < 6, true)
    await provider.destroy(ref(spec.id))
  })

  await t.test('commands of a server that was killed are ended by the next one', async (t) => {
    const spec = sandboxSpec({ image, mounts })
    await provider.create(spec)
    const orphan = `hangar-orphan-${process.pid}`
    const server = `import { openDockerProvider } from ${JSON.stringify(new URL('../../orchestrator/providers/docker.js', import.meta.url).href)}
const provider = await openDockerProvider(${JSON.stringify({ socketPath, helperFile, instance: 'of-the-test' })})
const argv = ['bash', '-c', 'setsid bash -c "exec -a ${orphan} sleep 300" & sleep 300']
void provider.exec(${JSON.stringify(ref(spec.id))}, argv, { timeoutMs: 600000, maxOutputBytes: 1000 })`
    const child = spawn(process.execPath, ['--input-type=module', '-e', server], { stdio: 'ignore' })
    for (let tries = 0; tries < 200 && processesNaming(orphan).length === 0; tries++) await sleep(50)
    t.not(processesNaming(orphan).length, 0)
    child.kill('SIGKILL')
    t.equal(await inside(spec.id, 'echo here', await open()), 'here')
    t.equal(await noneLeft(orphan), 0)
    await provider.destroy(ref(spec.id))
  })

  await t.test("an image's lack is named, and nothing is left of the attempt", async (t) => {
    const { bare } = host
    for (const [wrong, says] of [
      [bare?.image ?? null, /lacks git/],
      ['hangar-none:1', /docker pull hangar-none:1/],
    ] as const) {
      if (wrong === null) continue
      const spec = sandboxSpec({ image: wrong })
      await t.rejects(provider.create(spec), { code: 'sandbox_failed', message: says })
      await provider.destroy(ref(spec.id))
    }
    const missing = sandboxSpec({ image, mounts: ['/no/such/place'] })
    await t.rejects(provider.create(missing), { code: 'sandbox_failed', message: /\/no\/such\/place/ })
    await provider.destroy(ref(missing.id))
    t.strictSame(await provider.list(), [])
  })

  await t.test("another server's sandboxes are neither listed nor taken", async (t) => {
    const spec = sandboxSpec({ image, mounts })
    await provider.create(spec)
    const stranger = await openDockerProvider({
      socketPath,
      helperFile,
      instance: 'another',
      relay,
      loopbackOnly: true,
      log: silent,
    })
    t.strictSame(await stranger.list(), [])
    await t.rejects(stranger.create(spec), { code: 'sandbox_failed', message: /another server/ })
    await provider.destroy(ref(spec.id))
  })

  await t.test('a container that has stopped is lost, and made anew from nothing', async (t) => {
    const spec = sandboxSpec({ image, mounts })
    await provider.create(spec)
    await inside(spec.id, 'echo old >~/old')
    await provider.start(ref(spec.id), turn('1-1', 'sleep 300'))
    await host.engine.ask('POST', `/containers/hangar-${spec.id}/stop`, { query: { t: '0' } })
    t.match(await provider.inspect(ref(spec.id)), { state: 'gone', reason: /stopped/ })
    await t.rejects(readToEnd(provider, spec.id, '1-1'), { code: 'sandbox_lost' })
    await provider.create(spec)
    t.equal(await inside(spec.id, 'ls ~'), 'repo')
    await provider.destroy(ref(spec.id))
  })

  await t.test('an engine that is not there is said so, and how to name another', async (t) => {
    const away = await openDockerProvider({
      socketPath: '/no/engine.sock',
      helperFile,
      instance: 'x',
      relay,
      loopbackOnly: true,
      log: silent,
    })
    t.match(await away.describe(), { level: 'warning', text: /no\/engine\.sock.*DOCKER_HOST=unix/ })
    await t.rejects(away.list(), { code: 'sandbox_failed' })
    t.match(await provider.describe(), { level: 'ok', text: /Engine 2|Podman/ })
  })
}
