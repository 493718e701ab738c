/**
 * Hand-over and return are exact also with the user's git configuration set to surprising values; and what cannot be carried is refused with
 * a sentence, never dropped in silence.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { must, pooled, sandboxOf, turnOf, whole } from './round-trip.ts'
import { shell, startHangar, workTree } from './support.ts'
import { baseScript, EVERYTHING } from './working-states.ts'

t.setTimeout(2_000_000)
const hangar = await startHangar(t, { agent: 'cat >/dev/null' })
const base = join(hangar.dir, 'base')
mkdirSync(base)
await shell(base, baseScript([]))
const url = `${hangar.url}/git/acme/app.git`
await must(hangar.cli(['repo', 'add', 'acme/app']))
await must(hangar.git(base, ['push', '-q', url, 'main']))

interface Surprise {
  readonly name: string
  readonly settings: Readonly<Record<string, string>>
  /** In the user's own file instead of the repository's. */
  readonly global?: true
}

const hooks = join(hangar.dir, 'hooks')
mkdirSync(hooks)
for (const hook of ['pre-push', 'post-checkout', 'post-index-change', 'reference-transaction', 'pre-auto-gc'])
  writeFileSync(join(hooks, hook), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
const ignoredNames = join(hangar.dir, 'ignored-names')
writeFileSync(ignoredNames, '*.private\n')
const attributes = join(hangar.dir, 'attributes')
writeFileSync(attributes, '* text eol=crlf\n')
const badAttributes = join(hangar.dir, 'bad-attributes')
writeFileSync(badAttributes, '* diff=bad\n')

const SURPRISES: readonly Surprise[] = [
  { name: 'line ends', settings: { 'core.autocrlf': 'true', 'core.safecrlf': 'true', 'core.eol': 'crlf' } },
  { name: 'line ends, by other means', settings: { 'core.autocrlf': 'input', 'core.attributesFile': attributes } },
  {
    name: 'modes and links',
    settings: { 'core.fileMode': 'false', 'core.symlinks': 'false', 'core.ignoreCase': 'true' },
  },
  {
    name: 'diff and apply',
    settings: {
      'diff.noprefix': 'true',
      'diff.mnemonicPrefix': 'true',
      'diff.external': '/bin/false',
      'diff.renames': 'copies',
      'diff.ignoreSubmodules': 'all',
      'diff.orderFile': '/nonexistent',
      'core.quotePath': 'false',
      'apply.whitespace': 'fix',
      'core.whitespace': 'trailing-space,cr-at-eol',
      'color.ui': 'always',
    },
  },
  {
    name: 'diff and apply, the rest of it',
    settings: {
      'diff.submodule': 'log',
      'diff.relative': 'true',
      'diff.context': '0',
      'diff.interHunkContext': '9',
      'diff.algorithm': 'patience',
      'diff.suppressBlankEmpty': 'true',
      'diff.wordRegex': '.',
      'diff.srcPrefix': 'x/',
      'diff.bad.textconv': '/bin/false',
      'diff.bad.command': '/bin/false',
      'diff.bad.binary': 'true',
      'core.attributesFile': badAttributes,
      'core.bigFileThreshold': '1',
      'apply.whitespace': 'error',
      'core.precomposeUnicode': 'true',
      'core.protectHFS': 'true',
    },
  },
  {
    name: 'hooks and signing that fail',
    settings: {
      'core.hooksPath': hooks,
      'commit.gpgSign': 'true',
      'gpg.program': '/bin/false',
      'push.gpgSign': 'true',
      'user.signingKey': 'none',
    },
  },
  {
    name: 'where and what to push',
    settings: {
      'push.default': 'nothing',
      'push.followTags': 'true',
      'push.recurseSubmodules': 'on-demand',
      'remote.pushDefault': 'nowhere',
      'url.http://127.0.0.1:1/.insteadOf': `${hangar.url}/`,
      'url.http://127.0.0.1:2/.pushInsteadOf': `${hangar.url}/`,
      'http.proxy': 'http://127.0.0.1:1',
      'protocol.version': '0',
    },
  },
  {
    name: 'caches',
    settings: {
      'core.fsmonitor': '/bin/false',
      'core.untrackedCache': 'true',
      'core.splitIndex': 'true',
      'core.ignoreStat': 'true',
      'core.trustctime': 'false',
      'core.checkStat': 'minimal',
      'index.version': '4',
    },
  },
  { name: 'what core.excludesFile ignores is not sent', settings: { 'core.excludesFile': ignoredNames } },
  {
    name: 'fetching and merging',
    settings: {
      'fetch.prune': 'true',
      'fetch.fsckObjects': 'true',
      'transfer.fsckObjects': 'true',
      'transfer.hideRefs': 'refs/hangar',
      'core.sparseCheckout': 'false',
      'merge.ff': 'only',
      'pull.rebase': 'true',
      'core.logAllRefUpdates': 'false',
      'status.showUntrackedFiles': 'no',
      'submodule.recurse': 'true',
      'log.showSignature': 'true',
      'i18n.commitEncoding': 'ISO-8859-1',
      'core.abbrev': '4',
    },
  },
]
const EVERY_SETTING = Object.assign({}, ...SURPRISES.map(({ settings }) => settings)) as Record<string, string>

t.test('whatever the configuration says', async (t) => {
  const rows: Surprise[] = [
    ...SURPRISES,
    { name: 'all of it at once', settings: EVERY_SETTING },
    { name: "all of it in the user's own file", settings: EVERY_SETTING, global: true },
  ]
  const trips = pooled(rows, (surprise, place) => tripWith(`config-${place}`, surprise))
  for (const [place, surprise] of rows.entries())
    await t.test(surprise.name, async (t) => {
      const trip = await trips[place]
      if (trip === undefined) throw new Error('no such trip')
      t.strictSame(trip.sandbox, trip.local, 'in')
      t.strictSame(trip.back, trip.sandbox, 'back')
      t.strictSame(trip.repeated, trip.sandbox, 'and once more')
    })
  await t.test('a file that core.autocrlf wrote with CRLF travels as git sees it: one line changed', async (t) => {
    const top = join(hangar.dir, 'crlf', 'app')
    await shell(hangar.dir, 'mkdir crlf; git -c core.autocrlf=true clone -q base crlf/app')
    await shell(top, `git remote set-url origin ${url}; git config core.autocrlf true; printf 'four\\r\\n' >>a`)
    await must(hangar.cli(['session', 'new', 'crlf', 'go', '--from-local'], { cwd: top }))
    await turnOf(hangar, 'crlf')
    const sandbox = await sandboxOf(hangar, 'crlf')
    t.equal(readFileSync(join(sandbox, 'a'), 'utf8'), 'one\ntwo\nthree\nfour\n')
    t.match((await whole(sandbox)).status, /^1 \.M [^\0]* a\0$/, 'nothing else is changed')
  })
})

interface Refusal {
  readonly name: string
  /** What is done in a clone; or, with `instead`, in an empty directory, to make `app` there. */
  readonly make?: string
  readonly instead?: true
  readonly args?: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  readonly status: 2 | 5
  readonly says: RegExp
}

const SUBMODULE = `git init -q ../lib; (cd ../lib; echo l >l; git add l; git commit -q -m lib)
git -c protocol.file.allow=always submodule --quiet add "$PWD/../lib" lib; git commit -q -m 'a submodule'`
const LFS = `printf '*.big filter=lfs diff=lfs merge=lfs -text\\n' >.gitattributes
printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%064d\\nsize 5\\n' 1 >x.big; git add .; git commit -q -m lfs`
const CONFLICT = `git switch -q -c side; echo 1 >>a; git commit -q -a -m 1; git switch -q main; echo 2 >>a; git commit -q -a -m 2
git merge -q side || true`
const SHALLOW = 'git clone -q --depth 1 "file://$PWD/../base" app'

const REFUSALS: readonly Refusal[] = [
  {
    name: 'a repository inside',
    make: 'git init -q in; (cd in; echo x >x; git add x; git commit -q -m in)',
    status: 5,
    says: /repositories of their own: in\/: move them out, ignore them, or add them as submodules/,
  },
  {
    name: 'a repository inside, without any commit',
    make: 'git init -q dir/in; echo x >dir/in/x',
    status: 5,
    says: /repositories of their own: dir\/in\//,
  },
  {
    name: 'a submodule with a changed file',
    make: `${SUBMODULE}; echo x >>lib/l`,
    status: 5,
    says: /submodules with changes .*: lib: commit and push them, or put them back/,
  },
  {
    name: 'a submodule at another commit',
    make: `${SUBMODULE}; (cd lib; git commit -q --allow-empty -m x)`,
    status: 5,
    says: /submodules .* at another commit than recorded: lib/,
  },
  {
    name: 'a submodule with an untracked file that its status does not show',
    make: `${SUBMODULE}; git -C lib config status.showUntrackedFiles no; echo x >lib/new`,
    status: 5,
    says: /submodules with changes .*: lib/,
  },
  {
    name: 'a submodule with a change that is to be ignored',
    make: `${SUBMODULE}; git config submodule.lib.ignore all; git config diff.ignoreSubmodules all; echo x >>lib/l`,
    status: 5,
    says: /submodules with changes .*: lib/,
  },
  {
    name: 'a changed file that is only an LFS pointer here',
    make: `${LFS}; echo x >>x.big`,
    status: 5,
    says: /Git LFS are changed, and their content cannot travel: x\.big: commit and push them first/,
  },
  { name: 'a new LFS file', make: `${LFS}; echo new >new.big`, status: 5, says: /Git LFS .*: new\.big/ },
  {
    name: 'a required filter that fails',
    make: `printf '*.f filter=broken\\n' >.gitattributes; git add .gitattributes; echo x >x.f
git config filter.broken.clean false; git config filter.broken.required true`,
    status: 5,
    says: /the filter 'broken' that .* cannot run here/,
  },
  {
    name: 'a merge that is not finished',
    make: CONFLICT,
    status: 5,
    says: /a merge is not finished: a: finish it \(git add\) or give it up \(git merge --abort\)/,
  },
  {
    name: 'conflicts of a stash',
    make: 'echo 1 >>a; git stash -q; echo 2 >>a; git commit -q -a -m 2; git stash pop -q || true',
    status: 5,
    says: /a merge is not finished: a/,
  },
  {
    name: 'too many bytes that are untracked',
    make: 'head -c 3000000 /dev/zero >huge; echo s >small',
    env: { HANGAR_UNTRACKED_MB: '1' },
    status: 5,
    says: /too much is untracked \(2 files, 2\.9 MB; .* and 1 MB travel\); the biggest: huge \(2\.9 MB\)[\s\S]*HANGAR_UNTRACKED_MB/,
  },
  {
    name: 'too many files that are untracked',
    make: 'mkdir m; touch m/1 m/2 m/3 m/4; echo s >small',
    env: { HANGAR_UNTRACKED_FILES: '3' },
    status: 5,
    says: /too much is untracked .*m\/ \(4 files\)/,
  },
  {
    name: 'a cap that is no number',
    env: { HANGAR_UNTRACKED_MB: 'lots' },
    status: 2,
    says: /HANGAR_UNTRACKED_MB=lots/,
  },
  {
    name: 'a shallow clone whose base the server lacks',
    make: SHALLOW,
    instead: true,
    args: ['--repo', 'acme/other'],
    status: 2,
    says: /this checkout is shallow and acme\/other lacks its older commits; run: git fetch --unshallow/,
  },
  {
    name: 'a shallow clone to be hosted',
    make: SHALLOW,
    instead: true,
    args: ['--repo', 'acme/nowhere', '--create-repo'],
    status: 2,
    says: /this checkout is shallow, .* git fetch --unshallow/,
  },
  {
    name: 'a repository inside of a checkout to be hosted',
    make: 'git init -q in',
    args: ['--repo', 'acme/nowhere', '--create-repo'],
    status: 5,
    says: /repositories of their own: in\//,
  },
  {
    name: 'a bare repository',
    make: 'git clone -q --bare ../base app',
    instead: true,
    status: 2,
    says: /is not in a git checkout/,
  },
  {
    name: 'no repository at all',
    make: 'mkdir app; echo x >app/x',
    instead: true,
    status: 2,
    says: /is not in a git checkout \(fatal: not a git repository.*; change into one, or name a repo with --repo/,
  },
  {
    name: 'object ids that are not sha1',
    make: 'git init -q --object-format=sha256 app; cd app; echo x >x; git add x; git commit -q -m x',
    instead: true,
    status: 2,
    says: /uses sha256 object ids: hangar takes sha1 only/,
  },
]

t.test('what cannot be carried is refused, and nothing is left behind', async (t) => {
  await must(hangar.cli(['repo', 'add', 'acme/other']))
  await shell(hangar.dir, 'git init -q -b main other; cd other; echo o >o; git add o; git commit -q -m other')
  await must(hangar.git(join(hangar.dir, 'other'), ['push', '-q', `${hangar.url}/git/acme/other.git`, 'main']))
  const server = await onServer()
  const trips = pooled(REFUSALS, (refusal, place) => refused(`refused-${place}`, refusal))
  for (const [place, refusal] of REFUSALS.entries())
    await t.test(refusal.name, async (t) => {
      const trip = await trips[place]
      if (trip === undefined) throw new Error('no such trip')
      t.equal(trip.ran.status, refusal.status, trip.ran.err)
      t.match(trip.ran.err, refusal.says)
      t.equal(trip.ran.out, '')
      t.strictSame(trip.after, trip.before, 'not a byte is changed here')
    })
  t.strictSame(await onServer(), server, 'no session, no repo and no pushed checkpoint is left')
})

// --- the parts ------------------------------------------------------------------------------------------------------------

/** Hands much over from a checkout with odd settings, and takes it twice into another with the same. */
async function tripWith(name: string, { settings, global }: Surprise) {
  const dir = join(hangar.dir, name)
  const [top, back, home] = [join(dir, 'app'), join(dir, 'back'), join(dir, 'home')]
  mkdirSync(home, { recursive: true })
  await shell(dir, 'git clone -q ../base app; git clone -q ../base back; echo private >back/x.private')
  await shell(top, `git remote set-url origin ${url}\n${EVERYTHING}\necho private >x.private`)
  const ignored = settings['core.excludesFile'] !== undefined
  const state = async (checkout: string) => {
    const { files, index, head } = await whole(checkout)
    // Ignored by the user's own git only.
    if (ignored && checkout !== sandbox) delete files['x.private']
    return { files, index, head }
  }
  for (const file of global ? [join(home, '.gitconfig')] : [top, back].map((one) => join(one, '.git', 'config')))
    for (const [key, value] of Object.entries(settings))
      await shell(home, `git config --file '${file}' '${key}' '${value}'`)
  const env = { HOME: home }
  await must(hangar.cli(['session', 'new', name, 'go', '--from-local'], { cwd: top, env }), name)
  await turnOf(hangar, name)
  const sandbox = await sandboxOf(hangar, name)
  const pulled = async () => {
    await must(hangar.cli(['session', 'pull', name, '--checkout'], { cwd: back, env }), `pulling ${name}`)
    if (readFileSync(join(back, 'x.private'), 'utf8') !== 'private\n') throw new Error('x.private is not left alone')
    return state(back)
  }
  return { local: await state(top), sandbox: await state(sandbox), back: await pulled(), repeated: await pulled() }
}

async function refused(name: string, { make = ':', instead, args = [], env = {} }: Refusal) {
  const dir = join(hangar.dir, name)
  const top = join(dir, 'app')
  mkdirSync(dir)
  if (instead === true) await shell(dir, make)
  else {
    await shell(dir, 'git clone -q ../base app')
    await shell(top, `git remote set-url origin ${url}\n${make}`)
  }
  const before = entries(top)
  const ran = await hangar.cli(['session', 'new', name, 'go', '--from-local', ...args], { cwd: top, env })
  return { ran, before, after: entries(top) }
}

/** Every file below a directory, those of `.git` included. */
function entries(top: string): Record<string, string> {
  try {
    const git = Object.entries(workTree(join(top, '.git'))).map(([path, entry]) => [`.git/${path}`, entry])
    return { ...workTree(top), ...(Object.fromEntries(git) as Record<string, string>) }
  } catch {
    return workTree(top)
  }
}

async function onServer(): Promise<unknown> {
  const incoming = (repo: string) =>
    hangar.git(base, ['ls-remote', `${hangar.url}/git/acme/${repo}.git`, 'refs/hangar/incoming/*'])
  const [sessions, repos, app, other] = await Promise.all([
    hangar.api('GET', '/api/sessions?limit=200'),
    hangar.api('GET', '/api/repos'),
    incoming('app'),
    incoming('other'),
  ])
  return {
    sessions: sessions.body.items.map(({ name }: { name: string }) => name),
    repos: repos.body.items.map(({ slug }: { slug: string }) => slug),
    incoming: [app.out, other.out],
  }
}
