// Sums on their way from registers into the caller's tensors: rows of dQ, dK or dV, and the squares of their norms.
#pragma once

#include "cuda/common/quad.cuh"
#include "cuda/common/rows.cuh"
#include "cuda/mma/instructions.cuh"

namespace rootdk::cuda::mma::back {

/// Where rows go, from `first` on; of a tensor that may be absent.
template <class T>
struct RowsOf {
  const View& to;
  int dim;
  std::int64_t length;
  int b, h, first;
};

/// Whether two neighbouring elements of a row can be written at a time.
inline __device__ bool by_pairs(const View& t, int dim) {
  return t.strides[3] == 1 && dim % 2 == 0 && ((t.strides[0] | t.strides[1] | t.strides[2]) & 1) == 0 &&
         reinterpret_cast<std::uintptr_t>(t.data) % 4 == 0;
}

/// A block's result times `scale`.
template <class Grid, class T, int kM, int kN>
__device__ __forceinline__ void write_rows(const RowsOf<T>& rows, const float (&x)[kM][kN][4], float scale) {
  const View& to = rows.to;
  if (!to.data) return;
  const int lane = thread_now() % 32, column = Grid::first_column() + lane % 4 * 2;
  const bool pairs = by_pairs(to, rows.dim);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.first + Grid::first_row() + 16 * m + 8 * half + lane / 4;
      if (row >= rows.length) continue;
      T* out = reinterpret_cast<T*>(to.data) + at(to, rows.b, rows.h, row);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const float low = x[m][j][2 * half] * scale, high = x[m][j][2 * half + 1] * scale;
        const int d = column + 8 * j;
        if (pairs) {
          if (d < rows.dim) *reinterpret_cast<std::uint32_t*>(out + d) = pack2<T>(low, high);
        } else {
          if (d < rows.dim) out[d * to.strides[3]] = narrow<T>(low);
          if (d + 1 < rows.dim) out[(d + 1) * to.strides[3]] = narrow<T>(high);
        }
      }
    }
}

/// The squares of the norms of its rows, into parts[Grid::kColumns][kHeight] in shared memory; others see them after a
/// barrier.
template <class Grid, int kHeight, int kM, int kN>
__device__ __forceinline__ void share_squares(const float (&x)[kM][kN][4], float scale, float* parts) {
  const int lane = thread_now() % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float square = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) square = fmaf(x[m][j][e] * scale, x[m][j][e] * scale, square);
      square = quad_sum(square);
      if (lane % 4 == 0) parts[Grid::column() * kHeight + Grid::first_row() + 16 * m + 8 * half + lane / 4] = square;
    }
}
template <class Grid, int kHeight>
__device__ __forceinline__ double square_of(const float* parts, int row) {
  double square = 0;
  for (int w = 0; w < Grid::kColumns; ++w) square += static_cast<double>(parts[w * kHeight + row]);
  return square;
}

}  // namespace rootdk::cuda::mma::back
