// `rootdk whatif`: a row per treatment, the divisor for unit variance, which rule is sharpest and which flattest.
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

Json json_of(const lab::WhatifNumbers& n) {
  return {{"rows", n.rows},
          {"sigma", n.sigma},
          {"largest_score", n.largest},
          {"entropy", n.entropy},
          {"relative_entropy", n.relative_entropy},
          {"effective_keys", n.effective_keys},
          {"p_max", n.p_max},
          {"trace_j", n.trace_j},
          {"share_trace_j_under_1pct", n.share_trace_j_under_1pct}};
}

Json optional_number(const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); }

}  // namespace

Json json_of(const lab::Whatif& w) {
  Json out{{"experiment", "whatif"}, {"batch", w.batch},   {"heads_q", w.heads_q},
           {"heads_kv", w.heads_kv}, {"len_q", w.len_q},   {"len_kv", w.len_kv},
           {"dk", w.dim_qk},         {"causal", w.causal}, {"unit_variance_divisors", w.head_divisors}};
  out["rows"] = Json::array();
  for (const lab::WhatifRow& row : w.rows) {
    Json one{{"rule", row.name}, {"description", row.description}, {"factor", optional_number(row.factor)}};
    one.update(json_of(row.all));
    one["output_change"] = optional_number(row.output_change);
    one["heads"] = Json::array();
    for (const lab::WhatifNumbers& head : row.heads) one["heads"].push_back(json_of(head));
    out["rows"].push_back(std::move(one));
  }
  out["complete"] = w.complete;
  out["conclusion"] = conclusion_of(w);
  return out;
}

std::string conclusion_of(const lab::Whatif& w) {
  if (w.rows.empty()) return "Nothing was finished.";
  const auto [least, most] = std::minmax_element(w.head_divisors.begin(), w.head_divisors.end());
  const std::string divisor =
      number(*least) == number(*most) ? number(*least) : number(*least) + " to " + number(*most);
  std::vector<const lab::WhatifRow*> finite;
  std::vector<std::string> overflowing;
  for (const lab::WhatifRow& row : w.rows) {
    const bool vanished = row.all.sigma == 0 && *most > 0;  // no f32 is as small as the scale that was wanted
    if (std::isfinite(row.all.sigma) && std::isfinite(row.all.relative_entropy) && !vanished) finite.push_back(&row);
    else overflowing.push_back(row.name);
  }
  const double root = std::sqrt(static_cast<double>(w.dim_qk));
  const bool known = std::isfinite(*least) && std::isfinite(*most) && *most > 0;
  const bool right = *least > 0.95 * root && *most < root / 0.95;
  std::string out =
      fmt::format("{}ithin rows{} q·k spreads by {}, which is the divisor that gives unit variance",
                  known ? fmt::format("√d_k = {} is {} here: w", number(root), right ? "right" : "not right") : "W",
                  w.causal ? " (hidden keys counted, too)" : "", divisor);
  if (finite.size() > 1) {
    const auto by_entropy = [](const lab::WhatifRow* a, const lab::WhatifRow* b) {
      return a->all.relative_entropy < b->all.relative_entropy;
    };
    const auto [sharp, flat] = std::minmax_element(finite.begin(), finite.end(), by_entropy);
    out += fmt::format("; {} leaves the softmax sharpest ({} of ln n), {} flattest ({})", spoken((*sharp)->name),
                       percent((*sharp)->all.relative_entropy), spoken((*flat)->name),
                       percent((*flat)->all.relative_entropy));
  }
  if (!overflowing.empty())
    out += fmt::format("; under {} scores leave the range of f32, and nothing follows",
                       finite.empty() ? "every rule" : listed(overflowing));
  return out + ".";
}

std::string text_of(const lab::Whatif& w, const Layout& layout) {
  std::string out =
      layout.wrap(fmt::format("{} on {}, {} queries × {} keys, d_k = {}, batch {}{}: what each rule makes of them.",
                              counted_of(static_cast<std::size_t>(w.heads_q), "query head"),
                              counted_of(static_cast<std::size_t>(w.heads_kv), "key head"), whole(w.len_q),
                              whole(w.len_kv), w.dim_qk, w.batch, w.causal ? ", causal" : ""));
  out += "\n";
  const bool outputs = !w.rows.empty() && w.rows.front().output_change.has_value();
  std::vector<Table::Column> columns = {{"rule", Table::Align::kLeft, Table::Place::kKey},
                                        {"σ"},
                                        {"max s"},
                                        {"H/ln n"},
                                        {"p_max"},
                                        {"tr J"},
                                        {"trJ<.01"}};
  if (outputs) columns.push_back({"Δo"});
  Table table(columns);
  for (const lab::WhatifRow& row : w.rows) {
    std::vector<std::string> cells = {row.name,
                                      number(row.all.sigma),
                                      number(row.all.largest),
                                      fixed(row.all.relative_entropy, 3),
                                      fixed(row.all.p_max, 3),
                                      fixed(row.all.trace_j, 3),
                                      percent(row.all.share_trace_j_under_1pct)};
    if (outputs) cells.push_back(number(*row.output_change, 2));
    table.add(cells);
  }
  out += table.text(layout.columns);
  if (outputs)
    out += layout.wrap(fmt::format("Δo = ‖o − o′‖/‖o′‖, o′ being the output under {}", w.rows.front().name), "  ");
  return out + unfinished(w.complete, layout) + "\n" + layout.wrap(conclusion_of(w));
}

}  // namespace rootdk::report
