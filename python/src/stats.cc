// Statistics: every number as an array [batch, heads].
#include <fmt/format.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "arrays.h"
#include "base/refuse.h"
#include "bindings.h"
#include "rootdk/report/stats_json.h"
#include "rootdk/theory/gaussian_softmax.h"
#include "rootdk/theory/judge.h"
#include "rootdk/weight_rules.h"

namespace rootdk::python {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double share(std::int64_t part, const HeadStats& head) {
  return head.rows_sampled > 0 ? static_cast<double>(part) / static_cast<double>(head.rows_sampled) : kNaN;
}

double sigma(const Spread& spread) {
  return spread.within_degrees > 0 ? std::sqrt(spread.within_row_variance()) : kNaN;
}

double keys(const HeadStats& head) { return std::exp(head.softmax.log_keys); }

double critical(const HeadStats& head) {
  const double n = keys(head);
  return n >= 2 ? theory::critical_sigma(n) : kNaN;
}

struct Column {
  const char* name;
  bool whole;  ///< int64
  StatsLevel level;
  double (*value)(const HeadStats&);
};

constexpr StatsLevel kBasic = StatsLevel::kBasic, kFull = StatsLevel::kFull;

#define SPREAD(where)                                                                                                  \
  {#where "_mean", false, kFull, [](const HeadStats& h) { return h.where.mean; }},                                     \
      {#where "_variance", false, kFull,                                                                               \
       [](const HeadStats& h) { return h.where.pairs > 1 ? h.where.variance() : kNaN; }},                              \
      {#where "_sigma", false, kFull, [](const HeadStats& h) { return sigma(h.where); }},                              \
      {#where "_min", false, kFull, [](const HeadStats& h) { return h.where.min; }},                                   \
      {#where "_pairs", true, kFull, [](const HeadStats& h) { return static_cast<double>(h.where.pairs); }},           \
      {#where "_max_query", true, kFull, [](const HeadStats& h) { return static_cast<double>(h.where.max_query); }}, { \
#where "_max_key", true, kFull, [](const HeadStats& h) { return static_cast<double>(h.where.max_key); }            \
  }

const Column kColumns[] = {
    {"rows", true, kBasic, [](const HeadStats& h) { return static_cast<double>(h.rows); }},
    {"rows_masked", true, kBasic, [](const HeadStats& h) { return static_cast<double>(h.rows_masked); }},
    {"rows_short", true, kBasic, [](const HeadStats& h) { return static_cast<double>(h.rows_short); }},
    {"rows_not_finite", true, kBasic, [](const HeadStats& h) { return static_cast<double>(h.rows_not_finite); }},
    {"rows_counted", true, kBasic, [](const HeadStats& h) { return static_cast<double>(h.rows_counted); }},
    {"raw_max", false, kBasic, [](const HeadStats& h) { return static_cast<double>(h.raw_max); }},
    {"score_max", false, kBasic, [](const HeadStats& h) { return static_cast<double>(h.score_max); }},
    {"mean_p_max", false, kBasic, [](const HeadStats& h) { return h.mean_p_max; }},
    {"mean_lse", false, kBasic, [](const HeadStats& h) { return h.mean_lse; }},
    {"rows_sampled", true, kFull, [](const HeadStats& h) { return static_cast<double>(h.rows_sampled); }},
    SPREAD(raw),
    SPREAD(score),
    {"keys", false, kFull, &keys},
    {"sigma_c", false, kFull, &critical},
    {"sigma_ratio", false, kFull, [](const HeadStats& h) { return sigma(h.score) / critical(h); }},
    {"entropy", false, kFull, [](const HeadStats& h) { return h.softmax.entropy; }},
    {"effective_keys", false, kFull, [](const HeadStats& h) { return h.softmax.effective_keys; }},
    {"sum_p2", false, kFull, [](const HeadStats& h) { return h.softmax.sum_p2; }},
    {"sum_p3", false, kFull, [](const HeadStats& h) { return h.softmax.sum_p3; }},
    {"participation", false, kFull, [](const HeadStats& h) { return h.softmax.participation; }},
    {"trace_j", false, kFull, [](const HeadStats& h) { return h.softmax.trace_j; }},
    {"frobenius_j", false, kFull, [](const HeadStats& h) { return h.softmax.frobenius_j; }},
    {"sink_mass", false, kFull, [](const HeadStats& h) { return h.softmax.sink_mass; }},
    {"log_keys", false, kFull, [](const HeadStats& h) { return h.softmax.log_keys; }},
    {"median_p_max", false, kFull, [](const HeadStats& h) { return h.softmax.p_max_quantile(0.5); }},
    {"median_trace_j", false, kFull, [](const HeadStats& h) { return h.softmax.trace_j_quantile(0.5); }},
    {"median_relative_entropy", false, kFull,
     [](const HeadStats& h) { return h.softmax.relative_entropy.quantile(0.5); }},
    {"share_p_max_over_05", false, kFull, [](const HeadStats& h) { return share(h.softmax.p_max_over[0], h); }},
    {"share_p_max_over_09", false, kFull, [](const HeadStats& h) { return share(h.softmax.p_max_over[1], h); }},
    {"share_p_max_over_099", false, kFull, [](const HeadStats& h) { return share(h.softmax.p_max_over[2], h); }},
    {"share_trace_j_under_001", false, kFull, [](const HeadStats& h) { return share(h.softmax.trace_j_under_001, h); }},
    {"sigma_q", false, kFull, [](const HeadStats& h) { return h.causes.weight > 0 ? h.causes.sigma_q() : kNaN; }},
    {"sigma_k", false, kFull, [](const HeadStats& h) { return h.causes.weight > 0 ? h.causes.sigma_k() : kNaN; }},
    {"key_mean_norm", false, kFull,
     [](const HeadStats& h) { return h.causes.weight > 0 ? h.causes.key_mean_norm() : kNaN; }},
    {"alignment", false, kFull, [](const HeadStats& h) { return h.alignment(); }},
    {"scale", false, kFull,
     [](const HeadStats& h) { return h.causes.weight > 0 ? std::sqrt(h.causes.scale_square) : kNaN; }},
};

template <class Head, class Value>
nb::object grid(std::span<const Head> heads, std::int64_t batch, std::int64_t per_item, bool whole,
                const Value& value) {
  const std::vector<std::size_t> shape = {static_cast<std::size_t>(batch), static_cast<std::size_t>(per_item)};
  if (whole) {
    std::vector<std::int64_t> out;
    for (const Head& head : heads) out.push_back(static_cast<std::int64_t>(value(head)));
    return numpy_array(std::move(out), shape);
  }
  std::vector<double> out;
  for (const Head& head : heads) out.push_back(value(head));
  return numpy_array(std::move(out), shape);
}

nb::object column(const Stats& stats, const std::string& name) {
  for (const Column& c : kColumns)
    if (name == c.name) {
      if (stats.level < c.level) base::refuse("{}: needs stats=\"full\", but these are \"basic\"", name);
      return grid<HeadStats>(stats.per_head, stats.batch, stats.heads, c.whole, c.value);
    }
  base::refuse("{}: no such statistic", name);
}

std::vector<std::string> columns(const Stats& stats) {
  std::vector<std::string> out;
  for (const Column& c : kColumns)
    if (c.level <= stats.level) out.emplace_back(c.name);
  return out;
}

const char* name_of(StatsLevel level) {
  return level == StatsLevel::kNone ? "none" : level == kBasic ? "basic" : "full";
}

nb::object gradient_column(const GradientStats& stats, const std::string& name) {
  static constexpr std::pair<const char*, double HeadGradients::*> kFields[] = {
      {"d_scores", &HeadGradients::d_scores},
      {"d_log_scale", &HeadGradients::d_log_scale},
      {"d_q", &HeadGradients::d_q},
      {"d_k", &HeadGradients::d_k},
      {"d_v", &HeadGradients::d_v}};
  for (const auto& [known, field] : kFields)
    if (name == known)
      return grid<HeadGradients>(stats.per_head, stats.batch, stats.heads, false,
                                 [field](const HeadGradients& h) { return h.*field; });
  base::refuse("{}: no such statistic of gradients", name);
}

/// Of statistics whose scores somebody else computed, or computed from a q that was scaled before: what they came from,
/// per head. One batch item.
Stats with_causes(const Stats& stats, std::int64_t dim, const std::vector<std::array<double, 4>>& per_head) {
  if (stats.batch != 1 || per_head.size() != stats.per_head.size())
    base::refuse("causes: of {} heads, but there are {} in {} batch items", per_head.size(), stats.heads, stats.batch);
  Stats out = stats;
  for (std::size_t i = 0; i < per_head.size(); ++i) {
    const auto& [sigma_q, sigma_k, key_mean_norm, scale] = per_head[i];
    out.per_head[i].causes = {.weight = static_cast<double>(out.per_head[i].rows),
                              .dim = static_cast<double>(dim),
                              .q_square = sigma_q * sigma_q,
                              .k_variance = sigma_k * sigma_k,
                              .key_mean_square = key_mean_norm * key_mean_norm,
                              .scale_square = scale * scale};
  }
  return out;
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64})
    if (name == rootdk::name_of(dtype)) return dtype;
  base::refuse("dtype: {}, but f32, f16, bf16 or f64 is wanted", name);
}

}  // namespace

void bind_stats(nb::module_& m) {
  using nb::arg;
  nb::class_<Stats>(m, "Stats")
      .def_prop_ro("level", [](const Stats& s) { return name_of(s.level); })
      .def_ro("batch", &Stats::batch)
      .def_ro("heads", &Stats::heads)
      .def("column", &column)
      .def("columns", &columns)
      .def("to_json", [](const Stats& s) { return report::to_json(s); })
      .def_static("from_json", [](const std::string& text) { return report::stats_from_json(text); })
      .def("merge", [](const Stats& a, const Stats& b) { return merge(a, b); })
      .def(
          "over_batch", [](const Stats& s) { return over_batch(s); }, nb::call_guard<nb::gil_scoped_release>())
      .def("with_causes", &with_causes)
      .def("max_raw", [](const Stats& s) { return max_raw_of(s); })
      .def("judge", [](const Stats& s, const std::string& dtype, std::int64_t first, std::int64_t count) {
        theory::Setting setting;
        setting.dtype = dtype_named(dtype);
        const auto heads = static_cast<std::int64_t>(s.per_head.size());
        if (first < 0 || count < 0 || first > heads - count) base::refuse("head: {}, but there are {}", first, heads);
        std::vector<theory::Judgement> out;
        {
          const nb::gil_scoped_release release;
          for (std::int64_t i = first; i < first + count; ++i)
            out.push_back(theory::judge(s.per_head[static_cast<std::size_t>(i)], setting));
        }
        return report::to_json(std::span<const theory::Judgement>(out));
      });
  nb::class_<GradientStats>(m, "GradientStats")
      .def_ro("batch", &GradientStats::batch)
      .def_ro("heads", &GradientStats::heads)
      .def("column", &gradient_column)
      .def("to_json", [](const GradientStats& s) { return report::to_json(s); })
      .def_static("from_json", [](const std::string& text) { return report::gradient_stats_from_json(text); })
      .def("merge", [](const GradientStats& a, const GradientStats& b) { return merge(a, b); });
  // What _cuda.py read through the C ABI: a rootdk_stats, which is a Stats by another name and ends here; and rows of
  // rootdk_head_gradients.
  m.def("take_stats", [](std::uintptr_t handle) {
    const std::unique_ptr<Stats> owned(reinterpret_cast<Stats*>(handle));
    return std::move(*owned);
  });
  m.def("gradient_stats", [](std::int64_t batch, std::int64_t heads, const std::vector<std::array<double, 5>>& rows) {
    GradientStats stats{batch, heads, {}};
    for (const auto& [d_scores, d_log_scale, d_q, d_k, d_v] : rows)
      stats.per_head.push_back({d_scores, d_log_scale, d_q, d_k, d_v});
    return stats;
  });
}

}  // namespace rootdk::python
