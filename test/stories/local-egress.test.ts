/** A local sandbox whose environment limits the network reaches the gateway, the hosts that are named, and nothing else. */
import { existsSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { type Hangar, shell, startHangar } from './support.ts'

const skip = existsSync('/usr/bin/bwrap') ? false : 'bubblewrap is not installed'

async function listen(t: Test, words: string): Promise<number> {
  const server: Server = createServer((_req, res) => res.end(words))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void server.close())
  return (server.address() as AddressInfo).port
}

/** A request through the proxy by CONNECT, as HTTPS clients make it, or straight to the port. */
const PROBE = String.raw`
import os, socket, sys
def ask(address, lines):
    try:
        s = socket.create_connection(address, 5); s.sendall(lines.encode()); s.settimeout(5)
        return s, s.recv(4096).decode("latin1").split("\r\n")[0]
    except OSError as e:
        return None, "no connection"
port = int(sys.argv[2])
if sys.argv[1] == "straight":
    print(ask(("127.0.0.1", port), "GET / HTTP/1.0\r\n\r\n")[1])
else:
    proxy = os.environ.get("HTTPS_PROXY", "")
    if not proxy: print("no proxy"); sys.exit()
    host, at = proxy.split("//")[1].split(":")
    s, said = ask((host, int(at)), "CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
    if " 200 " in said:
        s.sendall(b"GET / HTTP/1.0\r\n\r\n"); said = s.makefile().read().strip().split("\n")[-1]
    print(said)
`

t.test('local egress', { skip }, async (t) => {
  const open = await listen(t, 'the open host')
  const closed = await listen(t, 'the closed host')
  const argv = ['sh', '-c', 'read -r line; eval "$line"']
  const environment = (egress?: readonly string[]) => ({
    harness_options: { argv },
    ...(egress === undefined ? {} : { egress }),
  })
  const hangar: Hangar = await startHangar(t, {
    agent: 'true',
    config: {
      environments: {
        default: environment(),
        none: environment([]),
        some: environment([`127.0.0.1:${open}`]),
      },
    },
  })
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(
    hangar.dir,
    'git init -q -b main seed && cd seed && echo one >a.txt && cat >probe.py && git add . && git commit -q -m base'.replace(
      'cat >probe.py',
      `cat >probe.py <<'EOT'\n${PROBE}\nEOT\ngit --version >/dev/null`,
    ),
  )
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
  const said = async (name: string, environment: string) => {
    const probe = (how: string, port: number) => `python3 probe.py ${how} ${port}`
    const message = `${probe('straight', open)}; ${probe('proxied', open)}; ${probe('proxied', closed)}; git ls-remote origin main | cut -c42-; echo x >>a.txt; git commit -qam "from $HANGAR_GATEWAY"; git push -q origin HEAD:hangar/${name} && echo pushed`
    await hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', environment, message })
    await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)
    const { turns } = (await hangar.api('GET', `/api/sessions/${name}`)).body
    t.match(turns[0], { outcome: 'exited', error: null, warnings: [] }, name)
    const { items } = (await hangar.api('GET', `/api/sessions/${name}/events?limit=1000`)).body
    return items.flatMap((event: { kind: string; role?: string; text: string }) =>
      event.kind === 'message' && event.role === 'assistant' ? [event.text] : [],
    )
  }
  const git = ['refs/heads/main', 'pushed']
  t.strictSame(await said('free', 'default'), ['HTTP/1.1 200 OK', 'no proxy', 'no proxy', ...git])
  t.strictSame(await said('shut', 'none'), ['no connection', 'no proxy', 'no proxy', ...git])
  t.strictSame(await said('listed', 'some'), ['no connection', 'the open host', 'HTTP/1.1 403 Forbidden', ...git])
  t.match((await hangar.api('GET', '/api/sessions/shut/patch')).bytes.toString(), /\+x/, 'the work came back')

  const doctor = await hangar.cli(['doctor'])
  for (const name of ['none', 'some'])
    t.match(
      doctor.out,
      new RegExp(`^ok\\tegress: ${name}\\ta sandbox reaches the gateway, and is refused 127\\.0\\.0\\.1:[0-9]+`, 'm'),
    )
  t.notMatch(doctor.out, /egress: default/, 'nothing is asked where there is no list')
  t.strictSame((await hangar.api('GET', '/api/sessions')).body.items.length, 3, 'no session comes of it')

  const next = await hangar.restart()
  t.teardown(() => next.close())
  await next.api('POST', '/api/sessions/shut/turns', { message: 'git ls-remote origin main | cut -c42-' })
  await next.api('GET', '/api/sessions/shut/wait?timeout_seconds=120')
  t.match((await next.api('GET', '/api/sessions/shut')).body.turns[1], {
    outcome: 'exited',
    summary: 'refs/heads/main',
  })
})
