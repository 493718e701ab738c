import t from 'tap'
import type { Cluster, PodList, WatchEvent } from '../../orchestrator/providers/kubernetes-cluster.ts'
import { runCommand } from '../../orchestrator/providers/kubernetes-exec.ts'
import { networkManifest } from '../../orchestrator/providers/kubernetes-network.ts'
import { type Install, ownerManifest, podManifest, podName } from '../../orchestrator/providers/kubernetes-pod.ts'
import { type Pod, podState } from '../../orchestrator/providers/kubernetes-pod-state.ts'
import { createPodWatch } from '../../orchestrator/providers/kubernetes-watch.ts'
import { deployedObjects, deployedRules } from '../peers/kubernetes/deployment.ts'
import type { ApiObject } from '../peers/kubernetes/objects.ts'
import { validateObject } from '../peers/kubernetes/schemas.ts'
import { restrictedViolations } from '../peers/kubernetes/security.ts'
import { sandboxSpec } from './provider-conformance.ts'

const install: Install = {
  instance: '0123456789abcdef',
  namespace: 'hangar-sandboxes',
  gatewayUrl: 'http://hangar.hangar.svc:4264',
  nodeSelector: {},
  runtimeClass: null,
}
const owner = { name: 'hangar-0123456789abcdef', uid: 'f4b8b5b6-0000-4000-8000-000000000000' }
const image = 'registry.example/tools@sha256:abc'
const gateway = { host: 'hangar.hangar.svc', port: 4264, addresses: [] }
const asObject = (manifest: unknown) => JSON.parse(JSON.stringify(manifest)) as ApiObject

t.test(
  'every object of deploy/kubernetes is of the published shape, and its pods are of the restricted standard',
  async (t) => {
    const objects = deployedObjects()
    t.ok(objects.length >= 10)
    for (const object of objects) t.equal(validateObject(object), null, `${object.kind} ${object.metadata.name}`)
    for (const { spec } of objects.filter(({ kind }) => kind === 'Deployment')) {
      t.strictSame(restrictedViolations(spec.template as ApiObject), [])
      t.equal(spec.replicas, 1)
      t.equal(spec.strategy.type, 'Recreate')
    }
    const namespaces = objects.filter(({ kind }) => kind === 'Namespace')
    for (const { metadata } of namespaces)
      t.equal(metadata.labels?.['pod-security.kubernetes.io/enforce'], 'restricted')
    t.ok(namespaces.some(({ metadata }) => metadata.name === install.namespace))
    t.ok(deployedRules().every(({ verbs, resources }) => ![...verbs, ...resources].includes('*')))
  },
)

t.test('what the provider makes is of the published shape, whatever the settings', async (t) => {
  const specs = [
    sandboxSpec({ image }),
    sandboxSpec({ image, limits: { cpu: 0.25, memoryMb: 256, pids: null }, labels: { team: 'a b/c' } }),
    sandboxSpec({ image, id: `${'Long.Name_'.repeat(9)}x`, limits: { cpu: 8, memoryMb: 16_384, pids: null } }),
  ]
  const installs = [install, { ...install, nodeSelector: { pool: 'agents' }, runtimeClass: 'gvisor' }]
  for (const at of installs) {
    t.equal(validateObject(asObject(ownerManifest(at))), null)
    for (const spec of specs) {
      const pod = asObject(podManifest(at, spec, { owner, network: 'abc' }))
      t.equal(validateObject(pod), null)
      t.strictSame(restrictedViolations(pod), [])
      t.match(pod.metadata.name, /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/)
      for (const value of Object.values(pod.metadata.labels ?? {}))
        t.match(value, /^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$/)
      t.equal(pod.spec.automountServiceAccountToken, false)
      t.notMatch(JSON.stringify(pod), /hgs_conformance/)
    }
    for (const egress of [
      null,
      [],
      [
        { host: '203.0.113.7', port: 443, addresses: ['203.0.113.7'] },
        { host: 'api.example.com', port: 443, addresses: ['198.51.100.1', '2001:db8::1'] },
        { host: 'proxy.tools.svc', port: 8080, addresses: [] },
      ],
    ])
      t.equal(validateObject(asObject(networkManifest(at, { egress, gateway }, owner).policy)), null)
  }
  t.match(validateObject(asObject({ ...ownerManifest(install), dota: {} })), /additional properties/)
  const pod = asObject(podManifest(install, sandboxSpec({ image }), { owner, network: 'abc' }))
  pod.spec.containers[0].securityContext.readOnlyRootFileSystem = true
  t.match(validateObject(pod), /additional properties/, 'a misspelt field is seen')
  delete pod.spec.containers[0].securityContext
  t.equal(restrictedViolations(pod).length, 2, 'a weaker pod is seen')
})

t.test('a pod is named by its sandbox alone, and two sandboxes never share one', async (t) => {
  t.equal(podName('csv-fix-1'), podName('csv-fix-1'))
  t.not(podName('csv.fix'), podName('csv-fix'))
  t.not(podName(`${'x'.repeat(80)}a`), podName(`${'x'.repeat(80)}b`))
})

t.test('egress is the gateway, what is listed, and names only where they are needed', async (t) => {
  const rules = (egress: Parameters<typeof networkManifest>[1]['egress'], at = gateway) =>
    JSON.stringify(networkManifest(install, { egress, gateway: at }, owner).policy['spec'])
  const none = rules([])
  t.match(none, /"kubernetes.io\/metadata.name":"hangar"/)
  t.match(none, /kube-dns/)
  t.notMatch(none, /ipBlock/)
  const numbers = rules([], { host: '192.0.2.1', port: 80, addresses: ['192.0.2.1'] as never[] })
  t.match(numbers, /192\.0\.2\.1\/32/)
  t.notMatch(numbers, /kube-dns/)
  const world = rules(null)
  t.match(world, /"cidr":"0.0.0.0\/0","except":\["10.0.0.0\/8"/)
  t.match(world, /169\.254\.0\.0\/16/, "not the cloud's metadata service")
  t.match(world, /"policyTypes":\["Ingress","Egress"\]/)
  t.notMatch(world, /"ingress"/)
})

t.test('a status is read from its most telling part', async (t) => {
  const pod = (status: object, metadata: object = {}) =>
    podState({ metadata: { name: 'p', ...metadata }, spec: { nodeName: 'n1' }, status } as never)
  const container = (state: object) => ({ containerStatuses: [{ name: 'agent', state }] })
  t.match(pod({ phase: 'Running', ...container({ running: {} }) }), { kind: 'up' })
  t.match(pod({ phase: 'Pending' }), { kind: 'pending', hope: 'good' })
  t.match(pod(container({ waiting: { reason: 'ContainerCreating' } })), { kind: 'pending', hope: 'good' })
  t.match(pod(container({ waiting: { reason: 'ImagePullBackOff', message: 'no' } })), {
    hope: 'small',
    why: 'ImagePullBackOff: no',
  })
  t.match(pod(container({ waiting: { reason: 'InvalidImageName' } })), { hope: 'none' })
  const unschedulable = { type: 'PodScheduled', status: 'False', reason: 'Unschedulable', message: '0/3 nodes' }
  t.match(pod({ phase: 'Pending', conditions: [unschedulable] }), { kind: 'pending', why: 'Unschedulable: 0/3 nodes' })
  const disrupted = {
    type: 'DisruptionTarget',
    status: 'True',
    reason: 'DeletionByTaintManager',
    message: 'node is gone',
  }
  t.match(pod({ phase: 'Running', conditions: [disrupted] }, { deletionTimestamp: 'now' }), {
    reason: /evicted \(DeletionByTaintManager\): node is gone/,
  })
  t.match(pod({ phase: 'Failed', reason: 'Evicted', message: 'low on memory' }), { reason: /evicted: low on memory/ })
  t.match(pod({ phase: 'Failed', reason: 'DeadlineExceeded' }), { reason: /older than/ })
  t.match(pod({ phase: 'Unknown' }), { reason: /node n1 of its pod is lost/ })
  t.match(pod(container({ terminated: { reason: 'OOMKilled', exitCode: 137 } })), { reason: /OOMKilled/ })
  t.match(pod(container({ terminated: { reason: 'Error', exitCode: 2 } })), { reason: /\(Error, exit status 2\)/ })
  t.match(pod({ ...container({ terminated: { reason: 'Completed', exitCode: 0 } }) }, { deletionTimestamp: 'now' }), {
    reason: 'its pod was deleted',
  })
})

t.test('a watch that lags behind tells nothing of the pod that now bears a name', async (t) => {
  const up = { phase: 'Running', containerStatuses: [{ name: 'agent', state: { running: {} } }] }
  const pod = (uid: string, more: Partial<Pod> = {}): Pod => ({ metadata: { name: 'p', uid }, status: up, ...more })
  const deleted = (uid: string): Pod => pod(uid, { metadata: { name: 'p', uid, deletionTimestamp: 'now' } })
  let tell: (type: WatchEvent['type'], object: Pod) => void = () => {}
  let answer: (list: PodList) => void = () => {}
  let begun = () => {}
  const watched = new Promise<void>((resolve) => {
    begun = resolve
  })
  const cluster = {
    listPods: () =>
      new Promise<PodList>((resolve) => {
        answer = resolve
      }),
    watchPods: (_selector: string, { onEvent, signal }: Parameters<Cluster['watchPods']>[1]) => {
      tell = (type, object) => onEvent({ type, object })
      begun()
      return new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
    },
  } as unknown as Cluster
  const watch = createPodWatch({ cluster, selector: '', log: { info() {}, warn() {}, error() {} }, watchSeconds: 60 })
  t.teardown(() => watch.close())
  watch.note(pod('first'))
  watch.noteGone('p', 'its pod was deleted')
  watch.note(pod('second'))
  answer({ items: [], resourceVersion: '1' })
  await watched
  t.equal(watch.get('p')?.metadata.uid, 'second', 'made while the list was on its way')
  tell('MODIFIED', deleted('first'))
  tell('DELETED', deleted('first'))
  t.equal(watch.get('p')?.metadata.uid, 'second')
  t.equal(watch.endOf('p'), null)
  tell('MODIFIED', deleted('second'))
  t.equal(watch.endOf('p'), 'its pod was deleted', 'its own end counts')
  tell('DELETED', deleted('second'))
  t.equal(watch.get('p'), null)
  tell('MODIFIED', pod('second', { status: { phase: 'Failed', reason: 'Evicted', message: 'low on memory' } }))
  t.match(watch.endOf('p'), /evicted: low on memory/, 'a late reason is better than none')
  tell('ADDED', pod('third'))
  t.equal(watch.endOf('p'), null)
})

t.test('a command that fails in a pod that is gone says that it is', async (t) => {
  let gone: string | null = null
  const link = {
    name: 'p',
    cluster: {
      connect: async (_pod: string, _argv: readonly string[], { onEnd }: Parameters<Cluster['connect']>[2]) => {
        setImmediate(() => onEnd({ exitCode: 137 }))
        return { send: async () => {}, pause() {}, resume() {}, close() {} }
      },
    } as unknown as Cluster,
    ended: async () => gone,
    knownEnd: () => gone,
  }
  t.match(await runCommand(link, ['tar'], { forMs: 1_000 }), { exitCode: 137 })
  setTimeout(() => {
    gone = 'its pod was evicted'
  }, 300)
  const late = runCommand(link, ['tar'], { forMs: 5_000 })
  await t.rejects(late, { code: 'sandbox_lost', message: /its pod was evicted/ }, 'told after its commands were killed')
  gone = 'its pod was deleted'
  await t.rejects(runCommand(link, ['tar'], { forMs: 1_000 }), { code: 'sandbox_lost', message: /its pod was deleted/ })
})
