/** `limits.untracked_mb`: what is handed over has to fit, and of what an agent leaves the biggest files stay out of git, by name. */
import { join } from 'node:path'
import t from 'tap'
import { readConfig } from '../../domain/config.ts'
import { shell, startHangar } from './support.ts'

const AGENT = 'read -r line; eval "$line"'

t.test('the cap of an environment on untracked bytes', { timeout: 120_000 }, async (t) => {
  const argv = { harness_options: { argv: ['sh', '-c', AGENT] } }
  const hangar = await startHangar(t, {
    agent: AGENT,
    config: { environments: { default: argv, small: { ...argv, limits: { untracked_mb: 1 } } } },
  })
  const mine = join(hangar.dir, 'mine')
  await shell(hangar.dir, 'git init -q -b main mine; cd mine; echo one >a.txt; git add .; git commit -q -m base')
  await shell(mine, 'mkdir data; head -c 700000 /dev/zero >data/one; head -c 800000 /dev/zero >data/two')
  const hand = (name: string, environment: string) =>
    hangar.cli(
      [
        'session',
        'new',
        name,
        'ls data',
        '--from-local',
        '--create-repo',
        '--repo',
        'acme/app',
        '--env',
        environment,
        '-w',
      ],
      { cwd: mine },
    )
  t.match(await hand('roomy', 'default'), { status: 0 }, 'the default takes it')
  const refused = await hand('narrow', 'small')
  t.equal(refused.status, 2)
  t.match(
    refused.err,
    /untracked files have 1\.4 MB, and the environment takes 1 \(limits\.untracked_mb\); the biggest is "data\/two" with 0\.8 MB/,
  )
  t.equal((await hangar.api('GET', '/api/sessions/narrow')).status, 404, 'and nothing of it is left')

  const message =
    'mkdir data; head -c 600000 /dev/zero >data/big; head -c 500000 /dev/zero >data/less; echo kept >data/kept'
  await hangar.api('POST', '/api/sessions', { name: 'out', repo: 'acme/app', environment: 'small', message })
  await hangar.api('GET', '/api/sessions/out/wait?timeout_seconds=60')
  const [turn] = (await hangar.api('GET', '/api/sessions/out')).body.turns
  t.equal(turn.outcome, 'exited')
  t.match(turn.warnings, [
    /left out, since too much is untracked \(3 files, 1\.0 MB; .* and 1 MB travel\): data\/big \(0\.6 MB\)$/,
  ])
  const repo = join(hangar.dataDir, 'repos', 'acme', 'app.git')
  const kept = await shell(repo, `git -c safe.directory=* ls-tree -r --name-only ${turn.checkpoint}^3`)
  t.equal(kept, 'data/kept\ndata/less\n', 'the rest is in git')
  t.strictSame(
    readConfig({ env: { HANGAR_DATA: hangar.dataDir } }).environments.get('small')?.maxUntrackedBytes,
    1_048_576,
  )
})
