// Softmax of Gaussian scores: the quadrature against arbitrary precision, itself at half the step, one-dimensional
// integrals, and simulation.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "rootdk/theory.h"
#include "support/message.h"
#include "support/rng.h"
#include "theory/batches.h"
#include "theory/quadrature.h"
#include "theory/query_spread.h"

namespace rootdk::theory {
namespace {

constexpr double kPromised = 1e-6, kPromisedPMax = 1e-4;  // relative

struct Known {
  double keys, sigma;
  GaussianSoftmax expected;
  double p_max;
};

// From tools/theory_table.py.
std::vector<Known> table() {
  struct Line {
    double keys, sigma, entropy, log_z, sum_p2, trace_j, frobenius_j, p_max;
  };
  const Line lines[] = {
#include "data/theory_table.inc"
  };
  std::vector<Known> out;
  for (const Line& l : lines)
    out.push_back({l.keys, l.sigma, {l.entropy, l.log_z, l.sum_p2, l.trace_j, l.frobenius_j}, l.p_max});
  return out;
}

void expect_relative(double value, double expected, double tolerance, const char* what) {
  EXPECT_NEAR(value / expected, 1, tolerance) << what << ": " << value << " against " << expected;
}

void expect_close(const GaussianSoftmax& value, const GaussianSoftmax& expected, double tolerance) {
  expect_relative(value.entropy, expected.entropy, tolerance, "entropy");
  expect_relative(value.log_z, expected.log_z, tolerance, "log_z");
  expect_relative(value.sum_p2, expected.sum_p2, tolerance, "sum_p2");
  expect_relative(value.trace_j, expected.trace_j, tolerance, "trace_j");
  expect_relative(value.frobenius_j, expected.frobenius_j, tolerance, "frobenius_j");
}

// Promised: 1e-6. Held: 1e-9, so that a formula that is slightly wrong in a corner is seen.
TEST(GaussianSoftmax, AgreesWithArbitraryPrecision) {
  ASSERT_EQ(table().size(), 72u);
  for (const Known& known : table()) {
    SCOPED_TRACE(testing::Message() << "keys " << known.keys << ", sigma " << known.sigma);
    expect_close(gaussian_softmax(known.sigma, known.keys), known.expected, kPromised * 1e-3);
    expect_relative(gaussian_p_max(known.sigma, known.keys), known.p_max, kPromisedPMax * 1e-2, "p_max");
  }
}

TEST(GaussianSoftmax, HalvingTheStepChangesNothing) {
  for (const double keys : {2.0, 3.0, 7.5, 1024.0, 0x1p20})
    for (const double sigma : {1e-5, 0.05, 0.3, 0.41, 0.8, 1.5, 3.0, 5.3, 12.0, 64.0, 1e4}) {
      SCOPED_TRACE(testing::Message() << "keys " << keys << ", sigma " << sigma);
      expect_close(integrate(sigma, keys), integrate(sigma, keys, kStep / 2), kPromised * 1e-3);
      expect_relative(integrate_p_max(sigma, keys), integrate_p_max(sigma, keys, kStep / 2), kPromisedPMax * 1e-2,
                      "p_max");
    }
  // And the test can see a step that is too coarse.
  EXPECT_GT(std::fabs(integrate(4, 1024, 1.6).entropy / integrate(4, 1024).entropy - 1), kPromised);
}

// Two keys depend on their difference only, a Gaussian of variance 2σ²: p = 1/(1 + e^{−δ}), Z = e^{mean}·2cosh(δ/2).
TEST(GaussianSoftmax, RoughlyIsWithinItsPromise) {
  for (const double n : {2.0, 17.0, 512.0, 4096.0, 131072.0, 0x1p40})
    for (const double sigma : {0.0, 1e-3, 0.1, 0.3, 1.0, 2.0, 3.5, 5.0, 8.0, 30.0, 1000.0, 1e6}) {
      const RoughSoftmax rough = rough_softmax(sigma, n);
      const GaussianSoftmax exact = gaussian_softmax(sigma, n);
      expect_relative(rough.entropy, exact.entropy, 1e-4, "entropy");
      expect_relative(rough.sum_p2, exact.sum_p2, 1e-4, "sum_p2");
      expect_relative(rough.p_max, gaussian_p_max(sigma, n), 1e-4, "p_max");
    }
}

TEST(GaussianSoftmax, TwoKeysAreAOneDimensionalIntegral) {
  for (const double sigma : {0.02, 0.3, 1.0, 4.0, 22.6, 64.0}) {
    SCOPED_TRACE(sigma);
    const double spread = std::sqrt(2.0) * sigma;
    // 2·∫ over δ > 0, by Simpson: p_max has a corner at 0.
    const auto mean = [&](const std::function<double(double)>& f) {
      const int steps = 40000;
      const double h = 10 * spread / steps;
      double sum = 0;
      for (int i = 0; i <= steps; ++i) {
        const double delta = i * h, z = delta / spread;
        sum += (i == 0 || i == steps ? 1 : i % 2 == 1 ? 4 : 2) * f(delta) * std::exp(-z * z / 2);
      }
      return 2 * sum * h / 3 / (spread * std::sqrt(2 * std::numbers::pi));
    };
    const auto p = [](double delta) { return 1 / (1 + std::exp(-delta)); };
    const auto pq = [&](double delta) { return p(delta) * p(-delta); };
    GaussianSoftmax expected;
    expected.entropy = mean([&](double d) { return std::log1p(std::exp(-d)) + d * p(-d); });
    expected.log_z = mean([](double d) { return d / 2 + std::log1p(std::exp(-d)); });
    expected.sum_p2 = mean([&](double d) { return p(d) * p(d) + p(-d) * p(-d); });
    expected.trace_j = mean([&](double d) { return 2 * pq(d); });
    expected.frobenius_j = mean([&](double d) { return 4 * pq(d) * pq(d); });
    expect_close(gaussian_softmax(sigma, 2), expected, kPromised * 1e-2);
    expect_relative(gaussian_p_max(sigma, 2), mean(p), kPromisedPMax * 1e-2, "p_max");
  }
}

TEST(GaussianSoftmax, EqualScoresAreExact) {
  for (const double n : {2.0, 3.0, 1024.0, 0x1p20}) {
    const GaussianSoftmax zero = gaussian_softmax(0, n);
    EXPECT_EQ(zero.entropy, std::log(n));
    EXPECT_EQ(zero.log_z, std::log(n));
    EXPECT_EQ(zero.sum_p2, 1 / n);
    EXPECT_EQ(zero.trace_j, 1 - 1 / n);
    EXPECT_EQ(zero.frobenius_j, (n - 1) / (n * n));
    EXPECT_EQ(gaussian_p_max(0, n), 1 / n);
    expect_close(gaussian_softmax(1e-8, n), zero, 1e-12);
    expect_close(gaussian_softmax(1e-200, n), zero, 1e-12);
    expect_relative(gaussian_p_max(1e-200, n), 1 / n, 1e-6, "p_max");
  }
}

// Far beyond σ_c all that counts is how far the two largest scores lie apart, and that grows as σ.
TEST(GaussianSoftmax, HugeSpreads) {
  for (const double n : {2.0, 1024.0, 0x1p20}) {
    const GaussianSoftmax a = gaussian_softmax(1e9, n), b = gaussian_softmax(1e60, n);
    expect_relative(b.entropy * 1e51, a.entropy, kPromised, "entropy");
    expect_relative(b.trace_j * 1e51, a.trace_j, kPromised, "trace_j");
    expect_relative(b.frobenius_j * 1e51, a.frobenius_j, kPromised, "frobenius_j");
    expect_relative(b.log_z / 1e51, a.log_z, kPromised, "log_z");
    EXPECT_NEAR(gaussian_p_max(1e60, n), 1, 1e-4);
  }
}

// One batch of rows: every statistic's mean.
struct Rows {
  double entropy = 0, log_z = 0, sum_p2 = 0, trace = 0, norm2 = 0, p_max = 0, mean_score = 0;
  void add(const SoftmaxRow& row, double weight) {
    entropy += weight * row.entropy, log_z += weight * row.log_z, sum_p2 += weight * row.sum_p2;
    trace += weight * row.trace_j, norm2 += weight * row.frobenius_j, p_max += weight * row.p_max;
    mean_score += weight * row.mean_score;
  }
};

struct Simulated {
  Batches entropy, log_z, sum_p2, trace, norm2, p_max, mean_score;
  void add(const Rows& r) {
    entropy.add(r.entropy), log_z.add(r.log_z), sum_p2.add(r.sum_p2), trace.add(r.trace), norm2.add(r.norm2);
    p_max.add(r.p_max), mean_score.add(r.mean_score);
  }
  void expect_agree(const GaussianSoftmax& theory, double p_max_theory, double resolution) const {
    expect_agrees(entropy, theory.entropy, "entropy", resolution);
    expect_agrees(log_z, theory.log_z, "log_z", resolution);
    expect_agrees(sum_p2, theory.sum_p2, "sum_p2", resolution);
    expect_agrees(trace, theory.trace_j, "trace_j", resolution);
    expect_agrees(norm2, theory.frobenius_j, "frobenius_j", resolution);
    expect_agrees(p_max, p_max_theory, "p_max", resolution);
  }
};

TEST(GaussianSoftmax, AgreesWithSimulation) {
  const std::size_t n = 1024;
  const int rows = 24;
  for (const double sigma : {0.5, 1.0, 2.0, 4.0, 8.0, 22.6}) {
    SCOPED_TRACE(sigma);
    test::Rng rng(static_cast<std::uint64_t>(sigma * 10));
    Simulated simulated;
    std::vector<double> scores(n);
    for (int b = 0; b < Batches::kCount; ++b) {
      Rows mean;
      for (int i = 0; i < rows; ++i) {
        for (double& s : scores) s = sigma * rng.normal();
        mean.add(softmax_row(scores), 1.0 / rows);
      }
      simulated.add(mean);
    }
    const GaussianSoftmax theory = gaussian_softmax(sigma, n);
    simulated.expect_agree(theory, gaussian_p_max(sigma, n), 0.05);
    // Stein, in the two ways it is used.
    EXPECT_DOUBLE_EQ(theory.log_z - theory.entropy, sigma * sigma * theory.trace_j);
    expect_agrees(simulated.mean_score, sigma * sigma * theory.trace_j, "stein", 0.05);
    const double ratio = stein_ratio({sigma * sigma, simulated.mean_score.mean(), simulated.sum_p2.mean()});
    EXPECT_NEAR(ratio, 1,
                4 * (simulated.mean_score.standard_error() / simulated.mean_score.mean() +
                     simulated.trace.standard_error() / simulated.trace.mean()));
  }
}

// Stein's ratio notices what is not Gaussian: uniform scores of the same variance.
TEST(GaussianSoftmax, SteinRatioSeesOtherDistributions) {
  test::Rng rng(5);
  Rows mean;
  std::vector<double> scores(1024);
  for (int i = 0; i < 50; ++i) {
    for (double& s : scores) s = 3 * std::sqrt(3.0) * (2 * rng.uniform() - 1);
    mean.add(softmax_row(scores), 1.0 / 50);
  }
  EXPECT_LT(stein_ratio({9, mean.mean_score, mean.sum_p2}), 0.7);
  EXPECT_TRUE(std::isnan(stein_ratio({0, 0, 1})));
}

// Real queries and keys: rows of one batch share their keys, so only batches are independent.
TEST(GaussianSoftmax, AveragedOverTheSpreadOfQueries) {
  const std::size_t n = 1024;
  for (const std::size_t d : {std::size_t{2}, std::size_t{4}, std::size_t{16}}) {
    SCOPED_TRACE(d);
    test::Rng rng(d);
    Simulated simulated;
    std::vector<double> keys(n * d), q(d), scores(n);
    const int rows = 24;
    for (int b = 0; b < Batches::kCount; ++b) {
      for (double& x : keys) x = rng.normal();
      Rows mean;
      for (int i = 0; i < rows; ++i) {
        for (double& x : q) x = rng.normal();
        for (std::size_t j = 0; j < n; ++j) {
          scores[j] = 0;
          for (std::size_t c = 0; c < d; ++c) scores[j] += q[c] * keys[j * d + c];
        }
        mean.add(softmax_row(scores), 1.0 / rows);
      }
      simulated.add(mean);
    }
    const auto dim = static_cast<std::int64_t>(d);
    const double sigma = std::sqrt(static_cast<double>(d));
    simulated.expect_agree(gaussian_softmax(sigma, n, dim), gaussian_p_max(sigma, n, dim), 0.1);
  }
  // A long vector has a sure length.
  expect_close(gaussian_softmax(4, 1024, 1'000'000'000), gaussian_softmax(4, 1024), 1e-6);
}

TEST(GaussianSoftmax, NodesOfTheQuerySpreadAreEnough) {
  for (const std::int64_t d : {1, 2, 3, 4, 15, 16, 32, 64, 255, 256, 4096}) {
    double sum = 0, second = 0, fourth = 0;
    for (const auto& [factor, weight] : query_spread(d)) {
      sum += weight, second += weight * factor * factor, fourth += weight * std::pow(factor, 4);
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_NEAR(second, 1, 1e-12);
    EXPECT_NEAR(fourth, 1 + 2 / static_cast<double>(d), 1e-11);
    for (const double sigma : {1.0, 64.0}) {
      double plain = 0, fine = 0;
      for (const auto& [factor, weight] : query_spread(d)) plain += weight * integrate(sigma * factor, 2).entropy;
      for (const auto& [factor, weight] : query_spread(d, 1.5)) fine += weight * integrate(sigma * factor, 2).entropy;
      expect_relative(plain, fine, kPromised, "entropy");
    }
  }
}

TEST(GaussianSoftmax, FewNodesAreEnoughWhereQueriesAreLong) {
  for (const std::int64_t d : {16, 32, 64, 256})
    for (const double n : {16.0, 1024.0, 1e6})
      for (const double sigma : {0.5, 3.0, 40.0}) {
        GaussianSoftmax plain, fine;
        const auto mean = [&](GaussianSoftmax& out, double refinement) {
          for (const auto& [factor, weight] : query_spread(d, refinement)) {
            const GaussianSoftmax one = integrate(sigma * factor, n);
            out.entropy += weight * one.entropy, out.log_z += weight * one.log_z, out.sum_p2 += weight * one.sum_p2;
            out.trace_j += weight * one.trace_j, out.frobenius_j += weight * one.frobenius_j;
          }
        };
        mean(plain, 1);
        mean(fine, 1.75);
        expect_close(plain, fine, kPromised);
      }
  EXPECT_LT(query_spread(64).size(), query_spread(8).size() / 4);
  for (const std::int64_t d : {1, 2, 4, 8, 16, 64})
    for (const double n : {16.0, 1024.0})
      for (const double sigma : {0.2, 1.0, 3.0, 9.0})
        expect_relative(rough_p_max(sigma, n, d), gaussian_p_max(sigma, n, d), d == 1 ? 1e-3 : 1e-4, "p_max");
}

TEST(GaussianSoftmax, Limits) {
  EXPECT_DOUBLE_EQ(critical_sigma(1024), std::sqrt(2 * std::log(1024.0)));
  EXPECT_NEAR(critical_sigma(1024), 3.7, 0.05);
  // Soft: MATH's 6.431 against the exact 6.433, and better with more keys.
  EXPECT_NEAR(soft_limit(1, 1024).entropy, 6.431, 0.0005);
  EXPECT_NEAR(gaussian_softmax(1, 1024).entropy, 6.433, 0.0005);
  const double many = 0x1p40;
  EXPECT_NEAR(soft_limit(1, many).entropy, gaussian_softmax(1, many).entropy, 1e-9);
  expect_relative(soft_limit(1, many).participation, 1 / gaussian_softmax(1, many).sum_p2, 1e-9, "participation");
  // Dividing by d: H → ln n − 1/(2d).
  EXPECT_NEAR(gaussian_softmax(1 / 8.0, 1024).entropy, std::log(1024.0) - 1 / 128.0, 1e-4);
  // Frozen: closer and closer with more keys at the same r.
  double last = 1;
  for (const double keys : {0x1p10, 0x1p30, 0x1p50}) {
    const double sigma = 2 * critical_sigma(keys);
    const FrozenLimit limit = frozen_limit(sigma, keys);
    EXPECT_DOUBLE_EQ(limit.sum_p2, 0.5);
    EXPECT_DOUBLE_EQ(limit.trace_j, 0.5);
    EXPECT_DOUBLE_EQ(limit.frobenius_j, 1.0 / 12);
    const GaussianSoftmax exact = gaussian_softmax(sigma, keys);
    const double error = std::fabs(exact.trace_j - limit.trace_j);
    EXPECT_LT(error, last);
    EXPECT_LT(error, 0.1);
    EXPECT_NEAR(exact.frobenius_j, limit.frobenius_j, 0.01);
    last = error;
  }
}

// Unscaled d = 64 and 512 at n = 1024; ‖J‖² is not monotone in σ.
TEST(GaussianSoftmax, WhatFreezingLooksLike) {
  EXPECT_NEAR(gaussian_softmax(8, 1024, 64).trace_j, 0.40, 0.005);
  EXPECT_NEAR(gaussian_softmax(std::sqrt(512.0), 1024, 512).trace_j, 0.14, 0.005);
  EXPECT_GT(gaussian_softmax(5, 1024).frobenius_j, 10 * gaussian_softmax(1, 1024).frobenius_j);
  EXPECT_GT(gaussian_softmax(5, 1024).frobenius_j, gaussian_softmax(64, 1024).frobenius_j);
}

TEST(GaussianSoftmax, RefusesWhatMakesNoSense) {
  EXPECT_EQ(test::message_of([] { gaussian_softmax(-1, 4); }), "sigma: -1, but a number from 0 to 1e100 is wanted");
  EXPECT_EQ(test::message_of([] { gaussian_softmax(NAN, 4); }), "sigma: nan, but a number from 0 to 1e100 is wanted");
  EXPECT_EQ(test::message_of([] { gaussian_p_max(1, 1); }), "keys: 1, but a number from 2 to 2^53 is wanted");
  EXPECT_EQ(test::message_of([] { gaussian_softmax(1, 4, 0); }), "dim_qk: 0, but at least 1 is wanted");
  EXPECT_EQ(test::message_of([] { frozen_limit(1, 1024); }), "sigma: 1, but more than σ_c = 3.723 is wanted");
}

}  // namespace
}  // namespace rootdk::theory
