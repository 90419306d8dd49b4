// The fused forward kernel. A task is a run of query rows; it walks over the key blocks those rows can see:
//
//   S = K·Qᵀ  →  passes (cap, transform, bias, mask)  →  softmax step (moves the maximum)  →  O = O·r + V·P
//
// Several tiles of rows share each block of K and V while it is in cache (and converted to f32). Long key lists with
// few queries are split; parts are merged in order.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/arena.h"
#include "base/call.h"
#include "base/row_state.h"
#include "base/row_tensors.h"
#include "base/softmax_sums.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"

#if defined(ROOTDK_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_FORWARD_INL_H_
#undef ROOTDK_CPU_FORWARD_INL_H_
#else
#define ROOTDK_CPU_FORWARD_INL_H_
#endif

#include "cpu/bf16_tiles-inl.h"
#include "cpu/blocks-inl.h"
#include "cpu/causes-inl.h"
#include "cpu/micro-inl.h"
#include "cpu/moments-inl.h"
#include "cpu/narrow-inl.h"
#include "cpu/passes-inl.h"
#include "cpu/second_pass-inl.h"
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

/// Moves the maximum to `largest` and turns scores into e^{s−m}, in place. `rescale` is what older sums shrink by.
template <int MR>
HWY_INLINE void softmax_step(float* HWY_RESTRICT s, std::size_t keys, const V* largest, const TileState& state,
                             V* rescale) {
  const V log2e = hn::Set(f32, kLog2E);
  V shift[MR], sum[MR];
  ROOTDK_UNROLL for (int m = 0; m < MR; ++m) {
    const V old = hn::Load(f32, state.max + m * kLanes);
    // A row that has seen nothing yet is shifted by 0: −inf − (−inf) would be NaN.
    shift[m] = hn::IfThenElse(hn::Eq(largest[m], minus_infinity()), hn::Zero(f32), largest[m]);
    rescale[m] = exp2(hn::Mul(hn::Sub(old, shift[m]), log2e));
    sum[m] = hn::Mul(hn::Load(f32, state.sum + m * kLanes), rescale[m]);
    hn::Store(largest[m], f32, state.max + m * kLanes);
  }
  for (std::size_t k = 0; k < keys; ++k) {
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) {
      float* at = s + (k * MR + static_cast<std::size_t>(m)) * kLanes;
      const V p = exp2(hn::Mul(hn::Sub(hn::Load(f32, at), shift[m]), log2e));
      hn::Store(p, f32, at);
      sum[m] = hn::Add(sum[m], p);
    }
  }
  ROOTDK_UNROLL for (int m = 0; m < MR; ++m) hn::Store(sum[m], f32, state.sum + m * kLanes);
}

/// The same, and the sums and moments of full statistics. `hidden`: some scores are −inf because their keys are hidden.
template <int MR>
HWY_INLINE void softmax_step_full(float* HWY_RESTRICT s, const TilePlace& place, bool hidden, const V* largest,
                                  const TileState& state, V* rescale, float* best) {
  const V log2e = hn::Set(f32, kLog2E), one = hn::Set(f32, 1.0f);
  for (int m = 0; m < MR; ++m) {
    const int at = m * kLanes;
    const V old = hn::Load(f32, state.max + at), old_sum = hn::Load(f32, state.sum + at);
    const V shift = hn::IfThenElse(hn::Eq(largest[m], minus_infinity()), hn::Zero(f32), largest[m]);
    const V a = exp2(hn::Mul(hn::Sub(old, shift), log2e)), a2 = hn::Mul(a, a);
    find_argmax<MR>(s, place, m, largest[m], old, *best, state.score.argmax);
    V sum = hn::Mul(old_sum, a);  // as softmax_step() adds: the same bits
    V t = hn::Zero(f32), sum2 = t, sum3 = t, x_sum = t, x_squares = t, seen_keys = t;
    V smallest = hn::Load(f32, state.score.min + at);
    const auto rows_too_far =
        too_far_for_moments(state.score, at, shift);  // row by row: neighbours do not change a row's bits
    const bool far = !hn::AllFalse(f32, rows_too_far);
    const V center = hn::IfThenElse(rows_too_far, center_of_moments(state.score, at, shift), shift);
    const auto step = [&](std::size_t k, auto some_hidden, auto centred) HWY_ATTR {
      float* score = s + (k * MR + static_cast<std::size_t>(m)) * kLanes;
      const V value = hn::Load(f32, score);
      V x = hn::Sub(value, shift);
      const V p = exp2(hn::Mul(x, log2e));
      hn::Store(p, f32, score);
      V y = x;  // for the moments
      if constexpr (decltype(centred)::value) y = hn::Sub(value, center);
      if constexpr (decltype(some_hidden)::value) {
        const auto seen = hn::Ne(value, minus_infinity());
        x = hn::IfThenElseZero(seen, x), y = hn::IfThenElseZero(seen, y);
        seen_keys = hn::Add(seen_keys, hn::IfThenElseZero(seen, one));
        smallest = hn::IfThenElse(seen, hn::Min(smallest, value), smallest);
      } else {
        smallest = hn::Min(smallest, value);
      }
      const V p2 = hn::Mul(p, p);
      sum = hn::Add(sum, p);
      t = hn::MulAdd(p, x, t);
      sum2 = hn::Add(sum2, p2);
      sum3 = hn::MulAdd(p2, p, sum3);
      x_sum = hn::Add(x_sum, y);
      x_squares = hn::MulAdd(y, y, x_squares);
    };
    if (hidden)
      for (std::size_t k = 0; k < place.keys; ++k) step(k, std::true_type(), std::true_type());
    else if (far)
      for (std::size_t k = 0; k < place.keys; ++k) step(k, std::false_type(), std::true_type());
    else
      for (std::size_t k = 0; k < place.keys; ++k) step(k, std::false_type(), std::false_type());
    if (!hidden) seen_keys = hn::Set(f32, static_cast<float>(place.keys));

    const V delta = hn::IfThenElseZero(hn::Ne(old, minus_infinity()), hn::Sub(old, shift));
    rescale[m] = a;
    hn::Store(largest[m], f32, state.max + at);
    hn::Store(sum, f32, state.sum + at);
    hn::Store(hn::MulAdd(hn::MulAdd(delta, old_sum, hn::Load(f32, state.t + at)), a, t), f32, state.t + at);
    hn::Store(hn::MulAdd(hn::Load(f32, state.sum2 + at), a2, sum2), f32, state.sum2 + at);
    hn::Store(hn::MulAdd(hn::Load(f32, state.sum3 + at), hn::Mul(a2, a), sum3), f32, state.sum3 + at);
    hn::Store(smallest, f32, state.score.min + at);
    add_moments(state.score, at, center, seen_keys, x_sum, x_squares);
  }
  for (int r = 0; r < place.lanes.count; ++r) *best = std::max(*best, state.max[r]);
}

/// Rows below the largest score of the task need an argmax too: they are of several heads, or the caller wants them
/// all.
HWY_INLINE bool every_argmax(const base::ForwardCall& call) {
  return call.plan.pack_group || call.out.rows.score_argmax.present() || call.out.rows.raw_argmax.present();
}

/// K and V of some keys, ready to use.
struct KeyBlock {
  std::int64_t key0;
  std::size_t keys;
  StoredMatrix k, v;             ///< f32 but for narrow tiles, which read some dtypes as stored, and products of bf16
  bool fresh = true;             ///< no tile has read it yet
  const void* packed = nullptr;  ///< the rows that scratch.packed was made of
  int v_finite = -1;             ///< unknown until a tile that hides keys asks
};

struct ForwardScratch {
  const Bf16Products* bf16;  ///< null: everything is multiplied in f32
  float* qt;  ///< [tiles][dim_qk][width], scaled by c (as load_bf16_queries leaves them for products of bf16)
  Lanes* lanes;
  TileState* states;
  float *s, *additive, *factor, *rows, *k, *v;
  float* turned;                   ///< a narrow tile's scores in the lanes
  float* best;                     ///< largest score that a task has met: rows that stay below it need no argmax
  std::uint16_t *packed, *finite;  ///< V for products of bf16: packed, and without what is not finite

  static ForwardScratch take(base::Arena& arena, const Plan& plan, const Bf16Products* bf16) {
    const Shape& s = plan.shape;
    const std::int64_t tiles = plan.rows_per_task / plan.tile_rows;
    const std::int64_t tile = plan.tile_keys * (plan.narrow ? kLanes : kTileRows);
    ForwardScratch scratch{};
    scratch.bf16 = bf16;
    scratch.qt = arena.take<float>(tiles * s.dim_qk * kTileRows);
    scratch.lanes = arena.take<Lanes>(tiles);
    scratch.states = arena.take<TileState>(tiles);
    for (std::int64_t t = 0; t < tiles && plan.key_splits <= 1; ++t) {  // else they outlive the task, and lie elsewhere
      const TileState state = TileState::take(arena, plan);
      if (scratch.states) scratch.states[t] = state;
    }
    scratch.s = arena.take<float>(tile);
    if (plan.narrow) scratch.turned = arena.take<float>(tile);
    scratch.best = arena.take<float>(1);
    scratch.additive = plan.problem.mask.has_dense_part() ? arena.take<float>(tile) : nullptr;
    scratch.factor = plan.problem.dropout.p > 0 ? arena.take<float>(tile) : nullptr;
    scratch.rows = arena.take<float>(std::max(kTileRows * std::max(s.dim_qk, s.dim_v), tile));
    scratch.k = arena.take<float>(plan.tile_keys * s.dim_qk);
    scratch.v = arena.take<float>(plan.tile_keys * s.dim_v);
    if (bf16) scratch.finite = arena.take<std::uint16_t>(plan.tile_keys * s.dim_v);
    if (bf16 && !plan.narrow)
      scratch.packed = arena.take<std::uint16_t>(static_cast<std::int64_t>(
          bf16->packed_values(static_cast<std::size_t>(plan.tile_keys), static_cast<std::size_t>(s.dim_v))));
    return scratch;
  }
};

/// O = O·rescale + V·P, with P, in scratch.s, rounded to bf16. Guarded as micro-inl.h means it, with the same bits in
/// rows that do not see what is not finite: the product is made without it, then the rows that do see it get it added.
template <int MR>
HWY_INLINE void bf16_accumulate(const ForwardScratch& scratch, std::size_t rows, KeyBlock& block, std::size_t keys,
                                std::size_t dim, Guard guard, const V* rescale, float* o) {
  const Bf16Products& bf16 = *scratch.bf16;
  constexpr std::size_t kWidth = MR * kLanes;
  alignas(64) float shrink[kWidth];
  ROOTDK_UNROLL for (int m = 0; m < MR; ++m) hn::Store(rescale[m], f32, shrink + m * kLanes);
  bf16.pack_weights(scratch.s, kWidth, keys);
  const auto* p = reinterpret_cast<const std::uint32_t*>(scratch.s);
  Bf16Rows v = bf16_rows(block.v);
  if (guard == Guard::kOn) v = finite_part(v, block.keys, dim, scratch.finite);
  if (block.packed != v.data) bf16.pack_values(v, block.keys, dim, scratch.packed), block.packed = v.data;
  bf16.weighted_sum(p, kWidth, {scratch.packed, block.keys}, round_up(keys, bf16.key_step), dim, shrink, o);
  if (guard == Guard::kOn) add_not_finite(p, rows, bf16_rows(block.v), keys, dim, {1, kWidth, 1, kWidth}, o);
}

/// 0·NaN must not leak through a mask, so blocks that hide keys look whether V is finite.
HWY_INLINE Guard guard_for(const Passes& passes, const TilePlace& place, KeyBlock& block, std::size_t dim_v) {
  const bool may_hide = passes.hides_keys() || place.out_of_range_somewhere();
  if (may_hide && block.v_finite < 0) block.v_finite = all_finite(block.v, block.keys, dim_v);
  return may_hide && block.v_finite == 0 ? Guard::kOn : Guard::kOff;
}

/// A block of keys for a narrow tile: everything row-major, s is [row][stride].
HWY_NOINLINE void forward_narrow_block(const base::ForwardCall& call, const Passes& passes, const Lanes& lanes,
                                       const float* q, const TileState& state, KeyBlock& block,
                                       const ForwardScratch& scratch) {
  const Problem& problem = call.plan.problem;
  const auto dim_qk = static_cast<std::size_t>(call.plan.shape.dim_qk),
             dim_v = static_cast<std::size_t>(call.plan.shape.dim_v);
  const std::size_t keys = std::min(block.keys, static_cast<std::size_t>(lanes.last_key - block.key0));
  const auto rows = static_cast<std::size_t>(lanes.count), stride = static_cast<std::size_t>(call.plan.tile_keys);
  const TilePlace place{lanes, block.key0, keys};
  const Bf16Products* bf16 = scratch.bf16;
  float* s = scratch.s;

  if (bf16)
    bf16->narrow_scores({reinterpret_cast<const std::uint16_t*>(q), dim_qk}, rows, bf16_rows(block.k), keys, dim_qk,
                        lanes.scale, s, stride);
  else narrow_scores(q, rows, block.k, keys, dim_qk, s, stride);
  const bool touched = passes.touch(place), full = state.full;
  if (touched || full) to_lanes(s, stride, rows, keys, scratch.turned, kLanes);
  if (touched) {
    const bool stats = call.records || call.out.rows.raw_max.present();
    const RawStats raw{stats ? state.raw_max : nullptr, state.visible, full ? &state.raw : nullptr};
    passes.apply<1>(place, scratch.turned, scratch.additive, scratch.rows, raw, nullptr);
  }
  if (touched) transpose(scratch.turned, kLanes, keys, rows, s, stride);
  if (full) {  // on the copy alone: the output has the same bits without
    const V old_max = hn::Load(f32, state.max), old_sum = hn::Load(f32, state.sum);
    V largest = old_max, unused;
    largest_of<1>(scratch.turned, keys, &largest);
    if (every_argmax(call)) *scratch.best = -std::numeric_limits<float>::infinity();
    softmax_step_full<1>(scratch.turned, place, touched, &largest, state, &unused, scratch.best);
    hn::Store(old_max, f32, state.max);
    hn::Store(old_sum, f32, state.sum);
  }
  alignas(64) float rescale[kLanes];
  for (std::size_t r = 0; r < rows; ++r) rescale[r] = narrow_softmax(s + r * stride, keys, state.max[r], state.sum[r]);
  if (problem.dropout.p > 0) {
    dropout_factors<1>(problem.dropout, place, scratch.factor);
    transpose(scratch.factor, kLanes, keys, rows, scratch.turned, stride);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t k = 0; k < keys; ++k) s[r * stride + k] *= scratch.turned[r * stride + k];
  }

  const Guard guard = guard_for(passes, place, block, dim_v);
  if (!bf16) {
    if (guard == Guard::kOn) narrow_weighted_sum<Guard::kOn>(s, stride, rows, block.v, keys, dim_v, rescale, state.o);
    else narrow_weighted_sum<Guard::kOff>(s, stride, rows, block.v, keys, dim_v, rescale, state.o);
    return;
  }
  for (std::size_t r = 0; r < rows; ++r) bf16->narrow_pack_weights(s + r * stride, keys);
  const auto* p = reinterpret_cast<const std::uint32_t*>(s);
  const Bf16Rows v =
      guard == Guard::kOn ? finite_part(bf16_rows(block.v), block.keys, dim_v, scratch.finite) : bf16_rows(block.v);
  bf16->narrow_sum(p, stride, rows, v, keys, dim_v, rescale, state.o);
  if (guard == Guard::kOn) add_not_finite(p, rows, bf16_rows(block.v), keys, dim_v, {stride, 1, dim_v, 1}, state.o);
}

template <int MR>
HWY_NOINLINE void forward_block(const base::ForwardCall& call, const Passes& passes, const Lanes& lanes,
                                const float* qt, const TileState& state, KeyBlock& block,
                                const ForwardScratch& scratch) {
  const Shape& shape = call.plan.shape;
  const Problem& problem = call.plan.problem;
  // Keys after the last visible one are not computed.
  const std::size_t keys = std::min(block.keys, static_cast<std::size_t>(lanes.last_key - block.key0));
  const TilePlace place{lanes, block.key0, keys};
  float* s = scratch.s;

  V largest[MR];
  ROOTDK_UNROLL for (int m = 0; m < MR; ++m) largest[m] = hn::Load(f32, state.max + m * kLanes);
  const auto dim_qk = static_cast<std::size_t>(shape.dim_qk), dim_v = static_cast<std::size_t>(shape.dim_v);
  if (const Bf16Products* bf16 = scratch.bf16) {
    bf16->scores(reinterpret_cast<const std::uint32_t*>(qt), MR * kLanes, bf16_rows(block.k),
                 round_up(keys, bf16->key_step), dim_qk, lanes.scale, s);
    largest_of<MR>(s, keys, largest);
  } else {  // V comes into the cache meanwhile
    score_product<MR>(qt, static_cast<const float*>(block.k.data), block.k.stride, keys, dim_qk,
                      block.fresh ? rows_of(block.v) : Ahead{}, s, largest);
  }
  const bool full = state.full;
  if (passes.touch(place)) {
    const bool stats = call.records || call.out.rows.raw_max.present();
    const RawStats raw{stats ? state.raw_max : nullptr, state.visible, full ? &state.raw : nullptr};
    passes.apply<MR>(place, s, scratch.additive, scratch.rows, raw, nullptr);
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) largest[m] = hn::Load(f32, state.max + m * kLanes);
    largest_of<MR>(s, keys, largest);
  }

  V rescale[MR];
  if (full) {
    if (every_argmax(call)) *scratch.best = -std::numeric_limits<float>::infinity();
    softmax_step_full<MR>(s, place, passes.touch(place), largest, state, rescale, scratch.best);
  } else {
    softmax_step<MR>(s, keys, largest, state, rescale);
  }
  if (problem.dropout.p > 0) {
    dropout_factors<MR>(problem.dropout, place, scratch.factor);
    multiply(scratch.factor, keys * MR * kLanes, s);
  }

  const Guard guard = guard_for(passes, place, block, dim_v);
  if (scratch.bf16)
    return bf16_accumulate<MR>(scratch, static_cast<std::size_t>(lanes.count), block, keys, dim_v, guard, rescale,
                               state.o);
  const auto* v = static_cast<const float*>(block.v.data);
  const Ahead next = block.fresh ? rows_of(block.k, block.keys) : Ahead{};
  if (guard == Guard::kOn) weighted_sum<MR, Guard::kOn>(s, v, block.v.stride, keys, dim_v, next, state.o, rescale);
  else weighted_sum<MR, Guard::kOff>(s, v, block.v.stride, keys, dim_v, next, state.o, rescale);
}

/// Keys as the plan's tiles read them; products of bf16 may want a multiple of `bf16_step` (0: they are not used).
HWY_INLINE StoredMatrix bring_keys(const Plan& plan, std::size_t bf16_step, const ConstTensor& t, const RowGroup& group,
                                   std::int64_t key0, std::size_t keys, float* scratch) {
  if (bf16_step != 0) return bring_bf16(plan.problem, t, group, key0, keys, bf16_step, scratch);
  if (plan.narrow && narrow_reads(t.dtype)) {
    const StoredMatrix stored = find_keys(plan.problem, t, group.batch, group.kv_head, key0, keys);
    if (stored.data) return stored;
  }
  const Matrix matrix = load_keys(plan.problem, t, group.batch, group.kv_head, key0, keys, scratch);
  return {matrix.data, DType::kF32, matrix.stride};
}

/// Keys [key_from, key_to) for every tile of a task.
HWY_INLINE void walk_keys(const base::ForwardCall& call, const RowGroup& group, std::int64_t key_from,
                          std::int64_t key_to, std::int64_t tiles, const ForwardScratch& scratch) {
  const Shape& shape = call.plan.shape;
  const Problem& problem = call.plan.problem;
  const Passes passes(problem);
  std::int64_t first = key_to, last = key_from;
  for (std::int64_t t = 0; t < tiles; ++t) {
    first = std::min(first, scratch.lanes[t].first_key);
    last = std::max(last, scratch.lanes[t].last_key);
  }
  const std::int64_t tile_keys = call.plan.tile_keys;
  *scratch.best = -std::numeric_limits<float>::infinity();
  first = std::max(first, key_from) / tile_keys * tile_keys;  // the grid of blocks does not depend on who looks
  last = std::min(last, key_to);
  for (std::int64_t key0 = first; key0 < last; key0 += tile_keys) {
    KeyBlock block{key0, static_cast<std::size_t>(std::min(tile_keys, last - key0)), {}, {}};
    bool loaded = false;
    for (std::int64_t t = 0; t < tiles; ++t) {
      const Lanes& lanes = scratch.lanes[t];
      if (!lanes.sees_block(key0, static_cast<std::int64_t>(block.keys))) continue;
      if (!loaded) {
        const std::size_t any = scratch.bf16 ? 1 : 0,
                          step = scratch.bf16 && !call.plan.narrow ? scratch.bf16->key_step : any;
        block.k = bring_keys(call.plan, step, call.in.k, group, key0, block.keys, scratch.k);
        block.v =
            bring_keys(call.plan, any, call.in.v, group, key0, block.keys, scratch.v);  // padded when it is packed
        loaded = true;
      }
      const float* qt = scratch.qt + t * shape.dim_qk * kTileRows;
      if (call.plan.narrow) {
        forward_narrow_block(call, passes, lanes, qt, scratch.states[t], block, scratch);
        continue;
      }
      switch (width_of(lanes.count) / kLanes) {
        case 1: forward_block<1>(call, passes, lanes, qt, scratch.states[t], block, scratch); break;
        case 2: forward_block<2>(call, passes, lanes, qt, scratch.states[t], block, scratch); break;
        case 3:
          if constexpr (kMr > 2) forward_block<3>(call, passes, lanes, qt, scratch.states[t], block, scratch);
          break;
        case 4:
          if constexpr (kMr > 3) forward_block<4>(call, passes, lanes, qt, scratch.states[t], block, scratch);
          break;
      }
      block.fresh = false;
    }
  }
}

/// x [dim][width] times a factor for each lane.
HWY_INLINE void scale_lanes(const float* factor, std::size_t width, std::size_t dim, float* x) {
  for (std::size_t d = 0; d < dim; ++d)
    for (std::size_t m = 0; m < width; m += kLanes)
      hn::Store(hn::Mul(hn::Load(f32, x + d * width + m), hn::Load(f32, factor + m)), f32, x + d * width + m);
}

/// Brings the queries of a tile into the lanes, scaled.
HWY_INLINE void load_queries(const base::ForwardCall& call, const ForwardScratch& scratch, std::int64_t t) {
  const Shape& shape = call.plan.shape;
  const Lanes& lanes = scratch.lanes[t];
  const int count = lanes.count, width = width_of(count);
  const auto dim = static_cast<std::size_t>(shape.dim_qk);
  float* qt = scratch.qt + t * shape.dim_qk * kTileRows;
  if (scratch.bf16) return load_bf16_queries(call.in.q, lanes, call.plan.narrow, scratch.rows, qt);
  if (call.plan.narrow) {
    load_tile_rows(call.in.q, lanes, qt, dim);
    for (int r = 0; r < count; ++r)
      for (std::size_t d = 0; d < dim; ++d) qt[static_cast<std::size_t>(r) * dim + d] *= lanes.scale[r];
    return;
  }
  const auto found = find_tile_rows(call.in.q, lanes);
  if (!found.data) load_tile_rows(call.in.q, lanes, scratch.rows, dim);
  to_lanes(found.data ? found.data : scratch.rows, found.data ? found.stride : dim, static_cast<std::size_t>(count),
           dim, qt, static_cast<std::size_t>(width));
  scale_lanes(lanes.scale, static_cast<std::size_t>(width), dim, qt);
}

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

HWY_INLINE void write_row_value(const Tensor& t, const Lanes& lanes, int r, float value) {
  if (t.present())
    static_cast<float*>(t.data)[base::offset_of(t, lanes.batch, lanes.head[r], lanes.query[r], 0)] = value;
}

HWY_INLINE base::FullRecord full_record(const Problem& problem, const Passes& passes, const Lanes& lanes,
                                        const TileState& state, int r) {
  base::SoftmaxSums sums = state.sums(r);
  double sink_mass = 0;
  if (!problem.sink.empty()) {
    const base::SoftmaxSums sink = base::SoftmaxSums::of(static_cast<double>(problem.sink[lanes.head[r]]));
    sums = merge(sums, sink);
    sink_mass = sink.moved_to(sums.max).sum / sums.sum;
  }
  const base::RowMoments score = state.score.row(r);
  return {
      passes.raw_differs() ? state.raw.row(r) : score, score, sums.entropy(), sums.sum_p2(), sums.sum_p3(), sink_mass};
}

/// Divides by the sum, lets the sink in, writes O, lse and statistics.
HWY_INLINE void finish_tile(const base::ForwardCall& call, const Passes& passes, const Lanes& lanes,
                            const TileState& state, float* rows) {
  const Shape& shape = call.plan.shape;
  const Problem& problem = call.plan.problem;
  const Outputs& out = call.out;
  const auto dim = static_cast<std::size_t>(shape.dim_v);
  const int width = width_of(lanes.count);
  alignas(64) float gain[kMaxTileRows] = {};  // what turns Σ e^{s−m}·v into o; also the largest probability
  alignas(64) float lse[kMaxTileRows] = {};
  for (int r = 0; r < lanes.count; ++r) {
    base::RowState<float> row;
    row.max = state.max[r];
    row.sum = state.sum[r];
    base::SinkResult<float> total{row.lse(), 1};
    if (!problem.sink.empty()) total = base::with_sink(total.lse, problem.sink[lanes.head[r]]);
    lse[r] = total.lse;
    gain[r] = row.p_max(total.share);
  }
  const auto found = find_tile_rows(out.o, lanes);
  const Matrix result = found.data && !call.plan.narrow ? Matrix{found.data, found.stride} : Matrix{rows, dim};
  if (call.plan.narrow) {
    for (int r = 0; r < lanes.count; ++r)
      for (std::size_t d = 0; d < dim; ++d)
        rows[static_cast<std::size_t>(r) * dim + d] = state.o[static_cast<std::size_t>(r) * dim + d] * gain[r];
  } else {
    scale_lanes(gain, static_cast<std::size_t>(width), dim, state.o);
    transpose(state.o, static_cast<std::size_t>(width), dim, static_cast<std::size_t>(lanes.count),
              found.data ? found.data : rows, result.stride);
  }
  if (result.data == rows) store_tile_rows(out.o, lanes, rows, dim);

  for (int r = 0; r < lanes.count; ++r) {
    const float raw_max = passes.raw_differs() ? state.raw_max[r] : state.max[r];
    write_row_value(out.lse, lanes, r, lse[r]);
    write_row_value(out.rows.raw_max, lanes, r, raw_max);
    write_row_value(out.rows.score_max, lanes, r, state.max[r]);
    write_row_value(out.rows.p_max, lanes, r, gain[r]);
    if (!call.records) continue;
    const bool finite = (std::isfinite(lse[r]) || lse[r] == base::RowState<float>::kNothing) &&
                        all_finite(Matrix{result.data + static_cast<std::size_t>(r) * result.stride, dim}, 1, dim);
    const std::int32_t visible =
        passes.hides_keys() ? static_cast<std::int32_t>(state.visible[r]) : lanes.end[r] - lanes.begin[r];
    const std::int64_t index = (lanes.batch * shape.heads_q + lanes.head[r]) * shape.len_q + lanes.query[r];
    const base::RowRecord record = {static_cast<double>(raw_max),
                                    static_cast<double>(state.max[r]),
                                    static_cast<double>(gain[r]),
                                    static_cast<double>(lse[r]),
                                    visible,
                                    finite};
    call.records[index] = record;
    if (!call.full) continue;
    const bool sampled = base::is_sampled(problem.stats_options, lanes.query[r]);
    if (sampled) call.full[index] = full_record(problem, passes, lanes, state, r);
    for (const base::FullRowTensor& t : base::kFullRowTensors)
      if (const Tensor& tensor = out.rows.*t.tensor; tensor.present())
        write_row_value(
            tensor, lanes, r,
            sampled ? static_cast<float>(t.value(record, call.full[index])) : std::numeric_limits<float>::quiet_NaN());
  }
}

/// How a problem falls into tasks: row groups × runs of rows × key splits.
struct ForwardTasks {
  std::int64_t runs_per_group, splits, keys_per_split, tiles_per_run, total;

  explicit ForwardTasks(const Plan& plan) {
    const std::int64_t rows = plan.pack_group ? plan.shape.group() * plan.shape.len_q : plan.shape.len_q;
    runs_per_group = (rows + plan.rows_per_task - 1) / plan.rows_per_task;
    splits = plan.key_splits;
    tiles_per_run = plan.rows_per_task / plan.tile_rows;
    const std::int64_t blocks = (plan.shape.len_kv + plan.tile_keys - 1) / plan.tile_keys;
    keys_per_split = (blocks + splits - 1) / splits * plan.tile_keys;
    total = row_group_count(plan) * runs_per_group;
  }

  std::int64_t state_index(std::int64_t task, std::int64_t split, std::int64_t tile) const {
    return (task * splits + split) * tiles_per_run + tile;
  }
};

/// Finds out which rows a task has; returns how many tiles they fill.
HWY_INLINE std::int64_t seat_rows(const Plan& plan, const ForwardTasks& tasks, const RowGroup& group, std::int64_t task,
                                  const ForwardScratch& scratch) {
  // Under a causal mask later rows see more: longest first keeps the threads level to the end.
  const std::int64_t run = tasks.runs_per_group - 1 - task % tasks.runs_per_group;
  const std::int64_t first_row = run * plan.rows_per_task;
  const std::int64_t rows = std::min(plan.rows_per_task, group.rows - first_row);
  const std::int64_t tiles = (rows + plan.tile_rows - 1) / plan.tile_rows;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const int count = static_cast<int>(std::min(plan.tile_rows, rows - t * plan.tile_rows));
    scratch.lanes[t].fill(plan, group, first_row + t * plan.tile_rows, count, width_of(count));
  }
  return tiles;
}

/// One run of rows over all its keys.
HWY_NOINLINE void forward_task(const base::ForwardCall& call, const ForwardTasks& tasks, std::int64_t task,
                               const ForwardScratch& scratch) {
  const Plan& plan = call.plan;
  const RowGroup group = row_group(plan, task / tasks.runs_per_group);
  const std::int64_t tiles = seat_rows(plan, tasks, group, task, scratch);
  for (std::int64_t t = 0; t < tiles; ++t) {
    load_queries(call, scratch, t);
    scratch.states[t].seat(plan, scratch.lanes[t]);
    scratch.states[t].clear(plan);
  }
  walk_keys(call, group, 0, plan.shape.len_kv, tiles, scratch);
  const Passes passes(plan.problem);
  for (std::int64_t t = 0; t < tiles; ++t) finish_tile(call, passes, scratch.lanes[t], scratch.states[t], scratch.rows);
}

/// The same over one split of the keys, into states that outlive the task: [tasks][splits][tiles] at `states`.
HWY_NOINLINE void forward_split(const base::ForwardCall& call, const ForwardTasks& tasks, std::int64_t task,
                                std::int64_t split, std::byte* states, const ForwardScratch& scratch) {
  const Plan& plan = call.plan;
  const RowGroup group = row_group(plan, task / tasks.runs_per_group);
  const std::int64_t tiles = seat_rows(plan, tasks, group, task, scratch);
  for (std::int64_t t = 0; t < tiles; ++t) {
    load_queries(call, scratch, t);
    scratch.states[t] = TileState::at(states, tasks.state_index(task, split, t), plan);
    scratch.states[t].seat(plan, scratch.lanes[t]);
    scratch.states[t].clear(plan);
  }
  const std::int64_t from = split * tasks.keys_per_split;
  walk_keys(call, group, from, std::min(from + tasks.keys_per_split, plan.shape.len_kv), tiles, scratch);
}

HWY_NOINLINE void merge_splits(const base::ForwardCall& call, const ForwardTasks& tasks, std::int64_t task,
                               std::byte* states, const ForwardScratch& scratch) {
  const Plan& plan = call.plan;
  const std::int64_t tiles = seat_rows(plan, tasks, row_group(plan, task / tasks.runs_per_group), task, scratch);
  for (std::int64_t t = 0; t < tiles; ++t) {
    TileState total = TileState::at(states, tasks.state_index(task, 0, t), plan);
    total.seat(plan, scratch.lanes[t]);
    for (std::int64_t split = 1; split < tasks.splits; ++split)
      merge_states(plan, scratch.lanes[t], total, TileState::at(states, tasks.state_index(task, split, t), plan));
    finish_tile(call, Passes(plan.problem), scratch.lanes[t], total, scratch.rows);
  }
}

struct ForwardWorkspace {
  ForwardScratch* scratch;  ///< one a thread
  CausesScratch* causes;    ///< likewise, where they are wanted
  SecondScratch* second;    ///< likewise
  std::byte* states;        ///< TileState [tasks][splits][tiles], when keys are split

  static ForwardWorkspace take(base::Arena& arena, const Plan& plan, const Bf16Products* bf16) {
    const ForwardTasks tasks(plan);
    ForwardWorkspace workspace{};
    workspace.scratch = arena.take<ForwardScratch>(plan.threads);
    for (int t = 0; t < plan.threads; ++t) {
      const ForwardScratch scratch = ForwardScratch::take(arena, plan, bf16);
      if (workspace.scratch) workspace.scratch[t] = scratch;
    }
    if (wants_causes(plan.problem)) {
      workspace.causes = arena.take<CausesScratch>(plan.threads);
      for (int t = 0; t < plan.threads; ++t) {
        const CausesScratch scratch = CausesScratch::take(arena, plan.shape);
        if (workspace.causes) workspace.causes[t] = scratch;
      }
    }
    if (SecondPass::wanted(plan.problem)) {
      workspace.second = arena.take<SecondScratch>(plan.threads);
      for (int t = 0; t < plan.threads; ++t) {
        const SecondScratch scratch = SecondScratch::take(arena, plan);
        if (workspace.second) workspace.second[t] = scratch;
      }
    }
    if (tasks.splits <= 1) return workspace;
    workspace.states = arena.take<std::byte>(tasks.state_index(tasks.total, 0, 0) * TileState::bytes(plan));
    return workspace;
  }
};

/// The kernel with products of bf16, or in f32 where kProducts() is null.
template <const Bf16Products* (*kProducts)()>
std::size_t forward_workspace_bytes(const Plan& plan) {
  base::Arena arena;
  ForwardWorkspace::take(arena, plan, kProducts());
  return arena.used();
}

template <const Bf16Products* (*kProducts)()>
void forward(const base::ForwardCall& call) {
  const Plan& plan = call.plan;
  const ForwardTasks tasks(plan);
  base::Arena arena(call.workspace);
  const ForwardWorkspace workspace = ForwardWorkspace::take(arena, plan, kProducts());
  const Shape& s = plan.shape;
  if (tasks.splits <= 1) {
    parallel_tasks(tasks.total, plan.threads,
                   [&](std::int64_t task, int thread) { forward_task(call, tasks, task, workspace.scratch[thread]); });
  } else {
    parallel_tasks(tasks.total * tasks.splits, plan.threads, [&](std::int64_t index, int thread) {
      forward_split(call, tasks, index / tasks.splits, index % tasks.splits, workspace.states,
                    workspace.scratch[thread]);
    });
    parallel_tasks(tasks.total, plan.threads, [&](std::int64_t task, int thread) {
      merge_splits(call, tasks, task, workspace.states, workspace.scratch[thread]);
    });
  }
  if (call.causes)
    parallel_tasks(s.batch * s.heads_kv, plan.threads, [&](std::int64_t task, int thread) {
      find_causes(call, task / s.heads_kv, task % s.heads_kv, workspace.causes[thread]);
    });
  if (!SecondPass::wanted(plan.problem)) return;
  const SecondPass second(call);
  const std::int64_t blocks = second.blocks();
  parallel_tasks(s.batch * s.heads_q * blocks, plan.threads, [&](std::int64_t task, int thread) {
    second.look_at(task / blocks / s.heads_q, task / blocks % s.heads_q, task % blocks, workspace.second[thread]);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
