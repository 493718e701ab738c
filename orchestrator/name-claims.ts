/** Session names are unique on the server: each is claimed by a ref that can be created only once. */
import { errors } from '../domain/errors.ts'
import type { RefName, RepoSlug, SessionName } from '../domain/names.ts'
import { ZERO_OID } from '../domain/names.ts'
import type { Repository } from '../gateway/git/repository.ts'
import type { Ledger } from '../gateway/ledger.ts'
import { sessionRef } from '../refs-policy/ref-names.ts'

export interface NameClaims {
  /** Whether the name was free and is now taken. */
  claim(name: SessionName, repo: RepoSlug): Promise<boolean>
  release(name: SessionName): Promise<void>
  list(): Promise<{ readonly name: SessionName; readonly repo: RepoSlug | null }[]>
}

const FOLDER = 'refs/hangar/names/'

export function createNameClaims({ server, ledger }: { server: Repository; ledger: Ledger }): NameClaims {
  return {
    claim: async (name, repo) => {
      const { changed } = await ledger.append(server, refOf(name), async (tip) =>
        tip === null
          ? {
              files: new Map([['name.json', Buffer.from(`${JSON.stringify({ repo })}\n`)]]),
              message: `${name} is in ${repo}`,
            }
          : null,
      )
      return changed
    },
    release: async (name) => {
      const oid = await server.refs.read(refOf(name))
      const freed = oid === null ? null : await server.refs.transact([{ ref: refOf(name), old: oid, new: ZERO_OID }])
      if (freed?.ok === false) throw errors.conflict(`the name ${name} could not be freed: ${freed.reason}; try again`)
    },
    list: async () => {
      const { refs } = await server.refs.snapshot()
      const names = refs.filter((ref) => ref.name.startsWith(FOLDER))
      return Promise.all(
        names.map(async ({ name, oid }) => {
          const file = await ledger.readFile(server, oid, 'name.json')
          const repo = file === null ? null : (JSON.parse(file.toString('utf8')) as { repo: RepoSlug }).repo
          return { name: name.slice(FOLDER.length) as SessionName, repo }
        }),
      )
    },
  }
}

/** Frees names that were claimed for sessions that could not be made; one that was made keeps its name. */
export async function releaseUnmade(
  claims: NameClaims,
  repo: Repository,
  names: readonly SessionName[],
): Promise<void> {
  for (const name of names) if ((await repo.refs.read(sessionRef(name, 'log'))) === null) await claims.release(name)
}

function refOf(name: SessionName): RefName {
  return `${FOLDER}${name}` as RefName
}
