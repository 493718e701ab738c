/** An agent's words on their way to a forge: they close nothing and call nobody, and read as they were written. */
import t from 'tap'
import { harmless, subjectOf } from '../../domain/harmless.ts'

/** What GitHub takes a closing word to be about, once text is rendered. */
const CLOSES =
  /(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?[^A-Za-z0-9#\u200b]*(?:#\d|GH-\d|https?:|[\w.-]+\/[\w.-]+#\d)/i
const bare = (text: string) => text.replace(/\u200b/g, '')

const ACTING: readonly string[] = [
  'closes #12',
  'Fixes: #12',
  'FIXED #12',
  'fixes\n#12',
  'fixes:#12',
  'Fixes: GH-12',
  'resolves gh-12',
  'closes a.b/repo#12',
  'closes acme/app#12',
  'close https://github.com/acme/app/issues/12',
  'close <https://github.com/acme/app/issues/12>',
  'fixes [#12](x)',
  'fixes [this](https://github.com/acme/app/issues/12)',
  'fixes **#12**',
  '**fixes** #12',
  '_fixes_ #12',
  'fixes \\#12',
  'fixes GH\\-12',
  'fixes <b>#12</b>',
  'it (fixes #12)',
  'fixes\u00a0#12',
]

t.test('a closing word before an issue is no closing word any more', async (t) => {
  for (const text of ACTING)
    for (const out of [harmless(text), subjectOf(text.replace(/\n/g, ' '), 200) ?? '']) {
      t.match(out, /(?:close|fix|resolve)(?:s|d|es|ed)?\u200b/i, text)
      t.notMatch(out.replace(/[\\*_]|<\/?b>/g, ''), CLOSES, text)
    }
})

t.test('what reads like that only once it is rendered does not', async (t) => {
  for (const text of [
    'fixes &#35;12',
    'fixes &#x23;12',
    'fixes &num;12',
    'fixes&nbsp;#12',
    'fixes&nbsp#12',
    'f&#105;xes #12',
  ])
    t.match(harmless(text), '&amp;', text)
  t.notMatch(harmless('fixes &#35;12'), /#\d/)
  t.equal(bare(harmless('&#&#54;4;somebody')), '&#&amp;#54;4;somebody')
})

t.test('nobody is called', async (t) => {
  t.equal(harmless('thanks @somebody'), 'thanks @\u200bsomebody')
  t.equal(harmless('\\@somebody and @acme/team'), '\\@\u200bsomebody and @\u200bacme/team')
  for (const text of ['&#64;somebody', '&#x40;somebody', '&#0064somebody', '&commat;somebody'])
    t.match(harmless(text), /^&amp;/, text)
  t.equal(harmless('<!-- hangar:job=x -->'), '&lt;!-- hangar:job=x -->')
})

t.test('other text stays as it is', async (t) => {
  for (const text of [
    'fix: keep the header (#12)',
    'fixes the reader, see #12',
    'prefix #12 and suffixes #13',
    'a & b, R&D, x && y, &lt;b&gt; and &amp;',
    'https://example.com/?a=1&b=2',
    'closed 3 files',
  ])
    t.equal(harmless(text), text)
})

t.test('a subject is the first line that says anything, cut between characters', async (t) => {
  t.equal(subjectOf('\n  \n## Make it\n\nmore', 72), 'Make it')
  t.equal(subjectOf(' \n', 72), null)
  t.equal(subjectOf('é'.repeat(100), 72), `${'é'.repeat(71)}…`)
  t.equal(subjectOf('😀'.repeat(100), 72), `${'😀'.repeat(71)}…`)
  t.equal(subjectOf('a & b &#35; c\u0007', 72), 'a & b &#35; c', 'plain text, without control characters')
  t.equal(subjectOf('fixes #12', 72), 'fixes\u200b #12')
})

t.test('text of any shape and a million characters is done at once', async (t) => {
  for (const piece of [
    'fix ',
    'fix[',
    'closes <',
    '[',
    '&',
    '&#1',
    '&a',
    '@',
    'fixes\n',
    'fix a',
    '<b ',
    'fix*',
    'a/',
    '#',
  ])
    t.ok(harmless(piece.repeat(1_000_000 / piece.length)).length >= 1_000_000 - piece.length, piece)
  t.ok(harmless(`fixes ${' '.repeat(1_000_000)}#12`).length > 1_000_000)
})
