// Which rows and keys a block of threads works on.
#pragma once

#include "cuda/mma/forward/tile.h"

namespace rootdk::cuda::mma {

struct Work {
  int b, h, kv_head;  ///< h: of all rows, where they are not packed
  int row_tile, split;
  int split_begin, split_end;  ///< keys
};

/// A row of the problem.
struct Place {
  int h, i;
  bool real;  ///< else padding, and the place is one that is there
};

template <class Tile, bool kPacked>
__device__ __forceinline__ Place place_of_row(const ProblemView& p, const Work& work, int row) {
  const int index = work.row_tile * Tile::kRows + row;
  if constexpr (!kPacked) {
    const int last = static_cast<int>(p.len_q) - 1;
    return {work.h, min(index, last), index <= last};
  } else {
    const int group = static_cast<int>(p.group), last = static_cast<int>(p.len_q) * group - 1, n = min(index, last);
    return {work.kv_head * group + n % group, n / group, index <= last};
  }
}

/// Heads go side by side, near ones together; within them the last rows go first, which see most under a causal mask.
template <bool kPacked>
__device__ __forceinline__ Work work_of_block(const Arguments& a) {
  const ProblemView& p = a.f.p;
  const int index = static_cast<int>(blockIdx.x);
  Work work;
  work.split_begin = 0, work.split_end = 0x7fffffff, work.split = 0;
  if constexpr (kPacked) {
    const int heads = static_cast<int>(p.heads_kv), rest = index / a.splits;
    work.split = index % a.splits, work.row_tile = rest % a.row_tiles;
    work.kv_head = work.h = rest / a.row_tiles % heads, work.b = a.first_item + rest / a.row_tiles / heads;
    if (a.splits > 1) {
      const int keys = split_keys(p, keys_of_item(p, work.b));
      work.split_begin = work.split * keys, work.split_end = work.split_begin + keys;
    }
  } else {
    const int heads = static_cast<int>(p.heads_q), all = static_cast<int>(p.batch) * heads,
              per_group = a.row_tiles * a.near_heads, group = index / per_group, rest = index % per_group,
              near = min(a.near_heads, all - group * a.near_heads), head = group * a.near_heads + rest % near;
    work.row_tile = a.row_tiles - 1 - rest / near;
    work.h = head % heads, work.b = head / heads, work.kv_head = work.h / static_cast<int>(p.group);
  }
  return work;
}

/// What V holds in a pass over a tile: see forward_kernel.
enum class Guard {
  kNone,  ///< itself
  kZero,  ///< zeros in place of what is not finite
  kMark,  ///< ones there, and zeros elsewhere: an output that is not zero becomes NaN
};

/// What is known of a tile and its rows, worked out once. In shared memory: registers are short.
template <class Tile, Kind kKind>
struct RowsMemory {
  static constexpr int kRich = kKind == Kind::kScaled ? 1 : Tile::kRows;
  int begin[Tile::kRows], end[Tile::kRows];  ///< runs of keys; padding rows are like the last real one
  int position[kRich], h[kRich], i[kRich];   ///< of all kinds but kScaled
  float c[kRich], slope[kRich];              ///< the same: scale and ALiBi's slope
  Work work;
  Guard guard;
  float scale2;                  ///< of scores, once they are multiplied by c: a weight is 2^(score · scale2 − …)
  int block_begin, block_end;    ///< keys that any row sees; none where begin ≥ end
  int all_begin[4], all_end[4];  ///< keys that all rows of a warp see
  int some_begin[4], some_end[4];  ///< keys that any row of a warp sees
};

template <class Tile, Kind kKind>
__device__ __forceinline__ RowsMemory<Tile, kKind>& rows_memory() {
  __shared__ RowsMemory<Tile, kKind> memory;
  static_assert(sizeof(memory) <= 2048 && Tile::kThreads == 128);
  return memory;
}

/// A block's work. Synchronises.
template <class Tile, Kind kKind>
__device__ __forceinline__ void find_rows(const Arguments& a) {
  const ProblemView& p = a.f.p;
  const Work work = work_of_block<kKind == Kind::kFew>(a);
  auto& rows = rows_memory<Tile, kKind>();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread < Tile::kRows) {
    const Place place = place_of_row<Tile, kKind == Kind::kFew>(p, work, thread);
    const QueryRow keys = visible_keys(p, work.b, place.i);
    rows.begin[thread] = static_cast<int>(keys.begin), rows.end[thread] = static_cast<int>(keys.end);
    if constexpr (kKind != Kind::kScaled) {
      rows.position[thread] = static_cast<int>(keys.position), rows.h[thread] = place.h, rows.i[thread] = place.i;
      rows.c[thread] = static_cast<float>(scale_of(p, place.h, keys));
      rows.slope[thread] = p.slopes ? p.slopes[place.h] : 0;
    }
  }
  __syncthreads();
  int all_begin = 0, all_end = 0x7fffffff, some_begin = 0x7fffffff, some_end = 0;
  for (int n = lane; n < 16 * Tile::kRowTiles; n += 32) {
    const int row = warp / Tile::kKeyWarps * 16 * Tile::kRowTiles + n, begin = max(rows.begin[row], work.split_begin),
              end = min(rows.end[row], work.split_end);
    all_begin = max(all_begin, begin), all_end = min(all_end, end);
    if (begin < end) some_begin = min(some_begin, begin), some_end = max(some_end, end);
  }
  all_begin = __reduce_max_sync(~0u, all_begin), all_end = __reduce_min_sync(~0u, all_end);
  some_begin = __reduce_min_sync(~0u, some_begin), some_end = __reduce_max_sync(~0u, some_end);
  if (lane == 0) {
    rows.all_begin[warp] = all_begin, rows.all_end[warp] = all_end;
    rows.some_begin[warp] = some_begin, rows.some_end[warp] = some_end;
  }
  __syncthreads();
  if (thread == 0) {
    int begin = 0x7fffffff, end = 0;
    for (int w = 0; w < 4; ++w) begin = min(begin, rows.some_begin[w]), end = max(end, rows.some_end[w]);
    rows.block_begin = begin, rows.block_end = end, rows.work = work, rows.guard = Guard::kNone;
    rows.scale2 = kKind == Kind::kScaled ? kLog2E * static_cast<float>(factor_of(p, work.h)) : kLog2E;
  }
  __syncthreads();
}

/// A thread's rows in the tile: 8 apart, in the order of scores.cuh.
template <class Tile>
__device__ __forceinline__ int row_of_thread(int r) {
  const int thread = thread_now();
  return thread / 32 / Tile::kKeyWarps * 16 * Tile::kRowTiles + thread % 32 / 4 + 8 * r;
}

/// Of a thread's rows.
template <class Tile, class X, int kCount>
__device__ __forceinline__ void of_thread(const X (&all)[kCount], X (&own)[Tile::kThreadRows]) {
#pragma unroll
  for (int r = 0; r < Tile::kThreadRows; ++r) own[r] = all[row_of_thread<Tile>(r)];
}

}  // namespace rootdk::cuda::mma
