// Moments of scores for full statistics: one lane a row, a block of keys at a time.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/arena.h"
#include "base/row_record.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_STATISTICS_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_STATISTICS_MOMENTS_INL_H_
#undef ROOTDK_CPU_STATISTICS_MOMENTS_INL_H_
#else
#define ROOTDK_CPU_STATISTICS_MOMENTS_INL_H_
#endif

#include "cpu/products/wide-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// Over the visible keys so far. Means are relative to `ref`, a number next to the mean: what is added to a mean in
/// f32, the many-thousandth block of a row among them, would otherwise be lost beside it.
struct TileMoments {
  float *count, *ref, *mean, *m2, *min;
  std::int32_t* argmax;

  static TileMoments take(base::Arena& arena) {
    return {arena.take<float>(kTileRows), arena.take<float>(kTileRows), arena.take<float>(kTileRows),
            arena.take<float>(kTileRows), arena.take<float>(kTileRows), arena.take<std::int32_t>(kTileRows)};
  }

  void clear() const {
    for (float* x : {count, ref, mean, m2}) std::fill_n(x, kTileRows, 0.0f);
    std::fill_n(min, kTileRows, std::numeric_limits<float>::infinity());
    std::fill_n(argmax, kTileRows, -1);
  }

  base::RowMoments row(int r) const {
    return {static_cast<double>(ref[r]) + static_cast<double>(mean[r]), static_cast<double>(m2[r]),
            static_cast<double>(min[r]), argmax[r]};
  }
};

/// What a block's scores are best taken relative to: the mean of those before, `first` where there are none.
HWY_INLINE V center_of_moments(const TileMoments& moments, int at, V first) {
  const V center = hn::Add(hn::Load(f32, moments.ref + at), hn::Load(f32, moments.mean + at));
  return hn::IfThenElse(hn::Eq(hn::Load(f32, moments.count + at), hn::Zero(f32)), first, center);
}

/// In which rows the squares of scores relative to `shift` would drown their spread: it is further from the mean than 8
/// standard deviations.
HWY_INLINE auto too_far_for_moments(const TileMoments& moments, int at, V shift) {
  const V off = hn::Sub(hn::Sub(shift, hn::Load(f32, moments.ref + at)), hn::Load(f32, moments.mean + at));
  return hn::Gt(hn::Mul(hn::Mul(off, off), hn::Load(f32, moments.count + at)),
                hn::Mul(hn::Set(f32, 64.0f), hn::Load(f32, moments.m2 + at)));
}

/// Adds a block of n keys with Σ(s − shift) and Σ(s − shift)² to kLanes rows from `at` (Chan, Golub and LeVeque).
HWY_INLINE void add_moments(const TileMoments& moments, int at, V shift, V n, V sum, V squares) {
  const V one = hn::Set(f32, 1.0f);
  const V before = hn::Load(f32, moments.count + at), after = hn::Add(before, n);
  const V ref = hn::IfThenElse(hn::Eq(before, hn::Zero(f32)), shift, hn::Load(f32, moments.ref + at));
  const V block_mean = hn::Div(sum, hn::Max(n, one));
  const V block_m2 = hn::Max(hn::Zero(f32), hn::NegMulAdd(block_mean, sum, squares));
  const V mean = hn::Load(f32, moments.mean + at), delta = hn::Sub(hn::Add(hn::Sub(shift, ref), block_mean), mean);
  const V share = hn::Div(n, hn::Max(after, one));
  const V between = hn::Mul(hn::Mul(delta, delta), hn::Mul(before, share));
  const V moved = hn::MulAdd(delta, share, mean), center = hn::Add(ref, moved);
  hn::Store(after, f32, moments.count + at);
  hn::Store(center, f32, moments.ref + at);
  hn::Store(hn::Sub(moved, hn::Sub(center, ref)), f32, moments.mean + at);
  hn::Store(hn::Add(hn::Load(f32, moments.m2 + at), hn::Add(block_m2, between)), f32, moments.m2 + at);
}

/// Another part of the same row; `later_is_larger`: its maximum is.
HWY_INLINE void merge_moments(const TileMoments& into, const TileMoments& part, int r, bool later_is_larger) {
  into.min[r] = std::min(into.min[r], part.min[r]);
  if (later_is_larger) into.argmax[r] = part.argmax[r];
  if (part.count[r] == 0) return;
  if (into.count[r] == 0) into.ref[r] = part.ref[r];
  const double before = static_cast<double>(into.count[r]), n = static_cast<double>(part.count[r]), after = before + n;
  const double delta = (static_cast<double>(part.ref[r]) - static_cast<double>(into.ref[r])) +
                       static_cast<double>(part.mean[r]) - static_cast<double>(into.mean[r]);
  into.count[r] = static_cast<float>(after);
  into.mean[r] += static_cast<float>(delta * n / after);
  into.m2[r] += static_cast<float>(static_cast<double>(part.m2[r]) + delta * delta * before * n / after);
}

/// The first key of the block with the score `largest`, for rows whose maximum rises to it and is not below `best`.
template <int MR>
HWY_INLINE void find_argmax(const float* s, const TilePlace& place, int m, V largest, V old, float best,
                            std::int32_t* argmax) {
  const auto risen = hn::And(hn::Gt(largest, old), hn::Ge(largest, hn::Set(f32, best)));
  if (hn::AllFalse(f32, risen)) return;
  const hn::RebindToSigned<F> i32;
  auto found = hn::Load(i32, argmax + m * kLanes);
  for (std::size_t k = place.keys; k-- > 0;) {
    const auto here =
        hn::And(risen, hn::Eq(hn::Load(f32, s + (k * MR + static_cast<std::size_t>(m)) * kLanes), largest));
    found = hn::IfThenElse(hn::RebindMask(i32, here),
                           hn::Set(i32, static_cast<std::int32_t>(place.key0 + static_cast<std::int64_t>(k))), found);
  }
  hn::Store(found, i32, argmax + m * kLanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
