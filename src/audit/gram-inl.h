// Tiles of A·Bᵀ in registers: a few rows by a few rows, vectors along the inner axis. Both operands lie as they are
// needed, so nothing is packed; a tile's lanes are added up once a block.
#if defined(ROOTDK_AUDIT_GRAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_AUDIT_GRAM_INL_H_
#undef ROOTDK_AUDIT_GRAM_INL_H_
#else
#define ROOTDK_AUDIT_GRAM_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "audit/gram.h"
#include "cpu/vector_math-inl.h"  // ROOTDK_UNROLL

HWY_BEFORE_NAMESPACE();
namespace rootdk::audit {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 32 registers hold 6×4 sums and what they are made of, 16 hold 3×4.
constexpr int kTileRows = HWY_TARGET <= HWY_AVX3 ? 6 : 3;
constexpr int kTileCols = 4;

template <int kRows, int kCols>
void add_tile(std::int64_t inner, std::int64_t stride, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
              double* HWY_RESTRICT out, std::int64_t out_stride) {
  const hn::CappedTag<float, kRowStep> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[kRows][kCols];
  ROOTDK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ROOTDK_UNROLL
    for (int c = 0; c < kCols; ++c) sum[r][c] = hn::Zero(d);
  }
  for (std::int64_t i = 0; i < inner; i += lanes) {
    hn::Vec<decltype(d)> x[kRows];
    ROOTDK_UNROLL
    for (int r = 0; r < kRows; ++r) x[r] = hn::LoadU(d, a + r * stride + i);
    ROOTDK_UNROLL
    for (int c = 0; c < kCols; ++c) {
      const auto y = hn::LoadU(d, b + c * stride + i);
      ROOTDK_UNROLL
      for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(x[r], y, sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c)
      out[r * out_stride + c] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum[r][c])));
}

using Tile = void (*)(std::int64_t, std::int64_t, const float*, const float*, double*, std::int64_t);

// The tile for what is left at the edges.
template <int kRows>
Tile tile_of_cols(std::int64_t cols) {
  constexpr Tile kTiles[] = {&add_tile<kRows, 1>, &add_tile<kRows, 2>, &add_tile<kRows, 3>,
                             &add_tile<kRows, kTileCols>};
  return kTiles[cols - 1];
}

inline Tile tile_of(std::int64_t rows, std::int64_t cols) {
  switch (rows) {
    case 1: return tile_of_cols<1>(cols);
    case 2: return tile_of_cols<2>(cols);
    case 3: return tile_of_cols<3>(cols);
#if HWY_TARGET <= HWY_AVX3
    case 4: return tile_of_cols<4>(cols);
    case 5: return tile_of_cols<5>(cols);
#endif
    default: return tile_of_cols<kTileRows>(cols);
  }
}

void gram_of(std::int64_t rows, std::int64_t stride, const float* w, double* out) {
  std::fill_n(out, rows * rows, 0.0);
  for (std::int64_t begin = 0; begin < stride; begin += kGramBlock) {
    const std::int64_t inner = std::min(kGramBlock, stride - begin);
    for (std::int64_t row = 0; row < rows; row += kTileRows) {
      const std::int64_t tall = std::min<std::int64_t>(kTileRows, rows - row);
      for (std::int64_t col = 0; col < std::min(row + tall, rows); col += kTileCols) {
        const std::int64_t wide = std::min<std::int64_t>(kTileCols, rows - col);
        tile_of(tall, wide)(inner, stride, w + row * stride + begin, w + col * stride + begin, out + row * rows + col,
                            rows);
      }
    }
  }
  // Tiles on the diagonal reach beyond it with sums that are not complete; the lower triangle is.
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < row; ++col) out[col * rows + row] = out[row * rows + col];
}

void product_of(std::int64_t rows, std::int64_t cols, std::int64_t stride, const float* a, const float* b,
                double* out) {
  std::fill_n(out, rows * cols, 0.0);
  for (std::int64_t begin = 0; begin < stride; begin += kGramBlock) {
    const std::int64_t inner = std::min(kGramBlock, stride - begin);
    for (std::int64_t row = 0; row < rows; row += kTileRows) {
      const std::int64_t tall = std::min<std::int64_t>(kTileRows, rows - row);
      for (std::int64_t col = 0; col < cols; col += kTileCols) {
        const std::int64_t wide = std::min<std::int64_t>(kTileCols, cols - col);
        tile_of(tall, wide)(inner, stride, a + row * stride + begin, b + col * stride + begin, out + row * cols + col,
                            cols);
      }
    }
  }
}

GramKernel gram_kernel() { return {hwy::TargetName(HWY_TARGET), &gram_of, &product_of}; }

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::audit
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
