/** What is handed in with a message, item by item, to one checked intake; a bad item is refused with its index, name and reason. */
import type { ContextItem } from '../domain/context-item.ts'
import { type ErrorCode, HangarError } from '../domain/errors.ts'
import type { Limits } from '../domain/limits.ts'
import { EMPTY_TREE, type RefName, type SafePath, safeRelativePath } from '../domain/names.ts'
import { mergeBase } from '../gateway/git/ancestry.ts'
import type { Repository } from '../gateway/git/repository.ts'
import { type ReceivedBundle, receiveBundle } from './bundle-in.ts'
import { type Checkpoint, readStash, UNBORN_ROOT } from './checkpoint.ts'
import { projectTips } from './project-refs.ts'
import { refuseOwn, refuseUntracked } from './tree-check.ts'

export interface Attachment {
  readonly name: SafePath
  readonly content: Uint8Array
}

export interface PatchItem {
  readonly index: number
  readonly name: string | null
  readonly content: Uint8Array
}

/** The commits that a hand-over brings: in quarantine (bundle), or at `refs/hangar/incoming/*` (checkpoint). */
export type Brought =
  | { readonly kind: 'bundle'; readonly index: number; readonly bundle: ReceivedBundle }
  | {
      readonly kind: 'checkpoint'
      readonly index: number
      readonly checkpoint: Checkpoint
      readonly incoming: readonly RefName[]
    }

export interface Intake {
  readonly attachments: readonly Attachment[]
  readonly urls: readonly string[]
  readonly patches: readonly PatchItem[]
  readonly brought: Brought | null
}

/**
 * Checks all items, cheap checks first; commits of a bundle stay in quarantine until its `keep`.
 * Throws `invalid_context`, `too_large` or `missing_commits`, each with the item's index and name.
 */
export async function takeIn(repo: Repository, items: readonly ContextItem[], limits: Limits): Promise<Intake> {
  const attachments = nameAttachments(items, limits)
  const patches: PatchItem[] = []
  const urls: string[] = []
  let bringing: {
    readonly index: number
    readonly item: Extract<ContextItem, { kind: 'bundle' | 'checkpoint' }>
  } | null = null
  for (const [index, item] of items.entries()) {
    if (item.kind === 'url') urls.push(checkUrl(item.url, index))
    else if (item.kind === 'patch') patches.push(checkPatch(item, index, limits))
    else if (item.kind === 'bundle' || item.kind === 'checkpoint') {
      if (bringing !== null) throw refuse('invalid_context', index, item, 'at most one bundle or checkpoint a message')
      bringing = { index, item }
    }
  }
  return { attachments, urls, patches, brought: bringing === null ? null : await bring(repo, bringing, limits) }
}

/** Forgets what an intake holds in quarantine, when the hand-over is not recorded after all. */
export async function dropIntake(intake: Intake): Promise<void> {
  if (intake.brought?.kind === 'bundle') await intake.brought.bundle.drop()
}

async function bring(
  repo: Repository,
  { index, item }: { index: number; item: Extract<ContextItem, { kind: 'bundle' | 'checkpoint' }> },
  limits: Limits,
): Promise<Brought> {
  if (item.kind === 'checkpoint') {
    const { refs } = await repo.refs.snapshot()
    const incoming = refs.filter((ref) => ref.oid === item.commit && ref.name.startsWith('refs/hangar/incoming/'))
    if (incoming.length === 0)
      throw refuse(
        'invalid_context',
        index,
        item,
        `commit ${item.commit} is at no ref under refs/hangar/incoming/; push it there first`,
      )
    const checkpoint = await readStash(repo, item.commit)
    if (checkpoint === null)
      throw refuse(
        'invalid_context',
        index,
        item,
        `commit ${item.commit} is not stash-shaped: parents must be HEAD, the index and the untracked files; git stash create makes one, and so does --from-local`,
      )
    const refused = await refuseState(repo, checkpoint)
    if (refused !== null) throw refuse('invalid_context', index, item, refused)
    const tooMuch = await refuseUntracked(repo, checkpoint.untracked, limits.maxUntrackedBytes)
    if (tooMuch !== null) throw refuse('too_large', index, item, tooMuch)
    return { kind: 'checkpoint', index, checkpoint, incoming: incoming.map((ref) => ref.name) }
  }
  if (item.content.length > limits.maxBundleBytes)
    throw refuse(
      'too_large',
      index,
      item,
      `a bundle may have ${limits.maxBundleBytes} bytes, this has ${item.content.length}`,
    )
  try {
    return { kind: 'bundle', index, bundle: await receiveBundle(repo, item, limits.maxPushBytes) }
  } catch (error) {
    throw placed(error, index, item)
  }
}

/** What of a person's work tree nobody else can have. All else in it is theirs. */
async function refuseState(repo: Repository, checkpoint: Checkpoint): Promise<string | null> {
  const base = checkpoint.head === UNBORN_ROOT ? null : await mergeBase(repo, checkpoint.head, await projectTips(repo))
  const from = base === null ? EMPTY_TREE : ((await repo.objects.readCommit(base))?.tree ?? EMPTY_TREE)
  const { index, tracked, untracked } = checkpoint
  return (
    (await refuseOwn(repo, { from, to: tracked, env: {} })) ??
    (index === tracked ? null : await refuseOwn(repo, { from, to: index, env: {} })) ??
    (untracked === EMPTY_TREE ? null : await refuseOwn(repo, { from: EMPTY_TREE, to: untracked, env: {} }))
  )
}

function checkUrl(url: string, index: number): string {
  if (!URL.canParse(url) || !/^https?:/i.test(url) || url.length > 4_000 || /[\x00-\x20]/.test(url))
    throw refuse(
      'invalid_context',
      index,
      { kind: 'url' },
      `${JSON.stringify(url.slice(0, 100))} is not an http or https URL`,
    )
  return url
}

function checkPatch(item: Extract<ContextItem, { kind: 'patch' }>, index: number, limits: Limits): PatchItem {
  if (item.content.length > limits.maxPatchBytes)
    throw refuse(
      'too_large',
      index,
      item,
      `a patch may have ${limits.maxPatchBytes} bytes, this has ${item.content.length}; hand it over with --from-local`,
    )
  return { index, name: item.name, content: item.content }
}

const MADE_UP = { file: 'file', text: 'text.txt', log: 'log.txt', issue: 'issue.md', diff: 'changes.diff' } as const

function nameAttachments(items: readonly ContextItem[], limits: Limits): Attachment[] {
  const taken: Taken = { files: new Set(), directories: new Set() }
  const attachments: Attachment[] = []
  let bytes = 0
  for (const [index, item] of items.entries()) {
    if (!('content' in item) || item.kind === 'patch' || item.kind === 'bundle') continue
    bytes += item.content.length
    if (attachments.length === limits.maxAttachments)
      throw refuse('too_large', index, item, `at most ${limits.maxAttachments} attachments a turn`)
    if (bytes > limits.maxAttachmentBytes)
      throw refuse('too_large', index, item, `attachments of a turn may have ${limits.maxAttachmentBytes} bytes in all`)
    try {
      const name = freeName(item.name === null ? MADE_UP[item.kind] : safeRelativePath(item.name), taken)
      attachments.push({ name, content: item.content })
    } catch (error) {
      throw error instanceof HangarError ? refuse('invalid_context', index, item, error.message) : error
    }
  }
  return attachments
}

interface Taken {
  readonly files: Set<string>
  readonly directories: Set<string>
}

/** The name, or `trace-2.txt` and so on when it is there already; a part on the way that is a file already is numbered as well. */
function freeName(wanted: string, taken: Taken): SafePath {
  const parts = wanted.split('/')
  let path = ''
  for (const [place, part] of parts.entries()) {
    const last = place === parts.length - 1
    const isFree = (name: string) => !taken.files.has(name) && !(last && taken.directories.has(name))
    let number = 1
    while (!isFree(path + numbered(part, number))) number++
    path += numbered(part, number)
    if (last) taken.files.add(path)
    else {
      taken.directories.add(path)
      path += '/'
    }
  }
  return safeRelativePath(path)
}

/** `trace.txt`, `trace-2.txt`, …: shortened where a name of 255 bytes has no room for the number. */
function numbered(name: string, number: number): string {
  if (number === 1) return name
  const dot = name.indexOf('.', 1)
  const [stem, extension] = dot === -1 ? [name, ''] : [name.slice(0, dot), name.slice(dot)]
  const end = `-${number}${Buffer.byteLength(extension) > 200 ? '' : extension}`
  let start = stem
  while (Buffer.byteLength(start + end) > 255) start = [...start].slice(0, -1).join('')
  return start + end
}

type Named = { readonly kind: ContextItem['kind']; readonly name?: string | null }

function refuse(
  code: Extract<ErrorCode, 'invalid_context' | 'too_large'>,
  index: number,
  item: Named,
  reason: string,
): HangarError {
  return new HangarError(code, `context[${index}] (${labelOf(item)}): ${reason}`, {
    itemIndex: index,
    ...(item.name ? { itemName: item.name.slice(0, 1_000) } : {}),
    reason,
  })
}

function labelOf({ kind, name }: Named): string {
  return name ? `${kind} ${JSON.stringify(name.slice(0, 120))}` : kind
}

/** The same error with the item's place in it. */
export function placed(error: unknown, index: number, item: Named): unknown {
  if (!(error instanceof HangarError)) return error
  const code = error.code === 'git_failed' || error.code === 'limit_passed' ? 'invalid_context' : error.code
  return new HangarError(
    code,
    `context[${index}] (${labelOf(item)}): ${error.message}`,
    {
      ...error.details,
      itemIndex: index,
      ...(item.name ? { itemName: item.name.slice(0, 1_000) } : {}),
      reason: error.details.reason ?? error.message,
    },
    error,
  )
}

/** The refusal of a patch that does not apply. */
export function patchRefused(item: PatchItem, reason: string): HangarError {
  return refuse('invalid_context', item.index, { kind: 'patch', name: item.name }, reason)
}
