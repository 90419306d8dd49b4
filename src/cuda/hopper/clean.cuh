// Tiles in shared memory between TMA and the tensor cores, made fit to be multiplied by zero.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/common/view.h"

namespace rootdk::cuda {

/// The exponents of two elements: all ones where one is not finite.
__device__ __forceinline__ unsigned exponents(DType dtype) { return dtype == DType::kBF16 ? 0x7f807f80u : 0x7c007c00u; }

/// All ones in each half of a pair that is not finite.
__device__ __forceinline__ unsigned not_finite(unsigned pair, unsigned exponent) {
  return __vcmpeq2(pair & exponent, exponent);
}

/// Rows of 128 bytes, in panels of `kRows`, from a row on: zero. A warp's work, as is what follows; both for producers,
/// who have few registers.
template <int kPanels, int kRows>
__device__ __forceinline__ void clear_rows(std::uint32_t tile, int from) {
#pragma unroll 1
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll 4
    for (std::uint32_t x = tile + panel * kRows * 128 + 128 * from + 16 * (thread_again() % 32);
         x < tile + (panel + 1) * kRows * 128; x += 512)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(x), "r"(0) : "memory");
  }
  fence_async_proxy();
}

/// f(row, a pair of its elements) of a whole tile; what f makes of the pair is written back.
template <int kPanels, int kRows, class F>
__device__ __forceinline__ void change_pairs(std::uint32_t tile, const F& f) {
#pragma unroll 1
  for (int x = thread_again() % 32; x < kPanels * kRows * 32; x += 32) {
    unsigned pair;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(tile + 4 * x) : "memory");
    f(x / 32 % kRows, pair);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + 4 * x), "r"(pair) : "memory");
  }
  fence_async_proxy();
}

}  // namespace rootdk::cuda
