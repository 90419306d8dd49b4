// The sums of a row's online softmax that full statistics need, and what they say once the row is complete.
#pragma once

#include <cmath>
#include <limits>

#include "base/on_both.h"
#include "base/row_record.h"

namespace rootdk::base {

/// Relative to the row's maximum m: Σ e^{s−m} to the powers 1, 2, 3, and T = Σ e^{s−m}(s−m).
struct SoftmaxSums {
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();

  double max = kNothing;
  double sum = 0, t = 0, sum2 = 0, sum3 = 0;

  /// The same sums relative to another maximum.
  ROOTDK_ON_BOTH SoftmaxSums moved_to(double new_max) const {
    if (sum == 0) return {new_max, 0, 0, 0, 0};
    const double delta = max - new_max, a = std::exp(delta);
    return {new_max, a * sum, a * (t + delta * sum), a * a * sum2, a * a * a * sum3};
  }

  ROOTDK_ON_BOTH friend SoftmaxSums merge(const SoftmaxSums& a, const SoftmaxSums& b) {
    const double high = larger(a.max, b.max);
    const SoftmaxSums x = a.moved_to(high), y = b.moved_to(high);
    return {high, x.sum + y.sum, x.t + y.t, x.sum2 + y.sum2, x.sum3 + y.sum3};
  }

  /// One key of score z: how a sink enters.
  ROOTDK_ON_BOTH static SoftmaxSums of(double z) { return {z, 1, 0, 1, 1}; }

  /// H = ln L − T/L: both terms are ≥ 0, so nothing cancels.
  ROOTDK_ON_BOTH double entropy() const { return sum > 0 ? std::log(sum) - t / sum : 0; }
  ROOTDK_ON_BOTH double sum_p2() const { return sum > 0 ? sum2 / (sum * sum) : 0; }
  ROOTDK_ON_BOTH double sum_p3() const { return sum > 0 ? sum3 / (sum * sum * sum) : 0; }
};

/// What full statistics keep of a complete row. A sink, if there is one, is one more key, of which the moments know
/// nothing.
ROOTDK_ON_BOTH inline FullRecord full_record(const RowMoments& raw, const RowMoments& score, SoftmaxSums sums,
                                             const float* sink) {
  FullRecord out = {};
  out.raw = raw, out.score = score;
  if (sink) {
    const SoftmaxSums one = SoftmaxSums::of(static_cast<double>(*sink));
    sums = merge(sums, one);
    out.sink_mass = one.moved_to(sums.max).sum / sums.sum;
  }
  out.entropy = sums.entropy(), out.sum_p2 = sums.sum_p2(), out.sum_p3 = sums.sum_p3();
  return out;
}

}  // namespace rootdk::base
