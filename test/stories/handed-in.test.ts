/** What is handed in with a message by clients without hangar's CLI: what may not enter is refused with a sentence, and nothing is left of it. */
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { deflateSync } from 'node:zlib'
import t from 'tap'
import { must, sandboxOf, turnOf, whole } from './round-trip.ts'
import { type ApiAnswer, run, shell, startHangar, workTree } from './support.ts'

t.setTimeout(900_000)
const hangar = await startHangar(t, { agent: 'read -r line; eval "$line"' })
const url = `${hangar.url}/git/acme/app.git`
const client = join(hangar.dir, 'client')
await must(hangar.cli(['repo', 'add', 'acme/app']))
// The project has things of its own that nobody may hand in.
await shell(
  hangar.dir,
  `git init -q -b main client; cd client; mkdir -p dir/deep sub/x; echo one >a; echo two >dir/b; echo deep >dir/deep/c; ln -s /etc/hostname own-absolute
   ln -s dir/deep/../.. own-link; ln -s .. dir/up; printf 'x\\r\\ny\\r\\nz\\r\\n' >crlf; printf '\\0\\1\\2' >bin; printf '#!/bin/sh\\n' >tool; chmod +x tool; echo moved >old
   printf '[submodule "lib"]\\n\\tpath = lib\\n\\turl = https://example.com/lib.git\\n' >.gitmodules
   git add -A; git update-index --add --cacheinfo 160000,1111111111111111111111111111111111111111,lib; git commit -q -m base
   git branch early; echo more >>a; git add a; git commit -q -m second; git tag v1`,
)
await must(hangar.git(client, ['push', '-q', url, 'main', 'v1']))
const main = await revision('main')
const early = await revision('early')
let count = 0

async function revision(name: string): Promise<string> {
  return (await shell(client, `git rev-parse '${name}'`)).trim()
}

/** A commit of whatever the entries say: `mode oid-or-content name`, on main's own or on none. */
async function commitOf(entries: readonly (readonly [mode: string, content: string, name: string])[], parent = main) {
  const listed = (await run('git', ['ls-tree', '-z', parent], { cwd: client })).bytes.toString('latin1').split('\0')
  const names = new Set(entries.map(([, , name]) => name))
  const lines = listed.filter((line) => line !== '' && !names.has(line.slice(line.indexOf('\t') + 1)))
  for (const [mode, content, name] of entries) {
    const type = mode === '160000' ? 'commit' : mode === '40000' ? 'tree' : 'blob'
    lines.push(`${mode} ${type} ${type === 'blob' ? await blob(content) : content}\t${name}`)
  }
  return commitTree(await tree(lines), [parent])
}

async function blob(content: string): Promise<string> {
  return (await run('git', ['hash-object', '-w', '--stdin'], { cwd: client, input: content })).out.trim()
}

async function tree(lines: readonly string[]): Promise<string> {
  const made = await run('git', ['mktree', '-z', '--missing'], { cwd: client, input: `${lines.join('\0')}\0` })
  if (made.status !== 0) throw new Error(made.err)
  return made.out.trim()
}

async function commitTree(treeOid: string, parents: readonly string[]): Promise<string> {
  return (
    await shell(client, `git commit-tree -m made ${parents.map((oid) => `-p ${oid}`).join(' ')} ${treeOid}`)
  ).trim()
}

/** A bundle as plain git makes it: of one ref that is called `work`, or of what else is asked for. */
async function bundle(commit: string, args = 'refs/heads/work --not main'): Promise<Buffer> {
  const file = join(hangar.dir, `${++count}.bundle`)
  await shell(client, `git update-ref refs/heads/work ${commit}; git bundle create -q '${file}' ${args}`)
  return readFileSync(file)
}

/** A bundle of just these objects under a header that says what one likes. */
async function rawBundle(header: string, objects: readonly string[]): Promise<Buffer> {
  const packed = await run('git', ['pack-objects', '--stdout', '-q'], { cwd: client, input: objects.join('\n') })
  return Buffer.concat([Buffer.from(header, 'latin1'), packed.bytes])
}

const ofBundle = (content: Buffer, base = main) => ({
  kind: 'bundle',
  name: 'work.bundle',
  content: content.toString('base64'),
  base_commit: base,
})
const ofPatch = (content: string | Buffer) => ({
  kind: 'patch',
  name: 'fix.patch',
  content: Buffer.from(content as string).toString('base64'),
  encoding: 'base64',
})

function begin(name: string, context: readonly object[], message = 'true'): Promise<ApiAnswer> {
  return hangar.api('POST', '/api/sessions', { name, repo: 'acme/app', message, context })
}

/** Every file of the repository in the store, and every ref. */
async function store(): Promise<unknown> {
  const dir = join(hangar.dataDir, 'repos', 'acme', 'app.git')
  const refs = await hangar.git(client, ['ls-remote', url])
  return { objects: readdirSync(join(dir, 'objects'), { recursive: true, encoding: 'utf8' }).sort(), refs: refs.out }
}

interface Refused {
  readonly name: string
  readonly context: () => Promise<readonly object[]>
  readonly reason: RegExp
  readonly index?: number
  readonly item?: string | null
  readonly status?: number
  readonly code?: string
  readonly missing?: readonly string[]
}

/** Nothing of it is left: objects, refs, quarantines, sessions. */
async function allRefused(t: Tap, rows: readonly Refused[]): Promise<void> {
  const before = await store()
  for (const row of rows) {
    const answer = await begin('refused', await row.context())
    t.match(
      { status: answer.status, ...answer.body },
      {
        status: row.status ?? 422,
        code: row.code ?? 'invalid_context',
        item_index: row.index ?? 0,
        ...(row.item === null ? {} : { item_name: row.item ?? /./ }),
        detail: row.reason,
        reason: /./,
        ...(row.missing === undefined ? {} : { missing: row.missing }),
      },
      row.name,
    )
    if (answer.status === 201) await hangar.api('POST', '/api/sessions/refused/close', { delete: true })
  }
  t.strictSame(await store(), before, 'nothing of it is left in the store')
  t.equal((await hangar.api('GET', '/api/sessions/refused')).status, 404)
}
type Tap = Pick<typeof t, 'match' | 'strictSame' | 'equal'>

const NUL_OID = '0'.repeat(40)
const link = (target: string, name = 'l') => [['120000', target, name]] as const

t.test('a bundle that brings what may not enter', async (t) => {
  const entries =
    (...list: readonly (readonly [string, string, string])[]) =>
    async () => [ofBundle(await bundle(await commitOf(list)))]
  const dotGits = ['.git', '.GIT', '.giT', 'git~1', 'GIT~1', '.git.', '.git ', '.git. .', '.git::$INDEX_ALLOCATION']
  const hfs = ['.g\u200cit', '\ufeff.git', '.gi\u206at\u202e']
  const long = 'n'.repeat(256)
  await allRefused(t, [
    ...[...dotGits, ...hfs].map((name) => ({
      name: `an entry ${JSON.stringify(name)}`,
      context: entries(['100644', 'x', name]),
      reason: /git: contains '\.git'|hasDotgit|read as \.git/,
    })),
    {
      name: 'a folder .GIT below',
      context: async () => {
        const hooks = await tree([`100755 blob ${await blob('x')}\tpost-checkout`])
        const deep = await tree([`40000 tree ${hooks}\t.GIT`])
        return [ofBundle(await bundle(await commitOf([['40000', deep, 'vendor']])))]
      },
      reason: /hasDotgit/,
    },
    { name: 'a link to an absolute path', context: entries(...link('/etc/passwd')), reason: /outside the repository/ },
    { name: 'a link out', context: entries(...link('dir/../../x')), reason: /"l" is a symbolic link .* outside/ },
    { name: 'a link into .git', context: entries(...link('.git/hooks')), reason: /inside of \.git/ },
    { name: 'a link into .GIT.', context: entries(...link('dir/../.GIT./x')), reason: /inside of \.git/ },
    {
      name: 'links that lead out only together',
      context: async () => {
        const lines = [`120000 blob ${await blob('../sub')}\ts`, `100644 blob ${await blob('two\n')}\tb`]
        return [ofBundle(await bundle(await commitOf([['40000', await tree(lines), 'dir'], ...link('dir/s/../..')])))]
      },
      reason: /"l" .*outside/,
    },
    {
      name: "a link through the project's own absolute link",
      context: entries(...link('own-absolute/x')),
      reason: /"l" .*outside/,
    },
    {
      name: "a link that leads the project's own link out",
      // own-link goes through dir/deep, which is no directory any more.
      context: async () => {
        const dir = await tree([`120000 blob ${await blob('../sub')}\tdeep`, `100644 blob ${await blob('two\n')}\tb`])
        return [ofBundle(await bundle(await commitOf([['40000', dir, 'dir']])))]
      },
      reason: /"own-link" .*outside/,
    },
    {
      name: 'a link whose target is too long',
      context: entries(...link('x/'.repeat(3_000))),
      reason: /target of 6000 b/,
    },
    {
      name: 'a .gitmodules that is a link',
      context: entries(...link('a', '.gitmodules')),
      reason: /gitmodulesSymlink/,
    },
    {
      name: 'a .gitmodules with a URL that is an option',
      context: entries(['100644', '[submodule "x"]\n\tpath = x\n\turl = --upload-pack=x\n', '.gitmodules']),
      reason: /gitmodulesUrl/,
    },
    {
      name: 'a submodule link that .gitmodules does not tell of',
      context: entries(['160000', early, 'inner']),
      reason: /"inner" is a submodule link that \.gitmodules does not tell of/,
    },
    { name: 'a submodule link to nothing', context: entries(['160000', NUL_OID, 'lib']), reason: /nullSha1/ },
    {
      name: 'a name that no file system holds',
      context: entries(['100644', 'x', long]),
      reason: /more than 255 bytes/,
    },
    {
      name: 'a path that no file system holds',
      context: async () => {
        let deep = await tree([`100644 blob ${await blob('x')}\tx`])
        for (let level = 0; level < 25; level++) deep = await tree([`40000 tree ${deep}\t${'d'.repeat(200)}`])
        return [ofBundle(await bundle(await commitOf([['40000', deep, 'deep']])))]
      },
      reason: /more than 4,000 bytes/,
    },
    {
      name: 'a tree of ten million files in a few objects',
      context: async () => {
        let many = await tree(
          await Promise.all(Array.from({ length: 10 }, async (_, at) => `100644 blob ${await blob('x')}\t${at}`)),
        )
        for (let level = 0; level < 6; level++)
          many = await tree(Array.from({ length: 10 }, (_, at) => `40000 tree ${many}\t${at}`))
        return [ofBundle(await bundle(await commitOf([['40000', many, 'many']])))]
      },
      reason: /more than 200000 files/,
    },
    {
      name: 'a few blobs that unpack to gigabytes',
      context: async () => {
        await shell(client, 'head -c 40000000 /dev/zero >../zeros')
        const zeros = (await shell(client, 'git hash-object -w ../zeros; rm ../zeros')).trim()
        const folder = await tree(Array.from({ length: 30 }, (_, at) => `100644 blob ${zeros}\t${at}`))
        return [ofBundle(await bundle(await commitOf([['40000', folder, 'zeros']])))]
      },
      reason: /1144 MB when unpacked, more than the 1024 MB/,
    },
    {
      name: 'deltas that unpack to gigabytes',
      context: async () => [ofBundle(deltaBomb(await commitOf([['100644', 'bomb', 'bomb']])))],
      reason: /unpack to more than is taken in memory/,
    },
  ])
})

/** A pack of one small blob, and of deltas that each repeat the one before 128 times. */
function deltaBomb(commit: string): Buffer {
  const header = Buffer.from(`# v2 git bundle\n-${main} \n${commit} refs/heads/work\n\n`)
  const objects: Buffer[] = []
  let size = 65_536
  const put = (type: number, bytes: number, between: Buffer, content: Buffer) => {
    const head: number[] = []
    let rest = Math.floor(bytes / 16)
    head.push((type << 4) | (bytes % 16) | (rest > 0 ? 0x80 : 0))
    for (; rest > 0; rest = Math.floor(rest / 128)) head.push((rest % 128) | (rest >= 128 ? 0x80 : 0))
    const object = Buffer.concat([Buffer.from(head), between, deflateSync(content)])
    objects.push(object)
    return object.length
  }
  let last = put(3, size, Buffer.alloc(0), Buffer.alloc(size))
  for (let level = 0; level < 4; level++) {
    const copies = 128
    const piece = Math.min(size, 0xff_ffff)
    const parts: number[] = [...varint(size), ...varint(piece * copies)]
    // Copy from 0: size in three bytes.
    for (let at = 0; at < copies; at++) parts.push(0xf0, piece & 255, (piece >> 8) & 255, (piece >> 16) & 255)
    last = put(6, parts.length, Buffer.from(distance(last)), Buffer.from(parts))
    size = piece * copies
  }
  const pack = Buffer.concat([Buffer.from('PACK'), Buffer.from([0, 0, 0, 2, 0, 0, 0, objects.length]), ...objects])
  return Buffer.concat([header, pack, createHash('sha1').update(pack).digest()])
}

function varint(value: number): number[] {
  const bytes: number[] = []
  let rest = value
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) | 128)
  return [...bytes, rest]
}

/** As pack entries give the offset of their base. */
function distance(offset: number): number[] {
  const bytes = [offset & 127]
  for (let rest = Math.floor(offset / 128); rest > 0; rest = Math.floor(rest / 128)) bytes.unshift((--rest & 127) | 128)
  return bytes
}

t.test('bytes that are no bundle, or no whole one', async (t) => {
  const good = await commitOf([['100644', 'x', 'new']])
  const whole = await bundle(good)
  const headerEnd = whole.indexOf('\n\n') + 2
  const at = (place: number, byte: number) => {
    const bytes = Buffer.from(whole)
    bytes[place] = byte
    return bytes
  }
  const raw = (name: string, bytes: Buffer | string, reason: RegExp) => ({
    name,
    context: async () => [ofBundle(Buffer.from(bytes as string))],
    reason,
  })
  const sha256 = join(hangar.dir, 'sha256')
  await shell(
    hangar.dir,
    'git init -q --object-format=sha256 sha256; cd sha256; echo x >x; git add x; git commit -q -m x; git bundle create -q ../256.bundle HEAD',
  )
  const unknown = 'b'.repeat(40)
  const unknown2 = 'c'.repeat(40)
  const missing = {
    status: 422,
    code: 'missing_commits',
  }
  await allRefused(t, [
    raw('nothing', '', /no git bundle; make one with/),
    raw('text', 'hello', /no git bundle/),
    raw('a pack', whole.subarray(headerEnd), /no git bundle/),
    raw('another version', '# v9 git bundle\n\n', /no git bundle/),
    raw('a header without end', `# v2 git bundle\n${`${good} refs/heads/x\n`.repeat(100)}`, /no git bundle/),
    raw('a header without refs', '# v2 git bundle\n\n', /no refs/),
    raw('a ref that is no name', `# v2 git bundle\n${good} ../../x\n\n`, /no ref name/),
    raw('too many refs', `# v2 git bundle\n${`${good} refs/heads/x\n`.repeat(20_000)}\n`, /names 20000 refs/),
    raw('a header of megabytes', `# v2 git bundle\n${'#'.repeat(5_000_000)}`, /no git bundle/),
    raw('a filter', `# v3 git bundle\n@filter=blob:none\n${good} refs/heads/x\n\n`, /asks for filter=blob:none/),
    raw('a capability', `# v3 git bundle\n@future=1\n${good} refs/heads/x\n\n`, /asks for future=1/),
    raw('other object ids', readFileSync(join(sha256, '..', '256.bundle')), /sha1 only/),
    raw('other object ids in version 2', `# v2 git bundle\n${'d'.repeat(64)} refs/heads/x\n\n`, /sha1 only/),
    raw('no pack', whole.subarray(0, headerEnd), /not taken by git \(.*early EOF/),
    raw('a cut pack', whole.subarray(0, -30), /not taken by git/),
    raw('a wrong checksum', at(whole.length - 1, (whole.at(-1) ?? 0) ^ 1), /not taken by git/),
    raw('a changed byte', at(headerEnd + 30, (whole[headerEnd + 30] ?? 0) ^ 1), /not taken by git/),
    raw(
      'a count of objects that is none',
      Buffer.concat([whole.subarray(0, headerEnd + 8), Buffer.from([255, 0, 0, 0])]),
      /holds 4278190080 objects/,
    ),
    {
      name: 'a tip that is not in it',
      context: async () => [ofBundle(await rawBundle(`# v2 git bundle\n${unknown} refs/heads/x\n\n`, []))],
      reason: /no commit of the bundle/,
      missing: [unknown],
      ...missing,
    },
    {
      name: 'a tip that is a blob',
      context: async () => {
        const oid = await blob('just a blob')
        return [ofBundle(await rawBundle(`# v2 git bundle\n${oid} refs/heads/x\n\n`, [oid]))]
      },
      reason: /no commit of the bundle/,
      ...missing,
    },
    {
      name: 'commits without their trees',
      context: async () => [ofBundle(await rawBundle(`# v2 git bundle\n${good} HEAD\n\n`, [good]))],
      reason: /does not hold all that its commits need|not taken by git/,
    },
    {
      name: 'several tips',
      context: async () => {
        await shell(client, `git branch -f other ${await commitOf([['100644', 'other', 'new']])}`)
        return [ofBundle(await bundle(good, 'work other --not main'))]
      },
      reason: /2 tips \(refs\/heads\/work, refs\/heads\/other\).*make it from one/,
    },
    {
      name: 'prerequisites and a base that are not here: all are told at once',
      context: async () => [
        ofBundle(Buffer.from(`# v2 git bundle\n-${unknown} \n-${unknown2} x\n${good} HEAD\n\n`), 'e'.repeat(40)),
      ],
      reason: /base_commit e{40} is not on the remote; bundle again from a commit that is there/,
      missing: ['e'.repeat(40), unknown, unknown2],
      ...missing,
    },
    {
      name: 'a base that is no commit',
      context: async () => [ofBundle(whole, await revision('main:a'))],
      reason: /not reachable from a branch or tag/,
    },
    {
      name: 'a base that the work was not begun on',
      context: async () => [
        ofBundle(await bundle(await commitOf([['100644', 'x', 'new']], early), 'work --not early')),
      ],
      reason: /no ancestor of the bundle's commit .*git merge-base HEAD/,
    },
    {
      name: 'a history of its own',
      context: async () => [ofBundle(await bundle(await commitTree(await revision('main^{tree}'), []), 'work'))],
      reason: /no ancestor/,
    },
    {
      name: 'a whole bundle of a shallow clone',
      context: async () => {
        const older = await commitOf([['100644', 'older', 'new']])
        await shell(client, `git branch -f cut ${await commitOf([['100644', 'newer', 'new']], older)}`)
        await shell(
          hangar.dir,
          'git clone -q --depth 1 -b cut "file://$PWD/client" shallow; git -C shallow bundle create -q ../shallow.bundle HEAD',
        )
        return [ofBundle(readFileSync(join(hangar.dir, 'shallow.bundle')))]
      },
      reason: /does not hold all .*git fetch --unshallow/,
    },
    {
      name: 'no base64',
      context: async () => [{ ...ofBundle(whole), content: `${whole.toString('base64').slice(0, 40)}%%%%` }],
      reason: /not base64/,
    },
    {
      name: 'base64 with something left out',
      context: async () => [{ ...ofBundle(whole), content: whole.toString('base64').slice(0, 41) }],
      reason: /not base64/,
    },
  ])
})

t.test('a bundle of any honest shape is taken', async (t) => {
  const rows: readonly {
    name: string
    content: () => Promise<Buffer>
    base?: string
    head?: () => Promise<string>
    has?: RegExp
  }[] = [
    { name: 'one branch', content: async () => bundle(await commitOf([['100644', 'x', 'new']])) },
    {
      name: 'HEAD only, from a detached worktree',
      content: async () => {
        await shell(
          client,
          'git worktree add -q --detach ../detached main; cd ../detached; echo d >d; git add d; git commit -q -m d; git update-ref refs/heads/work HEAD; git bundle create -q ../head.bundle HEAD --not main',
        )
        return readFileSync(join(hangar.dir, 'head.bundle'))
      },
    },
    {
      name: 'a branch, HEAD and tags that all lead to one commit',
      content: async () => {
        const made = await commitOf([['100644', 'y', 'new']])
        await shell(
          client,
          `git tag -f light ${made}; git tag -f -a -m heavy heavy ${made}; git tag -f -a -m twice twice heavy`,
        )
        return bundle(made, 'work light heavy twice --not main')
      },
    },
    {
      name: 'an annotated tag only',
      content: async () => {
        await shell(client, `git tag -f -a -m only only ${await commitOf([['100644', 'z', 'new']])}`)
        return bundle(await revision('only^{commit}'), 'only --not main')
      },
    },
    { name: 'the whole history', content: async () => bundle(await commitOf([['100644', 'w', 'new']]), 'work') },
    {
      name: "merges of the project's own later commits",
      base: early,
      content: async () => {
        const own = await commitOf([['100644', 'o', 'own']], early)
        return bundle(
          await commitTree(await revision(`${await commitOf([['100644', 'o', 'own']])}^{tree}`), [own, main]),
          'work --not main',
        )
      },
    },
    {
      name: 'names that only other systems refuse, links that stay, and a submodule that is told of',
      content: async () =>
        bundle(
          await commitOf([
            ...[
              'aux.c',
              'con',
              'a:b',
              'trail.',
              'trail ',
              'back\\slash',
              'A',
              '.gitignore2',
              'git~x',
              '..x',
              'COM1',
              '*?<>|"',
            ].map((name) => ['100644', 'x', name] as const),
            ...link('dir/../own-link/a'),
            ...link('nowhere/yet', 'dangling'),
            ...link('loop', 'loop'),
            ['160000', main, 'lib'],
          ]),
        ),
    },
    {
      name: 'a faulty old time zone, which git tolerates',
      content: async () => {
        const raw = `tree ${await revision('main^{tree}')}\nparent ${main}\nauthor A <a@example.com> 1 +051800\ncommitter A <a@example.com> 1 +051800\n\nold\n`
        const made = await run('git', ['hash-object', '-t', 'commit', '-w', '--literally', '--stdin'], {
          cwd: client,
          input: raw,
        })
        return bundle(made.out.trim())
      },
    },
  ]
  for (const [place, row] of rows.entries())
    await t.test(row.name, async (t) => {
      const content = await row.content()
      const head = await revision('work')
      const name = `taken-${place}`
      const made = await begin(name, [ofBundle(content, row.base ?? main)])
      t.equal(made.status, 201, made.bytes.toString())
      await turnOf(hangar, name)
      const { body } = await hangar.api('GET', `/api/sessions/${name}`)
      t.match(body, {
        base_commit: row.base ?? main,
        head_commit: head,
        turns: [{ requested_commit: head, actual_commit: head }],
      })
      const sandbox = await whole(await sandboxOf(hangar, name))
      t.equal(sandbox.head, head)
      t.equal(sandbox.status, '', 'nothing is uncommitted')
      await hangar.api('POST', `/api/sessions/${name}/close`, { delete: true })
    })
})

const HEADER = (path: string, mode = '100644') =>
  `diff --git a/${path} b/${path}\nnew file mode ${mode}\nindex 0000000..1111111\n--- /dev/null\n+++ b/${path}\n@@ -0,0 +1 @@\n+x\n`
const LINK = (path: string, target: string) =>
  `${HEADER(path, '120000').replace('+x\n', `+${target}\n\\ No newline at end of file\n`)}`

t.test('a patch that brings what may not enter, or does not apply', async (t) => {
  const patch = (name: string, content: string | Buffer, reason: RegExp) => ({
    name,
    context: async () => [ofPatch(content)],
    reason,
  })
  const submodule = (to: string) =>
    `diff --git a/lib b/lib\nindex 1111111..2222222 160000\n--- a/lib\n+++ b/lib\n@@ -1 +1 @@\n-Subproject commit ${'1'.repeat(40)}\n+Subproject commit ${to}\n`
  const zeros = deflateSync(Buffer.alloc(1_000)).length
  await allRefused(t, [
    patch('an absolute path', HEADER('/tmp/x'), /invalid path/),
    patch(
      'line ends of another system',
      HEADER('a')
        .replace('/dev/null', 'a/a')
        .replace(/new.*\n/, '')
        .replaceAll('\n', '\r\n'),
      /./,
    ),
    patch('a path that leaves', HEADER('../x'), /invalid path/),
    ...['.git/hooks/x', '.GIT/x', 'git~1/x', '.git./x', '.git /x', 'a/.g\u200cit/x', '.git::$INDEX_ALLOCATION/x'].map(
      (path) => patch(path, HEADER(path), /invalid path|read as \.git/),
    ),
    patch('a link to an absolute path', LINK('l', '/etc/passwd'), /"l" is a symbolic link to "\/etc\/passwd", outside/),
    patch(
      'a .gitmodules that git would refuse to push back',
      'diff --git a/vendored/.gitmodules b/vendored/.gitmodules\nnew file mode 100644\n--- /dev/null\n+++ b/vendored/.gitmodules\n@@ -0,0 +1,3 @@\n+[submodule "x"]\n+\tpath = x\n+\turl = --upload-pack=x\n',
      /gitmodulesUrl/,
    ),
    patch('a link into .git', LINK('l', '.git/config'), /inside of \.git/),
    patch('links that lead out together', `${LINK('dir/s', '../sub')}${LINK('l', 'dir/s/../..')}`, /"l" .* outside/),
    patch('a file written through a new link', `${LINK('l', 'dir')}${HEADER('l/x')}`, /beyond a symbolic link/),
    patch("a file written through the project's link", HEADER('own-link/x'), /beyond a symbolic link/),
    patch(
      'a file that becomes a link out',
      `diff --git a/a b/a\ndeleted file mode 100644\n--- a/a\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-more\n${LINK('a', '../x')}`,
      /outside/,
    ),
    patch('a submodule moved', submodule('2'.repeat(40)), /submodule link: .* commit and push the submodule/),
    patch('a submodule with changes', submodule(`${'2'.repeat(40)}-dirty`), /"lib" is a submodule with changes/),
    patch(
      'a submodule with changes at its own commit',
      submodule(`${'1'.repeat(40)}-dirty`),
      /"lib" is a submodule with changes/,
    ),
    patch('a new submodule', HEADER('inner', '160000').replace('+x', `+Subproject commit ${main}`), /submodule link/),
    patch(
      'a file of a submodule',
      'diff --git a/lib/l b/lib/l\n--- a/lib/l\n+++ b/lib/l\n@@ -1 +1 @@\n-l\n+m\n',
      /lib\/l: does not exist/,
    ),
    patch('a new file in a submodule', HEADER('lib/new'), /./),
    patch('nothing', '', /the patch is empty; leave the item out/),
    patch('blank lines', '\n \n', /the patch is empty/),
    patch('text that is no patch', 'hello\n', /No valid patches/),
    patch(
      'a patch of another base',
      'diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-nine\n+ten\n',
      /patch failed: a:1/,
    ),
    patch('a cut patch', 'diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,2 +1,3 @@\n one\n', /corrupt patch/),
    patch(
      'a patch without prefixes',
      'diff --git dir/b dir/b\n--- dir/b\n+++ dir/b\n@@ -1 +1 @@\n-two\n+three\n',
      /without prefixes \(diff\.noprefix\).*--src-prefix/,
    ),
    patch(
      'a binary file without its content',
      'diff --git a/bin b/bin\nindex 1111111..2222222 100644\nBinary files a/bin and b/bin differ\n',
      /cannot apply binary patch to 'bin' without full index line/,
    ),
    patch('a name of 256 bytes', HEADER('n'.repeat(256)), /more than 255 bytes/),
    patch(
      'binary files that unpack to gigabytes',
      `diff --git a/z b/z\nnew file mode 100644\nindex ${NUL_OID}..${'1'.repeat(40)}\nGIT binary patch\nliteral 9999999999\n${'z'.repeat(zeros)}\n\n`,
      /9537 MB when unpacked/,
    ),
    patch(
      'one that says less',
      `diff --git a/z b/z\nnew file mode 100644\nindex ${NUL_OID}..${'1'.repeat(40)}\nGIT binary patch\nliteral 999999999\nzcmZ\n\n`,
      /./,
    ),
    {
      name: 'the second of two',
      context: async () => [ofPatch(HEADER('first')), { content: 'x' }, ofPatch(HEADER('first'))],
      reason: /first: already exists in index/,
      index: 2,
    },
    {
      name: 'one on top of a bundle: the bundle is not kept either',
      context: async () => [
        ofPatch(HEADER('new')),
        ofBundle(await bundle(await commitOf([['100644', 'only here', 'new']]))),
      ],
      reason: /new: already exists in index/,
      index: 0,
    },
  ])
})

t.test('patches of every honest kind are taken, one after another', async (t) => {
  const before = join(hangar.dir, 'before')
  await shell(
    hangar.dir,
    `git clone -q client before; cd before; printf 'caf\\351\\n' >latin; printf 'p\\n\\n\\nq\\n' >blank; echo g >'Größe — 1.md'; echo t >"$(printf 'tab\\tbed')"
     seq 1 40 >long; git add -A; git commit -q -m files; git push -q origin HEAD:refs/heads/files`,
  )
  await must(hangar.git(before, ['push', '-q', url, 'HEAD:refs/heads/files']))
  const edits: readonly (readonly [what: string, edit: string, diff?: string])[] = [
    [
      'content that is no UTF-8',
      `printf 'caf\\351\\n\\377\\n' >latin; printf '\\200' >new-latin; git add -N new-latin`,
    ],
    ['a name that is no UTF-8', `f=$(printf 'n\\351'); echo x >"$f"; git add -N "$f"`],
    ['one line of a file with CRLF', `printf 'x\\r\\nchanged\\r\\nz\\r\\n' >crlf`],
    ['no newline at the end, then one again', `printf one >a; git mv old older; printf moved >older`],
    [
      'a binary file changed, and one made',
      `printf '\\0\\1\\3\\377' >bin; head -c 3000 /dev/zero >zeros; git add -N zeros`,
    ],
    ['renamed only', `git mv dir/deep/c renamed`],
    ['renamed with an edit, and another edit', `git mv long longer; sed -i 's/^7$/seven/' longer; echo x >>latin`],
    ['modes only', 'chmod -x tool; chmod +x latin'],
    ['a script that stays one while another file changes', `echo 'echo hi' >>tool; chmod +x tool`],
    ['blank lines around the change', `printf 'p\\n\\n\\n\\nq\\n' >blank`],
    ['a name that git quotes, renamed', `git mv 'Größe — 1.md' 'Größe — 2.md'; echo t >>"$(printf 'tab\\tbed')"`],
    ['deleted', 'git rm -q zeros renamed'],
    [
      'a link that stays in the tree, and a file that becomes a folder',
      'rm a; mkdir a; echo in >a/in; ln -s ../a dir/in; git add -A',
    ],
    [
      'mnemonic prefixes, copies, any order',
      'cp latin copied; echo y >>latin; git add copied',
      '-c diff.mnemonicPrefix=true -c diff.renames=copies -c core.quotePath=false',
    ],
  ]
  const patches: Buffer[] = []
  for (const [what, edit, settings = ''] of edits) {
    await shell(before, edit)
    const made = await run('git', [...settings.split(' ').filter(Boolean), 'diff', '--binary', '-M', '-C', 'HEAD'], {
      cwd: before,
    })
    patches.push(made.bytes)
    t.ok(made.bytes.length > 0, what)
    await shell(before, 'git add -A; git commit -q -m next')
  }
  const context: object[] = patches.map((patch) => ofPatch(patch))
  // As text, with the last newline trimmed.
  context[2] = { kind: 'patch', content: patches[2]?.toString('utf8').slice(0, -1) }
  const made = await hangar.api('POST', '/api/sessions', {
    name: 'patched',
    repo: 'acme/app',
    ref: 'files',
    message: 'true',
    context,
  })
  t.equal(made.status, 201, made.bytes.toString())
  await turnOf(hangar, 'patched')
  const [expected, sandbox] = [await whole(before), await whole(await sandboxOf(hangar, 'patched'))]
  t.strictSame(sandbox.files, expected.files)
  t.equal(sandbox.head, await revisionIn(before, 'origin/files'))
})

async function revisionIn(dir: string, name: string): Promise<string> {
  return (await shell(dir, `git rev-parse '${name}'`)).trim()
}

t.test('what a later message brings', async (t) => {
  const send = (name: string, context: readonly object[], message = 'true') =>
    hangar.api('POST', `/api/sessions/${name}/turns`, { message, context })
  const ended = async (name: string) => (await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=300`)).body
  const onEarly = await commitOf([['100644', 'e', 'new']], early)
  const onMain = await commitOf([['100644', 'm', 'new']])
  t.equal((await begin('later', [])).status, 201)
  await ended('later')

  await t.test('a session without commits of its own starts afresh', async (t) => {
    const sent = await send('later', [ofBundle(await bundle(onEarly, 'work --not early'), early)])
    t.equal(sent.status, 202, sent.bytes.toString())
    t.match(await ended('later'), { outcome: 'exited' })
    t.match((await hangar.api('GET', '/api/sessions/later')).body, {
      turns: [{}, { error: null }],
      base_commit: early,
      head_commit: onEarly,
    })
    t.match(await whole(await sandboxOf(hangar, 'later')), { head: onEarly, status: '' })
  })
  await t.test('commits that do not continue the branch are refused, and nothing of them is left', async (t) => {
    const before = await store()
    const sent = await send('later', [ofBundle(await bundle(onMain))])
    t.match(sent, {
      status: 409,
      body: { code: 'not_fast_forward', detail: /does not continue .*pull the session's work, rebase on it/ },
    })
    t.strictSame(await store(), before)
  })
  await t.test('commits that continue it are taken, with a patch on top', async (t) => {
    const next = await commitOf([['100644', 'next', 'next']], onEarly)
    const patch =
      'diff --git a/next b/next\n--- a/next\n+++ b/next\n@@ -1 +1 @@\n-next\n\\ No newline at end of file\n+patched\n'
    const sent = await send('later', [ofPatch(patch), ofBundle(await bundle(next, `work --not ${onEarly}`), early)])
    t.equal(sent.status, 202, sent.bytes.toString())
    t.match(await ended('later'), { outcome: 'exited' })
    t.match((await hangar.api('GET', '/api/sessions/later')).body, { base_commit: early, head_commit: next })
    const sandbox = await whole(await sandboxOf(hangar, 'later'))
    t.match(sandbox, { head: next, status: /^1 \.M [^\0]* next\0$/ })
    t.equal(Buffer.from(sandbox.files['next']?.split(' ')[2] ?? '', 'base64').toString(), 'patched\n')
  })
  await t.test('no commits while something is uncommitted', async (t) => {
    const before = await store()
    t.match(await send('later', [ofBundle(await bundle(onMain))]), {
      status: 409,
      body: { code: 'conflict', detail: /uncommitted changes.*ask the agent to commit/ },
    })
    t.strictSame(await store(), before)
  })
  await t.test("a patch that does not apply on the session's tree is refused with git's reason", async (t) => {
    const before = await store()
    const patch = ofPatch('diff --git a/next b/next\n--- a/next\n+++ b/next\n@@ -1 +1 @@\n-next\n+other\n')
    t.match(await send('later', [{ content: 'x' }, patch]), {
      status: 422,
      body: { code: 'invalid_context', item_index: 1, item_name: 'fix.patch', reason: /patch failed: next:1/ },
    })
    t.strictSame(await store(), before)
  })
  await t.test("a patch that no longer applies when its turn comes fails the turn, with git's reason", async (t) => {
    await send('later', [], 'echo changed >a; while [ ! -e ../go ]; do sleep 0.1; done')
    const sent = await send('later', [ofPatch('diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n')])
    t.equal(sent.status, 202, 'it applies on what is known now')
    t.match(await send('later', [ofBundle(await bundle(onMain))]), {
      status: 409,
      body: { detail: /is at work; .*hangar session wait later/ },
    })
    await shell(join(await sandboxOf(hangar, 'later'), '..'), ': >go')
    t.match(await ended('later'), { turn: 5, outcome: 'failed' })
    const { body } = await hangar.api('GET', '/api/sessions/later')
    t.match(body, {
      state: 'idle',
      turns: [
        {},
        {},
        {},
        { outcome: 'exited' },
        {
          error: {
            code: 'invalid_context',
            message: /does not apply on the session's working tree as it is now: .*patch failed: a:1/s,
          },
        },
      ],
    })
    await send('later', [], 'true')
    t.match(await ended('later'), { turn: 6, outcome: 'exited' }, 'the session goes on')
  })
})

t.test('attachments', async (t) => {
  const asked: string[] = []
  const elsewhere = createServer((req, res) => {
    asked.push(req.url ?? '')
    res.end('fetched')
  })
  await new Promise<void>((resolve) => elsewhere.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void elsewhere.close())
  const page = `http://127.0.0.1:${(elsewhere.address() as AddressInfo).port}/page`

  await t.test('names that leave, or that no directory holds', async (t) => {
    const part = 'n'.repeat(256)
    const names = [
      ...[
        '',
        '.',
        '..',
        '/',
        '/etc/passwd',
        '//x',
        '../x',
        'x/..',
        'x/../../y',
        'x/./y',
        'x//y',
        'x/',
        './x',
        '\0',
        'x\0y',
        'x\ny',
        'x\r',
        '\u007f',
      ],
      ...['\\', 'x\\..\\y', 'C:\\x', part, `x/${part}/y`, 'x/'.repeat(600), '\ud800', 'x\udfff', 'é'.repeat(128)],
      ...['.git', '.GIT/config', 'x/.git/hooks/y', 'git~1', '.git.', '.git ', '.g\u200cit', '.git::$INDEX_ALLOCATION'],
    ]
    await allRefused(
      t,
      names.map((name) => ({
        name: JSON.stringify(name.slice(0, 40)),
        context: async () => [{ content: 'fine' }, { name, content: 'x' }],
        index: 1,
        reason: /path "/,
        item: null,
      })),
    )
  })
  await t.test('fifty of them arrive as they are, each under a name of its own', async (t) => {
    const longest = `${'l'.repeat(250)}.text`
    const named: readonly (readonly [name: string | undefined, content: string, as: string, kind?: string])[] = [
      ['trace.txt', '1', 'trace.txt'],
      ['trace.txt', '2', 'trace-2.txt'],
      ['trace.txt', '3', 'trace-3.txt'],
      ['trace-2.txt', '4', 'trace-2-2.txt'],
      ['Trace.txt', 'another case', 'Trace.txt'],
      ['a/b.tar.gz', '5', 'a/b.tar.gz'],
      ['a/b.tar.gz', '6', 'a/b-2.tar.gz'],
      ['a', 'a folder has this name', 'a-2'],
      ['a/b.tar.gz/c', 'a file has this name', 'a/b-3.tar.gz/c'],
      ['.hidden', '7', '.hidden'],
      ['.hidden', '8', '.hidden-2'],
      [longest, '9', longest],
      [longest, '10', `${'l'.repeat(248)}-2.text`],
      ['in/1/x', 'in a folder called in', 'in/1/x'],
      ['out/RESULT.md', '11', 'out/RESULT.md'],
      ['-rf', '12', '-rf'],
      ['*', '13', '*'],
      ['$HOME `id` "q" \'s\'', '14', '$HOME `id` "q" \'s\''],
      ['Größe — 1.md', '15', 'Größe — 1.md'],
      ['é', 'composed', 'é'],
      ['e\u0301', 'decomposed', 'e\u0301'],
      ['aux.c', '16', 'aux.c'],
      ['...', '17', '...'],
      ['a:b', '18', 'a:b'],
      ['.gitignore', '*', '.gitignore'],
      [undefined, '19', 'file'],
      [undefined, '20', 'text.txt', 'text'],
      [undefined, '21', 'text-2.txt', 'text'],
      [undefined, '22', 'log.txt', 'log'],
      [undefined, '23', 'issue.md', 'issue'],
      [undefined, '24', 'changes.diff', 'diff'],
    ]
    const rest = Array.from({ length: 50 - named.length - 1 }, (_, at) => [`more/${at}`, '', `more/${at}`] as const)
    const binary = Buffer.alloc(1_990_000, Buffer.from([0, 255, 254, 13, 10, 128]))
    const context = [
      ...[...named, ...rest].map(([name, content, , kind]) => ({
        ...(name === undefined ? {} : { name }),
        content,
        ...(kind ? { kind } : {}),
      })),
      { name: 'binary', content: binary.toString('base64').replace(/(.{76})/g, '$1\r\n'), encoding: 'base64' },
      { kind: 'url', url: page },
      { kind: 'url', url: 'https://example.com/a?b=c#d' },
    ]
    const made = await begin('attached', context, 'true')
    t.equal(made.status, 201, made.bytes.toString())
    await turnOf(hangar, 'attached')
    const io = join(await sandboxOf(hangar, 'attached'), '..', '.hangar', 'sessions', 'attached')
    const files = Object.fromEntries(
      Object.entries(workTree(join(io, 'in', '1'))).map(([path, entry]) => [
        Buffer.from(path, 'latin1').toString('utf8'),
        Buffer.from(entry.split(' ')[2] ?? '', 'base64'),
      ]),
    )
    const { binary: got, ...texts } = files
    t.ok(got?.equals(binary), 'two megabytes, byte by byte')
    t.strictSame(
      Object.fromEntries(Object.entries(texts).map(([name, bytes]) => [name, bytes.toString()])),
      Object.fromEntries([...named, ...rest].map(([, content, as]) => [as, content])),
    )
    const prompt = readFileSync(join(io, 'PROMPT.md'), 'utf8')
    for (const [, , as] of named) t.ok(prompt.includes(`- $HANGAR_IO/in/1/${as}\n`), as)
    t.ok(prompt.includes(`- ${page}\n- https://example.com/a?b=c#d\n`), 'URLs are listed')
    t.strictSame(asked, [], 'and never fetched')
  })
  await t.test('the caps, and what is no URL', async (t) => {
    const url = (text: string) => ({
      name: `the URL ${text.slice(0, 30)}`,
      context: async () => [{ kind: 'url', url: text }],
      reason: /is not an http or https URL/,
    })
    const over = { status: 413, code: 'too_large' }
    await allRefused(
      t,
      [
        {
          name: 'fifty-one',
          context: async () => Array.from({ length: 51 }, () => ({ content: '', name: 'x' })),
          reason: /at most 50/,
          index: 50,
          ...over,
        },
        {
          name: 'a byte over 2 MB in all',
          context: async () => [
            { content: 'x'.repeat(1_048_576), name: 'one' },
            { content: Buffer.alloc(1_048_577).toString('base64'), encoding: 'base64', name: 'two' },
          ],
          reason: /may have 2097152 bytes in all/,
          index: 1,
          ...over,
        },
        {
          name: 'no base64',
          context: async () => [{ content: 'Zm9v-_==', encoding: 'base64', name: 'x' }],
          reason: /not base64/,
        },
        ...[
          '',
          'x',
          'file:///etc/passwd',
          'ftp://x',
          'javascript:alert(1)',
          `https://x/${'y'.repeat(4_000)}`,
          'https://x/\n- injected',
          'https://x y',
        ].map(url),
      ].map((row) => ({ ...row, ...(row.name.startsWith('the URL') ? { item: null } : {}) })) as Refused[],
    )
  })
})
