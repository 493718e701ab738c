/** The environment's set-up in a fresh sandbox: its script is run once per content; what it made is put back into later sandboxes. */
import { createHash } from 'node:crypto'
import { errors, messageOf } from '../domain/errors.ts'
import type { SandboxRef } from '../domain/sandbox.ts'
import { tarInside } from '../exchange/io-collect.ts'
import { lastWords } from './sandbox-helper.ts'
import type { TurnAt, TurnServices } from './turn-context.ts'

const SETUP_TIMEOUT_MS = 60 * 60_000
const OUTPUT_BYTES = 4 * 1_048_576
const MAX_SNAPSHOT_BYTES = 4 * 1024 * 1_048_576

/** Files by which package managers say exactly what they install: a set-up is only the same where these are. */
const LOCK_FILES = [
  'package-lock.json',
  'npm-shrinkwrap.json',
  'yarn.lock',
  'pnpm-lock.yaml',
  'bun.lock',
  'Cargo.lock',
  'go.sum',
  'poetry.lock',
  'uv.lock',
  'Pipfile.lock',
  'requirements.txt',
  'Gemfile.lock',
  'composer.lock',
  'mix.lock',
  'gradle.lockfile',
]

/** Prints the ids of the lock files that there are. */
const KEY_SCRIPT = 'for f; do if [ -f "$f" ]; then printf "%s %s\\n" "$f" "$(git hash-object -- "$f")"; fi; done'

/** Packs what the set-up has made: all of HOME but hangar's own and the checkout, and the checkout's ignored files. */
const SNAPSHOT_SCRIPT = `set -e
rm -rf "$HOME/.hangar/setup"; mkdir -p "$HOME/.hangar/setup"; cd "$HOME"
{ find . -mindepth 1 -maxdepth 1 ! -name .hangar ! -name repo -print0
  git -C repo ls-files -z --others --ignored --exclude-standard --directory | sed -z 's#^#./repo/#'
} >.hangar/setup/list
tar -c -f .hangar/setup/snapshot.tar --null --no-recursion -T /dev/null
if [ -s .hangar/setup/list ]; then tar -c -f .hangar/setup/snapshot.tar --null --verbatim-files-from -T .hangar/setup/list; fi
rm .hangar/setup/list
`

interface SetUp {
  readonly ref: SandboxRef
  readonly env: Readonly<Record<string, string>>
  /** Whether the checkout is the project's own, with nothing handed in and no agent's work: what is made of anything else is for this session alone. */
  readonly isProjects: boolean
}

/** Runs the set-up, or puts back what it made for the same content before. Throws `sandbox_failed` with its last words. */
export async function setUp(at: TurnAt, { ref, env, isProjects }: SetUp, services: TurnServices): Promise<void> {
  const { setup, setupSecrets, provider, image } = at.environment
  if (setup === null) return
  const options = { env, timeoutMs: SETUP_TIMEOUT_MS, maxOutputBytes: OUTPUT_BYTES, signal: at.signal }
  const locks = await provider.exec(ref, ['sh', '-c', KEY_SCRIPT, 'sh', ...LOCK_FILES], options)
  const content = [at.slug, provider.kind, image, setup, locks.out.toString('latin1')]
  const keyOf = (...scope: readonly string[]) =>
    createHash('sha256')
      .update(JSON.stringify([...content, ...scope]))
      .digest('hex')
  const tell = (text: string) =>
    services.events.append(at.name, at.number, [{ kind: 'state', state: 'preparing', text }])
  // A name may be another session's later.
  const { session } = await services.records.get(at.name)
  const own = keyOf(at.name, String(session.createdAt))
  const kept = (await services.setups.find(keyOf())) ?? (await services.setups.find(own))
  if (kept !== null) {
    await tell('the set-up is put back as it was made before')
    await provider.putTar(ref, provider.paths(ref).home, kept)
    return
  }
  await tell('the set-up runs')
  const run = await provider.exec(ref, ['sh', '-ec', setup], { ...options, env: { ...setupSecrets, ...env } })
  if (run.exitCode !== 0) {
    const said = services.redactor.text(lastWords(run.err.length > 0 ? run.err : run.out))
    throw errors.sandboxFailed(`the environment's set-up ended with exit status ${run.exitCode}: ${said}`)
  }
  const key = isProjects ? keyOf() : own
  await keepSetup(at, ref, key, env, services).catch((error: unknown) =>
    services.log.warn({ session: at.name, error: messageOf(error) }, 'a set-up was not kept; the next one runs again'),
  )
}

async function keepSetup(
  at: TurnAt,
  ref: SandboxRef,
  key: string,
  env: Readonly<Record<string, string>>,
  services: TurnServices,
): Promise<void> {
  const { provider } = at.environment
  const options = { env, timeoutMs: SETUP_TIMEOUT_MS, maxOutputBytes: 65_536, signal: at.signal }
  const packed = await provider.exec(ref, ['sh', '-c', SNAPSHOT_SCRIPT], options)
  if (packed.exitCode !== 0) throw errors.sandboxFailed(lastWords(packed.err))
  const place = `${provider.paths(ref).home}/.hangar/setup`
  const outer = await provider.getTar(ref, place, { maxBytes: MAX_SNAPSHOT_BYTES })
  try {
    await services.setups.keep(key, tarInside(outer, 'snapshot.tar'))
  } finally {
    outer.destroy()
    await provider.exec(ref, ['rm', '-rf', place], options)
  }
}
