/** Upstreams in tables: what URL is taken, which addresses are public, what git's words mean, what settings say. */
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { readConfig } from '../../domain/config.ts'
import { HangarError } from '../../domain/errors.ts'
import { isPublicAddress } from '../../domain/public-address.ts'
import { parseUpstreamUrl, type Upstream } from '../../domain/upstream.ts'
import { pinAddress } from '../../gateway/upstream/address.ts'
import { createCredentials } from '../../gateway/upstream/credentials.ts'
import { isTransient, upstreamFailure } from '../../gateway/upstream/failure.ts'

const codeOf = (work: () => unknown): string => {
  try {
    work()
    return 'taken'
  } catch (error) {
    return error instanceof HangarError ? error.code : String(error)
  }
}

t.test("an upstream's URL", async (t) => {
  t.equal(parseUpstreamUrl('https://GitHub.com/acme/app.git/', false), 'https://github.com/acme/app.git')
  t.equal(parseUpstreamUrl('http://127.0.0.1:8080/acme/app', true), 'http://127.0.0.1:8080/acme/app')
  const refused = [
    'http://github.com/acme/app.git',
    'http://127.0.0.1/acme/app.git',
    'ssh://git@github.com/acme/app.git',
    'git@github.com:acme/app.git',
    'ext::sh -c id',
    'file:///etc',
    '--upload-pack=id',
    'https://github.com/',
    'https://github.com/acme/app.git?x=1',
    'https://github.com/acme/app.git#x',
    '',
  ]
  for (const url of refused)
    t.equal(
      codeOf(() => parseUpstreamUrl(url, false)),
      'invalid_request',
      url,
    )
  t.equal(
    codeOf(() => parseUpstreamUrl('http://10.0.0.1/acme/app.git', true)),
    'invalid_request',
    'plain http off loopback',
  )
  for (const url of ['https://me:s3cret@github.com/acme/app.git', 'https://s3cret@github.com/acme/app.git'])
    try {
      parseUpstreamUrl(url, false)
      t.fail(url)
    } catch (error) {
      t.notMatch((error as Error).message, /s3cret/)
    }
})

t.test('public addresses', async (t) => {
  for (const address of ['140.82.121.3', '8.8.8.8', '2606:50c0:8000::154', '2a00:1450::1'])
    t.ok(isPublicAddress(address), address)
  const private_ = [
    ...[
      '0.0.0.0',
      '10.1.2.3',
      '100.64.0.1',
      '127.0.0.1',
      '169.254.169.254',
      '172.16.0.1',
      '192.168.1.1',
      '224.0.0.1',
      '255.255.255.255',
    ],
    ...[
      '::',
      '::1',
      '::127.0.0.1',
      '::ffff:127.0.0.1',
      'fe80::1',
      'fd00::1',
      'ff02::1',
      '2001:db8::1',
      '2002:7f00:1::',
      '64:ff9b::7f00:1',
    ],
    ...['localhost', '', '127.1'],
  ]
  for (const address of private_) t.notOk(isPublicAddress(address), address)
  // URL writes every form of an IPv4 address as four numbers.
  for (const host of ['127.1', '0x7f.1', '2130706433', '[::1]', '[::ffff:7f00:1]'])
    await t.rejects(pinAddress(`https://${host}/acme/app.git`, false), { code: 'upstream_denied' }, host)
  await t.rejects(pinAddress('https://localhost/acme/app.git', false), { code: 'upstream_denied' }, 'by name')
  t.match(await pinAddress('https://localhost/acme/app.git', true), /^localhost:443:/)
  t.equal(await pinAddress('https://140.82.121.3/acme/app.git', false), null)
})

t.test("what git's words mean", async (t) => {
  const url = 'https://github.com/acme/app.git'
  const table = [
    [`fatal: Authentication failed for '${url}/'`, 'upstream_denied'],
    ["fatal: could not read Username for 'https://github.com': terminal prompts disabled", 'upstream_denied'],
    [`fatal: unable to access '${url}/': The requested URL returned error: 403`, 'upstream_denied'],
    [`fatal: unable to access '${url}/': The requested URL returned error: 429`, 'upstream_busy'],
    [`fatal: unable to access '${url}/': The requested URL returned error: 301`, 'upstream_renamed'],
    [`remote: Repository not found.\nfatal: repository '${url}/' not found`, 'upstream_gone'],
    [`fatal: unable to access '${url}/': The requested URL returned error: 502`, 'upstream_unreachable'],
    [`fatal: unable to access '${url}/': Could not resolve host: github.com`, 'upstream_unreachable'],
    [`fatal: unable to access '${url}/': Failed to connect to github.com port 443`, 'upstream_unreachable'],
    ['error: RPC failed; curl 18 transfer closed\nfatal: early EOF', 'upstream_unreachable'],
    ['', 'upstream_unreachable'],
  ]
  for (const [words = '', code] of table) t.equal(upstreamFailure(url, words).code, code, words)
  t.ok(isTransient(upstreamFailure(url, 'fatal: early EOF')))
  t.notOk(isTransient(upstreamFailure(url, 'fatal: Authentication failed')))
})

t.test('settings of upstreams', async (t) => {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-upstream-'))
  writeFileSync(join(dir, 'key.pem'), '-----BEGIN KEY-----\nabcdef\n-----END KEY-----\n')
  const read = (file: object, env: Record<string, string> = {}) => {
    writeFileSync(join(dir, 'hangar.config.json'), JSON.stringify(file))
    return readConfig({ env: { HANGAR_DATA: dir, ...env } }).upstreams
  }
  const url = 'https://github.com/acme/app.git'
  const repos = { 'acme/app': { upstream: url, credential: 'github-app', may_read: ['acme/own'] }, 'acme/own': {} }
  const github = { app_id: 7, app_private_key_file: join(dir, 'key.pem'), token: { from: 'env:PAT' } }
  const config = read(
    { repos, github },
    { PAT: 'ghp_secret1', HANGAR_CREDENTIAL_LAB: 'glpat_secret2', HANGAR_UPSTREAM_FRESH_SECONDS: '2.5' },
  )
  t.match(config, {
    github: { apiUrl: 'https://api.github.com', app: { id: 7 }, token: 'ghp_secret1' },
    freshMs: 2_500,
  })
  t.same(
    [...config.repos],
    [
      ['acme/app', { url, credential: 'github-app' }],
      ['acme/own', null],
    ],
  )
  t.same(
    [...config.mayRead],
    [
      ['acme/app', ['acme/own']],
      ['acme/own', []],
    ],
  )
  t.same([...config.secrets], [['env:HANGAR_CREDENTIAL_LAB', 'glpat_secret2']])

  const credentials = createCredentials(config, { token: async ({ renew }) => (renew ? 'ghs_2' : 'ghs_1') })
  const named = (credential: string, at = url) => ({ url: at, credential }) as Upstream
  t.match(await credentials.for(named('github-token'), 'read'), {
    username: 'x-access-token',
    password: 'ghp_secret1',
    renew: null,
  })
  t.match(
    await (await credentials.for(named('github-app'), 'read'))?.renew?.(),
    { password: 'ghs_2', renew: null },
    'anew once',
  )
  t.equal(await credentials.for({ url, credential: null }, 'read'), null)
  const elsewhere = named('github-token', 'https://evil.example/acme/app.git')
  t.equal(
    codeOf(() => credentials.check(elsewhere)),
    'invalid_request',
    "GitHub's token goes to GitHub alone",
  )
  await t.rejects(credentials.for(elsewhere, 'read'), { code: 'upstream_denied' })
  t.equal(
    codeOf(() => credentials.checkNameable(named('env:PAT'))),
    'forbidden',
    'what else the environment holds is nobody’s to send',
  )
  t.equal(
    codeOf(() => credentials.checkNameable(named('file:/etc/shadow'))),
    'forbidden',
  )
  t.equal(
    codeOf(() => credentials.checkNameable(named('env:HANGAR_CREDENTIAL_LAB'))),
    'taken',
  )

  for (const [file, words] of [
    [
      { repos: { 'acme/app': { upstream: 'https://x:y@github.com/a/b' } } },
      /repos\.acme\/app\.upstream.*user or password/,
    ],
    [{ repos: { 'acme/app': { upstream: url, credential: 'env:NOT_SET' } } }, /repos\.acme\/app\.credential.*not set/],
    [{ repos: { 'acme/app': { credential: 'github-app' } } }, /no upstream/],
    [{ repos: { nonsense: {} } }, /repos\.nonsense/],
    [{ repos: { 'acme/app': { may_read: ['../x'] } } }, /repos\.acme\/app\.may_read/],
    [{ upstream: { ca_file: join(dir, 'none.pem') } }, /upstream\.ca_file.*none\.pem.*cannot be read/],
    [{ upstream: { ca_file: join(dir, 'key.pem') } }, /upstream\.ca_file.*no certificate/],
    [{ github: { app_id: 7 } }, /go together/],
    [{ github: { api_url: 'http://github.example/api/v3' } }, /api_url/],
    [{ environments: { default: { forward: 'sometimes' } } }, /on_delivery, on_push/],
  ] as const)
    t.throws(() => read(file), { code: 'config_invalid', message: words }, JSON.stringify(file))
})
