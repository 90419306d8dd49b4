// The few instructions of sm_90 that CUDA C++ has no words for: mbarriers (which count bytes), TMA (bulk tensor
// copies), programmatic dependent launch (a kernel that starts beside the one before it), flags between blocks, named
// barriers, and the bookkeeping around wgmma.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace rootdk::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
               "AGAIN;\nDONE:\n}" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

/// TMA: a box of a tensor [batch, heads, length, dim] into shared memory; completes on the barrier.
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap* map, int dim, int row, int head,
                                         int batch, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
               "%5}], [%6];" ::"r"(to),
               "l"(map), "r"(dim), "r"(row), "r"(head), "r"(batch), "r"(barrier)
               : "memory");
}

/// The same of a box that is read once: it is the first to leave the cache.
__device__ __forceinline__ void copy_box_once(std::uint32_t to, const CUtensorMap* map, int dim, int row, int head,
                                              int batch, std::uint32_t barrier) {
  constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;  // the policy that createpolicy makes of evict_first
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
               "{%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
               "l"(map), "r"(dim), "r"(row), "r"(head), "r"(batch), "r"(barrier), "l"(kEvictFirst)
               : "memory");
}

/// What ordinary stores wrote to shared memory, the tensor cores and TMA see from here on.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Programmatic dependent launch: a kernel that was launched to start beside this one may start now. What this one
/// writes, the other has after next_kernel_wait.
__device__ __forceinline__ void next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ __forceinline__ void next_kernel_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // before, there is nothing to wait for
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Flags between blocks: what was written before a flag is there for who has seen it.
__device__ __forceinline__ int load_acquire(const int* flag) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(int* flag, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// threadIdx.x, asked for anew: what is made of it does not wait in registers through loops that need them all.
__device__ __forceinline__ int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

/// A number that is the same in all lanes, said so that the compiler keeps it, and what is made of it, once for a warp:
/// operands of products must be, and what is moved there costs time in which nothing multiplies.
__device__ __forceinline__ int same_in_warp(int x) { return __reduce_max_sync(~0u, x); }

/// Registers that a product in flight uses: keeps the compiler from moving work on them across this point.
template <int N>
__device__ __forceinline__ void hold(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N>
__device__ __forceinline__ void hold(std::uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

/// Where an operand lies: rows of 128 bytes, swizzled by 128 bytes in groups of eight rows. `panel` is the distance
/// between groups of 64 elements of d, which only the transposed operand needs.
__device__ __forceinline__ std::uint64_t operand(std::uint32_t address, int panel = 16) {
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | static_cast<std::uint64_t>(panel >> 4) << 16 |
         static_cast<std::uint64_t>(1024 >> 4) << 32 | static_cast<std::uint64_t>(1) << 62;
}

}  // namespace rootdk::cuda
