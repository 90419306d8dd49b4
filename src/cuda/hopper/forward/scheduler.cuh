// The scheduler of the persistent forward kernel: its arguments, and which tile of query rows comes next with which
// blocks of keys.
#pragma once

#include <cuda.h>

#include "cuda/common/ptx.cuh"
#include "cuda/common/rows.cuh"
#include "cuda/hopper/forward/tile.cuh"
#include "cuda/hopper/hopper.h"

namespace rootdk::cuda {

/// Structural masks of a problem without documents, in int32: a row i sees [i + offset − left, i + offset + right] of
/// the keys there are.
struct RowRule {
  bool alike = true;  ///< all rows of an item see the same keys; left and right are then too large to matter
  int offset = 0, left = 0, right = 0;
};

struct KeyRun {
  int begin, end;
};

/// Slices of 64 rows that a launch has of a head: all, or every so many from one on, or all but those. Where full
/// statistics are sampled, the slices that they look at and the others are launches of their own, each with the tile
/// that suits it.
struct SliceRule {
  enum Kind { kAll, kEvery, kOthers } kind = kAll;
  int period = 1, first = 0;

  __host__ __device__ int operator()(int n) const {
    if (kind == kAll) return n;
    if (kind == kEvery) return first + n * period;
    const int whole = n / (period - 1), within = n - whole * (period - 1);
    return whole * period + within + (within >= first);
  }
};

struct HopperArguments {
  ForwardView f;
  CUtensorMap q, k, v;
  RowRule rule;
  const KeyRun* runs = nullptr;  ///< [batch, len_q], with documents: there is no rule then
  int split_keys = 0;            ///< split-KV: keys of a split; 0: one tile sees all
  int splits = 1;                ///< of a row; `padded_splits` of them have places in the order of tiles
  int padded_splits = 1;
  int tiles = 0;        ///< in all
  int whole_tiles = 0;  ///< the first so many; then come tiles of one warpgroup's rows each, so that all
                        ///< multiprocessors have something to do to the end
  int row_tiles = 1;    ///< of one head
  int near_heads = 1;   ///< heads whose K and V fit the cache together: their tiles come one after another
  int run = 1;  ///< tiles that a block takes one after another: all of a head, or of a row so many splits, which it
                ///< then merges itself
  bool merges = false;
  int* again = nullptr;  ///< [tiles], where masks hide keys that other rows of a tile see: see Guard
  SliceRule slices;
  bool followed = false;  ///< by a dependent kernel, which may start beside this one (Launch::beside)
  bool beside = false;    ///< this is one: started beside the kernel before it, whose end is waited for in the end
  int* before_done =
      nullptr;  ///< zero at the start, then 1 once that kernel has ended and a block of this one has no more tiles
  int* clears = nullptr;                 ///< two counters of the dependent kernel, which are zero before that can start
  bool rows = false, full_rows = false;  ///< statistics by row are wanted
  int* next_tile = nullptr;  ///< zero at the start; where tiles differ in length, or blocks start late, they take the
                             ///< next one when they are free
  unsigned long long* largest = nullptr;  ///< of each warp of each tile: see note_largest
  float* part_o = nullptr;
  float4* part_rows = nullptr;  ///< PartRow
};

inline constexpr int kMostGroups = 4;

/// What masks hide must not matter, but a weight of zero times a value that is not finite is NaN. Values behind the
/// keys that an item has are made zero as they arrive, in the one block that holds them. Of others, which some rows of
/// a tile see and some do not, nothing is asked on the way: a tile whose results are not all finite is computed again
/// in the end, by the block that had it, twice.
enum class Guard : int {
  kNone,
  kZero,  ///< what is not finite counts as zero: right for rows that do not see it, to the bit
  kMark,  ///< 1 in its place, and zero elsewhere: a row whose sum is not zero sees it, and becomes NaN there
};

/// One tile of rows, and the blocks of keys that they see.
struct Work {
  int index = -1;                                                 ///< −1: no more
  int batch = 0, head = 0, kv_head = 0, row_tile = 0, split = 0;  ///< head: of the keys where rows are packed
  int first_block = 0, last_block = 0;
  int group_first[kMostGroups] = {}, group_last[kMostGroups] = {};  ///< of each warpgroup's rows
  int group_row[kMostGroups] = {};                                  ///< their first
  int tails = 0;       ///< bit g: the last of several blocks of warpgroup g is a tail
  int clean_from = 0;  ///< the first block whose values are cleaned before they are multiplied
  Guard guard = Guard::kNone;
  int suspect = 0;                    ///< 1 once a warp has found results that are not finite
  int keys = 0, offset = 0;           ///< of the item: how many there are, and where the diagonal is
  float c = 0;                        ///< the head's scale; this and what follows not where rows are packed
  int head_index = 0;                 ///< of all heads of all items
  std::int64_t o_at = 0, lse_at = 0;  ///< where the head's rows begin
};

/// The keys that structural masks leave a row.
__device__ __forceinline__ KeyRun visible_run(const HopperArguments& a, const Work& work, int i) {
  if (a.runs) return a.runs[work.batch * a.f.p.len_q + i];
  const int begin = max(0, i + work.offset - a.rule.left), end = min(work.keys, i + work.offset + a.rule.right + 1);
  return begin < end ? KeyRun{begin, end} : KeyRun{0, 0};
}

/// Where a row of the tile lies in the problem; `real` is false for padding.
struct PlacedRow {
  int h, i;
  bool real;
};

template <class Tile>
__device__ __forceinline__ PlacedRow place_row(const HopperArguments& a, const Work& work, int row) {
  const int len_q = static_cast<int>(a.f.p.len_q);
  if constexpr (Tile::kPacked) {
    const int group = static_cast<int>(a.f.p.group), g = row / len_q;
    return {work.head * group + g, row - g * len_q, g < group};
  }
  const int i = work.group_row[row / 64] + row % 64;
  return {work.head, i, i < len_q};
}

/// Tiles in the order in which they are taken: of the heads that share the cache the longest rows of a causal mask
/// first. kParts: there may be such as are not whole.
template <class Tile, bool kParts>
__device__ __forceinline__ void place_work(const HopperArguments& a, int index, Work& work) {
  constexpr int kNoRow = 1 << 30;
  const ProblemView& p = a.f.p;
  const int heads = static_cast<int>(Tile::kPacked ? p.heads_kv : p.heads_q);
  work.index = index < a.tiles ? index : -1;
  work.first_block = work.last_block = work.clean_from = work.suspect = 0;
  if (index >= a.tiles) return;
  if constexpr (Tile::kPacked) {
    work.split = index % a.padded_splits;
    work.head = work.kv_head = index / a.padded_splits % heads, work.batch = index / a.padded_splits / heads;
  } else {
    int part = -1;
    if (kParts && index >= a.whole_tiles)
      part = (index - a.whole_tiles) % Tile::kGroups, index = a.whole_tiles + (index - a.whole_tiles) / Tile::kGroups;
    const int all = static_cast<int>(p.batch) * heads, per_group = a.row_tiles * a.near_heads,
              group = index / per_group, rest = index % per_group;
    const int near = min(a.near_heads, all - group * a.near_heads), head = group * a.near_heads + rest % near;
    work.row_tile = a.row_tiles - 1 - rest / near;
#pragma unroll 1
    for (int g = 0; g < Tile::kGroups; ++g)
      work.group_row[g] = kParts && part >= 0 && g != part ? kNoRow : 64 * a.slices(work.row_tile * Tile::kGroups + g);
    work.head = head % heads, work.batch = head / heads;
    work.kv_head = work.head / static_cast<int>(p.group);
    work.c = static_cast<float>(factor_of(p, work.head));
    work.head_index = head, work.o_at = at(a.f.o, work.batch, work.head, 0),
    work.lse_at = at(a.f.lse, work.batch, work.head, 0);
  }
  // base::end_of_keys and base::diagonal_offset, by one read of the length
  work.keys = static_cast<int>(p.len_kv), work.offset = a.rule.offset;
  if (p.key_lengths) {
    const int length = static_cast<int>(p.key_lengths[work.batch]);
    work.keys = min(work.keys, length);
    if (p.diagonal == Diagonal::Kind::kLastKey) work.offset = length - static_cast<int>(p.len_q);
  }
  if (p.kv_starts) work.keys = min(work.keys, static_cast<int>(p.kv_starts[p.documents]));
}

/// Which blocks of keys the rows of a tile see: a warp's work, whose first lane writes it down.
template <class Tile>
__device__ __forceinline__ void find_blocks(const HopperArguments& a, Work& work) {
  const int lane = threadIdx.x % 32;
  const int split_first = Tile::kPacked && a.split_keys > 0 ? work.split * a.split_keys : 0;
  const int split_last = Tile::kPacked && a.split_keys > 0 ? split_first + a.split_keys : 0x7fffffff;
  if (lane == 0) work.tails = 0;
#pragma unroll 1
  for (int g = 0; g < Tile::kGroups; ++g) {
    int first = 0x7fffffff, last = 0;
#pragma unroll 1
    for (int row = 64 * g + lane; row < 64 * g + 64; row += a.rule.alike ? 64 : 32) {  // where rows are alike one does
      const PlacedRow place = place_row<Tile>(a, work, row);
      if (!place.real) continue;
      const KeyRun run = visible_run(a, work, place.i);
      if (run.begin < run.end)
        first = min(first, max(run.begin, split_first)), last = max(last, min(run.end, split_last));
    }
    const int end = __reduce_max_sync(~0u, last), begin = __reduce_min_sync(~0u, first);
    if (lane != 0) continue;
    work.group_first[g] = begin / Tile::kKeys, work.group_last[g] = (end + Tile::kKeys - 1) / Tile::kKeys;
    if (Tile::kTail > 0 && work.group_last[g] - work.group_first[g] > 1 &&
        end - (work.group_last[g] - 1) * Tile::kKeys <= Tile::kTail)
      work.tails |= 1 << g;
  }
  if (lane != 0) return;
  int first = 0x7fffffff, last = 0;
#pragma unroll 1
  for (int g = 0; g < Tile::kGroups; ++g)
    if (work.group_first[g] < work.group_last[g])
      first = min(first, work.group_first[g]), last = max(last, work.group_last[g]);
  if (first >= last) first = last = 0;
  work.first_block = first, work.last_block = last;
  const bool beyond = work.keys < static_cast<int>(a.f.p.len_kv) &&
                      last * Tile::kKeys > work.keys;  // the last block holds keys that the item has not
  work.clean_from = work.guard != Guard::kNone ? first : beyond ? max(first, last - 1) : last;
#pragma unroll 1
  for (int g = 0; g < Tile::kGroups; ++g)
    if (work.group_first[g] >= work.group_last[g]) work.group_first[g] = work.group_last[g] = first;
}

}  // namespace rootdk::cuda
