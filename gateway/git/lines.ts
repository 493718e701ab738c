/** Reads git's output line by line while it runs, so that a long listing is never held whole. */
import { errors } from '../../domain/errors.ts'
import { DEFAULT_LIMITS } from '../../domain/limits.ts'
import { type GitCommand, killGit, spawnGit } from './process.ts'

/**
 * Runs git with the input and gives each line of its output (or what else `separator` ends) to `take`, which ends the run by answering false.
 * Lines are latin1. The exit status, or null when `take` ended it. Throws `git_failed` when git cannot start, `limit_passed` past the time.
 */
export async function gitLines(
  run: GitCommand & {
    readonly input: string
    readonly separator?: string
    readonly timeoutMs?: number
    readonly signal?: AbortSignal
  },
  take: (line: string) => boolean,
): Promise<{ exitCode: number | null; stderr: string }> {
  const child = spawnGit(run)
  let stderr = ''
  const separator = run.separator ?? '\n'
  let rest = ''
  let stopped = false
  let late = false
  const timer = setTimeout(() => {
    late = true
    killGit(child)
  }, run.timeoutMs ?? DEFAULT_LIMITS.gitTimeoutMs)
  const onAbort = () => killGit(child)
  run.signal?.addEventListener('abort', onAbort)
  child.stdin.on('error', () => {})
  child.stdin.end(run.input, 'latin1')
  child.stderr.on('data', (chunk: Buffer) => {
    if (stderr.length < 8_000) stderr = (stderr + chunk.toString('latin1')).slice(0, 8_000)
  })
  child.stdout.on('data', (chunk: Buffer) => {
    if (stopped) return
    const lines = (rest + chunk.toString('latin1')).split(separator)
    rest = lines.pop() ?? ''
    stopped = !lines.every(take)
    if (stopped) killGit(child)
  })
  try {
    const exitCode = await new Promise<number>((resolve, reject) => {
      child.once('error', (cause) => reject(errors.gitFailed('git could not be started', {}, cause)))
      child.once('close', (code) => resolve(code ?? 143))
      if (run.signal?.aborted) onAbort()
    })
    if (late) throw errors.limitPassed('git ran too long')
    return { exitCode: stopped ? null : exitCode, stderr }
  } finally {
    clearTimeout(timer)
    run.signal?.removeEventListener('abort', onAbort)
  }
}

/** Input for `rev-list --stdin`: what is reachable from some objects, and not from others. git 2.39 takes no `--not` there. */
export function revisions(from: Iterable<string>, not: Iterable<string>): string {
  return [...from, ...[...not].map((oid) => `^${oid}`), ''].join('\n')
}
