/** A store in a temporary directory, for tests of the gateway. */
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import type { RefName, RepoSlug } from '../../domain/names.ts'
import type { Clock, Log, Random } from '../../domain/ports.ts'
import { createRepositories, type Repositories, type Repository } from '../../gateway/git/repositories.ts'
import { createLedger, type Ledger } from '../../gateway/ledger.ts'
import { createSigner, type Signer } from '../../gateway/state/sign.ts'

export interface Store {
  readonly dataDir: string
  readonly repositories: Repositories
  readonly repo: Repository
  readonly ledger: Ledger
  readonly signer: Signer
}

export const clock: Clock = { now: () => Date.now() }
export const random: Random = { bytes: (count) => randomBytes(count) }
export const log: Log = { info() {}, warn() {}, error() {} }
export const SLUG = 'acme/app' as RepoSlug
export const ref = (name: string) => name as RefName

/** Opens (or opens again) the store with one repo in it. */
export async function openStore(dataDir: string): Promise<Store> {
  const signer = await createSigner({ keyFile: join(dataDir, 'keys', 'sign.asc'), clock })
  const repositories = await createRepositories({ dataDir, signer, log, clock })
  const repo = await repositories.create(SLUG)
  return { dataDir, repositories, repo, ledger: createLedger({ clock }), signer }
}

/** Runs real git in a directory, as an outsider would; gives its stdout as latin1. */
export function gitIn(dir: string, args: readonly string[], input?: Buffer | string): string {
  return execFileSync('git', args as string[], {
    cwd: dir,
    input: input ?? '',
    stdio: ['pipe', 'pipe', 'pipe'],
    env: {
      PATH: process.env['PATH'],
      HOME: dir,
      GIT_CONFIG_NOSYSTEM: '1',
      GIT_AUTHOR_NAME: 'T',
      GIT_AUTHOR_EMAIL: 't@example.org',
      GIT_COMMITTER_NAME: 'T',
      GIT_COMMITTER_EMAIL: 't@example.org',
      ...(process.env['GNUPGHOME'] === undefined ? {} : { GNUPGHOME: process.env['GNUPGHOME'] }),
    },
  }).toString('latin1')
}

/** What fsck complains of; nothing when all is well. */
export function fsck(dir: string): string {
  const out = gitIn(dir, ['fsck', '--full', '--strict', '--no-dangling'])
  return out.replace(/^notice: .*\n/gm, '')
}
