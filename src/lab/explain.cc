// Scores as given, or from q and k; theory::softmax_row under each rule, and the gradient through its Jacobian.
#include "rootdk/lab/explain.h"

#include <algorithm>
#include <cmath>

#include "lab/need.h"
#include "lab/normals.h"

namespace rootdk::lab {

namespace {

void want_all_finite(const char* name, const std::vector<double>& values) {
  for (const double x : values) want_finite(name, x);
}

void take_scores(const ExplainOptions& o, Explanation& out) {
  if (!o.q.empty() || !o.keys.empty()) refuse("scores: given beside q and k, but one or the other is wanted");
  want_all_finite("scores", o.scores);
  want_between("dk", o.dk, 1, kMostDims);
  out.raw = o.scores;
  out.dk = o.dk;
}

void take_vectors(const ExplainOptions& o, Explanation& out) {
  if (o.q.empty()) refuse("q: missing; scores, or q and at least one k, are wanted");
  if (o.keys.empty()) refuse("k: missing; q was given, so at least one k is wanted");
  want_all_finite("q", o.q);
  out.dk = static_cast<std::int64_t>(o.q.size());
  if (o.dk != 0 && o.dk != out.dk) refuse("dk: {}, but q has {} component{}", o.dk, out.dk, out.dk == 1 ? "" : "s");
  for (const std::vector<double>& k : o.keys) {
    if (k.size() != o.q.size())
      refuse("k: {} component{}, but q has {}", k.size(), k.size() == 1 ? "" : "s", o.q.size());
    want_all_finite("k", k);
    double dot = 0;
    for (std::size_t i = 0; i < k.size(); ++i) dot += o.q[i] * k[i];
    out.raw.push_back(dot);
  }
  out.q = o.q;
  out.keys = o.keys;
}

ExplainedRule apply(const Scale& rule, const Explanation& e) {
  const std::size_t n = e.raw.size();
  const double c = fixed_factor(rule, e.dk, static_cast<std::int64_t>(n));
  ExplainedRule out;
  out.rule = rule.name();
  out.divisor = 1 / c;
  for (const double raw : e.raw) out.scores.push_back(c * raw);
  out.softmax = theory::softmax_row(out.scores);
  out.effective_keys = std::exp(out.softmax.entropy);
  const std::vector<double>& p = out.softmax.probabilities;
  if (n <= ExplainedRule::kMostKeys)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        out.jacobian.push_back(i == j ? p[i] * out.softmax.complements[i] : -p[i] * p[j]);
  // (J·g)_i = p_i·((1 − p_i)·g_i − Σ_{j≠i} p_j g_j): with 1 − p_i as it is, a saturated row keeps its digits.
  std::vector<double> after(n + 1);
  for (std::size_t i = n; i-- > 0;) after[i] = after[i + 1] + p[i] * e.upstream[i];
  double before = 0;
  for (std::size_t i = 0; i < n; ++i) {
    out.score_gradient.push_back(p[i] * (out.softmax.complements[i] * e.upstream[i] - (before + after[i + 1])));
    before += p[i] * e.upstream[i];
  }
  for (const double g : out.score_gradient) out.raw_gradient.push_back(c * g);
  return out;
}

}  // namespace

// The scores and the gradient that they start with; under each rule six rows, in vectors that grow by doubling, and one
// on the way.
MemoryNeed memory_to_explain(std::size_t scores, std::size_t rules) {
  const double grown = std::exp2(std::ceil(std::log2(std::max(1.0, real(scores)))));
  const double bytes = sizeof(double) * (2 * real(scores) + (6 * real(rules) + 1) * grown);
  return {base::saturated(bytes), 1, "scores", fmt::format("{} of them", scores)};
}

Explanation explain(const ExplainOptions& o) {
  Explanation out;
  want_some("rules", o.rules);
  want_memory(memory_to_explain(std::max(o.scores.size(), o.keys.size()), o.rules.size()));
  if (!o.scores.empty()) take_scores(o, out);
  else take_vectors(o, out);
  out.upstream = o.upstream;
  if (out.upstream.empty()) {
    out.upstream.assign(out.raw.size(), 0.0);
    out.upstream[static_cast<std::size_t>(std::max_element(out.raw.begin(), out.raw.end()) - out.raw.begin())] = 1;
  }
  if (out.upstream.size() != out.raw.size())
    refuse("gradient: {} number{}, but there {} {} score{}", out.upstream.size(), out.upstream.size() == 1 ? "" : "s",
           out.raw.size() == 1 ? "is" : "are", out.raw.size(), out.raw.size() == 1 ? "" : "s");
  want_all_finite("gradient", out.upstream);
  for (const Scale& rule : o.rules) out.rules.push_back(apply(rule, out));
  return out;
}

}  // namespace rootdk::lab
