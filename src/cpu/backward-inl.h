// The fused backward kernel: five products a tile, nothing of size len_q × len_kv stored. For a tile of query rows and
// a block of keys:
//
//   S = K·Qᵀ → passes → P = e^{S − lse};  dP = V·dOᵀ;  dS = P∘(dP − D)∘slope,  D = dO·O − dLSE
//   dV += P·dO    dK += dS·(cQ)    dQ += c·Kᵀ·dS
//
// dQ sums over ascending key blocks, dK and dV over ascending (head in group, query tile), whatever the schedule. There
// are two schedules with the same bits: one sweep (a task owns a key head: five products) and two sweeps (tasks own key
// blocks, then query tiles: seven products, but more tasks).
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "base/arena.h"
#include "base/call.h"
#include "base/element.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"

#if defined(ROOTDK_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_BACKWARD_INL_H_
#undef ROOTDK_CPU_BACKWARD_INL_H_
#else
#define ROOTDK_CPU_BACKWARD_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/micro-inl.h"
#include "cpu/narrow-inl.h"
#include "cpu/passes-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE std::int64_t padded(std::int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

/// A tile of query rows with everything backward needs of it.
struct QueryTile {
  Lanes* lanes;
  float *qt, *d_ot;          ///< [dim][width]; q scaled by c
  float *q_rows, *d_o_rows;  ///< the same row-major, rows padded to whole vectors
  float *lse, *delta;        ///< [width]; lse is +inf for rows that saw nothing, so that P = 0
  float* d_qt;               ///< Σ dS·k, [dim_qk][width]
  bool finite;
  double d_scores;  ///< Σ dS², if statistics are wanted

  static QueryTile take(base::Arena& arena, const Shape& s) {
    return {arena.take<Lanes>(1),
            arena.take<float>(s.dim_qk * kTileRows),
            arena.take<float>(s.dim_v * kTileRows),
            arena.take<float>(padded(s.dim_qk) * kTileRows),
            arena.take<float>(padded(s.dim_v) * kTileRows),
            arena.take<float>(kTileRows),
            arena.take<float>(kTileRows),
            arena.take<float>(s.dim_qk * kTileRows),
            true,
            0};
  }

  int width() const { return width_of(lanes->count); }
};

struct BackwardScratch {
  QueryTile* tiles;  ///< all of a head in one sweep, else one
  float *d_k, *d_v;  ///< [len_kv or kTileKeys][padded dim]
  float *s, *d_s, *slope, *additive, *factor, *rows, *k, *v;
  double* d_bias;  ///< [kTileKeys][kTileRows]

  static std::int64_t tiles_per_head(const Shape& s) { return (s.len_q + kTileRows - 1) / kTileRows; }
  static std::int64_t key_blocks(const Shape& s) {
    return (s.len_kv + static_cast<std::int64_t>(kTileKeys) - 1) / static_cast<std::int64_t>(kTileKeys);
  }

  static BackwardScratch take(base::Arena& arena, const Plan& plan) {
    const Shape& s = plan.shape;
    const Problem& problem = plan.problem;
    constexpr auto kKeys = static_cast<std::int64_t>(kTileKeys);
    constexpr std::int64_t kTile = kKeys * kTileRows;
    const std::int64_t tiles = plan.two_sweeps ? 1 : std::max<std::int64_t>(1, tiles_per_head(s));
    const std::int64_t keys = plan.two_sweeps ? kKeys : s.len_kv;
    const bool transforms = problem.soft_cap.has_value() || problem.transform.present();
    BackwardScratch scratch{};
    scratch.tiles = arena.take<QueryTile>(tiles);
    for (std::int64_t t = 0; t < tiles; ++t) {
      const QueryTile tile = QueryTile::take(arena, s);
      if (scratch.tiles) scratch.tiles[t] = tile;
    }
    scratch.d_k = arena.take<float>(keys * padded(s.dim_qk));
    scratch.d_v = arena.take<float>(keys * padded(s.dim_v));
    scratch.s = arena.take<float>(kTile);
    scratch.d_s = arena.take<float>(kTile);
    scratch.slope = transforms ? arena.take<float>(kTile) : nullptr;
    scratch.additive = problem.mask.has_dense_part() ? arena.take<float>(kTile) : nullptr;
    scratch.factor = problem.dropout.p > 0 ? arena.take<float>(kTile) : nullptr;
    scratch.rows = arena.take<float>(kTileRows * std::max({s.dim_qk, s.dim_v, kKeys}));
    scratch.k = arena.take<float>(kKeys * s.dim_qk);
    scratch.v = arena.take<float>(kKeys * s.dim_v);
    scratch.d_bias = problem.mask.bias.present() ? arena.take<double>(kTile) : nullptr;
    return scratch;
  }
};

/// Gradients of what the scale is made of.
struct ScaleSums {
  double rule, log_n_gain, log_n_offset;
};

/// Sums of squares of a block of keys' gradients.
struct KeySquares {
  double d_k, d_v;
};

/// What has one owner for each part is summed in order at the end.
struct BackwardWorkspace {
  BackwardScratch* scratch;  ///< one a thread
  float* delta;              ///< D, [batch, heads_q, len_q]
  ScaleSums* d_scale;        ///< [batch, heads_q, tiles]
  HeadGradients* queries;    ///< the same, of the parts that queries own; null without statistics
  KeySquares* keys;          ///< [batch, heads_kv, key blocks]; likewise

  static BackwardWorkspace take(base::Arena& arena, const Plan& plan) {
    const Shape& s = plan.shape;
    BackwardWorkspace workspace{};
    workspace.delta = arena.take<float>(s.batch * s.heads_q * s.len_q);
    workspace.d_scale = arena.take<ScaleSums>(s.batch * s.heads_q * BackwardScratch::tiles_per_head(s));
    if (plan.problem.stats == StatsLevel::kFull) {
      workspace.queries = arena.take<HeadGradients>(s.batch * s.heads_q * BackwardScratch::tiles_per_head(s));
      workspace.keys = arena.take<KeySquares>(s.batch * s.heads_kv * BackwardScratch::key_blocks(s));
    }
    workspace.scratch = arena.take<BackwardScratch>(plan.threads);
    for (int t = 0; t < plan.threads; ++t) {
      const BackwardScratch scratch = BackwardScratch::take(arena, plan);
      if (workspace.scratch) workspace.scratch[t] = scratch;
    }
    return workspace;
  }
};

/// Which gradients a visit to a tile adds to.
struct Wanted {
  bool d_q = false, d_k = false, d_v = false;
};

class Backward {
 public:
  Backward(const base::BackwardCall& call, const BackwardWorkspace& workspace)
      : call_(call), shape_(call.plan.shape), problem_(call.plan.problem), passes_(problem_), workspace_(workspace) {}

  std::int64_t tiles_per_head() const { return BackwardScratch::tiles_per_head(shape_); }
  std::int64_t key_blocks() const { return BackwardScratch::key_blocks(shape_); }

  bool wants_scale() const {
    return !call_.grad.d_scale.empty() || !call_.grad.d_log_n_gain.empty() || !call_.grad.d_log_n_offset.empty();
  }

  Wanted wanted() const {
    return {call_.grad.d_q.present() || wants_scale() || call_.stats, call_.grad.d_k.present(),
            call_.grad.d_v.present()};
  }

  /// D = dO·O − dLSE for the rows of one head, in double because it is small where P is saturated. A row that sees no
  /// key has O = 0, and its dO may hold anything.
  HWY_NOINLINE void row_deltas(std::int64_t b, std::int64_t h) const {
    const BackwardInputs& in = call_.in;
    for (std::int64_t i = 0; i < shape_.len_q; ++i) {
      double sum = in.d_lse.present() ? -base::read(in.d_lse, b, h, i, 0) : 0;
      for (std::int64_t d = 0; d < shape_.dim_v; ++d)
        if (const double o = base::read(in.o, b, h, i, d); o != 0) sum += base::read(in.d_o, b, h, i, d) * o;
      workspace_.delta[(b * shape_.heads_q + h) * shape_.len_q + i] = static_cast<float>(sum);
    }
  }

  /// One key head: all gradients in one sweep.
  HWY_NOINLINE void sweep_kv_head(std::int64_t b, std::int64_t kv_head, const BackwardScratch& scratch) const {
    const Wanted want = wanted();
    const std::size_t k_row = static_cast<std::size_t>(padded(shape_.dim_qk)),
                      v_row = static_cast<std::size_t>(padded(shape_.dim_v));
    std::memset(scratch.d_k, 0, static_cast<std::size_t>(shape_.len_kv) * k_row * sizeof(float));
    std::memset(scratch.d_v, 0, static_cast<std::size_t>(shape_.len_kv) * v_row * sizeof(float));
    for (std::int64_t h = kv_head * shape_.group(); h < (kv_head + 1) * shape_.group(); ++h) {
      for (std::int64_t t = 0; t < tiles_per_head(); ++t) load_tile(b, h, t, scratch.tiles[t]);
      for (std::int64_t n = 0; n < key_blocks(); ++n) {
        const KeyBlock block = load_block(b, kv_head, n, scratch);
        for (std::int64_t t = 0; t < tiles_per_head(); ++t)
          visit(scratch.tiles[t], block, want, scratch, scratch.d_k + static_cast<std::size_t>(block.key0) * k_row,
                scratch.d_v + static_cast<std::size_t>(block.key0) * v_row);
      }
      for (std::int64_t t = 0; t < tiles_per_head(); ++t) finish_queries(b, h, t, scratch.tiles[t], scratch);
    }
    write_keys(b, kv_head, 0, shape_.len_kv, scratch);
  }

  /// One block of keys: dK and dV.
  HWY_NOINLINE void sweep_key_block(std::int64_t b, std::int64_t kv_head, std::int64_t n,
                                    const BackwardScratch& scratch) const {
    const Wanted want{false, call_.grad.d_k.present(), call_.grad.d_v.present()};
    std::memset(scratch.d_k, 0, static_cast<std::size_t>(kKeys * padded(shape_.dim_qk)) * sizeof(float));
    std::memset(scratch.d_v, 0, static_cast<std::size_t>(kKeys * padded(shape_.dim_v)) * sizeof(float));
    const KeyBlock block = load_block(b, kv_head, n, scratch);
    for (std::int64_t h = kv_head * shape_.group(); h < (kv_head + 1) * shape_.group(); ++h)
      for (std::int64_t t = 0; t < tiles_per_head(); ++t) {
        load_tile(b, h, t, scratch.tiles[0], &block);
        visit(scratch.tiles[0], block, want, scratch, scratch.d_k, scratch.d_v);
      }
    write_keys(b, kv_head, block.key0, static_cast<std::int64_t>(block.keys), scratch);
  }

  /// One tile of queries: dQ.
  HWY_NOINLINE void sweep_query_tile(std::int64_t b, std::int64_t h, std::int64_t t,
                                     const BackwardScratch& scratch) const {
    const Wanted want{true, false, false};
    load_tile(b, h, t, scratch.tiles[0]);
    for (std::int64_t n = 0; n < key_blocks(); ++n) {
      if (!scratch.tiles[0].lanes->sees_block(n * kKeys, kKeys)) continue;
      visit(scratch.tiles[0], load_block(b, h / shape_.group(), n, scratch), want, scratch, nullptr, nullptr);
    }
    finish_queries(b, h, t, scratch.tiles[0], scratch);
  }

  /// The gradient of the bias, owned by (batch, head, query tile, key block) of its own shape; the axes it is broadcast
  /// over are summed in order.
  HWY_NOINLINE void bias_task(std::int64_t task, const BackwardScratch& scratch) const {
    const BiasTasks tasks(*this);
    const Tensor& out = call_.grad.d_bias;
    const auto [b0, b1] = tasks.range(task / tasks.per_batch(), tasks.batches, shape_.batch);
    const auto [h0, h1] = tasks.range(task / tasks.per_head() % tasks.heads, tasks.heads, shape_.heads_q);
    const auto [t0, t1] = tasks.range(task / tasks.blocks % tasks.tiles, tasks.tiles, tiles_per_head());
    const auto [n0, n1] = tasks.range(task % tasks.blocks, tasks.blocks, key_blocks());
    const std::int64_t rows = out.shape[2] == 1 ? 1 : std::min<std::int64_t>(kTileRows, shape_.len_q - t0 * kTileRows);
    const std::int64_t keys = out.shape[3] == 1 ? 1 : std::min(kKeys, shape_.len_kv - n0 * kKeys);
    std::fill_n(scratch.d_bias, rows * keys, 0.0);
    for (std::int64_t b = b0; b < b1; ++b)
      for (std::int64_t h = h0; h < h1; ++h)
        for (std::int64_t t = t0; t < t1; ++t) {
          const QueryTile& tile = scratch.tiles[0];
          load_tile(b, h, t, scratch.tiles[0]);
          for (std::int64_t n = n0; n < n1; ++n) {
            if (!tile.lanes->sees_block(n * kKeys, kKeys)) continue;
            const KeyBlock block = load_block(b, h / shape_.group(), n, scratch);
            const std::size_t seen = score_gradient(tile, block, scratch);
            for (std::size_t k = 0; k < seen; ++k)
              for (int r = 0; r < tile.lanes->count; ++r)
                scratch.d_bias[(out.shape[2] == 1 ? 0 : r) * keys +
                               (out.shape[3] == 1 ? 0 : static_cast<std::int64_t>(k))] +=
                    static_cast<double>(
                        scratch.d_s[k * static_cast<std::size_t>(tile.width()) + static_cast<std::size_t>(r)]);
          }
        }
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t k = 0; k < keys; ++k)
        base::write(out, b0, h0, out.shape[2] == 1 ? 0 : t0 * kTileRows + r, out.shape[3] == 1 ? 0 : n0 * kKeys + k,
                    scratch.d_bias[r * keys + k]);
  }

  /// Sums up what the sweeps left.
  HeadGradients head_gradients(std::int64_t b, std::int64_t h) const {
    HeadGradients sum;
    for (std::int64_t t = 0; t < tiles_per_head(); ++t) {
      const HeadGradients& part = workspace_.queries[(b * shape_.heads_q + h) * tiles_per_head() + t];
      sum.d_scores += part.d_scores;
      sum.d_log_scale += part.d_log_scale;
      sum.d_q += part.d_q;
    }
    for (std::int64_t n = 0; n < key_blocks() && (call_.grad.d_k.present() || call_.grad.d_v.present()); ++n) {
      const KeySquares& part = workspace_.keys[(b * shape_.heads_kv + h / shape_.group()) * key_blocks() + n];
      sum.d_k += part.d_k;
      sum.d_v += part.d_v;
    }
    if (!call_.grad.d_k.present()) sum.d_k = std::numeric_limits<double>::quiet_NaN();
    if (!call_.grad.d_v.present()) sum.d_v = std::numeric_limits<double>::quiet_NaN();
    return sum;
  }

  std::int64_t bias_task_count() const { return BiasTasks(*this).total(); }

 private:
  static constexpr auto kKeys = static_cast<std::int64_t>(kTileKeys);

  struct KeyBlock {
    std::int64_t key0;
    std::size_t keys;
    Matrix k, v;
    bool k_finite;
  };

  struct BiasTasks {
    std::int64_t batches, heads, tiles, blocks;
    explicit BiasTasks(const Backward& self)
        : batches(self.call_.grad.d_bias.shape[0]),
          heads(self.call_.grad.d_bias.shape[1]),
          tiles(self.call_.grad.d_bias.shape[2] == 1 ? 1 : self.tiles_per_head()),
          blocks(self.call_.grad.d_bias.shape[3] == 1 ? 1 : self.key_blocks()) {}
    std::int64_t per_head() const { return tiles * blocks; }
    std::int64_t per_batch() const { return heads * per_head(); }
    std::int64_t total() const { return batches * per_batch(); }
    // The indices an owner covers on an axis: its own one, or all of them where the axis is summed over.
    struct Range {
      std::int64_t first, last;
    };
    static Range range(std::int64_t own, std::int64_t owners, std::int64_t size) {
      return owners == 1 ? Range{0, size} : Range{own, own + 1};
    }
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

  HWY_NOINLINE void visit(QueryTile& tile, const KeyBlock& block, const Wanted& want, const BackwardScratch& scratch,
                          float* d_k, float* d_v) const {
    if (!tile.lanes->sees_block(block.key0, static_cast<std::int64_t>(block.keys))) return;
    const std::size_t keys = score_gradient(tile, block, scratch);
    if (call_.stats && want.d_q) tile.d_scores += score_squares(tile, scratch.d_s, keys);
    if (want.d_v) add_keys(tile, scratch.s, tile.d_o_rows, keys, shape_.dim_v, d_v);
    if (scratch.slope) apply_slope(keys * static_cast<std::size_t>(tile.width()), scratch);
    if (want.d_k) add_keys(tile, scratch.d_s, tile.q_rows, keys, shape_.dim_qk, d_k);
    if (!want.d_q) return;
    switch (tile.width() / kLanes) {
      case 1: add_queries<1>(tile, block, keys, scratch); break;
      case 2: add_queries<2>(tile, block, keys, scratch); break;
      case 3:
        if constexpr (kMr > 2) add_queries<3>(tile, block, keys, scratch);
        break;
      case 4:
        if constexpr (kMr > 3) add_queries<4>(tile, block, keys, scratch);
        break;
    }
  }

  /// Writes dQ = c·Σ dS·k and leaves the tile's part of dL/dc = Σ q·(Σ dS·k), taken before the scale so that c = 0 is
  /// legal.
  HWY_INLINE void finish_queries(std::int64_t b, std::int64_t h, std::int64_t t, const QueryTile& tile,
                                 const BackwardScratch& scratch) const {
    const auto dim = static_cast<std::size_t>(shape_.dim_qk);
    const Lanes& lanes = *tile.lanes;
    const auto count = static_cast<std::size_t>(lanes.count);
    float* rows = scratch.rows;
    transpose(tile.d_qt, static_cast<std::size_t>(tile.width()), dim, count, rows, dim);
    const std::int64_t index = (b * shape_.heads_q + h) * tiles_per_head() + t;
    if (wants_scale()) workspace_.d_scale[index] = scale_gradient(b, h, t, count, rows);
    if (!call_.grad.d_q.present() && !call_.stats) return;
    const double d_log_scale =
        call_.stats ? query_dot_products(tile, rows) : 0;  // rows still lack c, which q_rows have
    scale_rows(lanes, dim, rows);
    if (call_.stats)
      workspace_.queries[index] = {tile.d_scores, d_log_scale, dot_product(rows, rows, count * dim), 0, 0};
    if (!call_.grad.d_q.present()) return;
    store_tile_rows(call_.grad.d_q, lanes, rows, dim);
  }

  /// Σ over the tile's rows of its scaled queries with rows [count][dim_qk]. Rows of zeros are left out: their queries
  /// may see nothing, and hold anything.
  HWY_INLINE double query_dot_products(const QueryTile& tile, const float* rows) const {
    const auto dim = static_cast<std::size_t>(shape_.dim_qk), stride = static_cast<std::size_t>(padded(shape_.dim_qk));
    double sum = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(tile.lanes->count); ++r)
      if (const float* row = rows + r * dim; std::any_of(row, row + dim, [](float x) { return x != 0; }))
        sum += dot_product(tile.q_rows + r * stride, row, dim);
    return sum;
  }

  /// A tile's part of the gradients of what c is made of; `rows` is Σ dS·k, [count][dim_qk].
  HWY_INLINE ScaleSums scale_gradient(std::int64_t b, std::int64_t h, std::int64_t t, std::size_t count,
                                      const float* rows) const {
    const auto dim = static_cast<std::size_t>(shape_.dim_qk);
    ScaleSums sums{};
    for (std::size_t r = 0; r < count; ++r) {
      const std::int64_t i = t * kTileRows + static_cast<std::int64_t>(r);
      double d_c = 0;
      for (std::size_t d = 0; d < dim; ++d)
        if (const float sum = rows[r * dim + d]; sum != 0)
          d_c += base::read(call_.in.q, b, h, i, static_cast<std::int64_t>(d)) * static_cast<double>(sum);
      const ScaleRow row =
          problem_.scale.by_row() ? base::visible_keys(problem_.mask, shape_, b, i).scale_row() : ScaleRow{};
      const Scale::Slopes slopes = problem_.scale.slopes(h, shape_.dim_qk, row);
      sums.rule += slopes.rule * d_c;
      sums.log_n_gain += slopes.log_n_gain * d_c;
      sums.log_n_offset += slopes.log_n_offset * d_c;
    }
    return sums;
  }

  HWY_INLINE void write_keys(std::int64_t b, std::int64_t kv_head, std::int64_t key0, std::int64_t keys,
                             const BackwardScratch& scratch) const {
    if (call_.stats)
      for (std::int64_t first = 0; first < keys; first += kKeys) {
        const std::int64_t here = std::min(kKeys, keys - first), k_row = padded(shape_.dim_qk),
                           v_row = padded(shape_.dim_v);
        const float *d_k = scratch.d_k + first * k_row, *d_v = scratch.d_v + first * v_row;
        workspace_.keys[(b * shape_.heads_kv + kv_head) * key_blocks() + (key0 + first) / kKeys] = {
            dot_product(d_k, d_k, static_cast<std::size_t>(here * k_row)),
            dot_product(d_v, d_v, static_cast<std::size_t>(here * v_row))};
      }
    for (std::int64_t k = 0; k < keys; ++k) {
      write_key(call_.grad.d_k, b, kv_head, key0 + k, scratch.d_k + k * padded(shape_.dim_qk));
      write_key(call_.grad.d_v, b, kv_head, key0 + k, scratch.d_v + k * padded(shape_.dim_v));
    }
  }

  HWY_INLINE void write_key(const Tensor& t, std::int64_t b, std::int64_t head, std::int64_t key,
                            const float* row) const {
    if (t.present())
      store_row(t.dtype, t.data, base::offset_of(t, b, head, key, 0), t.strides[3],
                static_cast<std::size_t>(t.shape[3]), row);
  }

  const base::BackwardCall& call_;
  const Shape& shape_;
  const Problem& problem_;
  Passes passes_;
  const BackwardWorkspace& workspace_;
};

std::size_t backward_workspace_bytes(const Plan& plan) {
  base::Arena arena;
  BackwardWorkspace::take(arena, plan);
  return arena.used();
}

void backward(const base::BackwardCall& call) {
  const Plan& plan = call.plan;
  const Shape& s = plan.shape;
  base::Arena arena(call.workspace);
  const BackwardWorkspace workspace = BackwardWorkspace::take(arena, plan);
  const Backward kernel(call, workspace);
  const Wanted want = kernel.wanted();
  const std::int64_t tiles = kernel.tiles_per_head(), blocks = kernel.key_blocks();
  const auto scratch = [&](int thread) -> const BackwardScratch& { return workspace.scratch[thread]; };

  parallel_tasks(s.batch * s.heads_q, plan.threads,
                 [&](std::int64_t task, int) { kernel.row_deltas(task / s.heads_q, task % s.heads_q); });
  if (!plan.two_sweeps) {
    parallel_tasks(s.batch * s.heads_kv, plan.threads, [&](std::int64_t task, int thread) {
      kernel.sweep_kv_head(task / s.heads_kv, task % s.heads_kv, scratch(thread));
    });
  } else {
    if (want.d_k || want.d_v)
      parallel_tasks(s.batch * s.heads_kv * blocks, plan.threads, [&](std::int64_t task, int thread) {
        kernel.sweep_key_block(task / blocks / s.heads_kv, task / blocks % s.heads_kv, task % blocks, scratch(thread));
      });
    if (want.d_q)
      parallel_tasks(s.batch * s.heads_q * tiles, plan.threads, [&](std::int64_t task, int thread) {
        kernel.sweep_query_tile(task / tiles / s.heads_q, task / tiles % s.heads_q, tiles - 1 - task % tiles,
                                scratch(thread));
      });
  }
  if (call.grad.d_bias.present())
    parallel_tasks(kernel.bias_task_count(), plan.threads,
                   [&](std::int64_t task, int thread) { kernel.bias_task(task, scratch(thread)); });

  const auto write_scale = [&](std::span<float> out, double ScaleSums::*part) {
    for (std::int64_t h = 0; h < s.heads_q && !out.empty(); ++h) {
      double sum = 0;
      for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t t = 0; t < tiles; ++t) sum += workspace.d_scale[(b * s.heads_q + h) * tiles + t].*part;
      out[static_cast<std::size_t>(h)] = static_cast<float>(sum);
    }
  };
  for (std::int64_t index = 0; index < s.batch * s.heads_q && call.stats; ++index)
    call.stats[index] = kernel.head_gradients(index / s.heads_q, index % s.heads_q);
  write_scale(call.grad.d_scale, &ScaleSums::rule);
  write_scale(call.grad.d_log_n_gain, &ScaleSums::log_n_gain);
  write_scale(call.grad.d_log_n_offset, &ScaleSums::log_n_offset);
  for (std::int64_t h = 0; h < s.heads_q && !call.grad.d_sink.empty(); ++h) {
    double sum = 0;  // dz = −Σ p_sink·D
    const double z = static_cast<double>(plan.problem.sink[static_cast<std::size_t>(h)]);
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t i = 0; i < s.len_q; ++i)
        sum -= std::exp(z - base::read(call.in.lse, b, h, i, 0)) *
               static_cast<double>(workspace.delta[(b * s.heads_q + h) * s.len_q + i]);
    call.grad.d_sink[static_cast<std::size_t>(h)] = static_cast<float>(sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
