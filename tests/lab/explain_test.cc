// One row of scores, step by step: the worked numbers that texts on attention print, each recomputed, and the Jacobian
// and gradient against differences.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "rootdk/lab/explain.h"
#include "rootdk/lab/rules.h"
#include "rootdk/lab/variance.h"
#include "rootdk/scale.h"
#include "rootdk/theory/dot_product.h"
#include "support/message.h"

namespace rootdk::lab {
namespace {

using Strings = std::vector<std::string>;

std::string printed(double x, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, x);
  return text;
}

Strings printed(const std::vector<double>& values, int decimals) {
  Strings out;
  for (const double x : values) out.push_back(printed(x, decimals));
  return out;
}

Explanation of_scores(std::vector<double> scores, std::int64_t dk) {
  ExplainOptions options;
  options.scores = std::move(scores);
  options.dk = dk;
  return explain(options);
}

// The table of worked numbers, line by line.
TEST(Explain, Exponentials) {
  const theory::SoftmaxRow row = of_scores({1, 5, 10, 20, 50}, 4).rules[0].softmax;
  EXPECT_EQ(printed(row.exponentials[0], 3), "2.718");
  EXPECT_EQ(printed(row.exponentials[1], 1), "148.4");
  EXPECT_EQ(printed(row.exponentials[2], 0), "22026");
  EXPECT_EQ(printed(row.exponentials[3], 0), "485165195");
  EXPECT_NEAR(row.exponentials[4] / 5.1847e21, 1, 1e-5);
}

TEST(Explain, FiftyTenFive) {
  const Explanation e = of_scores({50, 10, 5}, 100);
  const std::vector<double>& p = e.rules[0].softmax.probabilities;
  EXPECT_GT(p[0], 0.999);
  EXPECT_EQ(printed(p[1] * 1e18, 1), "4.2");
  EXPECT_EQ(printed(p[2] * 1e20, 1), "2.9");
  EXPECT_EQ(e.rules[1].divisor, 10);
  EXPECT_EQ(printed(e.rules[1].scores, 1), (Strings{"5.0", "1.0", "0.5"}));
  EXPECT_EQ(printed(e.rules[1].softmax.probabilities, 3), (Strings{"0.971", "0.018", "0.011"}));
  EXPECT_EQ(printed(e.rules[1].softmax.sum, 2), "152.78");
}

TEST(Explain, FourComponents) {
  ExplainOptions options;
  options.q = {1, 0, 1, 0};
  options.keys = {{0, 1, 1, 1}};
  const Explanation e = explain(options);
  EXPECT_EQ(e.dk, 4);
  EXPECT_EQ(e.raw, (std::vector<double>{1}));
  EXPECT_EQ(e.rules[1].divisor, 2);
  EXPECT_EQ(e.rules[1].scores, (std::vector<double>{0.5}));
}

TEST(Explain, FourteenTenTwelve) {
  const Explanation e = of_scores({14, 10, 12}, 64);
  const theory::SoftmaxRow &none = e.rules[0].softmax, &root = e.rules[1].softmax;
  EXPECT_EQ(printed(none.exponentials, 0), (Strings{"1202604", "22026", "162755"}));
  EXPECT_EQ(printed(none.sum, 0), "1387386");  // as printed: of the three rounded terms it would be 1387385
  EXPECT_EQ(printed(none.probabilities, 3), (Strings{"0.867", "0.016", "0.117"}));
  EXPECT_EQ(e.rules[1].divisor, 8);
  EXPECT_EQ(e.rules[1].scores, (std::vector<double>{1.75, 1.25, 1.5}));
  EXPECT_EQ(printed(root.sum, 3), "13.727");
  EXPECT_EQ(printed(root.probabilities, 3), (Strings{"0.419", "0.254", "0.326"}));
}

TEST(Explain, LogitsOfStandardDeviationEight) {
  const Explanation e = of_scores({-20, 3, 25, -15}, 64);
  EXPECT_GT(e.rules[0].softmax.p_max, 0.999);
  EXPECT_EQ(e.rules[1].scores, (std::vector<double>{-2.5, 0.375, 3.125, -1.875}));
  EXPECT_EQ(printed(e.rules[1].softmax.probabilities, 3), (Strings{"0.003", "0.060", "0.931", "0.006"}));
}

TEST(Explain, VariancesOfTheTable) {
  VarianceOptions options;
  options.dk = {64};
  options.pairs = 2;
  const Variance v = measure_variance(options);
  EXPECT_EQ(printed(v.divided.variance, 2), "2.67");
  EXPECT_EQ(printed(v.divided.variance_divided, 2), "0.67");
  EXPECT_DOUBLE_EQ(v.divided.variance / v.divided.variance_divided, 4);
  EXPECT_EQ(theory::square_terms(3).all, 9);
  EXPECT_EQ(theory::square_terms(3).diagonal, 3);
  EXPECT_EQ(theory::square_terms(3).off_diagonal, 6);
  EXPECT_EQ(expected_variance({}, 3), 3);
  EXPECT_EQ(theory::square_terms(64).all, 4096);
  EXPECT_EQ(theory::square_terms(64).off_diagonal, 4032);
  // Dividing by 1, √d and d leaves d, 1 and 1/d.
  for (const std::int64_t d : {1, 16, 64, 512}) {
    const double variance = expected_variance({}, d);
    EXPECT_DOUBLE_EQ(variance * std::pow(Scale::none().factor(0, d), 2), static_cast<double>(d));
    EXPECT_DOUBLE_EQ(variance * std::pow(Scale::inv_sqrt_dk().factor(0, d), 2), 1);
    EXPECT_DOUBLE_EQ(variance * std::pow(Scale::inv_dk().factor(0, d), 2), 1 / static_cast<double>(d));
  }
}

// Central differences with step h: an error of h²·(third derivative, at most 1) plus 2⁻⁵²/h; h = 1e-5 makes both about
// 1e-10.
TEST(Explain, JacobianAndGradientAreDerivatives) {
  ExplainOptions options;
  options.scores = {3, -1, 0.5, 2.2};
  options.dk = 4;
  options.upstream = {0.3, -2, 1, 0.7};
  const Explanation e = explain(options);
  const double h = 1e-5;
  for (const ExplainedRule& rule : e.rules)
    for (std::size_t j = 0; j < 4; ++j) {
      std::vector<double> up = rule.scores, down = rule.scores;
      up[j] += h, down[j] -= h;
      const theory::SoftmaxRow a = theory::softmax_row(up), b = theory::softmax_row(down);
      double through = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        const double slope = (a.probabilities[i] - b.probabilities[i]) / (2 * h);
        EXPECT_NEAR(rule.jacobian[i * 4 + j], slope, 1e-9);
        through += options.upstream[i] * slope;
      }
      EXPECT_NEAR(rule.score_gradient[j], through, 1e-8);
      EXPECT_DOUBLE_EQ(rule.raw_gradient[j], rule.score_gradient[j] / rule.divisor);
    }
}

// Norm and trace belong to the matrix, and a gradient on the scores always sums to 0: softmax does not see a common
// shift.
TEST(Explain, StatisticsAreThoseOfTheMatrix) {
  const Explanation e = of_scores({1, 4, 2, 8, 5, 7}, 3);
  for (const ExplainedRule& rule : e.rules) {
    double norm2 = 0, trace = 0, gradient = 0;
    for (std::size_t i = 0; i < 36; ++i) norm2 += rule.jacobian[i] * rule.jacobian[i];
    for (std::size_t i = 0; i < 6; ++i) trace += rule.jacobian[i * 7], gradient += rule.score_gradient[i];
    EXPECT_NEAR(rule.softmax.frobenius_j, norm2, 1e-14);
    EXPECT_NEAR(rule.softmax.trace_j, trace, 1e-14);
    EXPECT_NEAR(gradient, 0, 1e-15);
    EXPECT_DOUBLE_EQ(rule.effective_keys, std::exp(rule.softmax.entropy));
  }
  // By default the gradient is on the weight of the largest score: a row of the matrix.
  for (std::size_t j = 0; j < 6; ++j) EXPECT_NEAR(e.rules[1].score_gradient[j], e.rules[1].jacobian[3 * 6 + j], 1e-16);
}

TEST(Explain, LengthRulesSeeTheRowsOwnLength) {
  ExplainOptions options;
  options.scores = {1, 2, 3};
  options.dk = 16;
  options.rules = {Scale::parse("sqrt_dk*ssmax(0.5)")};
  EXPECT_DOUBLE_EQ(explain(options).rules[0].divisor, 4 / (0.5 * std::log(3.0)));
}

TEST(Explain, RefusesWhatMakesNoSense) {
  const auto message = [](const ExplainOptions& options) { return test::message_of([&] { explain(options); }); };
  EXPECT_EQ(message({}), "q: missing; scores, or q and at least one k, are wanted");
  EXPECT_EQ(message({.scores = {1}}), "dk: 0, but a whole number from 1 to 65536 is wanted");
  EXPECT_EQ(message({.scores = {INFINITY}, .dk = 4}), "scores: inf, but a finite number is wanted");
  EXPECT_EQ(message({.scores = {1}, .dk = 4, .q = {1}}),
            "scores: given beside q and k, but one or the other is wanted");
  EXPECT_EQ(message({.q = {1, 2}}), "k: missing; q was given, so at least one k is wanted");
  EXPECT_EQ(message({.q = {1, 2}, .keys = {{1}}}), "k: 1 component, but q has 2");
  EXPECT_EQ(message({.dk = 3, .q = {1, 2}, .keys = {{1, 1}}}), "dk: 3, but q has 2 components");
  EXPECT_EQ(message({.scores = {1, 2}, .dk = 4, .upstream = {1}}), "gradient: 1 number, but there are 2 scores");
  EXPECT_EQ(message({.scores = {1, 2}, .dk = 4, .rules = {}}), "rules: none given, but at least one is wanted");
}

// Whoever adds a scale to the registry says where it comes from.
TEST(Rules, EveryScaleHasASource) {
  const std::vector<Rule> rules = all_rules();
  ASSERT_GT(rules.size(), Scale::names().size());
  for (std::size_t i = 0; i < rules.size(); ++i) {
    EXPECT_FALSE(rules[i].source.empty()) << rules[i].name;
    EXPECT_FALSE(rules[i].formula.empty()) << rules[i].name;
    EXPECT_FALSE(rules[i].where.empty()) << rules[i].name;
    EXPECT_EQ(rules[i].in_registry, i < Scale::names().size());
    if (rules[i].in_registry) {
      EXPECT_EQ(rules[i].name, Scale::names()[i].name);
    }
  }
}

}  // namespace
}  // namespace rootdk::lab
