// Var(q·k) = d·(σq²σk² + μq²σk² + μk²σq²), and what follows from it.
#include "rootdk/theory/dot_product.h"

#include <cmath>

#include "theory/refuse.h"

namespace rootdk::theory {

namespace {

void check(const char* name, const Components& c) {
  if (!std::isfinite(c.mean)) refuse("{}.mean: {} is not finite", name, c.mean);
  if (!(c.variance >= 0 && std::isfinite(c.variance)))
    refuse("{}.variance: {}, but a finite number of at least 0 is wanted", name, c.variance);
}

}  // namespace

double dot_product_variance(std::int64_t dim_qk, const Components& q, const Components& k) {
  want_at_least_1("dim_qk", dim_qk);
  check("q", q);
  check("k", k);
  const double one = q.variance * k.variance + q.mean * q.mean * k.variance + k.mean * k.mean * q.variance;
  return static_cast<double>(dim_qk) * one;
}

double unit_variance_divisor(std::int64_t dim_qk, const Components& q, const Components& k) {
  return std::sqrt(dot_product_variance(dim_qk, q, k));
}

Components projected_components(std::int64_t width, double weight_std) {
  want_at_least_1("width", width);
  want_at_least_0("weight_std", weight_std);
  return {0, static_cast<double>(width) * weight_std * weight_std};
}

SquareTerms square_terms(std::int64_t dim_qk) {
  want_at_least_1("dim_qk", dim_qk);
  if (dim_qk > 1'000'000'000) refuse("dim_qk: {}, but at most 1000000000 is wanted", dim_qk);
  return {dim_qk * dim_qk, dim_qk, dim_qk * (dim_qk - 1)};
}

double population_variance(std::span<const double> values) {
  if (values.empty()) refuse("values: none, but at least 1 is wanted");
  const auto count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double v : values) mean += v / count;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return squares / count;
}

}  // namespace rootdk::theory
