// Scales that look at the data: unit variance against every score written out, adaptive temperature against two
// softmaxes by hand.
#include "rootdk/adaptive.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/buffer.h"

namespace rootdk::test {
namespace {

constexpr double kU64 = 0x1p-53;

std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// Batch 2, heads 4 on 2, 6 queries, 11 keys, dim 5; keys with a mean, which rows do not see.
struct Tokens {
  Buffer q, k, v;

  explicit Tokens(DType dtype = DType::kF64, double size = 1)
      : q(dtype, {2, 4, 6, 5}, Layout::kTokensFirst),
        k(dtype, {2, 2, 11, 5}, Layout::kPadded),
        v(dtype, {2, 2, 11, 3}) {
    Rng rng(21);
    q.fill_normal(rng, size), k.fill_normal(rng, 1), v.fill_normal(rng, 1);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t j = 0; j < 11; ++j)
          for (std::int64_t d = 0; d < 5; ++d) k.set(b, h, j, d, k.get(b, h, j, d) + 3);
  }
  ConstTensor q_view() const { return q.tensor(); }
  ConstTensor k_view() const { return k.tensor(); }

  double dot(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t d = 0; d < 5; ++d) sum += q.get(b, h, i, d) * k.get(b, h / 2, j, d);
    return sum;
  }
  /// Mean over batch and rows of the variance over keys, score by score.
  double within_row(std::int64_t h) const {
    double total = 0;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 6; ++i) {
        double mean = 0, squares = 0;
        for (std::int64_t j = 0; j < 11; ++j) mean += dot(b, h, i, j) / 11;
        for (std::int64_t j = 0; j < 11; ++j) squares += std::pow(dot(b, h, i, j) - mean, 2);
        total += squares / 11;
      }
    return total / 12;
  }
};

TEST(AdaptiveUnitVariance, IsThatOfTheScoresThemselves) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const Tokens t(dtype);
    const UnitVariance got = adaptive_unit_variance({}, t.q_view(), t.k_view());
    ASSERT_EQ(got.variance.size(), 4u);
    EXPECT_TRUE(got.exact);
    EXPECT_EQ(got.why, "");
    for (std::int64_t h = 0; h < 4; ++h) {
      const double want = t.within_row(h);
      // Both in double; scores of size up to 100 lose 2^-53 each of that in the sums here, of variances around 5.
      EXPECT_NEAR(got.variance[static_cast<std::size_t>(h)], want, 100 * 64 * kU64 * (1 + want)) << h;
      EXPECT_FLOAT_EQ(got.factors[static_cast<std::size_t>(h)], static_cast<float>(1 / std::sqrt(want)));
    }
  }
}

TEST(AdaptiveUnitVariance, MakesTheVarianceOne) {
  Tokens t;
  const UnitVariance got = adaptive_unit_variance({}, t.q_view(), t.k_view());
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 6; ++i)
        for (std::int64_t d = 0; d < 5; ++d)
          t.q.set(b, h, i, d, t.q.get(b, h, i, d) * static_cast<double>(got.factors[static_cast<std::size_t>(h)]));
  for (std::int64_t h = 0; h < 4; ++h) EXPECT_NEAR(t.within_row(h), 1, 4 * 0x1p-24);
}

TEST(AdaptiveUnitVariance, SaysWhenMasksMakeItApproximate) {
  const Tokens t;
  const std::vector<std::int64_t> lengths = {3, 11};
  Problem problem;
  const double before = adaptive_unit_variance(problem, t.q_view(), t.k_view()).variance[0];
  problem.mask.causal = true;
  problem.mask.key_lengths = lengths;
  const UnitVariance masked = adaptive_unit_variance(problem, t.q_view(), t.k_view());
  EXPECT_FALSE(masked.exact);
  EXPECT_EQ(masked.why, "causal, key lengths");
  EXPECT_EQ(masked.variance[0], before) << "of all pairs, whatever is hidden later";
  Problem slopes;
  const std::vector<float> four = {1, 2, 3, 4};
  slopes.mask.alibi_slopes = four;
  EXPECT_TRUE(adaptive_unit_variance(slopes, t.q_view(), t.k_view()).exact)
      << "ALiBi comes after the scale and hides nothing";
}

TEST(AdaptiveUnitVariance, ReadsKeysThroughThePageTable) {
  const Tokens t;
  // The same keys in pages of 4, shuffled.
  const std::vector<std::int32_t> table = {3, 0, 5, 1, 4, 2};
  Buffer pages(DType::kF64, {6, 2, 4, 5});
  pages.fill(1e9);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t j = 0; j < 11; ++j)
        for (std::int64_t d = 0; d < 5; ++d)
          pages.set(table[static_cast<std::size_t>(b * 3 + j / 4)], h, j % 4, d, t.k.get(b, h, j, d));
  Problem problem;
  problem.paged = PagedKv{table, 3, 11};
  EXPECT_EQ(adaptive_unit_variance(problem, t.q_view(), std::as_const(pages).tensor()).variance,
            adaptive_unit_variance({}, t.q_view(), t.k_view()).variance);
}

TEST(AdaptiveUnitVariance, KeysThatAreAllTheSameGetTheUsualFactor) {
  Tokens t;
  t.k.fill(0.1);  // whose mean is rounded
  const UnitVariance got = adaptive_unit_variance({}, t.q_view(), t.k_view());
  for (std::size_t h = 0; h < 4; ++h) {
    EXPECT_EQ(got.variance[h], 0);
    EXPECT_FLOAT_EQ(got.factors[h], static_cast<float>(1 / std::sqrt(5.0)));
  }
}

TEST(AdaptiveUnitVariance, TheSameBitsAtAnyThreadCount) {
  const Tokens t(DType::kF32);
  const int before = omp_get_max_threads();
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    results.push_back(adaptive_unit_variance({}, t.q_view(), t.k_view()).variance);
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
}

TEST(AdaptiveUnitVariance, AveragesVariancesOverBatches) {
  RunningUnitVariance running(0.75);
  UnitVariance batch{{4, 1}, {0.5f, 1}, true, ""};
  EXPECT_EQ(running.update(batch, 16).variance, (std::vector<double>{4, 1})) << "the first stands for itself";
  batch.variance = {8, 0}, batch.exact = false, batch.why = "causal";
  const UnitVariance& second = running.update(batch, 16);
  EXPECT_EQ(second.variance, (std::vector<double>{5, 0.75}));
  EXPECT_EQ(second.factors,
            (std::vector<float>{static_cast<float>(1 / std::sqrt(5.0)), static_cast<float>(1 / std::sqrt(0.75))}));
  EXPECT_FALSE(second.exact);
  batch.exact = true;
  EXPECT_FALSE(running.update(batch, 16).exact) << "one batch that was not exact stays in the average";
  EXPECT_EQ(running.average().why, "causal");
  EXPECT_EQ(said_by([&] { running.update({{1}, {1}, true, ""}, 16); }), "batch: 1 heads, but those before had 2");
  EXPECT_EQ(said_by([] { RunningUnitVariance(1); }), "decay: 1, but 0 <= decay < 1 is wanted");
}

TEST(AdaptiveUnitVariance, RefusesWithTheReason) {
  const Tokens t;
  Buffer none(DType::kF64, {2, 2, 0, 5}), other(DType::kF64, {2, 2, 11, 4});
  EXPECT_EQ(said_by([&] { adaptive_unit_variance({}, t.q_view(), std::as_const(none).tensor()); }),
            "q, k: 2 batch items, 6 queries and 0 keys, but at least 1 of each is wanted");
  EXPECT_EQ(said_by([&] { adaptive_unit_variance({}, t.q_view(), std::as_const(other).tensor()); }),
            "k: dim_qk is 4, but q has 5");
}

TEST(AdaptiveTemperature, IsThePublishedPolynomial) {
  EXPECT_EQ(adaptive_temperature(0), 1);
  EXPECT_EQ(adaptive_temperature(0.5), 1);
  EXPECT_NEAR(adaptive_temperature(1), -0.037 + 0.481 - 2.3 + 4.917 - 1.791, 16 * kU64);
  EXPECT_NEAR(adaptive_temperature(2), -0.037 * 16 + 0.481 * 8 - 2.3 * 4 + 4.917 * 2 - 1.791, 64 * kU64);
  EXPECT_EQ(adaptive_temperature(9), 1) << "the polynomial falls below 1";
  EXPECT_EQ(adaptive_temperature(std::nan("")), 1);
}

TEST(AdaptiveTemperature, IsTwoSoftmaxes) {
  for (const DType dtype : {DType::kF64, DType::kF32})
    for (const bool causal : {false, true}) {
      const Tokens t(dtype, 0.5);
      Problem problem;
      problem.scale = Scale::inv_sqrt_dk().with_ssmax(0.5, 0.25);
      problem.mask.causal = causal;
      Buffer o(dtype, {2, 4, 6, 3}), lse(dtype, {2, 4, 6, 1}), beta(dtype, {2, 4, 6, 1});
      const Stats stats = forward_adaptive_temperature(problem, {t.q_view(), t.k_view(), t.v.tensor()},
                                                       {o.tensor(), lse.tensor()}, beta.tensor());
      EXPECT_EQ(stats.heads, 4);
      int sharpened = 0;
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t h = 0; h < 4; ++h)
          for (std::int64_t i = 0; i < 6; ++i) {
            const std::int64_t n = causal ? i + 6 : 11;
            const double c = (0.5 * std::log(static_cast<double>(n)) + 0.25) / std::sqrt(5.0);
            const auto softmax = [&](double times) {
              std::vector<double> p;
              double top = -1e300, sum = 0;
              for (std::int64_t j = 0; j < n; ++j)
                p.push_back(times * c * t.dot(b, h, i, j)), top = std::max(top, p.back());
              for (double& x : p) x = std::exp(x - top), sum += x;
              for (double& x : p) x /= sum;
              return p;
            };
            double entropy = 0;
            for (const double p : softmax(1)) entropy -= p > 0 ? p * std::log(p) : 0;
            // H = lse − mean score: u·(its two terms), of the size of the scores, here at most 40; dβ/dH is below 3.
            const double u = dtype == DType::kF64 ? kU64 : 0x1p-24, off = 3 * 16 * u * 40;
            const double want = adaptive_temperature(entropy);
            ASSERT_NEAR(beta.get(b, h, i, 0), want, off);
            sharpened += want > 1;
            const std::vector<double> p = softmax(want);
            for (std::int64_t d = 0; d < 3; ++d) {
              double sum = 0;
              for (std::int64_t j = 0; j < n; ++j) sum += p[static_cast<std::size_t>(j)] * t.v.get(b, h / 2, j, d);
              // Scores of up to 40 times β's error and their own rounding, times values of up to 4.
              EXPECT_NEAR(o.get(b, h, i, d), sum, 4 * 40 * (2 * off + 16 * u)) << b << h << i;
            }
          }
      EXPECT_GT(sharpened, 5);
    }
}

TEST(AdaptiveTemperature, RefusesWithTheReason) {
  const Tokens t(DType::kF32), half(DType::kF16);
  Buffer o(DType::kF32, {2, 4, 6, 3}), o16(DType::kF16, {2, 4, 6, 3});
  const std::vector<float> four(4);
  const auto said = [&](const std::function<void(Problem&)>& spoil) {
    Problem problem;
    spoil(problem);
    return said_by([&] {
      forward_adaptive_temperature(problem, {t.q_view(), t.k_view(), t.v.tensor()}, {o.tensor()});
    });
  };
  const std::string reason =
      ": does not go with adaptive temperature, which needs scores that are c·q·k and nothing else";
  EXPECT_EQ(said([](Problem&) {}), "accepted");
  EXPECT_EQ(said([](Problem& p) { p.soft_cap = 3.0f; }), "softcap" + reason);
  EXPECT_EQ(said([&](Problem& p) { p.sink = four; }), "sink" + reason);
  EXPECT_EQ(said([&](Problem& p) { p.mask.alibi_slopes = four; }), "alibi" + reason);
  EXPECT_EQ(said([](Problem& p) { p.dropout.p = 0.5f; }), "dropout" + reason);
  EXPECT_EQ(said_by([&] {
              forward_adaptive_temperature({}, {half.q_view(), half.k_view(), half.v.tensor()}, {o16.tensor()});
            }),
            "q: dtype is f16, but f32 or f64 is wanted: its rows are scaled in their own dtype");
}

}  // namespace
}  // namespace rootdk::test
