/** What a push may bring, beyond its refs' names: the settings that apply to a caller and ref, and pure checks of paths and links. */
import type { BranchSettings } from '../domain/environment.ts'
import type { Caller } from '../domain/grant.ts'
import { isDotGit, type Oid } from '../domain/names.ts'
import { placeOf } from './ref-names.ts'

/** What is asked of one update. */
export interface ContentPolicy {
  readonly fastForwardOnly: boolean
  /** Rules over files and links, and secrets by their shape; null: none, as for checkpoints (no work is lost to a rule) and for people. */
  readonly branch: BranchSettings | null
}

/** The policy of an update. `fastForwardOnly` are the patterns of the project's own refs that are not to be rewritten. */
export function policyOf(
  caller: Caller,
  ref: string,
  settings: { readonly branch: BranchSettings | null; readonly fastForwardOnly: readonly string[] },
): ContentPolicy {
  if (caller.kind === 'grant') {
    const branch = placeOf(ref) === 'session_branch' ? settings.branch : null
    return { branch, fastForwardOnly: branch?.fastForwardOnly ?? false }
  }
  const name = /^refs\/(?:heads|tags)\/(.*)$/s.exec(ref)?.[1]
  return {
    branch: null,
    fastForwardOnly: name !== undefined && pathMatcher(settings.fastForwardOnly)(name),
  }
}

/** Where something was found in a push. */
export interface Finding {
  /** The commit that brings it; null when no new commit does. */
  readonly commit: Oid | null
  /** Bytes as latin1; null: the commit itself, its message. */
  readonly path: string | null
  readonly line: number | null
  readonly what: string
}

/** The first that was found of each kind. */
export interface ContentFacts {
  readonly changedFiles: number
  readonly forbiddenPath: Finding | null
  readonly largeFile: Finding | null
  readonly link: Finding | null
  /** A secret of the server's, in whatever the push brings. */
  readonly knownSecret: Finding | null
  /** What has the shape of somebody's secret, in the commits of this ref. */
  readonly likelySecret: Finding | null
}

export const NO_CONTENT: ContentFacts = {
  changedFiles: 0,
  forbiddenPath: null,
  largeFile: null,
  link: null,
  knownSecret: null,
  likelySecret: null,
}

/**
 * Whether a path (latin1) matches one of the patterns: `*` and `?` within one part, `**` over any number of parts, a pattern that ends with `/`
 * all below. Letters match in either case, since some file systems and forges take them for the same.
 */
export function pathMatcher(patterns: readonly string[]): (path: string) => boolean {
  const sources = patterns.map(patternSource)
  if (sources.length === 0) return () => false
  const any = new RegExp(`^(?:${sources.join('|')})$`, 'is')
  return (path) => any.test(path)
}

function patternSource(pattern: string): string {
  const bytes = Buffer.from(pattern.endsWith('/') ? `${pattern}**` : pattern, 'utf8').toString('latin1')
  const parts = bytes.split('/')
  const source = parts.map((part, at) => {
    const last = at === parts.length - 1
    if (part === '**') return last ? '.+' : '(?:[^/]+/)*'
    const plain = part.replace(/[.+^${}()|[\]\\]/g, '\\$&')
    return plain.replace(/\*+/g, '[^/]*').replace(/\?/g, '[^/]') + (last ? '' : '/')
  })
  return source.join('')
}

/** What is wrong with a symbolic link, as the end of a sentence; null when it stays in the tree. Other links on its way are not looked at. */
export function linkFault(path: string, target: string): string | null {
  if (target.startsWith('/')) return 'leads outside the repository'
  const at = path.split('/').slice(0, -1)
  for (const part of target.split('/')) {
    if (part === '' || part === '.') continue
    if (part === '..') {
      if (at.pop() === undefined) return 'leads outside the repository'
      continue
    }
    if (isDotGit(Buffer.from(part, 'latin1').toString('utf8'))) return 'leads into .git'
    at.push(part)
  }
  return null
}
