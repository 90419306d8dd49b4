// Why the square root: the variance of q·k, and the divisor that makes it 1.
#pragma once

#include <cstdint>
#include <span>

#include "rootdk/export.h"

namespace rootdk::theory {

/// The components of a vector: independent, all with this mean and variance.
struct Components {
  double mean = 0;
  double variance = 1;
};

/// Var(q·k) = d(σ_q²σ_k² + μ_q²σ_k² + μ_k²σ_q²) for independent q and k of `dim_qk` components; d for unit variances.
ROOTDK_API double dot_product_variance(std::int64_t dim_qk, const Components& q = {}, const Components& k = {});

/// The c for which q·k / c has variance 1: √d for unit variances.
ROOTDK_API double unit_variance_divisor(std::int64_t dim_qk, const Components& q = {}, const Components& k = {});

/// What independent weights of mean 0 make of `width` inputs of mean 0 and variance 1: variance width·std².
ROOTDK_API Components projected_components(std::int64_t width, double weight_std);

/// (Σ qᵢkᵢ)² written out: dim_qk² products, of which the squares have mean 1 and all others mean 0.
struct SquareTerms {
  std::int64_t all = 0;
  std::int64_t diagonal = 0;
  std::int64_t off_diagonal = 0;
};
ROOTDK_API SquareTerms square_terms(std::int64_t dim_qk);

/// Mean squared distance from the mean: divided by the count, not by one less.
ROOTDK_API double population_variance(std::span<const double> values);

}  // namespace rootdk::theory
