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

/// The warp's number, said so that the compiler knows that its lanes agree on it.
__device__ __forceinline__ int warp_now() { return __shfl_sync(~0u, thread_now() / 32, 0); }

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
__device__ __forceinline__ bool run_tile(const Arguments& a) {
  constexpr int kM = Tile::kRowTiles, kN = Tile::kWarpKeys / 8, kKeys = Tile::kKeys, kRows = Tile::kThreadRows;
  constexpr bool kFull = kKind == Kind::kFull;
  // Bias and mask are on their way during Q·Kᵀ, where there are registers for both.
  constexpr bool kReadsEarly = kKind == Kind::kFew || (kKind != Kind::kScaled && Tile::kDim <= 128);
  const ProblemView& p = a.f.p;
  const auto& memory = rows_memory<Tile, kKind>();
  const SharedAddress q_tile = address_of(shared_memory()), k_tiles = q_tile + Tile::kQueryBytes,
                      v_tiles = k_tiles + Tile::kStages * Tile::kBlockBytes;
  const auto load = [&](const View& from, std::int64_t dim, int width, SharedAddress to, int block) {
    load_keys<Tile::kDim, kKeys, Tile::kThreads>(to, HeadRows(p, from, memory.work.b, memory.work.kv_head),
                                                 static_cast<int>(dim), width, block * kKeys, memory.block_begin,
                                                 memory.block_end);
  };
  const auto load_k = [&](int block, int stage) {
    load(a.f.k, p.dim_qk, a.width_k, k_tiles + stage * Tile::kBlockBytes, block);
  };
  const auto load_v = [&](int block, int stage) {
    load(a.f.v, p.dim_v, a.width_v, v_tiles + stage * Tile::kBlockBytes, block);
  };

  RowsSoFar<kRows, kKind != Kind::kScaled> rows;
  RichRows<kRows> rich;
  FullRow own[kRows], (&full)[kRows] = full_rows<Tile>(own);
  rows.begin(), rich.begin();
#pragma unroll
  for (int r = 0; r < kRows; ++r) full[r].begin();
  const bool observed = kFull && any_sampled<Tile>(p, memory.work);
  float o[kM][Tile::kDim / 8][4];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int d = 0; d < Tile::kDim / 8; ++d)
#pragma unroll
      for (int x = 0; x < 4; ++x) o[m][d][x] = 0;
  const auto multiply_all = [&](const float(&factor)[kRows]) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int d = 0; d < Tile::kDim / 8; ++d)
#pragma unroll
        for (int x = 0; x < 4; ++x) o[m][d][x] *= factor[2 * m + x / 2];
  };

  const auto stage_of = [](int block) { return Tile::kStages == 2 ? block % 2 : 0; };
  int block = memory.block_begin / kKeys;
  if (memory.block_begin < memory.block_end) {
    load_queries<Tile, kKind == Kind::kFew>(a, memory.work, q_tile);
    load_k(block, stage_of(block));
    if constexpr (Tile::kStages == 2) load_v(block, stage_of(block));
    copies_commit();
  }
#pragma unroll 1
  for (; block * kKeys < memory.block_end; ++block) {
    const SharedAddress k_tile = k_tiles + stage_of(block) * Tile::kBlockBytes,
                        v_tile = v_tiles + stage_of(block) * Tile::kBlockBytes;
    const bool more = (block + 1) * kKeys < memory.block_end;
    copies_wait<0>();
    __syncthreads();  // the block is there, and all are done with the one before it
    if constexpr (Tile::kStages == 2) {
      if (more) load_k(block + 1, stage_of(block + 1)), load_v(block + 1, stage_of(block + 1)), copies_commit();
      if (memory.guard != Guard::kNone) [[unlikely]]
        clean_values<T, Tile>(v_tile, memory.guard);
    } else {
      load_v(block, 0), copies_commit();
    }
    const int warp = warp_now(), warp_key = warp % Tile::kKeyWarps * Tile::kWarpKeys,
              first_key = block * kKeys + warp_key, end_key = first_key + Tile::kWarpKeys;
    const bool takes_part = first_key < memory.some_end[warp] && end_key > memory.some_begin[warp];
    float s[kM][kN][4];
    PairsBlock<kM, kN> pairs;
    if (takes_part) {
      if constexpr (kReadsEarly) pairs.read(a, memory.work.b, memory, first_key);
      multiply_keys<T, Tile>(s, ARows<Tile::kDim>(q_tile), BRows<Tile::kDim>(k_tile), warp / Tile::kKeyWarps * 16 * kM,
                             warp_key);
    }
    if constexpr (Tile::kStages == 1) {
      copies_wait<0>();
      __syncthreads();  // V is there, and all are done with K
      if (more) load_k(block + 1, 0), copies_commit();
      if (memory.guard != Guard::kNone) [[unlikely]]
        clean_values<T, Tile>(v_tile, memory.guard);
    }
    if (!takes_part) continue;
    const bool at_end = first_key < memory.all_begin[warp] || end_key > memory.all_end[warp];
    if constexpr (kKind != Kind::kScaled && !kReadsEarly) pairs.read(a, memory.work.b, memory, first_key);
    if constexpr (kKind != Kind::kScaled) transform(a, s, memory, rich, full, pairs, at_end, observed, first_key);
    else if (at_end) hide(s, memory, first_key);
    float shrink[kRows];
    bool moved;
    if (kFull && observed) {
      if constexpr (kFull) {
        const bool hidden = at_end || a.allowed != Pairs::kAbsent || a.bias != Pairs::kAbsent;
        moved = softmax_step_full(s, rows, full, memory.scale2, hidden, first_key, shrink);
      }
    } else {
      moved = softmax_step(s, rows, memory.scale2, shrink);
    }
    if (moved) multiply_all(shrink);
    if constexpr (kKind != Kind::kScaled) {
      if (p.dropout) {
        int h[kRows], i[kRows];
        of_thread<Tile>(memory.h, h), of_thread<Tile>(memory.i, i);
        drop(p, philox_key(p), memory.work.b, h, i, first_key, s);
      }
    }
    multiply_values<T, Tile>(o, s, BColumns<Tile::kDim>(v_tile), warp_key);
  }

  float shrink[kRows];
  end_rows(rows, memory.scale2, shrink);
  multiply_all(shrink);
  if constexpr (Tile::kKeyWarps > 1) return merge_warps<T, Tile>(a, o, rows, rich);
  else return write_rows<T, Tile, kKind>(a, o, rows, rich, full, shrink);
}

/// A tile whose results are not all finite is computed again, with zeros in place of values that are not finite: right
/// for rows that do not see those. Then with marks there, to find the elements of rows that do.
template <class T, class Tile, Kind kKind>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) forward_kernel(const __grid_constant__ Arguments a) {
  find_rows<Tile, kKind>(a);
  auto& memory = rows_memory<Tile, kKind>();
  if (a.splits > 1 && memory.block_begin >= memory.block_end) return;  // combine_parts does not ask for it
#pragma unroll 1
  for (;;) {
    const bool finite = run_tile<T, Tile, kKind>(a);
    const Guard guard = memory.guard;
    if (__syncthreads_and(finite || guard != Guard::kNone) && guard != Guard::kZero) return;
    if (threadIdx.x == 0) memory.guard = guard == Guard::kNone ? Guard::kZero : Guard::kMark;
    __syncthreads();
  }
}

}  // namespace rootdk::cuda::mma
