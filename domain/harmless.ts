/** An agent's words where a forge would act on them: they close no issue, call nobody, and look like no marker of hangar's. */

/** The first line that says anything, as plain text of one line and at most so many characters; null when there is none. */
export function subjectOf(text: string, maxCharacters: number): string | null {
  const line = text
    .split('\n')
    .map((line) =>
      line
        .replace(/^[#\s]+/, '')
        .replace(CONTROL, '')
        .trim(),
    )
    .find((line) => line !== '')
  if (line === undefined) return null
  const characters = [...line]
  return plain(characters.length <= maxCharacters ? line : `${characters.slice(0, maxCharacters - 1).join('')}…`)
}

/**
 * Text that is shown as Markdown. Words stay as they are but for zero-width spaces; character references show as they were written, since a
 * forge looks for issues and names in what they stand for.
 */
export function harmless(text: string): string {
  const shown = text
    .replace(/<!--/g, '&lt;!--')
    .replace(/&#(?=[x\d])/gi, '&amp;#\u200b')
    // HTML takes nbsp without a semicolon as well.
    .replace(/&(?=nbsp|[a-z][a-z0-9]{1,31};)(?!(?:lt|gt|amp|quot|apos);)/gi, '&amp;')
  return plain(shown)
}

const CONTROL = /[\u0000-\u001f\u007f]/g
const CLOSING = /(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)(?![A-Za-z0-9])/gi
/** As much behind a closing word is looked at: any fixed number keeps the work linear. */
const SLICE = 160
const TAG = /<\/?[a-z][a-z0-9-]*(?:\s[^<>]*)?>/gi
const REFERENCE = /^(?:#\d|GH-\d|https?:|[a-z0-9][\w.-]*(?:\/[\w.-]+)?#\d)/i
const LINK = /^[^A-Za-z0-9#[]*(?:\[[^\]]*\]\(<?|<a\s[^<>]*href=["']?)https?:/i

function plain(text: string): string {
  return text
    .replace(/@(?=[A-Za-z0-9])/g, '@\u200b')
    .replace(CLOSING, (word, at: number, whole: string) =>
      isAboutIssue(whole.slice(at + word.length, at + word.length + SLICE)) ? `${word}\u200b` : word,
    )
}

/** Whether nothing but marks and spaces is between a closing word and what names an issue. */
function isAboutIssue(behind: string): boolean {
  if (LINK.test(behind)) return true
  const words = behind.replace(TAG, '').replace(/[\\*~`]/g, '')
  return REFERENCE.test(words.replace(/^[^A-Za-z0-9#]+/, ''))
}
