// What backward works with: tiles of query rows, a thread's own room, and the parts that are summed in order at the
// end.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/arena.h"
#include "base/call.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_BACKWARD_WORKSPACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_BACKWARD_WORKSPACE_INL_H_
#undef ROOTDK_CPU_BACKWARD_WORKSPACE_INL_H_
#else
#define ROOTDK_CPU_BACKWARD_WORKSPACE_INL_H_
#endif

#include "cpu/products/wide-inl.h"
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

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
