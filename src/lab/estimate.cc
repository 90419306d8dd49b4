// Means over batches with Student's t: its quantile is found by bisection on a finite sum.
#include "rootdk/lab/estimate.h"

#include <cmath>
#include <numbers>

#include "base/refuse.h"

namespace rootdk::lab {

using base::refuse;

namespace {

// P(|T| ≤ t), finite sums in θ = atan(t/√ν) (Abramowitz & Stegun 26.7.3 and 26.7.4).
double student_share(int degrees, double t) {
  const double theta = std::atan(t / std::sqrt(static_cast<double>(degrees))), c2 = std::cos(theta) * std::cos(theta);
  const bool odd = degrees % 2 == 1;
  double term = odd ? std::cos(theta) : 1, sum = degrees > 1 ? term : 0;
  for (int i = odd ? 3 : 2; i < degrees; i += 2) sum += term *= c2 * (i - 1) / i;
  return odd ? (theta + std::sin(theta) * sum) * 2 / std::numbers::pi : std::sin(theta) * sum;
}

}  // namespace

double student_bound(int degrees, double share) {
  if (degrees < 1) refuse("degrees: {}, but at least 1 is wanted", degrees);
  if (!(share > 0 && share < 1)) refuse("share: {}, but 0 < share < 1 is wanted", share);
  double low = 0, high = 1;
  while (student_share(degrees, high) < share) high *= 2;
  for (double middle; middle = (low + high) / 2, low < middle && middle < high;)
    (student_share(degrees, middle) < share ? low : high) = middle;
  return high;
}

Estimate estimate(std::span<const double> batches) {
  if (batches.size() < 2)
    refuse("batches: {}, but at least 2 are wanted: their differences are the error", batches.size());
  const auto n = static_cast<double>(batches.size());
  double mean = 0, squares = 0;
  for (const double x : batches) mean += x / n;
  for (const double x : batches) squares += (x - mean) * (x - mean);
  const double error = std::sqrt(squares / (n - 1) / n),
               reach = student_bound(static_cast<int>(batches.size()) - 1) * error;
  return {mean, error, mean - reach, mean + reach};
}

}  // namespace rootdk::lab
