#!/usr/bin/env bash
# usage: lint.sh BIN DIST
# Looks over what is published in DIST, and over the recipes of others' package managers, with the tools in BIN. vcpkg's
# linter is in no package: its port is only read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$1 dist=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
said() { "$@" >"$work/log" 2>&1 || { echo "$*" >&2; cat "$work/log" >&2; exit 1; }; }

echo "== twine, check-wheel-contents, abi3audit"
said "$bin/twine" check --strict "$dist"/*
for wheel in "$dist"/*.whl; do
  # W009, W010: the folder that auditwheel adds is beside the package and holds libraries only, as does rootdk-cuda.
  said "$bin/check-wheel-contents" --ignore W009,W010 "$wheel"
  if [[ $wheel == *-abi3-* ]]; then said "$bin/abi3audit" --strict "$wheel"; fi
done

echo "== Conan, conda-forge, vcpkg"
said env CONAN_HOME="$work/conan" "$bin/conan" inspect packaging/conan/conanfile.py
said "$bin/python" packaging/lint.py
