// `rootdk playground`: numbers of one head beside theory's, its weights, one row and a histogram.
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

Json or_null(const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); }

std::optional<double> exponential(const std::optional<double>& x) {
  return x ? std::optional(std::exp(*x)) : std::nullopt;
}

Json theory_json(const std::optional<lab::PlaygroundTheory>& theory) {
  const lab::PlaygroundTheory t = theory.value_or(lab::PlaygroundTheory());
  return {{"sigma", theory ? Json(t.sigma) : Json(nullptr)},
          {"entropy", or_null(t.entropy)},
          {"exp_entropy", or_null(exponential(t.entropy))},
          {"p_max", or_null(t.p_max)},
          {"trace_j", or_null(t.trace_j)},
          {"frobenius_j", or_null(t.frobenius_j)}};
}

}  // namespace

Json json_of(const lab::Playground& p) {
  const lab::PlaygroundOptions& o = p.options;
  Json out{{"experiment", "playground"},
           {"seed", o.seed},
           {"dk", o.dk},
           {"keys", o.keys},
           {"queries", o.queries},
           {"rule", o.rule.name},
           {"factor", p.factor},
           {"divisor", 1 / p.factor},
           {"sigma_q", o.sigma_q},
           {"sigma_k", o.sigma_k},
           {"mean", o.mean},
           {"correlation", o.correlation},
           {"soft_cap", or_null(o.soft_cap)},
           {"sink", or_null(o.sink)},
           {"dropout", o.dropout},
           {"causal", o.causal},
           {"sigma", p.sigma},
           {"critical_sigma", p.critical_sigma},
           {"frozen", p.frozen}};
  const lab::WhatifNumbers& m = p.measured;
  out["measured"] = {{"rows", m.rows},
                     {"sigma", m.sigma},
                     {"score_mean", p.score_mean},
                     {"score_max", m.largest},
                     {"exp_entropy", std::exp(m.entropy)},
                     {"p_max", m.p_max},
                     {"share_trace_j_under_1pct", m.share_trace_j_under_1pct}};
  for (std::size_t i = 0; i < SoftmaxMeans::all().size(); ++i)
    out["measured"][SoftmaxMeans::names()[i]] = p.softmax.*SoftmaxMeans::all()[i];
  out["theory"] = theory_json(p.theory);
  const lab::PlaygroundHistogram& h = p.histogram;
  out["histogram"] = {
      {"edges", h.edges}, {"counts", h.counts}, {"expected", h.expected.empty() ? Json(nullptr) : Json(h.expected)}};
  out["weights"] = {{"queries", p.weights.queries}, {"keys", p.weights.keys}, {"values", p.weights.values}};
  out["row"] = {
      {"query", p.row.query}, {"scores", p.row.scores}, {"p", p.row.p}, {"score_gradient", p.row.score_gradient}};
  out["verdict"] = theory::name_of(p.judgement.verdict);
  out["conclusion"] = conclusion_of(p);
  return out;
}

std::string conclusion_of(const lab::Playground& p) { return p.judgement.words; }

std::string text_of(const lab::Playground& p, const Layout& layout) {
  const lab::PlaygroundOptions& o = p.options;
  std::string out = layout.wrap(fmt::format("{} random queries on {} keys, d_k = {}{}, under {}: q·k is divided by {}.",
                                            whole(o.queries), whole(o.keys), o.dk, o.causal ? ", causal" : "",
                                            o.rule.name, number(1 / p.factor)));
  out += "\n";
  Table table({{"", Table::Align::kLeft}, {"measured"}, {"theory"}});
  const auto add = [&](const char* name, double measured, const std::optional<double>& theory) {
    table.add({name, number(measured, 4), theory ? number(*theory, 4) : "–"});
  };
  const lab::PlaygroundTheory t = p.theory.value_or(lab::PlaygroundTheory());
  add("σ of the scores within a row", p.measured.sigma, p.theory ? std::optional(t.sigma) : std::nullopt);
  add("entropy (nats)", p.measured.entropy, t.entropy);
  add("e^entropy (keys)", std::exp(p.measured.entropy), exponential(t.entropy));
  add("largest weight", p.measured.p_max, t.p_max);
  add("tr J", p.measured.trace_j, t.trace_j);
  add("‖J‖²", p.softmax.frobenius_j, t.frobenius_j);
  add("share of rows with tr J below 0.01", p.measured.share_trace_j_under_1pct, {});
  return out + table.text(layout.columns) + "\n" + layout.wrap(conclusion_of(p));
}

}  // namespace rootdk::report
