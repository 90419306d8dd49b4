// Variances, σ, quantiles, shares and standard errors, computed from the fields at writing.
#include "report/stats_derived.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "report/json_io.h"

namespace rootdk::report {

namespace {

using nlohmann::ordered_json;

template <class Count>
ordered_json spread(const SpreadOf<Count>& s) {
  return {{"variance", Writer::encoded(s.variance())},
          {"within_row_variance", Writer::encoded(s.within_row_variance())},
          {"sigma", Writer::encoded(std::sqrt(s.within_row_variance()))}};
}

template <class Quantile>
ordered_json quantiles(const Quantile& quantile) {
  ordered_json out = ordered_json::object();
  for (const auto& [name, q] : {std::pair{"5%", 0.05}, {"50%", 0.5}, {"95%", 0.95}})
    out[name] = Writer::encoded(quantile(q));
  return out;
}

ordered_json errors(const HeadStats& head) {
  const StandardErrors e = standard_errors(head);
  ordered_json out = ordered_json::object();
  for (std::size_t i = 0; i < kMeanNames.size(); ++i) out[kMeanNames[i]] = Writer::encoded(e.*SoftmaxMeans::all()[i]);
  out["raw_within_row_variance"] = Writer::encoded(e.raw_variance);
  out["score_within_row_variance"] = Writer::encoded(e.score_variance);
  return out;
}

}  // namespace

template <class Count>
ordered_json derived(const HeadStatsOf<Count>& head) {
  const auto share = [&](Count rows) { return static_cast<double>(rows) / static_cast<double>(head.rows_sampled); };
  ordered_json out = ordered_json::object();
  out["keys"] = Writer::encoded(std::exp(head.softmax.log_keys));
  out["raw"] = spread(head.raw);
  out["score"] = spread(head.score);
  out["relative_entropy"] = quantiles([&](double q) { return head.softmax.relative_entropy.quantile(q); });
  out["p_max"] = quantiles([&](double q) { return head.softmax.p_max_quantile(q); });
  out["trace_j"] = quantiles([&](double q) { return head.softmax.trace_j_quantile(q); });
  out["share_p_max_over_0.99"] = share(head.softmax.p_max_over[2]);
  out["share_trace_j_under_0.01"] = share(head.softmax.trace_j_under_001);
  if (head.causes.weight > 0) {
    out["sigma_q"] = Writer::encoded(head.causes.sigma_q());
    out["sigma_k"] = Writer::encoded(head.causes.sigma_k());
    out["key_mean_norm"] = Writer::encoded(head.causes.key_mean_norm());
    out["alignment"] = Writer::encoded(head.alignment());
  }
  if constexpr (std::is_integral_v<Count>)
    if (head.blocks.seen < head.blocks.all) out["standard_errors"] = errors(head);
  return out;
}

template ordered_json derived(const HeadStatsOf<std::int64_t>&);
template ordered_json derived(const HeadStatsOf<double>&);

}  // namespace rootdk::report
