#!/usr/bin/env bash
# usage: faults_test.sh MPIRUN... RANKS-PROGRAM
# Ranks that stop, are killed, throw or have another shape: no hang, a nonzero exit, and every other rank names the
# right one.
set -uo pipefail
ranks=("$@")
status=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() { echo "$1"; sed 's/^/  /' "$log"; status=1; }

# EXPECTED-LINES LINE WHAT...: the exit is nonzero, within 40 s, and so many ranks say that.
ends() {
  local expected=$1 line=$2 code start=$SECONDS
  timeout -s KILL 60 "${ranks[@]}" "${@:3}" >"$log" 2>&1
  code=$?
  ((code != 0)) || fail "${*:3}: mpirun ended with 0"
  ((SECONDS - start < 40)) || fail "${*:3}: mpirun was still there after 40 s"
  (($(grep -cF "$line" "$log") == expected)) || fail "${*:3}: $expected ranks were to say: $line"
}

stalled='[rank 1: nothing came from it for 3000 ms] in time'
ends 3 "$stalled" stall at_once
ends 3 "$stalled" stall later
ends 3 '[rank 1: out of memory, as asked] in time' raise
# mpirun sees that a process is gone before anybody's timeout, and ends the others.
ends 1 'signal 9 (Killed)' die at_once
ends 1 'signal 9 (Killed)' die later

timeout -s KILL 60 "${ranks[@]}" wrong >"$log" 2>&1 || fail "wrong: ended with $?"
(($(grep -cE '^\[2\] rank 2: q: [0-9]+ rows, but the layout gives this rank [0-9]+$' "$log") == 4)) ||
  fail "wrong: four ranks were to name rank 2"
exit $status
