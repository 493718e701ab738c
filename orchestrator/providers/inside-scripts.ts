/** Small sh scripts that providers run inside a sandbox whose disk they cannot reach otherwise. */

/** The function `enter DIR`, as `hangar-agent` has it: goes to a directory of the sandbox's own user, whatever the agent has made of it. */
export const ENTER = `enter() {
  cd "$1" 2>/dev/null && return 0
  chmod u+rwx "\${1%/*}" "$1" 2>/dev/null
  if [ ! -d "$1" ]; then rm -f "$1"; fi
  mkdir -p "$1" && cd "$1"
}`

/** Runs a command in the directory `$1`. */
export const IN_DIRECTORY = `${ENTER}
enter "$1" || exit 126
unset OLDPWD
shift
exec "$@"`

/**
 * Writes `$3` bytes of the file `$1` from byte `$2` on (the first is 1). Exit status 3: it is no regular file, a link, or does not
 * really lie under $HOME. It sees no more than the agent itself can.
 */
export const READ_FILE_SCRIPT = `
[ -f "$1" ] && [ ! -L "$1" ] || exit 3
case $1 in */*) ;; *) exit 3 ;; esac
dir=$(cd -P "\${1%/*}/" 2>/dev/null && pwd -P) && home=$(cd -P "$HOME" && pwd -P) || exit 3
case $dir/ in "$home"/*) ;; *) exit 3 ;; esac
tail -c "+$2" "$1" | head -c "$3"
`
