#!/usr/bin/env bash
# usage: symbols_test.sh LIBRARY NM
# A library inside somebody else's process: it exports its API only, and it neither prints nor ends the process.
set -euo pipefail
library=$1 nm=$2
status=0

fail() { # WHAT SYMBOLS
  [[ -z $2 ]] || { printf '%s %s:\n%s\n' "$library" "$1" "$2" >&2; status=1; }
}

demangled() { "$nm" --dynamic --demangle "$1" "$library" | sed -E 's/^ *([0-9a-f]+ +)?[A-Za-z] //; s/@.*//' | sort -u; }

exported=$(demangled --defined-only)
[[ $exported == *rootdk* ]] || fail "exports nothing of rootdk" "$exported"
ours='^((void )?rootdk::|rootdk_|(vtable|typeinfo|typeinfo name) for rootdk::)'
fail "exports what is not its API" "$(grep -vE "$ours" <<<"$exported" || true)"

fail "can print or end the process" "$(demangled --undefined-only | grep -xE \
'(abort|exit|_exit|_Exit|quick_exit|__assert_fail|std::__glibcxx_assert_fail.*|hwy::Abort.*|raise|kill'\
'|(__)?v?f?printf(_chk)?|puts|fputs|putchar|putc|fputc|fwrite|write|perror|stdout|stderr'\
'|std::(cout|cerr|clog|wcout|wcerr|wclog|terminate\(\)))' || true)"

exit $status
