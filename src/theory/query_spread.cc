#include "theory/query_spread.h"

#include <algorithm>
#include <cmath>

namespace rootdk::theory {

// With y = ln(χ²/d) the density is proportional to e^{(d/2)(y − e^y)}, and y = z − e^{−z} makes its left end fall as
// fast as its right one, for d = 1 too (Takahasi & Mori 1974). Then the trapezoidal rule in z, out to where the density
// is 1e-13.
std::vector<SpreadNode> query_spread(std::int64_t dim_qk, double refinement) {
  constexpr double kMode = 0.56714329040978384;  // z = e^{−z}: y = 0
  constexpr double kEnd = 1e-13;
  const double half_d = static_cast<double>(dim_qk) / 2;
  const double step = std::min(0.125, 0.4 / std::sqrt(half_d)) / refinement;

  std::vector<SpreadNode> nodes;
  const auto add = [&](double z) {
    const double y = z - std::exp(-z), density = std::exp(half_d * (y + 1 - std::exp(y))) * (1 + std::exp(-z));
    nodes.push_back({std::exp(y / 2), density});
    return density > kEnd;
  };
  for (int i = 0; add(kMode + i * step);) ++i;
  for (int i = 1; add(kMode - i * step);) ++i;

  double total = 0;
  for (const SpreadNode& node : nodes) total += node.weight;
  for (SpreadNode& node : nodes) node.weight /= total;
  return nodes;
}

}  // namespace rootdk::theory
