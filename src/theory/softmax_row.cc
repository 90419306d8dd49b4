#include "rootdk/theory/softmax_row.h"

#include <algorithm>
#include <cmath>

#include "theory/refuse.h"

namespace rootdk::theory {

SoftmaxRow softmax_row(std::span<const double> scores) {
  if (scores.empty()) refuse("scores: none, but at least 1 is wanted");
  for (const double s : scores)
    if (!std::isfinite(s)) refuse("scores: {} is not finite", s);

  SoftmaxRow row;
  const double top = *std::max_element(scores.begin(), scores.end());
  double shifted_sum = 0;  // L = Σ e^{s−m}
  for (const double s : scores) {
    row.exponentials.push_back(std::exp(s));
    row.sum += row.exponentials.back();
    row.probabilities.push_back(std::exp(s - top));
    shifted_sum += row.probabilities.back();
  }
  row.log_z = top + std::log(shifted_sum);
  row.p_max = 1 / shifted_sum;
  double depth = 0, sum_p3 = 0;  // depth: Σ p (m − s), so that H = ln L + depth adds two numbers ≥ 0
  for (std::size_t j = 0; j < scores.size(); ++j) {
    double& p = row.probabilities[j];
    p /= shifted_sum;
    depth += p * (top - scores[j]);
    row.sum_p2 += p * p;
    sum_p3 += p * p * p;
    row.trace_jacobian += p * (1 - p);
  }
  row.mean_score = top - depth;
  row.entropy = std::log(shifted_sum) + depth;
  row.jacobian_norm2 = std::max(0.0, row.sum_p2 - 2 * sum_p3 + row.sum_p2 * row.sum_p2);
  return row;
}

}  // namespace rootdk::theory
