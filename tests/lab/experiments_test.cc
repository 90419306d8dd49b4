// The experiments on whole heads: what is measured against theory, within standard errors between independent batches;
// and the same numbers at any thread count. Seeds are fixed, so a run either always passes or never.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "rootdk/adaptive.h"
#include "rootdk/attention.h"
#include "rootdk/lab.h"
#include "rootdk/qk_norm.h"
#include "rootdk/theory.h"
#include "support/message.h"

namespace rootdk::lab {
namespace {

// Sixteen batches: a Student t of 15 degrees passes 5 once in 6000 times.
constexpr double kStandardErrors = 5;

void expect_agrees(const Estimate& measured, double expected, double resolution, const char* what) {
  EXPECT_NEAR(measured.value, expected, kStandardErrors * measured.standard_error) << what;
  EXPECT_LE(measured.standard_error, resolution * std::fabs(expected)) << what << ": too few samples to tell";
}

/// Runs it on one thread and on three.
template <class Run>
auto on_one_and_three_threads(const Run& run) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  auto one = run();
  omp_set_num_threads(3);
  auto three = run();
  omp_set_num_threads(before);
  return std::pair{one, three};
}

// Phase --------------------------------------------------------------------------------------------------------------

TEST(Phase, IsWhatQuadratureSays) {
  PhaseOptions options;
  options.dk = {2, 16, 64};
  options.keys = {16, 256};
  options.queries = 64;
  options.batches = 16;
  const Phase phase = measure_phase(options);
  ASSERT_EQ(phase.points.size(), 18u);
  for (const PhasePoint& p : phase.points) {
    SCOPED_TRACE(testing::Message() << p.rule << ", d_k " << p.dk << ", keys " << p.keys);
    expect_agrees(p.entropy.measured, p.entropy.theory, 0.1, "entropy");
    expect_agrees(p.p_max.measured, p.p_max.theory, 0.1, "p_max");
    expect_agrees(p.trace_j.measured, p.trace_j.theory, 0.1, "tr J");
    const auto keys = static_cast<double>(p.keys), dk = static_cast<double>(p.dk);
    EXPECT_DOUBLE_EQ(p.sigma, p.rule == "none" ? std::sqrt(dk) : p.rule == "dk" ? 1 / std::sqrt(dk) : 1);
    EXPECT_DOUBLE_EQ(p.critical_sigma, theory::critical_sigma(keys));
    EXPECT_EQ(p.frozen, p.sigma > std::sqrt(2 * std::log(keys)));
    EXPECT_DOUBLE_EQ(p.entropy.theory, theory::gaussian_softmax(p.sigma, keys, p.dk).entropy);
    // Unscaled, a point is frozen exactly where d_k is above the critical line.
    for (const CriticalPoint& c : phase.critical)
      if (c.keys == p.keys && p.rule == "none") {
        EXPECT_EQ(p.frozen, dk > c.dk);
      }
  }
}

TEST(Phase, IsTheSameAtAnyThreadCount) {
  PhaseOptions options;
  options.dk = {8};
  options.keys = {64, 300};
  options.queries = 40;
  options.batches = 3;
  const auto [one, three] = on_one_and_three_threads([&] { return measure_phase(options); });
  for (std::size_t i = 0; i < one.points.size(); ++i) {
    EXPECT_EQ(one.points[i].entropy.measured.value, three.points[i].entropy.measured.value);
    EXPECT_EQ(one.points[i].p_max.measured.high, three.points[i].p_max.measured.high);
    EXPECT_EQ(one.points[i].p_max.theory, three.points[i].p_max.theory);
  }
}

TEST(Phase, KeepsWholePointsWhenStopped) {
  PhaseOptions options;
  options.dk = {2, 4};
  options.keys = {4, 8};
  options.queries = 4;
  options.batches = 2;
  int asked = 0;
  Watch watch;
  watch.stop = [&] { return ++asked > 7; };  // in the middle of the fourth cell of two batches
  const Phase phase = measure_phase(options, watch);
  EXPECT_FALSE(phase.complete);
  EXPECT_EQ(phase.points.size(), 9u);
}

// Gradient -----------------------------------------------------------------------------------------------------------

TEST(Gradient, AtTheScoresIsTheJacobianOfTheory) {
  GradientOptions options;
  options.dk = {4, 64};
  options.keys = 128;
  options.queries = 64;
  options.batches = 16;
  const Gradient gradient = measure_gradient(options);
  ASSERT_EQ(gradient.points.size(), 6u);
  for (const GradientPoint& p : gradient.points) {
    SCOPED_TRACE(testing::Message() << p.rule << ", d_k " << p.dk);
    expect_agrees(p.scores.mean_square, p.scores_theory, 0.1, "dS");
    expect_agrees(p.trace_j, p.trace_theory, 0.1, "tr J");
    const Quantiles& q = p.scores.length;
    const double ascending[] = {q.p1, q.p5, q.p25, q.median, q.p75, q.p95, q.p99};
    EXPECT_TRUE(std::is_sorted(std::begin(ascending), std::end(ascending)));
  }
}

// What reaches Q and K, computed again in double from the definition for one small batch of the same law: dQ = c·dS·K.
// Both are means over independent batches, so their difference is within the sum of their errors.
TEST(Gradient, AtQAndKIsTheChainRule) {
  const std::size_t n = 16, t = 8, d = 4;
  GradientOptions options;
  options.dk = {static_cast<std::int64_t>(d)};
  options.keys = static_cast<std::int64_t>(n), options.queries = static_cast<std::int64_t>(t), options.batches = 400;
  const Gradient gradient = measure_gradient(options);

  std::vector<std::vector<double>> to_q(3), to_k(3);
  for (std::uint64_t b = 0; b < 400; ++b) {
    const auto draw = [&](std::size_t count, double std, std::uint64_t stream) {
      std::vector<float> x(count);
      nn::fill(x, nn::Init::normal(std), {}, {77 + b, stream});
      return x;
    };
    const auto q = draw(t * d, 1, 0), k = draw(n * d, 1, 1), v = draw(n * d, 1, 2),
               d_o = draw(t * d, 1 / std::sqrt(static_cast<double>(d)), 3);
    for (std::size_t r = 0; r < 3; ++r) {
      const double c = options.rules[r].factor(0, static_cast<std::int64_t>(d));
      std::vector<double> d_k(n * d);
      double square_q = 0, square_k = 0;
      for (std::size_t i = 0; i < t; ++i) {
        std::vector<double> s(n), d_p(n), d_q(d);
        for (std::size_t j = 0; j < n; ++j)
          for (std::size_t x = 0; x < d; ++x) {
            s[j] += c * static_cast<double>(q[i * d + x]) * static_cast<double>(k[j * d + x]);
            d_p[j] += static_cast<double>(d_o[i * d + x]) * static_cast<double>(v[j * d + x]);
          }
        const std::vector<double> p = theory::softmax_row(s).probabilities;
        double mean = 0;
        for (std::size_t j = 0; j < n; ++j) mean += p[j] * d_p[j];
        for (std::size_t j = 0; j < n; ++j)
          for (std::size_t x = 0; x < d; ++x) {
            const double d_s = p[j] * (d_p[j] - mean);
            d_q[x] += c * d_s * static_cast<double>(k[j * d + x]);
            d_k[j * d + x] += c * d_s * static_cast<double>(q[i * d + x]);
          }
        for (const double x : d_q) square_q += x * x / static_cast<double>(t);
      }
      for (const double x : d_k) square_k += x * x / static_cast<double>(n);
      to_q[r].push_back(square_q), to_k[r].push_back(square_k);
    }
  }
  for (std::size_t r = 0; r < 3; ++r) {
    SCOPED_TRACE(gradient.points[r].rule);
    const Estimate q = estimate(to_q[r]), k = estimate(to_k[r]);
    const GradientPoint& p = gradient.points[r];
    EXPECT_NEAR(p.queries.mean_square.value, q.value,
                kStandardErrors * (q.standard_error + p.queries.mean_square.standard_error));
    EXPECT_NEAR(p.keys.mean_square.value, k.value,
                kStandardErrors * (k.standard_error + p.keys.mean_square.standard_error));
    EXPECT_LT(q.standard_error, 0.1 * q.value) << "too few samples to tell";
  }
}

// The three statements the experiment is there for, at a size where theory leaves no doubt (n = 256, d = 256: σ = 16
// against σ_c = 3.3).
TEST(Gradient, VanishesInQuantilesNotInTheMean) {
  GradientOptions options;
  options.dk = {256};
  options.keys = 256;
  options.queries = 128;
  options.batches = 4;
  const Gradient gradient = measure_gradient(options);
  const GradientPoint &none = gradient.points[0], &root = gradient.points[1], &by_dk = gradient.points[2];
  EXPECT_GT(none.scores.mean_square.value, root.scores.mean_square.value);
  EXPECT_LT(none.scores.length.p5, 0.01 * root.scores.length.p5);
  EXPECT_GT(none.share_trace_j_under_1pct, 0.1);
  EXPECT_EQ(root.share_trace_j_under_1pct, 0);
  EXPECT_LT(by_dk.queries.length.median, root.queries.length.median / 8);  // c alone makes it 16 times smaller
}

TEST(Gradient, IsTheSameAtAnyThreadCount) {
  GradientOptions options;
  options.dk = {8, 40};
  options.keys = 70;
  options.queries = 33;
  options.batches = 3;
  const auto [one, three] = on_one_and_three_threads([&] { return measure_gradient(options); });
  for (std::size_t i = 0; i < one.points.size(); ++i) {
    EXPECT_EQ(one.points[i].scores.mean_square.value, three.points[i].scores.mean_square.value);
    EXPECT_EQ(one.points[i].queries.length.median, three.points[i].queries.length.median);
    EXPECT_EQ(one.points[i].keys.length.p99, three.points[i].keys.length.p99);
    EXPECT_EQ(one.points[i].trace_median, three.points[i].trace_median);
  }
}

// Precision ----------------------------------------------------------------------------------------------------------

const PrecisionPoint& at(const Precision& precision, std::string_view rule, DType dtype, double gain) {
  for (const PrecisionPoint& p : precision.points)
    if (p.rule == rule && p.dtype == dtype && p.gain == gain) return p;
  throw std::logic_error("no such point");
}

// Unit roundoff, and what it may do: |stored − s| ≤ u·|s|, so the probabilities move by a share of at most 2u·max|s| +
// u (as they are stored), and ½Σ|Δp| by half of that and no more than a rounding of e^x besides. Scores of this size
// stay below 6σ.
TEST(Precision, SaturationIsNotRounding) {
  PrecisionOptions options;
  options.dk = {64};
  options.gains = {1};
  options.keys = 256;
  options.queries = 64;
  const Precision precision = measure_precision(options);
  for (const Scale& scale : options.rules) {
    const std::string rule = scale.name();
    const PrecisionPoint& exact = at(precision, rule, DType::kF64, 1);
    EXPECT_EQ(exact.p_error, 0);
    EXPECT_EQ(exact.score_error, 0);
    EXPECT_TRUE(std::isnan(exact.signal_bits));
    double last = 0;
    for (const auto& [dtype, u] : {std::pair{DType::kF32, 0x1p-24}, {DType::kF16, 0x1p-11}, {DType::kBF16, 0x1p-8}}) {
      SCOPED_TRACE(testing::Message() << rule << " in " << name_of(dtype));
      const PrecisionPoint& p = at(precision, rule, dtype, 1);
      const double largest = 6 * 8 * scale.factor(0, 64), share = 1.1 * u * (2 * largest + 1);
      EXPECT_EQ(p.overflow_raw, 0);
      EXPECT_LE(p.p_error, share);
      EXPECT_NEAR(p.p_max, exact.p_max, share * exact.p_max);
      EXPECT_LE(p.score_error, u * largest);
      EXPECT_GT(p.score_error, last);
      last = p.score_error;
    }
  }
  EXPECT_GT(at(precision, "none", DType::kF64, 1).p_max, 0.6);
  EXPECT_LT(at(precision, "sqrt_dk", DType::kF64, 1).p_max, 0.1);
}

// √64 and 64 are powers of two, so the stored scores under the three rules are the same digits with other exponents,
// and their errors scale exactly (f16 is left out: its smallest scores are subnormal). The bits that tell keys apart
// are what dividing by d_k wastes.
TEST(Precision, DividingByDkWastesBitsOfTheWeights) {
  PrecisionOptions options;
  options.dk = {64};
  options.gains = {1};
  options.keys = 256;
  options.queries = 64;
  const Precision precision = measure_precision(options);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const PrecisionPoint &none = at(precision, "none", dtype, 1), &root = at(precision, "sqrt_dk", dtype, 1),
                         &by_dk = at(precision, "dk", dtype, 1);
    EXPECT_DOUBLE_EQ(none.score_error, 8 * root.score_error);
    EXPECT_DOUBLE_EQ(none.score_error, 64 * by_dk.score_error);
    EXPECT_GT(root.signal_bits, none.signal_bits + 0.5);
    EXPECT_GT(root.signal_bits, by_dk.signal_bits + 0.5);
  }
}

// Scores are normal with σ = 8·gain given ‖q‖ = 8, so the share beyond 65504 is near erfc; a tenth of it is far more
// than 16 384 pairs vary.
TEST(Precision, F16Overflows) {
  PrecisionOptions options;
  options.dk = {64};
  options.gains = {4096};
  options.keys = 256;
  options.queries = 64;
  const Precision precision = measure_precision(options);
  const PrecisionPoint &none = at(precision, "none", DType::kF16, 4096),
                       &root = at(precision, "sqrt_dk", DType::kF16, 4096);
  EXPECT_NEAR(none.overflow_raw, std::erfc(65520 / (8 * 4096.0) / std::numbers::sqrt2), 0.02);
  EXPECT_GT(none.overflow_rows, 0.9);
  EXPECT_EQ(root.overflow_rows, 0);
  EXPECT_EQ(at(precision, "none", DType::kBF16, 4096).overflow_raw, 0);
  // And in f64, where nothing overflows, the scaled head is as saturated: the scale does not cure an exploded one.
  EXPECT_GT(at(precision, "sqrt_dk", DType::kF64, 4096).p_max, 0.98);
}

TEST(Precision, IsTheSameAtAnyThreadCount) {
  PrecisionOptions options;
  options.dk = {8};
  options.keys = 50;
  options.queries = 7;
  const auto [one, three] = on_one_and_three_threads([&] { return measure_precision(options); });
  for (std::size_t i = 0; i < one.points.size(); ++i) {
    EXPECT_EQ(one.points[i].p_error, three.points[i].p_error);
    EXPECT_EQ(one.points[i].score_error, three.points[i].score_error);
  }
}

// Initialisation -----------------------------------------------------------------------------------------------------

TEST(Initialisation, IsWhatTheRulesAndTheWeightsPredict) {
  InitialisationOptions options;
  options.widths = {64, 768};
  options.dk = {64};
  options.tokens = 32;
  options.batches = 16;
  const Initialisation result = measure_initialisation(options);
  ASSERT_EQ(result.rows.size(), 10u);
  for (const InitialisationRow& row : result.rows) {
    SCOPED_TRACE(testing::Message() << row.init << ", width " << row.width);
    expect_agrees(row.variance, row.predicted * row.predicted, 0.05, "by the rule");
    expect_agrees(row.variance, row.from_weights * row.from_weights, 0.05, "by the weights");
    EXPECT_DOUBLE_EQ(row.after_sqrt_dk, row.measured / 8);
  }
  // At D = 768: √d, √d/2, √d, 2√d, and GPT-2's.
  const double expected[] = {8, 4, 8, 16, 8 * 768 * 0.0004};
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(result.rows[2 * i + 1].predicted, expected[i], 1e-12) << result.rows[2 * i + 1].init;
  EXPECT_NEAR(expected[4], 2.458, 5e-4);
}

TEST(Initialisation, IsTheSameAtAnyThreadCount) {
  InitialisationOptions options;
  options.widths = {96};
  options.dk = {16};
  options.tokens = 8;
  options.batches = 3;
  const auto [one, three] = on_one_and_three_threads([&] { return measure_initialisation(options); });
  for (std::size_t i = 0; i < one.rows.size(); ++i) {
    EXPECT_EQ(one.rows[i].variance.value, three.rows[i].variance.value);
    EXPECT_EQ(one.rows[i].from_weights, three.rows[i].from_weights);
  }
}

// Whatif -------------------------------------------------------------------------------------------------------------

struct Head {
  std::vector<float> q, k, v;
  std::int64_t batch = 2, heads_q = 4, heads_kv = 2, len_q = 30, len_kv = 40, dim = 64, dim_v = 8;

  explicit Head(double size = 3) {
    const auto draw = [](std::int64_t count, double std, std::uint64_t stream) {
      std::vector<float> x(static_cast<std::size_t>(count));
      nn::fill(x, nn::Init::normal(std), {}, {5, stream});
      return x;
    };
    q = draw(batch * heads_q * len_q * dim, size, 1), k = draw(batch * heads_kv * len_kv * dim, 1, 2);
    v = draw(batch * heads_kv * len_kv * dim_v, 1, 3);
  }
  ConstTensor q_view() const { return tensor(q.data(), {batch, heads_q, len_q, dim}); }
  ConstTensor k_view() const { return tensor(k.data(), {batch, heads_kv, len_kv, dim}); }
  ConstTensor v_view() const { return tensor(v.data(), {batch, heads_kv, len_kv, dim_v}); }
};

Whatif try_on(const Head& head, const std::vector<const char*>& rules, bool with_v = true, bool causal = false) {
  WhatifOptions options;
  options.q = head.q_view(), options.k = head.k_view();
  if (with_v) options.v = head.v_view();
  options.causal = causal;
  options.treatments.clear();
  for (const char* rule : rules) options.treatments.push_back(treatment(rule));
  return try_rules(options);
}

TEST(Whatif, ScalesAreThoseOfForward) {
  const Head head;
  for (const bool causal : {false, true})
    for (const char* rule : {"none", "sqrt_dk", "dk", "constant(0.3)", "sqrt_dk*ssmax(0.43)"}) {
      SCOPED_TRACE(rule);
      Problem problem;
      problem.scale = Scale::parse(rule);
      problem.mask.causal = causal;
      problem.stats = StatsLevel::kFull;
      std::vector<float> o(static_cast<std::size_t>(head.batch * head.heads_q * head.len_q * head.dim_v));
      const Stats stats = forward(problem, {head.q_view(), head.k_view(), head.v_view()},
                                  {tensor(o.data(), {head.batch, head.heads_q, head.len_q, head.dim_v})});
      const Whatif result = try_on(head, {rule}, true, causal);
      ASSERT_EQ(result.rows.size(), 1u);
      ASSERT_EQ(result.rows[0].heads.size(), 4u);
      for (std::int64_t h = 0; h < 4; ++h) {
        const HeadStats merged = merge(stats.at(0, h), stats.at(1, h));
        EXPECT_EQ(result.rows[0].heads[static_cast<std::size_t>(h)].entropy, merged.softmax.entropy);
        EXPECT_EQ(result.rows[0].heads[static_cast<std::size_t>(h)].p_max, merged.mean_p_max);
      }
      EXPECT_EQ(result.rows[0].output_change, 0) << "against itself";
    }
}

// The measured factor makes the population variance within rows 1; the statistic divides by n − 1. f32 sums of 40 keys:
// 1e-5 is plenty.
TEST(Whatif, MeasuredUnitVarianceIsOne) {
  const Head head;
  const Whatif result = try_on(head, {"measured"});
  for (const WhatifNumbers& n : result.rows[0].heads) EXPECT_NEAR(n.sigma * n.sigma, 40.0 / 39, 1e-5);
  ASSERT_EQ(result.head_divisors.size(), 4u);
  const Whatif fixed = try_on(head, {"none"});
  for (std::size_t h = 0; h < 4; ++h)
    EXPECT_NEAR(fixed.rows[0].heads[h].sigma / result.head_divisors[h], std::sqrt(40.0 / 39), 1e-5);
  EXPECT_FALSE(result.rows[0].factor.has_value());
  EXPECT_EQ(fixed.rows[0].factor, 1);
}

// RMS norm and cosine do not care how large q is; every other rule does.
TEST(Whatif, NormsForgetTheSize) {
  const Head small(1), large(16);
  const std::vector<const char*> rules = {"qk_norm", "cosine(10)", "sqrt_dk", "measured", "soft_cap(2)"};
  const Whatif a = try_on(small, rules), b = try_on(large, rules);
  for (const std::size_t i : {0u, 1u, 3u}) EXPECT_NEAR(a.rows[i].all.entropy, b.rows[i].all.entropy, 1e-4) << rules[i];
  EXPECT_GT(a.rows[2].all.entropy, 5 * b.rows[2].all.entropy);
  EXPECT_LE(b.rows[4].all.largest, 2);
  // A cosine is at most 1.
  EXPECT_LE(b.rows[1].all.largest, 10.001);
  // α = 8 is √d_k at 64: the same bits, the same output.
  EXPECT_EQ(try_on(large, {"sqrt_dk", "dk(8)"}).rows[1].output_change, 0);
  EXPECT_GT(*try_on(large, {"sqrt_dk", "dk"}).rows[1].output_change, 0.1);
}

TEST(Whatif, ValuesAreOptionalAndTemperatureSharpens) {
  const Head head(1);
  const Whatif with = try_on(head, {"sqrt_dk", "temperature"}),
               without = try_on(head, {"sqrt_dk", "temperature"}, false);
  EXPECT_FALSE(without.rows[0].output_change.has_value());
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(with.rows[i].all.entropy, without.rows[i].all.entropy);
  EXPECT_LT(with.rows[1].all.entropy, with.rows[0].all.entropy);
}

TEST(Whatif, UsualTreatmentsAreAllDifferentNames) {
  const std::vector<Treatment> all = usual_treatments();
  EXPECT_EQ(all.front().name, "sqrt_dk");
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i].name, all[j].name);
  std::string names;
  for (const Treatment& t : all) names += t.name + " ";
  for (const ScaleName& scale : Scale::names())
    if (scale.name != "constant" && scale.name != "unit_variance") {  // they need numbers that nobody can guess
      EXPECT_NE(names.find(scale.name), names.npos) << scale.name;
    }
}

TEST(Whatif, RefusesWhatMakesNoSense) {
  EXPECT_EQ(test::message_of([] { treatment("soft_cap(0)"); }), "rules: \"soft_cap(0)\": a number above 0 is wanted");
  const std::string known =
      "known are none, sqrt_dk, dk([alpha]), constant(c), unit_variance(sigma_q, sigma_k), yarn(f), ssmax(a[, b]), "
      "entropy_invariant, llama4, measured, qk_norm, cosine(c), soft_cap(c), temperature";
  EXPECT_EQ(test::message_of([] { treatment("bla"); }), "rules: \"bla\" is not known; " + known);
  EXPECT_EQ(test::message_of([] { treatment("cosin(3)"); }),
            "rules: \"cosin\" is not known; " + known + "; did you mean cosine?");
  EXPECT_EQ(test::message_of([] { treatment("sqrtdk*ssmax(1)"); }),
            "rules: \"sqrtdk\" is not known; " + known + "; did you mean sqrt_dk?");
  EXPECT_EQ(test::message_of([] { treatment("cosine(3"); }), "rules: \"cosine(3\", but cosine(c) is wanted");
  EXPECT_EQ(test::message_of([] { treatment("ssmax"); }),
            "scale: \"ssmax\": 0 parameters, but ssmax(a[, b]) is wanted");
  Head head;
  WhatifOptions options;
  options.q = head.q_view(), options.k = head.v_view();
  EXPECT_EQ(test::message_of([&] { try_rules(options); }), "k: dim_qk is 8, but q has 64");
  options.k = head.k_view();
  head.q[3 * 30 * 64] = INFINITY;  // the first row of head 3
  EXPECT_EQ(test::message_of([&] { try_rules(options); }),
            "q, k: NaN or Inf in query head 3 or its keys, but finite numbers are wanted");
  options.k.shape[2] = 1;
  EXPECT_EQ(test::message_of([&] { try_rules(options); }),
            "len_kv: 1, but a whole number from 2 to 1099511627776 is wanted");
}

// The machine --------------------------------------------------------------------------------------------------------

TEST(Health, EveryKernelPassesAndTheReferenceIsAmongThem) {
  const Health health = examine();
  EXPECT_TRUE(health.healthy());
  EXPECT_GE(health.checks.size(), 3 * Machine::here().isas.size() / 2);
  bool reference = false;
  for (const KernelCheck& check : health.checks) {
    EXPECT_TRUE(check.passed()) << check.kernel << " " << check.isa << " " << check.dtype << ": " << check.error;
    EXPECT_LT(check.allowed, 1);
    reference |= check.kernel == "reference";
  }
  EXPECT_TRUE(reference);
  EXPECT_GT(health.cores, 0);
  EXPECT_FALSE(health.plan.empty());
}

TEST(Timing, CountsWhatItTimes) {
  TimingOptions options;
  options.cases = {{2, 64, 16}, {2, 64, 16, true}};
  options.rounds = 2;
  const Timing timing = time_forward(options);
  ASSERT_EQ(timing.rows.size(), 2u);
  EXPECT_GT(timing.peak_gflops, 0);
  for (const TimingRow& row : timing.rows) {
    const double flops = 4.0 * 2 * 64 * 64 * 16 * (row.shape.causal ? 0.5 : 1);
    EXPECT_NEAR(row.gflops * row.milliseconds * 1e6, flops, 1e-6 * flops);
    EXPECT_GT(row.of_peak, 0);
  }
}

}  // namespace
}  // namespace rootdk::lab
