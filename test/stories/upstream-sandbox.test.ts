/** Inside a sandbox git works as if upstream were there: by https, ssh and scp URLs, with submodules, partial and shallow clones; and no further than it may. */
import { join } from 'node:path'
import t from 'tap'
import { GithubPeer } from '../peers/github/peer.ts'
import { refsOf, work } from './mirrored.ts'
import { shell, startHangar, temporaryDirectory } from './support.ts'

/** The message is a script; what it says is committed. */
const AGENT =
  'cat >"$HOME/do.sh"; sh "$HOME/do.sh" >report.txt 2>&1 </dev/null; git add report.txt; git commit -qm report'

t.test('a sandbox reaches its repo and those that it may read by the URLs of their upstreams', async (t) => {
  const dir = temporaryDirectory(t)
  const peer = await GithubPeer.start(t, join(dir, 'github'))
  const named = (name: string) => peer.addRepo('acme', name)
  const [app, lib, docs, hidden] = [named('app'), named('lib'), named('app-docs'), named('hidden')]
  const host = new URL(peer.url).hostname
  const modules = [
    ['absolute', lib.url()],
    ['relative', '../lib.git'],
    ['scp', `git@${host}:acme/lib`],
    ['hidden', hidden.url()],
  ]
  await shell(
    dir,
    `make() { git init -q -b main $1 && cd $1 && shift && "$@" && git add . && git commit -qm one && cd ..; }
     file() { echo "this is $1" >$1.txt; }
     make lib file lib; make docs file docs; make hidden file hidden
     (cd lib && git push -q '${lib.dir}' main); (cd docs && git push -q '${docs.dir}' main); (cd hidden && git push -q '${hidden.dir}' main)
     oid=$(git -C lib rev-parse HEAD); other=$(git -C hidden rev-parse HEAD)
     git init -q -b main app && cd app && file old && git add . && git commit -qm zero && git rm -q old.txt && file app
     ${modules.map(([name, url]) => `git config -f .gitmodules submodule.${name}.path ${name}; git config -f .gitmodules submodule.${name}.url '${url}'`).join('\n')}
     git add . && for name in absolute relative scp; do git update-index --add --cacheinfo 160000,$oid,$name; done
     git update-index --add --cacheinfo 160000,$other,hidden
     git commit -qm one && git push -q '${app.dir}' main`,
  )
  const pat = peer.tokens.person()
  const credential = 'env:HANGAR_CREDENTIAL_PAT'
  const hangar = await startHangar(t, {
    agent: 'true',
    settings: { HANGAR_UPSTREAM_ALLOW_PRIVATE_ADDRESSES: 'true', HANGAR_CREDENTIAL_PAT: pat },
    config: {
      environments: { default: { harness_options: { argv: ['sh', '-c', AGENT] } } },
      repos: {
        'acme/app': { upstream: app.url(), credential, may_read: ['libs/lib', 'acme/tools'] },
        'libs/lib': { upstream: lib.url(), credential },
        'acme/hidden': { upstream: hidden.url(), credential },
        'acme/tools': {},
      },
    },
  })
  const gateway = `${hangar.url}/git`
  const seeded = await hangar.git(join(dir, 'docs'), ['push', '-q', `${gateway}/acme/tools.git`, 'main'])
  t.equal(seeded.status, 0, seeded.err)
  const tip = await shell(join(dir, 'app'), 'git rev-parse HEAD')
  peer.fail({ on: /acme\/moved/, status: 302, headers: { Location: `${gateway}/acme/app.git/info/refs` }, times: 9 })

  const forms = [app.url(), app.url().replace(/\.git$/, ''), `ssh://git@${host}/acme/app.git`, `git@${host}:acme/app`]
  const script = `
say() { echo "$1: $2"; }
for form in ${forms.join(' ')}; do say "$form" "$(git ls-remote "$form" refs/heads/main | cut -f 1)"; done
git submodule update --quiet --init absolute relative scp; for at in absolute relative scp; do say "$at" "$(cat $at/lib.txt)"; done
git submodule update --quiet --init hidden; say hidden "$(ls hidden)"
cd "$HOME"
git clone -q 'git@${host}:acme/app.git' cloned; say cloned "$(cat cloned/app.txt) $(git -C cloned rev-list --count HEAD)"
git clone -q --recurse-submodules=relative --shallow-submodules ${app.url()} recursive; say recursive "$(cat recursive/relative/lib.txt)"
git clone -q --depth 1 ssh://git@${host}/acme/app.git shallow; say shallow "$(git -C shallow rev-list --count HEAD)"
git -C shallow fetch -q --unshallow; say unshallowed "$(git -C shallow rev-list --count HEAD)"
git clone -q --filter=blob:none ${app.url()} partial
say partial "$(cat partial/app.txt), $(git -C partial rev-list --objects --all --missing=print | grep -c '^?') missing"
say lazy "$(git -C partial show HEAD~1:old.txt)"
git clone -q ${gateway}/acme/tools.git tools; say hosted "$(cat tools/docs.txt)"
cd cloned; git fetch -q; say fetched $?
echo more >more.txt; git add .; git commit -qm more; git push -q origin HEAD:hangar/looks; say pushed "$?"
git push origin HEAD:main; say main "$?"
git -C "$OLDPWD/tools" push origin HEAD:refs/heads/hangar/looks; say tools "$?"
git -C "$OLDPWD/recursive/relative" push origin HEAD:refs/heads/mine; say lib "$?"
for url in ${hidden.url()} ${gateway}/acme/hidden.git ${docs.url()} ${peer.url}/acme/moved.git; do git ls-remote "$url"; say "$url" "$?"; done
printf 'protocol=http\\nhost=${new URL(peer.url).host}\\n\\n' | git credential fill; say credential "$?"
cd "$HOME/repo"; git fetch -q origin hangar/looks && git reset -q --hard FETCH_HEAD
exit 0
`
  const { body } = await work({ hangar }, 'looks', script)
  t.equal(body.turns[0].outcome, 'exited')
  const report = await shell(
    join(hangar.dataDir, 'repos', 'acme', 'app.git'),
    `git -c safe.directory=* show ${body.head_commit}:report.txt`,
  )
  for (const form of forms) t.match(report, `${form}: ${tip.trim()}\n`)
  for (const module of ['absolute', 'relative', 'scp', 'recursive']) t.match(report, `${module}: this is lib\n`)
  t.match(report, 'hidden: \n')
  t.match(report, 'cloned: this is app 2\n')
  t.match(report, 'shallow: 1\nunshallowed: 2\n')
  t.match(report, 'partial: this is app, 1 missing\nlazy: this is old\n')
  t.match(report, 'hosted: this is docs\nfetched: 0\npushed: 0\n')
  t.match(
    report,
    /! \[remote rejected\] HEAD -> main \(this grant may push only refs\/heads\/hangar\/looks\)[\s\S]*main: 1\n/,
  )
  const guest = "(this repo is not the session's: its sandbox may only fetch from it)"
  t.match(report, `HEAD -> hangar/looks ${guest}`)
  t.match(report, `HEAD -> mine ${guest}`)
  t.match(report, 'tools: 1\n')
  t.match(report, 'lib: 1\n')
  for (const url of [hidden.url(), `${gateway}/acme/hidden.git`, docs.url(), `${peer.url}/acme/moved.git`])
    t.match(report, `${url}: 128\n`)
  t.match(report, 'credential: 128\n')
  t.match(report, /terminal prompts disabled/)
  t.notMatch(report, /hgs_|github_pat_/)

  const asked = peer.requests.filter(({ as }) => as === 'nobody').map(({ what }) => what.replace(/\?.*/, ''))
  t.ok(asked.includes('GET /acme/app-docs.git/info/refs'), 'a longer name is asked for where it is')
  const tools = await hangar.git(dir, ['ls-remote', `${gateway}/acme/tools.git`])
  t.match(tools.out, /^\w+\tHEAD\n\w+\trefs\/heads\/main\n$/, 'nothing moved in a repo that it may read')
  const mirrored = { hangar, peer, repo: app, seed: dir, pat }
  t.match(await refsOf(mirrored, 'refs/heads/main'), [`refs/heads/main ${tip.trim()}`])
  t.strictSame(peer.violations, [])
})
