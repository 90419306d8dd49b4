// `rootdk gradient`: gradients at the scores, Q and K by rule and d_k, and rules compared at the largest d_k.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/experiments.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"

namespace rootdk::report {

namespace {

// dS = p·(dP − dO·O): where p is all but 1 the two cancel, and what is left is a few units of 2⁻²⁴ of numbers of
// size 1.
constexpr double kRoundingOfBackward = 1e-6;

Json json_of(const lab::GradientRows& rows) {
  const lab::Quantiles& q = rows.length;
  return {{"mean_square", report::json_of(rows.mean_square)},
          {"mean", rows.mean},
          {"quantiles",
           {{"0.01", q.p1},
            {"0.05", q.p5},
            {"0.25", q.p25},
            {"0.5", q.median},
            {"0.75", q.p75},
            {"0.95", q.p95},
            {"0.99", q.p99}}}};
}

const lab::GradientPoint* find(const lab::Gradient& gradient, std::string_view rule, std::int64_t dk) {
  for (const lab::GradientPoint& p : gradient.points)
    if (p.rule == rule && p.dk == dk) return &p;
  return nullptr;
}

}  // namespace

Json json_of(const lab::Gradient& gradient) {
  const lab::GradientOptions& o = gradient.options;
  Json out{
      {"experiment", "gradient"}, {"seed", o.seed}, {"keys", o.keys}, {"queries", o.queries}, {"batches", o.batches}};
  out["points"] = Json::array();
  for (const lab::GradientPoint& p : gradient.points) {
    Json scores = json_of(p.scores);
    scores["mean_square"]["theory"] = p.scores_theory;
    Json trace = report::json_of(p.trace_j);
    trace["theory"] = p.trace_theory;
    trace["median"] = p.trace_median;
    out["points"].push_back({{"rule", p.rule},
                             {"dk", p.dk},
                             {"factor", p.factor},
                             {"scores", std::move(scores)},
                             {"queries", json_of(p.queries)},
                             {"keys", json_of(p.keys)},
                             {"trace_j", std::move(trace)},
                             {"share_trace_j_under_1pct", p.share_trace_j_under_1pct}});
  }
  out["complete"] = gradient.complete;
  out["conclusion"] = conclusion_of(gradient);
  return out;
}

std::string conclusion_of(const lab::Gradient& gradient) {
  if (gradient.points.empty()) return "Nothing was finished.";
  const std::int64_t dk = gradient.points.back().dk;
  const lab::GradientPoint *none = find(gradient, "none", dk), *root = find(gradient, "sqrt_dk", dk),
                           *by_dk = find(gradient, "dk", dk);
  std::string out;
  if (none && root) {
    const double median = none->scores.length.median / root->scores.length.median;
    const double mean_square = none->scores.mean_square.value / root->scores.mean_square.value;
    out += fmt::format("Unscaled, the median row of scores receives a gradient {} than under 1/√d_k (at d_k = {}), {} "
                       "{} in mean square; {} "
                       "of rows have tr J below 0.01, under 1/√d_k {}.",
                       compared(none->scores.length.median, root->scores.length.median, "larger", "smaller"), dk,
                       (median < 1) == (mean_square < 1) ? "and" : "though",
                       compared(none->scores.mean_square.value, root->scores.mean_square.value, "larger", "smaller"),
                       percent(none->share_trace_j_under_1pct), percent(root->share_trace_j_under_1pct));
  }
  if (by_dk && root)
    out += fmt::format("{}Dividing by d_k brings Q a gradient {} than 1/√d_k does{}.", out.empty() ? "" : " ",
                       compared(by_dk->queries.length.median, root->queries.length.median, "larger in the median row",
                                "smaller in the median row"),
                       out.empty() ? fmt::format(" (at d_k = {})", dk) : "");
  if (!out.empty()) return out;
  const auto [least, most] =
      std::minmax_element(gradient.points.begin(), gradient.points.end(),
                          [](const auto& a, const auto& b) { return a.scores.length.median < b.scores.length.median; });
  return fmt::format(
      "The median row of scores receives least under {} at d_k = {} ({}) and most under {} at d_k = {} ({}).",
      spoken(least->rule), least->dk, number(least->scores.length.median), spoken(most->rule), most->dk,
      number(most->scores.length.median));
}

std::string text_of(const lab::Gradient& gradient, const Layout& layout) {
  const lab::GradientOptions& o = gradient.options;
  std::string out = layout.wrap(fmt::format(
      "Backward from a random gradient, {} × {} queries, {} keys: lengths of the rows that arrive at the scores (dS), "
      "at Q and at K. Mean ‖dS‖² and what theory says it is, E‖J‖²; quantiles of ‖dS‖; rows with tr J below 0.01; "
      "medians of ‖dQ‖ and ‖dK‖.",
      o.batches, o.queries, whole(o.keys)));
  out += "\n";
  Table table({{"d_k", Table::Align::kRight, Table::Place::kKey},
               {"rule", Table::Align::kLeft, Table::Place::kKey},
               {"‖dS‖²"},
               {"E‖J‖²"},
               {"1 %"},
               {"50 %"},
               {"99 %"},
               {"trJ<.01"},
               {"‖dQ‖"},
               {"‖dK‖"}});
  std::int64_t last = 0;
  for (const lab::GradientPoint& p : gradient.points) {
    if (last != 0 && p.dk != last) table.gap();
    table.add({p.dk == last ? "" : fmt::format("{}", p.dk), p.rule, number(p.scores.mean_square.value, 2),
               number(p.scores_theory, 2), number(p.scores.length.p1, 2), number(p.scores.length.median, 2),
               number(p.scores.length.p99, 2), percent(p.share_trace_j_under_1pct), number(p.queries.length.median, 2),
               number(p.keys.length.median, 2)});
    last = p.dk;
  }
  out += table.text(layout.columns);
  const auto in_the_noise = [](const lab::GradientPoint& p) { return p.scores.length.p1 < kRoundingOfBackward; };
  if (std::any_of(gradient.points.begin(), gradient.points.end(), in_the_noise))
    out += layout.wrap(
        fmt::format("Below about {} lengths are the rounding of an f32 backward pass.", number(kRoundingOfBackward, 1)),
        "  ");
  return out + unfinished(gradient.complete, layout) + "\n" + layout.wrap(conclusion_of(gradient));
}

}  // namespace rootdk::report
