import t from 'tap'
import type { Caller, GrantCaller, TokenCaller } from '../../domain/grant.ts'
import type { Oid, RefName, RepoSlug, SessionName } from '../../domain/names.ts'
import type { RefTable } from '../../refs-policy/ref-update.ts'
import { listedRefs, pushListedRefs, visibleRefs } from '../../refs-policy/visible.ts'

const NAMES = [
  'refs/hangar/incoming/x',
  'refs/hangar/jobs/job-1',
  'refs/hangar/sessions/s1/checkpoint',
  'refs/hangar/sessions/s1/context',
  'refs/hangar/sessions/s1/log',
  'refs/hangar/sessions/s1/sealed',
  'refs/hangar/sessions/s2/checkpoint',
  'refs/hangar/sessions/s2/context',
  'refs/heads/hangar/s1',
  'refs/heads/hangar/s2',
  'refs/heads/main',
  'refs/notes/hangar',
  'refs/tags/v1',
  'refs/upstream/heads/main',
]
const table: RefTable = {
  head: 'refs/heads/main' as RefName,
  refs: NAMES.map((name) => ({ name: name as RefName, oid: 'a'.repeat(40) as Oid })),
}
const grant = (session: string, parent: string | null): GrantCaller => ({
  kind: 'grant',
  id: 'sb',
  session: session as SessionName,
  repo: 'acme/app' as RepoSlug,
  parent: parent as SessionName | null,
  mayRead: [],
})
const token = (...scopes: TokenCaller['scopes']): TokenCaller => ({
  kind: 'token',
  id: 't',
  name: 't',
  scopes,
  repos: null,
})
const names = (refs: readonly { name: RefName }[]) => refs.map(({ name }) => name as string)
const without = (...gone: string[]) => NAMES.filter((name) => !gone.includes(name))

t.test('each caller sees what the model says', async (t) => {
  t.strictSame(names(visibleRefs(token('admin'), table)), NAMES)
  t.strictSame(
    names(visibleRefs(token('read'), table)),
    without('refs/hangar/incoming/x', 'refs/hangar/sessions/s1/sealed'),
  )
  t.strictSame(names(visibleRefs(token(), table)), [])
  t.strictSame(names(visibleRefs(grant('s1', null), table)), [
    'refs/hangar/sessions/s1/checkpoint',
    'refs/hangar/sessions/s1/context',
    'refs/heads/hangar/s1',
    'refs/heads/main',
    'refs/tags/v1',
  ])
  t.strictSame(names(visibleRefs(grant('s2', 's1'), table)), [
    'refs/hangar/sessions/s1/checkpoint',
    'refs/hangar/sessions/s2/checkpoint',
    'refs/hangar/sessions/s2/context',
    'refs/heads/hangar/s2',
    'refs/heads/main',
    'refs/tags/v1',
  ])
  t.strictSame(names(visibleRefs({ kind: 'guest', id: 'sb' }, table)), ['refs/heads/main', 'refs/tags/v1'])
})

t.test('under v2 session branches are listed when asked for by more than refs/heads/', async (t) => {
  const listed = (caller: Caller, ...prefixes: string[]) => names(listedRefs(caller, table, { protocol: 2, prefixes }))
  t.strictSame(listed(token('read'), 'HEAD', 'refs/heads/', 'refs/tags/'), ['refs/heads/main', 'refs/tags/v1'])
  t.strictSame(listed(token('admin'), 'refs/heads/', 'refs/heads/'), ['refs/heads/main'])
  t.strictSame(listed(token('read'), 'refs/heads/hangar/s1', 'hangar/s1'), ['refs/heads/hangar/s1'])
  t.strictSame(listed(token('read'), 'refs/heads/', 'refs/heads/hangar/'), [
    'refs/heads/hangar/s1',
    'refs/heads/hangar/s2',
    'refs/heads/main',
  ])
  t.strictSame(listed(token('admin'), 'refs/'), NAMES, 'a mirror clone lists everything')
  t.strictSame(listed(token('admin')), NAMES, 'and so does ls-remote')
  t.strictSame(listed(grant('s1', null), 'refs/heads/'), ['refs/heads/hangar/s1', 'refs/heads/main'])
  t.strictSame(listed(grant('s1', null), 'refs/hangar/'), [
    'refs/hangar/sessions/s1/checkpoint',
    'refs/hangar/sessions/s1/context',
  ])
})

t.test('v0 and v1 list all that is seen', async (t) => {
  const listed = names(listedRefs(token('read'), table, { protocol: 0, prefixes: [] }))
  t.ok(listed.includes('refs/heads/hangar/s1'))
})

t.test('a push is told of what its caller may move and build on, not of all sessions', async (t) => {
  t.strictSame(names(pushListedRefs(token('admin'), table)), ['refs/heads/main', 'refs/tags/v1'])
  t.strictSame(names(pushListedRefs(token(), table)), [])
  t.strictSame(names(pushListedRefs(grant('s1', null), table)), names(visibleRefs(grant('s1', null), table)))
})

t.test('names that sort around the folder of session branches are branches', async (t) => {
  const around = [
    'refs/hangar/sessions/s1/context',
    'refs/heads/a',
    'refs/heads/hangar',
    'refs/heads/hangar-x',
    'refs/heads/hangar.x',
    'refs/heads/hangar/s1',
    'refs/heads/hangar/s1-x',
    'refs/heads/hangar/s2',
    'refs/heads/hangar0',
    'refs/heads/hangarx/y',
    'refs/heads/z',
    'refs/heads0',
    'refs/notes/hangar',
    'refs/notes/review',
    'refs/tags/v1',
    'refs/tags0',
  ]
  const wide: RefTable = {
    head: table.head,
    refs: around.map((name) => ({ name: name as RefName, oid: 'a'.repeat(40) as Oid })),
  }
  const own = [
    'refs/heads/a',
    'refs/heads/hangar-x',
    'refs/heads/hangar.x',
    'refs/heads/hangar0',
    'refs/heads/hangarx/y',
    'refs/heads/z',
  ]
  const prefixes = ['refs/heads/']
  t.strictSame(names(listedRefs(token('read'), wide, { protocol: 2, prefixes })), own)
  t.strictSame(names(pushListedRefs(token('read'), wide)), [...own, 'refs/notes/review', 'refs/tags/v1'])
  const seen = ['refs/hangar/sessions/s1/context', ...own, 'refs/heads/hangar/s1', 'refs/tags/v1'].sort()
  t.strictSame(names(visibleRefs(grant('s1', null), wide)), seen)
  t.strictSame(
    names(listedRefs(grant('s1', null), wide, { protocol: 2, prefixes })),
    seen.filter((name) => name.startsWith('refs/heads/')),
  )
})
