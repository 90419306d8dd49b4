// The law Var(q·k) = d_k as the laboratory measures it: intervals that cover as often as they say, the general formula,
// nine terms, and the same numbers at any thread count.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "rootdk/lab/estimate.h"
#include "rootdk/lab/variance.h"
#include "rootdk/theory/dot_product.h"
#include "rootdk/theory/head.h"
#include "support/message.h"

namespace rootdk::lab {
namespace {

bool contains(double low, double high, double value) { return low <= value && value <= high; }

TEST(Estimate, StudentBoundsInClosedForm) {
  for (const double share : {0.5, 0.9, 0.95, 0.999}) {
    EXPECT_NEAR(student_bound(1, share), std::tan(std::acos(-1.0) * share / 2), 1e-9 * student_bound(1, share));
    EXPECT_NEAR(student_bound(2, share), share * std::sqrt(2 / (1 - share * share)), 1e-9 * student_bound(2, share));
  }
  EXPECT_NEAR(student_bound(7), 2.364624, 1e-6);  // any table of Student's t
  EXPECT_NEAR(student_bound(30), 2.042272, 1e-6);
  EXPECT_NEAR(student_bound(100001), 1.959964, 1e-4);
}

TEST(Estimate, OfBatches) {
  const Estimate e = estimate(std::vector<double>{1, 2, 3});
  EXPECT_DOUBLE_EQ(e.value, 2);
  EXPECT_DOUBLE_EQ(e.standard_error, std::sqrt(1.0 / 3));
  EXPECT_DOUBLE_EQ(e.high - e.value, student_bound(2) * e.standard_error);
  EXPECT_DOUBLE_EQ(e.value - e.low, e.high - e.value);
  EXPECT_EQ(test::message_of([] { estimate(std::vector<double>{1}); }),
            "batches: 1, but at least 2 are wanted: their differences are the error");
}

// Of 400 seeds 95 % of the intervals should contain the truth; the number that do is binomial, and 4.5 standard
// deviations of it are allowed. Known moments make the interval of a heavy-tailed variance wide, so there it may also
// cover more often, but not less.
TEST(Variance, IntervalsCoverAsOftenAsTheySay) {
  const int seeds = 400;
  const double slack = 4.5 * std::sqrt(seeds * 0.95 * 0.05);
  VarianceOptions options;
  options.dk = {1, 3, 16};
  options.pairs = 4096;
  std::vector<int> variance(12), mean(12);
  for (int seed = 0; seed < seeds; ++seed) {
    options.seed = static_cast<std::uint64_t>(seed);
    const Variance v = measure_variance(options);
    ASSERT_EQ(v.rows.size(), 12u);
    for (std::size_t i = 0; i < 12; ++i) {
      variance[i] += contains(v.rows[i].low, v.rows[i].high, v.rows[i].expected);
      mean[i] += contains(v.rows[i].mean_low, v.rows[i].mean_high, v.rows[i].mean_expected);
    }
  }
  const Variance v = measure_variance(options);
  for (std::size_t i = 0; i < 12; ++i) {
    SCOPED_TRACE(testing::Message() << name_of(v.rows[i].component) << ", d_k " << v.rows[i].dk);
    EXPECT_GE(variance[i], 0.95 * seeds - slack);
    if (v.rows[i].component != Component::kStudentT5) {
      EXPECT_LE(variance[i], 0.95 * seeds + slack);
    }
    EXPECT_GE(mean[i], 0.95 * seeds - slack);
    EXPECT_LE(mean[i], 0.95 * seeds + slack);
  }
}

// The same from rootdk::theory, which knows covariance matrices and means: q and k as projections by the identity.
TEST(Variance, GeneralFormulaIsTheTrace) {
  for (const std::int64_t d : {1, 2, 5, 32})
    for (const auto& [mean, rho] : {std::pair{0.0, 0.0}, {0.5, 0.0}, {0.0, 0.3}, {-0.4, 0.7}, {1.0, 1.0}}) {
      VarianceOptions options;
      options.mean = mean, options.correlation = rho, options.sigma_q = 0.5, options.sigma_k = 3;
      const auto n = static_cast<std::size_t>(d);
      std::vector<double> identity(n * n), of_q(n * n), of_k(n * n), means(n, mean);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          identity[i * n + j] = i == j;
          of_q[i * n + j] = 0.25 * (i == j ? 1 : rho), of_k[i * n + j] = 9 * (i == j ? 1 : rho);
        }
      const auto part = [&](const std::vector<double>& covariance) {
        return theory::project({.weight = identity, .mean = means, .covariance = covariance}, d);
      };
      const double expected = theory::head_theory(part(of_q), part(of_k)).total_variance;
      EXPECT_NEAR(expected_variance(options, d), expected, 1e-12 * expected) << d << ", " << mean << ", " << rho;
      if (rho == 0) {
        EXPECT_NEAR(expected_variance(options, d), theory::dot_product_variance(d, {mean, 0.25}, {mean, 9}),
                    1e-12 * expected);
      }
    }
  for (const std::int64_t d : {1, 64, 512}) EXPECT_EQ(expected_variance({}, d), static_cast<double>(d));
}

// Twice the half-width of the interval is 3.9 standard errors.
TEST(Variance, MeasuresWhatBreaksTheLaw) {
  VarianceOptions options;
  options.dk = {1, 8, 64};
  options.pairs = 200'000;
  for (const auto& [mean, rho] : {std::pair{0.5, 0.0}, {0.0, 0.3}, {0.5, 0.2}}) {
    options.mean = mean, options.correlation = rho, options.sigma_q = 0.7;
    const Variance v = measure_variance(options);
    EXPECT_EQ(v.intervals, rho == 0 ? IntervalFrom::kKnownMoments : IntervalFrom::kMeasuredMoments);
    for (const VarianceRow& row : v.rows) {
      SCOPED_TRACE(testing::Message() << name_of(row.component) << ", d_k " << row.dk << ", mean " << mean << ", rho "
                                      << rho);
      EXPECT_NEAR(row.variance, row.expected, row.high - row.low);
      EXPECT_NEAR(row.mean, row.mean_expected, row.mean_high - row.mean_low);
      if (row.dk > 1) {
        EXPECT_FALSE(contains(row.low, row.high, static_cast<double>(row.dk))) << "too few pairs to tell";
      }
    }
  }
}

TEST(Variance, NineTermsThreeOfThemOne) {
  VarianceOptions options;
  options.dk = {3};
  options.pairs = 400'000;
  const Variance v = measure_variance(options);
  ASSERT_EQ(v.terms.size(), 9u);
  double sum = 0;
  for (const SquareTerm& term : v.terms) {
    EXPECT_EQ(term.expected, term.i == term.j ? 1 : 0);
    EXPECT_NEAR(term.mean, term.expected, 5 * term.standard_error) << term.i << ", " << term.j;
    EXPECT_LT(term.standard_error, 0.01) << "too few pairs to tell";
    sum += term.mean;
  }
  // The sum of the nine is the mean of (q·k)², so it is the variance plus the squared mean: the same data, other
  // additions (f32 products).
  const VarianceRow& row = v.rows.front();
  EXPECT_NEAR(sum, row.variance + row.mean * row.mean, 1e-5);
}

// Var(x/c) = Var(x)/c², on the very numbers.
TEST(Variance, DividingDividesByTheSquare) {
  VarianceOptions options;
  options.pairs = 10'000;
  const Variance v = measure_variance(options);
  for (const VarianceRow& row : v.rows) {
    const auto d = static_cast<double>(row.dk);
    EXPECT_NEAR(row.after_sqrt_dk, row.variance / d, 1e-12 * row.variance);
    EXPECT_NEAR(row.after_dk, row.variance / d / d, 1e-12 * row.variance);
  }
  EXPECT_DOUBLE_EQ(v.divided.variance, 8.0 / 3);
  EXPECT_DOUBLE_EQ(v.divided.variance_divided, 2.0 / 3);
}

void expect_same(const VarianceRow& a, const VarianceRow& b) {
  EXPECT_EQ(a.component, b.component);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.mean, b.mean);
  EXPECT_EQ(a.variance, b.variance);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.after_dk, b.after_dk);
}

TEST(Variance, DependsOnTheSeedAndNotOnThreadsOrCompany) {
  VarianceOptions options;
  options.dk = {5, 2, 33};
  options.pairs = 300'000;  // more than a wave of chunks, and no multiple of a block
  options.components = {Component::kNormal, Component::kStudentT5};
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Variance one = measure_variance(options);
  omp_set_num_threads(3);
  const Variance three = measure_variance(options);
  omp_set_num_threads(before);
  for (std::size_t i = 0; i < one.rows.size(); ++i) expect_same(one.rows[i], three.rows[i]);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(one.terms[i].mean, three.terms[i].mean);
  options.dk = {33};
  options.components = {Component::kStudentT5};
  expect_same(measure_variance(options).rows.front(), one.rows[5]);
  options.seed = 2;
  EXPECT_NE(measure_variance(options).rows.front().variance, one.rows[5].variance);
}

TEST(Variance, StopsWhenAskedAndKeepsWhatIsFinished) {
  VarianceOptions options;
  options.dk = {1};
  options.pairs = 1'000'000;
  double last = 0;
  Watch watch;
  watch.progress = [&](double done, std::string_view) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, 1);
    last = done;
  };
  watch.stop = [&] { return last > 0.5; };
  const Variance v = measure_variance(options, watch);
  EXPECT_FALSE(v.complete);
  EXPECT_EQ(v.terms.size(), 9u);
  EXPECT_EQ(v.rows.size(), 3u) << "normal, uniform and rademacher take half of the time";
  const Variance all = measure_variance(options);
  for (std::size_t i = 0; i < v.rows.size(); ++i) expect_same(v.rows[i], all.rows[i]);
}

TEST(Variance, RefusesWhatMakesNoSense) {
  const auto message = [](auto change) {
    VarianceOptions options;
    change(options);
    return test::message_of([&] { measure_variance(options); });
  };
  EXPECT_EQ(message([](auto& o) { o.dk = {}; }), "dk: none given, but at least one is wanted");
  EXPECT_EQ(message([](auto& o) { o.dk = {4, 0}; }), "dk: 0, but a whole number from 1 to 65536 is wanted");
  EXPECT_EQ(message([](auto& o) { o.pairs = 1; }), "pairs: 1, but a whole number from 2 to 1099511627776 is wanted");
  EXPECT_EQ(message([](auto& o) { o.walks = 257; }), "walks: 257, but a whole number from 0 to 256 is wanted");
  EXPECT_EQ(message([](auto& o) { o.sigma_q = 0; }), "sigma_q: 0, but a number above 0, at most 1e6, is wanted");
  EXPECT_EQ(message([](auto& o) { o.mean = NAN; }), "mean: nan, but a number from -1e6 to 1e6 is wanted");
  EXPECT_EQ(message([](auto& o) { o.correlation = -0.1; }), "correlation: -0.1, but a number from 0 to 1 is wanted");
}

// Terms of ±1 make steps of 1; and over as many pairs as were measured, a walk's places have the variance of their
// rows.
TEST(Variance, WalksAreTheSumsThatWereMeasured) {
  VarianceOptions options;
  options.components = {Component::kRademacher};
  options.dk = {200, 7};
  options.pairs = options.walks = 256;
  const Variance v = measure_variance(options);
  ASSERT_EQ(v.walks.sums.size(), 256u);
  ASSERT_EQ(v.walks.terms.size(), 200u);
  for (const std::vector<double>& walk : v.walks.sums)
    for (std::size_t i = 0; i < walk.size(); ++i) {
      EXPECT_EQ(v.walks.terms[i], static_cast<std::int64_t>(i) + 1);
      EXPECT_EQ(std::fabs(walk[i] - (i == 0 ? 0 : walk[i - 1])), 1);
    }
  for (const VarianceRow& row : v.rows) {
    double sum = 0, squares = 0;
    for (const std::vector<double>& walk : v.walks.sums) {
      const double x = walk[static_cast<std::size_t>(row.dk) - 1];
      sum += x, squares += x * x;
    }
    EXPECT_DOUBLE_EQ((squares - sum * sum / 256) / 255, row.variance);
  }
  options.dk = {1000};
  const std::vector<std::int64_t> terms = measure_variance(options).walks.terms;
  EXPECT_EQ(terms.size(), 256u);
  EXPECT_EQ(terms.front(), 1);
  EXPECT_EQ(terms.back(), 1000);
  EXPECT_TRUE(std::is_sorted(terms.begin(), terms.end()));
  options.dk = {1};
  EXPECT_EQ(measure_variance(options).walks.terms, std::vector<std::int64_t>{1});
  options.walks = 0;
  EXPECT_TRUE(measure_variance(options).walks.sums.empty());
}

// ±1 has two places; three uniform components stay within ±9, and steps are 10·√3/40 wide: a midpoint is at most half a
// step off.
TEST(Variance, HistogramsCountEveryPair) {
  VarianceOptions options;
  options.pairs = 30'000;
  options.dk = {1};
  options.components = {Component::kRademacher, Component::kNormal};
  const Variance two = measure_variance(options);
  ASSERT_EQ(two.histograms.size(), 1u) << "of the first kind only";
  EXPECT_DOUBLE_EQ(two.histograms[0].low, -5);
  EXPECT_DOUBLE_EQ(two.histograms[0].high, 5);
  ASSERT_EQ(two.histograms[0].counts.size(), 40u);
  EXPECT_EQ(two.histograms[0].counts[16] + two.histograms[0].counts[24], options.pairs);

  options.dk = {64, 3};
  options.components = {Component::kUniform};
  const Variance v = measure_variance(options);
  ASSERT_EQ(v.histograms.size(), 2u);
  EXPECT_EQ(v.histograms[0].dk, 64);
  const ProductHistogram& h = v.histograms[1];
  EXPECT_EQ(h.below + h.above, 0);
  std::int64_t all = 0;
  double mean = 0;
  const double step = (h.high - h.low) / static_cast<double>(h.counts.size());
  for (std::size_t i = 0; i < h.counts.size(); ++i) {
    all += h.counts[i];
    mean += static_cast<double>(h.counts[i]) * (h.low + (static_cast<double>(i) + 0.5) * step);
  }
  EXPECT_EQ(all, options.pairs);
  EXPECT_NEAR(mean / static_cast<double>(all), v.rows[1].mean, step / 2);

  // Vectors with a mean and a correlation: the steps lie about what is expected, and next to nothing falls beyond them.
  options.mean = 0.5, options.correlation = 0.2;
  const Variance moved = measure_variance(options);
  EXPECT_DOUBLE_EQ((moved.histograms[0].low + moved.histograms[0].high) / 2, 64 * 0.25);
  EXPECT_LT(moved.histograms[0].below + moved.histograms[0].above, options.pairs / 25)
      << "Chebyshev: at most 1/25 beyond five σ";
}

}  // namespace
}  // namespace rootdk::lab
