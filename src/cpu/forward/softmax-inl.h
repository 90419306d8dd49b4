// The step of online softmax (Milakov and Gimelshein 2018): the maximum moves, older sums shrink with it, scores become
// weights.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "base/constants.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_FORWARD_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_FORWARD_SOFTMAX_INL_H_
#undef ROOTDK_CPU_FORWARD_SOFTMAX_INL_H_
#else
#define ROOTDK_CPU_FORWARD_SOFTMAX_INL_H_
#endif

#include "cpu/forward/state-inl.h"
#include "cpu/statistics/moments-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

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

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
