// Why the square root: closed forms against simulation, and the numbers that texts on attention print, recomputed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "rootdk/scale.h"
#include "rootdk/theory.h"
#include "support/message.h"
#include "support/rng.h"
#include "theory/batches.h"

namespace rootdk::theory {
namespace {

// Batches of Var(q·k / divisor). Its mean is known, so the mean square around it estimates the variance without bias.
Batches simulate(std::int64_t dim, const Components& q, const Components& k, double divisor, int pairs) {
  test::Rng rng(static_cast<std::uint64_t>(dim) + 17);
  const double mean = static_cast<double>(dim) * q.mean * k.mean;
  Batches out;
  for (int b = 0; b < Batches::kCount; ++b) {
    double squares = 0;
    for (int i = 0; i < pairs; ++i) {
      double dot = 0;
      for (std::int64_t c = 0; c < dim; ++c)
        dot += (q.mean + std::sqrt(q.variance) * rng.normal()) * (k.mean + std::sqrt(k.variance) * rng.normal());
      squares += (dot - mean) / divisor * (dot - mean) / divisor;
    }
    out.add(squares / pairs);
  }
  return out;
}

TEST(DotProduct, VarianceIsTheDimension) {
  for (const std::int64_t dim : {1, 3, 4, 64, 512}) {
    const auto d = static_cast<double>(dim);
    EXPECT_EQ(dot_product_variance(dim), d);
    EXPECT_EQ(unit_variance_divisor(dim), std::sqrt(d));
    const int pairs = dim > 64 ? 150 : 1000;
    expect_agrees(simulate(dim, {}, {}, 1, pairs), d, "none");
    for (const double c : {std::sqrt(d), d, 3.0})
      expect_agrees(simulate(dim, {}, {}, c, pairs), d / (c * c), "divided");
  }
}

TEST(DotProduct, MeansAndVariances) {
  const Components q{0.5, 2}, k{-0.3, 0.25};
  EXPECT_DOUBLE_EQ(dot_product_variance(16, q, k), 16 * (2 * 0.25 + 0.25 * 0.25 + 0.09 * 2));
  expect_agrees(simulate(16, q, k, 1, 1000), dot_product_variance(16, q, k), "variance");
  expect_agrees(simulate(16, q, k, unit_variance_divisor(16, q, k), 1000), 1, "divided");
  EXPECT_DOUBLE_EQ(unit_variance_divisor(64, {0, 4}, {0, 0.25}), 8);
}

TEST(DotProduct, SquareHasDiagonalAndOtherTerms) {
  test::Rng rng(3);
  Batches diagonal, others;
  for (int b = 0; b < Batches::kCount; ++b) {
    double on = 0, off = 0;
    for (int n = 0; n < 2000; ++n) {
      const double x = rng.normal() * rng.normal(), y = rng.normal() * rng.normal(), z = rng.normal() * rng.normal();
      on += (x * x + y * y + z * z) / 3 / 2000;
      off += 2 * (x * y + y * z + z * x) / 6 / 2000;
    }
    diagonal.add(on), others.add(off);
  }
  expect_agrees(diagonal, 1, "diagonal");
  expect_agrees(others, 0, "others", 0.02, 1);
}

// Which digits a text shows decides how closely a number is compared: it is printed the same way.
std::vector<std::string> printed(const std::vector<double>& values, int decimals) {
  std::vector<std::string> out;
  for (const double v : values) out.push_back(fmt::format("{:.{}f}", v, decimals));
  return out;
}
using Strings = std::vector<std::string>;

std::vector<double> times(std::vector<double> values, double factor) {
  for (double& v : values) v *= factor;
  return values;
}

TEST(WorkedNumbers, Exponentials) {
  const SoftmaxRow row = softmax_row(std::vector<double>{1, 5, 10, 20, 50});
  EXPECT_EQ(fmt::format("{:.3f}", row.exponentials[0]), "2.718");
  EXPECT_EQ(fmt::format("{:.1f}", row.exponentials[1]), "148.4");
  EXPECT_EQ(fmt::format("{:.0f}", row.exponentials[2]), "22026");
  EXPECT_EQ(fmt::format("{:.0f}", row.exponentials[3]), "485165195");
  EXPECT_EQ(fmt::format("{:.4e}", row.exponentials[4]), "5.1847e+21");
  EXPECT_NEAR(row.exponentials[4] / 5184705528587072045.0, 1000, 1e-9);  // as misprinted
}

TEST(WorkedNumbers, LargeScoresAreOneHotAndSmallOnesAreNot) {
  const SoftmaxRow large = softmax_row(std::vector<double>{50, 10, 5});
  EXPECT_EQ(printed({large.probabilities[0]}, 0), Strings{"1"});
  EXPECT_EQ(fmt::format("{:.1e}", large.probabilities[1]), "4.2e-18");
  EXPECT_EQ(fmt::format("{:.1e}", large.probabilities[2]), "2.9e-20");
  EXPECT_GT(large.p_max, 0.999);
  const SoftmaxRow small = softmax_row(std::vector<double>{5, 1, 0.5});
  EXPECT_EQ(printed(small.probabilities, 3), (Strings{"0.971", "0.018", "0.011"}));
  EXPECT_EQ(printed({small.sum}, 2), Strings{"152.78"});
}

TEST(WorkedNumbers, OneDotProduct) {
  const std::vector<double> q{1, 0, 1, 0}, k{0, 1, 1, 1};
  const double dot = score_moments(q, k, 4).mean;
  EXPECT_EQ(dot, 1);
  EXPECT_EQ(unit_variance_divisor(4), 2);
  EXPECT_EQ(dot * Scale::inv_sqrt_dk().factor(0, 4), 0.5);
}

TEST(WorkedNumbers, ThreeScoresUnscaledAndScaled) {
  const std::vector<double> scores{14, 10, 12}, scaled = times(scores, Scale::inv_sqrt_dk().factor(0, 64));
  const SoftmaxRow before = softmax_row(scores), after = softmax_row(scaled);
  EXPECT_EQ(printed(before.exponentials, 0), (Strings{"1202604", "22026", "162755"}));
  EXPECT_EQ(printed({before.sum}, 0), Strings{"1387386"});
  EXPECT_EQ(printed(before.probabilities, 3), (Strings{"0.867", "0.016", "0.117"}));
  EXPECT_EQ(scaled, (std::vector<double>{1.75, 1.25, 1.5}));
  EXPECT_EQ(printed({after.sum}, 3), Strings{"13.727"});
  EXPECT_EQ(printed(after.probabilities, 3), (Strings{"0.419", "0.254", "0.326"}));
}

TEST(WorkedNumbers, Variances) {
  const std::vector<double> values{2, 4, 6};
  const double whole = population_variance(values), halved = population_variance(times(values, 0.5));
  EXPECT_EQ(printed({whole, halved}, 2), (Strings{"2.67", "0.67"}));
  EXPECT_DOUBLE_EQ(whole / halved, 4);
}

TEST(WorkedNumbers, TermsOfTheSquare) {
  const SquareTerms three = square_terms(3), many = square_terms(64);
  EXPECT_EQ(three.all, 9);
  EXPECT_EQ(three.diagonal, 3);
  EXPECT_EQ(three.off_diagonal, 6);
  EXPECT_EQ(dot_product_variance(3), 3);
  EXPECT_EQ(many.all, 4096);
  EXPECT_EQ(many.diagonal, 64);
  EXPECT_EQ(many.off_diagonal, 4032);
}

TEST(WorkedNumbers, LogitsOfStandardDeviationEight) {
  EXPECT_EQ(unit_variance_divisor(64), 8);
  const std::vector<double> scores{-20, 3, 25, -15}, scaled = times(scores, Scale::inv_sqrt_dk().factor(0, 64));
  EXPECT_GT(softmax_row(scores).p_max, 0.999);
  EXPECT_EQ(scaled, (std::vector<double>{-2.5, 0.375, 3.125, -1.875}));
  EXPECT_EQ(printed(softmax_row(scaled).probabilities, 3), (Strings{"0.003", "0.060", "0.931", "0.006"}));
}

TEST(WorkedNumbers, VarianceAfterEachScale) {
  for (const std::int64_t dim : {4, 64, 512}) {
    const auto after = [&](const Scale& scale) {
      return dot_product_variance(dim) * std::pow(scale.factor(0, dim), 2);
    };
    EXPECT_DOUBLE_EQ(after(Scale::none()), static_cast<double>(dim));
    EXPECT_DOUBLE_EQ(after(Scale::inv_sqrt_dk()), 1);
    EXPECT_DOUBLE_EQ(after(Scale::inv_dk()), 1 / static_cast<double>(dim));
  }
}

// √d is a property of the initialisation.
TEST(WorkedNumbers, DivisorsOfInitialisations) {
  const auto divisor = [](double weight_std) {
    const Components c = projected_components(768, weight_std);
    return unit_variance_divisor(64, c, c);
  };
  EXPECT_DOUBLE_EQ(divisor(1 / std::sqrt(768.0)), 8);              // LeCun, and Xavier on a square projection
  EXPECT_DOUBLE_EQ(divisor(std::sqrt(2.0 / (768 + 3 * 768))), 4);  // Xavier on the packed one: √d/2
  EXPECT_EQ(printed({divisor(0.02)}, 3), Strings{"2.458"});
}

// Two keys have tr J = 2·p₁p₂ and ‖J‖² = 4·(p₁p₂)², however far apart: p₁ rounds to 1 long before p₂ to 0. Each is a
// few operations of double, and e^x has a relative error of about x·2⁻⁵³.
TEST(SoftmaxRow, SaturatedRowsKeepTheirDigits) {
  for (const double gap : {1.0, 30.0, 50.0, 300.0}) {
    const SoftmaxRow row = softmax_row(std::vector<double>{gap, 0});
    const double small = 1 / (1 + std::exp(gap)), product = small * (1 - small), tolerance = (gap + 8) * 0x1p-52;
    EXPECT_NEAR(row.trace_j / (2 * product), 1, tolerance);
    EXPECT_NEAR(row.frobenius_j / (4 * product * product), 1, 2 * tolerance);
    EXPECT_NEAR(row.complements[0] / small, 1, tolerance);
    EXPECT_NEAR(row.entropy / (-small * std::log(small) - (1 - small) * std::log1p(-small)), 1, tolerance);
  }
}

TEST(SoftmaxRow, StatisticsOfKnownRows) {
  const SoftmaxRow equal = softmax_row(std::vector<double>(5, -3.0));
  EXPECT_DOUBLE_EQ(equal.entropy, std::log(5.0));
  EXPECT_DOUBLE_EQ(equal.log_z, std::log(5.0) - 3);
  EXPECT_DOUBLE_EQ(equal.sum_p2, 0.2);
  EXPECT_DOUBLE_EQ(equal.trace_j, 0.8);
  EXPECT_NEAR(equal.frobenius_j, 4.0 / 25, 1e-15);
  const SoftmaxRow two = softmax_row(std::vector<double>{0, std::log(3.0)});
  EXPECT_DOUBLE_EQ(two.p_max, 0.75);
  EXPECT_DOUBLE_EQ(two.mean_score, 0.75 * std::log(3.0));
  EXPECT_DOUBLE_EQ(two.entropy, two.log_z - two.mean_score);
  EXPECT_DOUBLE_EQ(two.frobenius_j, 4 * 0.1875 * 0.1875);
  const SoftmaxRow huge = softmax_row(std::vector<double>{1e4, 0});
  EXPECT_TRUE(std::isinf(huge.sum));
  EXPECT_EQ(huge.probabilities, (std::vector<double>{1, 0}));
  EXPECT_EQ(huge.log_z, 1e4);
}

TEST(DotProduct, RefusesWhatMakesNoSense) {
  EXPECT_EQ(test::message_of([] { dot_product_variance(0); }), "dim_qk: 0, but at least 1 is wanted");
  EXPECT_EQ(test::message_of([] {
              dot_product_variance(4, {0, -1});
            }),
            "q.variance: -1, but a finite number of at least 0 is wanted");
  EXPECT_EQ(test::message_of([] { dot_product_variance(4, {}, {NAN, 1}); }), "k.mean: nan is not finite");
  EXPECT_EQ(test::message_of([] { projected_components(8, -1); }),
            "weight_std: -1, but a finite number of at least 0 is wanted");
  EXPECT_EQ(test::message_of([] { population_variance({}); }), "values: none, but at least 1 is wanted");
  EXPECT_EQ(test::message_of([] { softmax_row({}); }), "scores: none, but at least 1 is wanted");
  EXPECT_EQ(test::message_of([] { softmax_row(std::vector<double>{1, INFINITY}); }), "scores: inf is not finite");
}

}  // namespace
}  // namespace rootdk::theory
