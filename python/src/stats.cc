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
#include "base/head_columns.h"
#include "base/refuse.h"
#include "bindings.h"
#include "rootdk/report/stats_json.h"
#include "rootdk/theory/judge.h"
#include "rootdk/weight_rules.h"

namespace rootdk::python {

namespace {

using base::kGradientColumns;
constexpr auto& kColumns = base::kHeadColumns<std::int64_t>;

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
  for (const auto& c : kColumns)
    if (name == c.name) {
      if (stats.level < c.level) base::refuse("{}: needs stats=\"full\", but these are \"basic\"", name);
      return grid<HeadStats>(stats.per_head, stats.batch, stats.heads, c.whole, c.value);
    }
  base::refuse("{}: no such statistic", name);
}

std::vector<std::string> columns(const Stats& stats) {
  std::vector<std::string> out;
  for (const auto& c : kColumns)
    if (c.level <= stats.level) out.emplace_back(c.name);
  return out;
}

const char* name_of(StatsLevel level) {
  return level == StatsLevel::kNone ? "none" : level == StatsLevel::kBasic ? "basic" : "full";
}

nb::object gradient_column(const GradientStats& stats, const std::string& name) {
  for (const base::GradientColumn& c : kGradientColumns)
    if (name == c.name)
      return grid<HeadGradients>(stats.per_head, stats.batch, stats.heads, false,
                                 [&c](const HeadGradients& h) { return h.*c.value; });
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
    out.per_head[i].causes = {.weight = static_cast<double>(out.per_head[i].row_count),
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
  using Row = std::array<double, std::size(kGradientColumns)>;
  m.def("gradient_stats", [](std::int64_t batch, std::int64_t heads, const std::vector<Row>& rows) {
    GradientStats stats{batch, heads, {}};
    for (const Row& row : rows) {
      HeadGradients& head = stats.per_head.emplace_back();
      for (std::size_t i = 0; i < row.size(); ++i) head.*kGradientColumns[i].value = row[i];
    }
    return stats;
  });
}

}  // namespace rootdk::python
