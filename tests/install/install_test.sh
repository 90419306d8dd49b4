#!/usr/bin/env bash
# usage: install_test.sh SOURCE BUILD CMAKE CC CXX
# rootdk as others meet it: installed and found by CMake or pkg-config, or built inside another project; shared and
# static.
set -euo pipefail
source=$1 build=$2 cmake=$3
export CC=$4 CXX=$5

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
configure() { "$cmake" -G Ninja --log-level=WARNING "$@" >/dev/null; }
compile() { "$cmake" --build "$1" >"$work/log" || { cat "$work/log" >&2; return 1; }; }

run_all() { # FOLDER
  local name
  for name in hello scales kv_cache own_transform c_hello; do
    "$1/$name" >"$work/output" || { echo "$1/$name failed" >&2; cat "$work/output" >&2; return 1; }
    [[ -s $work/output ]] || { echo "$1/$name said nothing" >&2; return 1; }
  done
}

by_find_package() { # PREFIX
  echo "find_package, $1"
  configure -S "$source/examples" -B "$work/by_cmake/$1" -DCMAKE_PREFIX_PATH="$work/$1"
  compile "$work/by_cmake/$1"
  run_all "$work/by_cmake/$1"
}

by_pkg_config() { # PREFIX PKG-CONFIG-ARGUMENT...
  echo "pkg-config, $1"
  local out=$work/by_pkg_config/$1 library path name flags
  library=$(find "$work/$1" -name pkgconfig -printf '%h')
  mkdir -p "$out"
  path=$library/pkgconfig:${PKG_CONFIG_PATH-}
  read -ra flags < <(PKG_CONFIG_PATH=$path pkg-config "${@:2}" --cflags --libs rootdk)
  flags+=("-Wl,-rpath,$library")
  for name in hello scales kv_cache own_transform; do
    "$CXX" -std=c++20 "$source/examples/$name.cc" "${flags[@]}" -o "$out/$name"
  done
  "$CC" -std=c99 "$source/examples/c_hello.c" "${flags[@]}" -lm -o "$out/c_hello"
  run_all "$out"
}

"$cmake" --install "$build" --prefix "$work/shared" >/dev/null
by_find_package shared
by_pkg_config shared

consumers=(c_only)
for name in distributed mpi nn theory checkpoint audit lab report; do
  if [[ $(find "$work/shared" -name rootdk-$name-targets.cmake) ]]; then consumers+=("$name"); fi
done
for name in "${consumers[@]}"; do
  echo "find_package, $name"
  configure -S "$source/tests/install/$name" -B "$work/$name" -DCMAKE_PREFIX_PATH="$work/shared"
  compile "$work/$name"
  "$work/$name/$name" >/dev/null
done

if [[ -x $work/shared/bin/rootdk ]]; then
  echo "the installed command"
  "$work/shared/bin/rootdk" --help >/dev/null
fi

# The consumer brings rootdk in as a static library and installs it along with itself. Unoptimised: this is about
# linking.
echo "FetchContent"
configure -S "$source/tests/install/consumer" -B "$work/consumer" -DROOTDK_SOURCE="$source" -DCMAKE_BUILD_TYPE=Debug \
  -DROOTDK_FEW_TARGETS=ON -DROOTDK_INSTALL=ON
compile "$work/consumer"
run_all "$work/consumer/examples"
"$cmake" --install "$work/consumer" --prefix "$work/static" >/dev/null
by_find_package static
by_pkg_config static --static

echo "headers: each compiles alone, with nothing but std"
cd "$work/shared/include"
find rootdk -name '*.h' | while read -r header; do
  echo "#include <$header>" | "$CXX" -std=c++20 -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only -x c++ -
done
if grep -rn '#include' rootdk | grep -vE '"rootdk/[a-z_/]+\.(h|def)"|<[a-z_]+>|<std(def|int)\.h>'; then exit 1; fi
