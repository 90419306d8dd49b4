// One projection: the norm folded into the weights, then the moments of what comes out.
#include <algorithm>
#include <cmath>
#include <utility>

#include "rootdk/theory/head.h"
#include "theory/matrix.h"
#include "theory/refuse.h"

namespace rootdk::theory {

namespace {

void check_values(const char* name, std::span<const double> values, std::int64_t wanted) {
  if (!values.empty() && static_cast<std::int64_t>(values.size()) != wanted)
    refuse("{}: {} values, but {} are wanted", name, values.size(), wanted);
  for (const double v : values)
    if (!std::isfinite(v)) refuse("{}: {} is not finite", name, v);
}

void check_norm(const Norm& norm, std::int64_t width) {
  const bool given = !norm.gain.empty() || !norm.bias.empty() || norm.gain_offset != 0;
  if (norm.kind == Norm::Kind::kNone && given) refuse("norm: a gain or bias came, but its kind is none");
  if (norm.kind == Norm::Kind::kLayer && width < 2)
    refuse("norm: LayerNorm over {} component, but at least 2 are wanted", width);
  check_values("norm.gain", norm.gain, width);
  check_values("norm.bias", norm.bias, width);
}

std::vector<double> values_of(const Matrix& m) { return {m.data(), m.data() + m.size()}; }
std::vector<double> values_of(const Vector& v) { return {v.data(), v.data() + v.size()}; }

struct Folded {
  Matrix weight;
  Vector bias;
  std::optional<double> input_bound;
};

// y = W(γ∘z + β) + b = (W diag γ) z + (b + Wβ): the bias first, with the weights as they came.
// LayerNorm leaves z on a sphere of radius √D in the D−1 dimensions without mean, where its covariance is
// D/(D−1)·(I − 11ᵀ/D): folded as well, so that what remains is isotropic, of length at most √(D−1).
Folded fold(Matrix weight, Vector bias, const Norm& norm, bool isotropic) {
  const auto width = static_cast<double>(weight.cols());
  if (!norm.bias.empty()) bias += weight * ConstVectorMap(norm.bias.data(), weight.cols());
  if (!norm.gain.empty())
    weight *= (ConstVectorMap(norm.gain.data(), weight.cols()).array() + norm.gain_offset).matrix().asDiagonal();
  if (norm.kind == Norm::Kind::kNone) return {std::move(weight), std::move(bias), {}};
  if (norm.kind == Norm::Kind::kRms || !isotropic) return {std::move(weight), std::move(bias), std::sqrt(width)};
  const Vector row_means = weight.rowwise().mean();
  weight.colwise() -= row_means;
  weight *= std::sqrt(width / (width - 1));
  return {std::move(weight), std::move(bias), std::sqrt(width - 1)};
}

Projected moments(const Folded& folded, std::span<const double> mean, std::span<const double> covariance) {
  const auto width = folded.weight.cols();
  const Matrix weight_gram = gram(folded.weight);
  Projected out;
  out.dim = folded.weight.rows();
  out.gram = values_of(weight_gram);
  out.offset = values_of(folded.bias);
  out.input_bound = folded.input_bound;
  if (mean.empty()) {
    out.mean = out.offset;
  } else {
    out.mean = values_of(Vector(folded.bias + folded.weight * ConstVectorMap(mean.data(), width)));
  }
  if (covariance.empty()) {
    out.covariance = out.gram;
  } else {
    const Matrix half = folded.weight * ConstMatrixMap(covariance.data(), width, width);
    const Matrix whole = half * folded.weight.transpose();
    out.covariance = values_of(Matrix((whole + whole.transpose()) / 2));
  }
  return out;
}

}  // namespace

Projected project(const Projection& p, std::int64_t dim_qk) {
  want_at_least_1("dim_qk", dim_qk);
  const auto size = static_cast<std::int64_t>(p.weight.size());
  if (size == 0 || size % dim_qk != 0)
    refuse("weight: {} values, but {} rows of equal length are wanted", size, dim_qk);
  const std::int64_t width = size / dim_qk;
  check_values("weight", p.weight, size);
  check_norm(p.norm, width);
  check_values("bias", p.bias, dim_qk);
  check_values("mean", p.mean, width);
  check_values("covariance", p.covariance, width * width);

  Vector bias = Vector::Zero(dim_qk);
  if (!p.bias.empty()) bias = ConstVectorMap(p.bias.data(), dim_qk);
  return moments(fold(ConstMatrixMap(p.weight.data(), dim_qk, width), std::move(bias), p.norm, p.covariance.empty()),
                 p.mean, p.covariance);
}

Projected normalised(const Norm& norm, std::int64_t dim_qk) {
  want_at_least_1("dim_qk", dim_qk);
  if (norm.kind == Norm::Kind::kNone) refuse("norm: its kind is none, but RMS or LayerNorm is wanted");
  check_norm(norm, dim_qk);
  Projected out = moments(fold(Matrix::Identity(dim_qk, dim_qk), Vector::Zero(dim_qk), norm, true), {}, {});
  out.norm_gain.assign(static_cast<std::size_t>(dim_qk), 1.0);
  for (std::size_t i = 0; i < norm.gain.size(); ++i) out.norm_gain[i] = std::fabs(norm.gain[i] + norm.gain_offset);
  return out;
}

double spectral_norm(const Projected& projected) {
  const ConstMatrixMap weight_gram(projected.gram.data(), projected.dim, projected.dim);
  return std::sqrt(std::max(0.0, largest_eigenvalue(weight_gram)));
}

}  // namespace rootdk::theory
