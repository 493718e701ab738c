/** Small sh scripts that providers run inside a sandbox whose disk they cannot reach otherwise. */

/** The function `enter DIR`, as `hangar-agent` has it: goes to a directory of the sandbox's own user, whatever the agent has made of it. */
export const ENTER = `enter() {
  cd "$1" 2>/dev/null && return 0
  chmod u+rwx "\${1%/*}" "$1" 2>/dev/null
  if [ ! -d "$1" ]; then rm -f "$1" 2>/dev/null; fi
  mkdir -p "$1" && cd "$1"
}`

/** The name of the nth variable that `IN_DIRECTORY` puts into place: its value is `NAME=VALUE`. */
export const carriedName = (place: number): string => `HANGAR_ENV_${place}`

/** Runs a command in the directory `$1`, with the variables that were carried in. Shells keep some to themselves. */
export const IN_DIRECTORY = `${ENTER}
enter "$1" || exit 126
unset OLDPWD
shift
_hangar_at=0
while eval "_hangar_entry=\\\${HANGAR_ENV_$_hangar_at-}" && [ -n "$_hangar_entry" ]; do
  unset "HANGAR_ENV_$_hangar_at"
  _hangar_at=$((_hangar_at + 1))
  case $_hangar_entry in
    UID=* | EUID=* | PPID=* | SHELLOPTS=* | BASHOPTS=* | OPTIND=* | _hangar_*) ;;
    *) export "$_hangar_entry" ;;
  esac
done
unset _hangar_at _hangar_entry
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
