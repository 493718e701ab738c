/** Errors as `application/problem+json` (RFC 9457), with hangar's codes. */
import type { Response } from 'express'
import { ERROR_CODES, HangarError } from '../domain/errors.ts'

export interface Problem {
  readonly type: string
  readonly title: string
  readonly status: number
  readonly detail: string
  readonly code: string
  readonly item_index?: number
  readonly item_name?: string
  readonly reason?: string
  readonly missing?: readonly string[]
}

/** What is told of an error; of a fault of our own, no details. */
export function problemOf(error: unknown): Problem {
  const known =
    error instanceof HangarError
      ? error
      : new HangarError('internal', 'the server failed on this request; its log has the details')
  const { itemIndex, itemName, reason, missing } = known.details
  return {
    type: `https://hangar.invalid/errors/${known.code}`,
    title: ERROR_CODES[known.code].title,
    status: known.status,
    detail: known.message,
    code: known.code,
    ...(itemIndex === undefined ? {} : { item_index: itemIndex }),
    ...(itemName === undefined ? {} : { item_name: itemName }),
    ...(reason === undefined ? {} : { reason }),
    ...(missing === undefined ? {} : { missing }),
  }
}

export function sendProblem(res: Response, error: unknown): void {
  if (res.headersSent) {
    res.destroy()
    return
  }
  const problem = problemOf(error)
  if (problem.status === 401) res.setHeader('WWW-Authenticate', 'Bearer realm="hangar"')
  if (problem.status === 503) res.setHeader('Retry-After', '2')
  res.status(problem.status).setHeader('Content-Type', 'application/problem+json')
  res.end(JSON.stringify(problem))
}
