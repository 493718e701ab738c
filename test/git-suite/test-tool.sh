#!/bin/sh
# Stands for the program that git's build makes for its tests: what the scripts over HTTP ask of it.
case $1 in
  env-helper)
    shift
    type= default= code=
    while [ $# -gt 0 ]; do
      case $1 in
        --type=*) type=${1#*=} ;;
        --default=*) default=${1#*=} ;;
        --exit-code) code=yes ;;
        *) break ;;
      esac
      shift
    done
    eval "value=\${$1-$default}"
    case $type in
      bool)
        case $value in 1 | true | yes | on | TRUE | YES) value=true ;; *) value=false ;; esac
        [ -n "$code" ] || echo "$value"
        [ "$value" = true ]
        ;;
      *)
        [ -n "$code" ] || echo "$value"
        [ "$value" != 0 ]
        ;;
    esac
    ;;
  path-utils)
    case $2 in
      file-size) shift 2; for file; do wc -c <"$file" | tr -d ' '; done ;;
      *) echo "test-tool path-utils $2 is not here" >&2; exit 1 ;;
    esac
    ;;
  genrandom) exec perl -e 'srand(unpack("%32C*", $ARGV[0])); my $n = $ARGV[1] // 1e9; while ($n > 0) { my $take = $n < 4096 ? $n : 4096; print map { chr int rand 256 } 1 .. $take; $n -= $take }' "$2" "$3" ;;
  date) case $2 in is64bit | time_t-is64bit) exit 0 ;; esac; exit 1 ;;
  chmtime) exec touch "$3" ;;
  *)
    echo "test-tool $1 is not here" >&2
    exit 1
    ;;
esac
