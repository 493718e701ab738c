/** The table of all operations. */
import { AUDIT_OPERATIONS } from './audit.ts'
import { ENVIRONMENT_OPERATIONS } from './environments.ts'
import { INBOX_OPERATIONS } from './inbox.ts'
import { JOB_OUT_OPERATIONS } from './job-out.ts'
import { JOB_OPERATIONS } from './jobs.ts'
import type { Operation } from './operation.ts'
import { REPO_OPERATIONS } from './repos.ts'
import { SESSION_OUT_OPERATIONS } from './session-out.ts'
import { SESSION_OPERATIONS } from './sessions.ts'
import { TOKEN_OPERATIONS } from './tokens.ts'

export const OPERATIONS: readonly Operation[] = [
  ...SESSION_OPERATIONS,
  ...SESSION_OUT_OPERATIONS,
  ...JOB_OPERATIONS,
  ...JOB_OUT_OPERATIONS,
  ...INBOX_OPERATIONS,
  ...REPO_OPERATIONS,
  ...TOKEN_OPERATIONS,
  ...ENVIRONMENT_OPERATIONS,
  ...AUDIT_OPERATIONS,
]
