#!/usr/bin/env bash
# usage: build.sh OUT [TARGET...]       TARGET: sweep, or bench for the library that bench/cuda/run.py times
# Builds the CUDA backend and what tests and times it with nvcc and the host compiler alone: a machine with a GPU need not have what the
# rest of the repository is built with. fmt, which only messages use, is taken header-only, from FMT_INCLUDE where it is not installed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$1
shift
targets=("${@:-sweep}")
mkdir -p "$out"
include=(-I"$root/include" -I"$root/src" -I"$root/tests" ${FMT_INCLUDE:+-isystem "$FMT_INCLUDE"})
cuda=$(cd "$(dirname "$(readlink -f "$(command -v nvcc)")")/.." && pwd)
[[ -e $cuda/include/cuda_runtime.h ]] || cuda=/usr/local/cuda

device() { "$root/cmake/nvcc.sh" nvcc "$1" "$out/$(basename "$1" .cu).o" "${include[@]}"; }  # SOURCE

host() {  # SOURCE
  g++ -std=c++20 -O2 -fPIC -fopenmp -ffp-contract=off -DFMT_HEADER_ONLY -Wall -Wextra -Wno-array-bounds -Wno-stringop-overflow "${include[@]}" -isystem "$cuda/include" -c "$1" -o "$out/$(basename "$1" .cc)_host.o"
}

jobs=()
for source in "$root"/src/cuda/*.cu; do device "$source" & jobs+=($!); done
for source in "$root"/src/base/{tensor,visibility,scale,scale_names,row_record,stats}.cc "$root"/src/cpu/reference.cc \
              "$root"/tests/support/{buffer,case,result,tolerance,plain}.cc "$root"/tests/cuda/run_on_device.cc; do
  host "$source" & jobs+=($!)
done
for target in "${targets[@]}"; do
  if [[ $target == bench ]]; then host "$root/bench/cuda/shim.cc" & else host "$root/tests/cuda/$target.cc" & fi
  jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done

objects=()
for source in "$root"/src/cuda/*.cu; do objects+=("$out/$(basename "$source" .cu).o"); done
for name in tensor visibility scale scale_names row_record stats reference buffer case result tolerance plain run_on_device; do objects+=("$out/${name}_host.o"); done
for target in "${targets[@]}"; do
  if [[ $target == bench ]]; then nvcc -shared -Xcompiler -fopenmp -o "$out/libbench.so" "$out/shim_host.o" "${objects[@]}"
  else nvcc -Xcompiler -fopenmp -o "$out/$target" "$out/${target}_host.o" "${objects[@]}"; fi
done
