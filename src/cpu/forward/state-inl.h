// What a tile of rows has seen so far, and how two such parts of the same rows become one.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/arena.h"
#include "base/call.h"
#include "base/softmax_sums.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_FORWARD_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_FORWARD_STATE_INL_H_
#undef ROOTDK_CPU_FORWARD_STATE_INL_H_
#else
#define ROOTDK_CPU_FORWARD_STATE_INL_H_
#endif

#include "cpu/products/wide-inl.h"
#include "cpu/statistics/moments-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// RowState of a tile: one lane a row. Unnormalised output in `o`: [dim_v][width], or [row][dim_v] in a narrow plan.
struct TileState {
  float *max, *sum, *raw_max, *visible, *o;
  float *t = nullptr, *sum2 = nullptr,
        *sum3 = nullptr;             ///< SoftmaxSums; these and the moments at StatsLevel::kFull only
  TileMoments raw = {}, score = {};  ///< raw only where it differs
  bool full = false;                 ///< full statistics look at some row of the tile

  static std::int64_t output_size(const Plan& plan) {
    return plan.shape.dim_v * (plan.narrow ? plan.tile_rows : kTileRows);
  }

  static TileState take(base::Arena& arena, const Plan& plan) {
    TileState state{arena.take<float>(kTileRows), arena.take<float>(kTileRows), arena.take<float>(kTileRows),
                    arena.take<float>(kTileRows), arena.take<float>(output_size(plan))};
    if (plan.problem.stats != StatsLevel::kFull) return state;
    for (float** sums : {&state.t, &state.sum2, &state.sum3}) *sums = arena.take<float>(kTileRows);
    state.raw = TileMoments::take(arena);
    state.score = TileMoments::take(arena);
    return state;
  }

  /// Number `index` of an array of states at `base`.
  static TileState at(std::byte* base, std::int64_t index, const Plan& plan) {
    base::Arena arena(base + index * bytes(plan));
    return take(arena, plan);
  }

  static std::int64_t bytes(const Plan& plan) {
    base::Arena arena;
    take(arena, plan);
    return static_cast<std::int64_t>(arena.used());
  }

  /// To be told who sits in the tile before anything else.
  void seat(const Plan& plan, const Lanes& lanes) {
    full = false;
    for (int r = 0; r < lanes.count && plan.problem.stats == StatsLevel::kFull; ++r)
      full = full || base::is_sampled(plan.problem.stats_options, lanes.query[r]);
  }

  void clear(const Plan& plan) const {
    std::fill_n(max, kTileRows, -std::numeric_limits<float>::infinity());
    std::fill_n(raw_max, kTileRows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, kTileRows, 0.0f);
    std::fill_n(visible, kTileRows, 0.0f);
    std::memset(o, 0, static_cast<std::size_t>(output_size(plan)) * sizeof(float));
    if (!full) return;
    for (float* sums : {t, sum2, sum3}) std::fill_n(sums, kTileRows, 0.0f);
    raw.clear();
    score.clear();
  }

  base::SoftmaxSums sums(int r) const { return {max[r], sum[r], t[r], sum2[r], sum3[r]}; }
};

/// The part of merge_states() that only full statistics have. Runs first: it looks at the old maxima.
HWY_INLINE void merge_full(const Lanes& lanes, const TileState& into, const TileState& part) {
  for (int r = 0; r < lanes.count; ++r) {
    const base::SoftmaxSums sums = merge(into.sums(r), part.sums(r));
    into.t[r] = static_cast<float>(sums.t);
    into.sum2[r] = static_cast<float>(sums.sum2);
    into.sum3[r] = static_cast<float>(sums.sum3);
    merge_moments(into.score, part.score, r, part.max[r] > into.max[r]);
    merge_moments(into.raw, part.raw, r, part.raw_max[r] > into.raw_max[r]);
  }
}

/// Merges another part of the same rows into `into`: RowState's merge, lane by lane.
HWY_INLINE void merge_states(const Plan& plan, const Lanes& lanes, const TileState& into, const TileState& part) {
  const int width = width_of(lanes.count);
  const std::int64_t dim_v = plan.shape.dim_v;
  if (into.full) merge_full(lanes, into, part);
  alignas(64) float shrinks[2][kMaxTileRows];
  for (int m = 0; m < width; m += kLanes) {
    const V a = hn::Load(f32, into.max + m), b = hn::Load(f32, part.max + m);
    const V max = hn::Max(a, b);
    const V shift = hn::IfThenElse(hn::Eq(max, minus_infinity()), hn::Zero(f32), max);
    const V shrink_a = exp(hn::Sub(a, shift)), shrink_b = exp(hn::Sub(b, shift));
    hn::Store(max, f32, into.max + m);
    hn::Store(hn::MulAdd(hn::Load(f32, part.sum + m), shrink_b, hn::Mul(hn::Load(f32, into.sum + m), shrink_a)), f32,
              into.sum + m);
    hn::Store(hn::Max(hn::Load(f32, into.raw_max + m), hn::Load(f32, part.raw_max + m)), f32, into.raw_max + m);
    hn::Store(hn::Add(hn::Load(f32, into.visible + m), hn::Load(f32, part.visible + m)), f32, into.visible + m);
    hn::Store(shrink_a, f32, shrinks[0] + m);
    hn::Store(shrink_b, f32, shrinks[1] + m);
  }
  // o is [dim_v][width], or [row][dim_v]: the shrinking goes along the inner or the outer index.
  const std::int64_t outer = plan.narrow ? lanes.count : dim_v, inner = plan.narrow ? dim_v : width;
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t j = 0; j < inner; j += kLanes) {
      const V shrink_a = plan.narrow ? hn::Set(f32, shrinks[0][i]) : hn::Load(f32, shrinks[0] + j);
      const V shrink_b = plan.narrow ? hn::Set(f32, shrinks[1][i]) : hn::Load(f32, shrinks[1] + j);
      float* at = into.o + i * inner + j;
      hn::Store(hn::MulAdd(hn::Load(f32, part.o + i * inner + j), shrink_b, hn::Mul(hn::Load(f32, at), shrink_a)), f32,
                at);
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
