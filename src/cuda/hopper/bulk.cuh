// More of sm_90 in PTX, for backward: TMA without a tensor map (runs of bytes copied, or added to what is there), and
// fragments stored to shared memory (stmatrix).
#pragma once

#include <cstdint>

namespace rootdk::cuda {

/// Bytes, a multiple of 16, into shared memory; completes on the barrier.
__device__ __forceinline__ void copy_run(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Bytes out of shared memory, and floats added to what is there. Both belong to the thread's current bulk group.
__device__ __forceinline__ void write_run(float* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void add_run(float* to, std::uint32_t from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void runs_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Shared memory has been read.
template <int kPending>
__device__ __forceinline__ void runs_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// All of it is written.
__device__ __forceinline__ void runs_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// What ordinary stores wrote becomes visible to TMA and to wgmma (the async proxy), or the other way round.
__device__ __forceinline__ void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Four 8 × 8 matrices of 16-bit elements; lane 8m + r has the address of row r of matrix m.
__device__ __forceinline__ void store_matrices(std::uint32_t to, const std::uint32_t* x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}

}  // namespace rootdk::cuda
