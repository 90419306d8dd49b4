#!/usr/bin/env bash
# usage: nvcc.sh NVCC SOURCE OBJECT [NVCC-ARGUMENT...]
# Compiles one CUDA source for the architectures it is meant for, and fails where ptxas spills registers or puts wgmma
# products in series (C75xx): both cost more than any tuning brings, and neither is an error to nvcc. ROOTDK_CUDA_ARCHS
# lists others than 80 and 90 for what is not Hopper's own, as releases have them: "80 90 100 120"; PTX is of the last.
set -euo pipefail
nvcc=$1 source=$2 object=$3
shift 3
case $source in
  */cuda/hopper/*) arch=(-gencode=arch=compute_90a,code=sm_90a) ;;
  *) arch=()
     for sm in ${ROOTDK_CUDA_ARCHS:-80 90}; do arch+=("-gencode=arch=compute_$sm,code=sm_$sm"); done
     arch+=("-gencode=arch=compute_$sm,code=compute_$sm") ;;
esac
log=$object.log
# 554: a conversion of a tensor view to itself, which is never called.
if ! "$nvcc" -std=c++20 -O3 -diag-suppress 554 -Xcompiler -fPIC,-fvisibility=hidden -Xptxas -v "${arch[@]}" "$@" \
     -c "$source" -o "$object" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
grep -E 'warning' "$log" >&2 || true
if grep -E 'C75[0-9][0-9]|[1-9][0-9]* bytes spill stores' "$log" >&2; then
  echo "$source: ptxas spills, or puts products in series" >&2
  rm -f "$object"
  exit 1
fi
