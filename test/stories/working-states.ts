/** The states of a working tree that the stories carry to and fro: each a shell script for a checkout of `BASE`. */

import type { Whole } from './round-trip.ts'

const FILES = `
mkdir -p dir/deep 'spaced dir' && printf 'one\\ntwo\\nthree\\n' >a && echo b >b && echo c >c && echo moved >old
printf '#!/bin/sh\\n' >tool && chmod +x tool && printf 'bin\\0\\001\\377' >bin && ln -s a link && echo d >dir/d && echo e >dir/deep/e
: >empty && printf 'x\\r\\ny\\r\\n' >crlf && printf 'no end' >noend && echo s >'spaced dir/s p' && printf '*.ignored\\nbuild/\\n' >.gitignore
`

/** Makes the repository that all states start from, in the current directory; `places` are further directories that hold the same files. */
export function baseScript(places: readonly string[]): string {
  const directories = ['.', ...places].join(' ')
  return `git init -q -b main .
for dir in ${directories}; do mkdir -p $dir; (cd $dir; ${FILES.trim().replaceAll('\n', '; ')}); done
git add -A; git commit -q -m base; for dir in ${directories}; do echo two >>$dir/b; done; git commit -q -a -m second
`
}

export interface WorkingState {
  readonly name: string
  /** Run by `sh -e` at the top of a checkout, of the developer's or of the agent's. */
  readonly make: string
  /** Only its own in its checkout: it is about HEAD, history or the index as a whole. Others are made side by side, each in a directory. */
  readonly alone?: true
  /** What is particular about the developer's own checkout; such a state is not made by an agent. */
  readonly checkout?: CheckoutShape
  /** What the CLI must say on the way in. */
  readonly named?: RegExp
  /** What the turn must say on the way out. */
  readonly warned?: RegExp
  /** Files that hangar leaves out, on purpose and by name, or that no repository holds. */
  readonly leftOut?: readonly string[]
  /** Ignored files that are in the index all the same: where the index does not come along they are ignored again, and go no further. */
  readonly forced?: readonly string[]
  /** Links out of the tree: a person's own travel, and no patch may bring them. */
  readonly linksOut?: readonly string[]
  /** Files that git itself gives back with other line ends, or drops from the index: only these may differ, and in this way. */
  readonly asGitHasIt?: 'line ends' | 'intent to add' | 'absent files' | 'no flags'
}

export type CheckoutShape =
  | 'sub-directory'
  | 'linked worktree'
  | 'shallow'
  | 'separate git directory'
  | 'odd directory name'
  | 'no remote branches'
  | 'submodule'
  | 'sparse'
  | 'partial'

export const STATES: readonly WorkingState[] = [
  { name: 'nothing changed', alone: true, make: ':' },
  { name: 'staged', make: 'echo s >>a; git add a' },
  { name: 'unstaged', make: 'echo u >>a' },
  { name: 'staged, then changed again', make: 'echo s >>a; git add a; echo u >>a' },
  { name: 'staged, then put back on disk', make: 'echo s >>a; git add a; git show HEAD:a >a' },
  { name: 'untracked, in nested directories', make: 'echo n >new; mkdir -p n/m/k; echo o >n/m/k/o; chmod +x n/m/k/o' },
  { name: 'staged as new, then deleted on disk', make: 'echo n >new; git add new; rm new' },
  { name: 'deleted, not staged', make: 'rm c dir/d' },
  { name: 'deleted, staged', make: 'git rm -q c dir/d dir/deep/e' },
  { name: 'deleted in the index, kept on disk', make: 'git rm -q --cached c; echo more >>c' },
  {
    name: 'renamed and edited, staged',
    make: 'git mv old renamed; echo edit >>renamed; git add renamed; git mv dir moved',
  },
  { name: 'renamed on disk only', make: 'mv old renamed; mv a A' },
  { name: 'mode changed, staged', make: 'chmod +x a; chmod -x tool; git add a tool' },
  {
    name: 'mode changed, not staged, and together with content',
    make: 'chmod +x a; chmod -x tool; chmod +x b; echo z >>b',
  },
  {
    name: 'symbolic links: new, changed, dangling, to a directory, absolute, odd target',
    make: `ln -s b new-link; rm link; ln -s b link; ln -s nowhere dangling; ln -s dir to-dir; ln -s /etc/hostname absolute
           ln -s "$(printf 'odd \\351 \\ntarget')" odd-link; git add to-dir`,
    linksOut: ['absolute'],
  },
  {
    name: 'a link becomes a file, a file becomes a link',
    make: 'rm link; echo plain >link; rm c; ln -s a c; git add c',
  },
  {
    name: 'binary: changed, new, staged',
    make: `printf '\\0\\1\\2' >>bin; printf '\\377\\376\\0' >new.bin; printf '\\0' >st.bin; git add st.bin`,
  },
  {
    name: 'empty: new, emptied, filled, staged',
    make: ': >new-empty; : >a; echo x >empty; : >staged-empty; git add staged-empty',
  },
  {
    name: 'CRLF and mixed line ends',
    make: `printf 'x\\r\\nz\\r\\n' >crlf; printf 'q\\r\\n' >new-crlf; printf 'm\\nn\\r\\n' >mixed; git add mixed; printf 'one\\r\\ntwo\\r\\n' >a`,
  },
  { name: 'no final newline: taken away, added, new', make: `printf 'b' >b; echo >>noend; printf 'n' >new` },
  {
    name: 'names and content that are no UTF-8',
    make: `printf 'caf\\351\\n' >"$(printf 'caf\\351')"; printf '\\377\\n' >"$(printf '\\377\\376')"; git add "$(printf 'caf\\351')"; printf '\\200\\n' >>a`,
  },
  {
    name: 'quoted, spaced, tab, newline and option-like names, staged and not',
    make: `for n in 'q"uote' 'back\\slash' ' lead' 'trail ' "$(printf 'tab\\tbed')" "$(printf 'new\\nline')" "it's" '*' '?[x]' '#h' ':(top)x' 'Größe — 1.md' '-x' '$HOME' '%n'; do echo "$n" >"./$n"; done
           mkdir -p 'd "q" /in' && echo i >'d "q" /in/f'; git add -- './q"uote' "./$(printf 'new\\nline')" './Größe — 1.md'; echo t >>'spaced dir/s p'`,
  },
  {
    name: 'file becomes a directory, with files of both kinds',
    make: 'rm c; mkdir c; echo in >c/in; rm b; mkdir b; echo in >b/in; git add -A b',
  },
  {
    name: 'directory becomes a file, and another a link',
    make: `rm -r dir; echo f >dir; rm -r 'spaced dir'; ln -s a 'spaced dir'; git add -A dir`,
  },
  {
    name: 'deep and long paths',
    make: `p=deep; i=0; while [ $i -lt 40 ]; do p=$p/level-$i; i=$((i + 1)); done; mkdir -p $p; echo x >$p/f
           n=$(printf '%0250d' 0); echo y >$n; git add $n`,
  },
  {
    name: 'ignored files are left alone; a tracked or forced one travels',
    make: `mkdir -p build && echo o >build/out && echo i >x.ignored && echo f >forced.ignored && git add -f forced.ignored && echo f2 >>forced.ignored
           mkdir -p sub && printf '*\\n!keep\\n' >sub/.gitignore && echo k >sub/keep && echo z >sub/lost`,
    forced: ['forced.ignored'],
  },
  {
    name: 'commits that are not pushed, with changes on top',
    alone: true,
    make: 'echo 1 >>a; git commit -q -a -m one; git rm -q c; git commit -q -m two; echo 3 >>a; echo n >n; git add n',
  },
  {
    name: 'a merge commit that is not pushed',
    alone: true,
    make: 'git branch side; echo 1 >>a; git commit -q -a -m one; git switch -q side; echo 2 >>c; git commit -q -a -m two; git switch -q -; git merge -q -m merge side',
  },
  {
    name: 'a pushed commit amended',
    alone: true,
    warned: /the branch was rewritten/,
    make: 'echo x >>a; git commit -q --amend -a -m rewritten',
  },
  {
    name: 'detached HEAD',
    alone: true,
    make: 'git switch -q --detach; echo 1 >>a; git commit -q -a -m detached; echo 2 >>a',
  },
  {
    name: 'detached HEAD on an older commit',
    alone: true,
    make: 'git switch -q --detach HEAD~1; echo 2 >>b',
    warned: /the branch was rewritten/,
  },
  {
    name: 'another branch, with a slash in its name and no upstream',
    alone: true,
    make: 'git switch -q -c feat/x --no-track; echo 1 >>a; git commit -q -a -m feature; echo 2 >>c',
  },
  {
    name: 'unborn branch with staged and untracked files',
    alone: true,
    make: 'git switch -q --orphan fresh; echo s >s; git add s; chmod +x s; echo u >u',
  },
  { name: 'unborn branch without any file', alone: true, make: 'git switch -q --orphan fresh' },
  {
    name: 'an edit of a file that is assumed unchanged',
    alone: true,
    make: 'git update-index --assume-unchanged a; echo u >>a',
    asGitHasIt: 'no flags',
  },
  {
    name: 'a merge resolved but not committed (its MERGE_HEAD is named)',
    alone: true,
    make: 'git branch side; echo 1 >a; git commit -q -a -m one; git switch -q side; echo 2 >a; git commit -q -a -m two; git switch -q -; git merge -q side >/dev/null || true; echo 12 >a; git add a',
    named: /a merge is under way/,
    warned: /a merge is under way/,
  },
  {
    name: 'split index and untracked cache',
    alone: true,
    make: 'git update-index --split-index; git update-index --force-untracked-cache; echo s >>a; git add a; echo u >u; git status >/dev/null',
  },
  {
    name: 'index version 4',
    alone: true,
    make: 'git update-index --index-version 4; echo s >>dir/d; git add dir/d; echo u >>dir/deep/e',
  },
  {
    name: 'committed here under a name that git quotes, and renamed',
    alone: true,
    make: "echo g >'Größe — 1.md'; git add .; git commit -q -m quoted; git mv 'Größe — 1.md' 'Größe — 2.md'; echo h >>'Größe — 2.md'",
  },
  {
    name: 'a tool that stays one, and one line of a file with CRLF',
    alone: true,
    make: `echo 'echo hi' >>tool; printf 'x\\r\\nchanged\\r\\n' >crlf`,
  },
  {
    name: 'the same file made here and there',
    alone: true,
    make: 'git switch -q --detach HEAD~1; echo here >both; git add both; git commit -q -m here; echo more >>both',
    warned: /the branch was rewritten/,
  },
  { name: 'a stash of the own is neither sent nor touched', alone: true, make: 'echo s >>a; git stash -q; echo u >>b' },
  {
    name: 'new attributes: text, binary, working-tree encoding',
    make: `printf '*.txt text eol=crlf\\n*.u16 text working-tree-encoding=UTF-16LE\\n*.dat -text\\n' >.gitattributes; printf 'l\\r\\nm\\r\\n' >w.txt; printf 'h\\0i\\0\\n\\0' >w.u16; printf 'x\\r\\n' >w.dat; git add .gitattributes`,
  },
  {
    name: 'line ends that an eol attribute rewrites come back as git writes them',
    make: `printf '*.txt text eol=crlf\\n' >.gitattributes; printf 'l\\nm\\r\\n' >w.txt; git add .gitattributes`,
    asGitHasIt: 'line ends',
  },
  {
    name: "git add -N: the file comes back untracked, since git's trees have no place for the intent",
    make: 'echo n >intended; git add -N intended',
    asGitHasIt: 'intent to add',
  },
  {
    name: 'pipes and sockets are named',
    make: 'mkfifo pipe; echo u >>a',
    leftOut: ['pipe'],
    named: /pipes, sockets or devices: .*pipe/,
    warned: /pipes, sockets or devices: .*pipe/,
  },
  {
    name: 'many files',
    make: 'mkdir many; i=0; while [ $i -lt 400 ]; do echo $i >many/$i; i=$((i + 1)); done; git add many/1*',
  },

  {
    name: 'a sub-directory as current directory',
    make: 'echo u >>a; echo n >dir/new; rm dir/deep/e',
    alone: true,
    checkout: 'sub-directory',
  },
  {
    name: 'a linked worktree',
    make: 'echo s >>a; git add a; echo n >new; rm c',
    alone: true,
    checkout: 'linked worktree',
  },
  {
    name: 'a shallow clone',
    make: 'echo u >>a; echo 1 >one; git add one; git commit -q -m one; echo n >new',
    alone: true,
    checkout: 'shallow',
  },
  {
    name: 'a git directory elsewhere',
    make: 'echo s >>a; git add a; echo n >new',
    alone: true,
    checkout: 'separate git directory',
  },
  {
    name: 'a directory with quotes, colon, space and backslash in its name',
    make: 'echo s >>a; git add a; echo n >new; echo 1 >one; git add one; git commit -q -m one -- one',
    alone: true,
    checkout: 'odd directory name',
  },
  {
    name: 'no upstream and no remote branches',
    make: 'echo 1 >>a; git commit -q -a -m one; echo n >new',
    alone: true,
    checkout: 'no remote branches',
  },
  { name: 'a submodule at its recorded commit', make: 'echo u >>a', alone: true, checkout: 'submodule' },
  {
    name: 'a sparse checkout: absent files stay as committed',
    make: 'echo u >>a; echo n >new; git add new',
    alone: true,
    checkout: 'sparse',
    asGitHasIt: 'absent files',
  },
  {
    name: 'a partial clone',
    make: 'echo u >>a; echo 1 >one; git add one; git commit -q -m one; echo n >new',
    alone: true,
    checkout: 'partial',
  },
]

/** Much at once, for the rows that are about something else. */
export const EVERYTHING = `
echo 1 >>a; git commit -q -a -m 'not pushed'; echo s >>a; git add a; echo u >>a
printf 'x\\r\\nz\\r\\n' >crlf; printf 'q \\r\\n' >new-crlf; printf 'trailing \\n\\n\\n' >blank; git add blank
chmod +x b; chmod -x tool; rm c; git rm -q dir/d; git mv old renamed; ln -s b new-link; rm link; ln -s dir link
printf '\\0\\1' >new.bin; printf '\\0' >>bin; : >a-new-empty; printf n >no-newline
echo n >'new "q" é'; mkdir -p n/m; echo o >n/m/o; git add n; rm noend; mkdir noend; echo in >noend/in
`

/** One directory of a state, as if it were the whole. */
export function within(state: Whole, place: string): Whole {
  const prefix = `${place}/`
  const files = Object.entries(state.files).flatMap(([path, entry]) =>
    path.startsWith(prefix) ? [[path.slice(prefix.length), entry]] : [],
  )
  const lines = (text: string) => text.split('\0').filter((line) => line.includes(prefix))
  return {
    files: Object.fromEntries(files) as Record<string, string>,
    index: lines(state.index).join('\0').replaceAll(prefix, ''),
    status: lines(state.status).join('\0').replaceAll(prefix, ''),
    head: state.head,
  }
}

/** The state as git gives it back, but for what the row's name says. */
export function asItShouldReturn(state: WorkingState, made: Whole): Whole {
  const files = { ...made.files }
  for (const path of state.leftOut ?? []) delete files[path]
  switch (state.asGitHasIt) {
    case 'no flags':
      return {
        ...made,
        files,
        status:
          '1 .M N... 100644 100644 100644 4cb29ea38f70d7c61b2a3a25b02e3bdf44905402 4cb29ea38f70d7c61b2a3a25b02e3bdf44905402 a\0',
      }
    case 'line ends':
      return { ...made, files: { ...files, 'w.txt': `file - ${Buffer.from('l\r\nm\r\n').toString('base64')}` } }
    case 'intent to add':
      return {
        ...made,
        files,
        index: made.index.replace(/[^\0]*\tintended\0?/, ''),
        status: made.status.replace(/1 \.A [^\0]* intended/, '? intended'),
      }
    default:
      return { ...made, files }
  }
}
