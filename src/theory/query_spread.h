// How ‖q‖ spreads over the rows of a head: nodes and weights for averages over σᵢ = σ·‖q‖/√d with q Gaussian.
#pragma once

#include <cstdint>
#include <vector>

namespace rootdk::theory {

struct SpreadNode {
  double factor;  ///< √(χ²_d/d)
  double weight;  ///< they add up to 1
};

/// More `refinement` means a finer lattice.
std::vector<SpreadNode> query_spread(std::int64_t dim_qk, double refinement = 1);

/// Fewer nodes, which tell p_max to 1e-4.
std::vector<SpreadNode> rough_query_spread(std::int64_t dim_qk);

}  // namespace rootdk::theory
