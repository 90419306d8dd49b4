// Forward on Hopper: online softmax (Milakov and Gimelshein 2018) in a persistent, warp-specialised kernel, as in
// FlashAttention-3 (Shah et al. 2024). A block owns 64 query rows per consumer warpgroup; one producer warp copies K
// and V by TMA into rings of stages, the consumers multiply (wgmma), and while one has weights to compute the others
// have products.
//
//   S(n) = Q·Kᵀ(n) and O += P(n−1)·V(n−1) are issued together; softmax(n) may run while the second is still in flight.
//   P is packed only after that product has ended: its registers are the product's input.
//
// Persistent: blocks stay and take tile after tile; the producer runs ahead into the next tile's keys during the
// epilogue of the last one, and each warpgroup gets its next queries as soon as it has done with the old ones.
// Warpgroups wait for keys and never for each other: taking turns at the tensor cores (FlashAttention-3's ping-pong)
// was slower. A last block of few keys is multiplied in a narrower product of its own.
//
// Masks that leave each row a run of keys cost a pass over the scores of the tiles at the ends of a run, found a warp
// at a time. Few queries (decoding): the rows of all heads that read one key head are packed into one tile, and the
// keys are split among blocks (split-KV, Flash-Decoding).
//
// What limits it on an H200 is power: with fewer instructions for each score the card clocks higher.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/hopper/forward/consumer.cuh"
#include "cuda/hopper/forward/producer.cuh"

namespace rootdk::cuda {

template <class Tile, class T, bool kFull, ScoreKind kKind>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    hopper_kernel(const __grid_constant__ HopperArguments a) {
  constexpr int kStages = Tile::kStages, kGroups = Tile::kGroups;
  extern __shared__ __align__(1024) std::uint8_t memory[];  // all there is, so that it starts where swizzled rows may
  const HopperShared<Tile> shared(shared_address(memory));
  static_assert(sizeof(Work) <= Tile::kSlotBytes);
  Work* slots = reinterpret_cast<Work*>(memory + Tile::kBytes - 24 - Tile::kSlots * Tile::kSlotBytes);
  const int warpgroup = same_in_warp(threadIdx.x / 128);

  if (threadIdx.x == 0) {
    for (int g = 0; g < Tile::kQueries * kGroups; ++g)
      barrier_init(shared.full_q + 8 * g, 1), barrier_init(shared.empty_q + 8 * g, 128);
    for (int x = 0; x < kStages; ++x) {
      barrier_init(shared.full_k + 8 * x, 1), barrier_init(shared.full_v + 8 * x, 1);
      barrier_init(shared.empty_k + 8 * x, 4 * kGroups), barrier_init(shared.empty_v + 8 * x, 4 * kGroups);
    }
    barrier_init(shared.raw_v, 1);
    again_list<Tile>() = {0, -1};
    asm volatile("fence.mbarrier_init.release.cluster;");
    // The dependent kernel, which runs beside this one, cannot start before all blocks have said so, and only looks at
    // these in L2 (atomicAdd, load_acquire): with the fence it has them without next_kernel_wait.
    if (kFull && a.clears && blockIdx.x == 0) a.clears[0] = a.clears[1] = 0, __threadfence();
  }
  __syncthreads();
  if (a.followed) next_kernel_start();

  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Tile::kProducerRegisters));
    if (threadIdx.x < 32) produce<Tile, !kFull && !Tile::kPacked>(a, shared, slots);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Tile::kConsumerRegisters));
    const int group = warpgroup - 1;
    int ring = 0;
#pragma unroll 1
    for (int round = 0;; ++round) {
      const RingPlace<Tile::kQueries> queries{round};
      barrier_wait(shared.full_q + 8 * (queries.stage() * kGroups + group), queries.parity());
      Work& work = slots[round % Tile::kSlots];
      if (work.index < 0) return;
      if constexpr (Tile::kPacked) {
        gather_queries<Tile, T>(a, shared, work, round == 0);
        named_sync(8 + group, 128);
      }
      consume<Tile, T, kFull, kKind>(a, shared, work, group, round, ring);
      ring += work.last_block - work.first_block;
      if (a.again && thread_again() % 32 == 0) say_written<Tile>();
    }
  }
}

/// How many blocks take tiles.
struct HopperGrid {
  int blocks = 0;
  int clusters = 0;  ///< if not 0: so many clusters of kClusterBlocks instead, where the card has room for them
};

inline constexpr int kClusterBlocks = 16;  ///< about what a GPC, a group of multiprocessors, has

template <class Tile, class T, bool kFull, ScoreKind kKind>
void hopper_launch(const HopperArguments& a, const HopperGrid& grid, cudaStream_t stream) {
  const auto kernel = hopper_kernel<Tile, T, kFull, kKind>;
  constexpr int kBytes = Tile::kBytes + (kFull ? Tile::kGroups * 128 * kSeenBytes : 0);
  static_assert(Tile::kBytes % 16 == 0 && kBytes <= 232448);
  allow_shared(kernel, kBytes);
  const auto blocks = static_cast<unsigned>(grid.blocks);
  if (a.beside) return launch_beside("hopper forward", kernel, blocks, Tile::kThreads, kBytes, stream, a);
  if (kFull && grid.clusters > 0) {
    static PerDevice<int> most;
    Launch launch(static_cast<unsigned>(grid.clusters * kClusterBlocks), Tile::kThreads, kBytes, stream);
    launch.clusters(kClusterBlocks);
    allow_clusters(kernel);
    if (grid.clusters <= most.get([&] { return launch.clusters_at_once(kernel); }) &&
        launch.run("hopper forward in clusters", kernel, a))
      return;
  }
  launch_kernel("hopper forward", kernel, blocks, Tile::kThreads, kBytes, stream, a);
}

}  // namespace rootdk::cuda
