// `rootdk init`: the spread of scores under each initialiser, and the divisor that would have been right.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/experiments.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"

namespace rootdk::report {

namespace {

std::string quoted_list(std::vector<std::string> names) {
  for (std::string& name : names) name = "\"" + name + "\"";
  return listed(names);
}

}  // namespace

Json json_of(const lab::Initialisation& initialisation) {
  const lab::InitialisationOptions& o = initialisation.options;
  Json out{{"experiment", "init"}, {"seed", o.seed}, {"tokens", o.tokens}, {"heads", o.heads}, {"batches", o.batches}};
  out["rows"] = Json::array();
  for (const lab::InitialisationRow& row : initialisation.rows)
    out["rows"].push_back({{"init", row.init},
                           {"width", row.width},
                           {"dk", row.dk},
                           {"weight_std", row.weight_std},
                           {"sqrt_dk", std::sqrt(static_cast<double>(row.dk))},
                           {"predicted_divisor", row.predicted},
                           {"divisor_from_weights", row.from_weights},
                           {"measured_divisor", row.measured},
                           {"variance", json_of(row.variance)},
                           {"spread_after_sqrt_dk", row.after_sqrt_dk}});
  out["complete"] = initialisation.complete;
  out["conclusion"] = conclusion_of(initialisation);
  return out;
}

std::string conclusion_of(const lab::Initialisation& initialisation) {
  if (initialisation.rows.empty()) return "Nothing was finished.";
  constexpr double kRight = 0.05;
  struct Range {
    double least = INFINITY, most = 0;
  };
  std::vector<std::string> order, right, wrong;
  std::map<std::string, Range> ranges;
  double furthest = 0;
  for (const lab::InitialisationRow& row : initialisation.rows) {
    if (!ranges.contains(row.init)) order.push_back(row.init);
    Range& range = ranges[row.init];
    range.least = std::min(range.least, row.after_sqrt_dk);
    range.most = std::max(range.most, row.after_sqrt_dk);
    furthest = std::max(furthest, std::fabs(row.measured / row.predicted - 1));
  }
  for (const std::string& name : order) {
    const Range& range = ranges[name];
    const std::string least = number(range.least, 2), most = number(range.most, 2);
    if (std::fabs(range.least - 1) <= kRight && std::fabs(range.most - 1) <= kRight) right.push_back(name);
    else wrong.push_back(fmt::format("{} under \"{}\"", least == most ? least : least + " to " + most, name));
  }
  std::string out;
  if (right.empty()) {
    out = "√d_k is right under none of these initialisers: after it the scores' spread is " + listed(wrong);
  } else {
    out = fmt::format("√d_k is right under {}: after it the scores' spread is 1 (within {:.0f} %)", quoted_list(right),
                      100 * kRight);
    if (!wrong.empty()) out += ", but " + listed(wrong);
  }
  return out + fmt::format(". Theory predicted every one to within {}.", percent(furthest));
}

std::string text_of(const lab::Initialisation& initialisation, const Layout& layout) {
  const lab::InitialisationOptions& o = initialisation.options;
  std::string out = layout.wrap(fmt::format("Normalised random tokens through W_q and W_k ({} draws of {} heads, {} "
                                            "queries and keys): the spread of q·k is the "
                                            "divisor that would give unit variance.",
                                            o.batches, o.heads, o.tokens));
  out += "\n";
  Table table({{"initialiser", Table::Align::kLeft, Table::Place::kKey},
               {"width", Table::Align::kRight, Table::Place::kKey},
               {"d_k", Table::Align::kRight, Table::Place::kKey},
               {"√d_k"},
               {"predicted"},
               {"measured"},
               {"95 % interval"},
               {"/√d_k"}});
  for (std::size_t i = 0; i < initialisation.rows.size(); ++i) {
    const lab::InitialisationRow& row = initialisation.rows[i];
    const bool first = i == 0 || initialisation.rows[i - 1].init != row.init;
    table.add({first ? row.init : "", fmt::format("{}", row.width), fmt::format("{}", row.dk),
               fixed(std::sqrt(static_cast<double>(row.dk)), 2), fixed(row.predicted, 3), fixed(row.measured, 3),
               fmt::format("{} – {}", fixed(std::sqrt(std::max(0.0, row.variance.low)), 2),
                           fixed(std::sqrt(row.variance.high), 2)),
               fixed(row.after_sqrt_dk, 3)});
  }
  out += table.text(layout.columns);
  return out + unfinished(initialisation.complete, layout) + "\n" + layout.wrap(conclusion_of(initialisation));
}

}  // namespace rootdk::report
