// A forward tile: its shape, as a constant with names, and what of shared memory it takes.
#pragma once

#include <cstdint>

namespace rootdk::cuda {

/// What differs between instantiations of the kernel.
struct TileShape {
  int dim;                 ///< the head size that it is compiled for
  int warpgroups;          ///< consumers: 64 query rows each
  int keys;                ///< of a block of K and V
  int stages = 2;          ///< blocks of K, and of V, that there is room for
  int blocks = 1;          ///< thread blocks at a time on a multiprocessor
  int producer_registers;  ///< of each thread; all warpgroups together have 64 K, and what the producer gives up the
                           ///< consumers get
  int consumer_registers;
  int tail = 0;  ///< a last block with no more keys than this is multiplied apart, in this width; 0: as any other
  int query_tiles = 1;  ///< tiles whose queries there is room for
};

template <TileShape kShape>
struct HopperTile {
  static constexpr int kDim = kShape.dim, kGroups = kShape.warpgroups, kKeys = kShape.keys, kStages = kShape.stages;
  static constexpr int kBlocks = kShape.blocks, kTail = kShape.tail, kQueries = kShape.query_tiles;
  static constexpr int kProducerRegisters = kShape.producer_registers, kConsumerRegisters = kShape.consumer_registers;
  static constexpr int kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1), kPanels = kDim / 64;
  static constexpr int kQueryBytes = kRows * kDim * 2, kStageBytes = kKeys * kDim * 2;
  static constexpr bool kPacked =
      kGroups == 1;  ///< rows are (head of the group, query), and keys may be split (split-KV)
  static constexpr int kBarriers = 2 * kQueries * kGroups + 4 * kStages + 1;
  static_assert(kQueries <= 2);
  /// Which tiles there are: one that is written, one whose Q is there, one whose rows are.
  static constexpr int kSlots = 4, kSlotBytes = 128;
  // A warpgroup that asks for more than the block was launched with waits for ever.
  static_assert(kProducerRegisters + kGroups * kConsumerRegisters <=
                (kGroups + 1) * (65536 / (kThreads * kBlocks) / 8 * 8));
  /// 24: AgainList, behind 8 that make it a multiple of 16.
  static constexpr int kBytes =
      kQueries * kQueryBytes + 2 * kStages * kStageBytes + kBarriers * 8 + kSlots * kSlotBytes + 24;
};

template <class Tile>
struct HopperShared {
  std::uint32_t q, k, v, full_q, empty_q, full_k, full_v, empty_k, empty_v,
      raw_v;           ///< raw_v: of values that are cleaned
  std::uint32_t seen;  ///< with full statistics: SeenScores of the consumers' threads

  __device__ explicit HopperShared(std::uint32_t base) {
    q = base, k = q + Tile::kQueries * Tile::kQueryBytes, v = k + Tile::kStages * Tile::kStageBytes;
    full_q = v + Tile::kStages * Tile::kStageBytes, empty_q = full_q + 8 * Tile::kQueries * Tile::kGroups;
    full_k = empty_q + 8 * Tile::kQueries * Tile::kGroups, full_v = full_k + 8 * Tile::kStages,
    empty_k = full_v + 8 * Tile::kStages, empty_v = empty_k + 8 * Tile::kStages;
    raw_v = empty_v + 8 * Tile::kStages, seen = base + Tile::kBytes;
  }
};

/// A place in the rings of K and V, which go on from tile to tile.
template <int kStages>
struct RingPlace {
  int n;
  __device__ __forceinline__ int stage() const { return n % kStages; }
  __device__ __forceinline__ std::uint32_t parity() const { return n / kStages & 1; }
};

}  // namespace rootdk::cuda
