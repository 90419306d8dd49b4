#!/usr/bin/env bash
# usage: faults_test.sh MPIRUN... RANKS-PROGRAM
# Ranks that stop, are killed, throw or have another shape, in every way, forward and backward: no hang, a nonzero exit,
# every other rank names the right one in time, and nobody's outputs are half-written.
set -uo pipefail
ranks=("$@")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { { echo "$1"; sed 's/^/  /' "$2"; } >>"$folder/failures"; }

# EXPECTED-LINES LINE WHAT...: the exit is nonzero, within 40 s, and so many ranks say that.
ends() {
  local expected=$1 line=$2 code start=$SECONDS log
  log=$folder/$(IFS=-; echo "${*:3}").log
  timeout -s KILL 60 "${ranks[@]}" "${@:3}" >"$log" 2>&1
  code=$?
  ((code != 0)) || fail "${*:3}: mpirun ended with 0" "$log"
  ((SECONDS - start < 40)) || fail "${*:3}: mpirun was still there after 40 s" "$log"
  (($(grep -cxF "$line" "$log") == expected)) || fail "${*:3}: $expected ranks were to say: $line" "$log"
}

# The same, beside others that mostly wait.
also_ends() {
  ends "$@" &
  while (($(jobs -rp | wc -l) >= 3)); do wait -n; done
}

stalled='[rank 1: nothing came from it for 3000 ms] in time'
raised='[rank 1: out of memory, as asked] in time'
also_ends 3 "$stalled" stall at_once
for way in ring all_gather heads two_levels; do
  also_ends 3 "$stalled" stall later $way
  also_ends 3 "$stalled" stall later $way backward
done
for way in ring heads; do
  also_ends 3 "$stalled" stall at_last $way backward
  also_ends 3 "$raised" raise later $way
  also_ends 3 "$raised" raise at_last $way backward
done
# mpirun sees that a process is gone before anybody's timeout, and ends the others.
killed() {
  local log=$folder/die-$1.log start=$SECONDS
  timeout -s KILL 60 "${ranks[@]}" die "$@" >"$log" 2>&1 && fail "die $*: mpirun ended with 0" "$log"
  ((SECONDS - start < 40)) || fail "die $*: mpirun was still there after 40 s" "$log"
  (($(grep -cF 'signal 9 (Killed)' "$log") == 1)) || fail "die $*: mpirun was to say which signal" "$log"
}
wait
for when in at_once later; do killed $when; done
killed later heads backward

log=$folder/wrong.log
timeout -s KILL 60 "${ranks[@]}" wrong >"$log" 2>&1 || fail "wrong: ended with $?" "$log"
(($(grep -cE '^\[2\] rank 2: q: [0-9]+ rows, but the layout gives this rank [0-9]+$' "$log") == 4)) ||
  fail "wrong: four ranks were to name rank 2" "$log"
[[ ! -e $folder/failures ]] || { cat "$folder/failures"; exit 1; }
