/** The closed table of error codes, and the one error class. */

/** Each code with its HTTP status, its title and what it means; docs/errors.md is made from this table. */
export const ERROR_CODES = {
  invalid_request: {
    status: 400,
    title: 'Invalid request',
    means: 'The body, query or a header does not have the documented shape.',
  },
  invalid_name: {
    status: 400,
    title: 'Invalid name',
    means: 'A session name, slug, ref, path or commit id is not written as it must be.',
  },
  unauthenticated: {
    status: 401,
    title: 'Not authenticated',
    means: 'No token or grant was given, or it is unknown, revoked or expired.',
  },
  forbidden: {
    status: 403,
    title: 'Not allowed',
    means: 'The token is known, but its scopes or repo patterns do not cover this.',
  },
  not_found: { status: 404, title: 'Not found', means: 'There is no such thing, or it is not for this caller to see.' },
  conflict: { status: 409, title: 'Conflict', means: 'The state of the thing does not allow this now.' },
  name_taken: { status: 409, title: 'Name taken', means: 'A session or repo of this name exists already.' },
  queue_full: { status: 409, title: 'Queue full', means: 'The session has as many queued messages as it may have.' },
  not_fast_forward: {
    status: 409,
    title: 'Not a fast-forward',
    means: "The handed-over commits do not continue the session's branch.",
  },
  idempotency_mismatch: {
    status: 409,
    title: 'Idempotency key reused',
    means: 'The Idempotency-Key was used with another body.',
  },
  too_large: { status: 413, title: 'Too large', means: 'A documented cap in bytes or count was passed.' },
  unsupported_media: {
    status: 415,
    title: 'Unsupported media',
    means: 'The content type or encoding is not taken here.',
  },
  invalid_context: {
    status: 422,
    title: 'Context refused',
    means: 'A context item cannot be taken as it is; item_index, item_name and reason say which and why.',
  },
  missing_commits: {
    status: 422,
    title: 'Missing commits',
    means: 'The hand-over needs commits that the server does not have; they are listed in missing.',
  },
  no_content: {
    status: 422,
    title: 'Nothing to give',
    means: 'The thing asked for does not exist on this turn or session.',
  },
  protocol_malformed: {
    status: 400,
    title: 'Malformed git protocol',
    means: "The request is not what git's smart HTTP protocol says.",
  },
  limit_passed: { status: 413, title: 'Limit passed', means: 'A limit of the git gateway was passed.' },
  upstream_unreachable: {
    status: 503,
    title: 'Upstream unreachable',
    means: "The repo's upstream cannot be reached, or failed; what was fetched last is served, and it is tried again.",
  },
  upstream_busy: {
    status: 503,
    title: 'Upstream busy',
    means: 'The upstream or its API takes no more requests for now (a rate limit); it is tried again.',
  },
  upstream_denied: {
    status: 502,
    title: 'Upstream denied',
    means: 'The upstream takes none of the credentials that this server has for it, or they do not allow this.',
  },
  upstream_gone: {
    status: 409,
    title: 'Upstream gone',
    means: 'There is no such repository upstream: deleted, or not for this credential to see. What was fetched stays.',
  },
  upstream_renamed: {
    status: 409,
    title: 'Upstream renamed',
    means:
      'The upstream answers with a redirect, which is never followed: it was renamed or moved. What was fetched stays.',
  },
  upstream_empty: {
    status: 409,
    title: 'Upstream empty',
    means: 'The upstream has no branch any more; what was fetched before stays as it is.',
  },
  upstream_rewritten: {
    status: 409,
    title: 'Upstream rewritten',
    means: 'A branch was forced to other commits upstream; sessions keep the commits that they began on.',
  },
  upstream_moved: {
    status: 409,
    title: 'Branch moved upstream',
    means:
      "The session's branch is not what was delivered last: somebody moved or deleted it upstream. Nothing was overwritten.",
  },
  upstream_protected: {
    status: 409,
    title: 'Refused upstream',
    means:
      'The upstream refuses the branch by a rule of its own (a protected branch, a hook, a missing permission); its words follow.',
  },
  lfs_unsupported: {
    status: 422,
    title: 'Git LFS is not carried',
    means: 'Files are kept in Git LFS, which the gateway does not carry; the sentence lists them.',
  },
  busy: { status: 503, title: 'Busy', means: 'As many requests run as the server takes; try again after Retry-After.' },
  store_unusable: {
    status: 500,
    title: 'Store unusable',
    means: 'The data directory cannot be used; the message says why.',
  },
  disk_full: {
    status: 507,
    title: 'Disk full',
    means: "The disk of the server's data directory has no room left; the message says which and what to do.",
  },
  sandbox_lost: { status: 500, title: 'Sandbox lost', means: 'The sandbox of a turn vanished before the turn ended.' },
  sandbox_failed: {
    status: 500,
    title: 'Sandbox failed',
    means: 'A sandbox could not be made, or a command in it failed.',
  },
  harness_unusable: {
    status: 422,
    title: 'Harness unusable',
    means: 'The environment names an agent program that cannot be started.',
  },
  over_budget: {
    status: 409,
    title: 'Over budget',
    means: 'A turn used more than its budget allows; its work is kept, and a larger budget goes on.',
  },
  timed_out: {
    status: 409,
    title: 'Timed out',
    means: 'A turn ran longer than it may; its work is kept, and the next message goes on.',
  },
  agent_failed: { status: 500, title: 'Agent failed', means: 'The agent program ended with a failure of its own.' },
  git_failed: { status: 500, title: 'Git failed', means: 'A git command failed; its own words follow.' },
  config_invalid: {
    status: 500,
    title: 'Wrong setting',
    means: 'A setting has a value that is not accepted; the message names it.',
  },
  internal: { status: 500, title: 'Internal error', means: 'A fault of hangar; the log has the details.' },
} as const satisfies Record<string, { status: number; title: string; means: string }>

export type ErrorCode = keyof typeof ERROR_CODES

/** What an error may tell its caller beyond its sentence. */
export interface ErrorDetails {
  readonly itemIndex?: number
  readonly itemName?: string
  /** A tool's own words (git's stderr), redacted and cut at 2,000 characters. */
  readonly reason?: string
  /** Commit ids that the server lacks. */
  readonly missing?: readonly string[]
}

/** A refusal or failure with a stable code; its message is a sentence for the caller and never holds a secret. */
export class HangarError extends Error {
  readonly code: ErrorCode
  readonly status: number
  readonly details: ErrorDetails

  constructor(code: ErrorCode, message: string, details: ErrorDetails = {}, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.name = 'HangarError'
    this.code = code
    this.status = ERROR_CODES[code].status
    this.details = details
  }
}

const make =
  (code: ErrorCode) =>
  (message: string, details: ErrorDetails = {}, cause?: unknown): HangarError =>
    new HangarError(code, message, details, cause)

/** One constructor for each code: `throw errors.notFound('…')`. */
export const errors = {
  invalidRequest: make('invalid_request'),
  invalidName: make('invalid_name'),
  unauthenticated: make('unauthenticated'),
  forbidden: make('forbidden'),
  notFound: make('not_found'),
  conflict: make('conflict'),
  nameTaken: make('name_taken'),
  queueFull: make('queue_full'),
  notFastForward: make('not_fast_forward'),
  idempotencyMismatch: make('idempotency_mismatch'),
  tooLarge: make('too_large'),
  unsupportedMedia: make('unsupported_media'),
  invalidContext: make('invalid_context'),
  missingCommits: make('missing_commits'),
  noContent: make('no_content'),
  protocolMalformed: make('protocol_malformed'),
  limitPassed: make('limit_passed'),
  busy: make('busy'),
  upstreamUnreachable: make('upstream_unreachable'),
  upstreamBusy: make('upstream_busy'),
  upstreamDenied: make('upstream_denied'),
  upstreamGone: make('upstream_gone'),
  upstreamRenamed: make('upstream_renamed'),
  upstreamEmpty: make('upstream_empty'),
  upstreamMoved: make('upstream_moved'),
  upstreamProtected: make('upstream_protected'),
  lfsUnsupported: make('lfs_unsupported'),
  storeUnusable: make('store_unusable'),
  diskFull: make('disk_full'),
  sandboxLost: make('sandbox_lost'),
  sandboxFailed: make('sandbox_failed'),
  harnessUnusable: make('harness_unusable'),
  gitFailed: make('git_failed'),
  configInvalid: make('config_invalid'),
  internal: make('internal'),
} as const

/** The sentence of anything that was thrown. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown)
}
