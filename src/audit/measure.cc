#include "audit/measure.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "audit/turn.h"
#include "rootdk/attention.h"

namespace rootdk::audit {

namespace {

using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstView = Eigen::Map<const FloatMatrix, Eigen::Unaligned, Eigen::OuterStride<>>;

void normalise(const LayerWeights& weights, const NormPlace& norm, std::vector<float>& rows, std::int64_t dim) {
  if (norm.kind == theory::Norm::Kind::kNone) return;
  const std::vector<double>* const gain = norm.gain.empty() ? nullptr : &weights.vector(norm.gain);
  for (std::size_t begin = 0; begin < rows.size(); begin += static_cast<std::size_t>(dim)) {
    double squares = 0;
    for (std::int64_t i = 0; i < dim; ++i) squares += std::pow(static_cast<double>(rows[begin + static_cast<std::size_t>(i)]), 2);
    const double factor = squares > 0 ? std::sqrt(static_cast<double>(dim) / squares) : 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      const auto at = static_cast<std::size_t>(i);
      rows[begin + at] = static_cast<float>(rows[begin + at] * factor * (gain != nullptr ? (*gain)[at] + norm.gain_offset : 1));
    }
  }
}

}  // namespace

std::vector<float> rows_on(const LayerWeights& weights, Which which, std::int64_t head, const Tokens& tokens) {
  const Part& part = weights.parts(which).front();
  const HeadRows rows = weights.rows_of(part, head);
  std::vector<float> out(static_cast<std::size_t>(tokens.count * rows.rows));
  Eigen::Map<FloatMatrix> view(out.data(), tokens.count, rows.rows);
  const ConstView x(tokens.values.data(), tokens.count, tokens.width, Eigen::OuterStride<>(tokens.width));
  const ConstView w(rows.weight.data(), rows.rows, rows.width, Eigen::OuterStride<>(rows.stride));
  view.noalias() = x * w.transpose();
  for (std::int64_t t = 0; t < tokens.count; ++t)
    for (std::int64_t r = 0; r < rows.rows; ++r) view(t, r) += static_cast<float>(rows.bias[static_cast<std::size_t>(r)]);
  normalise(weights, weights.qk_norm(which), out, rows.rows);
  view.leftCols(static_cast<Eigen::Index>(2 * weights.rotary().frequencies.size())) *= static_cast<float>(weights.rotary().magnitude);
  return out;
}

theory::Projected moments_of(const std::vector<float>& rows, std::int64_t dim) {
  using Double = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const std::int64_t count = static_cast<std::int64_t>(rows.size()) / dim;
  Double all = Eigen::Map<const FloatMatrix>(rows.data(), count, dim).cast<double>();
  const Eigen::VectorXd mean = all.colwise().mean();
  all.rowwise() -= mean.transpose();
  const Double covariance = all.transpose() * all / static_cast<double>(count);
  theory::Projected out;
  out.dim = dim;
  out.mean = out.offset = {mean.data(), mean.data() + mean.size()};
  out.covariance = out.gram = {covariance.data(), covariance.data() + covariance.size()};
  return out;
}

LargestScores largest_scores(const Attention& a, std::vector<float> q, std::vector<float> k) {
  const std::int64_t tokens = static_cast<std::int64_t>(q.size()) / a.dim_qk;
  const Extents shape = {1, 1, tokens, a.dim_qk}, narrow = {1, 1, tokens, 1};
  for (std::vector<float>* rows : {&q, &k}) turn({a.rotary.pairing, a.rotary.frequencies}, 1, tensor(rows->data(), shape));
  std::vector<float> v(static_cast<std::size_t>(tokens)), o(v.size());
  Problem problem;
  problem.scale = Scale::constant(a.scale);
  problem.mask.causal = a.causal;
  problem.stats = StatsLevel::kFull;
  const Stats stats = forward(problem, {.q = tensor(q.data(), shape), .k = tensor(k.data(), shape), .v = tensor(v.data(), narrow)}, {.o = tensor(o.data(), narrow)});
  const HeadStats& head = stats.at(0, 0);
  return {std::max(std::fabs(static_cast<double>(head.raw.max)), std::fabs(static_cast<double>(head.raw.min))), static_cast<double>(head.raw.max)};
}

}  // namespace rootdk::audit
