// The instructions of sm_80 and newer that the mma kernels are made of: matrix products, loads of their operands from
// shared memory, asynchronous copies. tests/cuda_on_host has its own version of this file.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace rootdk::cuda::mma {

/// A place in shared memory.
using SharedAddress = std::uint32_t;

/// The shared memory that a launch asks for, aligned to 1024 bytes.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char of_block[];
  return of_block;
}
__device__ __forceinline__ SharedAddress address_of(const void* shared) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void store_shared(SharedAddress to, const uint4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ void store_shared(SharedAddress to, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ std::uint32_t load_shared(SharedAddress from) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}

/// cp.async: kBytes (4, 8 or 16) into shared memory, of which the first `bytes` come from `from` and the rest are zero.
/// Both addresses are multiples of kBytes.
template <int kBytes>
__device__ __forceinline__ void copy_async(SharedAddress to, const void* from, int bytes) {
  if constexpr (kBytes == 16)  // passes by the first-level cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
}
/// What the thread has begun to copy becomes one group.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all but the last kPending groups of the thread have arrived. Others see them after a barrier.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// ldmatrix: four 8 x 8 matrices; lane 8m + r gives the address of row r of matrix m, 16 bytes. x[m] are two elements
/// of matrix m: row lane / 4, columns 2 · (lane % 4) and the next.
__device__ __forceinline__ void load_matrices(std::uint32_t (&x)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row)
               : "memory");
}
/// The same of their transposes.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&x)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row)
               : "memory");
}

/// c += a · b: 16 x 16 times 16 x 8, sums in f32. Lane l has of c rows l/4 (c[0], c[1]) and l/4 + 8 (c[2], c[3]),
/// columns 2 · (l % 4) and the next.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                        std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__half>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                 std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two f32 as a pair of elements.
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

/// 2^x, off by some 2^-22; below the range of normal numbers 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x, off by an ulp.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// threadIdx.x, asked for anew: what is made of it does not wait in registers through loops that need them all.
__device__ __forceinline__ int thread_now() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

/// For each half of a pair of elements all ones where it is not finite, whose exponent `all_ones` has in both halves.
__device__ __forceinline__ std::uint32_t not_finite_pair(std::uint32_t pair, std::uint32_t all_ones) {
  return __vcmpeq2(pair & all_ones, all_ones);
}

}  // namespace rootdk::cuda::mma
