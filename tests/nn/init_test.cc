// Initialisers: the numbers they draw, and what becomes of q·k. Statistical checks allow five standard errors of what
// is estimated, from the exact moments of the distribution; seeds are fixed, so a run either always passes or never.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "rootdk/nn/init.h"
#include "rootdk/nn/multi_head_attention.h"
#include "support/message.h"

namespace rootdk::nn {
namespace {

using test::message_of;

constexpr double kStandardErrors = 5;

std::vector<float> drawn(const Init& init, const Fans& fans, const Seed& seed, std::size_t n = 200000) {
  std::vector<float> values(n);
  fill(values, init, fans, seed);
  return values;
}

// Moments of a distribution with mean 0 and variance 1.
struct Moments {
  double fourth, eighth;
};
constexpr Moments kNormal = {3, 105};
constexpr Moments kUniform = {9.0 / 5, 9};

// Of x²: variance fourth − 1; of x⁴: variance eighth − fourth²; each over √n.
void check_moments(const std::vector<float>& values, double sigma, const Moments& m) {
  double first = 0, second = 0, fourth = 0, neighbours = 0;
  const auto n = static_cast<double>(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(values[i]) / sigma;
    first += x / n, second += x * x / n, fourth += x * x * x * x / n;
    if (i > 0) neighbours += x * static_cast<double>(values[i - 1]) / sigma / (n - 1);
  }
  const double per_unit = kStandardErrors / std::sqrt(n);
  EXPECT_NEAR(first, 0, per_unit);
  EXPECT_NEAR(second, 1, per_unit * std::sqrt(m.fourth - 1));
  EXPECT_NEAR(fourth, m.fourth, per_unit * std::sqrt(m.eighth - m.fourth * m.fourth));
  EXPECT_NEAR(neighbours, 0, per_unit);
}

TEST(Init, StandardDeviationsOfTheRules) {
  const Fans fans = {300, 100};
  EXPECT_DOUBLE_EQ(Init::xavier_normal().standard_deviation(fans), std::sqrt(2.0 / 400));
  EXPECT_DOUBLE_EQ(Init::xavier_uniform(3).standard_deviation(fans), 3 * std::sqrt(2.0 / 400));
  EXPECT_DOUBLE_EQ(Init::lecun_normal().standard_deviation(fans), 1 / std::sqrt(300.0));
  EXPECT_DOUBLE_EQ(Init::lecun_uniform(0.5).standard_deviation(fans), 0.5 / std::sqrt(300.0));
  EXPECT_DOUBLE_EQ(Init::he_normal().standard_deviation(fans), std::sqrt(2 / 300.0));
  EXPECT_DOUBLE_EQ(Init::he_uniform().standard_deviation(fans), std::sqrt(2 / 300.0));
  EXPECT_DOUBLE_EQ(Init::normal(0.02, 2).standard_deviation({}), 0.04);
}

TEST(Init, DrawsWhatTheRuleSays) {
  const Fans fans = {300, 100};
  const std::vector<Init> all = {Init::xavier_normal(2), Init::xavier_uniform(), Init::lecun_normal(),
                                 Init::lecun_uniform(),  Init::he_normal(),      Init::he_uniform(0.5),
                                 Init::normal(0.02),     Init::uniform(3)};
  for (std::size_t n = 0; n < all.size(); ++n) {
    SCOPED_TRACE(n);
    const bool uniform = all[n].distribution == Init::Distribution::kUniform;
    check_moments(drawn(all[n], fans, {n, 0}), all[n].standard_deviation(fans), uniform ? kUniform : kNormal);
  }
}

// None of n uniforms in the outer part 30/n of the range has probability (1 − 30/n)ⁿ < e⁻³⁰.
TEST(Init, UniformFillsItsRange) {
  const auto values = drawn(Init::uniform(1), {}, {1, 0});
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double limit = std::numbers::sqrt3, outer = 2 * limit * 30 / static_cast<double>(values.size());
  EXPECT_LE(*high, static_cast<float>(limit));
  EXPECT_GE(*low, -static_cast<float>(limit));
  EXPECT_GT(static_cast<double>(*high), limit - outer);
  EXPECT_LT(static_cast<double>(*low), -limit + outer);
}

// The number beyond 3σ is binomial, p = erfc(3/√2).
TEST(Init, NormalHasTails) {
  const auto values = drawn(Init::normal(1), {}, {1, 0});
  const auto n = static_cast<double>(values.size());
  const double p = std::erfc(3 / std::numbers::sqrt2);
  const auto beyond =
      static_cast<double>(std::count_if(values.begin(), values.end(), [](float x) { return std::fabs(x) > 3; }));
  EXPECT_NEAR(beyond, n * p, kStandardErrors * std::sqrt(n * p * (1 - p)));
}

// From a separate implementation of the generator in Python. Two ulp: libms may differ in the last bit of a double,
// which is one f32 ulp where it falls on a tie.
TEST(Init, IsTheSameOnEveryMachine) {
  const Seed seed = {0x123456789ABCDEF0, 0x0000000500000007};
  const double normal[] = {1.149773976156112, 0.27859624252634985, -0.5477055084794846, -0.9556752519868175};
  const double uniform[] = {-0.011481388568631833, -1.6009869653151123, 0.15649112908676957, 0.5791074923262723};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(drawn(Init::normal(1), {}, seed, 4)[i], static_cast<float>(normal[i]));
    EXPECT_FLOAT_EQ(drawn(Init::uniform(1), {}, seed, 4)[i], static_cast<float>(uniform[i]));
  }
}

TEST(Init, DependsOnSeedStreamAndPlaceOnly) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = drawn(Init::normal(1), {}, {5, 6}, 1001);
  omp_set_num_threads(3);
  const auto three = drawn(Init::normal(1), {}, {5, 6}, 1001), longer = drawn(Init::normal(1), {}, {5, 6}, 2000);
  omp_set_num_threads(before);
  EXPECT_EQ(one, three);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), longer.begin()));
}

// Seeds and streams that differ in one bit, high or low, give unrelated numbers: correlation 0 within five standard
// errors.
TEST(Init, SeedsAndStreamsAreUnrelated) {
  const auto first = drawn(Init::normal(1), {}, {5, 6});
  const std::uint64_t high = std::uint64_t{1} << 40;
  for (const Seed& seed : {Seed{4, 6}, Seed{5, 7}, Seed{5 + high, 6}, Seed{5, 6 + high}}) {
    const auto second = drawn(Init::normal(1), {}, seed);
    double correlation = 0;
    for (std::size_t i = 0; i < first.size(); ++i)
      correlation += static_cast<double>(first[i]) * static_cast<double>(second[i]);
    EXPECT_NEAR(correlation / static_cast<double>(first.size()), 0,
                kStandardErrors / std::sqrt(static_cast<double>(first.size())));
  }
}

TEST(Init, OfALayer) {
  MultiHeadAttention layer(
      {.width = 64, .heads_q = 4, .heads_kv = 2, .dim_qk = 32, .bias_qkv = true, .bias_out = true});
  for (Linear* p : layer.parameters().each()) std::fill(p->bias.begin(), p->bias.end(), 1.0f);
  initialise(layer.parameters(), Init::xavier_normal(), {3, 10});
  const AttentionParameters& p = layer.parameters();
  for (const Linear* linear : p.each())
    for (const float b : linear->bias) ASSERT_EQ(b, 0);
  // Each has its own fans and its own stream.
  std::vector<float> expected(p.v.weight.size());
  fill(expected, Init::xavier_normal(), {64, 32}, {3, 12});
  EXPECT_EQ(p.v.weight, expected);
  EXPECT_FALSE(std::equal(p.v.weight.begin(), p.v.weight.end(), p.k.weight.begin()));
  // Packed: 128 + 64 + 32 outputs share the input; W_o is not part of it.
  const AttentionParameters separate = p;
  initialise(layer.parameters(), Init::xavier_normal(), {3, 10}, QkvFans::kPacked);
  fill(expected, Init::xavier_normal(), {64, 224}, {3, 12});
  EXPECT_EQ(p.v.weight, expected);
  EXPECT_EQ(p.o.weight, separate.o.weight);
}

// Mean of (q·k)² over pairs of different tokens, unit-variance inputs, no scale; and the standard error of that mean,
// from independent layers and inputs.
struct Spread {
  double variance, standard_error;
};

Spread score_variance(const Init& init, QkvFans fans) {
  const std::int64_t width = 768, heads = 12, dim = 64, length = 32;
  const int layers = 8;
  std::vector<float> x(static_cast<std::size_t>(length * width)), out(x.size());
  double sum = 0, squares = 0;
  for (int n = 0; n < layers; ++n) {
    MultiHeadAttention layer({.width = width, .heads_q = heads});
    initialise(layer.parameters(), init, {static_cast<std::uint64_t>(n), 0}, fans);
    fill(x, Init::normal(1), {}, {static_cast<std::uint64_t>(n), 100});
    AttentionSaved saved;
    layer.forward({}, {x.data(), 1, length, width}, {out.data(), 1, length, width}, &saved);
    double total = 0;
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < length; ++i)
        for (std::int64_t j = 0; j < length; ++j) {
          if (i == j) continue;
          double dot = 0;
          for (std::int64_t d = 0; d < dim; ++d)
            dot += static_cast<double>(saved.q[static_cast<std::size_t>((i * heads + h) * dim + d)]) *
                   static_cast<double>(saved.k[static_cast<std::size_t>((j * heads + h) * dim + d)]);
          total += dot * dot;
        }
    const double mean = total / static_cast<double>(heads * length * (length - 1));
    sum += mean, squares += mean * mean;
  }
  const double mean = sum / layers;
  return {mean, std::sqrt((squares / layers - mean * mean) / (layers - 1))};
}

// Var(q·k) = d·(D·σ_w²)². That is d = 64 for LeCun (any shape) and for Xavier on a square projection; Xavier on the
// packed 3D×D projection has σ_w² = 2/(D + 3D), a standard deviation of √d/2; N(0, 0.02) has 8·768·0.0004 = 2.458.
TEST(Init, DecidesTheSpreadOfScores) {
  const double d = 64;
  struct {
    const char* name;
    Init init;
    QkvFans fans;
    double std;
  } const cases[] = {
      {"LeCun", Init::lecun_normal(), QkvFans::kSeparate, std::sqrt(d)},
      {"Xavier, square", Init::xavier_uniform(), QkvFans::kSeparate, std::sqrt(d)},
      {"Xavier, packed", Init::xavier_uniform(), QkvFans::kPacked, std::sqrt(d) / 2},
      {"N(0, 0.02)", Init::normal(0.02), QkvFans::kSeparate, 2.4576},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const Spread spread = score_variance(c.init, c.fans);
    EXPECT_NEAR(spread.variance, c.std * c.std, kStandardErrors * spread.standard_error);
    EXPECT_LT(kStandardErrors * spread.standard_error, 0.1 * c.std * c.std) << "too few samples to tell";
  }
}

TEST(Init, RefusesWhatMakesNoSense) {
  std::vector<float> values(4, 7);
  const auto message = [&](const Init& init, const Fans& fans) {
    return message_of([&] { fill(values, init, fans, {}); });
  };
  EXPECT_EQ(message(Init::xavier_normal(), {3, 0}), "fans.out: 0, but at least 1 is wanted");
  EXPECT_EQ(message(Init::he_uniform(), {-1, 2}), "fans.in: -1, but at least 1 is wanted");
  EXPECT_EQ(message(Init::normal(-1), {}), "init.fixed_std: -1, but a finite number of at least 0 is wanted");
  EXPECT_EQ(message(Init::normal(1, INFINITY), {}), "init.gain: inf is not finite");
  EXPECT_EQ(values, std::vector<float>(4, 7));
}

}  // namespace
}  // namespace rootdk::nn
