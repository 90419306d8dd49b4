// `rootdk rules`: formula, source and place in the library of each rule.
#include <fmt/format.h>

#include <algorithm>

#include "report/experiments.h"
#include "report/json.h"
#include "report/text.h"

namespace rootdk::report {

Json json_of(const std::vector<lab::Rule>& rules) {
  Json out;
  out["experiment"] = "rules";
  out["rules"] = Json::array();
  for (const lab::Rule& rule : rules)
    out["rules"].push_back({{"name", rule.name},
                            {"parameters", rule.parameters},
                            {"formula", rule.formula},
                            {"source", rule.source},
                            {"in_registry", rule.in_registry},
                            {"where", rule.where}});
  return out;
}

std::string text_of(const std::vector<lab::Rule>& rules, const Layout& layout) {
  std::string out = layout.wrap("Scales, for --rules; parts are joined with *, as in sqrt_dk*ssmax(0.43)") + "\n";
  bool beside = false;
  for (const lab::Rule& rule : rules) {
    if (!rule.in_registry && !beside) {
      out += "Beside them, in the library:\n\n";
      beside = true;
    }
    out += layout.wrap(fmt::format("{}{}", rule.name, rule.parameters), "  ") + layout.wrap(rule.formula, "      ") +
           layout.wrap(rule.source, "      ");
    if (!rule.in_registry) out += layout.wrap(rule.where, "      ");
    out += "\n";
  }
  const auto known = std::count_if(rules.begin(), rules.end(), [](const lab::Rule& r) { return r.in_registry; });
  return out + layout.wrap(fmt::format("{} parts make up a scale; {} more rules act elsewhere.", known,
                                       static_cast<std::ptrdiff_t>(rules.size()) - known));
}

}  // namespace rootdk::report
