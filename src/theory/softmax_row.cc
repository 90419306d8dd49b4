// Shift by the maximum, exponentials, sum; then entropy, Σp², tr J and ‖J‖².
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
  const auto top_at = static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  const double top = scores[top_at];
  double others = 0;  // Σ e^{s−m} without the largest, so that L = 1 + others
  for (std::size_t j = 0; j < scores.size(); ++j) {
    row.exponentials.push_back(std::exp(scores[j]));
    row.sum += row.exponentials.back();
    row.probabilities.push_back(std::exp(scores[j] - top));
    if (j != top_at) others += row.probabilities.back();
  }
  const double shifted_sum = 1 + others;
  row.log_z = top + std::log1p(others);
  row.p_max = 1 / shifted_sum;
  double depth = 0;  // Σ p (m − s), so that H = ln L + depth adds two numbers ≥ 0
  for (std::size_t j = 0; j < scores.size(); ++j) {
    double& p = row.probabilities[j];
    p /= shifted_sum;
    row.complements.push_back(j == top_at ? others / shifted_sum : 1 - p);
    depth += p * (top - scores[j]);
    const double on_diagonal = p * row.complements[j];
    row.trace_j += on_diagonal;
    row.frobenius_j +=
        on_diagonal * on_diagonal + 2 * p * p * row.sum_p2;  // and what lies beside it, with the keys so far
    row.sum_p2 += p * p;
  }
  row.mean_score = top - depth;
  row.entropy = std::log1p(others) + depth;
  return row;
}

}  // namespace rootdk::theory
