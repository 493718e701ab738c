/** Artifacts at rest: each sealed in `refs/hangar/sessions/<name>/sealed` under `artifacts/<turn>/<path>.pgp`, listed on its turn's record. */
import { errors } from '../domain/errors.ts'
import type { RefName, SessionName } from '../domain/names.ts'
import type { ArtifactEntry, TurnRecord } from '../domain/session.ts'
import type { Repository } from '../gateway/git/repository.ts'
import type { Ledger } from '../gateway/ledger.ts'
import type { Sealer } from '../gateway/state/seal.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'
import type { CollectedArtifact } from './io-collect.ts'

export interface ArtifactStore {
  /** Seals a turn's new artifacts in one commit; done again after a crash it replaces what it wrote before. */
  store(
    repo: Repository,
    session: SessionName,
    turn: number,
    artifacts: readonly CollectedArtifact[],
  ): Promise<ArtifactEntry[]>
  /** The bytes of an artifact that a turn's record lists. Throws `not_found`. */
  read(repo: Repository, session: SessionName, entry: ArtifactEntry): Promise<Uint8Array>
}

export function createArtifactStore({ ledger, sealer }: { ledger: Ledger; sealer: Sealer }): ArtifactStore {
  return {
    store: async (repo, session, turn, artifacts) => {
      if (artifacts.length === 0) return []
      const files = new Map<string, Uint8Array>()
      for (const { path, content } of artifacts) files.set(sealedPath(turn, path), await sealer.seal(content))
      await ledger.append(repo, sealedRef(session), async () => ({
        files,
        message: `turn ${turn}: ${artifacts.length} artifact(s)`,
      }))
      return artifacts.map(({ path, content, sha256 }) => ({
        path,
        turn,
        size: content.length,
        contentType: contentType(path, content),
        sha256,
      }))
    },
    read: async (repo, session, entry) => {
      const sealed = await ledger.readFile(repo, sealedRef(session), sealedPath(entry.turn, entry.path))
      if (sealed === null)
        throw errors.notFound(`artifact ${entry.path} of turn ${entry.turn} is not in the store any more`)
      return sealer.open(sealed)
    },
  }
}

/** The newest SHA-256 of each artifact path over the turns so far, so that unchanged files are not stored again. */
export function knownArtifacts(turns: readonly TurnRecord[]): ReadonlyMap<string, string> {
  return new Map(turns.flatMap((turn) => turn.artifacts.map((artifact) => [artifact.path, artifact.sha256] as const)))
}

function sealedRef(session: SessionName): RefName {
  return sessionRef(session, 'sealed')
}

/** Paths in trees are bytes held as latin1. */
function sealedPath(turn: number, path: string): string {
  return `artifacts/${turn}/${Buffer.from(path, 'utf8').toString('latin1')}.pgp`
}

const TYPES: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  txt: 'text/plain; charset=utf-8',
  log: 'text/plain; charset=utf-8',
  md: 'text/markdown; charset=utf-8',
  csv: 'text/csv; charset=utf-8',
  json: 'application/json',
  xml: 'application/xml',
  svg: 'image/svg+xml',
  png: 'image/png',
  jpg: 'image/jpeg',
  jpeg: 'image/jpeg',
  gif: 'image/gif',
  webp: 'image/webp',
  pdf: 'application/pdf',
  zip: 'application/zip',
  gz: 'application/gzip',
  diff: 'text/x-diff; charset=utf-8',
  patch: 'text/x-diff; charset=utf-8',
}

function contentType(path: string, content: Uint8Array): string {
  const extension = path.slice(path.lastIndexOf('.') + 1).toLowerCase()
  const known = Object.hasOwn(TYPES, extension) ? TYPES[extension] : undefined
  if (known !== undefined) return known
  return content.subarray(0, 8_000).includes(0) ? 'application/octet-stream' : 'text/plain; charset=utf-8'
}
