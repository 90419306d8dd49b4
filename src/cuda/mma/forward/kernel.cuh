// The mma forward kernel, FlashAttention-2's (Dao 2023): a warp has 16 or 32 query rows, whose scores and output stay
// in its registers through all blocks of keys; K and V of the next block arrive by asynchronous copies meanwhile.
#pragma once

#include <type_traits>

#include "cuda/mma/forward/epilogue.cuh"
#include "cuda/mma/forward/passes.cuh"
#include "cuda/mma/loads.cuh"

namespace rootdk::cuda::mma {

/// The queries of a tile.
template <class Tile, bool kPacked>
__device__ __forceinline__ void load_queries(const Arguments& a, const Work& work, SharedAddress tile) {
  const ProblemView& p = a.f.p;
  const int rows = static_cast<int>(kPacked ? p.len_q * p.group : p.len_q) - work.row_tile * Tile::kRows;
  const HeadRows of_head(a.f.q, work.b, work.h);
  load_rows<Tile::kDim, Tile::kRows, Tile::kThreads>(
      tile, a.f.q.data, of_head.element_bytes, static_cast<int>(p.dim_qk), a.width_q, 0, rows, [&](int row) {
        const Place place = place_of_row<Tile, kPacked>(p, work, row);
        if constexpr (!kPacked) return of_head.row(place.i);
        else return static_cast<const char*>(a.f.q.data + 2 * at(a.f.q, work.b, place.h, place.i));
      });
}

/// Values of a block before they are multiplied: what is not finite becomes zero, or all else does and what is not
/// finite becomes one. A block's work.
template <class T, class Tile>
__device__ __forceinline__ void clean_values(SharedAddress v, Guard guard) {
  constexpr bool kBFloat = std::is_same_v<T, __nv_bfloat16>;
#pragma unroll 1
  for (int x = static_cast<int>(threadIdx.x); x < Tile::kBlockBytes / 4; x += Tile::kThreads) {
    const SharedAddress place = v + static_cast<unsigned>(4 * x);
    const std::uint32_t pair = load_shared(place), bad = not_finite_pair(pair, kBFloat ? 0x7f807f80u : 0x7c007c00u);
    store_shared(place, guard == Guard::kZero ? pair & ~bad : bad & (kBFloat ? 0x3f803f80u : 0x3c003c00u));
  }
  __syncthreads();
}

/// s = Q·Kᵀ of a warp's rows and keys.
template <class T, class Tile, int kN>
__device__ __forceinline__ void multiply_keys(float (&s)[Tile::kRowTiles][kN][4], const ARows<Tile::kDim>& q,
                                              const BRows<Tile::kDim>& k, int first_row, int first_key) {
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) s[m][j][x] = 0;
#pragma unroll
  for (int step = 0; step < Tile::kDim / 16; ++step) {
    std::uint32_t rows[Tile::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) q.read(rows[m], first_row + 16 * m, step);
#pragma unroll
    for (int n = 0; n < kN / 2; ++n) {
      std::uint32_t keys[4];
      k.read(keys, first_key + 16 * n, step);
#pragma unroll
      for (int m = 0; m < Tile::kRowTiles; ++m) {
        multiply<T>(s[m][2 * n], rows[m], keys[0], keys[1]);
        multiply<T>(s[m][2 * n + 1], rows[m], keys[2], keys[3]);
      }
    }
  }
}

/// o += P·V.
template <class T, class Tile, int kN>
__device__ __forceinline__ void multiply_values(float (&o)[Tile::kRowTiles][Tile::kDim / 8][4],
                                                const float (&w)[Tile::kRowTiles][kN][4], const BColumns<Tile::kDim>& v,
                                                int first_key) {
#pragma unroll
  for (int n = 0; n < kN / 2; ++n) {
    std::uint32_t weights[Tile::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) as_operand<T>(weights[m], w[m][2 * n], w[m][2 * n + 1]);
#pragma unroll
    for (int d = 0; d < Tile::kDim / 16; ++d) {
      std::uint32_t values[4];
      v.read(values, first_key + 16 * n, d);
#pragma unroll
      for (int m = 0; m < Tile::kRowTiles; ++m) {
        multiply<T>(o[m][2 * d], weights[m], values[0], values[1]);
        multiply<T>(o[m][2 * d + 1], weights[m], values[2], values[3]);
      }
    }
  }
}

/// One tile: its rows through all blocks of keys that they see. Returns whether the thread's results are finite.
template <class T, class Tile, Kind kKind>
__device__ __forceinline__ bool run_tile(const Arguments& a, const Work& work, const KeyRange& range,
                                         const ThreadRows<Tile::kThreadRows>& thread_rows, Guard guard) {
  constexpr int kM = Tile::kRowTiles, kN = Tile::kWarpKeys / 8, kKeys = Tile::kKeys, kRows = Tile::kThreadRows;
  constexpr bool kFull = kKind == Kind::kFull;
  const ProblemView& p = a.f.p;
  const SharedAddress q_tile = address_of(shared_memory()), k_tiles = q_tile + Tile::kQueryBytes,
                      v_tiles = k_tiles + Tile::kStages * Tile::kBlockBytes;
  const int warp = static_cast<int>(threadIdx.x) / 32, first_row = warp / Tile::kKeyWarps * 16 * kM,
            warp_key = warp % Tile::kKeyWarps * Tile::kWarpKeys;
  const int first_block = range.begin / kKeys, last_block = range.begin < range.end ? (range.end - 1) / kKeys + 1 : 0;
  const HeadRows k_rows(p, a.f.k, work.b, work.kv_head), v_rows(p, a.f.v, work.b, work.kv_head);
  const auto load_k = [&](int block, int stage) {
    load_keys<Tile::kDim, kKeys, Tile::kThreads>(k_tiles + stage * Tile::kBlockBytes, k_rows,
                                                 static_cast<int>(p.dim_qk), a.width_k, block * kKeys, range.begin,
                                                 range.end);
  };
  const auto load_v = [&](int block, int stage) {
    load_keys<Tile::kDim, kKeys, Tile::kThreads>(v_tiles + stage * Tile::kBlockBytes, v_rows, static_cast<int>(p.dim_v),
                                                 a.width_v, block * kKeys, range.begin, range.end);
  };

  float scale2 = kLog2E;
  if constexpr (kKind == Kind::kScaled) scale2 *= static_cast<float>(factor_of(p, work.h));
  RowsSoFar<kRows> rows;
  RichRows<kRows> rich;
  FullRow full[kRows];
  rows.begin(), rich.begin();
#pragma unroll
  for (int r = 0; r < kRows; ++r) full[r].begin();
  const bool observed = kFull && any_sampled<Tile>(p, work), transformed = is_transformed(p);
  float o[kM][Tile::kDim / 8][4];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int d = 0; d < Tile::kDim / 8; ++d)
#pragma unroll
      for (int x = 0; x < 4; ++x) o[m][d][x] = 0;

  if (first_block < last_block) {
    load_queries<Tile, kKind == Kind::kFew>(a, work, q_tile);
    load_k(first_block, 0);
    if constexpr (Tile::kStages == 2) load_v(first_block, 0);
    copies_commit();
  }
#pragma unroll 1
  for (int block = first_block; block < last_block; ++block) {
    const int stage = Tile::kStages == 2 ? (block - first_block) % 2 : 0;
    const SharedAddress v_tile = v_tiles + stage * Tile::kBlockBytes;
    copies_wait<0>();
    __syncthreads();  // the block is there, and all are done with the one before it
    if constexpr (Tile::kStages == 2) {
      if (block + 1 < last_block) load_k(block + 1, stage ^ 1), load_v(block + 1, stage ^ 1), copies_commit();
      if (guard != Guard::kNone) [[unlikely]]
        clean_values<T, Tile>(v_tile, guard);
    } else {
      load_v(block, 0), copies_commit();
    }
    const int first_key = block * kKeys + warp_key;
    const bool takes_part = first_key < range.warp_end && first_key + Tile::kWarpKeys > range.warp_begin;
    const bool at_end = first_key < range.all_begin || first_key + Tile::kWarpKeys > range.all_end ||
                        first_key < work.split_begin || first_key + Tile::kWarpKeys > work.split_end;
    float s[kM][kN][4];
    PairsBlock<kM, kN> pairs;
    if (takes_part) {
      if constexpr (kKind != Kind::kScaled) pairs.read(a, work.b, thread_rows, first_key);
      multiply_keys<T, Tile>(s, ARows<Tile::kDim>(q_tile), BRows<Tile::kDim>(k_tiles + stage * Tile::kBlockBytes),
                             first_row, warp_key);
    }
    if constexpr (Tile::kStages == 1) {
      copies_wait<0>();
      __syncthreads();  // V is there, and all are done with K
      if (block + 1 < last_block) load_k(block + 1, 0), copies_commit();
      if (guard != Guard::kNone) [[unlikely]]
        clean_values<T, Tile>(v_tile, guard);
    }
    if (!takes_part) continue;
    if constexpr (kKind == Kind::kScaled) {
      if (at_end) hide(s, thread_rows.begin, thread_rows.end, first_key);
    } else {
      transform<kFull>(a, s, thread_rows, rich, full, pairs, at_end, observed, first_key);
    }
    float shrink[kRows];
    bool moved;
    if (kFull && observed) {
      if constexpr (kFull) {
        const bool hidden = at_end || a.allowed != Pairs::kAbsent || a.bias != Pairs::kAbsent;
        moved = softmax_step_full(s, rows, full, scale2, hidden, first_key, shrink);
      }
    } else {
      moved = softmax_step(s, rows, scale2, shrink);
    }
    if (moved) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int d = 0; d < Tile::kDim / 8; ++d)
#pragma unroll
          for (int x = 0; x < 4; ++x) o[m][d][x] *= shrink[2 * m + x / 2];
    }
    if constexpr (kKind != Kind::kScaled)
      if (p.dropout) drop(p, philox_key(p), work.b, thread_rows.h, thread_rows.i, first_key, s);
    multiply_values<T, Tile>(o, s, BColumns<Tile::kDim>(v_tile), warp_key);
  }

  float shrink[kRows];
  end_rows(rows, scale2, shrink);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int d = 0; d < Tile::kDim / 8; ++d)
#pragma unroll
      for (int x = 0; x < 4; ++x) o[m][d][x] *= shrink[2 * m + x / 2];
  if constexpr (Tile::kKeyWarps > 1) {
    return merge_warps<T, Tile>(a, work, o, rows, rich, thread_rows, guard);
  } else {
    return write_rows<T, Tile, kKind>(a, work, o, rows, rich, full, thread_rows, shrink, scale2, transformed, guard);
  }
}

/// A tile whose results are not all finite is computed again, with zeros in place of values that are not finite: right
/// for rows that do not see those. Then with marks there, to find the elements of rows that do.
template <class T, class Tile, Kind kKind>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) forward_kernel(const __grid_constant__ Arguments a) {
  const Work work = work_of_block<kKind == Kind::kFew>(a);
  ThreadRows<Tile::kThreadRows> rows;
  const KeyRange range = find_rows<Tile, kKind>(a, work, rows);
  if (a.splits > 1 && range.begin >= range.end) return;  // combine_parts does not ask for it
  Guard guard = Guard::kNone;
#pragma unroll 1
  for (;;) {
    const bool finite = run_tile<T, Tile, kKind>(a, work, range, rows, guard);
    if (__syncthreads_and(finite || guard != Guard::kNone) && guard != Guard::kZero) return;
    guard = guard == Guard::kNone ? Guard::kZero : Guard::kMark;
  }
}

}  // namespace rootdk::cuda::mma
