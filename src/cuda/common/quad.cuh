// A quad: the four lanes of a warp that share two rows of a tensor core's accumulator. Reductions and a transpose
// within it.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"

namespace rootdk::cuda {

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_min(float x) {
  x = fminf(x, __shfl_xor_sync(~0u, x, 1));
  return fminf(x, __shfl_xor_sync(~0u, x, 2));
}
template <class Number>
__device__ __forceinline__ Number quad_sum(Number x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// Lane t of each quad gives x[u] and gets what lane u had in x[t].
__device__ __forceinline__ void quad_transpose(std::uint32_t (&x)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = thread_again() & step;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n & step) continue;
      const std::uint32_t other = __shfl_xor_sync(~0u, upper ? x[n] : x[n + step], step);
      if (upper) x[n] = other;
      else x[n + step] = other;
    }
  }
}

}  // namespace rootdk::cuda
