// Tile products for WebAssembly's vectors of four, which Eigen does not know: what src/nn/matmul_baseline.cc is
// elsewhere.
//
// Both operands are copied first, so that every step of the inner axis is one load of eight columns and four numbers to
// multiply them with; the sums of four rows by eight columns stay in registers. Sums run over the inner axis in order.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "nn/matmul_tile.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::nn {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
constexpr hn::FixedTag<float, 4> f32;
using V = hn::Vec<decltype(f32)>;

constexpr std::int64_t kRows = 4, kCols = 8;

/// Element [i, k] of an operand is data[i·across + k·along].
struct Strided {
  const float* data;
  std::int64_t across, along;
};

/// Panels of `width` elements [panel][inner][width], the last one filled up with zeros.
void pack(const Strided& from, std::int64_t count, std::int64_t inner, std::int64_t width, std::vector<float>& into) {
  const std::int64_t panels = (count + width - 1) / width;
  into.assign(static_cast<std::size_t>(panels * inner * width), 0.0f);
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    float* const out = into.data() + panel * inner * width;
    const std::int64_t first = panel * width, here = std::min(width, count - first);
    const float* const in = from.data + first * from.across;
    if (from.across == 1) {
      for (std::int64_t k = 0; k < inner; ++k)
        for (std::int64_t i = 0; i < here; ++i) out[k * width + i] = in[k * from.along + i];
    } else {
      for (std::int64_t i = 0; i < here; ++i)
        for (std::int64_t k = 0; k < inner; ++k) out[k * width + i] = in[i * from.across + k * from.along];
    }
  }
}

/// out [kRows, kCols] ← a [inner, kRows]ᵀ · b [inner, kCols].
HWY_INLINE void micro(std::int64_t inner, const float* a, const float* b, float* out) {
  V sum[kRows][2];
  for (auto& row : sum) row[0] = row[1] = hn::Zero(f32);
  for (std::int64_t k = 0; k < inner; ++k, a += kRows, b += kCols) {
    const V left = hn::LoadU(f32, b), right = hn::LoadU(f32, b + 4);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const V x = hn::Set(f32, a[r]);
      sum[r][0] = hn::Add(sum[r][0], hn::Mul(x, left));
      sum[r][1] = hn::Add(sum[r][1], hn::Mul(x, right));
    }
  }
  for (std::int64_t r = 0; r < kRows; ++r) {
    hn::StoreU(sum[r][0], f32, out + r * kCols);
    hn::StoreU(sum[r][1], f32, out + r * kCols + 4);
  }
}

void add(const TileSize& s, const Strided& a, const Strided& b, const Result& c) {
  static std::vector<float> rows, cols;  // one thread, and always about the same size
  pack(a, s.rows, s.inner, kRows, rows);
  pack(b, s.cols, s.inner, kCols, cols);
  float out[kRows * kCols];
  for (std::int64_t j = 0; j < s.cols; j += kCols)
    for (std::int64_t i = 0; i < s.rows; i += kRows) {
      micro(s.inner, rows.data() + i * s.inner, cols.data() + j * s.inner, out);
      for (std::int64_t r = 0; r < std::min(kRows, s.rows - i); ++r)
        for (std::int64_t n = 0; n < std::min(kCols, s.cols - j); ++n)
          c.data[(i + r) * c.stride + j + n] += out[r * kCols + n];
    }
}

void add_nt(const TileSize& s, const Operand& a, const Operand& b, const Result& c) {
  add(s, {a.data, a.stride, 1}, {b.data, b.stride, 1}, c);
}
void add_nn(const TileSize& s, const Operand& a, const Operand& b, const Result& c) {
  add(s, {a.data, a.stride, 1}, {b.data, 1, b.stride}, c);
}
void add_tn(const TileSize& s, const Operand& a, const Operand& b, const Result& c) {
  add(s, {a.data, 1, a.stride}, {b.data, 1, b.stride}, c);
}

}  // namespace HWY_NAMESPACE

const TileProducts* tile_products_baseline() {
  static constexpr TileProducts kProducts = {"WASM", &HWY_NAMESPACE::add_nt, &HWY_NAMESPACE::add_nn,
                                             &HWY_NAMESPACE::add_tn};
  return &kProducts;
}

}  // namespace rootdk::nn
HWY_AFTER_NAMESPACE();
