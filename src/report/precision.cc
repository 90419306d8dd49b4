// `rootdk precision`: what each dtype keeps under each rule; what f64 shows, too, is not rounding.
#include <fmt/format.h>

#include <cmath>

#include "report/experiments.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"

namespace rootdk::report {

namespace {

constexpr double kUnmoved = 0.01;  // of a largest weight

const lab::PrecisionPoint* find(const lab::Precision& precision, std::string_view rule, DType dtype, std::int64_t dk,
                                double gain) {
  for (const lab::PrecisionPoint& p : precision.points)
    if (p.rule == rule && p.dtype == dtype && p.dk == dk && p.gain == gain) return &p;
  return nullptr;
}

}  // namespace

Json json_of(const lab::Precision& precision) {
  const lab::PrecisionOptions& o = precision.options;
  Json out{{"experiment", "precision"}, {"seed", o.seed}, {"keys", o.keys}, {"queries", o.queries}};
  out["points"] = Json::array();
  for (const lab::PrecisionPoint& p : precision.points)
    out["points"].push_back({{"rule", p.rule},
                             {"dtype", name_of(p.dtype)},
                             {"dk", p.dk},
                             {"gain", p.gain},
                             {"p_max", p.p_max},
                             {"share_p_max_over_99pct", p.share_p_max_over_99pct},
                             {"share_raw_overflow", p.overflow_raw},
                             {"share_rows_overflow", p.overflow_rows},
                             {"score_rms_error", p.score_error},
                             {"p_total_variation", p.p_error},
                             {"signal_bits", p.signal_bits}});
  out["complete"] = precision.complete;
  out["conclusion"] = conclusion_of(precision);
  return out;
}

// At the largest d_k: what is the same in f64 and in the coarsest dtype is not rounding; what differs by rule is.
std::string conclusion_of(const lab::Precision& precision) {
  if (precision.points.empty()) return "Nothing was finished.";
  const lab::PrecisionOptions& o = precision.options;
  const std::int64_t dk = precision.points.back().dk;
  const double gain = o.gains.front();
  const DType narrow = o.dtypes.back();
  std::string out;
  const lab::PrecisionPoint *exact = find(precision, "none", DType::kF64, dk, gain),
                            *rounded = find(precision, "none", narrow, dk, gain);
  if (exact && rounded && narrow != DType::kF64 && std::isfinite(rounded->p_max))
    out = fmt::format("Rounding {}: unscaled at d_k = {} the mean largest weight is {} in f64 and {} in {}.",
                      std::fabs(rounded->p_max - exact->p_max) <= kUnmoved ? "is not what saturates softmax"
                                                                           : "moves softmax's saturation",
                      dk, fixed(exact->p_max, 3), fixed(rounded->p_max, 3), name_of(narrow));
  std::vector<std::string> bits;
  for (const Scale& rule : o.rules)
    if (const lab::PrecisionPoint* p = find(precision, rule.name(), narrow, dk, gain);
        p && std::isfinite(p->signal_bits))
      bits.push_back(fmt::format("{:.1f} {}", p->signal_bits, under(rule.name())));
  if (!bits.empty())
    out += fmt::format("{}Bits of {} that tell one weight from another: {}.", out.empty() ? "" : " ", name_of(narrow),
                       listed(bits));
  for (const double other : o.gains)
    if (const lab::PrecisionPoint* a = find(precision, "none", DType::kF16, dk, other),
        *b = find(precision, "sqrt_dk", DType::kF16, dk, other);
        a && b && a->overflow_rows > b->overflow_rows) {
      out += fmt::format(" With scores {} times larger {} of rows overflow f16 unscaled, {} under 1/√d_k.",
                         number(other, 1), percent(a->overflow_rows), percent(b->overflow_rows));
      break;
    }
  return out.empty() ? fmt::format("The mean largest weight is {} {} in {} at d_k = {}.",
                                   fixed(precision.points.back().p_max, 3), under(precision.points.back().rule),
                                   name_of(precision.points.back().dtype), dk)
                     : out;
}

std::string text_of(const lab::Precision& precision, const Layout& layout) {
  const lab::PrecisionOptions& o = precision.options;
  std::string out = layout.wrap(fmt::format(
      "The same scores ({} queries, {} keys) kept in four formats. Saturation: mean largest weight, and rows where it "
      "is above "
      "0.99. Rounding: rows lost to overflow, weight that ends up at wrong keys, bits of the weights that are signal.",
      o.queries, whole(o.keys)));
  for (const std::int64_t dk : o.dk)
    for (const double gain : o.gains) {
      Table table({{"rule", Table::Align::kLeft, Table::Place::kKey},
                   {"format", Table::Align::kLeft, Table::Place::kKey},
                   {"p_max"},
                   {">0.99"},
                   {"overflow"},
                   {"misplaced"},
                   {"signal bits"}});
      std::string last;
      for (const lab::PrecisionPoint& p : precision.points) {
        if (p.dk != dk || p.gain != gain) continue;
        if (!last.empty() && last != p.rule) table.gap();
        table.add({p.rule == last ? "" : p.rule, name_of(p.dtype), fixed(p.p_max, 4), percent(p.share_p_max_over_99pct),
                   percent(p.overflow_rows), p.p_error == 0 ? "0" : number(p.p_error, 2),
                   std::isfinite(p.signal_bits) ? fixed(p.signal_bits, 1) : "–"});
        last = p.rule;
      }
      if (!last.empty())
        out += "\n" +
               layout.wrap(
                   fmt::format("d_k = {}{}", dk, gain == 1 ? "" : fmt::format(", scores {:g} times larger", gain))) +
               table.text(layout.columns);
    }
  return out + unfinished(precision.complete, layout) + "\n" + layout.wrap(conclusion_of(precision));
}

}  // namespace rootdk::report
