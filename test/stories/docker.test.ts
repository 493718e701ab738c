/** A session in a docker environment: handed over, worked on, killed and lost on the way, and brought home; nothing is left of it. */
import { createServer, type Server } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { type DockerHost, startDocker } from '../orchestrator/docker-host.ts'
import { noneLeft } from '../orchestrator/provider-conformance.ts'
import { freePort, serve } from './served.ts'
import {
  api,
  gitState,
  MAIN,
  run,
  serverEnvironment,
  shell,
  temporaryDirectory,
  waitUntil,
  workTree,
} from './support.ts'

const AGENT = `
word=$(grep -xE 'work|slow|hang|look|hog|reach' | tail -n 1)
case $word in
  work)
    echo "by the agent" >>work.txt; git commit -q -am "the agent's commit"
    echo changed >>notes.txt; echo new >untracked.txt
    echo result >/tmp/report; hangar-agent artifact /tmp/report report.txt
    hangar-agent done "worked" ;;
  slow)
    for i in 1 2 3 4 5 6 7 8 9 10; do echo "line $i"; sleep 0.3; done
    echo "once" >>ran.txt; hangar-agent done "slow" ;;
  hang) echo "up"; echo "before the loss" >kept.txt; sleep 300 ;;
  look) ls; cat untracked.txt; hangar-agent done "$(ls | tr '\\n' ' ')" ;;
  reach)
    reach() { bash -c 'exec 3<>/dev/tcp/127.0.0.1/4265 && printf "CONNECT %s HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" "$1" >&3 && head -c 400 <&3' sh "$1" 2>&1; }
    bash -c 'exec 3<>/dev/tcp/'"\${ALLOWED%:*}/\${ALLOWED#*:}" 2>/dev/null && echo "direct: open" || echo "direct: closed"
    echo "proxy: $HTTPS_PROXY"; echo "allowed: $(reach "$ALLOWED" | tr '\\r\\n' '  ')"; echo "denied: $(reach "$DENIED" | tr '\\r\\n' '  ')"
    git commit -q --allow-empty -m "by the relay"; git fetch -q origin 2>&1 && hangar-agent done "reached" ;;
  hog) head -c 400000000 /dev/zero | tail | wc -c; exit 3 ;;
esac
`

const host = await startDocker()
if (typeof host === 'string') t.test('docker', { skip: host }, async () => {})
else {
  t.teardown(() => host.close())
  await t.test('a session in containers', { timeout: 300_000 }, (whole) => story(whole, host))
}

async function story(whole: Test, host: DockerHost): Promise<void> {
  const dir = temporaryDirectory(whole)
  const { image, mounts } = host
  const environment = {
    provider: 'docker',
    image,
    mounts,
    limits: { memory_mb: 128, pids: 200, cpu: 2 },
    harness_options: { argv: ['sh', join(dir, 'agent.sh')] },
  }
  const banner = createServer((socket) => socket.end('hello from outside\n'))
  const hidden = createServer((socket) => socket.end('hello from the hidden one\n'))
  const [allowed, denied] = await Promise.all([listening(whole, banner), listening(whole, hidden)])
  const reach = { env: { ALLOWED: allowed, DENIED: denied } }
  const env = serverEnvironment(dir, {
    agent: AGENT,
    settings: { HANGAR_LISTEN: `127.0.0.1:${await freePort()}`, DOCKER_HOST: `unix://${host.socketPath}` },
    config: {
      environments: {
        default: environment,
        other: { ...environment, image: 'not/here:1' },
        shut: { ...environment, ...reach, egress: [] },
        narrow: { ...environment, ...reach, egress: [allowed] },
      },
    },
  })
  let served = await serve(whole, dir, env)
  const call = (method: string, path: string, body?: unknown) => api(served.url, served.token, { method, path, body })
  const cli = (args: readonly string[], cwd: string) => run(process.execPath, [MAIN, ...args], { cwd, env })
  const send = async (message: string) => {
    const sent = await call('POST', '/api/sessions/boxed/turns', { message })
    whole.equal(sent.status, 202, JSON.stringify(sent.body))
  }
  const ended = async (turn: number) => {
    const { body } = await call('GET', `/api/sessions/boxed/wait?timeout_seconds=60&turn=${turn}`)
    whole.equal(body.done, true)
    const { turns } = (await call('GET', '/api/sessions/boxed')).body
    return turns[turn - 1]
  }
  const containers = async () => {
    const { body } = await host.engine.ask('GET', '/containers/json', { query: { all: 'true' } })
    return body as { Id: string; Labels: Record<string, string> }[]
  }
  const says = (text: string) => async () =>
    JSON.stringify((await call('GET', '/api/sessions/boxed/events?limit=1000')).body).includes(text)

  const checkout = join(dir, 'checkout')
  await shell(
    dir,
    `git init -q -b main checkout; cd checkout; echo one >work.txt; echo notes >notes.txt; git add .; git commit -q -m base
     echo two >>work.txt; git commit -q -am mine; echo staged >>notes.txt; git add notes.txt; echo loose >untracked-of-mine.txt`,
  )
  const doctor = await cli(['doctor'], checkout)
  whole.match(doctor.out, /ok\s+docker\s+.*a container for each sandbox/)

  await whole.test('what was handed over is worked on, and comes home', async (t) => {
    const made = await cli(['session', 'new', 'boxed', 'work', '--from-local', '--create-repo', '-w'], checkout)
    t.equal(made.status, 0, made.err)
    const shown = await cli(['session', 'show', 'boxed'], checkout)
    t.match(shown.out + shown.err, /docker/)
    const { body: session } = await call('GET', '/api/sessions/boxed')
    t.match(session.sandbox, { provider: 'docker' })
    t.match(session.turns[0], { outcome: 'exited', summary: 'worked', error: null, warnings: [] })
    const [container] = await containers()
    t.match(container?.Labels, {
      'hangar.managed': 'true',
      'hangar.session': 'boxed',
      'hangar.sandbox': session.sandbox.id,
    })
    const report = await cli(['session', 'artifacts', 'boxed', '--get', 'report.txt'], checkout)
    t.equal(report.out, 'result\n')
    await shell(dir, 'git clone -q checkout home')
    const pulled = await cli(['session', 'pull', 'boxed', '--checkout'], join(dir, 'home'))
    t.equal(pulled.status, 0, pulled.err)
    const decoded = Object.fromEntries(
      Object.entries(workTree(join(dir, 'home'))).map(([path, file]) => [
        path,
        Buffer.from(file.split(' ').at(-1) ?? '', 'base64').toString(),
      ]),
    )
    t.strictSame(decoded, {
      'work.txt': 'one\ntwo\nby the agent\n',
      'notes.txt': 'notes\nstaged\nchanged\n',
      'untracked.txt': 'new\n',
      'untracked-of-mine.txt': 'loose\n',
    })
    t.equal((await gitState(join(dir, 'home'))).head, session.turns[0].head_commit)
  })

  await whole.test(
    'the server is killed in the middle of a turn; the next one goes on reading where it was',
    async (t) => {
      await send('slow')
      await waitUntil('it runs', says('line 2'))
      await served.kill()
      served = await serve(whole, dir, env)
      t.match(await ended(2), { outcome: 'exited', summary: 'slow', error: null })
      const { body } = await call('GET', '/api/sessions/boxed/events?limit=1000')
      const lines = (body.items as { turn: number; text?: string }[]).filter(({ turn }) => turn === 2)
      t.strictSame(
        lines.map(({ text }) => text ?? '').filter((text) => text.startsWith('line ')),
        Array.from({ length: 10 }, (_, at) => `line ${at + 1}`),
      )
    },
  )

  await whole.test(
    'a sandbox that is removed behind its back ends the turn; the next one has the last checkpoint',
    async (t) => {
      await send('hang')
      await waitUntil('it runs', says('"up"'))
      const [container] = await containers()
      await host.engine.ask('DELETE', `/containers/${container?.Id}`, { query: { force: 'true', v: 'true' } })
      t.match(await ended(3), { outcome: 'failed', error: { code: 'sandbox_lost' } })
      await send('look')
      const looked = await ended(4)
      t.match(looked, { outcome: 'exited', error: null })
      t.equal(looked.summary, 'notes.txt ran.txt untracked-of-mine.txt untracked.txt work.txt')
    },
  )

  await whole.test('running out of memory is said beside the exit status', async (t) => {
    await send('hog')
    const turn = await ended(5)
    t.match(turn, {
      outcome: 'failed',
      error: { code: 'agent_failed', message: /status 3.*out of memory/ },
    })
  })

  await whole.test('the engine may go away for a moment', async (t) => {
    await send('slow')
    await waitUntil('it runs again', async () =>
      (await call('GET', '/api/sessions/boxed/events?limit=1000')).body.items.some(
        (event: { turn: number; text?: string }) => event.turn === 6 && event.text === 'line 2',
      ),
    )
    await host.restart()
    t.match(await ended(6), { outcome: 'exited', summary: 'slow', error: null })
  })

  await whole.test('an image that is not there is refused with the command that gets it', async (t) => {
    const made = await call('POST', '/api/sessions', {
      name: 'bare',
      repo: 'local/checkout',
      message: 'x',
      environment: 'other',
    })
    t.equal(made.status, 201, JSON.stringify(made.body))
    await call('GET', '/api/sessions/bare/wait?timeout_seconds=60')
    const [turn] = (await call('GET', '/api/sessions/bare')).body.turns
    t.match(turn, { outcome: 'failed', error: { code: 'sandbox_failed', message: /docker pull not\/here:1/ } })
    await call('POST', '/api/sessions/bare/close', {})
  })

  await whole.test('with an egress list a sandbox reaches the gateway and those, and nothing else', async (t) => {
    for (const environment of ['shut', 'narrow']) {
      const made = await call('POST', '/api/sessions', {
        name: environment,
        repo: 'local/checkout',
        message: 'reach',
        environment,
      })
      t.equal(made.status, 201, JSON.stringify(made.body))
      await call('GET', `/api/sessions/${environment}/wait?timeout_seconds=60`)
      const [turn] = (await call('GET', `/api/sessions/${environment}`)).body.turns
      t.match(turn, { outcome: 'exited', summary: 'reached', error: null, warnings: [] })
      const { body } = await call('GET', `/api/sessions/${environment}/events?limit=1000`)
      const said = (body.items as { text?: string }[]).map(({ text }) => text ?? '').join('\n')
      t.match(said, 'direct: closed')
      t.notMatch(said, 'hidden one')
      if (environment === 'shut') {
        t.match(said, /proxy: $/m)
        t.notMatch(said, 'hello from outside')
      } else {
        t.match(said, /allowed: HTTP\/1\.1 200 .*hello from outside/)
        t.match(said, /denied: HTTP\/1\.1 403 .*not in this environment's egress/)
      }
      await call('POST', `/api/sessions/${environment}/close`, {})
    }
  })

  await whole.test('nothing is left when it is closed', async (t) => {
    const marker = join(dir, 'agent.sh')
    t.equal((await call('POST', '/api/sessions/boxed/close', {})).status, 200)
    t.strictSame(await containers(), [])
    const { body } = await host.engine.ask('GET', '/volumes')
    t.strictSame(body.Volumes ?? [], [])
    t.equal(await noneLeft(marker), 0)
  })
}

async function listening(whole: Test, server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  whole.teardown(() => server.close())
  return `127.0.0.1:${(server.address() as { port: number }).port}`
}
