// `rootdk explain`: exponentials, softmax, Jacobian and gradient by rule, and what dividing gained.
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

constexpr std::size_t kMostShown = 12;  // of a table in the terminal
constexpr std::size_t kMostJacobian = 6;

std::string vector_text(const std::vector<double>& values) {
  std::string out;
  for (std::size_t i = 0; i < values.size() && i < kMostShown; ++i)
    out += (i ? ", " : "") + fmt::format("{:g}", values[i]);
  return "[" + out + (values.size() > kMostShown ? ", …]" : "]");
}

const lab::ExplainedRule* find(const lab::Explanation& e, std::string_view name) {
  for (const lab::ExplainedRule& rule : e.rules)
    if (rule.rule == name) return &rule;
  return nullptr;
}

double longest(const std::vector<double>& gradient) {
  double out = 0;
  for (const double g : gradient) out = std::max(out, std::fabs(g));
  return out;
}

Json matrix(const std::vector<double>& values, std::size_t n) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < values.size() / n; ++i)
    rows.push_back(std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(i * n),
                                       values.begin() + static_cast<std::ptrdiff_t>((i + 1) * n)));
  return rows;
}

std::string jacobian_text(const lab::ExplainedRule& rule, std::size_t n, const Layout& layout) {
  if (n < 2 || n > kMostJacobian || rule.jacobian.empty()) return {};
  constexpr std::size_t kMargin = 3, kCell = 10;
  std::string out = "  softmax's Jacobian ∂p_i/∂s_j:\n";
  if (kMargin + n * kCell > layout.columns) {
    std::vector<Table::Column> columns = {{"i", Table::Align::kRight, Table::Place::kKey}};
    for (std::size_t j = 0; j < n; ++j) columns.push_back({fmt::format("j = {}", j + 1)});
    Table table(columns);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<std::string> cells = {fmt::format("{}", i + 1)};
      for (std::size_t j = 0; j < n; ++j) cells.push_back(fixed(rule.jacobian[i * n + j], 4));
      table.add(cells);
    }
    return out + table.text(layout.columns);
  }
  for (std::size_t i = 0; i < n; ++i) {
    out += std::string(kMargin, ' ');
    for (std::size_t j = 0; j < n; ++j) out += fmt::format("{:>{}}", fixed(rule.jacobian[i * n + j], 4), kCell);
    out += "\n";
  }
  return out;
}

std::string rule_text(const lab::Explanation& e, const lab::ExplainedRule& rule, const Layout& layout) {
  const std::size_t n = e.raw.size();
  const theory::SoftmaxRow& row = rule.softmax;
  std::string out = "\n" + layout.wrap(fmt::format("{}: divide by {:.5g}", rule.rule, rule.divisor));
  Table table({{"key", Table::Align::kRight, Table::Place::kKey},
               {"score"},
               {"e^score"},
               {"softmax"},
               {"gradient"},
               {"at q·k"}});
  for (std::size_t i = 0; i < std::min(n, kMostShown); ++i)
    table.add({fmt::format("{}", i + 1), number(rule.scores[i], 4),
               number(row.exponentials[i], row.exponentials[i] < 1e4 ? 5 : 8), fixed(row.probabilities[i], 4),
               fixed(rule.score_gradient[i], 4), fixed(rule.raw_gradient[i], 4)});
  if (n > kMostShown) table.add({"…"});
  table.add({"sum", "", number(row.sum, row.sum < 1e4 ? 5 : 8), "1"});
  out += table.text(layout.columns);
  out += layout.wrap(
      fmt::format("entropy {} of ln {} = {}; largest weight {}; effective keys {}", fixed(row.entropy, 4), n,
                  fixed(std::log(static_cast<double>(n)), 4), fixed(row.p_max, 4), number(rule.effective_keys, 4)),
      "  ");
  out += layout.wrap(
      fmt::format("gradient let through: tr J {}, ‖J‖² {}", fixed(row.trace_j, 4), fixed(row.frobenius_j, 4)), "  ");
  return layout.detail == Detail::kAll ? out + jacobian_text(rule, n, layout) : out;
}

}  // namespace

Json json_of(const lab::Explanation& e) {
  Json out{{"experiment", "explain"}, {"dk", e.dk}};
  if (!e.q.empty()) {
    out["q"] = e.q;
    out["k"] = e.keys;
  }
  out["raw_scores"] = e.raw;
  out["upstream_gradient"] = e.upstream;
  out["rules"] = Json::array();
  for (const lab::ExplainedRule& rule : e.rules) {
    const theory::SoftmaxRow& row = rule.softmax;
    Json one{{"rule", rule.rule},       {"divisor", rule.divisor}, {"scores", rule.scores},
             {"exp", row.exponentials}, {"exp_sum", row.sum},      {"softmax", row.probabilities},
             {"entropy", row.entropy},  {"p_max", row.p_max},      {"effective_keys", rule.effective_keys},
             {"sum_p2", row.sum_p2},    {"trace_j", row.trace_j},  {"frobenius_j", row.frobenius_j}};
    if (!rule.jacobian.empty()) one["jacobian"] = matrix(rule.jacobian, e.raw.size());
    one["score_gradient"] = rule.score_gradient;
    one["raw_gradient"] = rule.raw_gradient;
    out["rules"].push_back(std::move(one));
  }
  out["conclusion"] = conclusion_of(e);
  return out;
}

std::string conclusion_of(const lab::Explanation& e) {
  if (e.raw.size() == 1) return "With a single key softmax gives it all the weight, whatever the rule.";
  const lab::ExplainedRule *none = find(e, "none"), *root = find(e, "sqrt_dk"), *by_dk = find(e, "dk");
  if (none && root && none->softmax.trace_j > 0 && root->softmax.trace_j > 0) {
    const theory::SoftmaxRow &a = none->softmax, &b = root->softmax;
    std::string out =
        fmt::format("Divided by √d_k, softmax lets {} gradient through: tr J is {}, unscaled {}, and the largest "
                    "weight {}, unscaled {}.",
                    compared(b.trace_j, a.trace_j, "as much", "less"), fixed(b.trace_j, 3), fixed(a.trace_j, 3),
                    fixed(b.p_max, 3), fixed(a.p_max, 3));
    const double reaches_root = longest(root->raw_gradient), reaches_dk = by_dk ? longest(by_dk->raw_gradient) : 0;
    if (reaches_dk > 0)
      out += fmt::format(
          " Divided by d_k, q·k receives a gradient {} than with √d_k, and the largest of {} weights is {}.",
          compared(reaches_dk, reaches_root, "larger", "smaller"), e.raw.size(), fixed(by_dk->softmax.p_max, 3));
    return out;
  }
  const auto by_trace = [](const lab::ExplainedRule& a, const lab::ExplainedRule& b) {
    return a.softmax.trace_j < b.softmax.trace_j;
  };
  const auto [closed, open] = std::minmax_element(e.rules.begin(), e.rules.end(), by_trace);
  const theory::SoftmaxRow &a = closed->softmax, &b = open->softmax;
  if (a.trace_j == b.trace_j)
    return fmt::format("Under {} the largest of {} weights is {}, and tr J is {}.", spoken(closed->rule), e.raw.size(),
                       fixed(a.p_max, 3), fixed(a.trace_j, 3));
  const std::string more = a.trace_j > 0 ? times(b.trace_j / a.trace_j) + " as much" : "more";
  return fmt::format(
      "Softmax lets {} gradient through under {} {} under {}: tr J is {} and {}, the largest weight {} and {}.", more,
      spoken(open->rule), a.trace_j > 0 ? "as" : "than", spoken(closed->rule), fixed(b.trace_j, 3), fixed(a.trace_j, 3),
      fixed(b.p_max, 3), fixed(a.p_max, 3));
}

std::string text_of(const lab::Explanation& e, const Layout& layout) {
  std::string out;
  if (!e.q.empty()) {
    out += layout.wrap(fmt::format("q = {}", vector_text(e.q)));
    for (std::size_t j = 0; j < std::min(e.keys.size(), kMostShown); ++j)
      out += layout.wrap(fmt::format("k{} = {}: q·k = {:g}", e.keys.size() > 1 ? std::to_string(j + 1) : "",
                                     vector_text(e.keys[j]), e.raw[j]));
  } else {
    out += layout.wrap(fmt::format("scores q·k = {}", vector_text(e.raw)));
  }
  out += layout.wrap(fmt::format("d_k = {}, √d_k = {:.5g}; the gradient starts as {} on the weights", e.dk,
                                 std::sqrt(static_cast<double>(e.dk)), vector_text(e.upstream)));
  for (const lab::ExplainedRule& rule : e.rules) out += rule_text(e, rule, layout);
  return out + "\n" + layout.wrap(conclusion_of(e));
}

}  // namespace rootdk::report
