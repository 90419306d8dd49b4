// The shapes of tiles, and what a launch hands to a block. A shape's shared memory is at most the 99 KB that every card
// since sm_86 has.
#pragma once

#include "cuda/common/view.h"
#include "cuda/mma/scores.cuh"

namespace rootdk::cuda::mma {

/// What lies between q·k and softmax, and what is learnt on the way: each has kernels of its own.
enum class Kind {
  kScaled,  ///< a scale above zero that is the same in all rows of a head
  kRich,    ///< anything
  kFull,    ///< anything, with full statistics
  kFew,     ///< anything, with few queries: heads that share keys are packed into a tile, keys are split among blocks
};

struct TileShape {
  int dim;
  int row_tiles = 1;   ///< of 16 rows, in a warp: each operand of K and V that is loaded serves so many products
  int row_warps = 4;   ///< warps with rows of their own
  int key_warps = 1;   ///< warps that share rows and have keys of their own
  int keys;            ///< of a block
  int stages = 2;      ///< blocks of K and V in shared memory. With one, V arrives during Q·Kᵀ and K during P·V.
  int full_words = 0;  ///< of a thread in shared memory, for what full statistics keep of its rows; 0: in registers
  int blocks = 2;      ///< on a multiprocessor, for which there are registers
};

template <TileShape kShape>
struct Tile {
  static constexpr int kDim = kShape.dim, kRowTiles = kShape.row_tiles, kRowWarps = kShape.row_warps,
                       kKeyWarps = kShape.key_warps, kKeys = kShape.keys, kStages = kShape.stages,
                       kBlocks = kShape.blocks;
  static constexpr int kThreads = 32 * kRowWarps * kKeyWarps, kRows = 16 * kRowTiles * kRowWarps,
                       kWarpKeys = kKeys / kKeyWarps, kThreadRows = 2 * kRowTiles;
  static constexpr int kQueryBytes = 2 * kRows * kDim, kBlockBytes = 2 * kKeys * kDim;
  static constexpr int kMergePitch = kDim + 8;  ///< floats between rows that warps leave for each other
  static constexpr int kMergeBytes = kKeyWarps > 1 ? kKeyWarps* kRows*(4 * kMergePitch + 16) : 0;
  static constexpr int kFullWords = kShape.full_words;
  static constexpr int kLoopBytes = kQueryBytes + 2 * kStages * kBlockBytes + 4 * kThreads * kFullWords,
                       kBytes = kLoopBytes > kMergeBytes ? kLoopBytes : kMergeBytes;
  static_assert(kBytes <= 99 * 1024 && kDim % 64 == 0 && kWarpKeys % 16 == 0 && (kKeyWarps == 1 || kRowWarps == 1));
};

template <int kDim, Kind kKind>
consteval TileShape shape_of() {
  if (kKind == Kind::kFew)
    return {.dim = kDim, .row_warps = 1, .key_warps = 4, .keys = 64, .stages = kDim > 128 ? 1 : 2};
  if (kKind == Kind::kScaled)
    return kDim == 64    ? TileShape{.dim = 64, .row_tiles = 2, .keys = 64}
           : kDim == 128 ? TileShape{.dim = 128, .row_tiles = 2, .keys = 64}
                         : TileShape{.dim = 256, .keys = 64, .stages = 1};
  if (kDim > 128 && kKind == Kind::kFull) return {.dim = kDim, .keys = 16, .full_words = 33};
  if (kDim > 128) return {.dim = kDim, .keys = 32, .stages = 1};
  return {.dim = kDim, .keys = 64};
}

/// Arguments of a launch.
struct Arguments {
  ForwardView f;
  int width_q = 0, width_k = 0, width_v = 0, width_o = 0;  ///< copy_width
  Pairs allowed = Pairs::kAbsent, bias = Pairs::kAbsent;
  bool full_rows = false;         ///< whether any of full statistics is wanted of each row
  int row_tiles = 1;              ///< of a head, or of the heads that share keys
  int near_heads = 1;             ///< heads whose tiles lie side by side in the grid: their K and V stay in the cache
  int splits = 1;                 ///< at most
  int first_item = 0, items = 0;  ///< of the batch, where keys may be split: those that this launch is for
  float* part_o = nullptr;        ///< of those items
  float4* part_rows = nullptr;
};

/// Keys of a split, for a sequence of so many that each head of keys has so many rows for: nothing else decides, so
/// that as many queries of a sequence have the same bits in any company. Eight keys a row at least: what a split leaves
/// for the combine kernel is small beside what it read.
inline __host__ __device__ int split_keys(int length, std::int64_t rows) {
  int keys = length < 8192 ? 256 : length < 32768 ? 512 : 1024;
  while (keys < 8 * rows && keys < length) keys *= 2;  // up to 2²⁸ keys are taken
  return keys;
}
__device__ __forceinline__ int split_keys(const ProblemView& p, int length) {
  return split_keys(length, p.len_q * p.group);
}

/// The keys that an item has.
__device__ __forceinline__ int keys_of_item(const ProblemView& p, int b) {
  const int all = static_cast<int>(p.len_kv);
  return p.key_lengths ? min(all, static_cast<int>(p.key_lengths[b])) : all;
}

/// What one block found of a row whose keys were split, beside its Σ weight · v relative to `max`.
struct PartRow {
  float max, sum, raw_max;  ///< max: of the scores; −∞ where no key was seen
  int visible;

  __device__ __forceinline__ static PartRow of(const float4& x) { return {x.x, x.y, x.z, __float_as_int(x.w)}; }
  __device__ __forceinline__ float4 packed() const { return {max, sum, raw_max, __int_as_float(visible)}; }
  /// What sums relative to this maximum are multiplied by when they become relative to `other`, at least as large.
  __device__ __forceinline__ float moved_to(float other) const {
    return max == -kInfinityF ? 0 : exp2_fast((max - other) * kLog2E);
  }
};

}  // namespace rootdk::cuda::mma
