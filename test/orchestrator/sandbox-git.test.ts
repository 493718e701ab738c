/** Git's configuration of a sandbox, asked of git itself: where each URL leads, and who gets the grant. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import type { RepoSlug } from '../../domain/names.ts'
import { gitConfig } from '../../orchestrator/providers/sandbox-git.ts'
import { run } from '../stories/support.ts'

const GATEWAY = 'http://127.0.0.1:4264'
const mirror = (repo: string, url: string) => ({ repo: repo as RepoSlug, url })

t.test('URLs of readable upstreams lead to the gateway, and no other does', async (t) => {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-sandbox-git-'))
  t.teardown(() => rmSync(dir, { recursive: true, force: true }))
  writeFileSync(join(dir, 'grant'), 'hgs_1\n')
  const mirrors = [
    mirror('acme/app', 'https://github.com/acme/app.git'),
    mirror('acme/app-docs', 'https://github.com/acme/app-docs'),
    mirror('libs/lib', 'https://github.com/acme/lib.git'),
    mirror('libs/deep', 'https://forge.example:8443/group/sub/deep.git'),
  ]
  const spec = { gatewayUrl: GATEWAY, repo: 'acme/app' as RepoSlug, mirrors }
  writeFileSync(join(dir, 'gitconfig'), gitConfig(spec, join(dir, 'grant')))
  const env = {
    PATH: process.env['PATH'] ?? '',
    HOME: dir,
    GIT_CONFIG_SYSTEM: join(dir, 'gitconfig'),
    GIT_TERMINAL_PROMPT: '0',
  }
  const git = (args: string[], input = '') => run('git', args, { cwd: dir, env, input })

  const leads: Record<string, readonly string[]> = {
    'acme/app.git': [
      'https://github.com/acme/app.git',
      'https://github.com/acme/app',
      'ssh://git@github.com/acme/app.git',
      'ssh://git@github.com/acme/app',
      'git@github.com:acme/app.git',
      'git@github.com:acme/app',
    ],
    'acme/app.git/': ['https://github.com/acme/app/', 'git@github.com:acme/app.git/'],
    'acme/app-docs.git': ['https://github.com/acme/app-docs', 'git@github.com:acme/app-docs.git'],
    'libs/lib.git': [
      'https://github.com/acme/lib',
      'ssh://git@github.com/acme/lib',
      // What ../lib.git in .gitmodules becomes beside the origin.
      `${GATEWAY}/git/acme/lib.git`,
      `${GATEWAY}/git/acme/lib`,
      `${GATEWAY}/git/libs/lib.git`,
    ],
    'libs/deep.git': [
      'https://forge.example:8443/group/sub/deep.git',
      'git@forge.example:group/sub/deep.git',
      'ssh://git@forge.example/group/sub/deep',
    ],
  }
  for (const [path, urls] of Object.entries(leads))
    for (const url of urls)
      t.equal((await git(['ls-remote', '--get-url', url])).out.trim(), `${GATEWAY}/git/${path}`, url)
  const others = [
    'https://github.com/acme/app-secret.git',
    'https://github.com/acme/app2',
    'https://github.com/acme/app_2',
    'https://github.com/acme/app.github.io',
    'https://github.com/acme/app.github.io.git',
    'https://github.com/acme/app-docs2.git',
    'https://github.com/acme',
    'https://github.com/evil/app.git',
    'https://github.com.evil.example/acme/app.git',
    'ssh://git@github.com/acme/app-secret',
    'git@github.com:acme/app-secret.git',
    'git@github.com:acme/app.gitignore',
    'https://forge.example/group/sub/deep.git',
    `${GATEWAY}/git/acme/lib-2.git`,
  ]
  for (const url of others) t.equal((await git(['ls-remote', '--get-url', url])).out.trim(), url)

  const fill = (protocol: string, host: string) => git(['credential', 'fill'], `protocol=${protocol}\nhost=${host}\n\n`)
  t.match((await fill('http', '127.0.0.1:4264')).out, /password=hgs_1\n/)
  for (const [protocol, host] of [
    ['https', 'github.com'],
    ['http', '127.0.0.1'],
    ['http', '127.0.0.1:42640'],
    ['https', '127.0.0.1:4264'],
  ] as const) {
    const asked = await fill(protocol, host)
    t.not(asked.status, 0, `${protocol}://${host}`)
    t.notMatch(asked.out + asked.err, /hgs_/)
  }
})
