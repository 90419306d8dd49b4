#!/usr/bin/env bash
# usage: build.sh OUT [TARGET...] TARGET: sweep, bench for the library that bench/cuda/run.py times, or python for
# librootdk.so and
#                                       librootdk_cuda.so, which tests/python/test_cuda.py calls by their C ABI
# Builds the CUDA backend and what tests and times it with nvcc and the host compiler alone: a machine with a GPU need
# not have what the rest of the repository is built with. fmt, which only messages use, is taken header-only, from
# FMT_INCLUDE where it is not installed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$1
shift
targets=("${@:-sweep}")
mkdir -p "$out/include/rootdk"
version=$(sed -nE 's/^ *VERSION ([0-9.]+)$/\1/p' "$root/CMakeLists.txt")
IFS=. read -r major minor patch <<<"$version"
sed "s/@rootdk_VERSION@/$version/; s/@rootdk_VERSION_MAJOR@/$major/; s/@rootdk_VERSION_MINOR@/$minor/;
     s/@rootdk_VERSION_PATCH@/$patch/" \
  "$root/cmake/version.h.in" >"$out/include/rootdk/version.h"
include=(-I"$root/include" -I"$root/src" -I"$root/tests" -I"$out/include" ${FMT_INCLUDE:+-isystem "$FMT_INCLUDE"})
cuda=$(cd "$(dirname "$(readlink -f "$(command -v nvcc)")")/.." && pwd)
[[ -e $cuda/include/cuda_runtime.h ]] || cuda=/usr/local/cuda

mapfile -t kernel_sources < <(find "$root/src/cuda" -name '*.cu' | sort)

object_of() {  # SOURCE.cu: src/cuda/plain/forward.cu becomes plain_forward.o
  local name=${1#"$root/src/cuda/"}
  name=${name%.cu}
  echo "$out/${name//\//_}.o"
}

device() { "$root/cmake/nvcc.sh" nvcc "$1" "$(object_of "$1")" "${include[@]}"; }  # SOURCE

host() {  # SOURCE
  g++ -std=c++20 -O2 -fPIC -fopenmp -ffp-contract=off -DFMT_HEADER_ONLY -Wall -Wextra \
    -Wno-array-bounds -Wno-stringop-overflow \
    "${include[@]}" -isystem "$cuda/include" -c "$1" -o "$out/$(basename "$1" .cc)_host.o"
}

jobs=()
for source in "${kernel_sources[@]}"; do device "$source" & jobs+=($!); done
parts=("$root"/src/base/{tensor,visibility,scale,scale_names,row_record,stats}.cc
       "$root"/src/cpu/reference/reference.cc)
harness=("$root"/tests/support/{bits,buffer,case,hidden,plain,result,tolerance}.cc
         "$root"/tests/cuda/{run_on_device,long_statistics}.cc)
library=("$root"/src/{base,engine}/*.cc "$root"/src/cpu/reference/reference.cc "$root"/src/cuda/api/load.cc
         "$root"/tests/cuda/no_fused.cc)
sources=("${parts[@]}")
for target in "${targets[@]}"; do
  case $target in
    bench) sources+=("${harness[@]}" "$root/bench/cuda/shim.cc") ;;
    python) sources+=("${library[@]}") ;;
    *) sources+=("${harness[@]}" "$root/tests/cuda/$target.cc") ;;
  esac
done
mapfile -t sources < <(printf '%s\n' "${sources[@]}" | sort -u)
for source in "${sources[@]}"; do
  host "$source" & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done

objects_of() { for source; do echo "$out/$(basename "$source" .cc)_host.o"; done; }  # SOURCE...
kernels=()
for source in "${kernel_sources[@]}"; do kernels+=("$(object_of "$source")"); done
mapfile -t objects < <(objects_of "${parts[@]}" "${harness[@]}")
objects+=("${kernels[@]}")
for target in "${targets[@]}"; do
  case $target in
    bench) nvcc -shared -Xcompiler -fopenmp -o "$out/libbench.so" "$out/shim_host.o" "${objects[@]}" ;;
    python)
      mapfile -t library < <(objects_of "${library[@]}")
      g++ -shared -fopenmp -o "$out/librootdk.so" "${library[@]}" -ldl -Wl,-soname,librootdk.so -Wl,-rpath,'$ORIGIN'
      nvcc -shared -o "$out/librootdk_cuda.so" "${kernels[@]}" -L"$out" -lrootdk -Xlinker -rpath -Xlinker '$ORIGIN' ;;
    *) nvcc -Xcompiler -fopenmp -o "$out/$target" "$out/${target}_host.o" "${objects[@]}" ;;
  esac
done
