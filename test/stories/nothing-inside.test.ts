/** Inside a sandbox nothing of the server's, of other sandboxes' or of other environments' can be found, and a grant ends with its session. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { freePort, serve } from './served.ts'
import { api, serverEnvironment, shell, temporaryDirectory } from './support.ts'

const SERVER_MARK = 'markserver7f3a9c'
const OTHER_MARK = 'markother5d2e8b'
const SECRET_MARK = 'marksecret1c6f4a'

/** Looks for each mark in environments, arguments, mounts, open files, git's own places, and every file that can be read. */
const SEARCH = String.raw`
for mark in "markserver"7f3a9c "markother"5d2e8b "marksecret"1c6f4a; do
  for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo /proc/[0-9]*/maps; do
    case $file in /proc/$$/*|/proc/self/*) continue;; esac
    tr '\0' '\n' <"$file" 2>/dev/null | grep -q "$mark" && echo "FOUND $mark in $file"
  done
  grep -rlsI --devices=skip "$mark" /home /tmp /run /var /etc /root /srv /opt /mnt 2>/dev/null | sed "s/^/FOUND $mark in /"
  env | grep -q "$mark" && echo "FOUND $mark in the environment"
  git log -g --all --format=%gs 2>/dev/null | grep -q "$mark" && echo "FOUND $mark in a reflog"
done
grep -rlsE --devices=skip 'hgt_[A-Za-z0-9]{20,}' /home /tmp /run /var /etc /root 2>/dev/null | sed 's/^/FOUND a token in /'
ls "$DATA_DIR" >/dev/null 2>&1 && echo "FOUND the data directory"
grep -rlsE 'hgs_[A-Za-z0-9]{20,}' "$HOME/repo/.git" 2>/dev/null | sed 's/^/FOUND a grant in /'
tr '\0' '\n' </proc/self/environ | grep -qE 'hg[ts]_' && echo "FOUND a credential in the environment"
git config --get remote.origin.url | grep -q '@' && echo 'FOUND a credential in the remote'
echo searched
`

const hasBubblewrap = existsSync('/usr/bin/bwrap')

t.test(
  'an agent that searches everything',
  { skip: hasBubblewrap ? false : 'bubblewrap is not installed' },
  async (t) => {
    const dir = temporaryDirectory(t)
    const settings = {
      HANGAR_LISTEN: `127.0.0.1:${await freePort()}`,
      SERVER_ONLY: SERVER_MARK,
      OTHER_KEY: SECRET_MARK,
    }
    const env = serverEnvironment(dir, { agent: 'read -r line; eval "$line"', settings })
    const argv = ['sh', '-c', 'read -r line; case $line in search) sh "$HOME/repo/search.sh";; *) eval "$line";; esac']
    writeFileSync(
      join(dir, 'data', 'hangar.config.json'),
      JSON.stringify({
        environments: {
          default: { harness_options: { argv }, env: { DATA_DIR: join(dir, 'data') } },
          other: { harness_options: { argv }, secrets: { KEY: { from: 'env:OTHER_KEY', phase: 'agent' } } },
        },
      }),
    )
    const served = await serve(t, dir, env)
    const call = (method: string, path: string, body?: unknown) => api(served.url, served.token, { method, path, body })
    await call('POST', '/api/repos', { slug: 'acme/app' })
    await shell(dir, 'git init -q -b main seed && cd seed && echo x >x && git add . && git commit -q -m base')
    writeFileSync(join(dir, 'seed', 'search.sh'), SEARCH)
    await shell(
      join(dir, 'seed'),
      `git add . && git commit -q -m search && git -c http.${served.url}/.extraHeader='Authorization: Bearer ${served.token}' push -q ${served.url}/git/acme/app.git main`,
    )
    const wait = async (name: string) => (await call('GET', `/api/sessions/${name}/wait?timeout_seconds=120`)).body

    // Another session holds its own things, and its agent runs with a secret, while the search goes on.
    await call('POST', '/api/sessions', {
      name: 'other',
      repo: 'acme/app',
      environment: 'other',
      message: `echo ${OTHER_MARK} >"$HOME/private"; echo ${OTHER_MARK} >private; echo ${OTHER_MARK} >"$HANGAR_CONVERSATION/log"; sleep 60`,
    })
    await call('POST', '/api/sessions', { name: 'seeker', repo: 'acme/app', message: 'search' })
    t.match(await wait('seeker'), { outcome: 'exited' })
    const { items } = (await call('GET', '/api/sessions/seeker/events?limit=1000')).body
    const said = items.filter(
      (event: { kind: string; role?: string }) => event.kind === 'message' && event.role === 'assistant',
    )
    t.strictSame(
      said.map((event: { text: string }) => event.text),
      ['searched'],
    )

    const { sandbox } = (await call('GET', '/api/sessions/seeker')).body
    const grantFile = (
      await shell(dir, `grep -rlE 'hgs_[A-Za-z0-9]{20,}' data/sandboxes/${sandbox.id} | head -n 1`)
    ).trim()
    const grant = /hgs_[A-Za-z0-9]+/.exec(readFileSync(join(dir, grantFile), 'utf8'))?.[0] ?? ''
    t.ok(grant.length > 20)
    const fetches = (secret: string, slug = 'acme/app') =>
      shell(dir, `git ls-remote ${served.url.replace('://', `://x:${secret}@`)}/git/${slug}.git 2>&1 || true`)
    t.match(await fetches(grant), /refs\/heads\/main/)
    t.notMatch(await fetches(grant), /hangar\/other/, 'another session is not seen')
    await call('POST', '/api/sessions/seeker/close', {})
    t.notMatch(await fetches(grant), /refs\/heads\/main/, 'a grant ends with its session')
  },
)
