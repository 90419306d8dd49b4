// The state of one query row after some of its keys: online softmax (Milakov and Gimelshein 2018) as a monoid. Tiles,
// threads, key splits and ranks all combine through merge(), so every statistic that lives here is fused, exact and
// distributed without being written again.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/on_both.h"

namespace rootdk::base {

template <class T>
struct RowState {
  static constexpr T kNothing = -std::numeric_limits<T>::infinity();

  T max = kNothing;          ///< m: largest score so far
  T sum = 0;                 ///< L = Σ e^{s−m}
  T raw_max = kNothing;      ///< largest c·q·k so far
  std::int64_t visible = 0;  ///< keys seen

  /// By how much sums relative to this row's maximum shrink when the maximum becomes `new_max`: e^{m − new_max}.
  ROOTDK_ON_BOTH T rescale_to(T new_max) const { return max == kNothing ? T(0) : std::exp(max - new_max); }

  ROOTDK_ON_BOTH void observe(T raw, T score) {
    const T new_max = larger(max, score);
    if (score != kNothing) sum = sum * rescale_to(new_max) + std::exp(score - new_max);  // NaN makes the sum NaN
    max = new_max;
    raw_max = larger(raw_max, raw);
    ++visible;
  }

  /// Natural log of Σ e^s; −inf for a row that has seen nothing.
  ROOTDK_ON_BOTH T lse() const { return sum > 0 || std::isnan(sum) ? max + std::log(sum) : kNothing; }

  /// Largest probability: e^{s_max − lse} = 1/L, less what a sink takes. (Through lse it would lose every digit of
  /// large scores.)
  ROOTDK_ON_BOTH T p_max(T share_of_keys = 1) const { return sum == 0 ? T(0) : share_of_keys / sum; }

  ROOTDK_ON_BOTH friend RowState merge(const RowState& a, const RowState& b) {
    RowState out;
    out.max = larger(a.max, b.max);
    out.sum = a.sum * a.rescale_to(out.max) + b.sum * b.rescale_to(out.max);
    out.raw_max = larger(a.raw_max, b.raw_max);
    out.visible = a.visible + b.visible;
    return out;
  }
};

/// A sink is one more key of score z and value 0: it enters the sum but not the maxima or counts. With lse0 and o0
/// computed without it, the output becomes share·o0.
template <class T>
struct SinkResult {
  T lse;
  T share;  ///< of the mass that stays with real keys
};

template <class T>
ROOTDK_ON_BOTH SinkResult<T> with_sink(T lse, T z) {
  if (lse == RowState<T>::kNothing) return {z, T(0)};
  if (std::isnan(lse)) return {lse, lse};
  const T high = larger(lse, z);
  const T total = high + std::log1p(std::exp(smaller(lse, z) - high));
  return {total, std::exp(lse - total)};
}

}  // namespace rootdk::base
