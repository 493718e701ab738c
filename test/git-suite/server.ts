/** The gateway as git's own test scripts want their web server: bare repositories in a directory, at /smart/ for all and at /auth/ with a password. */
import { appendFileSync, existsSync, mkdirSync, renameSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import type { Caller } from '../../domain/grant.ts'
import { DEFAULT_LIMITS } from '../../domain/limits.ts'
import type { RepoSlug } from '../../domain/names.ts'
import { createRepositories } from '../../gateway/git/repositories.ts'
import { createSmartHttp } from '../../gateway/http/smart-http.ts'

const root = process.argv[2] ?? '.'
const OWNER = 'suite'
const ANYONE = 'hgt_anyone'
/** The password that git's scripts give to user@host. */
const PASSWORD = 'pass@host'
const caller: Caller = { kind: 'token', id: 'suite', name: 'suite', scopes: ['admin'], repos: null }

const quiet = { info: () => {}, warn: console.error, error: console.error }
const dataDir = join(root, 'data')
mkdirSync(join(dataDir, 'repos'), { recursive: true })
const repos = join(dataDir, 'repos', OWNER)
mkdirSync(repos, { recursive: true })
const signer = { publicKeyArmored: '', sign: async () => 'no signature' }
const repositories = await createRepositories({ dataDir, signer, log: quiet })
const smart = createSmartHttp({
  repositories,
  authenticate: (secret) => (secret === ANYONE || secret === PASSWORD ? caller : null),
  isLive: () => true,
  events: { append: async () => 0 },
  limits: DEFAULT_LIMITS,
  log: quiet,
  clock: { now: () => Date.now() },
})

const server = createServer({ requestTimeout: 0 }, (req, res) => {
  const asked = req.url ?? '/'
  res.once('finish', () =>
    appendFileSync(
      join(root, 'access.log'),
      `127.0.0.1 - - "${req.method ?? ''} ${asked} HTTP/1.1" ${res.statusCode} ${res.socket?.bytesWritten ?? 1}\n`,
    ),
  )
  const found = /^\/(?:(auth|auth-push|auth-fetch)\/)?smart\/([^/]+?)(\.git)?\/(.*)$/.exec(asked)
  const [, guarded, name = '', suffix = '', rest = ''] = found ?? []
  const at = join(root, 'www', `${name}${suffix}`)
  const dir = [at, join(at, '.git')].find((one) => existsSync(join(one, 'HEAD')))
  if (found === null || dir === undefined) return void res.writeHead(404).end()
  // The scripts make their repositories themselves, and look into them.
  if (!existsSync(join(repos, `${name}.git`))) symlinkSync(dir, join(repos, `${name}.git`))
  const pushes = /git-receive-pack/.test(rest)
  const open = guarded === undefined || (guarded === 'auth-push' && !pushes) || (guarded === 'auth-fetch' && pushes)
  if (open) req.headers.authorization = `Bearer ${ANYONE}`
  req.url = `/git/${OWNER}/${name}.git/${rest}`
  repositories.create(`${OWNER}/${name}` as RepoSlug).then(
    () => smart.handle(req, res),
    () => res.writeHead(404).end(),
  )
})
server.on('checkContinue', smart.checkContinue)
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address() as AddressInfo
  writeFileSync(join(root, 'port.new'), `${port}\n`)
  renameSync(join(root, 'port.new'), join(root, 'port'))
})
