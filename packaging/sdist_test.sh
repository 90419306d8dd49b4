#!/usr/bin/env bash
# usage: sdist_test.sh VENV [SDIST]
# That a source distribution builds alone, in an empty folder. Without one it is made, and only configured: all that is
# in the repository to build from is in it, and where packages are missing the last line says which. VENV has
# packaging/requirements.txt.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$(cd "$1" && pwd) sdist=${2-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*" >&2; exit 1; }

backend() {  # PYTHON-EXPRESSION, of the hooks of packaging/backend.py
  PYTHONPATH=packaging "$venv/bin/python" -c "import backend; $1"
}

if [[ $sdist ]]; then
  tar -xzf "$sdist" -C "$work"
  cd "$work"/rootdk-*
  # Two instruction sets and no kernels for GPUs: this is about what is there, not about how fast it is.
  "$venv/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheel" \
    -C cmake.define.ROOTDK_CUDA=OFF -C cmake.define.ROOTDK_FEW_TARGETS=ON -C cmake.define.CMAKE_UNITY_BUILD=ON .
  cd "$work"
  "$venv/bin/python" -m venv "$work/empty"
  "$work/empty/bin/pip" install --quiet "$work"/wheel/*.whl
  "$work/empty/bin/python" -c 'import rootdk; print(rootdk.explain([3, 1], dk=4))' >/dev/null
  version=$(basename "$sdist" .tar.gz)
  [[ $("$work/empty/bin/rootdk" --version) == "rootdk ${version#rootdk-}" ]] || fail "the command is of another version"
  exit
fi

cd "$root"
backend "backend.build_sdist('$work')" >/dev/null
tar -xzf "$work"/rootdk-*.tar.gz -C "$work"
cd "$work"/rootdk-*/
from=(CMakeLists.txt LICENSE README.md pyproject.toml apps cmake include packaging python src web)
git -C "$root" ls-files "${from[@]}" | while read -r file; do
  [[ -e $file ]] || fail "$file is not in the sdist"
done
for file in $(find . -name '*.pyc' -o -name build -o -name '.git'); do fail "$file is in the sdist"; done

without_highway="{'cmake.define.CMAKE_DISABLE_FIND_PACKAGE_hwy': 'ON', 'cmake.define.ROOTDK_CUDA': 'OFF'}"
! backend "backend.build_wheel('$work', $without_highway)" >"$work/log" 2>&1 || fail "built without Highway"
last=$(tail -n 1 "$work/log")
[[ $last == *"apt-get install libhwy-dev" ]] || fail "$(cat "$work/log")
the last line does not say what is missing"

cmake -S . -B "$work/configured" -G Ninja --log-level=WARNING \
  -DROOTDK_PYTHON=ON -DBUILD_SHARED_LIBS=OFF -DROOTDK_CUDA=OFF \
  -DROOTDK_TESTS=OFF -DROOTDK_EXAMPLES=OFF -DPython_EXECUTABLE="$venv/bin/python" >/dev/null
