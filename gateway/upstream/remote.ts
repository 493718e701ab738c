/** git at an upstream: list, fetch and push, with a credential that only that git and its helper ever hold. */
import { errors, HangarError } from '../../domain/errors.ts'
import { isOid, isRefName, type Oid, type RefName, ZERO_OID } from '../../domain/names.ts'
import { createRedactor } from '../../domain/redact.ts'
import type { Upstream } from '../../domain/upstream.ts'
import type { RefEntry } from '../../refs-policy/ref-update.ts'
import { TOLERATED } from '../git/ingest.ts'
import { type GitResult, runGit } from '../git/process.ts'
import type { Repository } from '../git/repository.ts'
import { pinAddress } from './address.ts'
import type { Access, Credential, Credentials } from './credentials.ts'
import { upstreamFailure } from './failure.ts'

export interface Listed {
  /** HEAD's branch; null when it has none, or its host does not tell. */
  readonly head: RefName | null
  /** With names that are taken here; names are bytes. */
  readonly refs: readonly RefEntry[]
}

export type Pushed =
  | { readonly ok: true }
  | { readonly ok: false; readonly kind: 'moved' | 'refused'; readonly reason: string }

export interface Remote {
  /** Throws `upstream_*`. */
  list(upstream: Upstream, access: Access, signal?: AbortSignal): Promise<Listed>
  /** Takes in the objects of these commits and tags, checked and whole; no ref moves. Throws `upstream_*`. */
  fetch(repo: Repository, upstream: Upstream, oids: readonly Oid[], signal?: AbortSignal): Promise<void>
  /** Moves exactly one branch there, from exactly the value it is known to have (ZERO_OID: none). Throws `upstream_*`. */
  push(
    repo: Repository,
    upstream: Upstream,
    update: { readonly branch: RefName; readonly oid: Oid; readonly known: Oid },
    signal?: AbortSignal,
  ): Promise<Pushed>
}

export interface RemoteDeps {
  readonly credentials: Credentials
  readonly allowPrivateAddresses: boolean
  /** A PEM file of the certificate authorities to hold upstreams against; null: the system's. */
  readonly caFile: string | null
  /** How long an upstream may take to list its refs. Default 30 s. */
  readonly listMs?: number
}

/** The credential comes over a descriptor, once: neither arguments nor environment hold it, and there is nothing to prompt. */
const HELPER = '!f() { test "$1" = get && cat <&3; }; f'
const LIST_MS = 30_000
const MOVE_MS = 30 * 60_000
/** A host may have very many refs of pull requests beside its branches. */
const MAX_LIST_BYTES = 256 * 1_048_576

const FETCH_CONFIG = {
  'fetch.fsckObjects': 'true',
  ...Object.fromEntries(TOLERATED.map((id) => [`fetch.fsck.${id}`, 'ignore'])),
  'fetch.negotiationAlgorithm': 'consecutive',
  'core.bigFileThreshold': '32m',
  'core.deltaBaseCacheLimit': '64m',
}

export function createRemote(deps: RemoteDeps): Remote {
  const { listMs = LIST_MS } = deps
  interface Run {
    readonly repo?: Repository
    readonly args: readonly string[]
    readonly input?: Buffer
    readonly config?: Readonly<Record<string, string>>
    readonly timeoutMs: number
    readonly signal?: AbortSignal | undefined
  }

  const once = async (upstream: Upstream, credential: Credential | null, run: Run): Promise<GitResult> => {
    const pin = await pinAddress(upstream.url, deps.allowPrivateAddresses)
    const running = runGit({
      ...(run.repo === undefined ? {} : { gitDir: run.repo.dir }),
      args: run.args,
      config: {
        ...run.config,
        'protocol.allow': 'never',
        [`protocol.${new URL(upstream.url).protocol === 'http:' ? 'http' : 'https'}.allow`]: 'always',
        'http.followRedirects': 'false',
        'http.lowSpeedLimit': '1000',
        'http.lowSpeedTime': '60',
        'credential.helper': '',
        ...(credential === null ? {} : { [`credential.${new URL(upstream.url).origin}.helper`]: HELPER }),
        ...(pin === null ? {} : { 'http.curloptResolve': pin }),
        ...(deps.caFile === null ? {} : { 'http.sslCAInfo': deps.caFile }),
      },
      ...(credential === null ? {} : { secretInput: helperAnswer(credential) }),
      ...(run.input === undefined ? {} : { input: run.input }),
      ...(run.signal === undefined ? {} : { signal: run.signal }),
      timeoutMs: run.timeoutMs,
      maxOutputBytes: MAX_LIST_BYTES,
    })
    const result = await running.catch((cause: unknown) => {
      const late = cause instanceof HangarError && cause.code === 'limit_passed' && run.signal?.aborted !== true
      throw late ? errors.upstreamUnreachable(`${upstream.url} is too slow (${cause.message})`, {}, cause) : cause
    })
    return credential === null
      ? result
      : { ...result, stderr: createRedactor([credential.password]).text(result.stderr) }
  }

  /** Once more with a credential made anew, when the first is not taken any more. */
  const run = async (upstream: Upstream, access: Access, command: Run): Promise<GitResult> => {
    const credential = await deps.credentials.for(upstream, access)
    const first = await once(upstream, credential, command)
    if (first.exitCode === 0 || credential === null || credential.renew === null) return first
    if (upstreamFailure(upstream.url, first.stderr).code !== 'upstream_denied') return first
    return once(upstream, await credential.renew(), command)
  }

  return {
    async list(upstream, access, signal) {
      const args = ['ls-remote', '--symref', '--end-of-options', upstream.url]
      const { exitCode, stdout, stderr } = await run(upstream, access, { args, timeoutMs: listMs, signal })
      if (exitCode !== 0) throw upstreamFailure(upstream.url, stderr)
      return parseListing(upstream.url, stdout)
    },
    async fetch(repo, upstream, oids, signal) {
      // By id, so that what is fetched is what was listed, whatever moves upstream meanwhile.
      const args = [
        'fetch',
        '--quiet',
        '--no-write-fetch-head',
        '--no-tags',
        '--no-recurse-submodules',
        '--no-auto-maintenance',
        '--stdin',
        '--end-of-options',
        upstream.url,
      ]
      const input = Buffer.from(oids.map((oid) => `${oid}\n`).join(''))
      const command = { repo, args, input, config: FETCH_CONFIG, timeoutMs: MOVE_MS, signal }
      const { exitCode, stderr } = await run(upstream, 'read', command)
      if (exitCode !== 0) throw upstreamFailure(upstream.url, stderr)
    },
    async push(repo, upstream, { branch, oid, known }, signal) {
      const args = [
        'push',
        '--porcelain',
        '--no-follow-tags',
        '--recurse-submodules=no',
        `--force-with-lease=${branch}:${known === ZERO_OID ? '' : known}`,
        '--end-of-options',
        upstream.url,
        `${oid}:${branch}`,
      ]
      const { exitCode, stdout, stderr } = await run(upstream, 'write', { repo, args, timeoutMs: MOVE_MS, signal })
      if (exitCode === 0) return { ok: true }
      const status = /^!\t[^\t]*\t(.*)$/m.exec(stdout.toString('latin1'))?.[1]
      if (status === undefined) throw upstreamFailure(upstream.url, stderr)
      return { ok: false, ...refusalOf(status, stderr) }
    },
  }
}

function helperAnswer({ username, password }: Credential): Buffer {
  return Buffer.from(`username=${username}\npassword=${password}\n`)
}

function parseListing(url: string, stdout: Buffer): Listed {
  const refs: RefEntry[] = []
  let head: RefName | null = null
  for (const line of stdout.toString('latin1').split('\n')) {
    const [value = '', name = ''] = line.split('\t')
    if (/^[0-9a-f]{64}$/.test(value))
      throw upstreamFailure(url, 'fatal: it is a SHA-256 repository, and hangar takes SHA-1 ones only')
    const target = /^ref: (.+)$/.exec(value)?.[1]
    if (name === 'HEAD' && target !== undefined && isRefName(target)) head = target
    else if (isOid(value) && isRefName(name)) refs.push({ name, oid: value })
  }
  return { head, refs }
}

/** A branch that is elsewhere by now, or the host's own no, with what it said. */
function refusalOf(status: string, stderr: string): { readonly kind: 'moved' | 'refused'; readonly reason: string } {
  const said = [...stderr.matchAll(/^remote: (?:error: )?(.*)$/gm)].map(([, line]) => line?.trim() ?? '')
  const reason = [Buffer.from(status, 'latin1').toString('utf8'), ...said.filter((line) => line !== '')].join('; ')
  const moved = /stale info|cannot lock ref|failed to update ref|reference already exists|fetch first/.test(status)
  return { kind: moved ? 'moved' : 'refused', reason: reason.slice(0, 1_000) }
}

/** Whether the failure is of an object that was listed and is not there any more: what to fetch must be looked up again. */
export function isVanished(error: unknown): boolean {
  return (
    error instanceof HangarError &&
    /not our ref|unadvertised object|no such remote ref|did not send all necessary objects/.test(
      error.details.reason ?? '',
    )
  )
}
