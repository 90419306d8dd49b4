// What a block of the mma backward loads: its keys, then tile after tile of query rows; and how what is not finite is
// cleaned once it is there.
#pragma once

#include "cuda/mma/backward/shapes.cuh"
#include "cuda/mma/loads.cuh"

namespace rootdk::cuda::mma::back {

/// Where in the workspace the numbers of a tile of rows begin, and its places.
__device__ __forceinline__ const float* numbers_of(const Arguments& a, int b, int h, int m) {
  return a.numbers + ((b * a.f.p.heads_q + h) * a.row_tiles + m) * (kRowNumbers * a.rows);
}
__device__ __forceinline__ const int* places_of(const Arguments& a, int b, int m) {
  return a.places + (std::int64_t{b} * a.row_tiles + m) * (kRowPlaces * a.rows);
}

template <class Tile>
__device__ __forceinline__ void load_key_tiles(const Arguments& a, SharedAddress memory, int b, int kv_head,
                                               int key_tile) {
  const ProblemView& p = a.f.p;
  const int keys = base::end_of_keys(p, b);
  load_keys<Tile::kDim, Tile::kKeys, Tile::kThreads>(memory + Tile::kK, HeadRows(p, a.f.k, b, kv_head),
                                                     static_cast<int>(p.dim_qk), a.k_width, key_tile * Tile::kKeys, 0,
                                                     keys);
  load_keys<Tile::kDim, Tile::kKeys, Tile::kThreads>(memory + Tile::kV, HeadRows(p, a.f.v, b, kv_head),
                                                     static_cast<int>(p.dim_v), a.v_width, key_tile * Tile::kKeys, 0,
                                                     keys);
}

/// Q or dO.
template <class Tile>
__device__ __forceinline__ void load_row_tile(const Arguments& a, SharedAddress to, const View& t, std::int64_t dim,
                                              int width, int b, int h, int m) {
  const HeadRows rows(t, b, h);
  const int first = m * Tile::kRows;
  load_rows<Tile::kDim, Tile::kRows, Tile::kThreads>(to, rows.data, rows.element_bytes, static_cast<int>(dim), width, 0,
                                                     static_cast<int>(a.f.p.len_q) - first,
                                                     [&](int row) { return rows.row(first + row); });
}

/// Q, dO and the rows' numbers and places.
template <class Tile>
__device__ __forceinline__ void load_step(const Arguments& a, SharedAddress memory, int b, int h, int m, int stage) {
  const auto from = static_cast<unsigned>(stage);
  load_row_tile<Tile>(a, memory + Tile::kQ + from * Tile::kRowBytes, a.f.q, a.f.p.dim_qk, a.q_width, b, h, m);
  load_row_tile<Tile>(a, memory + Tile::kDO + from * Tile::kRowBytes, a.f.d_o, a.f.p.dim_v, a.d_o_width, b, h, m);
  constexpr int kNumberPieces = kRowNumbers * Tile::kRows / 4, kPieces = (kRowNumbers + kRowPlaces) * Tile::kRows / 4;
  const SharedAddress to = memory + Tile::kNumbers + from * Tile::kNumberBytes;
  for (int x = static_cast<int>(threadIdx.x); x < kPieces; x += Tile::kThreads) {
    const void* piece = x < kNumberPieces ? static_cast<const void*>(numbers_of(a, b, h, m) + 4 * x)
                                          : static_cast<const void*>(places_of(a, b, m) + 4 * (x - kNumberPieces));
    copy_async<16>(to + static_cast<unsigned>(16 * x), piece, 16);
  }
}

/// What is not finite becomes zero; f(row) hears of it. Between two barriers.
template <class Tile, int kTileRows, class F>
__device__ __forceinline__ void clean_tile(SharedAddress tile, DType dtype, const F& f) {
  const std::uint32_t all_ones = dtype == DType::kBF16 ? 0x7f807f80u : 0x7c007c00u;
#pragma unroll 1
  for (int x = static_cast<int>(threadIdx.x); x < kTileRows * Tile::kDim / 2; x += Tile::kThreads) {
    const SharedAddress at = tile + static_cast<unsigned>(4 * x);
    const std::uint32_t pair = load_shared(at), bad = not_finite_pair(pair, all_ones);
    if (bad) {
      store_shared(at, pair & ~bad);
      f(x / (Tile::kDim / 2));
    }
  }
}

/// Rows that see no key become zero: they may hold anything. Between two barriers.
template <class Tile>
__device__ __forceinline__ void clear_idle(SharedAddress tile, const int* places) {
#pragma unroll 1
  for (int x = static_cast<int>(threadIdx.x); x < Tile::kRows * Tile::kDim / 2; x += Tile::kThreads) {
    const int row = x / (Tile::kDim / 2);
    if (places[kBegin * Tile::kRows + row] >= places[kEnd * Tile::kRows + row])
      store_shared(tile + static_cast<unsigned>(4 * x), 0u);
  }
}

/// Q and dO of a step.
template <class Tile>
__device__ __forceinline__ void clean_step(const Arguments& a, SharedAddress q, SharedAddress d_o, const int* places,
                                           bool guarded) {
  for (const SharedAddress tile : {q, d_o}) {
    clear_idle<Tile>(tile, places);  // a thread meets the same pairs in both
    if (guarded) clean_tile<Tile, Tile::kRows>(tile, a.f.q.dtype, [](int) {});
  }
}

}  // namespace rootdk::cuda::mma::back
