// The tile that the plain kernels share: 16 query rows by 32 keys, four warps. A lane is a key, a warp owns four rows,
// so what happens to a score happens in registers and what happens to a row is a warp's reduction. f32 throughout, no
// instructions that every card since sm_80 does not have.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/common/rows.cuh"
#include "cuda/common/shared.cuh"

namespace rootdk::cuda {

inline constexpr int kTileRows = 16, kTileKeys = 32, kTileThreads = 128, kRowsPerWarp = 4;
inline constexpr int kStep = 32;  ///< elements of a row that are in shared memory at a time
inline constexpr int kForwardDims = 1024,
                     kKeyDims = 512;  ///< of an output held in shared memory; wider ones are computed in parts

struct TileMemory {
  float rows[kTileRows][kStep + 1], keys[kTileKeys][kStep + 1];
};

/// Which rows and keys a tile is of.
struct TilePlace {
  std::int64_t b, h, first_row, first_key;
};

/// dots[n] = row (4·warp + n) · key (lane), over `dim` elements; 0 beyond either length. Synchronises.
template <class T>
__device__ void tile_dots(const ProblemView& p, const View& rows, const View& keys, std::int64_t dim,
                          const TilePlace& place, TileMemory& memory, float (&dots)[kRowsPerWarp]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const T* row_data = reinterpret_cast<const T*>(rows.data);
  const T* key_data = reinterpret_cast<const T*>(keys.data);
#pragma unroll
  for (int n = 0; n < kRowsPerWarp; ++n) dots[n] = 0;
  for (std::int64_t first = 0; first < dim; first += kStep) {
    const std::int64_t d = first + lane;
    __syncthreads();
    for (int r = warp; r < kTileRows; r += 4) {
      const std::int64_t i = place.first_row + r;
      memory.rows[r][lane] = i < p.len_q && d < dim ? widen(row_data[at(rows, place.b, place.h, i, d)]) : 0;
    }
    for (int r = warp; r < kTileKeys; r += 4) {
      const std::int64_t j = place.first_key + r;
      memory.keys[r][lane] =
          j < p.len_kv && d < dim
              ? widen(key_data[key_offset(p, keys, place.b, place.h / p.group, j) + d * keys.strides[3]])
              : 0;
    }
    __syncthreads();
    const int count = static_cast<int>(min(static_cast<std::int64_t>(kStep), dim - first));
    for (int x = 0; x < count; ++x) {
      const float key = memory.keys[lane][x];
#pragma unroll
      for (int n = 0; n < kRowsPerWarp; ++n) dots[n] = fmaf(memory.rows[warp * kRowsPerWarp + n][x], key, dots[n]);
    }
  }
}

/// The rows of a tile and the union of their runs of keys, worked out once per tile. Synchronises.
struct TileRows {
  QueryRow row[kTileRows];
  float c[kTileRows];
  std::int64_t begin, end;
};

__device__ inline void find_rows(const ProblemView& p, std::int64_t b, std::int64_t h, std::int64_t first_row,
                                 TileRows& rows) {
  __syncthreads();
  if (threadIdx.x < kTileRows) {
    const std::int64_t i = first_row + threadIdx.x;
    rows.row[threadIdx.x] = i < p.len_q ? visible_keys(p, b, i) : QueryRow{};
    rows.c[threadIdx.x] = static_cast<float>(scale_of(p, h, rows.row[threadIdx.x]));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    rows.begin = p.len_kv, rows.end = 0;
    for (const QueryRow& row : rows.row)
      if (row.begin < row.end) rows.begin = min(rows.begin, row.begin), rows.end = max(rows.end, row.end);
    rows.begin = rows.begin / kTileKeys * kTileKeys;  // the grid of tiles is anchored at key 0, whoever shares the tile
  }
  __syncthreads();
}

}  // namespace rootdk::cuda
