/** What one caller sees of one repository at one moment, worked out once for each state of its refs. */
import type { Caller } from '../domain/grant.ts'
import type { Oid } from '../domain/names.ts'
import { placeOf } from '../refs-policy/ref-names.ts'
import { currentOid, type RefEntry } from '../refs-policy/ref-update.ts'
import { listedRefs, pushListedRefs, seesAll, visibility, visibleRefs } from '../refs-policy/visible.ts'
import type { RefSnapshot, Repository } from './git/repository.ts'
import { receivePackAdvertisement } from './wire/receive-pack.ts'
import { type Head, type LsRefs, lsRefsAnswer, type PeeledRef, uploadPackAdvertisement } from './wire/upload-pack.ts'

export interface View {
  readonly table: RefSnapshot
  readonly seesAll: boolean
  readonly refs: readonly RefEntry[]
  /** The values of all refs that are seen: of a person, as many as there are sessions. */
  readonly tips: ReadonlySet<Oid>
  /** The values of those that a push is told of. */
  readonly pushTips: ReadonlySet<Oid>
  /** `tips` may hold more than these. */
  readonly seesMore: boolean
  /** Those of the objects that a ref that is seen has as its value; no set of all is made for it. */
  tipsAmong(oids: ReadonlySet<Oid>): ReadonlySet<Oid>
  advertisement(service: 'upload-pack' | 'receive-pack', protocol: 0 | 1): Promise<Buffer>
  lsRefs(command: LsRefs): Promise<Buffer>
}

export interface Views {
  of(repo: Repository, caller: Caller): Promise<View>
}

/** Answers kept for each view; a client's prefixes are its own choice, so their number is bounded. */
const MOST_ANSWERS = 8
const LONGEST_KEY = 4_096
const MOST_PEELED = 200_000

/** `onLookup` hears of each use of the caches. */
export function createViews(onLookup: OnLookup = () => {}): Views {
  const states = new WeakMap<Repository, State>()
  return {
    async of(repo, caller) {
      const table = await repo.refs.snapshot()
      const before = states.get(repo)
      const state =
        before?.version === table.version
          ? before
          : { version: table.version, views: new Map<string, View>(), peel: before?.peel ?? createPeeler(repo) }
      states.set(repo, state)
      const key = keyOf(caller)
      const kept = state.views.get(key)
      onLookup('refs', kept === undefined ? 'miss' : 'hit')
      const view = kept ?? createView({ table, caller, peel: state.peel, onLookup })
      state.views.set(key, view)
      return view
    },
  }
}

type OnLookup = (cache: 'refs' | 'answers', result: 'hit' | 'miss') => void

/** The views of one state of a repository's refs. */
interface State {
  readonly version: number
  readonly views: Map<string, View>
  readonly peel: (oid: Oid) => Promise<Oid | null>
}

/** Callers with the same key see the same refs. */
function keyOf(caller: Caller): string {
  if (caller.kind === 'grant') return `grant ${caller.session} ${caller.parent ?? ''}`
  if (caller.kind === 'guest') return 'guest'
  return seesAll(caller) ? 'admin' : caller.scopes.length > 0 ? 'token' : 'nothing'
}

function createView(input: {
  readonly table: RefSnapshot
  readonly caller: Caller
  readonly peel: (oid: Oid) => Promise<Oid | null>
  readonly onLookup: OnLookup
}): View {
  const { table, caller, peel, onLookup } = input
  const answers = new Map<string, Promise<Buffer>>()
  const answer = (key: string, make: () => Promise<Buffer>) => {
    if (key.length > LONGEST_KEY) return make()
    const kept = answers.get(key)
    onLookup('answers', kept === undefined ? 'miss' : 'hit')
    const made = kept ?? make()
    if (answers.size >= MOST_ANSWERS) answers.clear()
    answers.set(key, made)
    made.catch(() => answers.delete(key))
    return made
  }
  const sees = visibility(caller)
  const headOid = sees(table.head) ? currentOid(table, table.head) : null
  const head: Head = { target: table.head, oid: headOid }
  let refs: readonly RefEntry[] | undefined
  let tips: ReadonlySet<Oid> | undefined
  let pushTips: ReadonlySet<Oid> | undefined
  const view: View = {
    table,
    seesAll: seesAll(caller),
    seesMore: caller.kind !== 'grant',
    get refs() {
      refs ??= visibleRefs(caller, table)
      return refs
    },
    get tips() {
      tips ??= new Set(view.refs.map(({ oid }) => oid))
      return tips
    },
    get pushTips() {
      if (caller.kind === 'grant') return view.tips
      pushTips ??= new Set(pushListedRefs(caller, table).map(({ oid }) => oid))
      return pushTips
    },
    tipsAmong(oids) {
      const found = new Set<Oid>()
      for (const { name, oid } of caller.kind === 'grant' ? view.refs : table.refs) {
        if (found.size === oids.size) break
        if (oids.has(oid) && sees(name)) found.add(oid)
      }
      return found
    },
    advertisement: (service, protocol) =>
      answer(`${service} ${protocol}`, async () =>
        service === 'receive-pack'
          ? receivePackAdvertisement(pushListedRefs(caller, table))
          : uploadPackAdvertisement(protocol, head, await peelAll(view.refs, peel)),
      ),
    lsRefs: (command) =>
      answer(JSON.stringify(command), async () => {
        const listed = listedRefs(caller, table, { protocol: 2, prefixes: command.prefixes })
        const peeled = command.peel ? await peelAll(listed, peel) : listed.map((ref) => ({ ...ref, peeled: null }))
        return lsRefsAnswer(command, head, peeled)
      }),
  }
  return view
}

async function peelAll(refs: readonly RefEntry[], peel: (oid: Oid) => Promise<Oid | null>): Promise<PeeledRef[]> {
  // Branches and records are commits; only elsewhere may a tag object be.
  const mayBeTag = ({ name }: RefEntry) => ['tag', 'note', 'other'].includes(placeOf(name))
  const peeled: PeeledRef[] = []
  for (let at = 0; at < refs.length; at += 256) {
    const some = refs.slice(at, at + 256)
    peeled.push(
      ...(await Promise.all(some.map(async (ref) => ({ ...ref, peeled: mayBeTag(ref) ? await peel(ref.oid) : null })))),
    )
  }
  return peeled
}

/** What a tag object names in the end, remembered by id: an object never changes. */
function createPeeler(repo: Repository): (oid: Oid) => Promise<Oid | null> {
  const known = new Map<Oid, Oid | null>()
  return async (oid) => {
    const before = known.get(oid)
    if (before !== undefined) return before
    let found: Oid | null = null
    let tag = (await repo.objects.info(oid))?.type === 'tag' ? oid : null
    while (tag !== null) {
      const body: string = (await repo.objects.read(tag))?.body.toString('latin1', 0, 200) ?? ''
      const [, target, type]: string[] = /^object ([0-9a-f]{40})\ntype (\w+)\n/.exec(body) ?? []
      found = (target as Oid | undefined) ?? found
      tag = type === 'tag' ? ((target as Oid | undefined) ?? null) : null
    }
    if (known.size >= MOST_PEELED) known.clear()
    known.set(oid, found)
    return found
  }
}
