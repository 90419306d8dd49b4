#!/usr/bin/env bash
# README's program is examples/hello.cc, and what it and the command print is what README says.
# Usage: readme_test.sh SOURCE HELLO [COMMAND]
set -euo pipefail
source=$1 hello=$2 command=${3-}

block() {  # FENCE: the first block of README that opens with exactly this line
  awk -v fence="$1" '$0 == fence && !done {inside = 1; next} inside && $0 == "```" {inside = 0; done = 1} inside' \
    "$source/README.md"
}

diff <(block '```cpp') "$source/examples/hello.cc" || { echo "README's program is not examples/hello.cc"; exit 1; }
# The block with the output opens with a bare fence, which also closes the program: take the one that follows it.
said=$(awk '/^```cpp$/ {cpp = 1} cpp && /^```$/ {n++; next} n == 2 {print} n == 3 {exit}' "$source/README.md")
[[ $said == "$("$hello")" ]] || { echo "README says '$said', but hello prints '$("$hello")'"; exit 1; }

# A block of a terminal: its first line is what was typed, the rest what came.
[[ $command ]] || exit 0
session=$(block '```console')
typed=${session%%$'\n'*}
said=${session#*$'\n'}
[[ $typed == '$ rootdk '* ]] || { echo "README's terminal does not run rootdk"; exit 1; }
came=$(PATH=$(dirname "$command"):$PATH bash -c "${typed#\$ }")
[[ $said == "$came" ]] || { printf 'README says\n%s\nbut %s prints\n%s\n' "$said" "$typed" "$came"; exit 1; }
