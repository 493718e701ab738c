/** hangar:// URIs: what is written is read back, and nothing leads the parser astray. */
import t from 'tap'
import type { SessionName } from '../../domain/names.ts'
import { artifactRestPath, artifactUri, parseHangarUri, sessionUri, uriOf } from '../../exchange/artifact-uri.ts'

const NAME = 'csv-fix' as SessionName

t.test('every path that an artifact may have comes back from its URI', async (t) => {
  const paths = [
    'coverage.html',
    'a/b/c.txt',
    'with space & more.txt',
    'a,b;c=d.txt',
    '100%.txt',
    '%2F.txt',
    '%252e%252e.txt',
    '..double.txt',
    'a..b/.hidden',
    "it's (1)*!.txt",
    'ünï/ñ/日本.txt',
    'q?.txt',
    'f#.txt',
    '~+@:$',
    '[x]{y}|z^`"<>',
  ]
  for (const path of paths) {
    const uri = artifactUri(NAME, 12, path)
    t.match(uri, /^hangar:\/\/sessions\/csv-fix\/artifacts\/12\/[A-Za-z0-9._~%/-]+$/, uri)
    t.strictSame(parseHangarUri(uri), { kind: 'artifact', name: NAME, turn: 12, path }, path)
    t.equal(new URL(artifactRestPath(NAME, 12, path), 'http://h').pathname, artifactRestPath(NAME, 12, path))
  }
  t.strictSame(parseHangarUri(sessionUri(NAME)), { kind: 'session', name: NAME })
})

t.test('a path that was encoded as a whole, or not at all, is understood and written canonically', async (t) => {
  for (const [given, canonical] of [
    ['a%2Fb.txt', 'a/b.txt'],
    ['a,b.txt', 'a%2Cb.txt'],
    ["it's", 'it%27s'],
    ['%61.txt', 'a.txt'],
  ])
    t.equal(
      uriOf(parseHangarUri(`hangar://sessions/csv-fix/artifacts/1/${given}`)),
      `hangar://sessions/csv-fix/artifacts/1/${canonical}`,
    )
})

t.test('anything else is refused with a sentence', async (t) => {
  const artifact = (rest: string) => `hangar://sessions/csv-fix/artifacts/1/${rest}`
  const refused = [
    '',
    'hangar://sessions/',
    'hangar://sessions',
    'hangar:///sessions/csv-fix',
    'HANGAR://sessions/csv-fix',
    'hangar://Sessions/csv-fix',
    'http://sessions/csv-fix',
    ' hangar://sessions/csv-fix',
    'hangar://sessions/CSV',
    'hangar://sessions/csv%2Dfix',
    'hangar://sessions/../csv-fix',
    'hangar://user@sessions/csv-fix',
    'hangar://sessions:80/csv-fix',
    'hangar://sessions/csv-fix/',
    'hangar://sessions/csv-fix?x=1',
    'hangar://sessions/csv-fix#x',
    'hangar://sessions/csv-fix/artifacts',
    'hangar://sessions/csv-fix/artifacts/1',
    'hangar://sessions/csv-fix/artifacts/1/',
    'hangar://sessions/csv-fix/artifacts/0/a',
    'hangar://sessions/csv-fix/artifacts/01/a',
    'hangar://sessions/csv-fix/artifacts/1e1/a',
    'hangar://sessions/csv-fix/artifacts/-1/a',
    'hangar://sessions/csv-fix/artifacts/%31/a',
    'hangar://sessions/csv-fix/artifacts/1234567/a',
    'hangar://sessions/csv-fix/secrets/1/a',
    artifact('../a'),
    artifact('a/../../../../etc/passwd'),
    artifact('%2e%2e/a'),
    artifact('..%2fa'),
    artifact('%2E%2E%2Fa'),
    artifact('.'),
    artifact('a/./b'),
    artifact('a//b'),
    artifact('%2Fetc/passwd'),
    artifact('a%2F%2Fb'),
    artifact('a/'),
    artifact('a%00b'),
    artifact('a\0b'),
    artifact('a%5Cb'),
    artifact('a\\b'),
    artifact('a%0Ab'),
    artifact('a?x=1'),
    artifact('a#b'),
    artifact('%'),
    artifact('%zz'),
    artifact('%ff'),
    artifact('%c0%ae%c0%ae/a'),
    artifact('.git/config'),
    artifact('a'.repeat(4_000)),
  ]
  for (const uri of refused)
    t.throws(() => parseHangarUri(uri), { code: 'invalid_name', message: /./ }, JSON.stringify(uri.slice(0, 80)))
})
