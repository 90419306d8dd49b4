// Calls of the quadrature, averages of it over ‖q‖ for a finite d_k, and the soft and frozen limits.
#include "rootdk/theory/gaussian_softmax.h"

#include <cmath>
#include <limits>

#include "theory/query_spread.h"
#include "theory/quadrature.h"
#include "theory/refuse.h"

namespace rootdk::theory {

namespace {

void check(double sigma, double keys) {
  if (!(sigma >= 0 && sigma <= 1e100)) refuse("sigma: {}, but a number from 0 to 1e100 is wanted", sigma);
  if (!(keys >= 2 && keys <= 0x1p53)) refuse("keys: {}, but a number from 2 to 2^53 is wanted", keys);
}

// All scores equal.
GaussianSoftmax uniform(double keys) {
  return {std::log(keys), std::log(keys), 1 / keys, 1 - 1 / keys, (keys - 1) / (keys * keys)};
}

GaussianSoftmax of_one_sigma(double sigma, double keys) { return sigma > 0 ? integrate(sigma, keys) : uniform(keys); }
double p_max_of_one_sigma(double sigma, double keys) { return sigma > 0 ? integrate_p_max(sigma, keys) : 1 / keys; }

}  // namespace

GaussianSoftmax gaussian_softmax(double sigma, double keys) {
  check(sigma, keys);
  return of_one_sigma(sigma, keys);
}

GaussianSoftmax gaussian_softmax(double sigma, double keys, std::int64_t dim_qk) {
  check(sigma, keys);
  want_at_least_1("dim_qk", dim_qk);
  GaussianSoftmax mean;
  for (const auto& [factor, weight] : query_spread(dim_qk)) {
    const GaussianSoftmax one = of_one_sigma(factor * sigma, keys);
    mean.entropy += weight * one.entropy;
    mean.log_z += weight * one.log_z;
    mean.sum_p2 += weight * one.sum_p2;
    mean.trace_j += weight * one.trace_j;
    mean.frobenius_j += weight * one.frobenius_j;
  }
  return mean;
}

double gaussian_p_max(double sigma, double keys) {
  check(sigma, keys);
  return p_max_of_one_sigma(sigma, keys);
}

double gaussian_p_max(double sigma, double keys, std::int64_t dim_qk) {
  check(sigma, keys);
  want_at_least_1("dim_qk", dim_qk);
  double mean = 0;
  for (const auto& [factor, weight] : query_spread(dim_qk)) mean += weight * p_max_of_one_sigma(factor * sigma, keys);
  return mean;
}

RoughSoftmax rough_softmax(double sigma, double keys) {
  check(sigma, keys);
  if (!(sigma > 0)) return {std::log(keys), 1 / keys, 1 / keys};
  const GaussianSoftmax softmax = integrate(sigma, keys, kRoughStep);
  return {softmax.entropy, softmax.sum_p2, integrate_p_max(sigma, keys, kRoughStep)};
}

double rough_p_max(double sigma, double keys, std::int64_t dim_qk) {
  check(sigma, keys);
  want_at_least_1("dim_qk", dim_qk);
  double mean = 0;
  for (const auto& [factor, weight] : rough_query_spread(dim_qk))
    mean += weight * (sigma > 0 ? integrate_p_max(factor * sigma, keys, kRoughStep) : 1 / keys);
  return mean;
}

double critical_sigma(double keys) {
  check(0, keys);
  return std::sqrt(2 * std::log(keys));
}

SoftLimit soft_limit(double sigma, double keys) {
  check(sigma, keys);
  return {std::log(keys) - sigma * sigma / 2, keys * std::exp(-sigma * sigma)};
}

FrozenLimit frozen_limit(double sigma, double keys) {
  check(sigma, keys);
  const double r = critical_sigma(keys) / sigma;
  if (!(r < 1)) refuse("sigma: {}, but more than σ_c = {:.4g} is wanted", sigma, critical_sigma(keys));
  return {1 - r, r, r * (1 - r) / 3};
}

double stein_ratio(const MeasuredRows& rows) {
  const double predicted = rows.score_within_row_variance * (1 - rows.sum_p2);
  return predicted > 0 ? rows.mean_score / predicted : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace rootdk::theory
