// AdamW against its formula in double, and what its steps must be like.
#include <gtest/gtest.h>

#include <cmath>

#include "rootdk/nn/adamw.h"
#include "rootdk/nn/init.h"
#include "support/message.h"

namespace rootdk::nn::testing {
namespace {

using test::message_of;

std::vector<float> normal_floats(std::size_t count, std::uint64_t stream) {
  std::vector<float> values(count);
  fill(values, Init::normal(1), {}, {77, stream});
  return values;
}

Parameter<float> matrix(std::vector<float>& values) {
  return {"matrix", {1, static_cast<std::int64_t>(values.size())}, values};
}
Parameter<float> vector(std::vector<float>& values) {
  return {"vector", {static_cast<std::int64_t>(values.size())}, values};
}

// Ten steps of the formula. In f32 a step has about ten roundings, each of u times what it rounds: w itself (two of
// them) or the update, which is at most rate·(1/(1−β₁))·… < 11·rate in size. m and v are sums of terms whose signs may
// cancel in m; its error is bounded by that of Σ|terms|, kept beside it.
TEST(AdamW, FollowsItsFormula) {
  const AdamWOptions o;
  const double u = 0x1p-24, rate = 0.01, factor = 0.5;
  const std::size_t count = 5000;  // more than a chunk
  std::vector<float> w = normal_floats(count, 1), g;
  std::vector<double> want(w.begin(), w.end()), m(count), v(count), m_abs(count), slack(count);
  AdamW optimiser(o, std::vector{matrix(w)});
  for (int t = 1; t <= 10; ++t) {
    g = normal_floats(count, static_cast<std::uint64_t>(100 + t));
    optimiser.step(std::vector{matrix(w)}, std::vector{matrix(g)}, rate, factor);
    for (std::size_t i = 0; i < count; ++i) {
      const double d = factor * static_cast<double>(g[i]);
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * d;
      m_abs[i] = o.beta1 * m_abs[i] + (1 - o.beta1) * std::fabs(d);
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * d * d;
      const double per_m =
          rate / (1 - std::pow(o.beta1, t)) / (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.epsilon);
      want[i] -= rate * o.weight_decay * want[i] + per_m * m[i];
      slack[i] += u * (3 * std::fabs(want[i]) + per_m * (4.0 * t * m_abs[i] + (2.0 * t + 8) * std::fabs(m[i])));
    }
  }
  for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(static_cast<double>(w[i]), want[i], slack[i]) << i;
  EXPECT_EQ(optimiser.state().steps, 10);
}

// The first step is the learning rate against the gradient's sign, whatever its size; nothing decays.
TEST(AdamW, FirstStepIsTheRate) {
  AdamWOptions options;
  options.weight_decay = 0;
  options.epsilon = 1e-30;
  std::vector<float> w(3, 0.0f), g = {1e-6f, -3.0f, 1e6f};
  AdamW(options, std::vector{matrix(w)}).step(std::vector{matrix(w)}, std::vector{matrix(g)}, 0.25);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(w[i], i == 1 ? 0.25f : -0.25f, 0.25f * 12 * 0x1p-24f);
}

TEST(AdamW, OnlyMatricesDecay) {
  AdamWOptions options;
  options.weight_decay = 0.5;
  std::vector<float> w = {2, 2}, gain = {2, 2}, zeros(2), more_zeros(2);
  AdamW optimiser(options, std::vector{matrix(w), vector(gain)});
  optimiser.step(std::vector{matrix(w), vector(gain)}, std::vector{matrix(zeros), vector(more_zeros)}, 0.125);
  EXPECT_EQ(w, (std::vector<float>{1.875f, 1.875f}));
  EXPECT_EQ(gain, (std::vector<float>{2, 2}));
}

TEST(AdamW, GoesOnFromItsState) {
  std::vector<float> a = normal_floats(50, 1), b, g = normal_floats(50, 2);
  AdamW first({}, std::vector{matrix(a)});
  for (int t = 0; t < 3; ++t) first.step(std::vector{matrix(a)}, std::vector{matrix(g)}, 0.01);
  b = a;
  AdamW second({}, std::vector{matrix(b)});
  second.restore(first.state());
  first.step(std::vector{matrix(a)}, std::vector{matrix(g)}, 0.01);
  second.step(std::vector{matrix(b)}, std::vector{matrix(g)}, 0.01);
  EXPECT_EQ(a, b);
}

TEST(Norm, OfSeveralArrays) {
  std::vector<float> a(10000, 3.0f), b = {400.0f};
  EXPECT_EQ(norm_of(std::vector{matrix(a), vector(b)}), 500);
}

TEST(AdamW, RefusesWhatDoesNotFit) {
  std::vector<float> w(2), g(3);
  const std::vector list = {matrix(w)}, wrong = {matrix(g)};
  EXPECT_EQ(message_of([&] { AdamW({.beta1 = 1}, list); }), "beta1: 1, but at least 0 and less than 1 is wanted");
  EXPECT_EQ(message_of([&] { AdamW({.epsilon = 0}, list); }), "epsilon: 0, but a finite positive number is wanted");
  EXPECT_EQ(message_of([&] { AdamW({}, list).step(list, wrong, 1); }), "gradients[0]: 3 values, but matrix has 2");
  EXPECT_EQ(message_of([&] { AdamW({}, list).step(wrong, wrong, 1); }), "parameters: 3 values, but 2 are wanted");
  EXPECT_EQ(message_of([&] {
              AdamW({}, list).restore({1, {0}, {0}});
            }),
            "state: moments of 1 and 1 values, but 2 are wanted");
}

}  // namespace
}  // namespace rootdk::nn::testing
