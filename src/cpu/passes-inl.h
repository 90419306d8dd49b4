// What can happen to a tile of scores between the two products: small passes over a tile that lies in L1, each called
// only where it is present. Tiles are [key][width]; lanes are query rows.
#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/dropout.h"
#include "base/element.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_PASSES_INL_H_
#undef ROOTDK_CPU_PASSES_INL_H_
#else
#define ROOTDK_CPU_PASSES_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/statistics/moments-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// What is added to each score (bias, ALiBi; −inf where a bias or `allowed` hides the key), gathered into one tile.
/// `rows` is scratch for count × keys floats.
template <int MR>
HWY_INLINE void gather_additive(const Mask& mask, const TilePlace& place, float* rows, float* HWY_RESTRICT out) {
  constexpr std::size_t kWidth = static_cast<std::size_t>(MR) * kLanes;
  const Lanes& lanes = place.lanes;
  const std::size_t keys = place.keys, count = static_cast<std::size_t>(lanes.count);
  if (mask.bias.present() || mask.allowed.present()) {
    for (int r = 0; r < lanes.count; ++r) {
      float* row = rows + static_cast<std::size_t>(r) * keys;
      const std::int64_t h = lanes.head[r], i = lanes.query[r];
      if (mask.bias.present()) {
        const std::int64_t stride = mask.bias.shape[3] == 1 ? 0 : mask.bias.strides[3];
        load_row(mask.bias.dtype, mask.bias.data, base::offset_of(mask.bias, lanes.batch, h, i, place.key0), stride,
                 keys, row);
      } else {
        for (std::size_t k = 0; k < keys; ++k) row[k] = 0;
      }
      if (mask.allowed.present()) {
        const auto* allowed = static_cast<const std::uint8_t*>(mask.allowed.data) +
                              base::offset_of(mask.allowed, lanes.batch, h, i, place.key0);
        const std::int64_t stride = mask.allowed.shape[3] == 1 ? 0 : mask.allowed.strides[3];
        for (std::size_t k = 0; k < keys; ++k)
          if (!allowed[static_cast<std::ptrdiff_t>(k) * stride]) row[k] = -std::numeric_limits<float>::infinity();
      }
    }
    to_lanes(rows, keys, count, keys, out, kWidth);
  } else {
    std::memset(out, 0, keys * kWidth * sizeof(float));
  }
  if (mask.alibi_slopes.empty()) return;
  for (int m = 0; m < MR; ++m) {
    const auto position = hn::Load(I(), lanes.position + m * kLanes);
    const V slope = hn::Load(f32, lanes.slope + m * kLanes);
    for (std::size_t k = 0; k < keys; ++k) {
      const auto key = hn::Set(I(), static_cast<std::int32_t>(place.key0 + static_cast<std::int64_t>(k)));
      const V distance = hn::Abs(hn::ConvertTo(f32, hn::Sub(position, key)));
      float* at = out + k * kWidth + m * kLanes;
      hn::Store(hn::NegMulAdd(slope, distance, hn::Load(f32, at)), f32, at);
    }
  }
}

HWY_INLINE hn::Mask<F> in_range(const Lanes& lanes, int m, std::int64_t key) {
  const auto k = hn::Set(I(), static_cast<std::int32_t>(key));
  const auto from = hn::Load(I(), lanes.begin + m * kLanes), to = hn::Load(I(), lanes.end + m * kLanes);
  return hn::RebindMask(f32, hn::AndNot(hn::Gt(from, k), hn::Gt(to, k)));
}

/// Hides what the structural masks hide.
template <int MR>
HWY_INLINE void hide_out_of_range(const TilePlace& place, float* HWY_RESTRICT s) {
  for (std::size_t k = 0; k < place.keys; ++k)
    for (int m = 0; m < MR; ++m) {
      float* at = s + (k * MR + static_cast<std::size_t>(m)) * kLanes;
      const auto seen = in_range(place.lanes, m, place.key0 + static_cast<std::int64_t>(k));
      hn::Store(hn::IfThenElse(seen, hn::Load(f32, at), minus_infinity()), f32, at);
    }
}

/// s + additive; −inf there hides the key whatever s is.
template <int MR>
HWY_INLINE void add(const float* HWY_RESTRICT additive, std::size_t keys, float* HWY_RESTRICT s) {
  for (std::size_t i = 0; i < keys * MR * kLanes; i += kLanes) {
    const V a = hn::Load(f32, additive + i);
    const V sum = hn::Add(hn::Load(f32, s + i), a);
    hn::Store(hn::IfThenElse(hn::Eq(a, minus_infinity()), a, sum), f32, s + i);
  }
}

/// What is to be learned about raw scores: their maximum and number, and moments at StatsLevel::kFull. Null: nothing.
struct RawStats {
  float *max = nullptr, *visible = nullptr;
  const TileMoments* moments = nullptr;
};

/// Moments of a block's visible raw scores.
template <int MR>
HWY_INLINE void observe_raw_moments(const TilePlace& place, const float* additive, const float* s,
                                    const RawStats& raw) {
  const V one = hn::Set(f32, 1.0f);
  for (int m = 0; m < MR; ++m) {
    const int at = m * kLanes;
    const auto seen_at = [&](std::size_t k) HWY_ATTR {
      auto seen = in_range(place.lanes, m, place.key0 + static_cast<std::int64_t>(k));
      if (additive)
        seen = hn::And(
            seen, hn::Ne(hn::Load(f32, additive + (k * MR + static_cast<std::size_t>(m)) * kLanes), minus_infinity()));
      return seen;
    };
    V largest = minus_infinity();
    const auto value_at = [&](std::size_t k)
                              HWY_ATTR { return hn::Load(f32, s + (k * MR + static_cast<std::size_t>(m)) * kLanes); };
    for (std::size_t k = 0; k < place.keys; ++k)
      largest = hn::Max(largest, hn::IfThenElse(seen_at(k), value_at(k), minus_infinity()));
    const V shift =
        center_of_moments(*raw.moments, at, hn::IfThenElse(hn::Eq(largest, minus_infinity()), hn::Zero(f32), largest));
    const auto risen = hn::Gt(largest, hn::Load(f32, raw.max + at));
    const hn::RebindToSigned<F> i32;
    auto argmax = hn::Load(i32, raw.moments->argmax + at);
    V n = hn::Zero(f32), sum = n, squares = n, smallest = hn::Load(f32, raw.moments->min + at);
    for (std::size_t k = place.keys; k-- > 0;) {
      const auto seen = seen_at(k);
      const V value = value_at(k), x = hn::IfThenElseZero(seen, hn::Sub(value, shift));
      n = hn::Add(n, hn::IfThenElseZero(seen, one));
      sum = hn::Add(sum, x);
      squares = hn::MulAdd(x, x, squares);
      smallest = hn::IfThenElse(seen, hn::Min(smallest, value), smallest);
      const auto here = hn::And(hn::And(risen, seen), hn::Eq(value, largest));
      argmax =
          hn::IfThenElse(hn::RebindMask(i32, here),
                         hn::Set(i32, static_cast<std::int32_t>(place.key0 + static_cast<std::int64_t>(k))), argmax);
    }
    hn::Store(argmax, i32, raw.moments->argmax + at);
    hn::Store(smallest, f32, raw.moments->min + at);
    add_moments(*raw.moments, at, shift, n, sum, squares);
  }
}

/// Largest raw score and number of keys over what will turn out to be visible. Runs before the transforms.
template <int MR>
HWY_INLINE void observe_raw(const TilePlace& place, const float* additive, const float* s, float* raw_max,
                            float* visible) {
  for (int m = 0; m < MR; ++m) {
    V largest = hn::Load(f32, raw_max + m * kLanes), count = hn::Load(f32, visible + m * kLanes);
    for (std::size_t k = 0; k < place.keys; ++k) {
      const std::size_t i = (k * MR + static_cast<std::size_t>(m)) * kLanes;
      auto seen = in_range(place.lanes, m, place.key0 + static_cast<std::int64_t>(k));
      if (additive) seen = hn::And(seen, hn::Ne(hn::Load(f32, additive + i), minus_infinity()));
      largest = hn::Max(largest, hn::IfThenElse(seen, hn::Load(f32, s + i), minus_infinity()));
      count = hn::Add(count, hn::IfThenElseZero(seen, hn::Set(f32, 1.0f)));
    }
    hn::Store(largest, f32, raw_max + m * kLanes);
    hn::Store(count, f32, visible + m * kLanes);
  }
}

/// cap·tanh(s/cap), and its derivative times `slope` if there is one.
HWY_INLINE void soft_cap(float cap, std::size_t n, float* HWY_RESTRICT s, float* HWY_RESTRICT slope) {
  const V c = hn::Set(f32, cap), one = hn::Set(f32, 1.0f);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const V t = tanh(hn::Div(hn::Load(f32, s + i), c));
    hn::Store(hn::Mul(t, c), f32, s + i);
    if (slope) hn::Store(hn::Mul(hn::Load(f32, slope + i), hn::NegMulAdd(t, t, one)), f32, slope + i);
  }
}

/// factor[key][lane] = 1/(1−p) where dropout keeps the probability, else 0. key0 is a multiple of 4.
template <int MR>
HWY_INLINE void dropout_factors(const Dropout& dropout, const TilePlace& place, float* HWY_RESTRICT factor) {
  const auto threshold = hn::Set(U(), base::keep_threshold(dropout));
  const V gain = hn::Set(f32, static_cast<float>(base::keep_gain(dropout)));
  for (std::size_t k = 0; k < place.keys; k += 4)
    for (int m = 0; m < MR; ++m) {
      auto c0 = hn::Set(U(), static_cast<std::uint32_t>((place.key0 + static_cast<std::int64_t>(k)) / 4));
      auto c1 = hn::Load(U(), place.lanes.query + m * kLanes), c2 = hn::Load(U(), place.lanes.head + m * kLanes);
      auto c3 = hn::Set(U(), static_cast<std::uint32_t>(place.lanes.batch));
      philox4x32(c0, c1, c2, c3, static_cast<std::uint32_t>(dropout.seed),
                 static_cast<std::uint32_t>(dropout.seed >> 32));
      const hn::Vec<U> words[4] = {c0, c1, c2, c3};
      for (std::size_t t = 0; t < 4 && k + t < place.keys; ++t) {
        const auto keep = hn::RebindMask(f32, hn::Lt(words[t], threshold));
        hn::Store(hn::IfThenElseZero(keep, gain), f32, factor + ((k + t) * MR + static_cast<std::size_t>(m)) * kLanes);
      }
    }
}

HWY_INLINE void multiply(const float* HWY_RESTRICT factor, std::size_t n, float* HWY_RESTRICT x) {
  for (std::size_t i = 0; i < n; i += kLanes)
    hn::Store(hn::Mul(hn::Load(f32, x + i), hn::Load(f32, factor + i)), f32, x + i);
}

/// The passes of one problem, in the order the mathematics gives: cap, transform, bias, mask.
class Passes {
 public:
  explicit Passes(const Problem& problem)
      : problem_(problem),
        transforms_(problem.soft_cap.has_value() || problem.transform.present()),
        dense_(problem.mask.has_dense_part()),
        raw_differs_(transforms_ || problem.mask.bias.present() || !problem.mask.alibi_slopes.empty()),
        hides_keys_(problem.mask.allowed.present() || problem.mask.bias.present()) {}

  /// Something is to be done to this tile.
  bool touch(const TilePlace& place) const { return transforms_ || dense_ || place.out_of_range_somewhere(); }
  bool raw_differs() const { return raw_differs_; }  ///< raw and score maxima are two different things
  bool hides_keys() const { return hides_keys_; }    ///< beyond the structural masks

  /// `slope`, when given, is multiplied by d score / d raw.
  template <int MR>
  HWY_INLINE void apply(const TilePlace& place, float* s, float* additive, float* rows, const RawStats& raw,
                        float* slope) const {
    const std::size_t n = place.keys * MR * kLanes;
    if (dense_) gather_additive<MR>(problem_.mask, place, rows, additive);
    if (raw.moments && raw_differs_)
      observe_raw_moments<MR>(place, dense_ ? additive : nullptr, s, raw);  // before the maximum moves
    if (raw.max && (raw_differs_ || hides_keys_))
      observe_raw<MR>(place, dense_ ? additive : nullptr, s, raw.max, raw.visible);
    if (problem_.soft_cap) soft_cap(*problem_.soft_cap, n, s, slope);
    if (problem_.transform.present()) {
      if (slope) problem_.transform.chain_f32(problem_.transform.context, s, slope, n);
      else problem_.transform.apply_f32(problem_.transform.context, s, n);
    }
    if (dense_) add<MR>(additive, place.keys, s);
    if (place.out_of_range_somewhere()) hide_out_of_range<MR>(place, s);
  }

 private:
  const Problem& problem_;
  bool transforms_, dense_, raw_differs_, hides_keys_;
};

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
