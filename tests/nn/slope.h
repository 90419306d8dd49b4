// A gradient, checked along a direction in double: the slope that backward gives against differences of the loss.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rootdk/nn/init.h"
#include "rootdk/nn/parameters.h"

namespace rootdk::nn::testing {

inline std::vector<double> normal_doubles(std::size_t count, std::uint64_t stream, double std = 1) {
  std::vector<double> values(count);
  fill(values, Init::normal(std), {}, {2025, stream});
  return values;
}

inline double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// `loss(step)` is the loss so far along the direction in which backward found this slope.
///
/// D(h), the central difference of step h, is off by Ch² + O(h⁴), and D(2h) − D(h) = 3Ch² + O(h⁴): |D(2h) − D(h)|
/// bounds the error of D(h) with a factor 3 in hand. Rounding adds at most e/h, where e bounds the error of the loss. e
/// is measured: over steps so short that the loss is straight, four times the farthest that it lies off the straight
/// line. (A slope that is wrong by x adds 4·8e-12·x/h to the tolerance, which hides nothing.)
template <class Loss>
void expect_slope(const std::string& what, double slope, const Loss& loss) {
  const double h = 1e-4, tiny = 1e-12, here = loss(0.0);
  double rounding = 0;
  for (int i = 1; i <= 8; ++i) rounding = std::max(rounding, 4 * std::fabs(loss(i * tiny) - here - i * tiny * slope));
  const double near = (loss(h) - loss(-h)) / (2 * h), far = (loss(2 * h) - loss(-2 * h)) / (4 * h);
  EXPECT_NEAR(slope, near, std::fabs(far - near) + rounding / h) << what;
  EXPECT_GT(std::fabs(slope), 1000 * (std::fabs(far - near) + rounding / h))
      << what << ": too flat or too curved to tell";
}

/// The same for each of `arrays`, moved by itself; `gradients` has theirs, and `loss()` is the loss of what they hold.
template <class Loss>
void expect_slopes(std::span<const Parameter<double>> arrays, std::span<const Parameter<double>> gradients,
                   const Loss& loss) {
  ASSERT_EQ(arrays.size(), gradients.size());
  for (std::size_t n = 0; n < arrays.size(); ++n) {
    const std::span<double> array = arrays[n].values;
    const std::vector<double> start(array.begin(), array.end()), direction = normal_doubles(array.size(), 1000 + n);
    expect_slope(arrays[n].name, dot(gradients[n].values, direction), [&](double step) {
      for (std::size_t i = 0; i < array.size(); ++i) array[i] = start[i] + step * direction[i];
      const double value = loss();
      std::copy(start.begin(), start.end(), array.begin());
      return value;
    });
  }
}

inline Parameter<double> named(const char* name, std::vector<double>& values) {
  return {name, {static_cast<std::int64_t>(values.size())}, values};
}

}  // namespace rootdk::nn::testing
