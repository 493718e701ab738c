/** git's words about an upstream, as one of the named errors. A table: the first line that fits is the one that is told. */
import { errors, HangarError } from '../../domain/errors.ts'

interface Failure {
  readonly words: RegExp
  error(url: string, reason: string): HangarError
}

/** Source: remote-curl.c and http.c of git 2.39 to 2.47, and curl's own messages. */
const FAILURES: readonly Failure[] = [
  {
    words: /Authentication failed|could not read (?:Username|Password)|returned error: 401|HTTP 401/,
    error: (url, reason) =>
      errors.upstreamDenied(
        `${url} takes no credential that this server has for it; renew it, or name one with the repo's upstream`,
        { reason },
      ),
  },
  {
    words: /returned error: 429|HTTP 429|rate limit/i,
    error: (url, reason) => errors.upstreamBusy(`${url} takes no more requests for now (429)`, { reason }),
  },
  {
    words: /returned error: 403|HTTP 403/,
    error: (url, reason) =>
      errors.upstreamDenied(
        `${url} does not allow this to the server's credential (403); give it the permission contents`,
        { reason },
      ),
  },
  {
    words: /returned error: 30[12378]|HTTP 30[12378]|unable to update url base from redirection/,
    error: (url, reason) =>
      errors.upstreamRenamed(
        `${url} answers with a redirect, which is not followed: it was renamed or moved; set its new URL as the repo's upstream`,
        { reason },
      ),
  },
  {
    words: /SSL certificate problem|certificate verif(?:y|ication) failed|self[- ]signed certificate/,
    error: (url, reason) =>
      errors.upstreamUnreachable(
        `${url} shows a certificate of an authority that is not known here; name its PEM file in upstream.ca_file`,
        { reason },
      ),
  },
  {
    words: /repository '.*' not found|returned error: (?:404|410)|HTTP (?:404|410)|Repository not found/,
    error: (url, reason) =>
      errors.upstreamGone(`there is no repository at ${url}, or the server's credential does not see it`, { reason }),
  },
]

/** The named error of a git that failed at an upstream. What is not known counts as unreachable: it is tried again. */
export function upstreamFailure(url: string, words: string): HangarError {
  const reason = words.trim().slice(0, 2_000)
  const known = FAILURES.find((failure) => failure.words.test(words))
  if (known !== undefined) return known.error(url, reason)
  const line = /^(?:fatal|error): (.*)$/m.exec(words)?.[1] ?? reason.split('\n')[0] ?? ''
  return errors.upstreamUnreachable(`${url} cannot be reached${line === '' ? '' : ` (${line})`}`, { reason })
}

/** Whether asking again later may help without anybody doing anything. */
export function isTransient(error: unknown): boolean {
  if (!(error instanceof HangarError)) return true
  return ['upstream_unreachable', 'upstream_busy', 'limit_passed', 'git_failed', 'busy', 'internal'].includes(
    error.code,
  )
}
