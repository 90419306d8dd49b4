// From statistics, or from weights, to what a judgement looks at.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "rootdk/theory/judge.h"
#include "theory/refuse.h"

namespace rootdk::theory {

namespace {

constexpr double kUnknown = Evidence::kUnknown;

double known_or(double value, double otherwise) { return std::isnan(value) ? otherwise : value; }

double larger_magnitude(double a, double b) { return std::fmax(std::fabs(a), std::fabs(b)); }  // NaN is nothing

// Mean over rows of Σ p s − s̄: the first part is LSE − H where no sink took any. The mean of rows' means is the mean
// over pairs only if all rows see as many keys, and that is if their geometric mean is their arithmetic one.
template <class Count>
double mean_score_of(const HeadStatsOf<Count>& head, double keys) {
  const auto counted = static_cast<double>(head.rows_counted), sampled = static_cast<double>(head.rows_sampled);
  const auto pairs = static_cast<double>(head.score.pairs);
  const auto same = [](double a, double b) {
    return std::fabs(a - b) <= 1e-9 * b;
  };  // logarithms, means: sums of roundings
  if (!same(counted, sampled) || !same(keys * sampled, pairs) || head.softmax.sink_mass != 0) return kUnknown;
  return head.mean_lse - head.softmax.entropy - head.score.mean;
}

}  // namespace

template <class Count>
Evidence evidence_of(const HeadStatsOf<Count>& head, const Setting& setting) {
  Evidence e;
  e.dtype = setting.dtype;
  e.expected_sigma = setting.expected_sigma;
  e.rows = static_cast<double>(head.rows_counted);
  e.not_finite =
      head.row_count > 0 ? static_cast<double>(head.rows_not_finite) / static_cast<double>(head.row_count) : 0;
  e.mean_p_max = head.rows_counted > 0 ? head.mean_p_max : kUnknown;
  if (head.raw_max > -std::numeric_limits<float>::infinity()) e.raw_max = std::fabs(static_cast<double>(head.raw_max));
  const auto& causes = head.causes;
  const bool has_causes = causes.weight > 0;
  e.dim_qk = known_or(setting.dim_qk, has_causes ? causes.dim : kUnknown);
  e.scale = known_or(std::fabs(setting.scale), has_causes ? std::sqrt(causes.scale_square) : kUnknown);
  if (has_causes) {
    e.sigma_q = causes.sigma_q();
    e.sigma_k = causes.sigma_k();
    e.key_mean_norm = causes.key_mean_norm();
    e.alignment = head.alignment();
  }
  if (!(head.rows_sampled > 0)) return e;

  e.keys = std::max(2.0, std::exp(head.softmax.log_keys));  // e^{ln 2} may fall short of 2
  e.sigma = std::sqrt(head.score.within_row_variance());
  e.raw_sigma = std::sqrt(head.raw.within_row_variance());
  e.raw_max = larger_magnitude(larger_magnitude(head.raw.max, head.raw.min), e.raw_max);
  e.entropy = head.softmax.entropy;
  e.sum_p2 = head.softmax.sum_p2;
  e.sink = head.softmax.sink_mass;
  e.mean_score = mean_score_of(head, e.keys);
  e.median_p_max = head.softmax.p_max_quantile(0.5);
  return e;
}

template ROOTDK_API Evidence evidence_of(const HeadStatsOf<std::int64_t>&, const Setting&);
template ROOTDK_API Evidence evidence_of(const HeadStatsOf<double>&, const Setting&);

Evidence evidence_of(const HeadTheory& head, double keys, double dim_qk, double scale) {
  Evidence e;
  e.ground = Ground::kWeights;
  e.keys = keys;
  e.sigma = e.raw_sigma = head.sigma;
  e.dim_qk = dim_qk;
  e.scale = std::fabs(scale);
  // Statistics take q's mean square, not its variance about the mean.
  e.sigma_q = std::sqrt(head.sigma_q * head.sigma_q + head.query_mean_norm * head.query_mean_norm / dim_qk);
  e.sigma_k = head.sigma_k;
  e.key_mean_norm = head.key_mean_norm;
  const double independent = dim_qk * e.sigma_q * e.sigma_q * e.sigma_k * e.sigma_k;
  e.alignment = independent > 0 ? head.within_row_variance / independent : kUnknown;
  return e;
}

}  // namespace rootdk::theory
