/** Other git clients at the gateway: each clones, pushes, and shows the sentence of a refusal. */
import { execFile, execFileSync, spawnSync } from 'node:child_process'
import fs, { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import git, { Errors } from 'isomorphic-git'
import http from 'isomorphic-git/http/node'
import t, { type Test } from 'tap'
import { type GitServer, gitServerOf } from '../gateway/git-server.ts'

const SENTENCE = 'this grant may push only refs/heads/hangar/csv-fix'
const PYTHON = '/usr/bin/python3'

async function served(t: Test): Promise<{ s: GitServer; dir: string }> {
  const s = await gitServerOf(t)
  const dir = t.testdirName
  const work = await s.work('work')
  writeFileSync(join(work, 'file'), 'one\n')
  await s.git(work, 'add', '.')
  await s.git(work, 'commit', '-qm', 'a file')
  await s.git(work, 'push', '-q', 'origin', 'main')
  return { s, dir }
}

/** Why a Python module cannot be used here; false when it can. */
function lacking(module: string): string | false {
  if (!existsSync(PYTHON)) return `${PYTHON} is not here`
  try {
    execFileSync(PYTHON, ['-c', `import ${module}`], { stdio: 'ignore' })
    return false
  } catch {
    return `the Python module ${module} is not here`
  }
}

function python(script: string, ...args: string[]): Promise<{ code: number; out: string }> {
  return new Promise((resolve) => {
    execFile(PYTHON, ['-c', script, ...args], { encoding: 'utf8', timeout: 60_000 }, (error, out, err) =>
      resolve({ code: error === null ? 0 : 1, out: out + err }),
    )
  })
}

t.test('isomorphic-git', async (t) => {
  const { s, dir } = await served(t)
  const clone = join(dir, 'clone')
  const onAuth = () => ({ username: 'x', password: 'hgs_fix' })
  await git.clone({ fs, http, dir: clone, url: s.url, onAuth })
  writeFileSync(join(clone, 'file'), 'two\n')
  await git.add({ fs, dir: clone, filepath: 'file' })
  const author = { name: 'a', email: 'a@example.com' }
  const oid = await git.commit({ fs, dir: clone, message: 'two', author })
  await git.push({ fs, http, dir: clone, onAuth, ref: 'main', remoteRef: 'refs/heads/hangar/csv-fix' })
  t.equal(await s.ref('refs/heads/hangar/csv-fix'), oid)
  const refused = await git.push({ fs, http, dir: clone, onAuth, ref: 'main', remoteRef: 'refs/heads/main' }).then(
    () => null,
    (error: unknown) => error,
  )
  t.ok(refused instanceof Errors.GitPushError)
  t.match(JSON.stringify((refused as { data?: unknown }).data), SENTENCE)
})

t.test('dulwich', { skip: lacking('dulwich') }, async (t) => {
  const { s, dir } = await served(t)
  const script = `
import sys
from dulwich import porcelain
url, path = sys.argv[1:3]
repo = porcelain.clone(url, path, username='x', password='hgs_fix', errstream=sys.stderr.buffer)
open(path + '/file', 'w').write('two\\n')
porcelain.add(repo, [path + '/file'])
print('made', porcelain.commit(repo, b'two', author=b'a <a@b>', committer=b'a <a@b>').decode())
for ref in ['refs/heads/hangar/csv-fix', 'refs/heads/main']:
    try:
        porcelain.push(repo, url, 'refs/heads/main:' + ref, username='x', password='hgs_fix', outstream=sys.stdout.buffer, errstream=sys.stdout.buffer)
    except Exception as error:
        print(type(error), error)
`
  const { out } = await python(script, s.url, join(dir, 'clone'))
  t.equal(await s.ref('refs/heads/hangar/csv-fix'), /made ([0-9a-f]{40})/.exec(out)?.[1], out)
  t.match(out, SENTENCE)
})

t.test('libgit2', { skip: lacking('pygit2') }, async (t) => {
  const { s, dir } = await served(t)
  const script = `
import sys, os, pygit2
url, path = sys.argv[1:3]
class Callbacks(pygit2.RemoteCallbacks):
    def credentials(self, url, user, allowed):
        return pygit2.UserPass('x', 'hgs_fix')
    def push_update_reference(self, ref, message):
        print('answer', ref, message)
repo = pygit2.clone_repository(url, path, callbacks=Callbacks())
open(path + '/file', 'wb').write(os.urandom(3000000))
repo.index.add('file')
who = pygit2.Signature('a', 'a@b')
oid = repo.create_commit('HEAD', who, who, 'two', repo.index.write_tree(), [repo.head.target])
print('made', oid)
for ref in ['refs/heads/hangar/csv-fix', 'refs/heads/main']:
    repo.remotes['origin'].push(['refs/heads/main:' + ref], callbacks=Callbacks())
`
  const { out } = await python(script, s.url, join(dir, 'clone'))
  t.equal(await s.ref('refs/heads/hangar/csv-fix'), /made ([0-9a-f]{40})/.exec(out)?.[1], out)
  t.match(out, 'answer refs/heads/hangar/csv-fix None')
  t.match(out, `answer refs/heads/main ${SENTENCE}`)
})

const JARS = '/usr/share/java'
const JGIT = fileURLToPath(new URL('../../../test/peers/jgit/Client.java', import.meta.url))

/** Why JGit cannot be used here; false when it can. */
function lackingJgit(): string | false {
  if (!existsSync(join(JARS, 'org.eclipse.jgit.jar'))) return `JGit (libjgit-java) is not in ${JARS}`
  return spawnSync('javac', ['-version']).status === 0 ? false : 'there is no Java compiler (default-jdk-headless)'
}

t.test('JGit', { skip: lackingJgit() }, async (t) => {
  const { s, dir } = await served(t)
  const refs = ['refs/heads/hangar/csv-fix', 'refs/heads/main']
  const args = ['-cp', `${JARS}/*`, JGIT, s.url, join(dir, 'clone'), 'hgs_fix', ...refs]
  const out = await new Promise<string>((resolve) => {
    const env = { ...process.env, HOME: dir }
    execFile('java', args, { env, timeout: 120_000 }, (_, out, err) => resolve(out + err))
  })
  const made = /made ([0-9a-f]{40})/.exec(out)?.[1]
  t.equal(await s.ref('refs/heads/hangar/csv-fix'), made, out)
  t.match(out, 'answer refs/heads/hangar/csv-fix OK null')
  t.match(out, `answer refs/heads/main REJECTED_OTHER_REASON ${SENTENCE}`)
  t.match(out, `fetched refs/heads/hangar/csv-fix ${made}`)
})
