// The playground: what it shows of single weights against what the fused pass reports of all of them, and both against
// theory. Seeds are fixed, so a run either always passes or never.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "rootdk/lab.h"
#include "rootdk/lab/estimate.h"
#include "rootdk/theory.h"
#include "support/message.h"

namespace rootdk::lab {
namespace {

/// Small enough for all weights to be shown.
PlaygroundOptions small(const char* rule = "sqrt_dk") {
  PlaygroundOptions o;
  o.dk = 24, o.keys = 50, o.queries = 30;
  o.rule = treatment(rule);
  o.seed = 7;
  return o;
}

struct Case {
  std::string name;
  PlaygroundOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* rule : {"none", "sqrt_dk", "dk", "dk(8)", "constant(0.3)", "unit_variance(2, 0.5)",
                           "sqrt_dk*yarn(4)", "sqrt_dk*ssmax(0.43)", "sqrt_dk*entropy_invariant", "sqrt_dk*llama4",
                           "measured", "qk_norm", "cosine(10)", "soft_cap(3)"})
    for (const bool causal : {false, true}) {
      Case one{rule + std::string(causal ? ", causal" : ""), small(rule)};
      one.options.causal = causal;
      all.push_back(one);
    }
  const auto add = [&](const char* name, const std::function<void(PlaygroundOptions&)>& change) {
    all.push_back({name, small()});
    change(all.back().options);
  };
  add("spread", [](PlaygroundOptions& o) { o.sigma_q = 3, o.sigma_k = 0.5; });
  add("mean and correlation", [](PlaygroundOptions& o) { o.mean = 0.5, o.correlation = 0.3; });
  add("cap", [](PlaygroundOptions& o) { o.rule = treatment("none"), o.soft_cap = 5; });
  add("sink", [](PlaygroundOptions& o) { o.sink = 2; });
  add("sink, cap, causal", [](PlaygroundOptions& o) { o.sink = -1, o.soft_cap = 1, o.causal = true; });
  add("more queries than keys, causal", [](PlaygroundOptions& o) { o.keys = 20, o.causal = true; });
  add("one component", [](PlaygroundOptions& o) { o.dk = 1; });
  return all;
}

TEST(Playground, ItsWeightsAreThoseOfTheFusedPass) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Playground p = play(c.options);
    ASSERT_EQ(p.weights.queries, c.options.queries);
    ASSERT_EQ(p.weights.keys, c.options.keys);
    double entropy = 0, p_max = 0, trace = 0, norm2 = 0, sink_mass = 0, rows = 0;
    for (std::int64_t i = 0; i < p.weights.queries; ++i) {
      double h = 0, most = 0, sum = 0, p2 = 0, p3 = 0;
      std::int64_t seen = 0;
      const auto count = [&](double x) { h -= x > 0 ? x * std::log(x) : 0, p2 += x * x, p3 += x * x * x, sum += x; };
      for (std::int64_t j = 0; j < p.weights.keys; ++j) {
        const double x = p.weights.values[static_cast<std::size_t>(i * p.weights.keys + j)];
        seen += x > 0;
        most = std::max(most, x);
        count(x);
      }
      if (seen < 2) continue;
      const double sink = 1 - sum;
      if (c.options.sink) count(sink);
      else EXPECT_NEAR(sum, 1, 1e-12);
      entropy += h, p_max += most, trace += 1 - p2, norm2 += p2 - 2 * p3 + p2 * p2,
          sink_mass += c.options.sink ? sink : 0, ++rows;
    }
    ASSERT_EQ(static_cast<double>(p.measured.rows), rows);
    // Scores of size 10 rounded to f32 differ by 1e-6 between two orders of summation; e to that is what a weight may
    // be off by.
    EXPECT_NEAR(p.measured.entropy, entropy / rows, 2e-5);
    EXPECT_NEAR(p.measured.p_max, p_max / rows, 1e-5);
    EXPECT_NEAR(p.measured.trace_j, trace / rows, 1e-5);
    EXPECT_NEAR(p.softmax.frobenius_j, norm2 / rows, 1e-5);
    EXPECT_NEAR(p.softmax.sink_mass, sink_mass / rows, 1e-5);
  }
}

TEST(Playground, TheRowIsOneOfItsRows) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    PlaygroundOptions o = c.options;
    o.row = 11;
    const Playground p = play(o);
    ASSERT_EQ(p.row.p.size(), static_cast<std::size_t>(o.keys));
    const double* const shown = p.weights.values.data() + o.row * o.keys;
    double sum_p2 = 0, sum_p3 = 0, gradient = 0;
    for (std::size_t j = 0; j < p.row.p.size(); ++j) {
      EXPECT_EQ(p.row.p[j], shown[j]);
      EXPECT_EQ(std::isnan(p.row.scores[j]), p.row.p[j] == 0);
      sum_p2 += p.row.p[j] * p.row.p[j], sum_p3 += std::pow(p.row.p[j], 3);
      gradient += p.row.score_gradient[j] * p.row.score_gradient[j];
    }
    // ‖J‖_F², however the keys share it. A sink has no value, so no gradient comes to its weight.
    const double sum = [&] {
      double s = 0;
      for (const double x : p.row.p) s += x;
      return s;
    }();
    if (!o.sink && sum > 0) {
      EXPECT_NEAR(gradient, sum_p2 - 2 * sum_p3 + sum_p2 * sum_p2, 1e-12);
    }
  }
}

TEST(Playground, TheHistogramHoldsEveryVisiblePair) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const PlaygroundOptions& o = c.options;
    const Playground p = play(o);
    std::int64_t visible = 0, counted = 0;
    for (std::int64_t i = 0; i < o.queries; ++i)
      visible += o.causal ? std::clamp<std::int64_t>(i + o.keys - o.queries + 1, 0, o.keys) : o.keys;
    for (const std::int64_t n : p.histogram.counts) counted += n;
    EXPECT_EQ(counted, visible);
    ASSERT_EQ(p.histogram.edges.size(), p.histogram.counts.size() + 1);
    EXPECT_TRUE(std::is_sorted(p.histogram.edges.begin(), p.histogram.edges.end()));
    double expected = 0;
    for (const double n : p.histogram.expected) expected += n;
    if (!p.histogram.expected.empty()) {
      EXPECT_NEAR(expected, static_cast<double>(visible), 1e-3 * static_cast<double>(visible));
    }
  }
}

// Means over seeds against theory, within what the seeds differ by.
TEST(Playground, IsWhatTheorySays) {
  const auto agrees = [](const PlaygroundOptions& options) {
    std::vector<double> sigma2, entropy, p_max, trace, norm2, below;
    Playground last;
    for (std::uint64_t seed = 1; seed <= 24; ++seed) {
      PlaygroundOptions o = options;
      o.seed = seed;
      last = play(o);
      sigma2.push_back(last.measured.sigma * last.measured.sigma);
      entropy.push_back(last.measured.entropy), p_max.push_back(last.measured.p_max);
      trace.push_back(last.measured.trace_j), norm2.push_back(last.softmax.frobenius_j);
    }
    const auto expect = [](const std::vector<double>& values, const std::optional<double>& theory, const char* what) {
      const Estimate measured = estimate(values);
      if (!theory) return;
      EXPECT_NEAR(measured.value, *theory, 5 * measured.standard_error) << what;
    };
    ASSERT_TRUE(last.theory);
    EXPECT_EQ(last.sigma, last.theory->sigma);
    expect(sigma2, last.theory->sigma * last.theory->sigma, "σ²");
    expect(entropy, last.theory->entropy, "entropy");
    expect(p_max, last.theory->p_max, "p_max");
    expect(trace, last.theory->trace_j, "tr J");
    expect(norm2, last.theory->frobenius_j, "‖J‖²");
  };
  for (const char* rule : {"none", "sqrt_dk", "dk", "sqrt_dk*ssmax(0.43)", "measured", "qk_norm", "cosine(10)"}) {
    SCOPED_TRACE(rule);
    PlaygroundOptions o;
    o.rule = treatment(rule);
    o.dk = 32, o.keys = 200, o.queries = 50;
    agrees(o);
    EXPECT_EQ(play(o).theory->entropy.has_value(), o.rule.on == Treatment::On::kScores);
  }
  PlaygroundOptions o;
  o.mean = 0.5, o.correlation = 0.2, o.sigma_q = 2, o.queries = 200;
  agrees(o);
  o = {};
  o.rule = treatment("none"), o.soft_cap = 6;
  EXPECT_FALSE(play(o).theory);
  EXPECT_EQ(play(o).sigma, play(o).measured.sigma);
}

TEST(Playground, FreezesWhereTheoryHasIt) {
  PlaygroundOptions o;
  o.rule = treatment("none");
  for (const std::int64_t keys : {16, 64, 256, 1024})
    for (const std::int64_t dk : {2, 4, 8, 16, 64}) {
      o.dk = dk, o.keys = keys;
      const Playground p = play(o);
      EXPECT_DOUBLE_EQ(p.sigma, std::sqrt(static_cast<double>(dk)));
      EXPECT_NEAR(p.critical_sigma, std::sqrt(2 * std::log(static_cast<double>(keys))), 1e-6);
      EXPECT_EQ(p.frozen, static_cast<double>(dk) > 2 * std::log(static_cast<double>(keys)));
    }
}

TEST(Playground, DropoutShowsInTheWeightsOnly) {
  PlaygroundOptions o = small(), dropped = small();
  dropped.dropout = 0.25;
  const Playground whole = play(o), part = play(dropped);
  EXPECT_EQ(whole.measured.entropy, part.measured.entropy);
  EXPECT_EQ(whole.row.score_gradient, part.row.score_gradient);
  std::int64_t gone = 0;
  for (std::size_t i = 0; i < whole.weights.values.size(); ++i) {
    const double before = whole.weights.values[i], after = part.weights.values[i];
    if (after == 0) ++gone;
    else EXPECT_DOUBLE_EQ(after, before / 0.75);
  }
  const auto all = static_cast<double>(whole.weights.values.size());
  EXPECT_NEAR(static_cast<double>(gone), 0.25 * all, 5 * std::sqrt(all * 0.25 * 0.75));
}

TEST(Playground, TheSameAtAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  PlaygroundOptions o;
  o.keys = 1000, o.queries = 300;
  omp_set_num_threads(1);
  const Playground one = play(o);
  omp_set_num_threads(3);
  const Playground three = play(o);
  omp_set_num_threads(before);
  EXPECT_EQ(one.measured.entropy, three.measured.entropy);
  EXPECT_EQ(one.weights.values, three.weights.values);
  EXPECT_EQ(one.histogram.counts, three.histogram.counts);
  o.seed = 2;
  EXPECT_NE(play(o).weights.values, one.weights.values);
}

TEST(Playground, Refuses) {
  const auto refusal = [](const std::function<void(PlaygroundOptions&)>& change) {
    PlaygroundOptions o;
    change(o);
    return test::message_of([&] { play(o); });
  };
  EXPECT_EQ(refusal([](auto& o) { o.dk = 0; }), "dk: 0, but a whole number from 1 to 65536 is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.keys = 1; }), "keys: 1, but a whole number from 2 to 1048576 is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.queries = 0; }), "queries: 0, but a whole number from 1 to 65536 is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.row = 64; }), "row: 64, but a whole number from 0 to 63 is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.keys = 1 << 20, o.dk = 65536; }),
            "keys × dk: 68719476736 numbers, but at most 67108864 are wanted");
  EXPECT_EQ(refusal([](auto& o) { o.sigma_q = 0; }), "sigma_q: 0, but a number above 0, at most 1e6, is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.correlation = 1.5; }), "correlation: 1.5, but a number from 0 to 1 is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.soft_cap = 0; }), "soft_cap: 0, but a number above 0, at most 1e6, is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.dropout = 1; }), "dropout: 1, but a number from 0 to below 1 is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.mean = NAN; }), "mean: nan, but a number from -1e6 to 1e6 is wanted");
  EXPECT_EQ(refusal([](auto& o) { o.rule = treatment("temperature"); }),
            "rule: temperature looks at the scores twice; whatif has it");
}

}  // namespace
}  // namespace rootdk::lab
