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
    work.kv_head = work.h = rest / a.row_tiles % heads, work.b = rest / a.row_tiles / heads;
    if (a.splits > 1) {
      const int keys = split_keys(keys_of_item(p, work.b));
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

/// What a thread's rows are, and the keys that the warp's and the block's rows see.
struct KeyRange {
  int begin, end;            ///< of the block, empty where begin ≥ end
  int warp_begin, warp_end;  ///< of the warp
  int all_begin, all_end;    ///< keys that all rows of the warp see
};

template <class Tile, Kind kKind>
__device__ __forceinline__ KeyRange find_rows(const Arguments& a, const Work& work,
                                              ThreadRows<Tile::kThreadRows>& rows) {
  constexpr bool kPacked = kKind == Kind::kFew;
  const ProblemView& p = a.f.p;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32,
            first_row = warp / Tile::kKeyWarps * 16 * Tile::kRowTiles + thread % 32 / 4;
  KeyRange range{0x7fffffff, 0, 0x7fffffff, 0, 0, 0x7fffffff};
#pragma unroll
  for (int r = 0; r < Tile::kThreadRows; ++r) {
    const Place place = place_of_row<Tile, kPacked>(p, work, first_row + r / 2 * 16 + r % 2 * 8);
    const QueryRowOf<int> keys = visible_keys_as<int>(p, work.b, place.i);
    rows.h[r] = place.h, rows.i[r] = place.i, rows.real[r] = place.real;
    rows.begin[r] = keys.begin, rows.end[r] = keys.end, rows.position[r] = keys.position;
    rows.slope[r] = 0, rows.c[r] = 1;
    if constexpr (kKind != Kind::kScaled) {
      const QueryRow wide{keys.begin, keys.end, keys.position, keys.origin};
      rows.c[r] = static_cast<float>(scale_of(p, place.h, wide));
      if (p.slopes) rows.slope[r] = p.slopes[place.h];
    }
    // Padding rows are like the last real one.
    range.all_begin = max(range.all_begin, keys.begin), range.all_end = min(range.all_end, keys.end);
    const int begin = max(keys.begin, work.split_begin), end = min(keys.end, work.split_end);
    if (begin < end) range.warp_begin = min(range.warp_begin, begin), range.warp_end = max(range.warp_end, end);
  }
  range.all_begin = __reduce_max_sync(~0u, range.all_begin), range.all_end = __reduce_min_sync(~0u, range.all_end);
  range.warp_begin = __reduce_min_sync(~0u, range.warp_begin), range.warp_end = __reduce_max_sync(~0u, range.warp_end);
  __shared__ int begins[Tile::kRowWarps * Tile::kKeyWarps], ends[Tile::kRowWarps * Tile::kKeyWarps];
  if (thread % 32 == 0) begins[warp] = range.warp_begin, ends[warp] = range.warp_end;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < Tile::kRowWarps * Tile::kKeyWarps; ++w)
    range.begin = min(range.begin, begins[w]), range.end = max(range.end, ends[w]);
  return range;
}

}  // namespace rootdk::cuda::mma
