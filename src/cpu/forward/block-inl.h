// A tile of rows meets a block of keys: scores, passes, the softmax step, weighted values. Wide where rows fill the
// lanes, narrow where there are few of them.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/call.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_FORWARD_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_FORWARD_BLOCK_INL_H_
#undef ROOTDK_CPU_FORWARD_BLOCK_INL_H_
#else
#define ROOTDK_CPU_FORWARD_BLOCK_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/forward/scratch-inl.h"
#include "cpu/forward/softmax-inl.h"
#include "cpu/forward/state-inl.h"
#include "cpu/passes-inl.h"
#include "cpu/products/bf16_tiles-inl.h"
#include "cpu/products/narrow-inl.h"
#include "cpu/products/wide-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// Rows below the largest score of the task need an argmax too: they are of several heads, or the caller wants them
/// all.
HWY_INLINE bool every_argmax(const base::ForwardCall& call) {
  return call.plan.pack_group || call.out.rows.score_argmax.present() || call.out.rows.raw_argmax.present();
}

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

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
