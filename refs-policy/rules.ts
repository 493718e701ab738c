/** The rules of a push as a list: a name, a test, and the sentence that the pusher reads. The first that refuses is the one that is told. */
import { type Caller, hasScope, type Scope } from '../domain/grant.ts'
import { isRefName, type Oid, workBranch, ZERO_OID } from '../domain/names.ts'
import type { ContentFacts, ContentPolicy, Finding } from './content.ts'
import { isIncomingRef, placeOf, sandboxRefs } from './ref-names.ts'
import { currentOid, lowerBound, type RefCommand, type RefTable, type RefUpdate } from './ref-update.ts'

/** What is known of a command before any byte of the pack. */
export interface NameContext {
  readonly caller: Caller
  readonly table: RefTable
  /** The repo follows an upstream: only its mirror moves the project's own refs. */
  readonly mirrored: boolean
  /** How often the push names this ref. */
  readonly timesNamed: number
}

/** What is known of an update while its objects are in quarantine. */
export interface HistoryContext {
  /** The type of the new value; null when it is neither in the push nor visible to the caller. */
  readonly type: 'commit' | 'tree' | 'blob' | 'tag' | null
  /** All that the new value reaches is in the push, or reachable from what the caller sees. */
  readonly complete: boolean
  /** The client said that its history is cut. */
  readonly shallow: boolean
  /** The old value is not in the new one's history. Known only where the policy asks for it. */
  readonly rewinds: boolean
  readonly content: ContentFacts
  readonly policy: ContentPolicy
}

export interface Rule<Subject, Context> {
  /** For the audit trail and metrics. */
  readonly id: string
  readonly name: string
  refuses(subject: Subject, context: Context): boolean
  sentence(subject: Subject, context: Context): string
}

const say = (text: string) => () => text
const isGrant = ({ caller }: NameContext) => caller.kind === 'grant'
const isToken = ({ caller }: NameContext) => caller.kind === 'token'
const isDelete = (command: RefCommand) => command.new === ZERO_OID
/** Whether a token has none of the scopes. */
const lacks = ({ caller }: NameContext, ...scopes: readonly Scope[]) =>
  caller.kind === 'token' && !scopes.some((scope) => hasScope(caller, scope))

/** Decided before the pack is read. A delete has no further rules. */
export const NAME_RULES: readonly Rule<RefCommand, NameContext>[] = [
  {
    id: 'ref_name',
    name: 'a ref has a name that git and hangar take',
    refuses: ({ ref }) => !isRefName(ref),
    sentence: say('not a ref name that is taken here'),
  },
  {
    id: 'named_once',
    name: 'a push names a ref once',
    refuses: (_, { timesNamed }) => timesNamed > 1,
    sentence: say('named more than once in this push'),
  },
  {
    id: 'no_change',
    name: 'an update changes something',
    refuses: (command) => command.old === ZERO_OID && isDelete(command),
    sentence: say('neither an old nor a new value was given'),
  },
  {
    id: 'guest',
    name: "a sandbox pushes to its own session's repo alone",
    refuses: (_, { caller }) => caller.kind === 'guest',
    sentence: say("this repo is not the session's: its sandbox may only fetch from it"),
  },
  {
    id: 'grant_refs',
    name: 'a grant moves the branch and the checkpoint of its own session',
    refuses: ({ ref }, { caller }) =>
      caller.kind === 'grant' && !sandboxRefs(caller.session).some((own) => own === ref),
    sentence: (_, { caller }) =>
      `this grant may push only ${caller.kind === 'grant' ? workBranch(caller.session) : 'its branch'}`,
  },
  {
    id: 'grant_delete',
    name: 'a grant deletes nothing',
    refuses: (command, context) => isGrant(context) && isDelete(command),
    sentence: say('this grant may not delete refs'),
  },
  {
    id: 'incoming_name',
    name: 'work is handed in under one name, with a scope that begins work: sessions or jobs',
    refuses: ({ ref }, context) =>
      isToken(context) && placeOf(ref) === 'incoming' && (!isIncomingRef(ref) || lacks(context, 'sessions', 'jobs')),
    sentence: say('refs/hangar/incoming/ takes one plain name, from a token with the scope sessions or jobs'),
  },
  {
    id: 'incoming_delete',
    name: 'what was handed in goes away by itself',
    refuses: (command, context) => isToken(context) && placeOf(command.ref) === 'incoming' && isDelete(command),
    sentence: say('refs/hangar/incoming/ is cleared by hangar only'),
  },
  {
    id: 'records',
    name: 'records are moved by hangar',
    refuses: ({ ref }, context) => isToken(context) && ['record', 'sealed'].includes(placeOf(ref)),
    sentence: say('refs/hangar/ and refs/notes/hangar are moved by hangar only'),
  },
  {
    id: 'session_branches',
    name: 'session branches are moved by their sandbox and by hangar',
    refuses: ({ ref }, context) => isToken(context) && placeOf(ref) === 'session_branch',
    sentence: say('session branches are moved by their sandbox and by hangar only'),
  },
  {
    id: 'namespaces',
    name: 'people push branches, tags and notes',
    refuses: ({ ref }, context) => isToken(context) && ['upstream', 'other'].includes(placeOf(ref)),
    sentence: say('only branches, tags and notes may be pushed'),
  },
  {
    id: 'scope',
    name: "the project's own refs need the scope repo:write",
    refuses: ({ ref }, context) => placeOf(ref) !== 'incoming' && lacks(context, 'repo:write'),
    sentence: say('this token has not the scope repo:write'),
  },
  {
    id: 'mirrored',
    name: "a mirrored repo's own refs are moved upstream",
    refuses: ({ ref }, context) => isToken(context) && context.mirrored && placeOf(ref) !== 'incoming',
    sentence: say('this repo follows an upstream; push there'),
  },
  {
    id: 'default_branch',
    name: 'the default branch stays',
    refuses: (command, { table }) => isDelete(command) && command.ref === table.head,
    sentence: say('the default branch may not be deleted'),
  },
  {
    id: 'moved',
    name: 'the client knows the current value',
    refuses: (command, { table }) => command.old !== (currentOid(table, command.ref) ?? ZERO_OID),
    sentence: say('the ref moved meanwhile; fetch and push again'),
  },
  {
    id: 'folder',
    name: 'a ref is not a folder of others',
    refuses: (command, { table }) =>
      command.old === ZERO_OID && !isDelete(command) && hasFolderConflict(command.ref, table),
    sentence: say('a ref that is a folder of this one, or lies below it, exists; use another name'),
  },
]

/** Decided while the objects are in quarantine. Absent and invisible objects get the same sentence, so that nothing can be found out by asking. */
export const HISTORY_RULES: readonly Rule<RefUpdate, HistoryContext>[] = [
  {
    id: 'shallow',
    name: 'history is whole',
    refuses: (_, { complete, shallow }) => !complete && shallow,
    sentence: say('shallow update not allowed: run git fetch --unshallow'),
  },
  {
    id: 'missing_objects',
    name: 'everything is in the push, or seen by the pusher',
    refuses: (_, { complete, type }) => !complete || type === null,
    sentence: say('missing necessary objects'),
  },
  {
    id: 'not_a_commit',
    name: 'all but tags are commits',
    refuses: ({ ref }, { type }) => placeOf(ref) !== 'tag' && type !== 'commit',
    sentence: say('this ref may name only a commit'),
  },
  {
    id: 'known_secret',
    name: 'no secret of this server enters the store',
    refuses: (_, { content }) => content.knownSecret !== null,
    sentence: (_, { content }) => `${shown(content.knownSecret)}; take it out of the commits and push again`,
  },
  {
    id: 'fast_forward',
    name: 'where it is asked for, history only grows',
    refuses: (_, { rewinds, policy }) => policy.fastForwardOnly && rewinds,
    sentence: say('only fast-forward: merge or rebase onto what is there, and push without force'),
  },
  {
    id: 'changed_files',
    name: 'a push of a sandbox changes no more files than its environment allows',
    refuses: (_, { content, policy }) => policy.branch !== null && content.changedFiles > policy.branch.maxChangedFiles,
    sentence: (_, { policy }) => `more than ${policy.branch?.maxChangedFiles} files are changed (max_changed_files)`,
  },
  {
    id: 'forbidden_path',
    name: 'a sandbox leaves the paths alone that its environment forbids',
    refuses: (_, { content }) => content.forbiddenPath !== null,
    sentence: (_, { content }) => `${shown(content.forbiddenPath)} (forbidden_paths); leave it as it was`,
  },
  {
    id: 'large_file',
    name: 'no file of a sandbox is larger than its environment allows',
    refuses: (_, { content }) => content.largeFile !== null,
    sentence: (_, { content }) => `${shown(content.largeFile)} (max_file_mb); take it out of the commits`,
  },
  {
    id: 'link',
    name: 'links of a sandbox stay in the tree',
    refuses: (_, { content }) => content.link !== null,
    sentence: (_, { content }) => `${shown(content.link)}; such a link may not be pushed`,
  },
  {
    id: 'likely_secret',
    name: 'a sandbox pushes nothing that has the shape of a secret',
    refuses: (_, { content }) => content.likelySecret !== null,
    sentence: (_, { content }) => `${shown(content.likelySecret)}; take it out of the commits and push again`,
  },
]

/** `commit 1234567: path:3 is …`; the path is cut in the middle, since a report holds 200 bytes. */
export function shown(finding: Finding | null): string {
  if (finding === null) return ''
  const place = finding.commit === null ? 'an object' : `commit ${finding.commit.slice(0, 10)}`
  if (finding.path === null) return `${place} ${finding.what}`
  const text = Buffer.from(finding.path, 'latin1').toString('utf8')
  const path = text.length > 70 ? `${text.slice(0, 20)}…${text.slice(-49)}` : text
  return `${place}: ${path}${finding.line === null ? '' : `:${finding.line}`} ${finding.what}`
}

/** The update as it is to be applied: what was handed in before is not advertised, so its old value cannot be known and is replaced. */
export function withKnownOld(command: RefCommand, table: RefTable): RefCommand {
  if (command.old !== ZERO_OID || !isIncomingRef(command.ref)) return command
  return { ...command, old: currentOid(table, command.ref) ?? (ZERO_OID as Oid) }
}

function hasFolderConflict(ref: string, table: RefTable): boolean {
  if (table.refs[lowerBound(table, `${ref}/`)]?.name.startsWith(`${ref}/`)) return true
  for (let slash = ref.lastIndexOf('/'); slash > 'refs'.length; slash = ref.lastIndexOf('/', slash - 1))
    if (currentOid(table, ref.slice(0, slash)) !== null) return true
  return false
}
