import t from 'tap'
import { readConfig } from '../../domain/config.ts'
import type { Provider, SandboxLimits } from '../../domain/sandbox.ts'
import { createEnvironments } from '../../surfaces/environments.ts'

const keeping = (...limits: (keyof SandboxLimits)[]) =>
  ({ capabilities: () => ({ pause: true, limits, network: true }) }) as unknown as Provider

t.test('a limit that cannot be kept stops the start, with a way out', async (t) => {
  const dir = t.testdir({
    'hangar.config.json': '{"environments": {"small": {"limits": {"memory_mb": 512, "pids": 64}}}}',
  })
  const config = readConfig({ env: { HANGAR_DATA: dir } })
  const open = (local: Provider) =>
    createEnvironments({ config, providers: new Map([['local', local]]), url: 'http://127.0.0.1:1' })
  t.throws(() => open(keeping('memoryMb')), {
    code: 'config_invalid',
    message: /^environments\.small\.limits: limits\.pids needs control groups .*Delegate=yes.*take the limit out/,
  })
  t.doesNotThrow(() => open(keeping('memoryMb', 'pids')))
})
