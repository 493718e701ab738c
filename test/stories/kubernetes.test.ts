/** A session in a kubernetes environment: handed over, worked on, killed and lost on the way, and brought home; nothing is left of it. */
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { noneLeft } from '../orchestrator/provider-conformance.ts'
import { deployedRules } from '../peers/kubernetes/deployment.ts'
import { startPeer } from '../peers/kubernetes/peer.ts'
import { whyNoPods } from '../peers/kubernetes/runtime.ts'
import { validateObject } from '../peers/kubernetes/schemas.ts'
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

const MARKER = `hangar-pod-story-${process.pid}`
const AGENT = `
: ${MARKER}
word=$(grep -xE 'work|slow|hang|look|last' | tail -n 1)
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
  last) hangar-agent done "all done"; : >"$HOME/ended" ;;
  look) hangar-agent done "$(ls | tr '\\n' ' ')" ;;
esac
`

const missing = whyNoPods()
t.test('a session in pods', { skip: missing, timeout: 300_000 }, story)

async function story(whole: Test): Promise<void> {
  const dir = temporaryDirectory(whole)
  mkdirSync(join(dir, 'pods'))
  const peer = await startPeer({ dir: join(dir, 'pods'), rules: deployedRules(), validate: validateObject })
  whole.teardown(() => peer.close())
  writeFileSync(join(dir, 'kubeconfig'), JSON.stringify(peer.kubeconfig('hangar-sandboxes')))
  const port = await freePort()
  const environment = {
    provider: 'kubernetes',
    image: 'example.test/tools:1',
    limits: { memory_mb: 512 },
    egress: [],
    harness_options: { argv: ['sh', '-c', AGENT] },
  }
  const env = serverEnvironment(dir, {
    agent: '',
    settings: { HANGAR_LISTEN: `127.0.0.1:${port}` },
    config: {
      kubernetes: { kubeconfig: join(dir, 'kubeconfig'), gateway_url: `http://127.0.0.1:${port}` },
      environments: { default: environment, other: { ...environment, image: 'not/here:1' } },
    },
  })
  peer.broken.set('not/here', { reason: 'InvalidImageName', message: 'couldn\'t parse image name "not/here:1"' })
  let served = await serve(whole, dir, env)
  const call = (method: string, path: string, body?: unknown) => api(served.url, served.token, { method, path, body })
  const cli = (args: readonly string[], cwd: string) => run(process.execPath, [MAIN, ...args], { cwd, env })
  const send = async (message: string) => {
    const sent = await call('POST', '/api/sessions/podded/turns', { message })
    whole.equal(sent.status, 202, JSON.stringify(sent.body))
  }
  const ended = async (turn: number) => {
    const { body } = await call('GET', `/api/sessions/podded/wait?timeout_seconds=60&turn=${turn}`)
    whole.equal(body.done, true)
    const { turns } = (await call('GET', '/api/sessions/podded')).body
    return turns[turn - 1]
  }
  const says = (text: string) => async () =>
    JSON.stringify((await call('GET', '/api/sessions/podded/events?limit=1000')).body).includes(text)

  const checkout = join(dir, 'checkout')
  await shell(
    dir,
    `git init -q -b main checkout; cd checkout; echo one >work.txt; echo notes >notes.txt; git add .; git commit -q -m base
     echo two >>work.txt; git commit -q -am mine; echo staged >>notes.txt; git add notes.txt; echo loose >untracked-of-mine.txt`,
  )
  const doctor = await cli(['doctor'], checkout)
  whole.match(doctor.out, /ok\s+kubernetes\s+.*pods in namespace hangar-sandboxes/)
  // The peer enforces no policy, as a cluster with a plain network plugin does not.
  whole.match(
    doctor.out,
    new RegExp(`missing\\tegress: default\\tnot kept: a sandbox reached ${new URL(peer.url).host},`),
  )
  whole.match(doctor.out, /missing\tegress: other\tno sandbox could be asked: .*InvalidImageName/)
  whole.equal(doctor.status, 4)
  whole.strictSame(peer.pods(), [], 'what was asked is gone')

  await whole.test('what was handed over is worked on, and comes home', async (t) => {
    const made = await cli(['session', 'new', 'podded', 'work', '--from-local', '--create-repo', '-w'], checkout)
    t.equal(made.status, 0, made.err)
    const { body: session } = await call('GET', '/api/sessions/podded')
    t.match(session.sandbox, { provider: 'kubernetes' })
    t.match(session.turns[0], { outcome: 'exited', summary: 'worked', error: null, warnings: [] })
    const [pod] = peer.pods()
    t.match(pod?.metadata.labels, {
      'app.kubernetes.io/managed-by': 'hangar',
      'hangar.dev/session': 'podded',
      'hangar.dev/sandbox': session.sandbox.id,
    })
    const report = await cli(['session', 'artifacts', 'podded', '--get', 'report.txt'], checkout)
    t.equal(report.out, 'result\n')
    await shell(dir, 'git clone -q checkout home-checkout')
    const home = join(dir, 'home-checkout')
    const pulled = await cli(['session', 'pull', 'podded', '--checkout'], home)
    t.equal(pulled.status, 0, pulled.err)
    const decoded = Object.fromEntries(
      Object.entries(workTree(home)).map(([path, file]) => [
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
    t.equal((await gitState(home)).head, session.turns[0].head_commit)
  })

  await whole.test(
    'the server is killed in the middle of a turn; the next one goes on reading where it was',
    async (t) => {
      await send('slow')
      await waitUntil('it runs', says('line 2'))
      await served.kill()
      served = await serve(whole, dir, env)
      t.match(await ended(2), { outcome: 'exited', summary: 'slow', error: null })
      const { body } = await call('GET', '/api/sessions/podded/events?limit=1000')
      const lines = (body.items as { turn: number; text?: string }[]).filter(({ turn }) => turn === 2)
      t.strictSame(
        lines.map(({ text }) => text ?? '').filter((text) => text.startsWith('line ')),
        Array.from({ length: 10 }, (_, at) => `line ${at + 1}`),
      )
      t.equal(peer.pods().length, 1)
    },
  )

  await whole.test(
    'a pod that is deleted behind its back ends the turn; the next one has the last checkpoint in a fresh pod',
    async (t) => {
      await send('hang')
      await waitUntil('it runs', says('"up"'))
      const [pod] = peer.pods()
      await peer.deletePod(pod?.metadata.name ?? '')
      t.match(await ended(3), { outcome: 'failed', error: { code: 'sandbox_lost', message: /its pod was deleted/ } })
      await send('look')
      const looked = await ended(4)
      t.match(looked, { outcome: 'exited', error: null })
      t.equal(looked.summary, 'notes.txt ran.txt untracked-of-mine.txt untracked.txt work.txt')
      t.not(peer.pods()[0]?.metadata.uid, pod?.metadata.uid)
    },
  )

  await whole.test('an eviction is told as one', async (t) => {
    await send('hang')
    await waitUntil('it runs', async () =>
      (await call('GET', '/api/sessions/podded/events?limit=1000')).body.items.some(
        (event: { turn: number; text?: string }) => event.turn === 5 && event.text === 'up',
      ),
    )
    await peer.evict(peer.pods()[0]?.metadata.name ?? '')
    t.match(await ended(5), {
      outcome: 'failed',
      error: { code: 'sandbox_lost', message: /evicted: The node was low on resource: memory/ },
    })
  })

  await whole.test(
    'a pod that goes when its agent has just ended takes its work with it, and the turn says so',
    async (t) => {
      peer.faults.refuse = ({ exec }) => {
        const [pod] = peer.pods()
        const over = pod !== undefined && existsSync(join(dir, 'pods', pod.metadata.uid ?? '', 'home', 'ended'))
        if (!exec || !over) return null
        void peer.deletePod(pod.metadata.name)
        return 500
      }
      await send('last')
      t.match(await ended(6), {
        outcome: 'failed',
        error: { code: 'sandbox_lost', message: /its pod was deleted/ },
      })
      peer.faults.refuse = () => null
      await send('look')
      t.match(await ended(7), { outcome: 'exited', error: null })
    },
  )

  await whole.test('an image that cannot be had is told in the words of the cluster', async (t) => {
    const made = await call('POST', '/api/sessions', {
      name: 'bare',
      repo: 'local/checkout',
      message: 'x',
      environment: 'other',
    })
    t.equal(made.status, 201, JSON.stringify(made.body))
    await call('GET', '/api/sessions/bare/wait?timeout_seconds=60')
    const [turn] = (await call('GET', '/api/sessions/bare')).body.turns
    t.match(turn, { outcome: 'failed', error: { code: 'sandbox_failed', message: /InvalidImageName: couldn't parse/ } })
    await call('POST', '/api/sessions/bare/close', {})
  })

  await whole.test('nothing is left when all is closed', async (t) => {
    const [policy] = peer.objects('networkpolicies')
    t.match(policy?.spec, {
      policyTypes: ['Ingress', 'Egress'],
      egress: [{ to: [{ ipBlock: { cidr: '127.0.0.1/32' } }] }],
    })
    t.equal((await call('POST', '/api/sessions/podded/close', {})).status, 200)
    t.strictSame(peer.pods(), [])
    t.equal(await noneLeft(MARKER), 0)
    await served.kill()
    served = await serve(whole, dir, env)
    t.strictSame(peer.objects('networkpolicies'), [], 'a policy that no pod is under goes')
  })
  await whole.test('the rights of deploy/kubernetes are enough, and none is there for nothing', async (t) => {
    const rights = deployedRules().flatMap(({ resources, verbs }) =>
      resources.flatMap((resource) => verbs.map((verb) => `${verb} ${resource}`)),
    )
    t.strictSame([...peer.denied], [])
    t.strictSame([...peer.requests.keys()].sort(), rights.sort())
  })
}
