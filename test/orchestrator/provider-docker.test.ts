/** The docker provider against a real engine: the suite of every provider, and what only an engine can do wrong. */
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { openDockerProvider } from '../../orchestrator/providers/docker.ts'
import { startDocker } from './docker-host.ts'
import { conformance } from './provider-conformance.ts'

const helperFile = fileURLToPath(new URL('../../../agent-helper/hangar-agent', import.meta.url))
const silent = { info() {}, warn() {}, error() {} }
t.setTimeout(600_000)

const host = await startDocker()
if (typeof host === 'string') t.test('docker', { skip: host }, async () => {})
else {
  t.teardown(() => host.close())
  const { socketPath, image, mounts } = host
  const open = () => openDockerProvider({ socketPath, helperFile, instance: 'of-the-test', log: silent })
  const provider = await open()
  const again = await open()
  await conformance(t, 'docker', { provider, again: () => again, isolated: true, spec: { image, mounts } })
}
