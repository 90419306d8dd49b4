// `rootdk phase`: entropy, p_max and tr J beside theory's, and under which rules attention is frozen.
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

Json json_of(const lab::Compared& c) {
  Json out = report::json_of(c.measured);
  out["theory"] = c.theory;
  return out;
}

bool agrees(const lab::Compared& c) { return c.measured.low <= c.theory && c.theory <= c.measured.high; }

std::string rule_text(const lab::Phase& phase, const std::string& rule, bool unscaled, const Layout& layout) {
  std::vector<Table::Column> columns = {{"d_k", Table::Align::kRight, Table::Place::kKey}};
  for (const std::int64_t keys : phase.options.keys) columns.push_back({fmt::format("n = {}", keys)});
  Table table(columns);
  for (const std::int64_t dk : phase.options.dk) {
    std::vector<std::string> cells = {fmt::format("{}", dk)};
    for (const std::int64_t keys : phase.options.keys)
      for (const lab::PhasePoint& p : phase.points)
        if (p.rule == rule && p.dk == dk && p.keys == keys)
          cells.push_back(fmt::format("{} {}{}", fixed(p.p_max.measured.value, 3), fixed(p.entropy.measured.value, 2),
                                      p.frozen ? "*" : " "));
    if (cells.size() > 1) table.add(cells);
  }
  if (unscaled) {
    std::vector<std::string> cells = {"2 ln n"};
    for (const lab::CriticalPoint& c : phase.critical) cells.push_back(fmt::format("{:.1f} ", c.dk));
    table.add(cells);
  }
  return "\n" + layout.wrap(rule) + table.text(layout.columns);
}

}  // namespace

Json json_of(const lab::Phase& phase) {
  const lab::PhaseOptions& o = phase.options;
  Json out{{"experiment", "phase"}, {"seed", o.seed}, {"queries", o.queries},
           {"batches", o.batches},  {"dk", o.dk},     {"keys", o.keys}};
  out["points"] = Json::array();
  for (const lab::PhasePoint& p : phase.points)
    out["points"].push_back({{"rule", p.rule},
                             {"dk", p.dk},
                             {"keys", p.keys},
                             {"sigma", p.sigma},
                             {"critical_sigma", p.critical_sigma},
                             {"frozen", p.frozen},
                             {"entropy", json_of(p.entropy)},
                             {"p_max", json_of(p.p_max)},
                             {"trace_j", json_of(p.trace_j)}});
  out["critical_line"] = Json::array();
  for (const lab::CriticalPoint& c : phase.critical) out["critical_line"].push_back({{"keys", c.keys}, {"dk", c.dk}});
  out["complete"] = phase.complete;
  out["conclusion"] = conclusion_of(phase);
  return out;
}

std::string conclusion_of(const lab::Phase& phase) {
  if (phase.points.empty()) return "Nothing was finished.";
  std::vector<std::string> rules, frozen_under, open_under, weights;
  for (const lab::PhasePoint& p : phase.points)
    if (std::find(rules.begin(), rules.end(), p.rule) == rules.end()) rules.push_back(p.rule);
  const lab::PhasePoint& last = phase.points.back();
  for (const std::string& rule : rules) {
    std::int64_t frozen = 0, all = 0;
    for (const lab::PhasePoint& p : phase.points) {
      if (p.rule != rule) continue;
      frozen += p.frozen, ++all;
      if (p.dk == last.dk && p.keys == last.keys)
        weights.push_back(number(p.p_max.measured.value, 2) + " " + under(rule));
    }
    if (frozen > 0) frozen_under.push_back(fmt::format("{} (at {} of {} points)", under(rule), frozen, all));
    else open_under.push_back(under(rule));
  }
  std::string out = "Attention freezes at none of these points";
  if (!frozen_under.empty()) {
    out = "Attention freezes " + listed(frozen_under);
    if (!open_under.empty()) out += ", but nowhere " + listed(open_under);
  }
  return fmt::format("{}. At d_k = {} and {} keys the largest weight is {} on average.", out, last.dk, whole(last.keys),
                     listed(weights));
}

std::string text_of(const lab::Phase& phase, const Layout& layout) {
  const lab::PhaseOptions& o = phase.options;
  std::string out = layout.wrap(
      fmt::format("Mean largest weight and entropy (nats) of {} × {} random queries over n random keys, by the fused "
                  "kernel. * marks "
                  "frozen points: the scores' spread σ = c·√d_k is above √(2 ln n), for c = 1 d_k above 2 ln n.",
                  o.batches, o.queries));
  std::size_t entropy = 0, p_max = 0, trace = 0;
  for (const lab::PhasePoint& p : phase.points)
    entropy += agrees(p.entropy), p_max += agrees(p.p_max), trace += agrees(p.trace_j);
  for (const Scale& rule : o.rules) out += rule_text(phase, rule.name(), rule.name() == "none", layout);
  out += "\n" + layout.wrap(fmt::format("Quadrature over ‖q‖ lies inside the measured 95 % interval at {} (entropy), "
                                        "{} (largest weight) and {} (tr J) of "
                                        "{} points.",
                                        entropy, p_max, trace, phase.points.size()));
  return out + unfinished(phase.complete, layout) + "\n" + layout.wrap(conclusion_of(phase));
}

}  // namespace rootdk::report
