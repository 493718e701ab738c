/** What stories of jobs share: a hosted repo, an agent that does what its prompt says, and waiting. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { type ApiAnswer, type Hangar, temporaryDirectory } from './support.ts'

/** Runs the lines of its prompt that begin with `! `, and keeps a line for each turn in its conversation. */
export const SCRIPTED_AGENT = `cat >"$HANGAR_CONVERSATION/prompt"
sed -n 's/^! //p' "$HANGAR_CONVERSATION/prompt" >"$HANGAR_CONVERSATION/script.new"
if [ -s "$HANGAR_CONVERSATION/script.new" ]; then mv "$HANGAR_CONVERSATION/script.new" "$HANGAR_CONVERSATION/script"; fi
echo turn "$HANGAR_TURN" >>"$HANGAR_CONVERSATION/log"
. "$HANGAR_CONVERSATION/script"`

/** Makes `acme/app` with a README on main; gives the checkout that it was pushed from. */
export async function hostedRepo(t: Test, hangar: Hangar): Promise<string> {
  const dir = join(temporaryDirectory(t), 'app')
  mkdirSync(dir)
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  writeFileSync(join(dir, 'README.md'), 'hello\n')
  for (const args of [
    ['init', '-q', '-b', 'main'],
    ['add', '.'],
    ['commit', '-q', '-m', 'begin'],
    ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'],
  ]) {
    const { status, err } = await hangar.git(dir, args)
    if (status !== 0) throw new Error(err)
  }
  return dir
}

export function submit(hangar: Hangar, body: Readonly<Record<string, unknown>>): Promise<ApiAnswer> {
  return hangar.api('POST', '/api/jobs', { repo: 'acme/app', ...body })
}

/** The job once it is at rest. */
export async function settled(hangar: Hangar, id: string): Promise<ApiAnswer['body']> {
  for (let count = 0; count < 10; count++) {
    const { body } = await hangar.api('GET', `/api/jobs/${id}/wait?timeout_seconds=30`)
    if (body.done === true) return (await hangar.api('GET', `/api/jobs/${id}`)).body
  }
  throw new Error(
    `job ${id} did not come to rest: ${JSON.stringify((await hangar.api('GET', `/api/jobs/${id}`)).body)}`,
  )
}

/** The states that the job went through. */
export function states(job: ApiAnswer['body']): string[] {
  return job.timeline.map(({ state }: { state: string }) => state)
}
