// Two projections meet: moments of q·k, and what bounds them.
#include "rootdk/theory/head.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>

#include "theory/matrix.h"
#include "theory/refuse.h"
#include "theory/rotation.h"

namespace rootdk::theory {

namespace {

// One side, as Eigen sees it.
struct Side {
  Matrix covariance, gram;
  Vector mean, offset;
};

Side side_of(const char* name, const Projected& p, std::int64_t dim) {
  const auto size = static_cast<std::size_t>(dim);
  if (p.dim != dim) refuse("{}: dim is {}, but q has {}", name, p.dim, dim);
  if (p.covariance.size() != size * size || p.gram.size() != size * size || p.mean.size() != size ||
      p.offset.size() != size)
    refuse("{}: its arrays do not have the sizes that dim {} asks for", name, dim);
  return {ConstMatrixMap(p.covariance.data(), dim, dim), ConstMatrixMap(p.gram.data(), dim, dim),
          ConstVectorMap(p.mean.data(), dim), ConstVectorMap(p.offset.data(), dim)};
}

void check(const Meeting& meeting, std::int64_t dim) {
  if (!std::isfinite(meeting.scale)) refuse("scale: {} is not finite", meeting.scale);
  want_at_least_1("context", meeting.context);
  const auto pairs = static_cast<std::int64_t>(meeting.rotation.frequencies.size());
  if (2 * pairs > dim) refuse("rotation.frequencies: {} pairs, but dim {} has room for {}", pairs, dim, dim / 2);
  for (const double f : meeting.rotation.frequencies)
    if (!std::isfinite(f)) refuse("rotation.frequencies: {} is not finite", f);
  for (const double d : meeting.distances)
    if (!std::isfinite(d)) refuse("distances: {} is not finite", d);
}

// σ₁(W_qᵀW_k): its square is the largest eigenvalue of W_qW_qᵀ·W_kW_kᵀ, or of LᵀW_kW_kᵀL with LLᵀ = W_qW_qᵀ.
double joint_spectral_norm(const Matrix& gram_q, const Matrix& gram_k) {
  const Eigen::LDLT<Matrix> factor(gram_q);
  Matrix l = factor.matrixL();
  l = factor.transpositionsP().transpose() * l;
  l *= factor.vectorD().cwiseMax(0).cwiseSqrt().asDiagonal();
  const Matrix product = l.transpose() * gram_k * l;
  return std::sqrt(std::max(0.0, largest_eigenvalue(product)));
}

// After QK-norm a rotation mixes gains only within its pairs: |q·k| ≤ d·max over pairs of max|γ_q|·max|γ_k|.
double largest_gain(const Projected& q, const Projected& k, const Rotation& rotation) {
  const Pairs pairs(rotation, q.dim);
  const auto gain = [&](const Projected& p, std::size_t place) {
    return p.norm_gain[static_cast<std::size_t>(pairs.order[place])];
  };
  const std::size_t turning = 2 * rotation.frequencies.size();
  double largest = 0;
  for (std::size_t i = 0; i < turning; i += 2)
    largest = std::max(largest, std::max(gain(q, i), gain(q, i + 1)) * std::max(gain(k, i), gain(k, i + 1)));
  for (std::size_t i = turning; i < static_cast<std::size_t>(q.dim); ++i)
    largest = std::max(largest, gain(q, i) * gain(k, i));
  return largest;
}

// |q·k| cannot exceed it.
std::optional<double> bound(const Projected& q, const Projected& k, const Side& side_q, const Side& side_k,
                            const Rotation& rotation) {
  if (!q.input_bound || !k.input_bound) return {};
  const bool offsets = !side_q.offset.isZero(0) || !side_k.offset.isZero(0), turns = !rotation.frequencies.empty();
  if (!offsets && !turns) return *q.input_bound * *k.input_bound * joint_spectral_norm(side_q.gram, side_k.gram);
  if (!offsets && !q.norm_gain.empty() && !k.norm_gain.empty())
    return static_cast<double>(q.dim) * largest_gain(q, k, rotation);
  const auto longest = [](const Projected& p, const Side& side) {
    return *p.input_bound * spectral_norm(p) + side.offset.norm();
  };
  return longest(q, side_q) * longest(k, side_k);
}

// The keys of one query at many distances: moments of R k, where the distance is random, too.
struct Keys {
  Matrix spread;      // mean of R G Rᵀ
  Matrix covariance;  // of R k
  Vector mean;        // of R k
};

Keys keys_without_rotation(const Side& k) { return {k.covariance, k.covariance, k.mean}; }

Keys keys_over(const Side& k, const Pairs& pairs, const Phases& phases) {
  const Matrix spread = turned(k.covariance, pairs, phases);
  if (k.mean.isZero(0)) return {spread, spread, k.mean};
  const Vector mean = turned(k.mean, pairs, phases);
  // Of the mean vectors: Cov_Δ(R b) = mean of R bbᵀ Rᵀ − (mean of R b)(mean of R b)ᵀ.
  const Matrix of_means = turned(Matrix(k.mean * k.mean.transpose()), pairs, phases) - mean * mean.transpose();
  return {spread, spread + of_means, mean};
}

void set_moments(HeadTheory& out, const Side& q, const Keys& keys, double dim) {
  out.mean = q.mean.dot(keys.mean);
  out.within_row_variance = inner(q.covariance, keys.covariance) + form(keys.covariance, q.mean);
  out.total_variance = out.within_row_variance + form(q.covariance, keys.mean);
  const double unrelated = dim * out.sigma_q * out.sigma_q * out.sigma_k * out.sigma_k;
  out.alignment = unrelated > 0 ? inner(q.covariance, keys.spread) / unrelated : 0;
}

// At each distance, over its keys.
std::vector<AtDistance> curve_over(const Side& q, const Side& k, const Pairs& pairs,
                                   std::span<const double> distances) {
  if (distances.empty()) return {};
  const TurnedInner variance(q.covariance + q.mean * q.mean.transpose(), k.covariance);
  std::vector<AtDistance> curve;
  for (const double distance : distances)
    curve.push_back({distance, q.mean.dot(turned(k.mean, pairs, Phases::at(distance))), variance.at(pairs, distance)});
  return curve;
}

}  // namespace

HeadTheory head_theory(const Projected& q, const Projected& k, const Meeting& meeting) {
  want_at_least_1("q: dim", q.dim);
  const std::int64_t dim = q.dim;
  const auto d = static_cast<double>(dim);
  Side side_q = side_of("q", q, dim), side_k = side_of("k", k, dim);
  check(meeting, dim);

  HeadTheory out;
  out.sigma_q = std::sqrt(side_q.covariance.trace() / d);
  out.sigma_k = std::sqrt(side_k.covariance.trace() / d);
  out.query_mean_norm = side_q.mean.norm();
  out.key_mean_norm = side_k.mean.norm();
  const Matrix product = side_q.covariance * side_k.covariance;  // eigenvalues σᵢ²
  const double fourth = product.cwiseProduct(product.transpose()).sum();
  out.effective_rank = fourth > 0 ? product.trace() * product.trace() / fourth : 0;
  if (const auto largest = bound(q, k, side_q, side_k, meeting.rotation))
    out.bound = *largest * std::fabs(meeting.scale);

  if (meeting.rotation.frequencies.empty()) {
    set_moments(out, side_q, keys_without_rotation(side_k), d);
    const double variance = out.within_row_variance;
    for (const double distance : meeting.distances) out.curve.push_back({distance, out.mean, variance});
  } else {
    const Pairs pairs(meeting.rotation, dim);
    for (Side* side : {&side_q, &side_k}) {
      side->covariance = pairs.arrange(side->covariance);
      side->mean = pairs.arrange(side->mean);
    }
    set_moments(out, side_q, keys_over(side_k, pairs, Phases::over(meeting.context)), d);
    const Keys everywhere = keys_over(side_k, pairs, Phases::all());
    out.phase_average = inner(side_q.covariance, everywhere.spread);
    out.phase_within_row_variance =
        inner(side_q.covariance, everywhere.covariance) + form(everywhere.covariance, side_q.mean);
    out.curve = curve_over(side_q, side_k, pairs, meeting.distances);
  }
  out.divisor = std::sqrt(std::max(0.0, out.within_row_variance));
  out.divisor_over_sqrt_dim = out.divisor / std::sqrt(d);
  out.sigma = out.divisor * std::fabs(meeting.scale);
  return out;
}

}  // namespace rootdk::theory
