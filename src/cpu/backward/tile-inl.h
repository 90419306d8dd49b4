// P and dS of a tile of query rows and a block of keys, and what they add to dQ, dK and dV.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/call.h"
#include "base/constants.h"
#include "base/element.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_BACKWARD_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_BACKWARD_TILE_INL_H_
#undef ROOTDK_CPU_BACKWARD_TILE_INL_H_
#else
#define ROOTDK_CPU_BACKWARD_TILE_INL_H_
#endif

#include "cpu/backward/workspace-inl.h"
#include "cpu/blocks-inl.h"
#include "cpu/passes-inl.h"
#include "cpu/products/narrow-inl.h"
#include "cpu/products/wide-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// A tile of query rows and a block of keys, brought in, and their parts of the five products.
class TileGradients {
 protected:
  TileGradients(const base::BackwardCall& call, const BackwardWorkspace& workspace)
      : call_(call), shape_(call.plan.shape), problem_(call.plan.problem), passes_(problem_), workspace_(workspace) {}

  static constexpr auto kKeys = static_cast<std::int64_t>(kTileKeys);

  struct KeyBlock {
    std::int64_t key0;
    std::size_t keys;
    Matrix k, v;
    bool k_finite;
  };

  /// Brings a tile of one head in. With `only_for`, does nothing beyond the lanes if the tile sees nothing of that
  /// block.
  HWY_INLINE void load_tile(std::int64_t b, std::int64_t h, std::int64_t t, QueryTile& tile,
                            const KeyBlock* only_for = nullptr) const {
    const RowGroup group{b, h / shape_.group(), h, shape_.len_q};
    const std::int64_t first_row = t * kTileRows;
    const int count = static_cast<int>(std::min<std::int64_t>(kTileRows, shape_.len_q - first_row));
    const int width = width_of(count);
    Lanes& lanes = *tile.lanes;
    lanes.fill(call_.plan, group, first_row, count, width);
    if (only_for && !lanes.sees_block(only_for->key0, static_cast<std::int64_t>(only_for->keys))) return;

    const auto rows = static_cast<std::size_t>(count), cols = static_cast<std::size_t>(width);
    const auto dim_qk = static_cast<std::size_t>(shape_.dim_qk), dim_v = static_cast<std::size_t>(shape_.dim_v);
    const auto q_row = static_cast<std::size_t>(padded(shape_.dim_qk)),
               v_row = static_cast<std::size_t>(padded(shape_.dim_v));
    std::memset(tile.q_rows, 0, rows * q_row * sizeof(float));
    std::memset(tile.d_o_rows, 0, rows * v_row * sizeof(float));
    load_tile_rows(call_.in.q, lanes, tile.q_rows, q_row);
    load_tile_rows(call_.in.d_o, lanes, tile.d_o_rows, v_row);
    scale_rows(lanes, q_row, tile.q_rows);
    tile.finite =
        all_finite(Matrix{tile.q_rows, q_row}, rows, dim_qk) && all_finite(Matrix{tile.d_o_rows, v_row}, rows, dim_v);
    to_lanes(tile.q_rows, q_row, rows, dim_qk, tile.qt, cols);
    to_lanes(tile.d_o_rows, v_row, rows, dim_v, tile.d_ot, cols);
    std::memset(tile.d_qt, 0, dim_qk * cols * sizeof(float));
    tile.d_scores = 0;
    for (std::size_t r = 0; r < cols; ++r) {
      const bool used = r < rows;
      const std::int64_t i = first_row + static_cast<std::int64_t>(r);
      const float lse = used ? static_cast<float>(base::read(call_.in.lse, b, h, i, 0)) : 0;
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      tile.lse[r] = used && lse != -kInfinity ? lse : kInfinity;
      tile.delta[r] = used ? workspace_.delta[(b * shape_.heads_q + h) * shape_.len_q + i] : 0;
    }
  }

  /// Row r of x, `stride` apart, times its c.
  HWY_INLINE void scale_rows(const Lanes& lanes, std::size_t stride, float* x) const {
    for (std::size_t r = 0; r < static_cast<std::size_t>(lanes.count); ++r) {
      const float c = lanes.scale[r];
      for (std::size_t d = 0; d < stride; ++d) x[r * stride + d] *= c;
    }
  }

  HWY_INLINE KeyBlock load_block(std::int64_t b, std::int64_t kv_head, std::int64_t n,
                                 const BackwardScratch& scratch) const {
    KeyBlock block;
    block.key0 = n * kKeys;
    block.keys = static_cast<std::size_t>(std::min(kKeys, shape_.len_kv - block.key0));
    block.k = load_keys(problem_, call_.in.k, b, kv_head, block.key0, block.keys, scratch.k);
    block.v = load_keys(problem_, call_.in.v, b, kv_head, block.key0, block.keys, scratch.v);
    block.k_finite = all_finite(block.k, block.keys, static_cast<std::size_t>(shape_.dim_qk));
    return block;
  }

  /// P (with dropout applied) into scratch.s and dS, the gradient of the score just before softmax, into scratch.d_s.
  /// slope, if the problem has transforms, becomes d score / d raw. Returns how many keys of the block were visited.
  template <int MR>
  HWY_INLINE std::size_t score_gradient_tile(const QueryTile& tile, const KeyBlock& block,
                                             const BackwardScratch& scratch) const {
    const Lanes& lanes = *tile.lanes;
    const std::size_t keys = std::min(block.keys, static_cast<std::size_t>(lanes.last_key - block.key0));
    const std::size_t n = keys * MR * kLanes;
    const TilePlace place{lanes, block.key0, keys};
    V unused[MR];
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) unused[m] = hn::Zero(f32);
    const auto dim_qk = static_cast<std::size_t>(shape_.dim_qk);
    if (MR == 1 && call_.plan.narrow) {  // as forward adds
      const auto count = static_cast<std::size_t>(lanes.count);
      narrow_scores(tile.q_rows, count, {block.k.data, DType::kF32, block.k.stride}, keys, dim_qk, scratch.rows, keys);
      to_lanes(scratch.rows, keys, count, keys, scratch.s, kLanes);
    } else {
      score_product<MR>(tile.qt, block.k.data, block.k.stride, keys, dim_qk, {}, scratch.s, unused);
    }
    if (scratch.slope) std::fill_n(scratch.slope, n, 1.0f);
    passes_.apply<MR>(place, scratch.s, scratch.additive, scratch.rows, RawStats{}, scratch.slope);
    score_product<MR>(tile.d_ot, block.v.data, block.v.stride, keys, static_cast<std::size_t>(shape_.dim_v), {},
                      scratch.d_s, unused);
    if (scratch.factor) {
      dropout_factors<MR>(problem_.dropout, place, scratch.factor);
      multiply(scratch.factor, n, scratch.d_s);
    }
    const V log2e = hn::Set(f32, kLog2E);
    V lse[MR], delta[MR];
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) {
      lse[m] = hn::Load(f32, tile.lse + m * kLanes);
      delta[m] = hn::Load(f32, tile.delta + m * kLanes);
    }
    for (std::size_t k = 0; k < keys; ++k) {
      ROOTDK_UNROLL for (int m = 0; m < MR; ++m) {
        const std::size_t i = (k * MR + static_cast<std::size_t>(m)) * kLanes;
        const V s = hn::Load(f32, scratch.s + i);
        // A hidden key has P = 0 and dS = 0 even where the row or the key is NaN. (Eq, since Ne of a NaN is false on
        // some instruction sets.)
        const V p = hn::IfThenZeroElse(hn::Eq(s, minus_infinity()), exp2(hn::Mul(hn::Sub(s, lse[m]), log2e)));
        const V d_s = hn::Mul(p, hn::Sub(hn::Load(f32, scratch.d_s + i), delta[m]));
        hn::Store(p, f32, scratch.s + i);
        hn::Store(hn::IfThenZeroElse(hn::Eq(p, hn::Zero(f32)), d_s), f32, scratch.d_s + i);
      }
    }
    if (scratch.factor) multiply(scratch.factor, n, scratch.s);
    return keys;
  }

  HWY_INLINE std::size_t score_gradient(const QueryTile& tile, const KeyBlock& block,
                                        const BackwardScratch& scratch) const {
    switch (tile.width() / kLanes) {
      case 1: return score_gradient_tile<1>(tile, block, scratch);
      case 2: return score_gradient_tile<2>(tile, block, scratch);
      case 3:
        if constexpr (kMr > 2) return score_gradient_tile<3>(tile, block, scratch);
        break;
      case 4:
        if constexpr (kMr > 3) return score_gradient_tile<4>(tile, block, scratch);
        break;
    }
    return 0;
  }

  /// dS, scaled by the slope, becomes the gradient of c·q·k.
  HWY_INLINE void apply_slope(std::size_t n, const BackwardScratch& scratch) const {
    for (std::size_t i = 0; i < n; i += kLanes) {
      const V d_s = hn::Load(f32, scratch.d_s + i);
      const V product = hn::Mul(d_s, hn::Load(f32, scratch.slope + i));
      hn::Store(hn::IfThenZeroElse(hn::Eq(d_s, hn::Zero(f32)), product), f32, scratch.d_s + i);
    }
  }

  template <int MR, Guard kGuard>
  HWY_INLINE void add_queries(const QueryTile& tile, const KeyBlock& block, std::size_t keys,
                              const BackwardScratch& scratch) const {
    V one[MR];
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) one[m] = hn::Set(f32, 1.0f);
    weighted_sum<MR, kGuard>(scratch.d_s, block.k.data, block.k.stride, keys, static_cast<std::size_t>(shape_.dim_qk),
                             {}, tile.d_qt, one);
  }

  template <int MR>
  HWY_INLINE void add_queries(const QueryTile& tile, const KeyBlock& block, std::size_t keys,
                              const BackwardScratch& scratch) const {
    if (block.k_finite) add_queries<MR, Guard::kOff>(tile, block, keys, scratch);
    else add_queries<MR, Guard::kOn>(tile, block, keys, scratch);
  }

  HWY_INLINE void add_keys(const QueryTile& tile, const float* weights, const float* rows, std::size_t keys,
                           std::int64_t dim, float* out) const {
    const auto width = static_cast<std::size_t>(tile.width()), count = static_cast<std::size_t>(tile.lanes->count);
    const auto row = static_cast<std::size_t>(padded(dim));
    if (tile.finite) outer_product<Guard::kOff>(weights, width, rows, row, count, keys, row, out, row);
    else outer_product<Guard::kOn>(weights, width, rows, row, count, keys, row, out, row);
  }

  /// ‖dS‖² of a block. Lanes without a row are left out: a key that is not finite makes their scores NaN, whoever may
  /// see it.
  HWY_INLINE double score_squares(const QueryTile& tile, const float* d_s, std::size_t keys) const {
    const auto width = static_cast<std::size_t>(tile.width()), count = static_cast<std::size_t>(tile.lanes->count);
    if (count == width) return dot_product(d_s, d_s, keys * width);
    double sum = 0;
    for (std::size_t k = 0; k < keys; ++k) sum += dot_product(d_s + k * width, d_s + k * width, count);
    return sum;
  }

  const base::BackwardCall& call_;
  const Shape& shape_;
  const Problem& problem_;
  Passes passes_;
  const BackwardWorkspace& workspace_;
};

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
