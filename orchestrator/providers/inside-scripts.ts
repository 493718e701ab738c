/** Small sh scripts that providers run inside a sandbox whose disk they cannot reach otherwise. */

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
