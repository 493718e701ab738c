/** The parts of a round trip: what a checkout is as a whole, what may not change in it, and many trips at once. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Hangar, type Ran, sandboxCheckout, shell, workTree } from './support.ts'

const AT_ONCE = 4

/** All that must come back as it was. */
export interface Whole {
  readonly files: Record<string, string>
  readonly index: string
  readonly head: string
  readonly status: string
}

/** Without ignored files. */
export async function whole(top: string): Promise<Whole> {
  const git = 'git -c safe.directory=* -c core.fsmonitor=false -c diff.orderFile=/dev/null --no-optional-locks'
  const files = workTree(top)
  const ignored = await shell(top, `${git} ls-files -o -i -z --exclude-standard`)
  for (const path of ignored.split('\0')) delete files[path]
  const index = await shell(top, `${git} ls-files -s -z`)
  const head = (await shell(top, `${git} rev-parse -q --verify HEAD || echo unborn`)).trim()
  const status = await shell(
    top,
    `${git} status --porcelain=v2 -z --untracked-files=all --no-renames --ignore-submodules=all`,
  )
  return { files, index, head, status }
}

/** Everything that a hand-over could change in a checkout, and must not; `refs/hangar` is its own. */
export async function untouched(top: string): Promise<Record<string, unknown>> {
  const gitDir = (await shell(top, 'git rev-parse --absolute-git-dir; printf .')).slice(0, -2)
  return {
    files: workTree(top),
    index: createHash('sha256')
      .update(readFileSync(join(gitDir, 'index')))
      .digest('hex'),
    config: await shell(top, 'git config --local --list -z | cksum'),
    refs: await shell(
      top,
      "git for-each-ref --format='%(refname) %(objectname)' | grep -v '^refs/hangar/'; cat \"$(git rev-parse --git-path HEAD)\"",
    ),
  }
}

/** Waits for the first turn, which must end well. */
export async function turnOf(hangar: Hangar, name: string): Promise<{ warnings: readonly string[] }> {
  const { body } = await hangar.api('GET', `/api/sessions/${name}/wait?timeout_seconds=300`)
  if (body.outcome !== 'exited') throw new Error(`the turn of ${name}: ${JSON.stringify(body)}`)
  return body as { warnings: readonly string[] }
}

/** The checkout in a session's sandbox. */
export async function sandboxOf(hangar: Hangar, name: string): Promise<string> {
  const { body } = await hangar.api('GET', `/api/sessions/${name}`)
  return sandboxCheckout(hangar, body.sandbox.id as string)
}

/** Starts the work of each row when one of a few places is free; the promises are looked at one by one. */
export function pooled<Row, Result>(
  rows: readonly Row[],
  work: (row: Row, place: number) => Promise<Result>,
): Promise<Result>[] {
  const places: Promise<unknown>[] = Array.from({ length: AT_ONCE }, () => Promise.resolve())
  return rows.map((row, place) => {
    const before = places[place % AT_ONCE] ?? Promise.resolve()
    const result = before.then(() => work(row, place))
    places[place % AT_ONCE] = result.catch(() => {})
    return result
  })
}

/** A command that must end well. */
export async function must(running: Promise<Ran>, what = 'the command'): Promise<Ran> {
  const ran = await running
  if (ran.status !== 0) throw new Error(`${what} ended with ${ran.status}\n${ran.out}${ran.err}`)
  return ran
}
