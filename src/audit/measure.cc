// Tokens times a head's rows, QK-norm and rotary included, then moments by a Gram matrix and scores by the engine.
#include "audit/measure.h"

#include <algorithm>
#include <cmath>

#include "audit/gram.h"
#include "audit/turn.h"
#include "rootdk/attention.h"

namespace rootdk::audit {

namespace {

void normalise(const LayerWeights& weights, const NormPlace& norm, std::vector<float>& rows, std::int64_t dim) {
  if (norm.kind == theory::Norm::Kind::kNone) return;
  const std::vector<double>* const gain = norm.gain.empty() ? nullptr : &weights.vector(norm.gain);
  for (std::size_t begin = 0; begin < rows.size(); begin += static_cast<std::size_t>(dim)) {
    double squares = 0;
    for (std::int64_t i = 0; i < dim; ++i)
      squares += std::pow(static_cast<double>(rows[begin + static_cast<std::size_t>(i)]), 2);
    const double factor = squares > 0 ? std::sqrt(static_cast<double>(dim) / squares) : 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      const auto at = static_cast<std::size_t>(i);
      rows[begin + at] =
          static_cast<float>(rows[begin + at] * factor * (gain != nullptr ? (*gain)[at] + norm.gain_offset : 1));
    }
  }
}

}  // namespace

std::vector<float> rows_on(const LayerWeights& weights, Which which, std::int64_t head, const Tokens& tokens) {
  const Part& part = weights.parts(which).front();
  const HeadRows rows = weights.rows_of(part, head);
  std::vector<double> products(static_cast<std::size_t>(tokens.count * rows.rows));
  product(tokens.count, rows.rows, tokens.stride, tokens.values.data(), rows.weight.data(), products.data());
  std::vector<float> out(products.size());
  const auto dim = static_cast<std::size_t>(rows.rows);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(products[i] + rows.bias[i % dim]);
  normalise(weights, weights.qk_norm(which), out, rows.rows);
  const std::size_t turning = 2 * weights.rotary().frequencies.size();
  if (const auto magnitude = static_cast<float>(weights.rotary().magnitude); magnitude != 1)
    for (std::size_t i = 0; i < out.size(); ++i)
      if (i % dim < turning) out[i] *= magnitude;
  return out;
}

theory::Projected moments_of(const std::vector<float>& rows, std::int64_t dim) {
  const std::int64_t count = static_cast<std::int64_t>(rows.size()) / dim, stride = row_stride(count);
  theory::Projected out;
  out.dim = dim;
  out.mean.assign(static_cast<std::size_t>(dim), 0);
  for (std::size_t i = 0; i < rows.size(); ++i)
    out.mean[i % static_cast<std::size_t>(dim)] += static_cast<double>(rows[i]);
  for (double& x : out.mean) x /= static_cast<double>(count);
  out.offset = out.mean;
  std::vector<float> centred(
      static_cast<std::size_t>(dim * stride));  // [dim, count]: a component's values side by side
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t i = 0; i < dim; ++i)
      centred[static_cast<std::size_t>(i * stride + t)] = static_cast<float>(
          static_cast<double>(rows[static_cast<std::size_t>(t * dim + i)]) - out.mean[static_cast<std::size_t>(i)]);
  out.covariance.resize(static_cast<std::size_t>(dim * dim));
  gram(dim, stride, centred.data(), out.covariance.data());
  for (double& x : out.covariance) x /= static_cast<double>(count);
  out.gram = out.covariance;
  return out;
}

LargestScores largest_scores(const Attention& a, std::vector<float> q, std::vector<float> k) {
  const std::int64_t tokens = static_cast<std::int64_t>(q.size()) / a.dim_qk;
  const Extents shape = {1, 1, tokens, a.dim_qk}, narrow = {1, 1, tokens, 1};
  for (std::vector<float>* rows : {&q, &k})
    turn({a.rotary.pairing, a.rotary.frequencies}, 1, tensor(rows->data(), shape));
  std::vector<float> v(static_cast<std::size_t>(tokens)), o(v.size());
  Problem problem;
  problem.scale = Scale::constant(a.scale);
  problem.mask.causal = a.causal;
  problem.stats = StatsLevel::kFull;
  const Stats stats =
      forward(problem, {.q = tensor(q.data(), shape), .k = tensor(k.data(), shape), .v = tensor(v.data(), narrow)},
              {.o = tensor(o.data(), narrow)});
  const HeadStats& head = stats.at(0, 0);
  return {std::max(std::fabs(static_cast<double>(head.raw.max)), std::fabs(static_cast<double>(head.raw.min))),
          static_cast<double>(head.raw.max)};
}

}  // namespace rootdk::audit
