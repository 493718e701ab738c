/** Half-finished work goes in and comes back without hangar's CLI: as a bundle and a patch, and by plain git. */
import { mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { must, pooled, sandboxOf, turnOf, type Whole, whole } from './round-trip.ts'
import { type ApiAnswer, run, shell, startHangar } from './support.ts'
import { asItShouldReturn, baseScript, EVERYTHING, STATES, type WorkingState, within } from './working-states.ts'

t.setTimeout(2_000_000)
const hangar = await startHangar(t, { agent: 'read -r line; eval "$line"' })
const url = `${hangar.url}/git/acme/app.git`
const BESIDE = STATES.filter((state) => state.alone !== true).map((state, at) => ({ ...state, place: `s${at}` }))
/** In one checkout; without the links that the way does not carry. */
const together = (carriesLinksOut: boolean): WorkingState => ({
  name: 'many states side by side',
  make: BESIDE.map(({ make, place, linksOut = [] }) =>
    [`(cd ${place}; ${make})`, ...(carriesLinksOut ? [] : linksOut.map((path) => `rm ${place}/${path}`))].join('\n'),
  ).join('\n'),
})
/** What plain git can name: it has no stash, bundle or diff of an unborn branch. */
const ALONE = STATES.filter(
  (state) => state.alone === true && state.checkout === undefined && !/unborn/.test(state.name),
)
const base = join(hangar.dir, 'base')
mkdirSync(base)
await shell(base, baseScript(BESIDE.map(({ place }) => place)))
await must(hangar.cli(['repo', 'add', 'acme/app']))
await must(hangar.git(base, ['push', '-q', url, 'main']))

/** As any client with git could say it: what is not on the remote as a bundle, all else as one patch. */
const BUNDLE_AND_PATCH = `
git merge-base HEAD refs/remotes/origin/main >../base
if [ -n "$(git rev-list --max-count=1 HEAD --not --remotes)" ]; then git bundle create -q ../work.bundle HEAD --not --remotes; fi
cp .git/index .git/private-index
export GIT_INDEX_FILE=.git/private-index
git add -A
git diff --cached --binary --full-index HEAD >../work.patch
rm .git/private-index`

/** `git stash` without touching the work tree: HEAD, the index, the tracked and the untracked files. */
const PUSH_CHECKPOINT = `
head=$(git rev-parse HEAD)
index=$(git commit-tree -p $head -m index $(git write-tree))
cp .git/index .git/private-index
tracked=$(export GIT_INDEX_FILE=.git/private-index; git add -u; git write-tree)
rm .git/private-index
untracked=$(git ls-files -o -z --exclude-standard | (export GIT_INDEX_FILE=.git/private-index; git update-index --add -z --stdin; git write-tree))
rm -f .git/private-index
untracked=$(git commit-tree -m untracked $untracked)
git commit-tree -p $head -p $index -p $untracked -m checkpoint $tracked >../checkpoint
git push -q "$URL" $(cat ../checkpoint):refs/hangar/incoming/$NAME`

/** Back, as MODEL has it for everybody. */
const BACK = `
git fetch -q "$URL" refs/hangar/sessions/$NAME/checkpoint
git switch -q --detach FETCH_HEAD^1
git stash apply -q --index FETCH_HEAD`

interface Trip {
  readonly local: Whole
  readonly headIndex: string
  readonly sandbox: Whole
  readonly back: Whole
}

type Way = (name: string, dir: string) => Promise<ApiAnswer>

const ways: readonly { readonly name: string; readonly keepsIndex: boolean; readonly go: Way }[] = [
  {
    name: 'a bundle and a patch',
    keepsIndex: false,
    go: async (name, dir) => {
      await shell(join(dir, 'app'), BUNDLE_AND_PATCH)
      const bytes = (file: string) => {
        try {
          return readFileSync(join(dir, file))
        } catch {
          return Buffer.alloc(0)
        }
      }
      const [bundle, patch] = [bytes('work.bundle'), bytes('work.patch')]
      const head = (await shell(join(dir, 'app'), 'git rev-parse HEAD')).trim()
      const base_commit = bytes('base').toString().trim()
      const context = [
        ...(bundle.length === 0 ? [] : [{ kind: 'bundle', content: bundle.toString('base64'), base_commit }]),
        ...(patch.length === 0 ? [] : [{ kind: 'patch', content: patch.toString('base64'), encoding: 'base64' }]),
      ]
      const ref = bundle.length === 0 ? { ref: head } : {}
      return begin(name, { ...ref, context })
    },
  },
  {
    name: 'plain git, both ways',
    keepsIndex: true,
    go: async (name, dir) => {
      await withToken(join(dir, 'app'), PUSH_CHECKPOINT, name)
      return begin(name, {
        context: [{ kind: 'checkpoint', commit: readFileSync(join(dir, 'checkpoint'), 'utf8').trim() }],
      })
    },
  },
]

for (const [number, { name: way, keepsIndex, go }] of ways.entries())
  t.test(way, async (t) => {
    const TOGETHER = together(keepsIndex)
    const rows = [TOGETHER, ...ALONE]
    const trips = pooled(rows, (state, place) => trip(`way-${number}-${place}`, state, go))
    const expected = (state: WorkingState, { local, headIndex }: { local: Whole; headIndex: string }) => {
      const made = asItShouldReturn(state, local)
      if (!keepsIndex) for (const path of state.forced ?? []) delete made.files[path]
      return keepsIndex
        ? { files: made.files, index: made.index, head: made.head }
        : { files: made.files, index: headIndex, head: made.head }
    }
    const seen = ({ files, index, head }: Whole) => ({ files, index, head })
    const [first] = trips
    for (const state of BESIDE)
      await t.test(state.name, async (t) => {
        const trip = await first
        if (trip === undefined) throw new Error('no such trip')
        const local = within(trip.local, state.place)
        const headIndex = within({ ...trip.local, index: trip.headIndex }, state.place).index
        const sandbox = within(trip.sandbox, state.place)
        t.strictSame(seen(sandbox), expected(state, { local, headIndex }), 'in')
        t.strictSame(within(trip.back, state.place), sandbox, 'back')
      })
    for (const [place, state] of rows.entries())
      await t.test(state.name, async (t) => {
        const trip = await trips[place]
        if (trip === undefined) throw new Error('no such trip')
        t.equal(trip.sandbox.head, trip.local.head, 'HEAD')
        if (state.asGitHasIt === 'no flags') {
          // git itself does not look at a file that is assumed unchanged.
          t.equal(trip.sandbox.status, '')
          return
        }
        if (state !== TOGETHER) t.strictSame(seen(trip.sandbox), expected(state, trip), 'in')
        t.strictSame(trip.back, trip.sandbox, 'back')
      })
  })

t.test('git stash itself makes what can be handed in', async (t) => {
  for (const [at, [what, make, untracked]] of (
    [
      ['create: no untracked file, no third parent', 'git stash create >../checkpoint', false],
      ['push -u', 'git stash push -q -u; git rev-parse stash@{0} >../checkpoint; git stash pop -q --index', true],
      [
        'push, nothing untracked',
        'git clean -q -fd; git stash push -q; git rev-parse stash@{0} >../checkpoint; git stash pop -q --index',
        false,
      ],
    ] as const
  ).entries())
    await t.test(what, async (t) => {
      const name = `stash-${at}`
      const top = await checkout(name)
      await shell(
        top,
        `echo 1 >>a; git commit -q -a -m one; echo s >>a; git add a; echo u >>a; chmod +x b; rm c; echo n >new; ${make}`,
      )
      await withToken(top, `git push -q "$URL" $(cat ../checkpoint):refs/hangar/incoming/${name}`, name)
      const commit = readFileSync(join(top, '..', 'checkpoint'), 'utf8').trim()
      const made = await begin(name, { context: [{ kind: 'checkpoint', commit }] })
      t.equal(made.status, 201, made.bytes.toString())
      await turnOf(hangar, name)
      if (!untracked) await shell(top, 'rm -f new')
      t.strictSame(await whole(await sandboxOf(hangar, name)), await whole(top))
    })
})

t.test('a later message takes a stash as well', async (t) => {
  const top = await checkout('later')
  await begin('later', {})
  await turnOf(hangar, 'later')
  await shell(top, 'echo 1 >>a; git commit -q -a -m one; echo u >>b; git stash create >../checkpoint')
  await withToken(top, 'git push -q "$URL" $(cat ../checkpoint):refs/hangar/incoming/later', 'later')
  const commit = readFileSync(join(top, '..', 'checkpoint'), 'utf8').trim()
  const sent = await hangar.api('POST', '/api/sessions/later/turns', {
    message: 'true',
    context: [{ kind: 'checkpoint', commit }],
  })
  t.equal(sent.status, 202, sent.bytes.toString())
  await turnOf(hangar, 'later')
  t.strictSame(await whole(await sandboxOf(hangar, 'later')), await whole(top))
})

t.test("a person's own work tree travels as it is, but for what nobody else can have", async (t) => {
  const links = 'ln -s /etc/passwd l; ln -s ../../../x out; ln -s .git/config into; echo x >aux.c; git add l'
  const top = await checkout('own')
  await shell(top, links)
  const made = await ways[1]?.go('own', join(hangar.dir, 'own'))
  t.equal(made?.status, 201, made?.bytes.toString() ?? '')
  await turnOf(hangar, 'own')
  t.strictSame(await whole(await sandboxOf(hangar, 'own')), await whole(top))

  const INNER = 'git init -q in; (cd in; git commit -q --allow-empty -m x); git -c advice.addEmbeddedRepo=false add in'
  for (const [at, [what, make]] of (
    [
      ['a repository inside, as a bare link', INNER],
      ['the same, committed', `${INNER}; git commit -q -m in`],
    ] as const
  ).entries())
    await t.test(what, async (t) => {
      const name = `stray-${at}`
      await shell(await checkout(name), make)
      const answer = await ways[1]?.go(name, join(hangar.dir, name))
      const reason = /"in" is a submodule link that \.gitmodules does not tell of, .*git submodule add/
      t.match(answer, { status: 422, body: { code: 'invalid_context', item_index: 0, reason } })
      t.equal((await hangar.api('GET', `/api/sessions/${name}`)).status, 404)
    })
  await t.test('the same, untracked', async (t) => {
    const top = await checkout('stray-untracked')
    const commit = await withUntracked(top, '160000 commit', 'in')
    await withToken(top, `git push -q "$URL" ${commit}:refs/hangar/incoming/stray`, 'stray')
    t.match(await begin('stray', { context: [{ kind: 'checkpoint', commit }] }), {
      status: 422,
      body: { code: 'invalid_context', item_index: 0, reason: /"in" is a submodule link/ },
    })
  })
  await t.test('a name that no checkout can hold', async (t) => {
    const top = await checkout('long-name')
    const commit = await withUntracked(top, '100644 blob', 'é'.repeat(128))
    await withToken(top, `git push -q "$URL" ${commit}:refs/hangar/incoming/long`, 'long')
    t.match(await begin('long', { context: [{ kind: 'checkpoint', commit }] }), {
      status: 422,
      body: { item_index: 0, reason: /more than 255 bytes; no checkout can hold such a name/ },
    })
  })
  for (const [at, entry] of ['.git', '.GIT', 'git~1', '.git.'].entries())
    await t.test(`an entry ${entry} does not come through the push`, async (t) => {
      const top = await checkout(`dot-${at}`)
      const commit = await withUntracked(top, '100644 blob', entry)
      const pushed = await hangar.git(top, ['push', url, `${commit}:refs/hangar/incoming/dot-${at}`])
      t.not(pushed.status, 0)
      t.match(pushed.err, /hasDotgit|contains '\.git'/i)
    })
  await t.test('what is no stash is refused', async (t) => {
    const pushed = await shell(top, 'git rev-parse HEAD~1')
    await withToken(top, `git push -q "$URL" ${pushed.trim()}:refs/hangar/incoming/plain`, 'plain')
    t.match(await begin('plain', { context: [{ kind: 'checkpoint', commit: pushed.trim() }] }), {
      status: 422,
      body: { reason: /is not stash-shaped.*git stash create makes one/ },
    })
  })
})

t.test("the client's settings: harmless ones are taken, those that spoil a patch are told", async (t) => {
  const harmless = {
    'diff.mnemonicPrefix': 'true',
    'diff.renames': 'copies',
    'core.quotePath': 'false',
    'diff.submodule': 'log',
    'diff.orderFile': '/dev/null',
    'diff.algorithm': 'patience',
    'diff.context': '1',
    'diff.interHunkContext': '5',
    'diff.suppressBlankEmpty': 'true',
    'diff.colorMoved': 'zebra',
    'core.whitespace': 'trailing-space,cr-at-eol',
    'apply.whitespace': 'error',
    'core.autocrlf': 'input',
  }
  await t.test('harmless', async (t) => {
    const top = await checkout('harmless')
    await shell(top, EVERYTHING)
    for (const [key, value] of Object.entries(harmless)) await shell(top, `git config '${key}' '${value}'`)
    const local = await whole(top)
    const made = await ways[0]?.go('harmless', join(hangar.dir, 'harmless'))
    t.equal(made?.status, 201, made?.bytes.toString() ?? '')
    await turnOf(hangar, 'harmless')
    const sandbox = await whole(await sandboxOf(hangar, 'harmless'))
    // core.autocrlf=input takes the CR out of what is new or changed: so git has it.
    const asGit = (files: Record<string, string>) =>
      Object.fromEntries(Object.entries(files).filter(([path]) => !/crlf/.test(path)))
    t.strictSame(asGit(sandbox.files), asGit(local.files))
    t.equal(sandbox.head, local.head)
  })
  for (const [setting, value, reason] of [
    ['diff.noprefix', 'true', /without prefixes \(diff\.noprefix\)/],
    ['diff.external', 'echo', /No valid patches|unrecognized input/],
    ['color.ui', 'always', /No valid patches|patch with only garbage/],
  ] as const)
    await t.test(setting, async (t) => {
      const top = await checkout(setting.replace('.', '-').toLowerCase())
      await shell(top, `echo d >>dir/d; git config ${setting} ${value}; git diff HEAD >../spoilt.patch`)
      const content = readFileSync(join(top, '..', 'spoilt.patch'), 'utf8')
      t.match(await begin('spoilt', { context: [{ kind: 'patch', name: 'spoilt.patch', content }] }), {
        status: 422,
        body: { code: 'invalid_context', item_index: 0, item_name: 'spoilt.patch', reason },
      })
    })
})

t.test('the base stays where it was when the project moves on', async (t) => {
  const top = await checkout('pinned')
  await shell(top, 'echo 1 >>a; git commit -q -a -m one; echo 2 >>b')
  await ways[0]?.go('pinned', join(hangar.dir, 'pinned'))
  await turnOf(hangar, 'pinned')
  const before = (await hangar.api('GET', '/api/sessions/pinned/patch')).bytes.toString()
  const other = await checkout('moves-on')
  await shell(other, 'echo theirs >theirs; git add theirs; git commit -q -m theirs')
  await must(hangar.git(other, ['push', '-q', url, 'HEAD:main']))
  t.equal((await hangar.api('GET', '/api/sessions/pinned/patch')).bytes.toString(), before)
  t.notMatch(before, /theirs/)
  await t.test('and a history that was rewritten is named', async (t) => {
    const gone = (await shell(other, 'git rev-parse HEAD')).trim()
    await must(hangar.git(other, ['push', '-q', '-f', url, 'HEAD~1:main']))
    await shell(
      other,
      'echo own >own; git add own; git commit -q -m own; git bundle create -q ../x.bundle HEAD --not HEAD~1',
    )
    const content = readFileSync(join(other, '..', 'x.bundle')).toString('base64')
    t.match(await begin('gone', { context: [{ kind: 'bundle', content, base_commit: gone }] }), {
      status: 422,
      body: {
        item_index: 0,
        reason: /is not reachable from a branch or tag of the repo; .*git merge-base HEAD origin\/HEAD/,
      },
    })
  })
})

t.test('a client that left out too much is told all that is missing, and bundles again', async (t) => {
  const top = await checkout('again')
  const made = await shell(
    top,
    `git switch -q -c one; echo 1 >>a; git commit -q -a -m 'only here: one'; git switch -q -c two main; echo 2 >>b; git commit -q -a -m 'only here: two'
     git switch -q -c both one; git merge -q -m both two; git bundle create -q ../thin.bundle HEAD --not one two; git bundle create -q ../again.bundle HEAD --not --remotes
     git rev-parse one two main HEAD`,
  )
  const [one, two, main, head] = made.trim().split('\n')
  const item = (file: string) => [
    { kind: 'bundle', content: readFileSync(join(top, '..', file)).toString('base64'), base_commit: main },
  ]
  const refused = await begin('again', { context: item('thin.bundle') })
  t.match(refused, { status: 422, body: { code: 'missing_commits', item_index: 0, detail: /builds on 2 commit\(s\)/ } })
  t.strictSame([...refused.body.missing].sort(), [one, two].sort())
  t.equal((await begin('again', { context: item('again.bundle') })).status, 201)
  await turnOf(hangar, 'again')
  t.equal((await whole(await sandboxOf(hangar, 'again'))).head, head)
})

t.test('a bundle that only names what another client pushed brings nothing to light', async (t) => {
  const top = await checkout('hidden')
  await shell(top, 'echo secret >>a; git stash create >../checkpoint')
  const commit = readFileSync(join(top, '..', 'checkpoint'), 'utf8').trim()
  await withToken(top, `git push -q "$URL" ${commit}:refs/hangar/incoming/hidden`, 'hidden')
  const base_commit = (await shell(top, 'git rev-parse HEAD')).trim()
  const header = Buffer.from(`# v2 git bundle\n${commit} refs/heads/x\n\n`)
  const nothing = await run('git', ['pack-objects', '--stdout', '-q'], { cwd: top, input: '' })
  const content = Buffer.concat([header, nothing.bytes]).toString('base64')
  const refused = await begin('hidden', { context: [{ kind: 'bundle', content, base_commit }] })
  t.match(refused, { status: 422, body: { code: 'missing_commits', item_index: 0 } })
  t.ok(refused.body.missing.includes(commit))
})

// --- the parts ------------------------------------------------------------------------------------------------------------

async function trip(name: string, state: WorkingState, go: Way): Promise<Trip> {
  const top = await checkout(name)
  await shell(top, state.make)
  const local = await whole(top)
  const made = await go(name, join(hangar.dir, name))
  if (made.status !== 201) throw new Error(`${state.name}: ${made.status} ${made.bytes}`)
  await turnOf(hangar, name)
  const sandbox = await whole(await sandboxOf(hangar, name))
  await shell(hangar.dir, `git clone -q base ${name}/back`)
  const back = join(hangar.dir, name, 'back')
  await withToken(back, BACK, name)
  const headIndex = await shell(
    top,
    'GIT_INDEX_FILE=.git/head-index; export GIT_INDEX_FILE; git read-tree HEAD; git ls-files -s -z; rm .git/head-index',
  )
  return { local, headIndex, sandbox, back: await whole(back) }
}

/** A checkpoint with one untracked entry of this mode and name. */
async function withUntracked(top: string, mode: string, name: string): Promise<string> {
  const made = await shell(
    top,
    `tree=$(printf '${mode} %s\\t%s\\n' $(git rev-parse HEAD${mode.startsWith('1600') ? '' : ':a'}) '${name}' | git mktree --missing)
     git commit-tree -p HEAD -p $(git commit-tree -p HEAD -m i HEAD^{tree}) -p $(git commit-tree -m u $tree) -m c HEAD^{tree}`,
  )
  return made.trim()
}

async function checkout(name: string): Promise<string> {
  mkdirSync(join(hangar.dir, name))
  await shell(hangar.dir, `git clone -q base ${name}/app`)
  return join(hangar.dir, name, 'app')
}

async function begin(name: string, more: object): Promise<ApiAnswer> {
  return hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message: 'true', ...more })
}

async function withToken(top: string, script: string, name: string): Promise<string> {
  const token = {
    GIT_CONFIG_COUNT: '1',
    GIT_CONFIG_KEY_0: `http.${hangar.url}/.extraHeader`,
    GIT_CONFIG_VALUE_0: `Authorization: Bearer ${hangar.token}`,
  }
  return shell(top, script, { ...token, URL: url, NAME: name })
}
