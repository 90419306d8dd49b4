// Two f32 as a pair of bf16 or f16, the way tensor-core fragments hold them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace rootdk::cuda {

template <class T>
__device__ __forceinline__ std::uint32_t pack2(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack2<__nv_bfloat16>(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <>
__device__ __forceinline__ std::uint32_t pack2<__half>(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

template <class T, int N>
__device__ __forceinline__ void pack(const float (&s)[N], std::uint32_t* p) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) p[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
}

}  // namespace rootdk::cuda
